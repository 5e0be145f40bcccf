"""The one place where commits are judged and written, many in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, select, update

from sluiceway_gateway.auth.model import Principal
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channels, endpoint_groups, endpoints, sessions
from sluiceway_gateway.db.statements import Each, Recollection
from sluiceway_gateway.domain.errors import EndpointNotFound, SluicewayGatewayError
from sluiceway_gateway.domain.sharing import Member
from sluiceway_gateway.endpoints import store as endpoint_store
from sluiceway_gateway.endpoints.model import Endpoint
from sluiceway_gateway.groups.model import Group
from sluiceway_gateway.groups.store import group_of, of_its_group
from sluiceway_gateway.offsets.model import Commit, Committed, Standing, counts
from sluiceway_gateway.store.positions import Placed, Whose, put, stored_at, whose
from sluiceway_gateway.store.sharing import living

_MOST_KEPT = 10_000
# Commits come so often that their statements are put together once.
_COUNT = Each(
    update(endpoints)
    .where(
        endpoints.c.id == bindparam("the_id"),
        endpoints.c.epoch == bindparam("the_epoch"),
        endpoints.c.commits < bindparam("number"),
        ~endpoints.c.superseded,
    )
    .values(commits=bindparam("number"))
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a commit: how its partitions stand now, or what stands against it."""

    group: Group | None = None
    member: int = -1
    """Whose positions they are, -1 where members share them."""
    number: int = 0
    positions: tuple[Committed, ...] = ()
    error: SluicewayGatewayError | None = None


def commit(
    tx: WriteTransaction,
    asked: Sequence[tuple[Commit, Principal]],
    *,
    now: datetime,
    patiently: bool = True,
) -> list[Outcome]:
    """Commit what is right of `asked`, each all or nothing; return what came of each, in order.

    No two may be of the same endpoint: the second would be judged by what was before the first.
    If not `patiently`, an endpoint that another transaction holds is EndpointNotFound as well.
    """
    # From here on none of them can be superseded, and no group of theirs resized or reset, before
    # this transaction ends; so what is read next stays true.
    held = endpoint_store.hold(tx, {each.endpoint for each, _ in asked}, patiently=patiently)
    surroundings = _surroundings(tx, held)
    others = _others(tx, held)
    stored = stored_at(
        tx,
        [
            (*whose(held[each.endpoint]), position.partition)
            for each, _ in asked
            if each.endpoint in held
            for position in each.positions
        ],
    )
    outcomes, new = [], []
    for each, by in asked:
        try:
            standing = _standing(each, held, surroundings, stored)
            owner = surroundings[each.endpoint].owner
            by.require_own(owner, f"The session of {standing.endpoint.where}")
            standing = replace(standing, others=others.get(each.endpoint, ()))
            if counts(each, standing):
                new.append((each, standing))
        except SluicewayGatewayError as error:
            outcomes.append(Outcome(error=error))
            continue
        outcomes.append(_outcome(each, standing, now))
    _count(tx, [each for each, _ in new])
    put(
        tx,
        [
            Placed(
                whose=whose(standing.endpoint),
                position=position,
                topic_id=each.topic_id,
                epoch=each.epoch,
                number=each.number,
            )
            for each, standing in new
            for position in each.positions
        ],
        now=now,
    )
    return outcomes


@dataclass(frozen=True, kw_only=True)
class _Surroundings:
    endpoint: str
    """Its id."""
    channel: str
    group: Group
    topic_id: str | None
    partitions: int
    owner: str | None
    """Of the session that attached it."""


def _surroundings_of(row: Row[Any]) -> _Surroundings:
    return _Surroundings(
        endpoint=row.endpoint_id,
        channel=row.channel_name,
        group=group_of(row),
        topic_id=row.topic_id,
        partitions=max(row.partitions, row.topic_partitions or 0),
        owner=row.owner,
    )


# Read each time, but mostly the same from one commit of an endpoint to the next.
_AROUND = Recollection(
    select(
        endpoints.c.id.label("endpoint_id"),
        endpoint_groups,
        channels.c.name.label("channel_name"),
        channels.c.topic_id,
        channels.c.topic_partitions,
        channels.c.partitions,
        sessions.c.owner,
    )
    .join(endpoint_groups, of_its_group())
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .join(sessions, sessions.c.id == endpoints.c.session_id)
    .where(endpoints.c.id.in_(bindparam("ids", expanding=True))),
    keys="ids",
    make=_surroundings_of,
    most=_MOST_KEPT,
)


def _surroundings(tx: ReadTransaction, held: Mapping[str, Endpoint]) -> dict[str, _Surroundings]:
    """Return, by endpoint, its group, and its channel with its topic."""
    return {each.endpoint: each for each in tx.look_up(_AROUND, list(held))}


def _others(tx: ReadTransaction, held: Mapping[str, Endpoint]) -> dict[str, tuple[Member, ...]]:
    """Return, by member of a dynamic group, the others that live.

    They are not held: a partition that one of them has let go of it never takes back from a
    member whose share is of a later generation.
    """
    dynamic = {
        each.id: (each.channel_uid, each.place.group) for each in held.values() if each.is_dynamic
    }
    found = living(tx, sorted(set(dynamic.values()))) if dynamic else {}
    return {
        id_: tuple(each for each in found[key] if each.endpoint != id_)
        for id_, key in dynamic.items()
    }


def _standing(
    asked: Commit,
    held: Mapping[str, Endpoint],
    surroundings: Mapping[str, _Surroundings],
    stored: Mapping[Whose, Mapping[int, Committed]],
) -> Standing:
    endpoint, around = held.get(asked.endpoint), surroundings.get(asked.endpoint)
    where = around and endpoint and (around.channel, endpoint.channel_uid)
    if endpoint is None or around is None or where != (asked.channel, asked.channel_uid):
        raise EndpointNotFound(f"The channel {asked.channel!r} has no endpoint {asked.endpoint}.")
    return Standing(
        endpoint=endpoint,
        group=around.group,
        topic_id=around.topic_id,
        partitions=around.partitions,
        stored=stored.get(whose(endpoint), {}),
    )


def _outcome(asked: Commit, standing: Standing, now: datetime) -> Outcome:
    """Return how the partitions that a commit names stand after it, be it new or a repeat."""
    is_new = asked.number > standing.endpoint.commits
    found = [
        Committed(
            position=each,
            topic_id=asked.topic_id,
            epoch=asked.epoch,
            number=asked.number,
            committed_at=now,
        )
        if is_new
        else standing.stored.get(each.partition)
        for each in asked.positions
    ]
    return Outcome(
        group=standing.group,
        member=whose(standing.endpoint)[2],
        number=max(asked.number, standing.endpoint.commits),
        positions=tuple(each for each in found if each is not None),
    )


def _count(tx: WriteTransaction, new: Sequence[Commit]) -> None:
    rows = [
        {"the_id": each.endpoint, "the_epoch": each.epoch, "number": each.number} for each in new
    ]
    counted = tx.run_each(_COUNT, rows)
    assert counted == len(rows), "held endpoints do not change"  # noqa: S101
