"""SQL of statuses, of the ledgers in samples, and of the metrics' overview."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Row,
    bindparam,
    case,
    exists,
    func,
    null,
    or_,
    select,
)

from sluiceway_gateway.channels.change import status_etag
from sluiceway_gateway.channels.model import READABLE, Channel
from sluiceway_gateway.channels.store import (
    Tag,
    channel_of,
    count_by_phase,
    in_phases,
    selection,
    tag_of,
)
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ReadTransaction
from sluiceway_gateway.core.db.statements import CachedSelect, starts_with
from sluiceway_gateway.endpoints.groups.model import Group
from sluiceway_gateway.endpoints.groups.store import group_of
from sluiceway_gateway.endpoints.model import (
    ANONYMOUS,
    Endpoint,
    Health,
    Place,
    Role,
    has_failed,
    outcome,
)
from sluiceway_gateway.endpoints.session_store import beats_of_sessions, latest_beats
from sluiceway_gateway.endpoints.store import HAS_FAILED, endpoint_of
from sluiceway_gateway.endpoints.tables import UNCLOSED, endpoint_groups, endpoints, positions
from sluiceway_gateway.ledger import batch_store
from sluiceway_gateway.ledger import store as ledgers_store
from sluiceway_gateway.ledger.model import Batch, Ledger
from sluiceway_gateway.ledger.tables import visible_runs
from sluiceway_gateway.status import sample_store
from sluiceway_gateway.status.lag import (
    FAILED,
    ChannelOverview,
    GroupOverview,
    GroupSummary,
    LagSummary,
    Overview,
    summarize_groups,
)
from sluiceway_gateway.status.problems import (
    FAILURE_AGE,
    MAX_PROBLEMS,
    Coverage,
    CurrentProblem,
    EndpointState,
    Failures,
    current_problems,
    ranges_of,
)
from sluiceway_gateway.status.reader_progress import ReaderProgress
from sluiceway_gateway.status.sample_store import (
    StoredSample,
    group_summaries_of,
    ledger_of,
    reader_progress_of,
)
from sluiceway_gateway.status.tables import samples

_PLACE = (endpoints.c.role, endpoints.c.group_name, endpoints.c.member_index)
# Without `reached`: positions come from the last sample.
_ENDPOINTS = (
    select(
        *(column for column in endpoints.c if column is not endpoints.c.reached),
        null().label("reached"),
    )
    .where(~endpoints.c.superseded, endpoints.c.channel_uid.in_(bindparam("uid", expanding=True)))
    .order_by(*_PLACE)
)
_NAMED = selection().where(channels.c.name.in_(bindparam("names", expanding=True)))
_UIDS: BindParameter[Any] = bindparam("uids", expanding=True)
#: Endpoints of all channels that are cached.
_MAX_CACHED = 20_000


@dataclass(frozen=True, kw_only=True)
class StatusVersion:
    """A channel, the tag of its status, and the time of its last sample."""

    channel: Channel
    tag: Tag
    sampled_at: datetime | None

    @property
    def etag(self) -> str:
        """The weak tag, which a later sample alone does not change."""
        return f"W/{status_etag(**vars(self.tag))}"


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
    groups: tuple[Group, ...]
    heartbeats: Mapping[str, datetime]
    """Times of the last heartbeats, by session."""
    failures: Failures | None

    @property
    def problems(self) -> tuple[CurrentProblem, ...]:
        """Current problems of the channel."""
        attached = (*self.writers, *(reader.endpoint for reader in self.readers))
        return current_problems(
            self.version.channel,
            coverage=None if self.last is None else Coverage.of(self.last.sample.starts),
            groups={} if self.last is None else summarize_groups(self.last.lags),
            out_of_range={} if self.last is None else self.last.out_of_range,
            unread={} if self.last is None else self.last.unread,
            ledger=None if self.last is None else self.last.sample.ledger,
            # In the order of the list, where fewer are read.
            endpoints=sorted(attached, key=attrgetter("place.role", "place.group", "place.index")),
            failures=self.failures,
        )


@dataclass(frozen=True, kw_only=True)
class EndpointCounts:
    """Numbers of a channel's writers or readers; those of `has_failed` for a day."""

    live: int
    lost: int
    failed: int
    finished: int


