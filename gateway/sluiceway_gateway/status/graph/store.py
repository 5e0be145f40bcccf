"""SQL of the graph: endpoints of channels, and channels that share processes with others."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import bindparam, select

from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ReadTransaction
from sluiceway_gateway.core.db.statements import chunks, starts_with
from sluiceway_gateway.endpoints.model import ANONYMOUS, SparkJob, State
from sluiceway_gateway.endpoints.tables import endpoints
from sluiceway_gateway.status.graph.model import (
    MAX_CHANNELS,
    MAX_ENDPOINTS,
    MAX_HOPS,
    GraphEndpoint,
)

# Ended readers and writers without a group are not part of a pipeline.
_SHOWN = ~endpoints.c.superseded & (
    (endpoints.c.group_name != ANONYMOUS) | (endpoints.c.state != State.CLOSED)
)


def surroundings(
    tx: ReadTransaction,
    start: Channel,
    *,
    prefixes: Collection[str],
    max_channels: int = MAX_CHANNELS,
    max_endpoints: int = MAX_ENDPOINTS,
) -> tuple[list[GraphEndpoint], bool]:
    """Return the endpoints of a channel and of channels that its jobs lead to, the nearest first.

    Channels without one of the prefixes are left out. The second value is whether there are more
    than a graph has.
    """
    names = {start.uid: start.name}
    graph_endpoints: list[GraphEndpoint] = []
    truncated = False
    frontier, sessions = [start.uid], set[str]()
    for hop in range(MAX_HOPS + 1):
        left = max_endpoints - len(graph_endpoints)
        attached = _endpoints(tx, {uid: names[uid] for uid in frontier}, limit=left + 1)
        truncated |= len(attached) > left
        graph_endpoints += attached[:left]
        new = {endpoint.session for endpoint in attached[:left]} - sessions
        sessions |= new
        neighbours = {
            uid: neighbour
            for uid, neighbour in _channels(tx, sorted(new), prefixes=prefixes).items()
            if uid not in names
        }
        room = max_channels - len(names) if hop < MAX_HOPS else 0
        truncated |= len(neighbours) > room
        frontier = sorted(neighbours, key=lambda uid: neighbours[uid])[:room]
        names |= {uid: neighbours[uid] for uid in frontier}
        if not frontier:
            break
    return graph_endpoints, truncated


def _endpoints(tx: ReadTransaction, names: Mapping[str, str], *, limit: int) -> list[GraphEndpoint]:
    table = endpoints.c
    graph_endpoints: list[GraphEndpoint] = []
    for part in chunks(list(names)):
        statement = select(
            *(table.id, table.channel_uid, table.role, table.group_name, table.session_id),
            *(table.state, table.health, table.title, table.spark),
        ).where(_SHOWN, table.channel_uid.in_(part))
        rows = tx.execute(statement.order_by(table.id).limit(max(0, limit - len(graph_endpoints))))
        graph_endpoints += [
            GraphEndpoint(
                id=row.id,
                channel=names[row.channel_uid],
                role=row.role,
                group=row.group_name,
                session=row.session_id,
                state=row.state,
                health=row.health,
                title=row.title,
                spark=None if row.spark is None else SparkJob(**row.spark),
            )
            for row in rows
        ]
    return graph_endpoints


def _channels(
    tx: ReadTransaction, sessions: Sequence[str], *, prefixes: Collection[str]
) -> dict[str, str]:
    """Return the names of the channels with endpoints of these sessions, by uid."""
    in_sessions = endpoints.c.session_id.in_(bindparam("sessions", expanding=True))
    statement = (
        select(channels.c.uid, channels.c.name)
        .join(endpoints, endpoints.c.channel_uid == channels.c.uid)
        .where(_SHOWN, starts_with(channels.c.name, prefixes), in_sessions)
        .distinct()
    )
    return {row.uid: row.name for row in tx.in_parts(statement, sessions=sessions)}
