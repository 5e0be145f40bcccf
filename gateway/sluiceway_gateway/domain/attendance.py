"""Who is at a channel, and what of it its groups have not read yet. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluiceway_gateway.kafka.model import Watermarks

#: Whose positions they are where members share them.
SHARED = -1
_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Follower:
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
    followers: tuple[Follower, ...]

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
    followers: Iterable[Follower], marks: Mapping[int, Watermarks], *, idle_members: bool
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


def _whose(follower: Follower, *, idle_members: bool) -> list[int]:
    places = follower.members if idle_members else follower.living
    if follower.shared:
        return [SHARED] if places or follower.positions else []
    return sorted(places | follower.positions.keys())


def _place(follower: Follower, member: int, partition: int) -> int | None:
    places = follower.positions or follower.reached
    return places.get(member, {}).get(partition)


def _behind(committed: int | None, mark: Watermarks) -> int:
    return mark.end_offset - max(mark.begin_offset, committed or 0)


def in_words(what: Iterable[object]) -> str:
    """Name the first of many."""
    names = [str(each) for each in what]
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
