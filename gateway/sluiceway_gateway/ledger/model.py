"""Ledger: batches, owners, ends, intervals of offsets, visible runs and `stable`. Pure.

Every decision uses values that were read while the ledger's row is locked, and returns the values
to store in the same transaction.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from sluiceway_gateway.core.auth.model import Owned, OwnedKind
from sluiceway_gateway.core.errors import (
    BatchAborted,
    BatchCommitted,
    BatchFenced,
    InvalidManifest,
    LedgerHalted,
)
from sluiceway_gateway.core.kafka.model import Interval

LEASE = timedelta(seconds=30)
"""Time after which a batch without renewal is aborted, unless its writer requests another one."""


WRITER_ID_CHARACTERS = 32
"""Characters of an endpoint's id, with which the instances of a writer's batches begin."""


class BatchState(StrEnum):
    """State of a batch."""

    OPEN = "open"
    """Its records are invisible; it can be committed."""
    COMMITTED = "committed"
    """The offsets of its manifest are visible, for good."""
    ABORTED = "aborted"
    """Its records stay invisible, for good."""


BATCH_TRANSITIONS: Mapping[BatchState, frozenset[BatchState]] = {
    BatchState.OPEN: frozenset({BatchState.COMMITTED, BatchState.ABORTED}),
    BatchState.COMMITTED: frozenset(),
    BatchState.ABORTED: frozenset(),
}
"""The transition table."""


class Ending(StrEnum):
    """The event that ended a batch; each has a number in the channel."""

    COMMIT = "commit"
    ABORT = "abort"
    """By its writer, or by another instance that took over."""
    REAP = "reap"
    """By the gateway, after the end of the lease or of the batch's time."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Committed offsets of a channel's batches; a missing partition counts as 0."""

    channel_uid: str
    topic_id: str
    """The topic of all its offsets."""
    partitions: int
    number: int = 0
    """The number of the last batch that ended."""
    visible_end: Mapping[int, int] = field(default_factory=dict)
    """By partition, the end of the last committed run. Never decreases."""
    stable: Mapping[int, int] = field(default_factory=dict)
    """By partition, the offset below which visible runs are final. Never decreases."""
    halted: str | None = None
    """The reason of the halt, during which nothing can be opened, committed or read."""
    lost_from: Mapping[int, int] = field(default_factory=dict)
    """By partition of a halted ledger, the first committed offset that Kafka has lost."""
    low_end: Mapping[int, int] = field(default_factory=dict)
    """By partition, the lowest watermark that was below committed offsets, until it is judged."""
    repaired: int | None = None
    """The number of the last repair."""
    removed_after: Mapping[int, int] = field(default_factory=dict)
    """By partition, the number after which retention last removed runs."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A query or job and its sink, or a plain writer. A key belongs to one owner."""

    name: str
    epoch: int = 0
    """The number of its latest instance."""
    fence: int = 0
    """Instances with a lower number are fenced."""
    instance: str = ""
    """The latest instance."""
    ordinal: int | None = None
    """The highest ordinal that it has committed."""
    label: str | None = None
    """Label that its batches and keys belong to, SHARED for every label; None for nobody."""

    def owned(self, channel: str, channel_uid: str) -> Owned:
        """Return its batches as those of its label."""
        return Owned(
            channel=channel,
            channel_uid=channel_uid,
            kind=OwnedKind.BATCHES,
            name=self.name,
            owner=self.label,
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Records that become visible together, or never."""

    id: str
    key: str
    owner: str
    instance: str
    epoch: int
    """The number of its instance."""
    ordinal: int | None = None
    """Its position in the order of a stream's batches."""
    state: BatchState = BatchState.OPEN
    begin: Mapping[int, int]
    """By partition, the lower bound of its offsets; it writes to these partitions only."""
    partitions: tuple[int, ...] | None = None
    """The partitions that its writer named."""
    own_key: bool = False
    """Whether only its instance uses its key, so that the key can be pruned."""
    opened_at: datetime
    lease_until: datetime
    max_until: datetime
    """The limit of renewals."""
    number: int | None = None
    """The number of its end in the channel."""
    ending: Ending | None = None
    records: int | None = None
    counts: Mapping[int, int] | None = None
    digest: str | None = None
    cause: str | None = None
    ended_at: datetime | None = None


class Settlement(StrEnum):
    """The batches of a writer that failed or was lost, as its readers see them."""

    ALL = "all"
    """It used keys that others can open, too, and each is committed by now, by any instance."""
    NONE = "none"
    """It committed nothing, and can commit nothing any more."""
    SOME = "some"
    """It may have left a part of its work undone."""


def settlement(*, is_open: bool, committed: bool, aborted: bool, abandoned: bool) -> Settlement:
    """Return the settlement of a writer.

    `is_open`, `committed`, `aborted`: it has such batches. `abandoned`: a key of its batches is
    not committed, or only this writer can use it, so nobody can tell whether it was the last one.
    """
    if is_open:
        return Settlement.SOME
    if (committed or aborted) and not abandoned:
        return Settlement.ALL
    return Settlement.SOME if committed else Settlement.NONE


@dataclass(frozen=True, kw_only=True)
class AbortDecision:
    """Values that an abort or a reap stores; `aborted` is empty if nothing changes."""

    aborted: tuple[Batch, ...]
    ledger: Ledger


def stable_of(
    visible_end: Mapping[int, int], begins: Iterable[Mapping[int, int]]
) -> Mapping[int, int]:
    """Return, by partition, the offset below which no open batch can add records.

    It is the end of the last run or, if lower, the lowest begin of an open batch.
    """
    stable = dict(visible_end)
    for begin in begins:
        for partition in stable.keys() & begin.keys():
            stable[partition] = min(stable[partition], begin[partition])
    return stable


def require_intact(ledger: Ledger) -> None:
    """Raise LedgerHalted if the ledger is halted."""
    if ledger.halted is not None:
        raise LedgerHalted(
            f"The channel is halted: {ledger.halted} Nothing is written or read before a repair: "
            "`sluiceway channels repair NAME` shows what is lost, and repairs the channel."
        )


def require_instance(batch: Batch, instance: str) -> None:
    """Raise BatchFenced unless the batch is of this instance."""
    if batch.instance != instance:
        raise BatchFenced(
            f"The batch {batch.id} of {batch.key!r} belongs to another instance than "
            f"{instance!r}. Only the instance that opened a batch ends it."
        )


def aborted_error(batch: Batch) -> BatchAborted:
    """Return the error for work on an aborted batch."""
    return BatchAborted(
        f"The batch {batch.key!r} was aborted: {(batch.cause or '').rstrip('.')}. Nothing of it is "
        "visible. Run the job again; its new instance opens the key anew."
    )


def abort_batch(
    ledger: Ledger,
    batch: Batch,
    open_batches: Sequence[Batch],
    cause: str,
    now: datetime,
    instance: str | None = None,
) -> AbortDecision:
    """Return the aborted batch; a batch that was aborted before is unchanged.

    `instance` is the writer's, None for an operator. Raises BatchFenced and BatchCommitted.
    """
    if instance is not None:
        require_instance(batch, instance)
    if batch.state is BatchState.COMMITTED:
        raise BatchCommitted(
            f"The batch {batch.key!r} is committed, and its records are visible. The abort changed "
            "nothing."
        )
    if batch.state is BatchState.ABORTED:
        return AbortDecision(aborted=(), ledger=ledger)
    return end_batches(ledger, [batch], open_batches, now, Ending.ABORT, cause)


def end_batches(
    ledger: Ledger,
    batches: Sequence[Batch],
    open_batches: Iterable[Batch],
    now: datetime,
    ending: Ending,
    cause: str,
) -> AbortDecision:
    """Return the batches as aborted and numbered, and the ledger with its new `stable`.

    `open_batches` are all open ones of the channel.
    """
    if not batches:
        return AbortDecision(aborted=(), ledger=ledger)
    aborted = tuple(
        replace(
            batch,
            state=BatchState.ABORTED,
            ending=ending,
            number=ledger.number + count,
            cause=cause,
            ended_at=now,
        )
        for count, batch in enumerate(batches, 1)
    )
    gone = {batch.id for batch in batches}
    begins = (batch.begin for batch in open_batches if batch.id not in gone)
    stable = stable_of(ledger.visible_end, begins)
    return AbortDecision(
        aborted=aborted, ledger=replace(ledger, number=ledger.number + len(aborted), stable=stable)
    )


def renew(batch: Batch, now: datetime, lease: timedelta) -> Batch:
    """Return an open batch with a longer lease, up to its limit; others unchanged."""
    if batch.state is not BatchState.OPEN:
        return batch
    until = min(max(batch.lease_until, now + lease), batch.max_until)
    return replace(batch, lease_until=until)


def expired(batch: Batch, now: datetime) -> bool:
    """Whether the lease of an open batch has ended, so that anybody may abort it."""
    return batch.state is BatchState.OPEN and batch.lease_until <= now


def reap(
    ledger: Ledger,
    open_batches: Sequence[Batch],
    now: datetime,
    *,
    spared: Collection[str] = (),
) -> AbortDecision:
    """Abort the channel's open batches whose leases have ended, without the ids `spared`."""
    vanished = [batch for batch in open_batches if expired(batch, now) and batch.id not in spared]
    cause = "Its lease ended, because the writer vanished."
    return end_batches(ledger, vanished, open_batches, now, Ending.REAP, cause)


def abort_instances(
    ledger: Ledger,
    open_batches: Sequence[Batch],
    instances: Collection[str],
    now: datetime,
    *,
    spared: Collection[str] = (),
) -> AbortDecision:
    """Abort the open batches of instances that have ended: jobs, and runs of queries.

    Only their drivers could commit these. A task that outlives its driver is refused, because an
    instance cannot open its aborted batch again. Batches of the owners `spared` stay open.
    """
    left = [
        batch for batch in open_batches if batch.instance in instances and batch.owner not in spared
    ]
    cause = "Its job or query ended before the commit."
    return end_batches(ledger, left, open_batches, now, Ending.ABORT, cause)


def grow(ledger: Ledger, partitions: int) -> Ledger:
    """Return the ledger with at least `partitions` partitions; open batches keep theirs."""
    return replace(ledger, partitions=max(ledger.partitions, partitions))


def reused_offsets(ledger: Ledger, watermarks: Mapping[int, int]) -> Mapping[int, int]:
    """Return the first lost offset of each partition that ends below its committed offsets.

    In a halted ledger, only of partitions that end below the known first lost offset.
    """
    return {
        partition: watermarks[partition]
        for partition, end in sorted(ledger.visible_end.items())
        if watermarks.get(partition, end) < ledger.lost_from.get(partition, end)
    }


def lowest_offsets(first: Mapping[int, int], second: Mapping[int, int]) -> dict[int, int]:
    """Return the lower offset of each partition that either has."""
    return {**first, **{at: min(offset, first.get(at, offset)) for at, offset in second.items()}}


def note_low_ends(ledger: Ledger, watermarks: Mapping[int, int]) -> Ledger:
    """Return the ledger with the watermarks that are below its committed offsets, if lowest."""
    low_end = lowest_offsets(ledger.low_end, reused_offsets(ledger, watermarks))
    return replace(ledger, low_end=low_end)


def clear_low_ends(ledger: Ledger, partitions: Collection[int]) -> Ledger:
    """Return the ledger without the low watermarks of these partitions."""
    kept = {at: end for at, end in ledger.low_end.items() if at not in partitions}
    return replace(ledger, low_end=kept)


def halt(ledger: Ledger, lost_from: Mapping[int, int]) -> Ledger:
    """Return the halted ledger, with its first reason."""
    lost = lowest_offsets(ledger.lost_from, lost_from)
    partition, offset = next(iter(lost_from.items()))
    reason = (
        f"Kafka lost the records of partition {partition} from offset {offset} on, which are "
        f"committed up to {ledger.visible_end[partition]}, and uses their offsets again."
    )
    return clear_low_ends(replace(ledger, halted=ledger.halted or reason, lost_from=lost), lost)


Manifest = Mapping[int, tuple[Interval, ...]]
"""By partition, the intervals that a batch wrote: sorted, without overlaps."""
Runs = Mapping[int, Sequence[Interval]]
"""By partition, committed intervals: sorted, with gaps between them."""


def manifest_of(raw: Mapping[int, Iterable[Sequence[int]]]) -> Manifest:
    """Return a validated manifest from pairs of numbers.

    Raises InvalidManifest unless all intervals are non-empty and sorted.
    """
    manifest: dict[int, tuple[Interval, ...]] = {}
    for partition in sorted(raw):
        pairs = [tuple(pair) for pair in raw[partition]]
        if any(len(pair) != 2 for pair in pairs):
            raise InvalidManifest(
                f"The manifest's partition {partition} holds an interval that is not "
                "[first, end]. Give each as two offsets."
            )
        manifest[partition] = tuple(Interval(*pair) for pair in pairs)
    require_ordered(manifest)
    return manifest


def require_ordered(manifest: Manifest) -> None:
    """Raise InvalidManifest unless intervals are non-empty, sorted and without overlaps."""
    for partition, intervals in manifest.items():
        for interval in intervals:
            if not 0 <= interval.first < interval.end:
                raise InvalidManifest(
                    f"The interval [{interval.first}, {interval.end}) of partition {partition} "
                    "holds no offsets. An interval goes from its first offset to the one after "
                    "its last."
                )
        for before, after in pairwise(intervals):
            if after.first < before.end:
                raise InvalidManifest(
                    f"The intervals [{before.first}, {before.end}) and [{after.first}, "
                    f"{after.end}) of partition {partition} overlap or are not sorted. List each "
                    "offset once, and each task by one attempt only."
                )


def digest_of(manifest: Manifest) -> str:
    """Return the hex SHA-256 of the manifest as JSON: by partition number, without spaces.

    Equal manifests have equal JSON: `{"0":[[1,2]],"1":[[5,9]]}`.
    """
    text = json.dumps(
        {str(partition): manifest[partition] for partition in sorted(manifest)},
        separators=(",", ":"),
    )
    return hashlib.sha256(text.encode()).hexdigest()


def merge_runs(runs: Iterable[Interval], added: Iterable[Interval] = ()) -> tuple[Interval, ...]:
    """Return all runs in order; adjacent ones are merged."""
    merged: list[Interval] = []
    for run in sorted((*runs, *added)):
        if merged and run.first <= merged[-1].end:
            merged[-1] = Interval(merged[-1].first, max(merged[-1].end, run.end))
        else:
            merged.append(run)
    return tuple(merged)


def first_overlap(runs: Sequence[Interval], added: Sequence[Interval]) -> Interval | None:
    """Return the first of `added` that shares an offset with a run; both are sorted."""
    at = 0
    for interval in added:
        while at < len(runs) and runs[at].end <= interval.first:
            at += 1
        if at < len(runs) and runs[at].first < interval.end:
            return interval
    return None


def clip(runs: Iterable[Interval], log_start: int) -> tuple[Interval, ...]:
    """Return the runs without offsets below `log_start`."""
    return tuple(
        Interval(max(run.first, log_start), run.end) for run in runs if run.end > log_start
    )


def visible_below(runs: Iterable[Interval], stable: int, start: int = 0) -> tuple[Interval, ...]:
    """Return the part of the runs in `[start, stable)`, which readers may see."""
    return tuple(
        Interval(run.first, min(run.end, stable)) for run in clip(runs, start) if run.first < stable
    )


def runs_above(runs: Runs, stable: Mapping[int, int]) -> Manifest:
    """Return the part of the runs that is not below `stable`, without empty partitions."""
    kept = {partition: clip(runs[partition], stable.get(partition, 0)) for partition in runs}
    return {partition: intervals for partition, intervals in kept.items() if intervals}


def without_runs(runs: Sequence[Interval], removed: Sequence[Interval]) -> list[Interval]:
    """Return the parts of the runs that are in none of `removed`; all are sorted."""
    left: list[Interval] = []
    at = 0
    for first, end in runs:
        while at < len(removed) and removed[at].end <= first:
            at += 1
        # One that ends above this run may also be in the next one.
        while at < len(removed) and removed[at].first < end:
            if first < removed[at].first:
                left.append(Interval(first, removed[at].first))
            first = removed[at].end
            if first >= end:
                break
            at += 1
        if first < end:
            left.append(Interval(first, end))
    return left


def snapshot_runs(runs: Runs, above: Runs, stable: Mapping[int, int]) -> Runs:
    """Return the runs of whole batches: those below a snapshot's `stable`, and batches' above it.

    `above` are runs that batches up to the snapshot's number had above `stable` at their commit.
    """
    later = runs_above(above, stable)
    return {
        partition: (
            *visible_below(runs.get(partition, ()), stable.get(partition, 0)),
            *sorted(later.get(partition, ())),
        )
        for partition in runs.keys() | later.keys()
    }


class RunSlice(NamedTuple):
    """A part of the visible runs, and by partition the start of the next part."""

    runs: Mapping[int, tuple[Interval, ...]]
    truncated: Mapping[int, int]


def slice_runs(
    runs: Runs, bounds: Mapping[int, int], starts: Mapping[int, int], limit: int
) -> RunSlice:
    """Return up to `limit` runs from `starts` up to `bounds`, and the start of the next slice.

    All slices need the same bounds: `stable`, or the ends of a snapshot.
    """
    sliced: dict[int, tuple[Interval, ...]] = {}
    truncated: dict[int, int] = {}
    for partition, start in sorted(starts.items()):
        visible = visible_below(runs.get(partition, ()), bounds.get(partition, 0), start)
        sliced[partition] = visible[:limit]
        limit -= len(sliced[partition])
        if len(sliced[partition]) < len(visible):
            truncated[partition] = visible[len(sliced[partition])].first
    return RunSlice(sliced, truncated)
