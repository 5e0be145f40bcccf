"""The types a channel can carry, as values.

A schema is a tree of these nodes with a `Record` at the top. It is the one form that Avro JSON,
Arrow schemas and dataclasses are read into, and that everything else is made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

MAX_DEPTH: Final = 32
"""How deep types may nest; deeper ones serve to exhaust a reader's stack."""

MAX_FIELDS: Final = 10_000
"""How many fields a schema may have, those of nested records included."""


class Kind(StrEnum):
    """What a single value can be; the text is Avro's name for it."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"
    DATE = "date"
    TIMESTAMP = "timestamp-micros"
    LOCAL_TIMESTAMP = "local-timestamp-micros"


LOGICAL: Final = {Kind.DATE: Kind.INT, Kind.TIMESTAMP: Kind.LONG, Kind.LOCAL_TIMESTAMP: Kind.LONG}
"""The logical types, each with the plain type it is stored as."""


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A single value."""

    kind: Kind


@dataclass(frozen=True, kw_only=True)
class Nullable:
    """A value or null: Avro's union of two branches. `null_first` is the order of the branches."""

    item: Present
    null_first: bool = True


@dataclass(frozen=True, kw_only=True)
class Array:
    """Any number of values of one type, in order."""

    items: Type


@dataclass(frozen=True, kw_only=True)
class Map:
    """Values of one type under distinct string keys."""

    values: Type


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a record. `default` is JSON text as Avro writes it; None: there is none."""

    name: str
    type: Type
    default: str | None = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """Named fields in order. `name` is the full Avro name, unique among the schema's records."""

    name: str
    fields: tuple[Field, ...]


Present: TypeAlias = Scalar | Array | Map | Record
Type: TypeAlias = Present | Nullable


def at(path: str) -> str:
    """Name the place `path` in a message."""
    return f"field {path!r}" if path else "the schema"


def below(path: str, name: str) -> str:
    """Give the path of the field `name` of the record at `path`."""
    return f"{path}.{name}" if path else name
