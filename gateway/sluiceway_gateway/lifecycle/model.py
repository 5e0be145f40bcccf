"""Closing and idle channels: usage, unread data, deadlines. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from sluiceway_gateway.channels.change import deleted, require_changeable
from sluiceway_gateway.channels.model import Channel, Condition, Phase, may_become, with_condition
from sluiceway_gateway.errors import ChannelNotReady
from sluiceway_gateway.kafka.model import Watermarks

#: Whose positions they are where members share them.
SHARED = -1
_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class GroupUsage:
    """A group of readers, and how far it has committed."""

    group: str
    shared: bool
    """Its members share the records, and the positions."""
    members: frozenset[int]
    """The places that somebody has, at work or not."""
    living: frozenset[int]
    """Those of them that are at work."""
    positions: Mapping[int, Mapping[int, int]]
    """The next offset to read, by member (SHARED where they share) and by partition."""
    reached: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """In the same form, how far jobs say that they are that keep their positions themselves, as
    Spark's do in checkpoints; it is their title that tells them. It stands in for the positions of
    a group that commits nothing."""

    @property
    def counts(self) -> bool:
        """Whether it is at work, or has been so far as to commit."""
        return bool(self.living or self.positions)


@dataclass(frozen=True, kw_only=True)
class Attendance:
    """Who is at a channel."""

    writers: tuple[str, ...]
    """Those at work, in words."""
    loners: tuple[str, ...]
    """Readers at work that have no group, so that nobody knows how far they are."""
    followers: tuple[GroupUsage, ...]

    @property
    def living(self) -> tuple[str, ...]:
        """All that are at work, in words."""
        members = [
            f"{each.group}[{index}]" for each in self.followers for index in sorted(each.living)
        ]
        return (*self.writers, *self.loners, *members)

    @property
    def is_over(self) -> bool:
        """Whether nobody writes, and nobody reads who is known to have anything left to read."""
        return not (self.writers or self.loners or any(each.counts for each in self.followers))


@dataclass(frozen=True, kw_only=True)
class Unread:
    """What a group, or one member of a broadcast group, has not committed of a partition."""

    group: str
    member: int
    partition: int
    messages: int
    """Offsets, which in a log with gaps are more than messages."""

    def __str__(self) -> str:
        who = (
            f"the group {self.group!r}" if self.member == SHARED else f"{self.group}[{self.member}]"
        )
        return f"{who} has not committed {self.messages:,} messages of partition {self.partition}"


def unread(
    followers: Iterable[GroupUsage], marks: Mapping[int, Watermarks], *, idle_members: bool
) -> list[Unread]:
    """Return what groups have not committed of what there is, by group, member and partition.

    `idle_members` says whether a place counts whose instance ended and never committed.
    """
    return [
        Unread(group=each.group, member=member, partition=partition, messages=behind)
        for each in followers
        for member in _whose(each, idle_members=idle_members)
        for partition, mark in sorted(marks.items())
        if (behind := _behind(_place(each, member, partition), mark)) > 0
    ]


def _whose(follower: GroupUsage, *, idle_members: bool) -> list[int]:
    places = follower.members if idle_members else follower.living
    if follower.shared:
        return [SHARED] if places or follower.positions else []
    return sorted(places | follower.positions.keys())


def _place(follower: GroupUsage, member: int, partition: int) -> int | None:
    places = follower.positions or follower.reached
    return places.get(member, {}).get(partition)


def _behind(committed: int | None, mark: Watermarks) -> int:
    return mark.end_offset - max(mark.begin_offset, committed or 0)


def in_words(what: Iterable[object]) -> str:
    """Name the first of many."""
    names = [str(each) for each in what]
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


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


IDLE = "Idle"
"""The type of the condition."""
PHASES = frozenset({Phase.READY, Phase.CLOSING, Phase.CLOSED})
"""Those that come to their end by being idle. Others wait for somebody, who should find them."""
_LONGEST_WATCH = timedelta(hours=1)


def limit(channel: Channel) -> timedelta:
    """Return how long it may be idle."""
    assert channel.spec.idle_ms is not None  # noqa: S101 - the callers have looked
    return timedelta(milliseconds=channel.spec.idle_ms)


def watch(channel: Channel) -> timedelta:
    """Return how long its topic has to be seen unmoved before anything is done to it."""
    return min(limit(channel) / 10, _LONGEST_WATCH)


def is_quiet(channel: Channel, *, used_at: datetime, now: datetime) -> bool:
    """Tell whether it has not been used for so long that its topic should be looked at."""
    return now - used_at >= limit(channel) / 2


def idled(channel: Channel, *, used_at: datetime, watched: bool, now: datetime) -> Channel:
    """Return the channel as it is after so long without use: itself, if nothing is new.

    It is closed after its time, whatever was not read, and deleted after as long again; both only
    if its topic was `watched`. Before, its condition `Idle` says when.
    """
    idle = limit(channel)
    closes_at = used_at + idle
    if now < closes_at:
        return _said(channel, *_before(channel, used_at, now), now=now)
    before = channel.condition(IDLE)
    since = before.last_transition_at if before and before.status == "True" else now
    removed_at = max(since, closes_at) + idle
    reason, message = "Unused", _remains(channel, used_at, removed_at)
    if channel.phase is Phase.CLOSED:
        if watched and now >= removed_at:
            return deleted(channel, keep_topic=False, now=now)
        return _said(channel, "True", reason, message, now=now)
    if not watched:
        return _said(channel, *_before(channel, used_at, now), now=now)
    shut = closed(channel, reason=IDLE, message="It was closed as nobody used it.", now=now)
    return replace(
        shut, conditions=_with(shut, _idle_condition("True", reason, message, now)).conditions
    )


def _before(
    channel: Channel, used_at: datetime, now: datetime
) -> tuple[Literal["False"], str, str]:
    idle = limit(channel)
    fate = "its topic stays" if channel.adopted else "its records with it"
    if not is_quiet(channel, used_at=used_at, now=now):
        if channel.phase is Phase.CLOSED:
            message = (
                f"The channel is in use. When nobody uses it for {_span(2 * idle)} it is removed."
            )
            return "False", "InUse", message
        return (
            "False",
            "InUse",
            f"The channel is in use. When nobody uses it for {_span(idle)} it is closed, and after "
            f"as long again removed; {fate}.",
        )
    if channel.phase is Phase.CLOSED:
        return "False", "Quiet", _remains(channel, used_at, used_at + 2 * idle)
    return (
        "False",
        "Quiet",
        f"Nobody has used the channel since {_shown(used_at)}: it is closed at "
        f"{_shown(used_at + idle)}, and removed {_span(idle)} later, {fate}, unless somebody uses "
        "it.",
    )


def _remains(channel: Channel, used_at: datetime, removed_at: datetime) -> str:
    fate = "forgotten, and its topic stays" if channel.adopted else "removed with its records"
    return (
        f"Nobody has used the channel since {_shown(used_at)}: it is {fate} at "
        f"{_shown(removed_at)}, unless somebody reads it, or changes spec.idle_ms."
    )


def _said(
    channel: Channel, status: Literal["True", "False"], reason: str, message: str, *, now: datetime
) -> Channel:
    following = _with(channel, _idle_condition(status, reason, message, now))
    return channel if following == channel else replace(following, revision=channel.revision + 1)


def _with(channel: Channel, condition: Condition) -> Channel:
    return replace(channel, conditions=with_condition(channel.conditions, condition))


def _idle_condition(
    status: Literal["True", "False"], reason: str, message: str, now: datetime
) -> Condition:
    return Condition(
        type=IDLE, status=status, reason=reason, message=message, last_transition_at=now
    )


def _span(time: timedelta) -> str:
    for unit, seconds in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        count, rest = divmod(time.total_seconds(), seconds)
        if count > 1 and not rest:
            return f"{count:,.0f} {unit}"
    return f"{time.total_seconds():,g} seconds"


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
