"""Closing channels: usage and unread data. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from sluiceway_gateway.channels.change import require_changeable
from sluiceway_gateway.channels.model import Channel, Phase, may_become
from sluiceway_gateway.core.errors import ChannelNotReady
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.endpoints.model import listed

#: Member index of the positions of a whole group.
SHARED = -1


@dataclass(frozen=True, kw_only=True)
class GroupUsage:
    """A group of readers and its positions."""

    group: str
    shared: bool
    """Whether members share records and positions."""
    members: frozenset[int]
    """The indexes of members, open or not."""
    live: frozenset[int]
    """The indexes of members that are alive."""
    positions: Mapping[int, Mapping[int, int]]
    """The committed offsets by member (SHARED in a shared group) and by partition."""
    reached: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """In the same form, the reported offsets of jobs that store positions themselves, as Spark
    does in checkpoints. They count in a group without commits."""

    @property
    def counts(self) -> bool:
        """Whether a member is alive, or the group has committed."""
        return bool(self.live or self.positions)


@dataclass(frozen=True, kw_only=True)
class ChannelUsage:
    """The endpoints and groups of a channel."""

    writers: tuple[str, ...]
    """Open writers, as text."""
    ungrouped: tuple[str, ...]
    """Open readers without a group, as text; their positions are unknown."""
    groups: tuple[GroupUsage, ...]
    last_writer: int = 0
    """The highest number of a writer, which rises when one attaches or returns."""

    @property
    def live(self) -> tuple[str, ...]:
        """All open endpoints, as text."""
        members = [
            f"{group_usage.group}[{index}]"
            for group_usage in self.groups
            for index in sorted(group_usage.live)
        ]
        return (*self.writers, *self.ungrouped, *members)

    @property
    def is_finished(self) -> bool:
        """Whether no endpoint is open and no group has committed."""
        return not (
            self.writers or self.ungrouped or any(group_usage.counts for group_usage in self.groups)
        )


@dataclass(frozen=True, kw_only=True)
class Unread:
    """Uncommitted messages of a partition, of a group or a member of a broadcast group."""

    group: str
    member: int
    partition: int
    messages: int
    """The number of offsets; in a log with gaps, more than the number of messages."""

    def __str__(self) -> str:
        who = (
            f"the group {self.group!r}" if self.member == SHARED else f"{self.group}[{self.member}]"
        )
        return f"{who} has not committed {self.messages:,} messages of partition {self.partition}"


def unread(
    groups: Iterable[GroupUsage], marks: Mapping[int, Watermarks], *, idle_members: bool
) -> list[Unread]:
    """Return the uncommitted messages by group, member and partition.

    With `idle_members`, members that ended and never committed count too.
    """
    return [
        Unread(group=group_usage.group, member=member, partition=partition, messages=lag)
        for group_usage in groups
        for member in _members(group_usage, idle_members=idle_members)
        for partition, mark in sorted(marks.items())
        if (lag := _lag(_position(group_usage, member, partition), mark)) > 0
    ]


def _members(group_usage: GroupUsage, *, idle_members: bool) -> list[int]:
    indexes = group_usage.members if idle_members else group_usage.live
    if group_usage.shared:
        return [SHARED] if indexes or group_usage.positions else []
    return sorted(indexes | group_usage.positions.keys())


def _position(group_usage: GroupUsage, member: int, partition: int) -> int | None:
    positions = group_usage.positions or group_usage.reached
    return positions.get(member, {}).get(partition)


def _lag(committed: int | None, mark: Watermarks) -> int:
    return mark.end_offset - max(mark.begin_offset, committed or 0)


def closing(channel: Channel, present: ChannelUsage, *, force: bool, now: datetime) -> Channel:
    """Return the channel closed to writers, or itself if it is closed.

    It is `closing` while records may be written or read, unless `force`. Raises ChannelNotReady
    for a channel without a topic.
    """
    if channel.phase is Phase.CLOSED or (channel.phase is Phase.CLOSING and not force):
        return channel
    require_changeable(channel)
    if not may_become(channel.phase, Phase.CLOSED):
        raise ChannelNotReady(
            f"The channel {channel.name!r} is {channel.phase}; only a ready channel can be closed. "
            "Wait until it is ready, or delete it."
        )
    if force and not present.is_finished:
        return closed(
            channel,
            reason="Forced",
            message="It was closed without waiting for endpoints.",
            now=now,
        )
    if present.is_finished:
        return _drained(channel, now=now)
    message = "The channel is closing."
    waits = channel.with_condition("Ready", "True", "Closing", message, now)
    waits = replace(waits, phase=Phase.CLOSING, revision=channel.revision + 1)
    return _waiting(waits, present, None, now=now)


def drained(
    channel: Channel,
    present: ChannelUsage,
    marks: Mapping[int, Watermarks] | None,
    *,
    now: datetime,
) -> Channel:
    """Return a closing channel, closed if all is written and read, else with the reason.

    Returns the channel itself if nothing changed. `marks` are the topic's watermarks, read when no
    writer was open; None if they are unknown.
    """
    at_work = present.writers or present.ungrouped
    read = marks is not None and not unread(present.groups, marks, idle_members=False)
    if present.is_finished or (read and not at_work):
        return _drained(channel, now=now)
    updated = _waiting(channel, present, marks, now=now)
    if updated == channel:
        return channel
    return replace(updated, revision=channel.revision + 1)


def closed(channel: Channel, *, reason: str, message: str, now: datetime) -> Channel:
    """Close the channel regardless of open endpoints."""
    readable = "The channel is closed: its records can be read, but new writers are refused."
    ready = channel.with_condition("Ready", "True", "Closed", readable, now)
    done = ready.with_condition("Drained", "True", reason, message, now)
    return replace(done, phase=Phase.CLOSED, revision=channel.revision + 1)


def _drained(channel: Channel, *, now: datetime) -> Channel:
    message = "Every writer has ended, and every group has committed all records."
    return closed(channel, reason="Drained", message=message, now=now)


def _waiting(
    channel: Channel,
    present: ChannelUsage,
    marks: Mapping[int, Watermarks] | None,
    *,
    now: datetime,
) -> Channel:
    if present.writers:
        reason, what = "WritersOpen", f"it waits for writers: {listed(present.writers)}"
    elif present.ungrouped:
        reason, what = "ReadersOpen", f"it waits for readers: {listed(present.ungrouped)}"
    elif marks is None:
        reason, what = "EndsUnknown", "it waits for the topic's end offsets from Kafka"
    else:
        left = unread(present.groups, marks, idle_members=False)
        reason, what = "Unread", listed(left)
    message = f"{what}. It is closed after that, or at once with force."
    return channel.with_condition("Drained", "False", reason, message, now)
