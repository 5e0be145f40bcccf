"""SQL of the sampler: the channels to sample, and the positions of their readers."""

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
from sluiceway_gateway.status.progress import CommittedOffset, ReaderProgress

_CHUNK = 500
_CURRENT = ~endpoints.c.superseded
_LIVING = (
    _CURRENT
    & endpoints.c.state.in_([str(each) for each in sorted(OPEN)])
    & (endpoints.c.health != str(Health.LOST))
)
# Built once, because the leading replica executes them all the time.
_CHANNELS = select(
    channels.c.uid, channels.c.topic_name, channels.c.topic_id, channels.c.topic_partitions
).where(
    in_phases(READABLE),
    channels.c.topic_partitions.is_not(None),
)
_IN_USE = _CHANNELS.where(channels.c.uid.in_(select(endpoints.c.channel_uid).where(_LIVING)))
_BY_UID = _CHANNELS.where(channels.c.uid.in_(bindparam("uids", expanding=True)))
# EXISTS looks every channel up by an index. With IN, PostgreSQL would scan the list of all uids for
# each channel as soon as it has too little memory to hash the list.
_WITH_READERS = _CHANNELS.where(
    or_(
        exists().where(endpoints.c.channel_uid == channels.c.uid, _CURRENT),
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
    .where(_CURRENT, endpoints.c.channel_uid.in_(bindparam("uids", expanding=True)))
    .order_by(endpoints.c.id)
)
_POSITIONS = select(
    *(positions.c.channel_uid, positions.c.group_name, positions.c.member_index),
    *(positions.c.partition, positions.c.next_offset, positions.c.topic_id),
).where(positions.c.channel_uid.in_(bindparam("uids", expanding=True)))
_OPEN = frozenset(str(each) for each in OPEN)


@dataclass(frozen=True, kw_only=True)
class SampledChannel:
    """A channel to sample."""

    uid: str
    topic: str
    topic_id: str | None
    partitions: int


@dataclass(frozen=True, kw_only=True)
class ReaderSnapshot:
    """The readers and committed positions of a channel."""

    readers: tuple[ReaderProgress, ...]
    committed: tuple[CommittedOffset, ...]
    endpoints_digest: str
    """Differs between two states of the endpoints and their counters."""


def channels_in_use(tx: ReadTransaction) -> list[SampledChannel]:
    """Return the channels with living endpoints."""
    return _channels(tx, _IN_USE)


def channels_by_uid(tx: ReadTransaction, uids: Sequence[str]) -> list[SampledChannel]:
    """Return the channels of these uids that still exist."""
    return [
        each
        for start in range(0, len(uids), _CHUNK)
        for each in _channels(tx, _BY_UID, uids[start : start + _CHUNK])
    ]


def channels_with_readers(tx: ReadTransaction) -> list[SampledChannel]:
    """Return the channels with endpoints, living or not, or with positions."""
    return _channels(tx, _WITH_READERS)


def reader_snapshots(
    tx: ReadTransaction, sampled: Sequence[SampledChannel]
) -> dict[str, ReaderSnapshot]:
    """Return the readers and positions of these channels, by uid."""
    found: dict[str, ReaderSnapshot] = {}
    for start in range(0, len(sampled), _CHUNK):
        chunk = sampled[start : start + _CHUNK]
        readers: dict[str, list[ReaderProgress]] = {each.uid: [] for each in chunk}
        counters: dict[str, list[object]] = {each.uid: [] for each in chunk}
        committed: dict[str, list[CommittedOffset]] = {each.uid: [] for each in chunk}
        _add_endpoints(tx, readers, counters)
        _add_positions(tx, committed, {each.uid: each.topic_id for each in chunk})
        for each in chunk:
            text = json.dumps(counters[each.uid], sort_keys=True)
            found[each.uid] = ReaderSnapshot(
                readers=tuple(readers[each.uid]),
                committed=tuple(committed[each.uid]),
                endpoints_digest=hashlib.sha256(text.encode()).hexdigest()[:16],
            )
    return found


def reader_progress_of(row: Row[Any]) -> ReaderProgress:
    """Return the progress of a reader's row."""
    return ReaderProgress(
        group=row.group_name,
        index=row.member_index,
        size=row.size,
        mode=Mode(row.mode),
        epoch=row.epoch,
        alive=row.state in _OPEN and row.health != str(Health.LOST),
        positions={int(p): position[0] for p, position in (row.reached or {}).items()},
        share=None if row.share_size is None else (row.share_index, row.share_size),
    )


def _channels(
    tx: ReadTransaction, statement: Select[Any], uids: Sequence[str] = ()
) -> list[SampledChannel]:
    return [
        SampledChannel(
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
            readers[row.channel_uid].append(reader_progress_of(row))


def _add_positions(
    tx: ReadTransaction,
    committed: dict[str, list[CommittedOffset]],
    topics: dict[str, str | None],
) -> None:
    for row in tx.execute(_POSITIONS, {"uids": list(committed)}):
        # Positions in another topic have no meaning in this one.
        if row.topic_id == topics[row.channel_uid]:
            committed[row.channel_uid].append(
                CommittedOffset(
                    group=row.group_name,
                    member=None if row.member_index < 0 else row.member_index,
                    partition=row.partition,
                    offset=row.next_offset,
                )
            )
