"""Repairs of halted ledgers, and the records that they gave up."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, select, update

from sluiceway_gateway.core.db.engine import ChangeKind, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import columns_of
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger.model import Ledger
from sluiceway_gateway.ledger.repairing import LostRecords, Repair
from sluiceway_gateway.ledger.store import keep_snapshots, require_held
from sluiceway_gateway.ledger.tables import ledger_partitions, ledger_repairs, ledgers

AFTER_ALL = 2**62
"""Above the numbers of all commits and repairs."""
# The only statement that clears `halted`.
_REPAIR = (
    update(ledgers)
    .where(
        ledgers.c.channel_uid == bindparam("uid"),
        ledgers.c.number == bindparam("was_number"),
        ledgers.c.halted.is_not(None),
    )
    .values(number=bindparam("new_number"), repaired=bindparam("new_number"), halted=None)
)
_RELEASE = (
    update(ledger_partitions)
    .where(ledger_partitions.c.channel_uid == bindparam("uid"))
    .values(stable=ledger_partitions.c.visible_end, lost_from=None, low_end=None)
)
_REPAIRS = (
    select(ledger_repairs)
    .where(
        ledger_repairs.c.channel_uid == bindparam("uid"),
        ledger_repairs.c.number < bindparam("before"),
    )
    .order_by(ledger_repairs.c.number.desc())
    .limit(bindparam("most"))
)


def save_repair(
    tx: WriteTransaction, repaired: Ledger, repair: Repair, *, was: Ledger, now: datetime
) -> None:
    """Store a repair, and the ledger after it. Raises ConcurrentChange unless `was` is halted."""
    values = {"uid": was.channel_uid, "was_number": was.number, "new_number": repaired.number}
    held = tx.execute(_REPAIR, values).rowcount == 1
    released = tx.execute(_RELEASE, {"uid": was.channel_uid}).rowcount
    require_held(held and released == len(was.visible_end), "ledger")
    tx.publish(ChangeKind.LEDGER, [was.channel_uid])
    keep_snapshots(tx, repaired, was=was, now=now)
    tx.execute(
        ledger_repairs.insert(),
        vars(repair)
        | {"channel_uid": was.channel_uid, "lost": [vars(records) for records in repair.lost]},
    )


def repairs(tx: ReadTransaction, uid: str, *, before: int, limit: int) -> Sequence[Repair]:
    """Return repairs with a number below `before`, newest first."""
    rows = tx.execute(_REPAIRS, {"uid": uid, "before": before, "most": limit})
    return [_repair_of(row) for row in rows]


def given_up(tx: ReadTransaction, uid: str) -> dict[int, list[Interval]]:
    """Return, by partition, the offsets whose records repairs have given up."""
    intervals: dict[int, list[Interval]] = {}
    statement = select(ledger_repairs.c.lost).where(ledger_repairs.c.channel_uid == uid)
    for lost in tx.execute(statement.order_by(ledger_repairs.c.number)).scalars():
        for records in lost:
            intervals.setdefault(records["partition"], []).append(
                Interval(records["first"], records["end"])
            )
    return intervals


def _repair_of(row: Row[Any]) -> Repair:
    lost = tuple(LostRecords(**records) for records in row.lost)
    return Repair(**columns_of(row, Repair) | {"lost": lost})
