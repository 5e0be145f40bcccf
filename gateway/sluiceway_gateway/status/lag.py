"""Lag, rates and offset tracks over a window of samples. Pure."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode
from sluiceway_gateway.status.progress import WINDOW, Progress, evaluate_lag, worst

Offsets = Sequence[int | None]
"""One for each partition; None where it is not known."""


@dataclass(frozen=True, kw_only=True)
class OffsetTrack:
    """Where those stand, at one moment, who share positions: a group, or one member alone."""

    position: Offsets
    """The next offset to be read: as its reader says, else as it was committed."""
    committed: Offsets
    holder: Offsets
    """The epoch of the reader that said so; 0 for what was committed, -1 for a reader that is
    not there any more."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What was seen of a channel at one moment."""

    at: datetime
    starts: Offsets = ()
    ends: Offsets = ()
    """Kafka's watermarks; without any they could not be had."""
    tracks: Mapping[str, OffsetTrack] = field(default_factory=dict)

    def lag(self, track: OffsetTrack, partition: int) -> int | None:
        """Return how many messages are left to read; what retention removed is not."""
        position = at(track.position, partition)
        start, end = at(self.starts, partition), at(self.ends, partition)
        if position is None or start is None or end is None:
            return None
        return max(0, end - max(position, start))


@dataclass(frozen=True, kw_only=True)
class GroupLag:
    """How a track gets on; per partition, and in all. None is what is not known."""

    lags: Offsets
    since: Sequence[float | None]
    """When the next message to read was written, in seconds of Unix time; None without a lag."""
    progress: Sequence[Progress | None]
    lag_messages: int | None
    behind_since: float | None
    """The earliest of `since`, if it is known of every partition that has a lag."""
    read_rate: float | None
    """Messages a second over the window."""
    trend: float | None
    """By how many messages the lag grows in a second; negative: it becomes less."""
    drain_s: float | None
    """When nothing is left, if it goes on like this; None where it does not."""

    @property
    def worst(self) -> Progress | None:
        """The worst of all partitions."""
        return worst(self.progress)


@dataclass(frozen=True, kw_only=True)
class LagSummary:
    """A channel in one line: how those of its readers get on that get on worst."""

    lag_messages: int | None
    behind_since: float | None
    progress: Progress | None
    write_rate: float | None


def outline(paces: Iterable[GroupLag], written: float | None) -> LagSummary:
    """Return the line; what is not known of one track is not known of the channel."""
    lags, since, progress = [], [], []
    for each in paces:
        lags.append(each.lag_messages)
        progress.append(each.worst)
        if each.lag_messages != 0:
            since.append(each.behind_since)
    return LagSummary(
        lag_messages=max((each for each in lags if each is not None), default=None)
        if None not in lags
        else None,
        behind_since=min((each for each in since if each is not None), default=None)
        if None not in since
        else None,
        progress=worst(progress),
        write_rate=written,
    )


def at(offsets: Offsets, partition: int) -> int | None:
    """Return a partition's offset; None for one that is not known, or was not there yet."""
    return offsets[partition] if partition < len(offsets) else None


def pace(
    key: str,
    window: Sequence[Sample],
    history: Sequence[tuple[float, Offsets]],
    *,
    lives: Sequence[bool],
) -> GroupLag:
    """Return how a track gets on by the window, whose last sample has it.

    `history` has the ends of the topic for as long as they are remembered, by Unix time, the
    oldest first; `lives` says for each partition whether somebody reads it.
    """
    last = window[-1]
    track = last.tracks[key]
    partitions = range(len(last.ends))
    lags = [last.lag(track, each) for each in partitions]
    since = [
        passed_at(history, each, max(track.position[each] or 0, last.starts[each] or 0))
        if lags[each]
        else None
        for each in partitions
    ]
    known = all(since[each] is not None for each in partitions if lags[each])
    total = _total(last, lags)
    trend = _trend(key, window, total)
    return GroupLag(
        lags=lags,
        since=since,
        progress=[
            _judged(key, window, each, lag, lives=lives[each]) for each, lag in enumerate(lags)
        ],
        lag_messages=total,
        behind_since=min((each for each in since if each is not None), default=None)
        if known
        else None,
        read_rate=_read_rate(key, window),
        trend=trend,
        drain_s=_drain_s(total, trend),
    )


def write_rate(window: Sequence[Sample]) -> float | None:
    """Return the messages a second that came over the window; None where that is not known."""
    known = [each for each in window if each.ends]
    if not known or not window[-1].ends:
        return None
    first, last = known[0], known[-1]
    seconds = (last.at - first.at).total_seconds()
    grown = [
        after - (at(first.ends, partition) or 0)
        for partition, after in enumerate(last.ends)
        if after is not None
        # A partition that was not there begins at 0; one that could not be asked is left out.
        if partition >= len(first.ends) or first.ends[partition] is not None
    ]
    return sum(grown) / seconds if seconds > 0 else None


