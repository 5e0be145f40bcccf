"""Readers' positions, and their progress by the movement of positions. Pure.

The rules are Burrow's ("Consumer Lag Evaluation Rules" in its wiki): they have no threshold for the
lag, but check whether it was ever zero and whether the position moves. Burrow uses the time of the
last commit, this module the reader's heartbeats. A small and steady lag is no problem here: it is
measured against what the reader read within the window.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode, Share

Offsets = Sequence[int | None]
"""An offset per partition; None where it is unknown."""
WINDOW = 10
"""Number of evaluated samples, as in Burrow."""
MAX_POSITIONS = 50_000
"""Maximum positions of a sample, which has at least one track.

Limits broadcast groups: of 1,000 members at 1,000 partitions, a sample has the first ones.
"""
COMMITTED, DEPARTED = 0, -1
"""Sources of positions without a live reader, in place of its epoch."""


class ProgressState(StrEnum):
    """Progress of a partition's reader, or of a group; in ascending severity."""

    OK = "ok"
    """It has read everything, now or within the window, or its lag shrinks."""
    HELD_BACK = "held_back"
    """It has read all that is readable; committed messages wait for an open batch."""
    FALLING_BEHIND = "falling_behind"
    """It moves, but its lag never shrank within the window, and is more than it read in it."""
    STALLED = "stalled"
    """It is alive, but did not move within the window despite unread messages."""
    STOPPED = "stopped"
    """No reader is alive, and there are unread messages."""
    REWOUND = "rewound"
    """It moved backwards within the window."""


_SEVERITY = {state: number for number, state in enumerate(ProgressState)}


def worst(states: Iterable[ProgressState | None]) -> ProgressState | None:
    """Return the worst known state."""
    # A set, because most of many partitions have the same state.
    known_states = [state for state in set(states) if state is not None]
    return max(known_states, key=_SEVERITY.__getitem__, default=None)


def evaluate_lag(
    points: Sequence[tuple[int, int]], *, alive: bool, complete: bool
) -> ProgressState | None:
    """Evaluate a partition by the positions and lags of one reader, oldest first.

    `alive`: a live reader has the partition. `complete`: the points fill the window. Before that,
    returns only states that further points cannot change.
    """
    if not points:
        return None
    if any(lag == 0 for _, lag in points):
        return ProgressState.OK
    steps = list(itertools.pairwise(points))
    if any(after[0] < before[0] for before, after in steps):
        return ProgressState.REWOUND
    moved = points[0][0] != points[-1][0]
    if moved and any(after[1] < before[1] for before, after in steps):
        return ProgressState.OK
    if not complete:
        return None
    if moved:
        # At its pace, it reads a small lag within a window.
        is_small = points[-1][1] <= points[-1][0] - points[0][0]
        return ProgressState.OK if is_small else ProgressState.FALLING_BEHIND
    return ProgressState.STALLED if alive else ProgressState.STOPPED


@dataclass(frozen=True, kw_only=True)
class OffsetTrack:
    """Positions of a group, or of a member with its own positions, at one moment."""

    position: Offsets
    """The next offset to read: the higher one of the reported and the committed offset."""
    committed: Offsets
    holder: Offsets
    """The epoch of the reader that reported it, COMMITTED, or DEPARTED for a reader that ended."""


@dataclass(frozen=True, kw_only=True)
class ReaderProgress:
    """A reader's identity, assignment and reported positions."""

    group: str
    index: int
    size: int | None
    mode: Mode
    epoch: int
    alive: bool
    positions: Mapping[int, int]
    """The next offset to read by partition, as last reported."""
    share: Share | None = None
    """For a member of a dynamic group."""
    by_tasks: bool = False
    """Whether tasks report the positions, each once it runs."""

    @property
    def key(self) -> str:
        """The key of its track."""
        own = self.group == ANONYMOUS or self.mode is Mode.BROADCAST
        return track_key(self.group, self.index if own else None)

    def assignment(self, partitions: int) -> Iterable[int]:
        """Return its known partitions."""
        if self.group == ANONYMOUS:
            return [partition for partition in self.positions if partition < partitions]
        if self.mode is Mode.BROADCAST:
            return range(partitions)
        if self.share is not None:
            return self.share.of(partitions)
        return range(self.index, partitions, self.size) if self.size else ()


@dataclass(frozen=True, kw_only=True)
class CommittedOffset:
    """A committed position; `member` is None where the members of a group share positions."""

    group: str
    member: int | None
    partition: int
    offset: int


def offset_at(offsets: Offsets, partition: int) -> int | None:
    """Return a partition's offset; None if it is unknown, or the partition did not exist yet."""
    return offsets[partition] if partition < len(offsets) else None


def track_key(group: str, member: int | None) -> str:
    """Return the key of a group's track, or of one member's."""
    # The member first: names of groups may have a slash.
    return f"{'' if member is None else member}/{group}"


def group_of_track(key: str) -> str:
    """Return the group of a track."""
    return key.partition("/")[2]


def offset_tracks(
    readers: Sequence[ReaderProgress], committed: Iterable[CommittedOffset], *, partitions: int
) -> dict[str, OffsetTrack]:
    """Return the tracks of a channel by key, those of groups first.

    A position is the higher one of a live reader's report and the commit. Without both, it is the
    last report of an ended reader.
    """
    offsets: dict[str, dict[int, int]] = defaultdict(dict)
    for commit in committed:
        if commit.partition < partitions:
            offsets[track_key(commit.group, commit.member)][commit.partition] = commit.offset
    reporting: dict[str, list[ReaderProgress]] = defaultdict(list)
    for reader in readers:
        if reader.alive or reader.group != ANONYMOUS:
            reporting[reader.key].append(reader)
    keys = sorted(
        offsets.keys() | reporting.keys(),
        key=lambda key: (not key.startswith("/"), group_of_track(key), key),
    )
    limit = max(1, MAX_POSITIONS // max(1, partitions))
    return {key: _track(reporting[key], offsets[key], partitions) for key in keys[:limit]}


def _track(
    readers: Iterable[ReaderProgress], offsets: Mapping[int, int], partitions: int
) -> OffsetTrack:
    committed = [offsets.get(partition) for partition in range(partitions)]
    position = list(committed)
    holder: list[int | None] = [None if offset is None else COMMITTED for offset in committed]
    for reader in sorted(readers, key=lambda reader: (reader.alive, reader.epoch)):
        for partition, offset in reader.positions.items():
            if partition < partitions and (reader.alive or committed[partition] is None):
                # A commit may be newer than the last heartbeat.
                position[partition] = max(offset, committed[partition] or 0)
                holder[partition] = reader.epoch if reader.alive else DEPARTED
    return OffsetTrack(position=position, committed=committed, holder=holder)


def partitions_read(readers: Iterable[ReaderProgress], *, partitions: int) -> dict[str, list[bool]]:
    """Return for each track, by partition, whether a live reader has it."""
    read: dict[str, list[bool]] = defaultdict(lambda: [False] * partitions)
    for reader in readers:
        if reader.alive:
            flags = read[reader.key]
            for partition in reader.assignment(partitions):
                flags[partition] = True
    return read
