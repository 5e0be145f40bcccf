"""Channels to sample, and the positions of their readers."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, bindparam, exists, or_, select

from sluiceway_gateway.channels.model import READABLE
from sluiceway_gateway.channels.store import in_phases
from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.db.schema import channels, endpoints, positions
from sluiceway_gateway.endpoints.model import OPEN, Health, Mode, Role
from sluiceway_gateway.status.lag import ReaderProgress, Stored

_AT_ONCE = 500
_HERE = ~endpoints.c.superseded
_LIVING = (
    _HERE
    & endpoints.c.state.in_([str(each) for each in sorted(OPEN)])
    & (endpoints.c.health != str(Health.LOST))
)
# The leading replica asks all the time, so they are put together once.
_CHANNELS = select(
    channels.c.uid, channels.c.topic_name, channels.c.topic_id, channels.c.topic_partitions
).where(
    in_phases(READABLE),
    channels.c.topic_partitions.is_not(None),
)
_IN_USE = _CHANNELS.where(channels.c.uid.in_(select(endpoints.c.channel_uid).where(_LIVING)))
_THESE = _CHANNELS.where(channels.c.uid.in_(bindparam("uids", expanding=True)))
# Each is looked up by its index. A list of all uids would be searched from its beginning for each
# channel, as soon as PostgreSQL has too little memory to hash it.
_KNOWN = _CHANNELS.where(
    or_(
        exists().where(endpoints.c.channel_uid == channels.c.uid, _HERE),
        exists().where(positions.c.channel_uid == channels.c.uid),
    )
)
_ENDPOINTS = (
    select(
        *(endpoints.c.id, endpoints.c.channel_uid, endpoints.c.role, endpoints.c.group_name),
        *(endpoints.c.member_index, endpoints.c.size, endpoints.c.mode, endpoints.c.epoch),
        *(endpoints.c.state, endpoints.c.health, endpoints.c.reached, endpoints.c.counters),
        *(endpoints.c.share_index, endpoints.c.share_size),
    )
    .where(_HERE, endpoints.c.channel_uid.in_(bindparam("uids", expanding=True)))
    .order_by(endpoints.c.id)
)
_POSITIONS = select(
    *(positions.c.channel_uid, positions.c.group_name, positions.c.member_index),
    *(positions.c.partition, positions.c.next_offset, positions.c.topic_id),
).where(positions.c.channel_uid.in_(bindparam("uids", expanding=True)))
_OPEN = frozenset(str(each) for each in OPEN)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A channel to look at."""

    uid: str
    topic: str
    topic_id: str | None
    partitions: int


@dataclass(frozen=True, kw_only=True)
class ReaderSnapshot:
    """How far a channel's readers are."""

    readers: tuple[ReaderProgress, ...]
    stored: tuple[Stored, ...]
    counted: str
    """Tells two states of the endpoints and their counters apart."""


def in_use(tx: ReadTransaction) -> list[Watched]:
    """Return the channels at which somebody lives."""
    return _watched(tx, _IN_USE)


def these(tx: ReadTransaction, uids: Sequence[str]) -> list[Watched]:
    """Return those of these channels that are still there."""
    return [
        each
        for start in range(0, len(uids), _AT_ONCE)
        for each in _watched(tx, _THESE, uids[start : start + _AT_ONCE])
    ]


def known(tx: ReadTransaction) -> list[Watched]:
    """Return the channels at which somebody was, or that have positions."""
    return _watched(tx, _KNOWN)


def standings(tx: ReadTransaction, watched: Sequence[Watched]) -> dict[str, ReaderSnapshot]:
    """Return how far the readers of these channels are, by the channels' uids."""
    found: dict[str, ReaderSnapshot] = {}
    for start in range(0, len(watched), _AT_ONCE):
        chunk = watched[start : start + _AT_ONCE]
        readers: dict[str, list[ReaderProgress]] = {each.uid: [] for each in chunk}
        counters: dict[str, list[object]] = {each.uid: [] for each in chunk}
        stored: dict[str, list[Stored]] = {each.uid: [] for each in chunk}
        _add_endpoints(tx, readers, counters)
        _add_positions(tx, stored, {each.uid: each.topic_id for each in chunk})
        for each in chunk:
            text = json.dumps(counters[each.uid], sort_keys=True)
            found[each.uid] = ReaderSnapshot(
                readers=tuple(readers[each.uid]),
                stored=tuple(stored[each.uid]),
                counted=hashlib.sha256(text.encode()).hexdigest()[:16],
            )
    return found


def reading_of(row: Row[Any]) -> ReaderProgress:
    """Return what a reader's row says of its progress."""
    return ReaderProgress(
        group=row.group_name,
        index=row.member_index,
        size=row.size,
        mode=Mode(row.mode),
        epoch=row.epoch,
        lives=row.state in _OPEN and row.health != str(Health.LOST),
        reached={int(p): place[0] for p, place in (row.reached or {}).items()},
        share=None if row.share_size is None else (row.share_index, row.share_size),
    )


def _watched(
    tx: ReadTransaction, statement: Select[Any], uids: Sequence[str] = ()
) -> list[Watched]:
    return [
        Watched(
            uid=row.uid,
            topic=row.topic_name,
            topic_id=row.topic_id,
            partitions=row.topic_partitions,
        )
        for row in tx.execute(statement, {"uids": uids} if uids else None)
    ]


def _add_endpoints(
    tx: ReadTransaction, readers: dict[str, list[ReaderProgress]], counters: dict[str, list[object]]
) -> None:
    for row in tx.execute(_ENDPOINTS, {"uids": list(readers)}):
        counters[row.channel_uid].append([row.id, row.state, row.health, row.counters])
        if row.role == str(Role.READER):
            readers[row.channel_uid].append(reading_of(row))


def _add_positions(
    tx: ReadTransaction, stored: dict[str, list[Stored]], topics: dict[str, str | None]
) -> None:
    for row in tx.execute(_POSITIONS, {"uids": list(stored)}):
        # Positions in another topic say nothing about this one.
        if row.topic_id == topics[row.channel_uid]:
            stored[row.channel_uid].append(
                Stored(
                    group=row.group_name,
                    member=None if row.member_index < 0 else row.member_index,
                    partition=row.partition,
                    offset=row.next_offset,
                )
            )
