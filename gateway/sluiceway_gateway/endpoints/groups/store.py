"""Storage of groups."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Update, and_, bindparam, delete, select, tuple_, update

from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.core.db.engine import ChangeKind, ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import PreparedSelect, columns_of, upsert
from sluiceway_gateway.endpoints.groups.model import Group, finished_after
from sluiceway_gateway.endpoints.model import GroupKey, Role, RoleGroup
from sluiceway_gateway.endpoints.tables import endpoint_groups, endpoints, finished_places

_KEY = ("channel_uid", "role", "name")
# Prepared: commits and attaches run it.
_FIND = PreparedSelect(
    select(endpoint_groups).where(
        tuple_(*(endpoint_groups.c[key] for key in _KEY)).in_(bindparam("keys", expanding=True))
    ),
    keys="keys",
)


# A commit may claim a group that another transaction has read without an owner: the first stays.
_SAVE = upsert(endpoint_groups, _KEY, kept=("owner",))


_OF_KEY = (
    endpoint_groups.c.channel_uid == bindparam("uid"),
    endpoint_groups.c.role == bindparam("of_role"),
    endpoint_groups.c.name == bindparam("group"),
)
_GIVE = update(endpoint_groups).where(*_OF_KEY).values(owner=bindparam("label"))
_CLAIM = _GIVE.where(endpoint_groups.c.owner.is_(None))


def change_uid(key: GroupKey) -> str:
    """Return the uid of changes of a group and its positions."""
    return "/".join(key)


def find(tx: ReadTransaction, channel_uid: str, role: Role, name: str) -> Group | None:
    """Return a group; None if no endpoint was ever in it."""
    key = (channel_uid, role, name)
    return find_all(tx, [key]).get(key)


def find_all(tx: ReadTransaction, keys: Collection[RoleGroup]) -> dict[RoleGroup, Group]:
    """Return the groups of these keys."""
    rows = tx.look_up(_FIND, [(uid, str(role), name) for uid, role, name in keys])
    groups = [group_of(row) for row in rows]
    return {(group.channel_uid, group.role, group.name): group for group in groups}


_OF_READERS = select(endpoint_groups).where(
    endpoint_groups.c.channel_uid.in_(bindparam("uids", expanding=True)),
    endpoint_groups.c.role == Role.READER,
)


def of_readers(tx: ReadTransaction, channel_uids: Collection[str]) -> dict[GroupKey, Group]:
    """Return the groups of readers of these channels, also those without a name."""
    groups = map(group_of, tx.in_parts(_OF_READERS, uids=sorted(channel_uids)))
    return {(group.channel_uid, group.name): group for group in groups}


def save(tx: WriteTransaction, *groups: Group) -> None:
    """Insert groups, or update them; stored owners stay."""
    if groups:
        keys = [(group.channel_uid, group.name) for group in groups]
        tx.publish(ChangeKind.GROUP, map(change_uid, keys))
        tx.execute(_SAVE[tx.dialect], [vars(group) for group in groups])


def claim(
    tx: WriteTransaction, group: Group, principal: Principal, *, channel: str, now: datetime
) -> None:
    """Make the principal's label the owner of a stored group without one."""
    owner = group.claimed_by(principal.subject).owner
    if owner and owner != group.owner and _set_owner(tx, _CLAIM, group, owner):
        audit_store.add(
            tx,
            audit_store.ChannelName(channel, group.channel_uid),
            AuditedAction.CLAIM_OWNER,
            by=principal,
            at=now,
            target=group.name,
            old={"owner": None},
            new={"owner": owner},
        )


def transfer(tx: WriteTransaction, group: Group, owner: str) -> None:
    """Make a label the owner of a stored group, whoever had it."""
    _set_owner(tx, _GIVE, group, owner)


def _set_owner(tx: WriteTransaction, statement: Update, group: Group, owner: str) -> bool:
    key = {"uid": group.channel_uid, "of_role": group.role, "group": group.name}
    return tx.execute(statement, key | {"label": owner}).rowcount == 1


def of_its_group() -> ColumnElement[bool]:
    """Return the condition that joins endpoints with their groups."""
    return and_(
        endpoint_groups.c.channel_uid == endpoints.c.channel_uid,
        endpoint_groups.c.role == endpoints.c.role,
        endpoint_groups.c.name == endpoints.c.group_name,
    )


def group_of(row: Row[Any]) -> Group:
    """Return the group of a row with all columns of `endpoint_groups`."""
    return Group(**columns_of(row, Group))


ReadingPlace = tuple[str, str, int]
"""A channel's uid, a group of readers and an index; -1 for the whole group."""

_READING_PLACE = ("channel_uid", "group_name", "member_index")
_FINISHED = select(finished_places).where(
    tuple_(*(finished_places.c[key] for key in _READING_PLACE)).in_(
        bindparam("places", expanding=True)
    )
)
_OF_GROUP = (
    finished_places.c.channel_uid == bindparam("channel_uid"),
    finished_places.c.group_name == bindparam("group_name"),
)
_SAVE_FINISHED = upsert(finished_places, _READING_PLACE)


def finished_through(
    tx: ReadTransaction, places: Collection[ReadingPlace]
) -> dict[ReadingPlace, int]:
    """Return the number of the last writer that each place has read to its end; 0 for none."""
    keys = {*places, *((uid, group, -1) for uid, group, _ in places)}
    stored = {
        (row.channel_uid, row.group_name, row.member_index): row.through
        for row in tx.in_parts(_FINISHED, places=sorted(keys))
    }
    return {place: stored.get(place, stored.get((*place[:2], -1), 0)) for place in places}


def finish(tx: WriteTransaction, place: ReadingPlace, through: int) -> None:
    """Store that a place has read the writers up to this number to their end."""
    keys = dict(zip(_READING_PLACE, place, strict=True))
    tx.execute(_SAVE_FINISHED[tx.dialect], keys | {"through": through})


def forget_finished(
    tx: WriteTransaction, channel_uid: str, group: str, *, member: int | None = None
) -> None:
    """Forget the ends of a group, or of one member."""
    statement = delete(finished_places).where(*_OF_GROUP)
    if member is not None:
        statement = statement.where(finished_places.c.member_index == member)
    tx.execute(statement, {"channel_uid": channel_uid, "group_name": group})


def move_finished(tx: WriteTransaction, before: Group, after: Group) -> None:
    """Store the ends of the places of a group of readers after a change of its size or mode."""
    key = {"channel_uid": before.channel_uid, "group_name": before.name}
    rows = tx.execute(select(finished_places).where(*_OF_GROUP), key)
    stored = {row.member_index: row.through for row in rows}
    moved = finished_after(before, after, stored)
    if moved != stored:
        forget_finished(tx, before.channel_uid, before.name)
        for member, through in moved.items():
            finish(tx, (before.channel_uid, before.name, member), through)
