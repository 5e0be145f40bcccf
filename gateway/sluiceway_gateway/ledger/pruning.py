"""Pruning of ledgers: ended batches, their details, snapshots, owners; bounded per transaction.

Committed keys stay, because a job may run again at any time. For a stream only the highest one
stays, which refuses earlier ones. Keys that only their instance uses are deleted. Of a writer that
has not closed, aborted batches and the last committed one stay while it has its place.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, union, update

from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.passes import run_steps
from sluiceway_gateway.endpoints.tables import UNCLOSED, endpoints
from sluiceway_gateway.ledger import store
from sluiceway_gateway.ledger.model import WRITER_ID_CHARACTERS, BatchState
from sluiceway_gateway.ledger.tables import (
    batch_owners,
    batch_runs,
    batches,
    ledger_snapshots,
    ledgers,
)

#: Maximum channels per pass.
_CHANNELS = 20
_PAUSE_S = 600.0

_HIGHEST = (
    select(batch_owners.c.ordinal)
    .where(
        batch_owners.c.channel_uid == batches.c.channel_uid, batch_owners.c.name == batches.c.owner
    )
    .scalar_subquery()
)
_ABORTED = batches.c.state == BatchState.ABORTED
_COMMITTED = batches.c.state == BatchState.COMMITTED
# Readers are told what a failed or lost writer has left, as long as it has its place: which keys it
# has not committed, and whether it has committed any.
_OF_WRITER = exists().where(
    endpoints.c.id == func.substr(batches.c.instance, 1, WRITER_ID_CHARACTERS),
    UNCLOSED,
)
_NEWER = batches.alias("newer")
_HAS_NEWER = exists().where(
    _NEWER.c.channel_uid == batches.c.channel_uid,
    _NEWER.c.instance == batches.c.instance,
    _NEWER.c.state == BatchState.COMMITTED,
    _NEWER.c.number > batches.c.number,
)
_UNNEEDED = or_(
    and_(_ABORTED, ~_OF_WRITER),
    and_(_COMMITTED, batches.c.own_key, or_(~_OF_WRITER, _HAS_NEWER)),
    and_(_COMMITTED, batches.c.ordinal < _HIGHEST),
)
_DETAILED = and_(_COMMITTED, ~batches.c.own_key, batches.c.ordinal.is_(None))


@dataclass(frozen=True, kw_only=True)
class LedgerPruneCounts:
    """Rows that one pass deleted or shortened; `pause_s` is 0 while there may be more."""

    batches: int = 0
    shortened: int = 0
    """Committed batches that were reduced to the key, the digest and the number of records."""
    snapshots: int = 0
    runs: int = 0
    """Runs of batches, which no snapshot needs any more."""
    owners: int = 0
    pause_s: float = _PAUSE_S


class LedgerPruner:
    """Prunes batches that ended more than `days` ago, by the clock, under the ledgers' locks.

    A transaction has at most `max_rows` of one kind.
    """

    def __init__(self, *, database: Database, days: int, clock: Clock, max_rows: int = 500) -> None:
        self._database = database
        self._max_rows = max_rows
        self._retention = timedelta(days=days)
        self._clock = clock

    def run_once(self) -> LedgerPruneCounts:
        """Prune some rows of each kind, of some channels. Raises DatabaseUnavailable."""
        before = self._clock() - self._retention
        with self._database.read() as tx:
            uids = _with_old_rows(tx, before)
        pruned = run_steps(partial(self._prune, uid, before) for uid in uids)
        counts = [sum(numbers) for numbers in zip(*pruned, strict=True)] or [0] * 5
        more = len(uids) == _CHANNELS or any(self._max_rows in numbers for numbers in pruned)
        return LedgerPruneCounts(
            batches=counts[0],
            shortened=counts[1],
            snapshots=counts[2],
            runs=counts[3],
            owners=counts[4],
            pause_s=0.0 if more else _PAUSE_S,
        )

    def _prune(self, uid: str, before: datetime) -> tuple[int, int, int, int, int]:
        with self._database.write() as tx:
            ledger = store.hold_existing(tx, uid)
            if ledger is None:
                return 0, 0, 0, 0, 0
            limit = self._max_rows
            deleted = _delete_batches(tx, uid, before, limit=limit)
            shortened = _shorten_batches(tx, uid, before, limit=limit)
            old = ledger_snapshots.c.at < before
            snapshots = _delete_snapshots(tx, uid, old, last=ledger.number, limit=limit)
            owners = _delete_owners(tx, uid, limit=limit)
        return deleted, shortened, snapshots, self._prune_runs(uid), owners

    def _prune_runs(self, uid: str) -> int:
        """Delete all runs that no snapshot needs any more: a snapshot has many of them.

        Without old snapshots, a channel is not visited again.
        """
        total = 0
        while True:
            with self._database.write() as tx:
                ledger = store.hold_existing(tx, uid)
                limit = self._max_rows
                deleted = 0 if ledger is None else _delete_batch_runs(tx, uid, limit=limit)
            total += deleted
            if deleted < self._max_rows:
                return total


def delete_history(tx: WriteTransaction, uid: str, *, limit: int = 2_000) -> bool:
    """Delete up to `limit` rows of each kind of a channel that is being deleted.

    Returns whether there may be more of them. Until the channel is deleted, readers get the same
    runs as before.
    """
    ledger = store.hold_existing(tx, uid)
    if ledger is None:
        return False
    deleted = (
        _delete_ended(tx, uid, limit=limit),
        _delete_snapshots(tx, uid, last=ledger.number, limit=limit),
        _delete_batch_runs(tx, uid, limit=limit),
    )
    return limit in deleted


def _delete_ended(tx: WriteTransaction, uid: str, *, limit: int) -> int:
    table = batches.c
    chosen = select(table.number).where(table.channel_uid == uid, table.number.is_not(None))
    chosen = chosen.order_by(table.number).limit(limit)
    return tx.execute(
        delete(batches).where(table.channel_uid == uid, table.number.in_(chosen))
    ).rowcount


def _old(before: datetime) -> ColumnElement[bool]:
    return and_(batches.c.ended_at < before, ~batches.c.brief)


def _with_old_rows(tx: ReadTransaction, before: datetime) -> list[str]:
    of_batches = select(batches.c.channel_uid).where(_old(before), or_(_UNNEEDED, _DETAILED))
    snapshot = exists().where(
        ledger_snapshots.c.channel_uid == ledgers.c.channel_uid,
        ledger_snapshots.c.at < before,
        ledger_snapshots.c.number < ledgers.c.number,
    )
    statement = union(of_batches, select(ledgers.c.channel_uid).where(snapshot))
    return list(tx.execute(statement.order_by("channel_uid").limit(_CHANNELS)).scalars())


def _delete_batches(tx: WriteTransaction, uid: str, before: datetime, *, limit: int) -> int:
    chosen = select(batches.c.id).where(batches.c.channel_uid == uid, _old(before), _UNNEEDED)
    return tx.execute(delete(batches).where(batches.c.id.in_(chosen.limit(limit)))).rowcount


def _shorten_batches(tx: WriteTransaction, uid: str, before: datetime, *, limit: int) -> int:
    chosen = select(batches.c.id).where(batches.c.channel_uid == uid, _old(before), _DETAILED)
    return tx.execute(
        update(batches)
        .where(batches.c.id.in_(chosen.limit(limit)))
        .values(begin={}, counts=None, partitions=None, brief=True)
    ).rowcount


def _delete_snapshots(
    tx: WriteTransaction, uid: str, *where: ColumnElement[bool], last: int, limit: int
) -> int:
    table = ledger_snapshots.c
    chosen = select(table.number).where(table.channel_uid == uid, table.number < last, *where)
    chosen = chosen.order_by(table.number).limit(limit)
    return tx.execute(
        delete(ledger_snapshots).where(table.channel_uid == uid, table.number.in_(chosen))
    ).rowcount


def _delete_batch_runs(tx: WriteTransaction, uid: str, *, limit: int) -> int:
    """Delete runs below `stable` of the oldest snapshot, and so of each that is kept."""
    oldest = store.oldest_snapshot(tx, uid)
    ends = None if oldest is None else store.snapshot(tx, uid, oldest[0])
    if ends is None:
        return 0
    table, deleted = batch_runs.c, 0
    for partition, stable in sorted(ends.stable.items()):
        of_partition = (table.channel_uid == uid, table.partition == partition)
        chosen = select(table.end_offset).where(*of_partition, table.end_offset <= stable)
        chosen = chosen.order_by(table.end_offset).limit(limit - deleted)
        deleted += tx.execute(
            delete(batch_runs).where(*of_partition, table.end_offset.in_(chosen))
        ).rowcount
    return deleted


def _delete_owners(tx: WriteTransaction, uid: str, *, limit: int) -> int:
    """Delete owners without any batch that another instance could open or repeat."""
    has_batch = exists().where(
        batches.c.channel_uid == batch_owners.c.channel_uid, batches.c.owner == batch_owners.c.name
    )
    where = (batch_owners.c.channel_uid == uid, batch_owners.c.ordinal.is_(None), ~has_batch)
    chosen = select(batch_owners.c.name).where(*where).limit(limit)
    return tx.execute(
        delete(batch_owners).where(
            batch_owners.c.channel_uid == uid, batch_owners.c.name.in_(chosen)
        )
    ).rowcount
