"""Subjects of the registry: channels with their schemas, as SQL."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import bindparam, func, or_, select, tuple_

from sluiceway_gateway.channels.tables import channels
from sluiceway_gateway.core.db.engine import ReadTransaction
from sluiceway_gateway.core.db.statements import columns_of, starts_with
from sluiceway_gateway.schemas.model import Compatibility, Format
from sluiceway_gateway.schemas.tables import channel_schemas, schemas

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


FORMATS = (Format.AVRO, Format.JSON, Format.PROTOBUF)
"""Formats of messages that registry clients decode."""

_DEFINITION = (
    select(func.coalesce(channel_schemas.c.annotated, schemas.c.definition))
    .join(schemas, schemas.c.id == channel_schemas.c.schema_id)
    .where(
        channel_schemas.c.channel_uid == bindparam("channel_uid"),
        channel_schemas.c.schema_id == bindparam("schema_id"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A channel whose messages registry clients decode; `version` is the current one."""

    channel_uid: str
    channel: str
    topic: str
    version: int
    format: Format
    compatibility: Compatibility


_SUBJECTS = select(
    channels.c.uid.label("channel_uid"),
    channels.c.name.label("channel"),
    channels.c.topic_name.label("topic"),
    channels.c.schema_version.label("version"),
    channels.c.format,
    channels.c.compatibility,
).where(channels.c.format.in_(FORMATS))


def subjects(
    tx: ReadTransaction, *, prefixes: Collection[str], name: str | None = None
) -> list[Subject]:
    """Return the subjects of channels whose names start with one of `prefixes`.

    With a `name`, only those of the channel and of the topic of that name.
    """
    statement = _SUBJECTS.where(starts_with(channels.c.name, prefixes))
    if name is not None:
        statement = statement.where(or_(channels.c.name == name, channels.c.topic_name == name))
    return [Subject(**columns_of(row, Subject)) for row in tx.execute(statement)]


def subject_versions(
    tx: ReadTransaction, *, prefixes: Collection[str], schema_id: int | None = None
) -> list[tuple[Subject, int, int]]:
    """Return the versions of all subjects, or those with one schema.

    Each is a subject, the number of the version, and the id of its schema.
    """
    of = channel_schemas.c
    statement = (
        _SUBJECTS.add_columns(of.version.label("of_schema"), of.schema_id.label("schema_id"))
        .join(channel_schemas, of.channel_uid == channels.c.uid)
        .where(starts_with(channels.c.name, prefixes))
    )
    if schema_id is not None:
        statement = statement.where(of.schema_id == schema_id)
    return [
        (Subject(**columns_of(row, Subject)), row.of_schema, row.schema_id)
        for row in tx.execute(statement)
    ]


def definition(tx: ReadTransaction, subject: Subject, schema_id: int) -> str | None:
    """Return the subject's schema with this id; None if it does not have it."""
    key = {"channel_uid": subject.channel_uid, "schema_id": schema_id}
    text: str | None = tx.execute(_DEFINITION, key).scalar_one_or_none()
    return text


def definitions(
    tx: ReadTransaction, versions: Collection[tuple[str, int]]
) -> dict[tuple[str, int], str]:
    """Return the definitions of versions, by a channel's uid and the version's number."""
    rows = tx.in_parts(_DEFINITIONS, versions=sorted(versions))
    return {(row.channel_uid, row.version): row.definition for row in rows}
