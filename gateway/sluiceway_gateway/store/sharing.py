"""Shares of the partitions of dynamic groups. Who changes one holds the channel."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import bindparam, select, tuple_, update

from sluiceway_gateway.domain.endpoint import OPEN, Health, Role
from sluiceway_gateway.domain.sharing import Member
from sluiceway_gateway.store.endpoint_rows import share_of
from sluiceway_gateway.store.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.store.groups import of_its_group
from sluiceway_gateway.store.tables import channels, endpoint_groups, endpoints

GroupKey = tuple[str, str]
"""A channel's uid, and the name of a group of its readers."""

_KEY = (endpoints.c.channel_uid, endpoints.c.group_name)
_LIVE = (
    ~endpoints.c.superseded,
    endpoints.c.state.in_(sorted(map(str, OPEN))),
    endpoints.c.health != str(Health.LOST),
)
# Commits come so often, and so does the reaper, that these are put together once.
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
_BEHIND = (
    select(
        endpoints.c.id,
        endpoints.c.channel_uid,
        endpoints.c.generation,
        channels.c.beat_ms,
        channels.c.patience_ms,
    )
    .join(endpoint_groups, of_its_group())
    .join(channels, channels.c.uid == endpoints.c.channel_uid)
    .where(
        endpoint_groups.c.dynamic,
        endpoint_groups.c.generation > endpoints.c.generation,
        endpoints.c.share_index.is_not(None),
        *_LIVE,
    )
)


@dataclass(frozen=True, kw_only=True)
class Behind:
    """A member whose share is of an earlier generation than its group."""

    endpoint: str
    channel_uid: str
    generation: int
    """Of its share."""
    interval_ms: int
    patience_ms: int


def living(tx: ReadTransaction, keys: Collection[GroupKey]) -> dict[GroupKey, list[Member]]:
    """Return who lives in each of these groups, by epoch."""
    found: dict[GroupKey, list[Member]] = {key: [] for key in keys}
    if found:
        for row in tx.execute(_MEMBERS, {"keys": list(found)}):
            member = Member(
                endpoint=row.id, epoch=row.epoch, generation=row.generation, share=share_of(row)
            )
            found[row.channel_uid, row.group_name].append(member)
    return found


def let_go(tx: WriteTransaction, ids: Collection[str]) -> None:
    """Have these endpoints hold nothing any more."""
    if ids:
        statement = update(endpoints).where(endpoints.c.id.in_(ids))
        tx.execute(statement.values(share_index=None, share_size=None))


def behind(tx: ReadTransaction) -> list[Behind]:
    """Return the living members that hold a share of an earlier generation than their group."""
    rows = tx.execute(_BEHIND)
    return [
        Behind(
            endpoint=row.id,
            channel_uid=row.channel_uid,
            generation=row.generation,
            interval_ms=row.beat_ms,
            patience_ms=row.patience_ms,
        )
        for row in rows
    ]
