"""Waiting for endpoints to attach or finish, and for groups to commit."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from sluiceway.api.arguments import check_seconds
from sluiceway.api.endpoints import Endpoint, EndpointCalls
from sluiceway.api.groups import CommitProgress
from sluiceway.errors import OptionError, SluicewayTimeout

__all__ = ["WaitedState", "missing_endpoints", "wait_for_commits", "wait_for_endpoints"]

WaitedState = Literal["opened", "started", "closed"]

_REACHED: Mapping[str, frozenset[str]] = {
    "opened": frozenset({"opened", "started", "stopped", "closed"}),
    "started": frozenset({"started", "stopped", "closed"}),
    "closed": frozenset({"closed"}),
}
_MAX_WAIT_S = 20.0
_MAX_NAMED = 5


def wait_for_endpoints(
    calls: EndpointCalls,
    channel: str,
    missing: Callable[[Sequence[Endpoint]], list[str]],
    *,
    timeout_s: float,
    every_s: float = _MAX_WAIT_S,
) -> tuple[Endpoint, ...]:
    """Return a channel's endpoints once `missing(endpoints)` returns no names.

    `missing` is called when an endpoint changes, and at least every `every_s` or 20 s. Raises
    SluicewayTimeout with the names.
    """
    deadline_s = time.monotonic() + timeout_s
    etag: str | None = None
    present: tuple[Endpoint, ...] = ()
    while True:
        left_s = min(_MAX_WAIT_S, every_s, deadline_s - time.monotonic())
        endpoints, etag = calls.endpoints(
            channel, seen=etag, wait_s=0.0 if etag is None else max(0.0, left_s)
        )
        present = present if endpoints is None else endpoints
        names = missing(present)
        if not names:
            return present
        if time.monotonic() >= deadline_s:
            raise SluicewayTimeout(
                f"after {timeout_s:g} s the channel {channel!r} lacks {'; '.join(names)}"
            )


def missing_endpoints(
    present: Sequence[Endpoint], role: str, wanted: int, state: WaitedState
) -> list[str]:
    """Describe the endpoints that have not reached `state`; empty if none is missing."""
    if state not in _REACHED:
        raise OptionError(f"state is {state!r}; it takes 'opened', 'started' or 'closed'")
    if wanted == 0:
        return []
    attached = [endpoint for endpoint in present if endpoint.role == role]
    reached = [endpoint for endpoint in attached if endpoint.state in _REACHED[state]]
    late = [endpoint for endpoint in attached if endpoint not in reached]
    unfinished = state == "closed" and any(endpoint.lives for endpoint in late)
    if len(reached) >= wanted and not unfinished:
        return []
    vacant = _vacant(attached)
    details = [_description(endpoint) for endpoint in late] + vacant
    if len(reached) >= wanted:
        return [f"the end of {role}s ({', '.join(map(_description, late))})"]
    never = wanted - len(attached)
    if never > 0 and len(vacant) < never:
        details.append(f"{never} never attached")
    return [f"{role}s: {len(reached)} of {wanted} {state} ({', '.join(details)})"]


def _description(endpoint: Endpoint) -> str:
    cause = f": {endpoint.cause}" if endpoint.cause else ""
    ended = endpoint.state in ("closed", "error")
    health = "" if ended or endpoint.health == "healthy" else f", {endpoint.health}"
    return f"{endpoint.place} is {endpoint.state}{health}{cause}"


def _vacant(attached: Sequence[Endpoint]) -> list[str]:
    """Name the places of groups without an instance."""
    sizes = {
        endpoint.group: endpoint.size for endpoint in attached if endpoint.group and endpoint.size
    }
    taken = {(endpoint.group, endpoint.index) for endpoint in attached}
    return [
        f"{group}[{index}] never attached"
        for group, size in sorted(sizes.items())
        for index in range(size or 0)
        if (group, index) not in taken
    ]


def wait_for_commits(
    calls: EndpointCalls,
    channel: str,
    *,
    uid: str,
    topic_id: str | None,
    groups: Sequence[str],
    ends: Mapping[int, int],
    timeout_s: float,
) -> None:
    """Return once all of the groups have committed up to `ends`.

    Each request is a long poll. Raises SluicewayTimeout with the missing messages by group and
    partition.
    """
    if isinstance(groups, str) or not groups or not all(isinstance(name, str) for name in groups):
        raise OptionError(f"groups is {groups!r}; it takes a list of group names")
    check_seconds("timeout_s", timeout_s)
    deadline_s = time.monotonic() + timeout_s
    late = []
    for group in dict.fromkeys(groups):
        while True:
            left_s = max(0.0, min(_MAX_WAIT_S, deadline_s - time.monotonic()))
            progress = calls.commit_progress(
                channel, group, uid=uid, topic_id=topic_id, ends=ends, wait_s=left_s
            )
            if progress.passed:
                break
            if left_s == 0 or time.monotonic() >= deadline_s:
                late.append(f"the group {group!r}: {_shortfall(progress)}")
                break
    if late:
        raise SluicewayTimeout(
            f"after {timeout_s:g} s the records written to the channel {channel!r} are not "
            f"acknowledged by {'; '.join(late)}"
        )


def _shortfall(progress: CommitProgress) -> str:
    if not progress.known:
        return "it never had a member"
    partitions = [
        (f"member {shortfall.index}, " if shortfall.index is not None else "")
        + f"partition {shortfall.partition}: "
        + (
            f"none of {shortfall.wanted} messages committed"
            if shortfall.committed is None
            else f"{shortfall.wanted - shortfall.committed} messages missing "
            f"({shortfall.committed} of {shortfall.wanted})"
        )
        for shortfall in progress.missing[:_MAX_NAMED]
    ]
    more = progress.lacking - len(partitions)
    return ", ".join([*partitions, *([f"and {more} more partitions"] if more > 0 else [])])
