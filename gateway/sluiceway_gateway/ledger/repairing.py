"""Repair of a halted ledger: lost records, and aborted batches. Pure.

Kafka uses the lost offsets again. So `visible_end` and `stable` are unchanged, the lost runs are
removed, and every partition is first filled up to `visible_end` with messages of no batch: no later
commit can have an offset that a reader has passed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated

from pydantic import Field

from sluiceway_gateway.core.errors import BeyondWatermark, LedgerIntact, RepairChanged
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger.model import (
    Batch,
    Ending,
    Ledger,
    Owner,
    Runs,
    clip,
    end_batches,
    halt,
    reused_offsets,
    visible_below,
)


@dataclass(frozen=True, kw_only=True)
class LostRecords:
    """Committed messages of a partition that Kafka has lost."""

    partition: int
    first: Annotated[int, Field(description="First offset that is lost or reused")]
    end: Annotated[int, Field(description="End of the committed offsets")]
    messages: int


@dataclass(frozen=True, kw_only=True)
class RepairPlan:
    """Records and open batches that a repair gives up."""

    cause: str
    """The reason of the halt."""
    lost: tuple[LostRecords, ...]
    aborted: tuple[Batch, ...]
    """The open batches, which the repair aborts."""


@dataclass(frozen=True, kw_only=True)
class RepairRequest:
    """A repair that gives up exactly the records of a plan."""

    lost_from: Mapping[int, int]
    """By partition, the first lost offset."""
    reason: str
    by: str
    """The caller."""


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A repair of a halted channel."""

    number: int
    """Its number among the ends of batches."""
    at: datetime
    by: str
    reason: str
    cause: Annotated[str, Field(description="The reason of the halt")]
    lost: tuple[LostRecords, ...]

    @property
    def lost_from(self) -> Mapping[int, int]:
        """By partition, the first lost offset."""
        return {records.partition: records.first for records in self.lost}


@dataclass(frozen=True, kw_only=True)
class RepairDecision:
    """Values that a repair stores."""

    repair: Repair
    ledger: Ledger
    owners: tuple[Owner, ...]
    """Owners of the aborted batches, fenced."""
    aborted: tuple[Batch, ...]
    runs_removed: Runs
    runs_added: Runs


def known_losses(ledger: Ledger, watermarks: Mapping[int, int]) -> Ledger:
    """Return the halted ledger, with records that Kafka has lost since. Raises LedgerIntact."""
    if ledger.halted is None:
        raise LedgerIntact(
            "The channel is not halted: Kafka has all of its committed records. There is "
            "nothing to repair."
        )
    further = reused_offsets(ledger, watermarks)
    return halt(ledger, further) if further else ledger


def plan_repair(ledger: Ledger, open_batches: Sequence[Batch], runs: Runs) -> RepairPlan:
    """Return the records and open batches that a repair gives up.

    `runs` are the stored runs that end above the first lost offset, by partition.
    """
    lost = tuple(
        LostRecords(
            partition=partition,
            first=first,
            end=ledger.visible_end[partition],
            messages=sum(run.end - run.first for run in clip(runs.get(partition, ()), first)),
        )
        for partition, first in sorted(ledger.lost_from.items())
    )
    return RepairPlan(cause=ledger.halted or "", lost=lost, aborted=tuple(open_batches))


def require_planned(ledger: Ledger, request: RepairRequest) -> None:
    """Raise RepairChanged unless the request gives up exactly the lost records."""
    if dict(request.lost_from) != dict(ledger.lost_from):
        raise RepairChanged(
            "This repair would not give up the lost records: they are lost from "
            f"{_offsets_text(ledger.lost_from)}, but the request has "
            f"{_offsets_text(request.lost_from)}. Nothing was changed: read the plan again."
        )


def unfilled(ledger: Ledger, watermarks: Mapping[int, int]) -> Mapping[int, int]:
    """Return, by partition, the number of missing messages up to the committed end."""
    return {
        partition: end - watermarks.get(partition, 0)
        for partition, end in sorted(ledger.visible_end.items())
        if watermarks.get(partition, 0) < end
    }


def repair_ledger(
    ledger: Ledger,
    owners: Sequence[Owner],
    open_batches: Sequence[Batch],
    runs: Runs,
    watermarks: Mapping[int, int],
    request: RepairRequest,
    now: datetime,
) -> RepairDecision:
    """Return the ledger without the lost runs, no longer halted, and without open batches.

    `owners` are those of the open batches; they are fenced. `watermarks` were read after the
    partitions were filled. Raises LedgerIntact, RepairChanged and BeyondWatermark.
    """
    ledger = known_losses(ledger, {})
    require_planned(ledger, request)
    missing = unfilled(ledger, watermarks)
    if missing:
        partition = next(iter(missing))
        raise BeyondWatermark(
            f"Partition {partition} lacks {missing[partition]} messages up to "
            f"{ledger.visible_end[partition]}, the end of what was committed. Nothing was changed: "
            "repeat the repair."
        )
    plan = plan_repair(ledger, open_batches, runs)
    cause = "The channel was repaired while it was open."
    ended = end_batches(ledger, open_batches, open_batches, now, Ending.ABORT, cause)
    removed: dict[int, tuple[Interval, ...]] = {}
    added: dict[int, tuple[Interval, ...]] = {}
    for partition, first in ledger.lost_from.items():
        stored = tuple(run for run in runs.get(partition, ()) if run.end > first)
        removed[partition] = stored
        added[partition] = visible_below(stored, first)
    number = ended.ledger.number + 1
    return RepairDecision(
        repair=Repair(
            number=number,
            at=now,
            by=request.by,
            reason=request.reason,
            cause=plan.cause,
            lost=plan.lost,
        ),
        ledger=replace(
            ended.ledger,
            number=number,
            stable=dict(ledger.visible_end),
            halted=None,
            lost_from={},
            low_end={},
            repaired=number,
        ),
        owners=tuple(
            replace(owner, epoch=owner.epoch + 1, fence=owner.epoch + 1, instance="")
            for owner in owners
        ),
        aborted=ended.aborted,
        runs_removed=removed,
        runs_added=added,
    )


def _offsets_text(offsets: Mapping[int, int]) -> str:
    named = [f"{offset} of partition {at}" for at, offset in sorted(offsets.items())]
    return ", ".join(named) or "no offset"
