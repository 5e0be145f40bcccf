"""Storage of the lag history: for each resolution of a channel, a ring of slots.

A later interval takes the row of an expired one, so a channel has a bounded number of rows and
nothing needs to be deleted. Rows go with their channel.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import bindparam, select

from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import upsert
from sluiceway_gateway.status.lag_history.model import (
    FINEST,
    RESOLUTIONS,
    GroupPoint,
    HistoryPoint,
    Resolution,
    merged,
)
from sluiceway_gateway.status.tables import lag_history


@dataclass(frozen=True, kw_only=True)
class PointWrite:
    """A point of the finest resolution to write."""

    channel_uid: str
    point: HistoryPoint
    previous_s: int | None
    """The start of the last interval that the writer wrote; None if it is unknown."""


_PUT = upsert(
    lag_history,
    ("channel_uid", "step_s", "slot"),
    # Of two replicas that both believe that they lead, the first one's point stays.
    where=lambda new: new.at_s != lag_history.c.at_s,
)
_IN_SLOTS = select(lag_history).where(
    lag_history.c.channel_uid.in_(bindparam("uids", expanding=True)),
    lag_history.c.step_s == bindparam("step"),
    lag_history.c.slot.in_(bindparam("slots", expanding=True)),
    lag_history.c.at_s >= bindparam("since"),
    lag_history.c.at_s < bindparam("until"),
)
_OF_CHANNEL = (
    select(lag_history)
    .where(
        lag_history.c.channel_uid == bindparam("uid"),
        lag_history.c.step_s <= bindparam("step"),
        lag_history.c.at_s >= bindparam("since"),
        lag_history.c.at_s <= bindparam("until"),
    )
    .order_by(lag_history.c.at_s)
)


def write(tx: WriteTransaction, writes: Sequence[PointWrite]) -> None:
    """Write points of existing channels, and merge the intervals that have ended with them."""
    _write(tx, FINEST, [(point_write.channel_uid, point_write.point) for point_write in writes])
    for finer, coarser in pairwise(RESOLUTIONS):
        ended: dict[tuple[int, int], list[str]] = defaultdict(list)
        for point_write in writes:
            until_s = coarser.start(point_write.point.at_s)
            # After a start, also merge the points of a replica that led before.
            since_s = until_s - finer.kept_s
            if point_write.previous_s is not None:
                since_s = coarser.start(max(point_write.previous_s, since_s))
            if since_s < until_s:
                ended[since_s, until_s].append(point_write.channel_uid)
        for (since_s, until_s), uids in ended.items():
            by_uid = _in_slots(tx, uids, finer, since_s=since_s, until_s=until_s)
            _write(
                tx,
                coarser,
                [(uid, point) for uid in by_uid for point in merged(by_uid[uid], coarser)],
            )


def points(
    tx: ReadTransaction, channel_uid: str, resolution: Resolution, *, since_s: int, until_s: int
) -> dict[int, list[HistoryPoint]]:
    """Return the points of a channel by step, of this resolution and the finer ones.

    Their intervals start between `since_s` and `until_s`, both included.
    """
    keys = {"uid": channel_uid, "step": resolution.step_s, "since": since_s, "until": until_s}
    by_step: dict[int, list[HistoryPoint]] = defaultdict(list)
    for row in tx.execute(_OF_CHANNEL, keys):
        by_step[row.step_s].append(_point_of(row))
    return by_step


def _in_slots(
    tx: ReadTransaction, uids: Sequence[str], resolution: Resolution, *, since_s: int, until_s: int
) -> dict[str, list[HistoryPoint]]:
    starts = range(resolution.start(since_s), until_s, resolution.step_s)
    keys = {
        "step": resolution.step_s,
        "slots": sorted({resolution.slot(start) for start in starts}),
        "since": since_s,
        "until": until_s,
    }
    by_uid: dict[str, list[HistoryPoint]] = defaultdict(list)
    for row in tx.in_parts(_IN_SLOTS, keys, uids=uids):
        by_uid[row.channel_uid].append(_point_of(row))
    return by_uid


def _write(
    tx: WriteTransaction, resolution: Resolution, written: Sequence[tuple[str, HistoryPoint]]
) -> None:
    rows = [
        {
            "channel_uid": uid,
            "step_s": resolution.step_s,
            "slot": resolution.slot(point.at_s),
            "at_s": point.at_s,
            "document": _document_of(point),
        }
        for uid, point in written
    ]
    if rows:
        tx.execute(_PUT[tx.dialect], rows)


_OF_GROUP = ("lag_messages", "lag_seconds", "lag_seconds_at_least", "read_rate")


def _document_of(point: HistoryPoint) -> dict[str, Any]:
    # Lists, because a channel has hundreds of these rows.
    return {
        "write_rate": point.write_rate,
        "groups": {
            name: [getattr(group_point, field) for field in _OF_GROUP]
            for name, group_point in point.groups.items()
        },
    }


def _point_of(row: Any) -> HistoryPoint:
    groups = {
        name: GroupPoint(**dict(zip(_OF_GROUP, values, strict=True)))
        for name, values in row.document["groups"].items()
    }
    return HistoryPoint(at_s=row.at_s, write_rate=row.document["write_rate"], groups=groups)
