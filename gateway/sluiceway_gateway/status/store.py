"""SQL of statuses."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, func, null, or_, select

from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.store import Tag, channel_of, selection, tag_of
from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.db.schema import channels, endpoint_groups, endpoints
from sluiceway_gateway.db.statements import CachedSelect, chunks, starts_with
from sluiceway_gateway.endpoints.model import ANONYMOUS, Endpoint, Health, Role, State
from sluiceway_gateway.endpoints.store import endpoint_of
from sluiceway_gateway.groups.model import Group
from sluiceway_gateway.groups.store import group_of
from sluiceway_gateway.status import sample_store
from sluiceway_gateway.status.lag import LagSummary
from sluiceway_gateway.status.progress import ReaderProgress
from sluiceway_gateway.status.sample_store import StoredSample, reader_progress_of

# Without `reached`: positions are shown as of the last sample.
_ENDPOINTS = (
    select(
        *(each for each in endpoints.c if each is not endpoints.c.reached), null().label("reached")
    )
    .where(~endpoints.c.superseded, endpoints.c.channel_uid.in_(bindparam("uid", expanding=True)))
    .order_by(endpoints.c.role, endpoints.c.group_name, endpoints.c.member_index)
)
#: Endpoints of all channels that are cached.
_MAX_CACHED = 20_000


@dataclass(frozen=True, kw_only=True)
class StatusVersion:
    """A channel, the tag of its status, and the time of its last sample."""

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
    """A reader and its assignment; the last sample has its positions."""

    endpoint: Endpoint
    progress: ReaderProgress


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    """The status of a channel."""

    version: StatusVersion
    last: StoredSample | None
    writers: tuple[Endpoint, ...]
    readers: tuple[Reader, ...]
    groups: tuple[ReaderGroup, ...]


@dataclass(frozen=True, kw_only=True)
class EndpointCounts:
    """Numbers of a channel's writers or readers."""

    living: int
    lost: int
    failed: int
    finished: int


@dataclass(frozen=True, kw_only=True)
class ChannelSummary:
    """A channel in the list of statuses."""

    version: StatusVersion
    lag: LagSummary | None
    endpoints: Mapping[Role, EndpointCounts]


def version(tx: ReadTransaction, name: str) -> StatusVersion | None:
    """Return the version of a channel's status."""
    row = tx.execute(selection().where(channels.c.name == name)).one_or_none()
    if row is None:
        return None
    return _version_of(row, sample_store.last_at(tx, row.uid))


def status(tx: ReadTransaction, name: str) -> StatusReport | None:
    """Return a channel's status."""
    row = tx.execute(selection().where(channels.c.name == name)).one_or_none()
    if row is None:
        return None
    last = sample_store.last(tx, row.uid)
    attached = tx.look_up(_CACHED_ENDPOINTS, [row.uid])
    groups = select(endpoint_groups).where(
        endpoint_groups.c.channel_uid == row.uid,
        endpoint_groups.c.role == str(Role.READER),
        endpoint_groups.c.name != ANONYMOUS,
    )
    return StatusReport(
        version=_version_of(row, None if last is None else last.sample.at),
        last=last,
        writers=tuple(each for each in attached if isinstance(each, Endpoint)),
        readers=tuple(each for each in attached if isinstance(each, Reader)),
        groups=tuple(
            ReaderGroup(group=group_of(each), dynamic=each.dynamic)
            for each in tx.execute(groups.order_by(endpoint_groups.c.name))
        ),
    )


def page(
    tx: ReadTransaction, *, limit: int, after: str, prefixes: Collection[str]
) -> tuple[ChannelSummary, ...]:
    """Return up to `limit` channels by name, after `after`, with one of the prefixes."""
    statement = selection().where(
        channels.c.name > after, or_(False, *(starts_with(channels.c.name, p) for p in prefixes))
    )
    rows = tx.execute(statement.order_by(channels.c.name).limit(limit)).all()
    uids = [row.uid for row in rows]
    samples, counts = sample_store.summaries(tx, uids), _endpoint_counts(tx, uids)
    found = []
    for row in rows:
        sampled_at, lag = samples.get(row.uid, (None, None))
        found.append(
            ChannelSummary(version=_version_of(row, sampled_at), lag=lag, endpoints=counts[row.uid])
        )
    return tuple(found)


def _endpoint_of(row: Any) -> Reader | Endpoint:
    endpoint = endpoint_of(row)
    if endpoint.place.role is not Role.READER:
        return endpoint
    return Reader(endpoint=endpoint, progress=reader_progress_of(row))


_CACHED_ENDPOINTS = CachedSelect(_ENDPOINTS, keys="uid", make=_endpoint_of, max_entries=_MAX_CACHED)


def _version_of(row: Row[Any], sampled_at: datetime | None) -> StatusVersion:
    return StatusVersion(channel=channel_of(row), tag=tag_of(row), sampled_at=sampled_at)


def _endpoint_counts(
    tx: ReadTransaction, uids: Sequence[str]
) -> dict[str, dict[Role, EndpointCounts]]:
    table = endpoints.c
    by = (table.channel_uid, table.role, table.state, table.health)
    statement = select(*by, func.count().label("number")).group_by(*by)
    numbers: Counter[tuple[str, str, str]] = Counter()
    for chunk in chunks(uids):
        here = table.channel_uid.in_(chunk)
        for row in tx.execute(statement.where(here, ~table.superseded)):
            numbers[row.channel_uid, row.role, _kind(row.state, row.health)] += row.number
    return {
        uid: {
            role: EndpointCounts(
                **{each.name: numbers[uid, role, each.name] for each in fields(EndpointCounts)}
            )
            for role in Role
        }
        for uid in uids
    }


def _kind(state: str, health: str) -> str:
    if state == State.CLOSED:
        return "finished"
    if state == State.ERROR:
        return "failed"
    return "lost" if health == Health.LOST else "living"
