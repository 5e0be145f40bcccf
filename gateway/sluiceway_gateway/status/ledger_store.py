"""SQL of the sampler about ledgers: their state, open batches, and what is committed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.db.schema import visible_runs
from sluiceway_gateway.db.statements import chunks
from sluiceway_gateway.ledger import batch_store
from sluiceway_gateway.ledger import store as ledgers_store
from sluiceway_gateway.ledger.model import Batch, Ledger


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
