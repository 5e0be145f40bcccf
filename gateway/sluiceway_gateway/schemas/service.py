"""Schema versions of a channel, and their compatibility."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sluiceway.errors import SchemaError
from sluiceway.schema import Schema
from sluiceway.schema.compatibility import (
    base64_changes,
    incompatibilities,
    reasons_by_version,
)
from sluiceway.schema.proto_files import proto_file
from sluiceway.schema.protobuf import number_changes, numbered
from sluiceway.schema.schema import bytes_schema, holds_messages
from sluiceway.schema.types import find_union
from sluiceway_gateway.core.db.engine import WriteTransaction
from sluiceway_gateway.core.errors import (
    InvalidSchema,
    SchemaIncompatible,
    TooManySchemas,
    Violation,
)
from sluiceway_gateway.schemas import store as schemas_store
from sluiceway_gateway.schemas.model import (
    MAX_SCHEMA_CHARACTERS,
    MAX_SCHEMA_VERSIONS,
    Compatibility,
    Format,
    SchemaVersion,
)

_POINTER = "/spec/schema"
_MAX_VIOLATIONS = 20


def parse_schema(definition: Mapping[str, Any]) -> Schema:
    """Parse an Avro schema; raises InvalidSchema with the pointer of the field."""
    try:
        return Schema.parse(definition)
    except SchemaError as error:
        raise _invalid(definition, error) from error


def _invalid(definition: Mapping[str, Any], error: SchemaError) -> InvalidSchema:
    return InvalidSchema(
        f"The schema cannot be used: {error}",
        (Violation(pointer=_pointer(definition, error.path), message=str(error)),),
    )


def _pointer(definition: Mapping[str, Any], path: str) -> str:
    """Return the JSON pointer of the field at a path such as `a.b[].c`, as far as it is there."""
    pointer, within = _POINTER, _POINTER
    source: Any = definition
    for part in path.split(".") if path else ():
        name = part.rstrip("[]{}")
        matches = [pair for pair in _fields(source, within) if pair[1].get("name") == name]
        if not matches:
            break
        # The last of several, which the parser refuses.
        pointer, field = matches[-1]
        within, source = f"{pointer}/type", field.get("type")
    return pointer


def _fields(source: Any, pointer: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return pointers and definitions of the fields of the nearest records in a type."""
    fields: list[tuple[str, Mapping[str, Any]]] = []
    left = [(pointer, source)]
    while left:
        place, type_ = left.pop()
        if isinstance(type_, list):
            left += [(f"{place}/{index}", branch) for index, branch in enumerate(type_)]
        elif isinstance(type_, Mapping):
            members = type_.get("fields")
            if isinstance(members, list):
                numbered = enumerate(members)
                fields += [
                    (f"{place}/fields/{index}", field)
                    for index, field in numbered
                    if isinstance(field, Mapping)
                ]
            inner = [key for key in ("type", "items", "values") if key in type_]
            left += [(f"{place}/{key}", type_[key]) for key in inner]
    return fields


def schema_for(schema: Schema | None, format_: Format) -> Schema | None:
    """Return the schema for a format; `bytes` has a default.

    Raises InvalidSchema for a schema that the format does not allow.
    """
    without_unions = format_ in (Format.ARROW, Format.JSON)
    if without_unions and schema is not None and (path := find_union(schema.record)):
        raise InvalidSchema(
            f"The field {path!r} is a union of several types, which only the format avro has: "
            "give that format, or make the field a record with a nullable field for each type.",
            (Violation(pointer=_POINTER, message=f"field {path!r}: a union of several types"),),
        )
    if format_ is not Format.BYTES:
        return schema
    if schema is None:
        return bytes_schema()
    if holds_messages(schema):
        return schema
    raise InvalidSchema(
        "A channel of the format bytes has records of one field, `value`, of the type bytes or of "
        "null and bytes: leave spec.schema out, or give another format.",
        (Violation(pointer=_POINTER, message="not a record of one field `value` of bytes"),),
    )


