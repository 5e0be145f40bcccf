"""The types that a channel can carry, and their limits.

A schema is a tree of these nodes with a `Record` at the top. It is the one form that Avro JSON,
Arrow schemas and dataclasses are read into, and that everything else is made from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from sluiceway.errors import InvalidSchema

MAX_DEPTH: Final = 32
"""How deep types may nest; deeper ones serve to exhaust a reader's stack."""

MAX_FIELDS: Final = 10_000
"""How many fields a schema may have, those of nested records included."""

MAX_FIXED_BYTES: Final = 1024
"""How long a fixed may be; a null of one byte takes that much memory in Arrow."""

MAX_DIGITS: Final = 76
"""How many digits a decimal may have: what Arrow's widest holds."""

UUID_TEXT: Final = "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
"""What the text of a UUID looks like, as a regular expression."""


class Kind(StrEnum):
    """What a single value without parameters can be; the text is Avro's name for it."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    STRING = "string"
    BYTES = "bytes"
    DATE = "date"
    TIME_MILLIS = "time-millis"
    TIME = "time-micros"
    TIMESTAMP_MILLIS = "timestamp-millis"
    TIMESTAMP = "timestamp-micros"
    TIMESTAMP_NANOS = "timestamp-nanos"
    LOCAL_TIMESTAMP_MILLIS = "local-timestamp-millis"
    LOCAL_TIMESTAMP = "local-timestamp-micros"
    LOCAL_TIMESTAMP_NANOS = "local-timestamp-nanos"


LOGICAL: Final = {
    Kind.DATE: Kind.INT,
    Kind.TIME_MILLIS: Kind.INT,
    Kind.TIME: Kind.LONG,
    Kind.TIMESTAMP_MILLIS: Kind.LONG,
    Kind.TIMESTAMP: Kind.LONG,
    Kind.TIMESTAMP_NANOS: Kind.LONG,
    Kind.LOCAL_TIMESTAMP_MILLIS: Kind.LONG,
    Kind.LOCAL_TIMESTAMP: Kind.LONG,
    Kind.LOCAL_TIMESTAMP_NANOS: Kind.LONG,
}
"""The logical types without parameters, each with the plain kind it is stored as."""

TICKS: Final = {  # per second
    Kind.TIME_MILLIS: 1_000,
    Kind.TIME: 1_000_000,
    Kind.TIMESTAMP_MILLIS: 1_000,
    Kind.TIMESTAMP: 1_000_000,
    Kind.TIMESTAMP_NANOS: 1_000_000_000,
    Kind.LOCAL_TIMESTAMP_MILLIS: 1_000,
    Kind.LOCAL_TIMESTAMP: 1_000_000,
    Kind.LOCAL_TIMESTAMP_NANOS: 1_000_000_000,
}
"""What the times and timestamps count: so many ticks a second."""

INSTANTS: Final = frozenset({Kind.TIMESTAMP_MILLIS, Kind.TIMESTAMP, Kind.TIMESTAMP_NANOS})
"""The timestamps that are certain instants, counted from 1970 in UTC."""

LOCALS: Final = frozenset(
    {Kind.LOCAL_TIMESTAMP_MILLIS, Kind.LOCAL_TIMESTAMP, Kind.LOCAL_TIMESTAMP_NANOS}
)
"""The timestamps of some calendar and clock, nobody says where."""

TIMES: Final = frozenset({Kind.TIME_MILLIS, Kind.TIME})
"""The times of a day, from midnight on."""


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A single value of a kind that has no parameters."""

    kind: Kind


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Exactly `size` bytes. `name` is the full Avro name."""

    name: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Decimal:
    """An exact number of at most `precision` digits, `scale` of them behind the point.

    Stored as bytes, or in the bytes of `fixed`: the unscaled number in two's complement, the
    highest byte first.
    """

    precision: int
    scale: int
    fixed: Fixed | None = None


@dataclass(frozen=True, kw_only=True)
class Uuid:
    """A UUID: stored as its text of 36 characters, or in the 16 bytes of `fixed`."""

    fixed: Fixed | None = None


@dataclass(frozen=True, kw_only=True)
class Enum:
    """One of `symbols`. `default`: what a reader takes for a symbol that it does not know."""

    name: str
    symbols: tuple[str, ...]
    default: str | None = None


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


Leaf: TypeAlias = Scalar | Fixed | Decimal | Uuid | Enum
"""What has no types within."""

Present: TypeAlias = Leaf | Array | Map | Record
Type: TypeAlias = Present | Nullable


def at(path: str) -> str:
    """Name the place `path` in a message."""
    return f"field {path!r}" if path else "the schema"


def below(path: str, name: str) -> str:
    """Give the path of the field `name` of the record at `path`."""
    return f"{path}.{name}" if path else name


class Budget:
    """What is counted while a schema is made: fields, levels."""

    def __init__(self) -> None:
        self._left = MAX_FIELDS

    def take(self, fields: int, depth: int, path: str) -> None:
        """Count `fields` that lie `depth` levels deep; raise InvalidSchema past the limits."""
        self._left -= fields
        if self._left < 0:
            raise InvalidSchema(f"the schema has more than {MAX_FIELDS} fields")
        if depth > MAX_DEPTH:
            raise InvalidSchema(f"{at(path)} is nested deeper than {MAX_DEPTH} levels")


NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""An Avro name without its namespace."""


def name_advice(name: str) -> str:
    """Say what is wrong with `name`, and give a name like it that Avro allows."""
    better = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "field"
    better = f"_{better}" if better[0].isdigit() else better
    return (
        f"{name!r} is not an Avro name (letters, digits and _, no digit first); "
        f"rename it, for instance to {better!r}"
    )
