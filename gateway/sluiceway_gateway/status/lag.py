"""Lag and rates of readers over a window of samples; the overview of channels. Pure.

Readers of an exactly-once channel read up to `stable`. Committed messages above it wait for open
batches with a lower begin; they count as lag.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.endpoints.model import Role
from sluiceway_gateway.ledger.model import Batch, Ledger
from sluiceway_gateway.status.reader_progress import (
    WINDOW,
    Offsets,
    OffsetTrack,
    ProgressState,
    evaluate_lag,
    group_of_track,
    offset_at,
    worst,
)

MAX_BATCHES = 20
"""Maximum open batches of a sample: those that hold back the most messages."""


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """An open batch, and the number of committed messages that wait for its end."""

    key: str
    owner: str
    since: float
    """Time of its opening, in Unix time."""
    held_messages: int


@dataclass(frozen=True, kw_only=True)
class LedgerSample:
    """The ledger of a channel at one moment; offsets are by partition."""

    number: int
    halted: str | None
    stable: Offsets
    visible_end: Offsets
    committed_messages: int
    """Messages in Kafka that committed batches list."""
    open_batches: int
    batches: Sequence[OpenBatch]

    @property
    def held_back_by(self) -> OpenBatch | None:
        """The open batch for which the most committed messages wait."""
        return next((batch for batch in self.batches if batch.held_messages), None)

    def is_gapless(self, starts: Offsets) -> bool:
        """Return True if every message from the first to the last committed one is committed."""
        lengths = (
            max(0, (end or 0) - (start or 0))
            for start, end in zip(starts, self.visible_end, strict=False)
        )
        return None not in starts and sum(lengths) == self.committed_messages

    def uncommitted_messages(self, starts: Offsets, log_ends: Offsets) -> int | None:
        """Return the number of messages in Kafka without a committed batch; None if unknown.

        They are messages of open batches, of failed attempts, and of producers without a batch.
        """
        if not log_ends or None in starts or None in log_ends:
            return None
        total = sum((end or 0) - (start or 0) for start, end in zip(starts, log_ends, strict=True))
        return max(0, total - self.committed_messages)


def ledger_sample(
    ledger: Ledger, batches: Sequence[Batch], *, partitions: int, committed_messages: int
) -> LedgerSample:
    """Return the sample of a ledger with its open batches, the oldest first."""
    held = {
        partition: end
        for partition, end in ledger.visible_end.items()
        if end > ledger.stable.get(partition, 0)
    }
    opened = [
        OpenBatch(
            key=batch.key,
            owner=batch.owner,
            since=batch.opened_at.timestamp(),
            held_messages=_held_messages(batch, held),
        )
        for batch in batches
    ]
    return LedgerSample(
        number=ledger.number,
        halted=ledger.halted,
        stable=_offsets(ledger.stable, partitions),
        visible_end=_offsets(ledger.visible_end, partitions),
        committed_messages=committed_messages,
        open_batches=len(opened),
        batches=sorted(opened, key=lambda batch: -batch.held_messages)[:MAX_BATCHES],
    )


def _held_messages(batch: Batch, held: Mapping[int, int]) -> int:
    return sum(max(0, end - batch.begin[p]) for p, end in held.items() if p in batch.begin)


def _offsets(numbers: Mapping[int, int], partitions: int) -> Offsets:
    return [numbers.get(partition, 0) for partition in range(partitions)]


#: Rates are computed from samples of at most this age, and from at least two.
RATE_S = 15.0

_N = TypeVar("_N", int, float)
History = Sequence[tuple[float, Offsets]]
"""End offsets of a topic by Unix time, oldest first."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Committed offsets of a channel and its readers' positions at one moment."""

    at: datetime
    starts: Offsets = ()
    ends: Offsets = ()
    """Kafka's watermarks, and in exactly-once channels `visible_end`; empty if Kafka gave none."""
    log_ends: Offsets = ()
    """Kafka's watermarks in exactly-once channels; empty in others."""
    ledger: LedgerSample | None = None
    """Only of exactly-once channels."""
    tracks: Mapping[str, OffsetTrack] = field(default_factory=dict)

    def lag(self, track: OffsetTrack, partition: int) -> int | None:
        """Return the number of messages to read, without those that retention has removed."""
        return self._until(offset_at(self.ends, partition), track, partition)

    def readable_lag(self, track: OffsetTrack, partition: int) -> int | None:
        """Return the lag without messages that wait for open batches."""
        return self._until(self.readable_end(partition), track, partition)

    def readable_end(self, partition: int) -> int | None:
        """Return the offset up to which readers read; None if it is unknown."""
        end = offset_at(self.ends, partition)
        if self.ledger is None or end is None:
            return end
        return offset_at(self.ledger.stable, partition)

    def _until(self, end: int | None, track: OffsetTrack, partition: int) -> int | None:
        position = offset_at(track.position, partition)
        start = offset_at(self.starts, partition)
        if position is None or start is None or end is None:
            return None
        return max(0, end - max(position, start))


def rounded(number: float | None) -> float | None:
    """Return a figure as it is shown: with three decimals."""
    return None if number is None else round(number, 3)


