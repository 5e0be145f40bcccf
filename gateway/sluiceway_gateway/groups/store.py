"""Storage of groups and partition assignments."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, bindparam, select, tuple_, update

from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import endpoint_groups, endpoints
from sluiceway_gateway.db.statements import by_dialect, chunks
from sluiceway_gateway.endpoints.model import OPEN, Health, Mode, Role
from sluiceway_gateway.endpoints.store import share_of
from sluiceway_gateway.groups.model import Group, Member

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


GroupKey = tuple[str, str]
"""A channel's uid, and the name of a group of its readers."""

_ASSIGNMENT_KEY = (endpoints.c.channel_uid, endpoints.c.group_name)
_LIVE = (
    ~endpoints.c.superseded,
    endpoints.c.state.in_(sorted(map(str, OPEN))),
    endpoints.c.health != str(Health.LOST),
)
# Commits come so often that it is put together once.
_MEMBERS = (
    select(
        endpoints.c.id,
        *_ASSIGNMENT_KEY,
        endpoints.c.epoch,
        endpoints.c.generation,
        endpoints.c.share_index,
        endpoints.c.share_size,
    )
    .where(
        endpoints.c.role == str(Role.READER),
        tuple_(*_ASSIGNMENT_KEY).in_(bindparam("keys", expanding=True)),
        *_LIVE,
    )
    .order_by(endpoints.c.epoch)
)


def living(tx: ReadTransaction, keys: Collection[GroupKey]) -> dict[GroupKey, list[Member]]:
    """Return who lives in each of these groups, by epoch."""
    found: dict[GroupKey, list[Member]] = {key: [] for key in keys}
    for part in chunks(list(found)):
        for row in tx.execute(_MEMBERS, {"keys": part}):
            member = Member(
                endpoint=row.id, epoch=row.epoch, generation=row.generation, share=share_of(row)
            )
            found[row.channel_uid, row.group_name].append(member)
    return found


def release_shares(tx: WriteTransaction, ids: Collection[str]) -> None:
    """Have these endpoints hold nothing any more."""
    for part in chunks(sorted(ids)):
        statement = update(endpoints).where(endpoints.c.id.in_(part))
        tx.execute(statement.values(share_index=None, share_size=None))
