"""The schema version that a reader or writer uses."""

from collections.abc import Iterable
from dataclasses import replace

from sluiceway.errors import SchemaMismatch
from sluiceway.rest.models import Connection, SchemaVersion
from sluiceway.schema import Schema
from sluiceway.schema.compatibility import incompatibilities

__all__ = ["require_readable", "to_read", "to_write"]

NOT_REGISTERED = 0
"""The schema id of a reader's own schema, which no message carries."""


def require_readable(channel: str, schema: Schema, kept: Iterable[SchemaVersion]) -> None:
    """Raise SchemaMismatch unless `schema` is one of the kept ones or can read records of all."""
    parsed = {each.version: Schema.parse(each.definition) for each in kept}
    if schema in parsed.values():
        return
    broken = [
        f"records of version {version} cannot be read with it: {reason}"
        for version, each in parsed.items()
        for reason in incompatibilities(schema, each)
    ]
    if broken:
        raise SchemaMismatch(
            f"the channel {channel!r} has another schema than the one given: {'; '.join(broken)}. "
            "Open the channel without a schema to use its own"
        )


def to_read(connection: Connection, schema: Schema) -> Connection:
    """Return the connection for a reader whose records are of `schema`. Raises SchemaMismatch."""
    require_readable(connection.channel_name, schema, connection.schemas)
    version = _version(connection, schema)
    return replace(
        connection,
        schema_id=NOT_REGISTERED if version is None else version.id,
        schema_definition=schema.definition,
    )


def to_write(connection: Connection, schema: Schema) -> Connection:
    """Return the connection for a writer of `schema`; SchemaMismatch if it is none of the kept."""
    version = _version(connection, schema)
    if version is None:
        raise SchemaMismatch(
            f"the channel {connection.channel_name!r} keeps no version of the schema given, so "
            "nobody can write with it: channel.update(schema=…) registers it"
        )
    return replace(connection, schema_id=version.id, schema_definition=version.definition)


def _version(connection: Connection, schema: Schema) -> SchemaVersion | None:
    return next(
        (each for each in connection.schemas if Schema.parse(each.definition) == schema), None
    )
