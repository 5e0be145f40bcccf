"""Storage of groups."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, bindparam, select, tuple_

from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import endpoint_groups, endpoints
from sluiceway_gateway.db.statements import PreparedSelect, columns_of, upsert
from sluiceway_gateway.endpoints.model import Mode, Role
from sluiceway_gateway.groups.model import Group

RoleGroup = tuple[str, Role, str]
"""A channel's uid, a role and the name of a group."""
GroupKey = tuple[str, str]
"""A channel's uid and the name of a group of readers."""

_KEY = ("channel_uid", "role", "name")
_FIND = PreparedSelect(
    select(endpoint_groups).where(
        tuple_(*(endpoint_groups.c[key] for key in _KEY)).in_(bindparam("keys", expanding=True))
    ),
    keys="keys",
)


_SAVE = upsert(endpoint_groups, _KEY)


def find(tx: ReadTransaction, channel_uid: str, role: Role, name: str) -> Group | None:
    """Return a group; None if no endpoint was ever in it."""
    key = (channel_uid, role, name)
    return find_all(tx, [key]).get(key)


def find_all(tx: ReadTransaction, keys: Collection[RoleGroup]) -> dict[RoleGroup, Group]:
    """Return the groups of these keys."""
    rows = tx.look_up(_FIND, [(uid, str(role), name) for uid, role, name in keys])
    found = [group_of(row) for row in rows]
    return {(each.channel_uid, each.role, each.name): each for each in found}


_OF_READERS = select(endpoint_groups).where(
    endpoint_groups.c.channel_uid.in_(bindparam("uids", expanding=True)),
    endpoint_groups.c.role == str(Role.READER),
)


def of_readers(tx: ReadTransaction, channel_uids: Collection[str]) -> dict[GroupKey, Group]:
    """Return the groups of readers of these channels, also those without a name."""
    found = map(group_of, tx.in_parts(_OF_READERS, uids=sorted(channel_uids)))
    return {(each.channel_uid, each.name): each for each in found}


def save(tx: WriteTransaction, *groups: Group) -> None:
    """Insert groups, or update them."""
    rows = [vars(each) | {"role": str(each.role), "mode": str(each.mode)} for each in groups]
    tx.run_each(_SAVE, rows)


def of_its_group() -> ColumnElement[bool]:
    """Return the condition that joins endpoints with their groups."""
    return and_(
        endpoint_groups.c.channel_uid == endpoints.c.channel_uid,
        endpoint_groups.c.role == endpoints.c.role,
        endpoint_groups.c.name == endpoints.c.group_name,
    )


def group_of(row: Row[Any]) -> Group:
    """Return the group of a row with all columns of `endpoint_groups`."""
    return Group(**columns_of(row, Group) | {"role": Role(row.role), "mode": Mode(row.mode)})
