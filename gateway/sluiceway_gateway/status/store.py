"""The rows of a status, from one state of the database."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, func, null, or_, select

from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.store import Tag, channel_of, selection
from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.db.schema import channels, endpoint_groups, endpoints
from sluiceway_gateway.db.statements import CachedSelect, starts_with
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Health, Role, State
from sluiceway_gateway.endpoints.store import endpoint_of
from sluiceway_gateway.groups.model import Group
from sluiceway_gateway.groups.store import group_of
from sluiceway_gateway.status import sample_store
from sluiceway_gateway.status.lag import LagSummary, ReaderProgress
from sluiceway_gateway.status.reading_store import reading_of
from sluiceway_gateway.status.sample_store import KeptSample

#: A statement has only so many parameters.
_AT_ONCE = 500
# How far they are is shown as of the last sample, and need not be read.
_ENDPOINTS = (
    select(
        *(each for each in endpoints.c if each is not endpoints.c.reached), null().label("reached")
    )
    .where(~endpoints.c.superseded, endpoints.c.channel_uid.in_(bindparam("uid", expanding=True)))
    .order_by(endpoints.c.role, endpoints.c.group_name, endpoints.c.member_index)
)
#: Endpoints, of all channels, that are kept in memory as they were seen last.
_MOST_KEPT = 20_000


@dataclass(frozen=True, kw_only=True)
class StatusVersion:
    """A channel, what tells two states of its status apart, and when it was looked at last."""

    channel: Channel
    tag: Tag
    sampled_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class ReaderGroup:
    """A group of readers."""

    group: Group
    dynamic: bool


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader, and whose progress is its own; how far it is, the last sample tells."""

    endpoint: Endpoint
    reading: ReaderProgress


@dataclass(frozen=True, kw_only=True)
class Status:
    """All that is known of a channel."""

    head: StatusVersion
    last: KeptSample | None
    writers: tuple[Endpoint, ...]
    readers: tuple[Reader, ...]
    groups: tuple[ReaderGroup, ...]


@dataclass(frozen=True, kw_only=True)
class EndpointCounts:
    """How many of a channel's writers, or readers, are in which way there."""

    living: int = 0
    lost: int = 0
    failed: int = 0
    finished: int = 0


@dataclass(frozen=True, kw_only=True)
class ChannelSummary:
    """A channel in one line."""

    head: StatusVersion
    outline: LagSummary | None
    crews: Mapping[Role, EndpointCounts]


def head(tx: ReadTransaction, name: str) -> StatusVersion | None:
    """Return the channel of this name, without what the status shows of it."""
    row = tx.execute(selection().where(channels.c.name == name)).one_or_none()
    if row is None:
        return None
    return _head_of(row, sample_store.last_at(tx, row.uid))


def status(tx: ReadTransaction, name: str) -> Status | None:
    """Return all that is known of the channel of this name."""
    row = tx.execute(selection().where(channels.c.name == name)).one_or_none()
    if row is None:
        return None
    last = sample_store.last(tx, row.uid)
    standing = tx.look_up(_STANDING, [row.uid])
    groups = select(endpoint_groups).where(
        endpoint_groups.c.channel_uid == row.uid,
        endpoint_groups.c.role == str(Role.READER),
        endpoint_groups.c.name != ANONYMOUS,
    )
    return Status(
        head=_head_of(row, None if last is None else last.sample.at),
        last=last,
        writers=tuple(each for each in standing if isinstance(each, Endpoint)),
        readers=tuple(each for each in standing if isinstance(each, Reader)),
        groups=tuple(
            ReaderGroup(group=group_of(each), dynamic=each.dynamic)
            for each in tx.execute(groups.order_by(endpoint_groups.c.name))
        ),
    )


def page(
    tx: ReadTransaction, *, limit: int, after: str, prefixes: Collection[str]
) -> tuple[ChannelSummary, ...]:
    """Return up to `limit` channels by name, those after `after` that begin with a prefix."""
    statement = selection().where(
        channels.c.name > after, or_(False, *(starts_with(channels.c.name, p) for p in prefixes))
    )
    rows = tx.execute(statement.order_by(channels.c.name).limit(limit)).all()
    uids = [row.uid for row in rows]
    looks, crews = sample_store.outlines(tx, uids), _crews(tx, uids)
    lines = []
    for row in rows:
        sampled_at, outline = looks.get(row.uid, (None, None))
        lines.append(
            ChannelSummary(
                head=_head_of(row, sampled_at), outline=outline, crews=crews.get(row.uid, {})
            )
        )
    return tuple(lines)


def _standing_of(row: Any) -> Reader | Endpoint:
    endpoint = endpoint_of(row)
    if endpoint.place.role is not Role.READER:
        return endpoint
    return Reader(endpoint=endpoint, reading=reading_of(row))


_STANDING = CachedSelect(_ENDPOINTS, keys="uid", make=_standing_of, max_entries=_MOST_KEPT)


def _head_of(row: Row[Any], sampled_at: datetime | None) -> StatusVersion:
    return StatusVersion(
        channel=channel_of(row),
        tag=Tag(
            uid=row.uid,
            generation=row.generation,
            revision=row.revision,
            endpoints_revision=row.endpoints_revision,
            samples_revision=row.samples_revision,
        ),
        sampled_at=sampled_at,
    )


def _crews(tx: ReadTransaction, uids: Sequence[str]) -> dict[str, dict[Role, EndpointCounts]]:
    table = endpoints.c
    by = (table.channel_uid, table.role, table.state, table.health)
    statement = select(*by, func.count().label("number")).group_by(*by)
    found: dict[str, dict[Role, EndpointCounts]] = {}
    for start in range(0, len(uids), _AT_ONCE):
        here = table.channel_uid.in_(uids[start : start + _AT_ONCE])
        for row in tx.execute(statement.where(here, ~table.superseded)):
            crews = found.setdefault(row.channel_uid, {})
            crew = crews.get(Role(row.role), EndpointCounts())
            way = _way(State(row.state), Health(row.health))
            crews[Role(row.role)] = replace(crew, **{way: getattr(crew, way) + row.number})
    return found


def _way(state: State, health: Health) -> str:
    if state is State.CLOSED:
        return "finished"
    if state is State.ERROR:
        return "failed"
    return "lost" if health is Health.LOST else "living"
