"""Storage of commits, committed offsets for waits, offsets to mirror."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Row, bindparam, select, tuple_, update

from sluiceway_gateway.channels.model import READABLE
from sluiceway_gateway.channels.store import in_phases
from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import CachedSelect, PreparedDml
from sluiceway_gateway.endpoints import store as endpoint_store
from sluiceway_gateway.endpoints.groups import store as groups_store
from sluiceway_gateway.endpoints.groups.store import group_of, of_its_group
from sluiceway_gateway.endpoints.model import GroupKey, Mode, Role
from sluiceway_gateway.endpoints.position_store import put, stored_at
from sluiceway_gateway.endpoints.store import live_members
from sluiceway_gateway.endpoints.tables import endpoint_groups, endpoints, positions, sessions
from sluiceway_gateway.offsets.model import (
    Commit,
    CommitContext,
    CommitResult,
    CommitTarget,
    CommittedOffsets,
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


def _target_of(row: Row[Any]) -> CommitTarget:
    return CommitTarget(
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


def load(
    tx: WriteTransaction, commits: Sequence[Commit], *, wait: bool
) -> dict[str, CommitContext]:
    """Lock the endpoints of commits, and return the state that decides, by endpoint.

    Unless `wait`, endpoints that another transaction has locked are left out.
    """
    # The locks prevent that an endpoint is superseded, or its group resized or reset, so the state
    # that is read next stays valid.
    held = endpoint_store.hold(tx, {commit.endpoint for commit in commits}, wait=wait)
    targets = {target.endpoint: target for target in tx.look_up(_TARGETS, list(held))}
    dynamic = {endpoint.group_key for endpoint in held.values() if endpoint.is_dynamic}
    members = live_members(tx, sorted(dynamic))
    keys = [
        (*held[commit.endpoint].position_owner, position.partition)
        for commit in commits
        if commit.endpoint in held
        for position in commit.positions
    ]
    stored = stored_at(tx, keys)
    return {
        id_: CommitContext(
            endpoint=held[id_],
            target=target,
            stored=stored.get(held[id_].position_owner, {}),
            members=members.get(held[id_].group_key, ()),
        )
        for id_, target in targets.items()
    }


def save(tx: WriteTransaction, new: Sequence[CommitResult]) -> None:
    """Store the numbers and positions of new commits, whose endpoints are locked."""
    commits = [result.commit for result in new]
    counted = tx.run_each(
        _COUNT,
        [
            {"the_id": commit.endpoint, "the_epoch": commit.epoch, "number": commit.number}
            for commit in commits
        ],
    )
    assert counted == len(new), "held endpoints do not change"  # noqa: S101
    put(tx, [(result.owner, position) for result in new for position in result.positions])


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
