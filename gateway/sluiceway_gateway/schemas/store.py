"""Storage of schemas, including those of topics whose channels were deleted."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import (
    Row,
    Table,
    bindparam,
    delete,
    func,
    select,
)

from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.statements import by_dialect, columns_of
from sluiceway_gateway.schemas.model import Format, SchemaVersion
from sluiceway_gateway.schemas.tables import channel_schemas, kept_schemas, schemas

_VERSIONS = (
    select(
        channel_schemas.c.version,
        channel_schemas.c.created_at,
        schemas.c.id,
        schemas.c.fingerprint,
        func.coalesce(channel_schemas.c.annotated, schemas.c.definition).label("definition"),
    )
    .join(schemas, schemas.c.id == channel_schemas.c.schema_id)
    .where(channel_schemas.c.channel_uid == bindparam("channel_uid"))
    .order_by(channel_schemas.c.version)
)
_ID = select(schemas.c.id).where(schemas.c.fingerprint == bindparam("fingerprint"))
_REGISTER = by_dialect(
    lambda insert: insert(schemas).on_conflict_do_nothing(index_elements=["fingerprint"])
)


def _upsert(insert: Callable[[Table], Any]) -> Any:
    statement = insert(channel_schemas)
    return statement.on_conflict_do_update(
        index_elements=["channel_uid", "version"],
        set_={"annotated": statement.excluded.annotated},
    )


_ASSIGN = by_dialect(_upsert)


def register(tx: WriteTransaction, *, fingerprint: str, definition: str, now: datetime) -> int:
    """Return the permanent id of this schema, registering it if it is new."""
    key = {"fingerprint": fingerprint}
    schema_id: int | None = tx.execute(_ID, key).scalar_one_or_none()
    if schema_id is None:
        tx.execute(_REGISTER[tx.dialect], key | {"definition": definition, "created_at": now})
        schema_id = tx.execute(_ID, key).scalar_one()
    return schema_id


def assign(tx: WriteTransaction, *, channel_uid: str, version: SchemaVersion) -> None:
    """Add a version to the channel's schemas, or replace the annotations of one."""
    # The fingerprint is the digest of the text without annotations.
    plain = sha256(version.definition.encode("ascii")).hexdigest() == version.fingerprint
    values = {
        "channel_uid": channel_uid,
        "version": version.version,
        "schema_id": version.id,
        "created_at": version.created_at,
        "annotated": None if plain else version.definition,
    }
    tx.execute(_ASSIGN[tx.dialect], values)


def versions(tx: ReadTransaction, channel_uid: str) -> tuple[SchemaVersion, ...]:
    """Return all schemas of the channel, the oldest first."""
    return tuple(map(_version_of, tx.execute(_VERSIONS, {"channel_uid": channel_uid})))


def _version_of(row: Row[Any]) -> SchemaVersion:
    return SchemaVersion(**columns_of(row, SchemaVersion))


@dataclass(frozen=True, kw_only=True)
class KeptTopic:
    """Format and schemas of a topic's records, the oldest schema first."""

    format: Format
    versions: tuple[SchemaVersion, ...]


def find_kept(tx: ReadTransaction, topic_id: str) -> KeptTopic | None:
    """Return the kept schemas of a topic; None if it never had a channel."""
    rows = tx.execute(
        select(
            kept_schemas.c.version,
            kept_schemas.c.created_at,
            kept_schemas.c.format,
            schemas.c.id,
            schemas.c.fingerprint,
            func.coalesce(kept_schemas.c.annotated, schemas.c.definition).label("definition"),
        )
        .join(schemas, schemas.c.id == kept_schemas.c.schema_id)
        .where(kept_schemas.c.topic_id == topic_id)
        .order_by(kept_schemas.c.version)
    ).all()
    if not rows:
        return None
    return KeptTopic(format=rows[0].format, versions=tuple(map(_version_of, rows)))


def forget_kept(tx: WriteTransaction, topic_id: str) -> None:
    """Delete the kept schemas of a topic that has a channel again."""
    tx.execute(delete(kept_schemas).where(kept_schemas.c.topic_id == topic_id))