@dataclass(frozen=True, kw_only=True)
class ChannelSummary:
    """A channel in the list of statuses."""

    version: StatusVersion
    lag: LagSummary | None
    read_rate: float | None
    """Messages per second, of all groups."""
    endpoints: Mapping[Role, EndpointCounts]
    problems: tuple[CurrentProblem, ...]
    last_heartbeat_at: datetime | None
    """Of all its endpoints that have a place."""


def version(tx: ReadTransaction, name: str) -> StatusVersion | None:
    """Return the version of a channel's status."""
    row = tx.execute(selection().where(channels.c.name == name)).one_or_none()
    if row is None:
        return None
    return _version_of(row, sample_store.last_at(tx, row.uid))


def status(tx: ReadTransaction, name: str, *, now: datetime) -> StatusReport | None:
    """Return a channel's status."""
    row = tx.execute(selection().where(channels.c.name == name)).one_or_none()
    if row is None:
        return None
    last = sample_store.last(tx, row.uid)
    attached = tx.look_up(_CACHED_ENDPOINTS, [row.uid])
    all_endpoints = [entry.endpoint if isinstance(entry, Reader) else entry for entry in attached]
    groups = select(endpoint_groups).where(
        endpoint_groups.c.channel_uid == row.uid,
        endpoint_groups.c.role == Role.READER,
        endpoint_groups.c.name != ANONYMOUS,
    )
    return StatusReport(
        version=_version_of(row, None if last is None else last.sample.at),
        last=last,
        writers=tuple(endpoint for endpoint in attached if isinstance(endpoint, Endpoint)),
        readers=tuple(reader for reader in attached if isinstance(reader, Reader)),
        groups=tuple(
            group_of(group_row) for group_row in tx.execute(groups.order_by(endpoint_groups.c.name))
        ),
        heartbeats=beats_of_sessions(tx, {endpoint.session for endpoint in all_endpoints}),
        failures=Failures.of(all_endpoints, since=now - FAILURE_AGE),
    )


def page(
    tx: ReadTransaction, *, limit: int, after: str, prefixes: Collection[str], now: datetime
) -> tuple[ChannelSummary, ...]:
    """Return up to `limit` channels by name, after `after`, with one of the prefixes."""
    statement = selection().where(channels.c.name > after, starts_with(channels.c.name, prefixes))
    return _summaries(tx, tx.execute(statement.order_by(channels.c.name).limit(limit)).all(), now)


def summaries(
    tx: ReadTransaction, names: Sequence[str], *, now: datetime
) -> tuple[ChannelSummary, ...]:
    """Return the existing channels of these names."""
    return _summaries(tx, list(tx.in_parts(_NAMED, names=names)), now)


def _summaries(
    tx: ReadTransaction, rows: Sequence[Row[Any]], now: datetime
) -> tuple[ChannelSummary, ...]:
    uids = [row.uid for row in rows]
    since = now - FAILURE_AGE
    samples, counts = sample_store.summaries(tx, uids), _endpoint_counts(tx, uids, since)
    troubled, failures = _troubled_endpoints(tx, uids, since)
    heartbeats = latest_beats(tx, uids)
    channel_summaries = []
    for row in rows:
        last = samples.get(row.uid)
        groups = {} if last is None else last.groups
        rates = [group.read_rate for group in groups.values() if group.read_rate is not None]
        version_ = _version_of(row, None if last is None else last.at)
        channel_summaries.append(
            ChannelSummary(
                version=version_,
                lag=None if last is None else last.lag,
                read_rate=sum(rates) if rates else None,
                endpoints=counts[row.uid],
                problems=current_problems(
                    version_.channel,
                    coverage=None if last is None else last.coverage,
                    groups=groups,
                    out_of_range={} if last is None else last.out_of_range,
                    unread={} if last is None else last.unread,
                    ledger=None if last is None else last.ledger,
                    endpoints=troubled[row.uid],
                    failures=failures.get(row.uid),
                ),
                last_heartbeat_at=heartbeats.get(row.uid),
            )
        )
    return tuple(channel_summaries)


