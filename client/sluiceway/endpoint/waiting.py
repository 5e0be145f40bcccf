"""Waiting for endpoints to attach or finish, and for groups to commit."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from sluiceway.errors import OptionError, SluicewayTimeout
from sluiceway.rest.endpoint_models import CommitProgress, Endpoint
from sluiceway.rest.endpoints import EndpointCalls

WaitedState = Literal["opened", "started", "closed"]

_REACHED: Mapping[str, frozenset[str]] = {
    "opened": frozenset({"opened", "started", "stopped", "closed"}),
    "started": frozenset({"started", "stopped", "closed"}),
    "closed": frozenset({"closed"}),
}
_LONGEST_WAIT_S = 20.0


class Meeting:
    """The endpoints of one incarnation of a channel, asked for without being one."""

    def __init__(self, calls: EndpointCalls, channel: str) -> None:
        self._calls = calls
        self._channel = channel

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return all that are there."""
        return self._calls.endpoints(self._channel)[0] or ()

    def wait_for(
        self, *, writers: int, readers: int, state: WaitedState, timeout_s: float
    ) -> tuple[Endpoint, ...]:
        """Return them once nobody is missing. Raises SluicewayTimeout."""
        if state not in _REACHED:
            raise OptionError(f"state is {state!r}; it takes 'opened', 'started' or 'closed'")
        return self.wait_until(
            lambda present: [
                *missing(present, "writer", writers, state),
                *missing(present, "reader", readers, state),
            ],
            timeout_s=timeout_s,
        )

    def wait_until(
        self,
        absent: Callable[[Sequence[Endpoint]], list[str]],
        *,
        timeout_s: float,
        every_s: float = _LONGEST_WAIT_S,
    ) -> tuple[Endpoint, ...]:
        """Return them once `absent` names nobody of them. Raises SluicewayTimeout with the names.

        It is asked when something changes, and every 20 s, or every `every_s` if that is sooner.
        """
        deadline_s = time.monotonic() + timeout_s
        etag: str | None = None
        present: tuple[Endpoint, ...] = ()
        while True:
            left_s = min(_LONGEST_WAIT_S, every_s, deadline_s - time.monotonic())
            found, etag = self._calls.endpoints(
                self._channel, seen=etag, wait_s=0.0 if etag is None else max(0.0, left_s)
            )
            present = present if found is None else found
            names = absent(present)
            if not names:
                return present
            if time.monotonic() >= deadline_s:
                raise SluicewayTimeout(
                    f"after {timeout_s:g} s the channel {self._channel!r} lacks {'; '.join(names)}"
                )


def missing(present: Sequence[Endpoint], role: str, wanted: int, state: WaitedState) -> list[str]:
    """Say who of `wanted` endpoints of a role has not come to `state`; nobody: an empty list."""
    if wanted == 0:
        return []
    known = [each for each in present if each.role == role]
    there = [each for each in known if each.state in _REACHED[state]]
    late = [each for each in known if each not in there]
    unfinished = state == "closed" and any(each.lives for each in late)
    if len(there) >= wanted and not unfinished:
        return []
    told = [_standing(each) for each in late] + _vacant(known)
    never = wanted - len(known)
    if never > 0 and len(_vacant(known)) < never:
        told.append(f"{never} never came")
    return [f"{role}s: {len(there)} of {wanted} {state} ({', '.join(told)})"]


def _standing(endpoint: Endpoint) -> str:
    cause = f": {endpoint.cause}" if endpoint.cause else ""
    judged = endpoint.state not in ("closed", "error") and endpoint.health != "healthy"
    health = f", {endpoint.health}" if judged else ""
    return f"{endpoint.place} is {endpoint.state}{health}{cause}"


def _vacant(known: Sequence[Endpoint]) -> list[str]:
    """Name the places of groups where nobody has come."""
    sizes = {each.group: each.size for each in known if each.group and each.size}
    taken = {(each.group, each.index) for each in known}
    return [
        f"{group}[{index}] never came"
        for group, size in sorted(sizes.items())
        for index in range(size or 0)
        if (group, index) not in taken
    ]


_NAMED = 5


def wait_until_passed(
    calls: EndpointCalls,
    channel: str,
    *,
    uid: str,
    topic_id: str | None,
    groups: Sequence[str],
    ends: Mapping[int, int],
    timeout_s: float,
) -> None:
    """Return when all of the groups have committed up to these ends.

    The gateway holds each question until the answer is yes, or a while is over. Raises
    SluicewayTimeout, which says of each group what is missing.
    """
    if isinstance(groups, str) or not groups or not all(isinstance(each, str) for each in groups):
        raise OptionError(f"groups is {groups!r}; it takes a list of groups' names")
    if not isinstance(timeout_s, int | float) or not 0 <= timeout_s <= 86_400:
        raise OptionError(f"timeout_s is {timeout_s!r}; it takes seconds to 86400")
    deadline_s = time.monotonic() + timeout_s
    late = []
    for group in dict.fromkeys(groups):
        while True:
            left_s = max(0.0, min(_LONGEST_WAIT_S, deadline_s - time.monotonic()))
            body = {"uid": uid, "topic_id": topic_id, "offsets": {str(p): ends[p] for p in ends}}
            passage = calls.commit_progress(channel, group, body, wait_s=left_s)
            if passage.passed:
                break
            if left_s == 0 or time.monotonic() >= deadline_s:
                late.append(f"the group {group!r}: {_told(passage)}")
                break
    if late:
        raise SluicewayTimeout(
            f"after {timeout_s:g} s what was written to the channel {channel!r} is not "
            f"acknowledged by {'; '.join(late)}"
        )


def _told(passage: CommitProgress) -> str:
    if not passage.known:
        return "nobody has been in it yet"
    parts = [
        (f"member {each.index}, " if each.index is not None else "")
        + f"partition {each.partition}: "
        + (
            f"nothing committed, of {each.wanted} messages"
            if each.committed is None
            else f"{each.wanted - each.committed} messages missing ({each.committed} of "
            f"{each.wanted})"
        )
        for each in passage.missing[:_NAMED]
    ]
    more = passage.lacking - len(parts)
    return ", ".join([*parts, *([f"and {more} partitions more"] if more > 0 else [])])


__all__ = ["Meeting", "WaitedState", "missing", "wait_until_passed"]