def lag_seconds(at: datetime, since: float | None, messages: int | None) -> float | None:
    """Return the age of the next message, which was written at `since`; 0 without messages."""
    if messages == 0:
        return 0.0
    return None if since is None else rounded(max(0.0, at.timestamp() - since))


@dataclass(frozen=True, kw_only=True)
class GroupLag:
    """Lag, rates and progress of a track, per partition and in total. None is unknown."""

    lags: Offsets
    since: Sequence[float | None]
    """Unix time at which the next message to read was written; None without a lag."""
    since_or_before: Sequence[bool] = ()
    """Whether `since` is an upper bound, because the message is older than the samples."""
    progress: Sequence[ProgressState | None]
    lag_messages: int | None
    behind_since: float | None
    """The earliest `since` of the partitions."""
    behind_or_before: bool = False
    """Whether the lag in seconds is a lower bound: a message is older than the samples, or its age
    is unknown."""
    read_rate: float | None
    """Messages per second over the last seconds."""
    trend: float | None
    """Growth of the lag in messages per second; negative while it shrinks."""
    drain_s: float | None
    """Time until the lag is zero at this trend; None if it does not shrink, or nobody reads."""

    @property
    def worst(self) -> ProgressState | None:
        """The worst state of all partitions."""
        return worst(self.progress)


@dataclass(frozen=True, kw_only=True)
class LagSummary:
    """The worst lag and progress of a channel's readers, and its write rate."""

    lag_messages: int | None
    behind_since: float | None
    behind_or_before: bool = False
    progress: ProgressState | None
    write_rate: float | None
    trend: float | None = None
    """Growth of the largest lag in messages per second."""


def summarize(groups: Iterable[GroupLag], write_rate: float | None) -> LagSummary:
    """Summarize a channel.

    If the lag in messages of one track is unknown, so is the channel's. Its age is then a lower
    bound, from the other tracks.
    """
    groups = list(groups)
    lags = [group.lag_messages for group in groups]
    since = [group.behind_since for group in groups if group.lag_messages != 0]
    behind_since = min(_known(since), default=None)
    slowest = max(groups, key=lambda group: group.lag_messages or 0, default=None)
    return LagSummary(
        lag_messages=max(_known(lags), default=None) if None not in lags else None,
        behind_since=behind_since,
        behind_or_before=behind_since is not None
        and (None in since or any(group.behind_or_before for group in groups)),
        progress=worst(group.worst for group in groups),
        write_rate=write_rate,
        trend=None if slowest is None or None in lags else slowest.trend,
    )


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """The lag and progress of a group; those of the worst member if positions are per member."""

    lag_messages: int | None
    behind_since: float | None
    behind_or_before: bool
    progress: ProgressState | None
    read_rate: float | None
    """Messages per second, of all members."""


def summarize_groups(lags: Mapping[str, GroupLag]) -> dict[str, GroupSummary]:
    """Summarize the groups of a channel, from the lags of their tracks."""
    tracks: dict[str, list[GroupLag]] = defaultdict(list)
    for key, lag in lags.items():
        tracks[group_of_track(key)].append(lag)
    summaries = {}
    for name, track_lags in tracks.items():
        whole = summarize(track_lags, None)
        rates = [*_known(lag.read_rate for lag in track_lags)]
        summaries[name] = GroupSummary(
            lag_messages=whole.lag_messages,
            behind_since=whole.behind_since,
            behind_or_before=whole.behind_or_before,
            progress=whole.progress,
            read_rate=sum(rates) if rates else None,
        )
    return summaries


def group_lag(
    key: str, window: Sequence[Sample], history: History, *, alive: Sequence[bool]
) -> GroupLag:
    """Evaluate a track over the window; the last sample must contain it.

    `alive` says for each partition whether a live reader has it.
    """
    last = window[-1]
    track = last.tracks[key]
    lags = [last.lag(track, partition) for partition in range(len(last.ends))]
    written = [
        written_at(
            history, partition, max(track.position[partition] or 0, last.starts[partition] or 0)
        )
        if lag
        else (None, False)
        for partition, lag in enumerate(lags)
    ]
    behind_since = min(_known(since for since, _ in written), default=None)
    total = _total(last, lags)
    recent = _recent(window)
    read_rate, trend = _read_rate(key, recent), _trend(key, recent, total)
    # A reader that has left has no read rate.
    is_read = read_rate if any(alive) else _read_rate(key, window[-2:])
    return GroupLag(
        lags=lags,
        since=[since for since, _ in written],
        since_or_before=[or_before for _, or_before in written],
        progress=[
            _progress(key, window, partition, lag, alive=alive[partition])
            for partition, lag in enumerate(lags)
        ],
        lag_messages=total,
        behind_since=behind_since,
        behind_or_before=behind_since is not None
        and (total is None or any(or_before for _, or_before in written)),
        read_rate=read_rate,
        trend=trend,
        drain_s=_drain_s(total, trend if is_read else None),
    )