def _troubled_endpoints(
    tx: ReadTransaction, uids: Sequence[str], since: datetime
) -> tuple[Mapping[str, list[EndpointState]], Mapping[str, Failures]]:
    """Return endpoints that miss heartbeats, one more than are listed, and failures, by channel."""
    table = endpoints.c
    partition = (table.channel_uid, HAS_FAILED)
    order = (case((table.health == Health.SUSPECT, 1), else_=0), *_PLACE)
    newest = case((HAS_FAILED, table.changed_at)).desc()
    rank = func.row_number().over(partition_by=partition, order_by=(newest, *order)).label("rank")
    number = func.count().over(partition_by=partition).label("number")
    columns = (table.id, table.channel_uid, table.state, table.health, table.changed_at)
    ranked = (
        select(*columns, *_PLACE, table.cause, HAS_FAILED.label("failed"), rank, number)
        .where(
            *(table.channel_uid.in_(_UIDS), UNCLOSED),
            case(
                (HAS_FAILED, table.changed_at > bindparam("since", type_=table.changed_at.type)),
                else_=table.health != Health.HEALTHY,
            ),
        )
        .subquery()
    )
    most = case((ranked.c.failed, 1), else_=MAX_PROBLEMS + 1)
    worst_ones = select(ranked).where(ranked.c.rank <= most).order_by(ranked.c.rank)
    troubled: dict[str, list[EndpointState]] = defaultdict(list)
    failures: dict[str, Failures] = {}
    for row in tx.in_parts(worst_ones, {"since": since}, uids=uids):
        endpoint = EndpointState(
            id=row.id,
            place=Place(role=row.role, group=row.group_name, index=row.member_index),
            state=row.state,
            health=row.health,
            changed_at=row.changed_at,
            cause=row.cause,
        )
        if row.failed:
            failures[row.channel_uid] = Failures(latest=endpoint, count=row.number)
        else:
            troubled[row.channel_uid].append(endpoint)
    return troubled, failures


def _endpoint_of(row: Any) -> Reader | Endpoint:
    endpoint = endpoint_of(row)
    if endpoint.place.role is not Role.READER:
        return endpoint
    return Reader(endpoint=endpoint, progress=reader_progress_of(row))


_CACHED_ENDPOINTS = CachedSelect(_ENDPOINTS, keys="uid", make=_endpoint_of, max_entries=_MAX_CACHED)


def _version_of(row: Row[Any], sampled_at: datetime | None) -> StatusVersion:
    return StatusVersion(channel=channel_of(row), tag=tag_of(row), sampled_at=sampled_at)


def _counted(since: datetime) -> ColumnElement[bool]:
    """Return the condition that an endpoint counts: a failed one if that is recent."""
    return or_(~HAS_FAILED, endpoints.c.changed_at > since)


def _endpoint_counts(
    tx: ReadTransaction, uids: Sequence[str], since: datetime
) -> dict[str, dict[Role, EndpointCounts]]:
    table = endpoints.c
    by = (table.channel_uid, table.role, table.state, table.health)
    counted = select(*by, func.count().label("number")).group_by(*by)
    statement = counted.where(table.channel_uid.in_(_UIDS), ~table.superseded, _counted(since))
    numbers: Counter[tuple[str, str, str]] = Counter()
    for row in tx.in_parts(statement, uids=uids):
        numbers[row.channel_uid, row.role, outcome(row.state, row.health)] += row.number
    return {
        uid: {
            role: EndpointCounts(
                **{field.name: numbers[uid, role, field.name] for field in fields(EndpointCounts)}
            )
            for role in Role
        }
        for uid in uids
    }


