"""Where groups and single readers stand: put together of what they say and what they committed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode
from sluiceway_gateway.status.lag import Track

#: Positions that one sample has at most, beside those of one track: of a broadcast group of 1,000
#: at 1,000 partitions it has those of the first members, and nothing is known of the others.
MOST_POSITIONS = 50_000
COMMITTED, GONE = 0, -1
"""Holders of positions, in the place of a living reader's epoch."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A reader that has a place, as far as its progress is concerned."""

    group: str
    index: int
    size: int | None
    mode: Mode
    epoch: int
    lives: bool
    reached: Mapping[int, int]
    """By partition the next offset to be read, as it said last."""
    share: tuple[int, int] | None = None
    """Of a member of a group without fixed indexes: its rank, and of how many."""

    @property
    def key(self) -> str:
        """Names those who share its positions."""
        alone = self.group == ANONYMOUS or self.mode is Mode.BROADCAST
        return key_of(self.group, self.index if alone else None)

    def reads(self, partitions: int) -> Iterable[int]:
        """Return the partitions that it has, as far as that is known."""
        if self.group == ANONYMOUS:
            return [each for each in self.reached if each < partitions]
        if self.mode is Mode.BROADCAST:
            return range(partitions)
        if self.share is not None:
            return range(self.share[0], partitions, self.share[1])
        return range(self.index, partitions, self.size) if self.size else ()


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A committed position; `member` is None where the group's members share them."""

    group: str
    member: int | None
    partition: int
    offset: int


def key_of(group: str, member: int | None) -> str:
    """Return the name of a track: the group's, or one member's alone."""
    return group if member is None else f"{group}/{member}"


def tracks(
    readers: Sequence[Reading], committed: Iterable[Stored], *, partitions: int
) -> dict[str, Track]:
    """Return the tracks of a channel by their names, shared groups first.

    Where a living reader says how far it is, that counts; else what was committed, else what a
    reader said that is not there any more.
    """
    stored: dict[str, dict[int, int]] = defaultdict(dict)
    for each in committed:
        if each.partition < partitions:
            stored[key_of(each.group, each.member)][each.partition] = each.offset
    said: dict[str, list[Reading]] = defaultdict(list)
    for reader in readers:
        if reader.lives or reader.group != ANONYMOUS:
            said[reader.key].append(reader)
    keys = sorted(stored.keys() | said.keys(), key=lambda key: ("/" in key, key))
    most = max(1, MOST_POSITIONS // max(1, partitions))
    return {key: _track(said[key], stored[key], partitions) for key in keys[:most]}


def lives(readers: Iterable[Reading], *, partitions: int) -> dict[str, list[bool]]:
    """Return by track, for each partition, whether a living reader has it."""
    read: dict[str, list[bool]] = defaultdict(lambda: [False] * partitions)
    for each in readers:
        if each.lives:
            has = read[each.key]
            for partition in each.reads(partitions):
                has[partition] = True
    return read


def _track(readers: Iterable[Reading], stored: Mapping[int, int], partitions: int) -> Track:
    position: list[int | None] = [stored.get(each) for each in range(partitions)]
    committed = list(position)
    holder: list[int | None] = [None if each is None else COMMITTED for each in position]
    for reader in sorted(readers, key=lambda each: (each.lives, each.epoch)):
        for partition, offset in reader.reached.items():
            if partition < partitions and (reader.lives or committed[partition] is None):
                position[partition] = offset
                holder[partition] = reader.epoch if reader.lives else GONE
    return Track(position=position, committed=committed, holder=holder)
