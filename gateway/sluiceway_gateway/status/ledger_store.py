"""SQL of the sampler about ledgers, and of the metrics about them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select

from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.db.schema import batches, ledger_partitions, ledgers, visible_runs
from sluiceway_gateway.db.statements import chunks
from sluiceway_gateway.ledger import batch_store
from sluiceway_gateway.ledger import store as ledgers_store
from sluiceway_gateway.ledger.model import Batch, BatchState, Ledger

_IS_OPEN = batches.c.state == str(BatchState.OPEN)


@dataclass(frozen=True, kw_only=True)
class LedgerRows:
    """A channel's ledger and its open batches, the oldest first."""

    ledger: Ledger
    batches: Sequence[Batch]


def of_channels(tx: ReadTransaction, uids: Collection[str]) -> dict[str, LedgerRows]:
    """Return the ledgers of those of these channels in which a batch was opened, by uid."""
    found = {}
    for uid in sorted(ledgers_store.tags(tx, sorted(uids))):
        ledger = ledgers_store.find(tx, uid)
        if ledger is not None:
            found[uid] = LedgerRows(ledger=ledger, batches=batch_store.open_batches(tx, uid))
    return found


def committed_messages(tx: ReadTransaction, uids: Collection[str]) -> Mapping[str, int]:
    """Return how many offsets the visible runs of these channels have."""
    runs = visible_runs.c
    length = func.sum(runs.end_offset - runs.first_offset)
    counted = select(runs.channel_uid, length.label("number")).group_by(runs.channel_uid)
    found: dict[str, int] = {}
    for part in chunks(sorted(uids)):
        for row in tx.execute(counted.where(runs.channel_uid.in_(part))):
            found[row.channel_uid] = int(row.number)
    return found


@dataclass(frozen=True, kw_only=True)
class LedgerTotals:
    """Figures of all ledgers."""

    open_batches: int
    oldest_s: float
    """Since when the oldest one is open; 0 without one."""
    held_back: int
    """Channels with committed messages that wait for an open batch."""
    halted: int


def totals(tx: ReadTransaction, now: datetime) -> LedgerTotals:
    """Return the figures of all ledgers."""
    opened = tx.execute(
        select(func.count().label("number"), func.min(batches.c.opened_at).label("oldest")).where(
            _IS_OPEN
        )
    ).one()
    held = select(func.count(ledger_partitions.c.channel_uid.distinct())).where(
        ledger_partitions.c.channel_uid.in_(select(batches.c.channel_uid).where(_IS_OPEN)),
        ledger_partitions.c.stable < ledger_partitions.c.visible_end,
    )
    halted = select(func.count()).select_from(ledgers).where(ledgers.c.halted.is_not(None))
    return LedgerTotals(
        open_batches=opened.number,
        oldest_s=0.0 if opened.oldest is None else (now - opened.oldest).total_seconds(),
        held_back=tx.execute(held).scalar_one(),
        halted=tx.execute(halted).scalar_one(),
    )