def overview(
    tx: ReadTransaction, *, prefixes: Collection[str], max_groups: int, now: datetime
) -> Overview:
    """Return the channels with one of the prefixes that have endpoints or positions.

    At most `max_groups` groups in total; a channel without groups counts as one.
    """
    # The sampler samples only these, so figures of other channels would be outdated.
    in_use = (
        select(channels.c.uid, channels.c.name, func.count().over().label("total"))
        .where(
            in_phases(READABLE),
            starts_with(channels.c.name, prefixes),
            or_(
                exists().where(endpoints.c.channel_uid == channels.c.uid, ~endpoints.c.superseded),
                exists().where(positions.c.channel_uid == channels.c.uid),
            ),
        )
        .order_by(channels.c.name)
        .limit(max_groups)
        .subquery()
    )
    older = samples.alias()
    last = (
        select(func.max(older.c.number))
        .where(older.c.channel_uid == in_use.c.uid)
        .correlate(in_use)
        .scalar_subquery()
    )
    rows = tx.execute(
        select(
            *(in_use.c.uid, in_use.c.name, in_use.c.total, samples.c.at),
            samples.c.document["groups"].label("groups"),
            samples.c.document["ledger"].label("ledger"),
            samples.c.document["out_of_range"].label("out_of_range"),
            samples.c.document["summary"]["write_rate"].label("write_rate"),
        )
        .select_from(in_use)
        .outerjoin(samples, (samples.c.channel_uid == in_use.c.uid) & (samples.c.number == last))
        .order_by(in_use.c.name)
    ).all()
    members = _members(tx, [row.uid for row in rows], now - FAILURE_AGE)
    overviews: list[ChannelOverview] = []
    left, complete = max_groups, 0
    for row in rows:
        ranges = {name: counts.partitions for name, counts in ranges_of(row.out_of_range).items()}
        groups = _groups(members[row.uid], group_summaries_of(row.groups or {}), ranges)
        overviews.append(
            ChannelOverview(
                name=row.name,
                sampled_at=row.at,
                write_rate=row.write_rate,
                ledger=ledger_of(row.ledger),
                groups=groups[:left],
            )
        )
        complete += len(groups) <= left
        left -= max(1, len(groups))
        if left <= 0:
            break
    total = rows[0].total if rows else 0
    return Overview(
        phases=count_by_phase(tx, prefixes=prefixes),
        channels=tuple(overviews),
        omitted=max(0, total - complete),
    )


_Members = Mapping[tuple[Role, str], Mapping[str, int]]


def _groups(
    members: _Members, lags: Mapping[str, GroupSummary], out_of_range: Mapping[str, int]
) -> tuple[GroupOverview, ...]:
    keys = members.keys() | {(Role.READER, name) for name in lags}
    return tuple(
        GroupOverview(
            role=role,
            name=name,
            members={
                health: number
                for health, number in members.get((role, name), {}).items()
                if health != FAILED
            },
            failures=members.get((role, name), {}).get(FAILED, 0),
            lag=lags.get(name) if role is Role.READER else None,
            partitions_out_of_range=out_of_range.get(name, 0) if role is Role.READER else 0,
        )
        for role, name in sorted(keys)
    )


def _members(tx: ReadTransaction, uids: Sequence[str], since: datetime) -> Mapping[str, _Members]:
    table = endpoints.c
    by = (table.channel_uid, table.role, table.group_name, table.state, table.health)
    statement = select(*by, func.count().label("number")).group_by(*by)
    members: dict[str, dict[tuple[Role, str], Counter[str]]] = defaultdict(
        lambda: defaultdict(Counter)
    )
    open_ones = (table.channel_uid.in_(_UIDS), UNCLOSED)
    for row in tx.in_parts(statement.where(*open_ones, _counted(since)), uids=uids):
        failed = has_failed(row.state, row.health, row.group_name)
        health = FAILED if failed else row.health
        members[row.channel_uid][row.role, row.group_name][health] += row.number
    return members


def ledgers_of(
    tx: ReadTransaction, uids: Collection[str]
) -> dict[str, tuple[Ledger, Sequence[Batch]]]:
    """Return the ledgers of those of these channels in which a batch was opened, by uid.

    Each with its open batches, the oldest first.
    """
    ledgers: dict[str, tuple[Ledger, Sequence[Batch]]] = {}
    for uid in ledgers_store.stored(tx, sorted(uids)):
        ledger = ledgers_store.find(tx, uid)
        if ledger is not None:
            ledgers[uid] = ledger, batch_store.open_batches(tx, uid)
    return ledgers


def committed_messages(tx: ReadTransaction, uids: Collection[str]) -> Mapping[str, int]:
    """Return the number of offsets in the visible runs of these channels."""
    runs = visible_runs.c
    length = func.sum(runs.end_offset - runs.first_offset)
    counted = (
        select(runs.channel_uid, length.label("number"))
        .where(runs.channel_uid.in_(_UIDS))
        .group_by(runs.channel_uid)
    )
    return {row.channel_uid: int(row.number) for row in tx.in_parts(counted, uids=sorted(uids))}
