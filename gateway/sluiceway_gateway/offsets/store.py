"""Storage of commits, committed offsets for waits, offsets to mirror."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Row, bindparam, select, tuple_, update

from sluiceway_gateway.channels.model import READABLE
from sluiceway_gateway.channels.store import in_phases
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.auth.model import Owned, Principal
from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import CachedSelect, PreparedDml
from sluiceway_gateway.core.errors import EndpointNotFound, SluicewayGatewayError
from sluiceway_gateway.endpoints import store as endpoint_store
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.groups.assignment import Member
from sluiceway_gateway.endpoints.groups.model import Group
from sluiceway_gateway.endpoints.groups.store import GroupKey, group_of, of_its_group
from sluiceway_gateway.endpoints.model import Endpoint, Mode, Role
from sluiceway_gateway.endpoints.position_store import Whose, put, stored_at, whose
from sluiceway_gateway.endpoints.positions import Committed
from sluiceway_gateway.endpoints.store import live_members
from sluiceway_gateway.endpoints.tables import endpoint_groups, endpoints, positions, sessions
from sluiceway_gateway.offsets.model import (
    CommitContext,
    CommitResult,
    CommittedOffsets,
    PendingCommit,
    validate_commit,
)

# Frequent, so the statement is compiled once.
_COUNT = PreparedDml(
    update(endpoints)
    .where(
        endpoints.c.id == bindparam("the_id"),
        endpoints.c.epoch == bindparam("the_epoch"),
        endpoints.c.commits < bindparam("number"),
        ~endpoints.c.superseded,
    )
    .values(commits=bindparam("number"))
)


class _CommitTarget(NamedTuple):
    """The group and the topic that an endpoint commits to."""

    endpoint: str
    """The endpoint's id."""
    channel: str
    group: Group
    topic_id: str | None
    partitions: int
    session_owner: str | None
    """The owner of the session that attached it."""


def _target_of(row: Row[Any]) -> _CommitTarget:
    return _CommitTarget(
        endpoint=row.endpoint_id,
        channel=row.channel_name,
        group=group_of(row),
        topic_id=row.topic_id,
        partitions=max(row.partitions, row.topic_partitions or 0),
        session_owner=row.session_owner,
    )


# Read for each commit, but mostly equal between commits of an endpoint.
_TARGETS = CachedSelect(
    select(
        endpoints.c.id.label("endpoint_id"),
        endpoint_groups,
        channels.c.name.label("channel_name"),
        channels.c.topic_id,
        channels.c.topic_partitions,
        channels.c.partitions,
        sessions.c.owner.label("session_owner"),
    )
    .join(endpoint_groups, of_its_group())
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .join(sessions, sessions.c.id == endpoints.c.session_id)
    .where(endpoints.c.id.in_(bindparam("ids", expanding=True))),
    keys="ids",
    make=_target_of,
    max_entries=10_000,
)


def commit(
    tx: WriteTransaction,
    pending: Sequence[PendingCommit],
    *,
    now: datetime,
    require_use: Callable[[Principal, Owned, str], None],
    wait: bool = True,
) -> list[CommitResult | SluicewayGatewayError]:
    """Validate and store commits, each all or nothing; return a result or an error for each.

    `require_use` raises Forbidden for another owner's group; a group without one is claimed. At
    most one commit per endpoint, because all are validated against the state before. Unless `wait`,
    an endpoint that another transaction has locked is EndpointNotFound, too.
    """
    # The locks prevent that an endpoint is superseded, or its group resized or reset, so the state
    # that is read next stays valid.
    held = endpoint_store.hold(tx, {request.endpoint for request, _ in pending}, wait=wait)
    targets = {target.endpoint: target for target in tx.look_up(_TARGETS, list(held))}
    others = _others(tx, held)
    stored = stored_at(
        tx,
        [
            (*whose(held[request.endpoint]), position.partition)
            for request, _ in pending
            if request.endpoint in held
            for position in request.positions
        ],
    )
    results: list[CommitResult | SluicewayGatewayError] = []
    counts: list[dict[str, Any]] = []
    updates: list[tuple[Whose, Committed]] = []
    for request, principal in pending:
        endpoint, target = held.get(request.endpoint), targets.get(request.endpoint)
        try:
            if (
                endpoint is None
                or target is None
                or (target.channel, endpoint.channel_uid) != (request.channel, request.channel_uid)
            ):
                raise EndpointNotFound(
                    f"The channel {request.channel!r} has no endpoint {request.endpoint}."
                )
            principal.require_own(target.session_owner, f"The session of {endpoint.where}")
            owner = whose(endpoint)
            context = CommitContext(
                endpoint=endpoint,
                group=target.group,
                topic_id=target.topic_id,
                partitions=target.partitions,
                stored=stored.get(owner, {}),
                others=others.get(endpoint.id, ()),
            )
            is_new = validate_commit(request, context)
            require_use(principal, target.group.owned(target.channel), "commit")
        except SluicewayGatewayError as error:
            results.append(error)
            continue
        groups_store.claim(tx, target.group, principal, channel=target.channel, now=now)
        if is_new:
            positions = request.committed(now)
            updates += [(owner, position) for position in positions]
            counts.append(
                {"the_id": request.endpoint, "the_epoch": request.epoch, "number": request.number}
            )
        else:
            kept = (context.stored.get(position.partition) for position in request.positions)
            positions = tuple(position for position in kept if position is not None)
        results.append(
            CommitResult(
                group=target.group,
                member=owner[2],
                number=max(request.number, endpoint.commits),
                positions=positions,
            )
        )
    counted = tx.run_each(_COUNT, counts)
    assert counted == len(counts), "held endpoints do not change"  # noqa: S101
    put(tx, updates)
    return results