def passed_at(
    history: Sequence[tuple[float, Offsets]], partition: int, offset: int
) -> float | None:
    """Return when the partition's end passed an offset, between two samples in proportion.

    None for what was there before the oldest that is remembered.
    """
    after: tuple[float, int] | None = None
    for at_s, ends in reversed(history):
        end = at(ends, partition)
        if end is None:
            if partition < len(ends):
                continue
            end = 0
        if end <= offset:
            if after is None:
                return None
            return at_s + (after[0] - at_s) * (offset - end) / (after[1] - end)
        after = (at_s, end)
    return None


def _judged(
    key: str, window: Sequence[Sample], partition: int, lag: int | None, *, lives: bool
) -> Progress | None:
    if lag is None:
        return None
    if lag == 0:
        return Progress.OK
    points: list[tuple[int, int]] = []
    holder = window[-1].tracks[key].holder[partition]
    for sample in reversed(window):
        track = sample.tracks.get(key)
        if track is None or at(track.holder, partition) != holder:
            break
        position, left = at(track.position, partition), sample.lag(track, partition)
        if position is None or left is None:
            break
        points.append((position, left))
    points.reverse()
    return evaluate_lag(points, lives=lives, whole=len(points) == WINDOW)


def _total(last: Sample, lags: Offsets) -> int | None:
    """Return the lag in all; None where somebody may have something left that nobody knows of."""
    found = 0
    for partition, lag in enumerate(lags):
        if lag is not None:
            found += lag
        elif last.ends[partition] is None or last.ends[partition] != last.starts[partition]:
            return None
    return found if last.ends else None


def _read_rate(key: str, window: Sequence[Sample]) -> float | None:
    tracks = [(each.at, each.tracks[key]) for each in window if key in each.tracks]
    seconds = (tracks[-1][0] - tracks[0][0]).total_seconds()
    if seconds <= 0:
        return None
    moved = 0
    for (_, before), (_, after) in itertools.pairwise(tracks):
        moved += sum(
            new - old
            for old, new in zip(before.position, after.position, strict=False)
            if old is not None and new is not None and new > old
        )
    return moved / seconds


def _trend(key: str, window: Sequence[Sample], total: int | None) -> float | None:
    if total is None:
        return None
    last = window[-1]
    for sample in window:
        track = sample.tracks.get(key)
        if track is None or len(sample.ends) != len(last.ends):
            continue
        lags = [sample.lag(track, each) for each in range(len(sample.ends))]
        before = _total(sample, lags)
        seconds = (last.at - sample.at).total_seconds()
        if before is not None and seconds > 0:
            return (total - before) / seconds
    return None


def _drain_s(total: int | None, trend: float | None) -> float | None:
    if total == 0:
        return 0.0
    return total / -trend if total and trend is not None and trend < 0 else None


#: Positions that one sample has at most, beside those of one track: of a broadcast group of 1,000
#: at 1,000 partitions it has those of the first members, and nothing is known of the others.
MOST_POSITIONS = 50_000
COMMITTED, GONE = 0, -1
"""Holders of positions, in the place of a living reader's epoch."""


@dataclass(frozen=True, kw_only=True)
class ReaderProgress:
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
    readers: Sequence[ReaderProgress], committed: Iterable[Stored], *, partitions: int
) -> dict[str, OffsetTrack]:
    """Return the tracks of a channel by their names, shared groups first.

    Where a living reader says how far it is, that counts; else what was committed, else what a
    reader said that is not there any more.
    """
    stored: dict[str, dict[int, int]] = defaultdict(dict)
    for each in committed:
        if each.partition < partitions:
            stored[key_of(each.group, each.member)][each.partition] = each.offset
    said: dict[str, list[ReaderProgress]] = defaultdict(list)
    for reader in readers:
        if reader.lives or reader.group != ANONYMOUS:
            said[reader.key].append(reader)
    keys = sorted(stored.keys() | said.keys(), key=lambda key: ("/" in key, key))
    most = max(1, MOST_POSITIONS // max(1, partitions))
    return {key: _track(said[key], stored[key], partitions) for key in keys[:most]}


def lives(readers: Iterable[ReaderProgress], *, partitions: int) -> dict[str, list[bool]]:
    """Return by track, for each partition, whether a living reader has it."""
    read: dict[str, list[bool]] = defaultdict(lambda: [False] * partitions)
    for each in readers:
        if each.lives:
            has = read[each.key]
            for partition in each.reads(partitions):
                has[partition] = True
    return read


def _track(
    readers: Iterable[ReaderProgress], stored: Mapping[int, int], partitions: int
) -> OffsetTrack:
    position: list[int | None] = [stored.get(each) for each in range(partitions)]
    committed = list(position)
    holder: list[int | None] = [None if each is None else COMMITTED for each in position]
    for reader in sorted(readers, key=lambda each: (each.lives, each.epoch)):
        for partition, offset in reader.reached.items():
            if partition < partitions and (reader.lives or committed[partition] is None):
                position[partition] = offset
                holder[partition] = reader.epoch if reader.lives else GONE
    return OffsetTrack(position=position, committed=committed, holder=holder)
