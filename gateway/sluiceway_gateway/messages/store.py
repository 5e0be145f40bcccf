"""Visible runs next to an offset, in either direction."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row, bindparam, select

from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.db.schema import visible_runs
from sluiceway_gateway.ledger.model import Interval

_BETWEEN = select(visible_runs.c.first_offset, visible_runs.c.end_offset).where(
    visible_runs.c.channel_uid == bindparam("uid"),
    visible_runs.c.partition == bindparam("of_partition"),
    visible_runs.c.end_offset > bindparam("first"),
    visible_runs.c.first_offset < bindparam("end"),
)
_ASCENDING = _BETWEEN.order_by(visible_runs.c.end_offset).limit(bindparam("most"))
_DESCENDING = _BETWEEN.order_by(visible_runs.c.end_offset.desc()).limit(bindparam("most"))


def runs_between(
    tx: ReadTransaction,
    uid: str,
    bounds: Mapping[int, Interval],
    *,
    limit: int,
    newest: bool = False,
) -> dict[int, list[Interval]]:
    """Return the runs that have offsets within the bounds, by partition, the lowest first.

    Of each partition, at most `limit`: the first ones, or the last if `newest`.
    """
    found: dict[int, list[Interval]] = {}
    for partition, (first, end) in bounds.items():
        values = {"uid": uid, "of_partition": partition, "first": first, "end": end, "most": limit}
        rows = tx.execute(_DESCENDING if newest else _ASCENDING, values).all()
        found[partition] = [_interval(row) for row in (reversed(rows) if newest else rows)]
    return found


def _interval(row: Row[Any]) -> Interval:
    return Interval(row.first_offset, row.end_offset)