def write_rate(window: Sequence[Sample]) -> float | None:
    """Return the messages written per second over the last seconds; None if unknown."""
    samples = _recent([sample for sample in window if sample.ends])
    if not samples or not window[-1].ends:
        return None
    first, last = samples[0], samples[-1]
    seconds = (last.at - first.at).total_seconds()
    written = [
        end - (offset_at(first.ends, partition) or 0)
        for partition, end in enumerate(last.ends)
        if end is not None
        # A new partition begins at 0; one whose first end is unknown is left out.
        if partition >= len(first.ends) or first.ends[partition] is not None
    ]
    return sum(written) / seconds if seconds > 0 else None


def written_at(history: History, partition: int, offset: int) -> tuple[float | None, bool]:
    """Return the time at which an offset was written, interpolated between two samples.

    The second value is whether the time is an upper bound: an offset that is older than the history
    gets the time of the first sample that includes it. Future offsets have no time.
    """
    after: tuple[float, int] | None = None
    for at_s, ends in reversed(history):
        end = offset_at(ends, partition)
        if end is None:
            if partition < len(ends):
                continue
            end = 0
        if end <= offset:
            if after is None:
                return None, False
            return at_s + (after[0] - at_s) * (offset - end) / (after[1] - end), False
        after = (at_s, end)
    return (None, False) if after is None else (after[0], True)


def _recent(window: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples of the last `RATE_S`, but at least two if possible."""
    if not window:
        return window
    ages_s = [(window[-1].at - sample.at).total_seconds() for sample in window]
    first = next((number for number, age_s in enumerate(ages_s) if 0 <= age_s <= RATE_S), 0)
    return window[max(0, min(first, len(window) - 2)) :]


def _known(values: Iterable[_N | None]) -> Iterable[_N]:
    return (value for value in values if value is not None)


def _progress(
    key: str, window: Sequence[Sample], partition: int, lag: int | None, *, alive: bool
) -> ProgressState | None:
    if lag is None:
        return None
    if window[-1].readable_lag(window[-1].tracks[key], partition) == 0:
        return ProgressState.HELD_BACK if lag else ProgressState.OK
    points: list[tuple[int, int]] = []
    holder = window[-1].tracks[key].holder[partition]
    for sample in reversed(window):
        track = sample.tracks.get(key)
        if track is None or offset_at(track.holder, partition) != holder:
            break
        position, remaining = (
            offset_at(track.position, partition),
            sample.readable_lag(track, partition),
        )
        if position is None or remaining is None:
            break
        points.append((position, remaining))
    points.reverse()
    return evaluate_lag(points, alive=alive, complete=len(points) == WINDOW)


def _total(sample: Sample, lags: Offsets) -> int | None:
    """Return the total lag; None if the lag of a partition with messages is unknown."""
    total = 0
    for partition, lag in enumerate(lags):
        if lag is not None:
            total += lag
        elif sample.ends[partition] is None or sample.ends[partition] != sample.starts[partition]:
            return None
    return total if sample.ends else None


def _read_rate(key: str, window: Sequence[Sample]) -> float | None:
    tracks = [(sample.at, sample.tracks[key]) for sample in window if key in sample.tracks]
    seconds = (tracks[-1][0] - tracks[0][0]).total_seconds()
    if seconds <= 0:
        return None
    read = sum(
        after - before
        for (_, earlier), (_, later) in itertools.pairwise(tracks)
        for before, after in zip(earlier.position, later.position, strict=False)
        if before is not None and after is not None and after > before
    )
    return read / seconds


def _trend(key: str, window: Sequence[Sample], total: int | None) -> float | None:
    """Return the growth of the lag since the first of the samples that has it."""
    if total is None:
        return None
    last = window[-1]
    for sample in window:
        track = sample.tracks.get(key)
        if track is None or len(sample.ends) != len(last.ends):
            continue
        before = _total(
            sample, [sample.lag(track, partition) for partition in range(len(sample.ends))]
        )
        seconds = (last.at - sample.at).total_seconds()
        if before is not None and seconds > 0:
            return (total - before) / seconds
    return None


def _drain_s(total: int | None, trend: float | None) -> float | None:
    if total == 0:
        return 0.0
    return total / -trend if total and trend is not None and trend < 0 else None


FAILED = "failed"
"""The key of endpoints in the state `error` among numbers by health."""


@dataclass(frozen=True, kw_only=True)
class GroupOverview:
    """A group of a channel."""

    role: Role
    name: str
    members: Mapping[str, int] = field(default_factory=dict)
    """Numbers of members by health; closed and failed ones do not count."""
    failures: int = 0
    """Members that failed within the last day, and have no successor."""
    lag: GroupSummary | None = None
    """Of readers, at the last sample."""
    partitions_out_of_range: int = 0


@dataclass(frozen=True, kw_only=True)
class ChannelOverview:
    """A channel that is in use."""

    name: str
    sampled_at: datetime | None
    write_rate: float | None
    ledger: LedgerSample | None = None
    """Of an exactly-once channel, at the last sample."""
    groups: tuple[GroupOverview, ...]


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The channels in use, by name, up to a limit."""

    phases: Mapping[Phase, int]
    """Numbers of all channels by phase."""
    channels: tuple[ChannelOverview, ...]
    omitted: int
    """Number of channels that are omitted, completely or in part."""
