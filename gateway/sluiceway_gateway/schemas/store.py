"""Schemas: each has one id for good, whatever channels use it."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import bindparam, exists, false, func, or_, select

from sluiceway_gateway.channels.model import SchemaVersion
from sluiceway_gateway.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.db.schema import channel_schemas, channels, schemas
from sluiceway_gateway.store.inserts import by_dialect
from sluiceway_gateway.store.selection import starts_with

_CREATED_AT = func.coalesce(channel_schemas.c.created_at, schemas.c.created_at)
# Whoever opens a channel asks for them, so it is put together once.
_VERSIONS = (
    select(schemas.c.id, channel_schemas.c.version, schemas.c.definition, _CREATED_AT.label("at"))
    .join(schemas, schemas.c.id == channel_schemas.c.schema_id)
    .where(channel_schemas.c.channel_uid == bindparam("channel_uid"))
    .order_by(channel_schemas.c.version)
)
_ID = select(schemas.c.id).where(schemas.c.fingerprint == bindparam("fingerprint"))
_REGISTER = by_dialect(
    lambda insert: insert(schemas).on_conflict_do_nothing(index_elements=["fingerprint"])
)


def register(tx: WriteTransaction, *, fingerprint: str, definition: str, now: datetime) -> int:
    """Return the id of this schema; the same schema always has the same."""
    key = {"fingerprint": fingerprint}
    found: int | None = tx.execute(_ID, key).scalar_one_or_none()
    if found is None:
        tx.execute(_REGISTER[tx.dialect], key | {"definition": definition, "created_at": now})
        found = tx.execute(_ID, key).scalar_one()
    return found


def assign(tx: WriteTransaction, *, channel_uid: str, version: SchemaVersion) -> None:
    """Note that this is one of the channel's schemas."""
    tx.execute(
        channel_schemas.insert().values(
            channel_uid=channel_uid,
            version=version.version,
            schema_id=version.id,
            created_at=version.created_at,
        )
    )


def find(tx: ReadTransaction, schema_id: int, *, prefixes: Collection[str] | None) -> str | None:
    """Return a schema's definition, if a channel whose name begins with one of `prefixes` has it.

    Without prefixes, also if no channel has it any more.
    """
    statement = select(schemas.c.definition).where(schemas.c.id == schema_id)
    if prefixes is not None:
        names = [starts_with(channels.c.name, prefix) for prefix in prefixes]
        statement = statement.where(
            exists()
            .where(channel_schemas.c.schema_id == schema_id)
            .where(channels.c.uid == channel_schemas.c.channel_uid)
            .where(or_(false(), *names))
        )
    definition: str | None = tx.execute(statement).scalar_one_or_none()
    return definition


def versions(tx: ReadTransaction, channel_uid: str) -> tuple[SchemaVersion, ...]:
    """Return all schemas that the channel keeps, the oldest first."""
    rows = tx.execute(_VERSIONS, {"channel_uid": channel_uid})
    return tuple(
        SchemaVersion(id=row.id, version=row.version, definition=row.definition, created_at=row.at)
        for row in rows
    )
