"""Schema versions of a channel, and their compatibility."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sluiceway.errors import SchemaError
from sluiceway.schema import Schema
from sluiceway.schema.compatibility import incompatibilities
from sluiceway.schema.schema import bytes_schema, holds_messages
from sluiceway_gateway.channels.model import (
    MAX_SCHEMA_CHARACTERS,
    MAX_SCHEMA_VERSIONS,
    Compatibility,
    Format,
    SchemaVersion,
)
from sluiceway_gateway.db.engine import WriteTransaction
from sluiceway_gateway.errors import InvalidSchema, SchemaIncompatible, TooManySchemas, Violation
from sluiceway_gateway.schemas import store as schemas_store

_POINTER = "/spec/schema"
_MAX_VIOLATIONS = 20


@dataclass(frozen=True, kw_only=True)
class ParsedSchema:
    """A valid schema of a channel."""

    schema: Schema

    @property
    def canonical(self) -> str:
        """Canonical Avro JSON."""
        return self.schema.canonical


def parse_schema(definition: Mapping[str, Any]) -> ParsedSchema:
    """Parse an Avro schema; raises InvalidSchema with the path of the fault."""
    try:
        return ParsedSchema(schema=Schema.parse(definition))
    except SchemaError as error:
        raise InvalidSchema(
            f"The schema cannot be used: {error}",
            (Violation(pointer=_POINTER, message=str(error)),),
        ) from error


def schema_for(given: ParsedSchema | None, format_: Format) -> ParsedSchema | None:
    """Return the schema for a format; `bytes` has a default.

    Raises InvalidSchema for a schema that the format does not allow.
    """
    if format_ is not Format.BYTES:
        return given
    if given is None:
        return ParsedSchema(schema=bytes_schema())
    if holds_messages(given.schema):
        return given
    raise InvalidSchema(
        "A channel of the format bytes has records of one field, `value`, of the type bytes or of "
        "null and bytes: leave spec.schema out, or give another format.",
        (Violation(pointer=_POINTER, message="not a record of one field `value` of bytes"),),
    )


def version_of(
    tx: WriteTransaction,
    given: ParsedSchema,
    *,
    kept: Sequence[SchemaVersion],
    rule: Compatibility,
    now: datetime,
) -> SchemaVersion:
    """Return the kept version with this schema, or a new one that the caller has to store.

    Raises SchemaIncompatible and TooManySchemas.
    """
    parsed = [(each.version, _parsed(each.definition)) for each in kept]
    same = next(
        (each for each, (_, its) in zip(kept, parsed, strict=True) if its == given.schema), None
    )
    if same is None:
        _require_room(given.schema, kept)
    _require(given.schema, [each for each in parsed if each[1] != given.schema], rule)
    if same is not None:
        return same
    schema = given.schema
    return SchemaVersion(
        id=schemas_store.register(
            tx, fingerprint=schema.fingerprint, definition=schema.canonical, now=now
        ),
        version=max((each.version for each in kept), default=0) + 1,
        definition=schema.canonical,
        created_at=now,
    )


def is_same(definition: str, given: ParsedSchema) -> bool:
    """Return whether the stored definition is this schema."""
    return _parsed(definition) == given.schema


def _require_room(schema: Schema, kept: Sequence[SchemaVersion]) -> None:
    characters = len(schema.canonical) + sum(len(each.definition) for each in kept)
    if not kept or (len(kept) < MAX_SCHEMA_VERSIONS and characters <= MAX_SCHEMA_CHARACTERS):
        return
    raise TooManySchemas(
        f"The channel keeps {len(kept)} versions of its schema, and another one is beyond what a "
        f"channel may keep: {MAX_SCHEMA_VERSIONS} versions, {MAX_SCHEMA_CHARACTERS} characters in "
        "all. None is taken away, for messages may carry its id: use one of these versions again, "
        "or make another channel for this schema."
    )


def _require(schema: Schema, others: Sequence[tuple[int, Schema]], rule: Compatibility) -> None:
    broken = [
        Violation(pointer=_POINTER, message=reason)
        for version, other in others
        for reason in _broken(schema, version, other, rule)
    ]
    if not broken:
        return
    if len(broken) > _MAX_VIOLATIONS:
        more = f"and {len(broken) - _MAX_VIOLATIONS} more of the kind"
        broken = [*broken[:_MAX_VIOLATIONS], Violation(pointer=_POINTER, message=more)]
    raise SchemaIncompatible(
        f"The schema breaks the compatibility {rule} with versions that the channel keeps. Change "
        "it as the errors say, set spec.compatibility to a rule that it meets, or make another "
        "channel.",
        tuple(broken),
    )


def _broken(schema: Schema, version: int, before: Schema, rule: Compatibility) -> list[str]:
    """Return the incompatibilities of `schema` with another version."""
    found = []
    if rule in (Compatibility.BACKWARD, Compatibility.FULL):
        found += [
            f"records of version {version} cannot be read with it: {reason}"
            for reason in incompatibilities(schema, before)
        ]
    if rule in (Compatibility.FORWARD, Compatibility.FULL):
        found += [
            f"its records cannot be read with version {version}: {reason}"
            for reason in incompatibilities(before, schema)
        ]
    return found


@lru_cache(maxsize=64)
def _parsed(definition: str) -> Schema:
    return Schema.parse(definition)
