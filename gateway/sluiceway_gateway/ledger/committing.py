"""Commits of batches: the validation of manifests, and the runs that become visible. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sluiceway_gateway.errors import (
    BatchCommitted,
    BatchFenced,
    BeyondWatermark,
    InvalidManifest,
    ManifestConflict,
    UnknownPartition,
)
from sluiceway_gateway.ledger.model import (
    Batch,
    BatchState,
    Ending,
    Interval,
    Ledger,
    Manifest,
    Owner,
    Runs,
    aborted_error,
    digest_of,
    first_overlap,
    merge_runs,
    require_instance,
    require_intact,
    require_ordered,
    stable_of,
)


@dataclass(frozen=True, kw_only=True)
class CommitRequest:
    """A request to make the offsets of a manifest visible."""

    batch: str
    instance: str
    digest: str
    manifest: Manifest
    records: int
    counts: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class CommitDecision:
    """Values that a commit stores; a repeated one stores nothing."""

    batch: Batch
    owner: Owner
    ledger: Ledger
    runs_removed: Runs
    """By partition, stored runs that the added ones touch and replace."""
    runs_added: Runs
    repeated: bool


def commit_batch(
    ledger: Ledger,
    owner: Owner,
    batch: Batch,
    open_batches: Sequence[Batch],
    runs: Runs,
    request: CommitRequest,
    now: datetime,
) -> CommitDecision:
    """Return the committed batch, and the runs that become visible with it.

    `runs` are the stored runs that end at or above the batch's begin, by partition.

    Raises BatchFenced, BatchAborted, BatchCommitted, LedgerHalted, InvalidManifest,
    UnknownPartition and ManifestConflict.
    """
    require_instance(batch, request.instance)
    if batch.state is BatchState.COMMITTED:
        if request.digest != batch.digest:
            raise BatchCommitted(
                f"The batch {batch.key!r} is committed with another manifest. What is committed "
                "stays; commit each batch once, and repeat a commit unchanged."
            )
        return CommitDecision(
            batch=batch, owner=owner, ledger=ledger, runs_removed={}, runs_added={}, repeated=True
        )
    if batch.state is BatchState.ABORTED:
        raise aborted_error(batch)
    if batch.epoch < owner.fence:
        raise BatchFenced(
            f"Instance {owner.epoch} of {owner.name!r} has replaced this one, which is number "
            f"{batch.epoch}. Nothing of the batch {batch.key!r} is visible; stop this instance."
        )
    require_intact(ledger)
    _require_sound(request)
    _require_own(batch, request.manifest, runs)
    written = {each: intervals for each, intervals in request.manifest.items() if intervals}
    visible_end = dict(ledger.visible_end)
    removed: dict[int, tuple[Interval, ...]] = {}
    added: dict[int, tuple[Interval, ...]] = {}
    for partition, intervals in written.items():
        visible_end[partition] = max(visible_end.get(partition, 0), intervals[-1].end)
        stored = runs.get(partition, ())
        merged = merge_runs(stored, intervals)
        removed[partition] = tuple(sorted(set(stored) - set(merged)))
        added[partition] = tuple(sorted(set(merged) - set(stored)))
    number = ledger.number + 1
    others = [each.begin for each in open_batches if each.id != batch.id]
    ordinals = [each for each in (owner.ordinal, batch.ordinal) if each is not None]
    return CommitDecision(
        batch=replace(
            batch,
            state=BatchState.COMMITTED,
            ending=Ending.COMMIT,
            number=number,
            records=request.records,
            counts=dict(request.counts),
            digest=request.digest,
            ended_at=now,
        ),
        owner=replace(owner, ordinal=max(ordinals, default=None)),
        ledger=replace(
            ledger, number=number, visible_end=visible_end, stable=stable_of(visible_end, others)
        ),
        runs_removed=removed,
        runs_added=added,
        repeated=False,
    )


def _require_sound(request: CommitRequest) -> None:
    require_ordered(request.manifest)
    if request.digest != digest_of(request.manifest):
        raise InvalidManifest(
            "The digest is not that of the manifest. Send all slices of the manifest, and the "
            "SHA-256 of its JSON."
        )
    stray = [
        partition
        for partition, count in request.counts.items()
        if count < 0 or (count > 0 and not request.manifest.get(partition))
    ]
    if stray or sum(request.counts.values()) != request.records:
        raise InvalidManifest(
            f"The counts by partition do not fit {request.records} records and the manifest. "
            "Count the records of the listed intervals, by partition."
        )


def _require_own(batch: Batch, manifest: Manifest, runs: Runs) -> None:
    """Raise unless all offsets can be this batch's, and none is visible already."""
    for partition, intervals in manifest.items():
        if partition not in batch.begin:
            raise UnknownPartition(
                f"The batch {batch.key!r} was opened without partition {partition}. Write only to "
                "the partitions that the response to its opening names."
            )
        if intervals and intervals[0].first < batch.begin[partition]:
            raise ManifestConflict(
                f"The manifest lists the offset {intervals[0].first} of partition {partition}, but "
                f"the batch {batch.key!r} begins at {batch.begin[partition]}. Write nothing before "
                "the batch is open."
            )
        overlap = first_overlap(runs.get(partition, ()), intervals)
        if overlap is not None:
            raise ManifestConflict(
                f"The manifest lists the offsets [{overlap.first}, {overlap.end}) of partition "
                f"{partition}, of which some are committed by another batch. List only what "
                "the batch's own delivery reports named."
            )


def require_written(manifest: Manifest, watermarks: Mapping[int, int]) -> None:
    """Raise BeyondWatermark if the manifest lists offsets above Kafka's watermark."""
    for partition, intervals in manifest.items():
        end = intervals[-1].end if intervals else 0
        if end > watermarks.get(partition, 0):
            raise BeyondWatermark(
                f"The manifest ends at {end} in partition {partition}, but Kafka's watermark is "
                f"{watermarks.get(partition, 0)}. Repeat the commit; if this lasts, abort the "
                "batch."
            )