def version_of(
    tx: WriteTransaction,
    schema: Schema,
    *,
    kept: Sequence[SchemaVersion],
    format_: Format,
    rule: Compatibility,
    now: datetime,
) -> SchemaVersion:
    """Return the kept version with this schema, or a new one; the caller stores what is not kept.

    The annotations of `schema` replace those of a kept version. Without any, these are kept: a job
    whose schema comes from a dataframe does not remove an alias. Versions of `protobuf` are
    numbered. Raises SchemaIncompatible, TooManySchemas, and InvalidSchema for one without numbers.
    """
    same = next((version for version in kept if version.fingerprint == schema.fingerprint), None)
    if format_ is Format.PROTOBUF and (same is None or schema.annotated):
        schema = _numbered(schema, kept)
    if same is None:
        _require_room(schema, kept)
    elif schema.annotated:
        same = replace(same, definition=schema.text)
    else:
        schema = _parsed(same.definition)
    others = [version for version in kept if version.fingerprint != schema.fingerprint]
    _require_compatible(schema, others, rule)
    if format_ in _CONFUSIONS:
        _require_distinct(schema, kept, format_)
    if same is not None:
        return same
    return SchemaVersion(
        id=schemas_store.register(
            tx, fingerprint=schema.fingerprint, definition=schema.canonical, now=now
        ),
        version=max((version.version for version in kept), default=0) + 1,
        fingerprint=schema.fingerprint,
        definition=schema.text,
        created_at=now,
    )


def _numbered(schema: Schema, kept: Sequence[SchemaVersion]) -> Schema:
    try:
        with_numbers = numbered(schema, [_parsed(version.definition) for version in kept])
        proto_file(with_numbers)  # The registry shows it.
    except SchemaError as error:
        raise _invalid(schema.definition, error) from error
    return with_numbers


def _require_room(schema: Schema, kept: Sequence[SchemaVersion]) -> None:
    characters = len(schema.text) + sum(len(version.definition) for version in kept)
    if not kept or (len(kept) < MAX_SCHEMA_VERSIONS and characters <= MAX_SCHEMA_CHARACTERS):
        return
    raise TooManySchemas(
        f"The channel keeps {len(kept)} versions of its schema, and has no room for another: the "
        f"limit is {MAX_SCHEMA_VERSIONS} versions and {MAX_SCHEMA_CHARACTERS} characters in all. "
        "Versions are never removed, because messages may carry their ids: use one of these "
        "versions again, or create another channel for this schema."
    )


def _require_compatible(
    schema: Schema, others: Sequence[SchemaVersion], rule: Compatibility
) -> None:
    broken = [
        Violation(pointer=_POINTER, message=reason) for reason in differences(schema, others, rule)
    ]
    if not broken:
        return
    if len(broken) > _MAX_VIOLATIONS:
        more = f"and {len(broken) - _MAX_VIOLATIONS} more of the kind"
        broken = [*broken[:_MAX_VIOLATIONS], Violation(pointer=_POINTER, message=more)]
    raise SchemaIncompatible(
        f"The schema breaks the compatibility {rule} with versions that the channel keeps. Change "
        "the fields that the errors name, set spec.compatibility to a rule that it meets, or "
        "create another channel.",
        tuple(broken),
    )


_CONFUSIONS: Final = {
    Format.JSON: (
        base64_changes,
        "The schema makes text of bytes, or bytes of text, and messages of the format json do not "
        "tell which they have.",
    ),
    Format.PROTOBUF: (
        number_changes,
        "The schema gives another meaning to numbers of earlier versions, and messages of the "
        "format protobuf name their fields by these.",
    ),
}
"""By format, the check for changes that its readers would not notice, and the error's text."""


def _require_distinct(schema: Schema, kept: Sequence[SchemaVersion], format_: Format) -> None:
    changes_of, reason = _CONFUSIONS[format_]
    # Also with the version that it replaces, which may have had other numbers.
    changes = [
        f"with version {version.version}: {change}"
        for version in kept
        for change in changes_of(schema, _parsed(version.definition))
    ]
    if changes:
        raise SchemaIncompatible(
            reason,
            tuple(
                Violation(pointer=_POINTER, message=change) for change in changes[:_MAX_VIOLATIONS]
            ),
        )


def differences(
    schema: Schema, versions: Sequence[SchemaVersion], rule: Compatibility
) -> list[str]:
    """Return the violations of the rule by a schema, against these versions."""
    earlier = {version.version: _parsed(version.definition) for version in versions}
    violations = []
    if rule in (Compatibility.BACKWARD, Compatibility.FULL):
        reasons = {number: incompatibilities(schema, kept) for number, kept in earlier.items()}
        violations += [
            f"records of {numbers} cannot be read with it: {reason}"
            for numbers, reason in reasons_by_version(reasons)
        ]
    if rule in (Compatibility.FORWARD, Compatibility.FULL):
        reasons = {number: incompatibilities(kept, schema) for number, kept in earlier.items()}
        violations += [
            f"its records cannot be read with {numbers}: {reason}"
            for numbers, reason in reasons_by_version(reasons)
        ]
    return violations


@lru_cache(maxsize=64)
def _parsed(definition: str) -> Schema:
    return Schema.parse(definition)
