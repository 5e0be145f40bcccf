"""Closing a channel: writers finish, readers read what is left, and then it is closed. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Literal

from sluiceway_gateway.channels.change import require_changeable
from sluiceway_gateway.channels.model import Channel, Condition, Phase, may_become, with_condition
from sluiceway_gateway.domain.attendance import Attendance, in_words, unread
from sluiceway_gateway.domain.errors import ChannelNotReady
from sluiceway_gateway.kafka.model import Watermarks


def closing(channel: Channel, present: Attendance, *, force: bool, now: datetime) -> Channel:
    """Return the channel closed to writers: itself, if it is already.

    It is `closing` as long as there is somebody to wait for, unless `force`. Raises
    ChannelNotReady for one that has no topic to read.
    """
    if channel.phase is Phase.CLOSED or (channel.phase is Phase.CLOSING and not force):
        return channel
    require_changeable(channel)
    if not may_become(channel.phase, Phase.CLOSED):
        raise ChannelNotReady(
            f"The channel {channel.name!r} is {channel.phase}; only one that is ready can be "
            "closed. Wait until it is, or delete it."
        )
    if force and not present.is_over:
        return closed(
            channel, reason="Forced", message="It was closed without waiting for anybody.", now=now
        )
    if present.is_over:
        return _drained(channel, now=now)
    ready = Condition(
        type="Ready",
        status="True",
        reason="Closing",
        message="The channel is closing: its writers finish, its records are read.",
        last_transition_at=now,
    )
    waits = replace(
        channel,
        phase=Phase.CLOSING,
        conditions=with_condition(channel.conditions, ready),
        revision=channel.revision + 1,
    )
    return _waiting(waits, present, None, now=now)


def drained(
    channel: Channel,
    present: Attendance,
    marks: Mapping[int, Watermarks] | None,
    *,
    now: datetime,
) -> Channel:
    """Return a closing channel closed, if all is written and read, else with what is missing.

    It is itself where nothing is new. `marks` are the topic's, taken when no writer was at work
    any more; None where they are not known.
    """
    at_work = present.writers or present.loners
    read = marks is not None and not unread(present.followers, marks, idle_members=False)
    if present.is_over or (read and not at_work):
        return _drained(channel, now=now)
    following = _waiting(channel, present, marks, now=now)
    if following == channel:
        return channel
    return replace(following, revision=channel.revision + 1)


def closed(channel: Channel, *, reason: str, message: str, now: datetime) -> Channel:
    """Return the channel closed, be there whom it may."""
    ready = Condition(
        type="Ready",
        status="True",
        reason="Closed",
        message="The channel is closed: its records are read, nobody writes any more.",
        last_transition_at=now,
    )
    conditions = with_condition(channel.conditions, ready)
    return replace(
        channel,
        phase=Phase.CLOSED,
        revision=channel.revision + 1,
        conditions=with_condition(conditions, _condition("True", reason, message, now)),
    )


def _drained(channel: Channel, *, now: datetime) -> Channel:
    message = "Every writer has ended, and every group has committed all there is."
    return closed(channel, reason="Drained", message=message, now=now)


def _waiting(
    channel: Channel,
    present: Attendance,
    marks: Mapping[int, Watermarks] | None,
    *,
    now: datetime,
) -> Channel:
    if present.writers:
        reason, what = "WritersOpen", f"writers are at work: {in_words(present.writers)}"
    elif present.loners:
        reason, what = "ReadersOpen", f"readers are at work: {in_words(present.loners)}"
    elif marks is None:
        reason, what = "EndsUnknown", "Kafka has yet to tell where the topic ends"
    else:
        left = unread(present.followers, marks, idle_members=False)
        reason, what = "Unread", in_words(left)
    waits = _condition(
        "False", reason, f"{what}. It is closed when that is done, or at once with force.", now
    )
    return replace(channel, conditions=with_condition(channel.conditions, waits))


def _condition(
    status: Literal["True", "False"], reason: str, message: str, now: datetime
) -> Condition:
    return Condition(
        type="Drained", status=status, reason=reason, message=message, last_transition_at=now
    )
