"""Waiting until groups of readers have committed past what was written."""

import time
from collections.abc import Mapping, Sequence

from sluiceway.errors import OptionError, SluicewayTimeout
from sluiceway.passage import Passage
from sluiceway.rest.endpoints import EndpointCalls

__all__ = ["wait_until_passed"]

_LONGEST_WAIT_S = 20.0
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
            passage = calls.passed(channel, group, body, wait_s=left_s)
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


def _told(passage: Passage) -> str:
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
