"""Storage of schemas, including those of topics whose channels were deleted."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Table,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
    true,
    tuple_,
)

from sluiceway_gateway.channels.model import Compatibility, Format, Phase, SchemaVersion
from sluiceway_gateway.channels.store import in_phases
from sluiceway_gateway.core.db.engine import ReadTransaction, WriteTransaction
from sluiceway_gateway.core.db.schema import channel_schemas, channels, kept_schemas, schemas
from sluiceway_gateway.core.db.statements import by_dialect, columns_of, starts_with

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
_DEFINITIONS = (
    select(
        channel_schemas.c.channel_uid,
        channel_schemas.c.version,
        func.coalesce(channel_schemas.c.annotated, schemas.c.definition).label("definition"),
    )
    .join(schemas, schemas.c.id == channel_schemas.c.schema_id)
    .where(
        tuple_(channel_schemas.c.channel_uid, channel_schemas.c.version).in_(
            bindparam("versions", expanding=True)
        )
    )
)
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


def find(tx: ReadTransaction, schema_id: int, *, prefixes: Collection[str] | None) -> str | None:
    """Return a schema's definition if a channel whose name starts with one of `prefixes` has it.

    The annotations are those of the channel that got the schema last. With `prefixes` None, any
    schema is returned.
    """
    statement = select(schemas.c.definition).where(schemas.c.id == schema_id, _visible(prefixes))
    definition: str | None = tx.execute(statement).scalar_one_or_none()
    if definition is None:
        return None
    latest = (
        select(channel_schemas.c.annotated)
        .join(channels, channels.c.uid == channel_schemas.c.channel_uid)
        .where(
            channel_schemas.c.schema_id == schema_id,
            channel_schemas.c.annotated.is_not(None),
            true() if prefixes is None else starts_with(channels.c.name, prefixes),
        )
        .order_by(channel_schemas.c.created_at.desc(), channels.c.name)
        .limit(1)
    )
    annotated: str | None = tx.execute(latest).scalar_one_or_none()
    return annotated or definition


def max_id(tx: ReadTransaction, *, prefixes: Collection[str] | None) -> int:
    """Return the highest id of the schemas that `find` returns with `prefixes`; 0 without any."""
    return int(tx.execute(select(func.max(schemas.c.id)).where(_visible(prefixes))).scalar() or 0)


def _visible(prefixes: Collection[str] | None) -> ColumnElement[bool]:
    if prefixes is None:
        return true()
    return (
        exists()
        .where(channel_schemas.c.schema_id == schemas.c.id)
        .where(channels.c.uid == channel_schemas.c.channel_uid)
        .where(starts_with(channels.c.name, prefixes))
    )


def versions(tx: ReadTransaction, channel_uid: str) -> tuple[SchemaVersion, ...]:
    """Return all schemas of the channel, the oldest first."""
    return tuple(map(_version_of, tx.execute(_VERSIONS, {"channel_uid": channel_uid})))


def _version_of(row: Row[Any]) -> SchemaVersion:
    return SchemaVersion(**columns_of(row, SchemaVersion))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A channel whose messages carry the ids of schemas; `version` is the current one."""

    channel_uid: str
    channel: str
    topic: str
    version: int
    compatibility: Compatibility


_WITH_IDS = select(
    channels.c.uid.label("channel_uid"),
    channels.c.name.label("channel"),
    channels.c.topic_name.label("topic"),
    channels.c.schema_version.label("version"),
    channels.c.compatibility,
).where(channels.c.format == str(Format.AVRO))


def subjects(
    tx: ReadTransaction, *, prefixes: Collection[str], name: str | None = None
) -> list[Subject]:
    """Return the subjects of channels whose names start with one of `prefixes`.

    With a `name`, only those of the channel and of the topic of that name.
    """
    statement = _WITH_IDS.where(starts_with(channels.c.name, prefixes))
    if name is not None:
        statement = statement.where(or_(channels.c.name == name, channels.c.topic_name == name))
    return [_subject_of(row) for row in tx.execute(statement)]


def subject_versions(
    tx: ReadTransaction, *, prefixes: Collection[str], schema_id: int | None = None
) -> list[tuple[Subject, int, int]]:
    """Return the versions of all subjects, or those with one schema.

    Each is a subject, the number of the version, and the id of its schema.
    """
    of = channel_schemas.c
    statement = (
        _WITH_IDS.add_columns(of.version.label("of_schema"), of.schema_id.label("schema_id"))
        .join(channel_schemas, of.channel_uid == channels.c.uid)
        .where(starts_with(channels.c.name, prefixes))
    )
    if schema_id is not None:
        statement = statement.where(of.schema_id == schema_id)
    return [(_subject_of(row), row.of_schema, row.schema_id) for row in tx.execute(statement)]


def definitions(
    tx: ReadTransaction, versions: Collection[tuple[str, int]]
) -> dict[tuple[str, int], str]:
    """Return the definitions of versions, by a channel's uid and the version's number."""
    rows = tx.in_parts(_DEFINITIONS, versions=sorted(versions))
    return {(row.channel_uid, row.version): row.definition for row in rows}


def _subject_of(row: Row[Any]) -> Subject:
    compatibility = Compatibility(row.compatibility)
    return Subject(**columns_of(row, Subject) | {"compatibility": compatibility})


@dataclass(frozen=True, kw_only=True)
class KeptTopic:
    """Format and schemas of a topic's records, the oldest schema first."""

    format: Format
    versions: tuple[SchemaVersion, ...]


def keep_for_topic(tx: WriteTransaction, channel_uid: str, *, phases: Collection[Phase]) -> None:
    """Keep the schemas of a channel that is deleted without its topic."""
    kept = (
        select(
            channels.c.topic_id,
            channel_schemas.c.version,
            channel_schemas.c.schema_id,
            channel_schemas.c.created_at,
            channel_schemas.c.annotated,
            channels.c.format,
        )
        .join(channel_schemas, channel_schemas.c.channel_uid == channels.c.uid)
        .where(
            channels.c.uid == channel_uid,
            in_phases(phases),
            channels.c.keep_topic,
            channels.c.topic_id.is_not(None),
        )
    )
    columns = ["topic_id", "version", "schema_id", "created_at", "annotated", "format"]
    statements = by_dialect(
        lambda insert: insert(kept_schemas).from_select(columns, kept).on_conflict_do_nothing()
    )
    tx.execute(statements[tx.dialect])


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
    return KeptTopic(format=Format(rows[0].format), versions=tuple(map(_version_of, rows)))


def forget_kept(tx: WriteTransaction, topic_id: str) -> None:
    """Delete the kept schemas of a topic that has a channel again."""
    tx.execute(delete(kept_schemas).where(kept_schemas.c.topic_id == topic_id))
