"""Opening and commits of batches: takeovers and replays, manifests and visible runs. Pure.

A key has one open batch at a time, the same for all requests of an instance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from sluiceway_gateway.api.models import INT64_MAX, Count, RequestModel, Time, each_once
from sluiceway_gateway.core.errors import (
    BatchCommitted,
    BatchFenced,
    BatchKeyTaken,
    BatchOpen,
    BeyondWatermark,
    InvalidManifest,
    LedgerRestored,
    ManifestConflict,
    StaleBatch,
    UnknownPartition,
)
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.core.names import MAX_PARTITIONS
from sluiceway_gateway.ledger.model import (
    LEASE,
    Batch,
    BatchState,
    Ending,
    Ledger,
    Manifest,
    Owner,
    Runs,
    aborted_error,
    digest_of,
    end_batches,
    expired,
    first_overlap,
    merge_runs,
    require_instance,
    require_intact,
    require_ordered,
    runs_above,
    stable_of,
)

MIN_LEASE_MS, MAX_LEASE_MS = 1_000, 3_600_000
LEASE_MS = LEASE // timedelta(milliseconds=1)
ONCE = "each partition may be given once"

BatchText = Annotated[str, Field(min_length=1, max_length=200)]


def lease_of(lease_ms: int | None) -> timedelta:
    """Return the requested lease, or the default."""
    return LEASE if lease_ms is None else timedelta(milliseconds=lease_ms)


class PreviousCommit(RequestModel):
    """A commit that a writer has made: `number` and `committed_at` of its response."""

    number: int = Field(ge=1, le=INT64_MAX)
    at: Time


class OpenRequest(RequestModel):
    """A request for the batch of a key. All tasks of one instance get the same batch."""

    key: BatchText = Field(description="Identity of the batch; committed once")
    owner: BatchText = Field(description="The query or job, and its sink; owns its keys")
    instance: BatchText = Field(description="Of the owner: one run, or one writer")
    takeover: bool = Field(default=False, description="Abort batches of other instances")
    ordinal: Count | None = Field(default=None, description="Position in a stream of batches")
    partitions: (
        Annotated[
            list[Annotated[int, Field(ge=0, lt=MAX_PARTITIONS)]],
            Field(min_length=1, max_length=MAX_PARTITIONS),
            each_once(int, ONCE),
            AfterValidator(sorted),
        ]
        | None
    ) = Field(default=None, description="The partitions that are written to; null: any")
    own_key: bool = Field(default=False, description="Only this instance uses the key")
    previous: PreviousCommit | None = Field(
        default=None, description="Refuse unless the database has this commit of the writer"
    )
    lease_ms: int | None = Field(
        default=None,
        ge=MIN_LEASE_MS,
        le=MAX_LEASE_MS,
        description=f"Time without renewal after which the batch is aborted; null: {LEASE_MS}",
    )


@dataclass(frozen=True, kw_only=True)
class OpenDecision:
    """Values that an open stores: `aborted` first, then the batch, the owner and the ledger."""

    batch: Batch
    owner: Owner
    aborted: tuple[Batch, ...]
    ledger: Ledger
    replayed: bool
    """Whether the batch is stored already: committed, or opened by this instance."""


def open_batch(
    ledger: Ledger,
    owner: Owner | None,
    latest: Batch | None,
    open_batches: Sequence[Batch],
    request: OpenRequest,
    now: datetime,
    *,
    new_id: str,
    max_age: timedelta,
    instance_epoch: int | None = None,
) -> OpenDecision:
    """Return the batch of the key: a new one, the instance's open one, or the committed one.

    `latest` is the key's latest batch; `open_batches` are all open ones of the channel, including
    `latest`; `instance_epoch` is the highest epoch of a batch of this owner and instance.

    Raises LedgerHalted, BatchKeyTaken, StaleBatch, BatchFenced, BatchAborted, BatchOpen and
    UnknownPartition.
    """
    require_intact(ledger)
    owner = owner or Owner(name=request.owner)
    _require_key(latest, request)
    _require_order(owner, latest, request)
    if latest is not None and latest.state is BatchState.COMMITTED:
        return _replayed(ledger, owner, latest)
    epoch = owner.epoch if owner.instance == request.instance else instance_epoch
    _require_unfenced(owner, latest, request, epoch)
    if latest is not None and latest.instance == request.instance:
        if latest.state is BatchState.ABORTED:
            raise aborted_error(latest)
        return _replayed(ledger, owner, latest)
    displaced = _displaced(latest, open_batches, request, now, new=epoch is None)
    cause = "Taken over by a newer instance of its job, query or writer."
    ended = end_batches(ledger, displaced, open_batches, now, Ending.ABORT, cause)
    if epoch is None:
        epoch = owner.epoch + 1
        owner = replace(
            owner,
            epoch=epoch,
            instance=request.instance,
            fence=epoch if request.takeover else owner.fence,
        )
    batch = Batch(
        id=new_id,
        key=request.key,
        owner=request.owner,
        instance=request.instance,
        epoch=epoch,
        ordinal=request.ordinal,
        begin=_begin(ended.ledger, request),
        partitions=None if request.partitions is None else tuple(request.partitions),
        own_key=request.own_key,
        opened_at=now,
        lease_until=now + min(lease_of(request.lease_ms), max_age),
        max_until=now + max_age,
    )
    return OpenDecision(
        batch=batch, owner=owner, aborted=ended.aborted, ledger=ended.ledger, replayed=False
    )


def require_previous(ledger: Ledger, previous: PreviousCommit, found_at: datetime | None) -> None:
    """Raise LedgerRestored unless the ledger has this commit.

    `found_at` is the time of its number in the ledger; None if it was pruned, or never ended.
    """
    # Clients see milliseconds.
    same = found_at is None or abs(found_at - previous.at) < timedelta(milliseconds=1)
    if same and previous.number <= ledger.number:
        return
    raise LedgerRestored(
        f"The channel does not have the commit {previous.number} of "
        f"{previous.at.isoformat(timespec='milliseconds')} that this writer has made: the database "
        "was restored to an earlier state. The records of this commit, and maybe of earlier ones, "
        "are invisible: write them again, with a new writer."
    )


def _replayed(ledger: Ledger, owner: Owner, batch: Batch) -> OpenDecision:
    return OpenDecision(batch=batch, owner=owner, aborted=(), ledger=ledger, replayed=True)


def _require_key(latest: Batch | None, request: OpenRequest) -> None:
    if latest is not None and latest.owner != request.owner:
        raise BatchKeyTaken(
            f"The batch {request.key!r} belongs to {latest.owner!r}, not to {request.owner!r}. Use "
            "keys of its own for each job; a query with a new checkpoint needs other keys, too."
        )


def _require_order(owner: Owner, latest: Batch | None, request: OpenRequest) -> None:
    """Raise StaleBatch below the highest committed ordinal, BatchKeyTaken for another one's key.

    A micro-batch may have several keys, so another key at that ordinal is a new batch.
    """
    if request.ordinal is None:
        return
    if owner.ordinal is not None and request.ordinal < owner.ordinal:
        raise StaleBatch(
            f"{owner.name!r} has committed the batch {owner.ordinal} already, so its batch "
            f"{request.ordinal} cannot be written again. If the query's checkpoint was restored "
            "from an older copy, start the query with a new checkpoint and with the offsets where "
            "the committed batches end."
        )
    if latest is None or latest.state is not BatchState.COMMITTED:
        return
    if latest.ordinal not in {None, request.ordinal}:
        raise BatchKeyTaken(
            f"The key {request.key!r} is that of the batch {latest.ordinal} of {owner.name!r}, so "
            f"its batch {request.ordinal} would not be written. Use a key with the number of the "
            "micro-batch."
        )


def _require_unfenced(
    owner: Owner, latest: Batch | None, request: OpenRequest, epoch: int | None
) -> None:
    current = max(owner.fence, 0 if latest is None else latest.epoch)
    if epoch is not None and epoch < current:
        raise BatchFenced(
            f"Instance {current} of {owner.name!r} has replaced this one, which is number {epoch} "
            f"({request.instance!r}), or the channel was repaired. Stop it; a newer one goes on."
        )


def _displaced(
    latest: Batch | None,
    open_batches: Sequence[Batch],
    request: OpenRequest,
    now: datetime,
    *,
    new: bool,
) -> list[Batch]:
    """Return the open batches that are aborted because this instance opens the key."""
    if request.takeover and new:
        return [batch for batch in open_batches if batch.owner == request.owner]
    if latest is None or latest.state is not BatchState.OPEN:
        return []
    if not expired(latest, now):
        raise BatchOpen(
            f"The batch {latest.key!r} is open in another instance, until "
            f"{latest.lease_until.isoformat()} at least. Wait until it ends, or stop that job."
        )
    return [latest]


def _begin(ledger: Ledger, request: OpenRequest) -> Mapping[int, int]:
    named = range(ledger.partitions) if request.partitions is None else request.partitions
    unknown = [partition for partition in named if not 0 <= partition < ledger.partitions]
    if unknown:
        raise UnknownPartition(
            f"The channel has {ledger.partitions} partitions, from 0 on, and none with the number "
            f"{unknown[0]}. Name partitions that exist."
        )
    return {partition: ledger.visible_end.get(partition, 0) for partition in sorted(named)}


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
    runs_above: Runs
    """By partition, those of the batch that are above `stable`, for snapshots."""
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
            batch=batch,
            owner=owner,
            ledger=ledger,
            runs_removed={},
            runs_added={},
            runs_above={},
            repeated=True,
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
    written = {
        partition: intervals for partition, intervals in request.manifest.items() if intervals
    }
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
    others = [other.begin for other in open_batches if other.id != batch.id]
    stable = stable_of(visible_end, others)
    ordinals = [ordinal for ordinal in (owner.ordinal, batch.ordinal) if ordinal is not None]
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
        ledger=replace(ledger, number=number, visible_end=visible_end, stable=stable),
        runs_removed=removed,
        runs_added=added,
        runs_above=runs_above(written, stable),
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
    disputed: dict[int, int] = {}
    reasons: list[str] = []
    for partition, intervals in manifest.items():
        if partition not in batch.begin:
            raise UnknownPartition(
                f"The batch {batch.key!r} was opened without partition {partition}. Write only to "
                "the partitions that the response to its opening names."
            )
        if intervals and intervals[0].first < batch.begin[partition]:
            disputed[partition] = intervals[0].first
            reasons.append(
                f"The manifest lists the offset {intervals[0].first} of partition {partition}, but "
                f"the batch {batch.key!r} begins at {batch.begin[partition]}. Write nothing before "
                "the batch is open."
            )
            continue
        stored = runs.get(partition, ())
        overlap = first_overlap(stored, intervals)
        if overlap is not None:
            run = next(run for run in stored if run.end > overlap.first)
            disputed[partition] = max(overlap.first, run.first)
            reasons.append(
                f"The manifest lists the offsets [{overlap.first}, {overlap.end}) of partition "
                f"{partition}, of which some are committed by another batch. List only what "
                "the batch's own delivery reports named."
            )
    if disputed:
        raise ManifestConflict(reasons[0], disputed=disputed)


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
