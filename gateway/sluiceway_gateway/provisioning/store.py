"""Reconcile queue: channels that are due, and their observed status."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import bindparam, delete, update

from sluiceway_gateway.channels import schema_store
from sluiceway_gateway.channels.model import Channel, Phase, may_become
from sluiceway_gateway.channels.store import (
    channel_of,
    in_phases,
    name_of_topic,
    replace_row,
    selection,
)
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ChangeKind, ReadTransaction, WriteTransaction
from sluiceway_gateway.endpoints.change_store import rebalance_after_growth
from sluiceway_gateway.schemas.store import find_kept

_DUE = (
    selection()
    .where(channels.c.due_at <= bindparam("now"))
    .order_by(channels.c.due_at, channels.c.uid)
    .limit(bindparam("at_most"))
)
_LATE = (
    selection()
    .where(channels.c.due_at > bindparam("latest"))
    .order_by(channels.c.due_at.desc())
    .limit(bindparam("at_most"))
)
_LATE_IN_PROGRESS = _LATE.where(in_phases([Phase.PROVISIONING, Phase.DELETING]))


@dataclass(frozen=True, kw_only=True)
class DueChannel:
    """A channel to compare with Kafka, and the number of consecutive refusals before."""

    channel: Channel
    refusals: int


def due(tx: ReadTransaction, *, now: datetime, limit: int) -> list[DueChannel]:
    """Return up to `limit` due channels: changed ones first, then the longest overdue."""
    rows = tx.execute(_DUE, {"now": now, "at_most": limit})
    return [DueChannel(channel=channel_of(row), refusals=row.refusals) for row in rows]


def misdated(
    tx: ReadTransaction, *, latest: datetime, latest_in_progress: datetime, limit: int
) -> list[DueChannel]:
    """Return up to `limit` channels with due times beyond the longest pause.

    They were set before the clock was set back. Channels that are being created or deleted have
    shorter pauses than others.
    """
    rows = tx.execute(_LATE_IN_PROGRESS, {"latest": latest_in_progress, "at_most": limit}).all()
    rows = rows or tx.execute(_LATE, {"latest": latest, "at_most": limit}).all()
    return [DueChannel(channel=channel_of(row), refusals=row.refusals) for row in rows]


def record_observation(
    tx: WriteTransaction,
    seen: Channel,
    *,
    was: Channel,
    now: datetime,
    due_at: datetime,
    refusals: int,
) -> Channel | None:
    """Save the status of `seen`; return the saved channel, None if `was` is outdated.

    The status is phase, observed generation, conditions and topic, and for an adopted channel the
    spec, which follows the topic. The revision increases only if something changed. If the topic
    has more partitions than before, the dynamic groups get a new generation. Raises ValueError for
    a transition that the table does not allow.
    """
    if not may_become(was.phase, seen.phase):
        raise ValueError(f"a channel that is {was.phase} cannot become {seen.phase}")
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
    if not replace_row(tx, seen, was=was, due_at=due_at, refusals=refusals):
        return None
    if was.topic.partitions is not None and (seen.topic.partitions or 0) > was.topic.partitions:
        rebalance_after_growth(tx, seen.uid, now=now)
    return seen


def put_off(tx: WriteTransaction, uid: str, *, until: datetime) -> None:
    """Let the channel be due at this time."""
    tx.execute(update(channels).where(channels.c.uid == uid).values(due_at=until))


def remove(
    tx: WriteTransaction, uid: str, from_phases: Collection[Phase] = (Phase.DELETING,)
) -> bool:
    """Delete the row; return False if it is gone or in another phase.

    If the topic stays, the schemas of its records are kept.
    """
    schema_store.keep_for_topic(tx, uid, phases=from_phases)
    tx.publish(ChangeKind.CHANNEL, [uid])
    removed = tx.execute(delete(channels).where(channels.c.uid == uid, in_phases(from_phases)))
    return removed.rowcount == 1


def is_used(tx: ReadTransaction, topic: str, topic_id: str) -> bool:
    """Return whether a channel has this topic, or was deleted without it."""
    return name_of_topic(tx, topic) is not None or find_kept(tx, topic_id) is not None
