"""SQL of the metrics: the lag of groups at the last samples, and their members."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import exists, func, or_, select

from sluiceway_gateway.channels.model import READABLE
from sluiceway_gateway.channels.store import count_by_phase, in_phases
from sluiceway_gateway.db.engine import ReadTransaction
from sluiceway_gateway.db.schema import channels, endpoints, positions, samples
from sluiceway_gateway.db.statements import chunks, starts_with
from sluiceway_gateway.endpoints.model import Role, State
from sluiceway_gateway.status.lag import GroupSummary
from sluiceway_gateway.status.model import FAILED, ChannelOverview, GroupOverview, Overview
from sluiceway_gateway.status.sample_store import group_summaries_of, ledger_of


def overview(tx: ReadTransaction, *, prefixes: Collection[str], max_groups: int) -> Overview:
    """Return the channels with one of the prefixes that have endpoints or positions.

    They have at most `max_groups` groups in all, where a channel without groups counts as one.
    """
    # The sampler samples exactly these, so no figure of another channel is up to date.
    in_use = (
        select(channels.c.uid, channels.c.name, func.count().over().label("total"))
        .where(
            in_phases(READABLE),
            or_(False, *(starts_with(channels.c.name, each) for each in prefixes)),
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
            samples.c.document["summary"]["write_rate"].label("write_rate"),
        )
        .select_from(in_use)
        .outerjoin(samples, (samples.c.channel_uid == in_use.c.uid) & (samples.c.number == last))
        .order_by(in_use.c.name)
    ).all()
    members = _members(tx, [row.uid for row in rows])
    found: list[ChannelOverview] = []
    left, complete = max_groups, 0
    for row in rows:
        groups = _groups(members[row.uid], group_summaries_of(row.groups or {}))
        found.append(
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
        phases=count_by_phase(tx), channels=tuple(found), omitted=max(0, total - complete)
    )


_Members = Mapping[tuple[Role, str], Mapping[str, int]]


def _groups(members: _Members, lags: Mapping[str, GroupSummary]) -> tuple[GroupOverview, ...]:
    keys = members.keys() | {(Role.READER, name) for name in lags}
    return tuple(
        GroupOverview(
            role=role,
            name=name,
            members=members.get((role, name), {}),
            lag=lags.get(name) if role is Role.READER else None,
        )
        for role, name in sorted(keys)
    )


def _members(tx: ReadTransaction, uids: Sequence[str]) -> Mapping[str, _Members]:
    table = endpoints.c
    by = (table.channel_uid, table.role, table.group_name, table.state, table.health)
    statement = select(*by, func.count().label("number")).group_by(*by)
    found: dict[str, dict[tuple[Role, str], Counter[str]]] = defaultdict(
        lambda: defaultdict(Counter)
    )
    for chunk in chunks(uids):
        open_ones = (table.channel_uid.in_(chunk), ~table.superseded, table.state != State.CLOSED)
        for row in tx.execute(statement.where(*open_ones)):
            health = FAILED if row.state == State.ERROR else row.health
            found[row.channel_uid][Role(row.role), row.group_name][health] += row.number
    return found