def _others(tx: ReadTransaction, held: Mapping[str, Endpoint]) -> dict[str, tuple[Member, ...]]:
    """Return the other live members for each member of a dynamic group.

    They need no lock: a member cannot take back a released partition from a member with a share of
    a later generation.
    """
    dynamic = {
        endpoint.id: (endpoint.channel_uid, endpoint.place.group)
        for endpoint in held.values()
        if endpoint.is_dynamic
    }
    members = live_members(tx, sorted(set(dynamic.values()))) if dynamic else {}
    return {
        id_: tuple(member for member in members[key] if member.endpoint != id_)
        for id_, key in dynamic.items()
    }


_OFFSETS = select(
    positions.c.channel_uid,
    positions.c.group_name,
    positions.c.member_index,
    positions.c.partition,
    positions.c.topic_id,
    positions.c.next_offset,
).where(
    tuple_(positions.c.channel_uid, positions.c.group_name).in_(bindparam("keys", expanding=True))
)


def committed_offsets(
    tx: ReadTransaction, keys: Collection[GroupKey]
) -> dict[GroupKey, CommittedOffsets]:
    """Return the committed offsets of groups of readers, without groups that never had a member."""
    by_group: dict[GroupKey, CommittedOffsets] = {}
    groups = groups_store.find_all(tx, [(uid, Role.READER, name) for uid, name in keys])
    for (uid, _, name), group in groups.items():
        members = range(group.size or 0) if group.mode is Mode.BROADCAST else (-1,)
        by_group[uid, name] = CommittedOffsets(members=tuple(members))
    for row in tx.in_parts(_OFFSETS, keys=sorted(keys)):
        committed = by_group.get((row.channel_uid, row.group_name))
        if committed is not None:
            key = (row.member_index, row.partition)
            committed.offsets[key] = (row.topic_id, row.next_offset)
    return by_group


class MirroredOffset(NamedTuple):
    """The committed offset of a group, or of a broadcast group's member, in a partition."""

    topic: str
    partition: int
    group: str
    member: int
    """-1 in a shared group."""
    offset: int
    """The next message to read, or a partly committed one."""


# The leading replica runs these all the time, so they are built once.
_MIRRORED = (
    select(
        channels.c.topic_name,
        positions.c.partition,
        positions.c.group_name,
        positions.c.member_index,
        positions.c.next_offset,
    )
    .join(channels, channels.c.uid == positions.c.channel_uid)
    .where(channels.c.mirrored, in_phases(READABLE), channels.c.topic_id == positions.c.topic_id)
)
_MIRRORED_SINCE = _MIRRORED.where(positions.c.committed_at >= bindparam("since"))


def mirrored_offsets(tx: ReadTransaction, since: datetime | None) -> list[MirroredOffset]:
    """Return the positions in current topics of mirrored channels, all with `since` None."""
    rows = tx.execute(_MIRRORED) if since is None else tx.execute(_MIRRORED_SINCE, {"since": since})
    return list(map(MirroredOffset._make, rows))
