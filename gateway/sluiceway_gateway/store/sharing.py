"""Shares of the partitions of dynamic groups. Who changes one holds the channel."""

from collections.abc import Collection

from sqlalchemy import bindparam, select, tuple_, update

from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import endpoints
from sluiceway_gateway.domain.sharing import Member
from sluiceway_gateway.endpoints.model import OPEN, Health, Role
from sluiceway_gateway.store.endpoint_rows import share_of
from sluiceway_gateway.store.selection import chunks

GroupKey = tuple[str, str]
"""A channel's uid, and the name of a group of its readers."""

_KEY = (endpoints.c.channel_uid, endpoints.c.group_name)
_LIVE = (
    ~endpoints.c.superseded,
    endpoints.c.state.in_(sorted(map(str, OPEN))),
    endpoints.c.health != str(Health.LOST),
)
# Commits come so often that it is put together once.
_MEMBERS = (
    select(
        endpoints.c.id,
        *_KEY,
        endpoints.c.epoch,
        endpoints.c.generation,
        endpoints.c.share_index,
        endpoints.c.share_size,
    )
    .where(
        endpoints.c.role == str(Role.READER),
        tuple_(*_KEY).in_(bindparam("keys", expanding=True)),
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


def let_go(tx: WriteTransaction, ids: Collection[str]) -> None:
    """Have these endpoints hold nothing any more."""
    for part in chunks(sorted(ids)):
        statement = update(endpoints).where(endpoints.c.id.in_(part))
        tx.execute(statement.values(share_index=None, share_size=None))
