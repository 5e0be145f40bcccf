"""Reconcile queue: due channels, and what was observed of them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import bindparam, delete, select

from sluiceway_gateway.channels.model import Channel, Phase, may_become
from sluiceway_gateway.channels.rows import (
    CHANGE,
    as_it_was,
    channel_of,
    in_phases,
    selection,
    values_of,
)
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels
from sluiceway_gateway.schemas import store as schemas_store

#: Columns of a channel that was just made or changed; it goes before all that wait for a check.
DUE_AT_ONCE: Mapping[str, Any] = {"due_at": datetime(1970, 1, 1, tzinfo=UTC), "refusals": 0}

# Run for each channel at each check, so they are put together once.
_DUE = (
    selection()
    .where(channels.c.due_at <= bindparam("now"))
    .order_by(channels.c.due_at, channels.c.uid)
    .limit(bindparam("at_most"))
)
_SET_FOR_LATER = (
    selection()
    .where(channels.c.due_at > bindparam("latest"))
    .order_by(channels.c.due_at.desc())
    .limit(bindparam("at_most"))
)
_ON_THE_WAY = _SET_FOR_LATER.where(in_phases([Phase.PROVISIONING, Phase.DELETING]))


@dataclass(frozen=True, kw_only=True)
class DueChannel:
    """A channel to compare with Kafka, and how many checks in a row were refused before."""

    channel: Channel
    refusals: int


def due(tx: ReadTransaction, *, now: datetime, limit: int) -> list[DueChannel]:
    """Return up to `limit` channels that are due, changed ones first, then the longest due."""
    rows = tx.execute(_DUE, {"now": now, "at_most": limit})
    return [DueChannel(channel=channel_of(row), refusals=row.refusals) for row in rows]


def misdated(
    tx: ReadTransaction, *, latest: datetime, latest_on_the_way: datetime, limit: int
) -> list[DueChannel]:
    """Return up to `limit` channels that are due later than anybody sets them for.

    The clock was ahead when they were: it was set back since. Those that are being made or deleted
    are set for sooner than others.
    """
    asked = {"latest": latest_on_the_way, "at_most": limit}
    rows = tx.execute(_ON_THE_WAY, asked).all()
    rows = rows or tx.execute(_SET_FOR_LATER, {"latest": latest, "at_most": limit}).all()
    return [DueChannel(channel=channel_of(row), refusals=row.refusals) for row in rows]


def record_observation(
    tx: WriteTransaction,
    seen: Channel,
    *,
    was: Channel,
    from_phases: Collection[Phase],
    due_at: datetime,
    refusals: int,
) -> Channel | None:
    """Write down what was seen of the channel `was`; None if it has changed since it was read.

    Of `seen` only the status counts (phase, observed generation, conditions, topic), and of an
    adopted channel the spec, which follows the topic. The revision goes up only if one is new.
    Raises ValueError for a step that the transition table does not have.
    """
    if not may_become(was.phase, seen.phase):
        raise ValueError(f"a channel that is {was.phase} cannot become {seen.phase}")
    if was.phase not in from_phases:
        return None
    seen = replace(
        was,
        phase=seen.phase,
        observed_generation=seen.observed_generation,
        conditions=seen.conditions,
        topic=seen.topic,
        spec=seen.spec if was.adopted else was.spec,
    )
    if seen != was:
        seen = replace(seen, revision=was.revision + 1)
    written = tx.execute(
        CHANGE, values_of(seen) | as_it_was(was) | {"due_at": due_at, "refusals": refusals}
    )
    return seen if written.rowcount == 1 else None


def remove(
    tx: WriteTransaction, uid: str, from_phases: Collection[Phase] = (Phase.DELETING,)
) -> bool:
    """Remove the row; False if it is gone or in another phase.

    Where its topic stays, the schemas of the records in it are kept.
    """
    schemas_store.keep_for_topic(tx, uid, phases=from_phases)
    removed = tx.execute(delete(channels).where(channels.c.uid == uid, in_phases(from_phases)))
    return removed.rowcount == 1


def exists(tx: ReadTransaction, uid: str) -> bool:
    """Tell whether the channel of this uid has a row, in whatever phase."""
    return tx.execute(select(channels.c.uid).where(channels.c.uid == uid)).first() is not None
