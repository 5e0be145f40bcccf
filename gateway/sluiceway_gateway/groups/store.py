"""Groups of endpoints. Who changes one holds its channel."""

from typing import Any

from sqlalchemy import ColumnElement, Row, and_, bindparam, select

from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import endpoint_groups, endpoints
from sluiceway_gateway.endpoints.model import Mode, Role
from sluiceway_gateway.groups.model import Group
from sluiceway_gateway.store.inserts import by_dialect

_KEY = ("channel_uid", "role", "name")
# Asked at each beat of a dynamic member, and changed with each that comes or goes, so they are put
# together once.
_THIS = select(endpoint_groups).where(*(endpoint_groups.c[key] == bindparam(key) for key in _KEY))


def _upsert(insert: Any) -> Any:
    statement = insert(endpoint_groups)
    changing = (each.name for each in endpoint_groups.columns if each.name not in _KEY)
    return statement.on_conflict_do_update(
        index_elements=_KEY, set_={name: statement.excluded[name] for name in changing}
    )


_SAVE = by_dialect(_upsert)


def find(tx: ReadTransaction, channel_uid: str, role: Role, name: str) -> Group | None:
    """Return the group, if anybody was ever in it."""
    key = {"channel_uid": channel_uid, "role": str(role), "name": name}
    row = tx.execute(_THIS, key).one_or_none()
    return None if row is None else group_of(row)


def save(tx: WriteTransaction, group: Group) -> None:
    """Write the group down, new or changed."""
    values = {
        "channel_uid": group.channel_uid,
        "role": str(group.role),
        "name": group.name,
        "mode": str(group.mode),
        "size": group.size,
        "generation": group.generation,
        "epoch": group.epoch,
        "next_index": group.next_index,
        "dynamic": group.dynamic,
        "changed_at": group.changed_at,
    }
    tx.execute(_SAVE[tx.dialect], values)


def of_its_group() -> ColumnElement[bool]:
    """Return what joins an endpoint with its group."""
    return and_(
        endpoint_groups.c.channel_uid == endpoints.c.channel_uid,
        endpoint_groups.c.role == endpoints.c.role,
        endpoint_groups.c.name == endpoints.c.group_name,
    )


def group_of(row: Row[Any]) -> Group:
    """Return the group of a row that has all columns of `endpoint_groups`."""
    return Group(
        channel_uid=row.channel_uid,
        role=Role(row.role),
        name=row.name,
        mode=Mode(row.mode),
        size=row.size,
        generation=row.generation,
        epoch=row.epoch,
        next_index=row.next_index,
        dynamic=row.dynamic,
        changed_at=row.changed_at,
    )
