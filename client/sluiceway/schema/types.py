"""The types of records, and their limits.

A schema is a tree of these nodes with a `Record` at the root. Avro JSON, Arrow schemas, Spark's
StructTypes and dataclasses are parsed into this form.

`aliases` and `attributes` are annotations: what they contain affects no byte of a message, so types
that differ in them only are equal. `aliases` are earlier names, under which readers look for
written values. `attributes` are `doc` and all other attributes, as JSON values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal as Number
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Final, TypeAlias
from uuid import UUID

from sluiceway.errors import InvalidSchema

MAX_DEPTH: Final = 32
"""The nesting limit: deeper schemas could exhaust a reader's stack."""

MAX_FIELDS: Final = 10_000
"""The most fields of a schema, including those of nested records."""

MAX_FIXED_BYTES: Final = 1024
"""The longest fixed: in Arrow, even a null of one byte takes that much memory."""

MAX_DIGITS: Final = 76
"""The most digits of a decimal, the limit of Arrow's widest type."""

MAX_BRANCHES: Final = 64
"""The most types of a union: a comparison of two unions compares each pair of types."""

UUID_TEXT: Final = "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
"""The regular expression of a UUID's text."""

UUID_BYTES: Final = 16
UUID_TEXT_BYTES: Final = 36

FLOAT_MAX: Final = 3.4028234663852886e38
"""The greatest 32-bit float."""

MICROSECONDS: Final = 1_000_000
"""The ticks per second of Python's times and timestamps, and of Spark's."""

CALENDAR: Final = (-62_135_596_800, 253_402_300_800)
"""The begin and end of Python's calendar, the years 1 to 9999, in seconds."""

DAY: Final = 86_400
"""The seconds of a day."""

_TICKS: Final = {"ms": 1_000, "us": MICROSECONDS, "ns": 1_000_000_000}


@dataclass(frozen=True, kw_only=True)
class Traits:
    """A row of the table of types: what distinguishes a kind, without what follows from it."""

    name: str
    physical: str = ""
    """The type that stores it in Avro if it is a logical type."""
    python: type
    """The class of its values in records."""
    plain: bool = False
    """Whether `python` annotates it in a dataclass. Other kinds are `Annotated` with their name."""
    bits: int = 0
    """The width of numbers."""
    units: tuple[str, ...] = ()
    """The unit of times and timestamps, and those of Arrow that are converted to it."""
    instant: bool = False
    """Whether it is counted from 1970 in UTC. Other timestamps are in an unknown time zone."""
    arrow: tuple[str, ...] = ()
    """pyarrow's alias of its type, and those that are converted to it; not with `units`."""
    spark: tuple[str, ...] = ()
    """Its type in Spark's JSON, and those that are converted to it; not with `units`."""


class Kind(StrEnum):
    """The table of the types without parameters, by their Avro names."""

    def __new__(cls, traits: Traits) -> Kind:  # noqa: D102 - makes the members
        kind = str.__new__(cls, traits.name)
        kind._value_ = traits.name
        return kind

    def __init__(self, traits: Traits) -> None:
        self.traits = traits

    BOOLEAN = Traits(name="boolean", python=bool, plain=True, arrow=("bool",), spark=("boolean",))
    INT = Traits(
        name="int",
        python=int,
        bits=32,
        arrow=("int32", "int8", "int16", "uint8", "uint16"),
        spark=("integer", "byte", "short"),
    )
    LONG = Traits(
        name="long", python=int, plain=True, bits=64, arrow=("int64", "uint32"), spark=("long",)
    )
    FLOAT = Traits(
        name="float", python=float, bits=32, arrow=("float", "halffloat"), spark=("float",)
    )
    DOUBLE = Traits(
        name="double", python=float, plain=True, bits=64, arrow=("double",), spark=("double",)
    )
    STRING = Traits(
        name="string",
        python=str,
        plain=True,
        arrow=("string", "large_string", "string_view"),
        spark=("string",),
    )
    BYTES = Traits(
        name="bytes",
        python=bytes,
        plain=True,
        arrow=("binary", "large_binary", "binary_view"),
        spark=("binary",),
    )
    DATE = Traits(
        name="date", physical="int", python=date, plain=True, arrow=("date32",), spark=("date",)
    )
    TIME_MILLIS = Traits(name="time-millis", physical="int", python=time, units=("ms", "s"))
    TIME = Traits(name="time-micros", physical="long", python=time, plain=True, units=("us",))
    TIMESTAMP_MILLIS = Traits(
        name="timestamp-millis", physical="long", python=datetime, units=("ms",), instant=True
    )
    TIMESTAMP = Traits(
        name="timestamp-micros",
        physical="long",
        python=datetime,
        plain=True,
        units=("us", "s"),
        instant=True,
    )
    TIMESTAMP_NANOS = Traits(
        name="timestamp-nanos", physical="long", python=datetime, units=("ns",), instant=True
    )
    LOCAL_TIMESTAMP_MILLIS = Traits(
        name="local-timestamp-millis", physical="long", python=datetime, units=("ms",)
    )
    LOCAL_TIMESTAMP = Traits(
        name="local-timestamp-micros", physical="long", python=datetime, units=("us", "s")
    )
    LOCAL_TIMESTAMP_NANOS = Traits(
        name="local-timestamp-nanos", physical="long", python=datetime, units=("ns",)
    )

    @cached_property
    def physical(self) -> Kind:
        """The kind that stores its values in Avro; itself unless it is a logical type."""
        return Kind(self.traits.physical or self.value)  # type: ignore[arg-type]

    @cached_property
    def ticks(self) -> int:
        """The ticks per second of times and timestamps, otherwise 0."""
        return _TICKS[self.traits.units[0]] if self.traits.units else 0

    @cached_property
    def range(self) -> tuple[int, int]:
        """The least and the greatest stored number: of integers, dates, times and timestamps."""
        high = (1 << self.physical.traits.bits - 1) - 1
        python = self.traits.python
        if python is int:
            return -high - 1, high
        begin, end = (0, DAY) if python is time else CALENDAR
        if python is date:
            return begin // DAY, end // DAY - 1
        return max(begin * self.ticks, -high - 1), min(end * self.ticks - 1, high)

    @property
    def arrow(self) -> tuple[str, ...]:
        """The Arrow types as in `Traits`, of all kinds; those of an instant lack the time zone."""
        clock = "time32" if self.physical is Kind.INT else "time64"
        name = "timestamp" if self.traits.python is datetime else clock
        return self.traits.arrow or tuple(f"{name}[{unit}]" for unit in self.traits.units)

    @property
    def spark(self) -> tuple[str, ...]:
        """Spark's types as in `Traits`, of all kinds; Spark has one unit for all `units`."""
        timestamp = "timestamp" if self.traits.instant else "timestamp_ntz"
        return self.traits.spark or ("time(6)" if self.traits.python is time else timestamp,)


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A value of a type without parameters."""

    kind: Kind
    attributes: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def python(self) -> type:
        """The class of its values in records, as `python` of the other leaves."""
        return self.kind.traits.python


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Exactly `size` bytes. `name` is the full Avro name."""

    python: ClassVar[type] = bytes
    name: str
    size: int
    aliases: tuple[str, ...] = field(default=(), compare=False)
    attributes: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Decimal:
    """An exact number of at most `precision` digits, `scale` of them after the point.

    Stored as bytes or `fixed`: the unscaled number in two's complement, big-endian.
    """

    python: ClassVar[type] = Number
    precision: int
    scale: int
    fixed: Fixed | None = None
    attributes: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Uuid:
    """A UUID: stored as its text of 36 characters, or in the 16 bytes of `fixed`."""

    python: ClassVar[type] = UUID
    fixed: Fixed | None = None
    attributes: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Enum:
    """One of `symbols`; readers replace unknown symbols by `default`."""

    python: ClassVar[type] = str
    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = field(default=(), compare=False)
    attributes: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Nullable:
    """A value or null: an Avro union with null as the branch number `null_at`."""

    item: Present
    null_at: int = 0


@dataclass(frozen=True, kw_only=True)
class Array:
    """Any number of values of one type, in order."""

    items: Type
    attributes: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Map:
    """Values of one type under distinct string keys."""

    values: Type
    attributes: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Union:
    """A value of one of several types: an Avro union without null, which is a `Nullable`.

    No two branches have the same `branch_name`.
    """

    branches: tuple[Branch, ...]


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a record; `default` is the JSON text of Avro, or None."""

    name: str
    type: Type
    default: str | None = None
    aliases: tuple[str, ...] = field(default=(), compare=False)
    attributes: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class Record:
    """Named fields in order. `name` is the full Avro name, unique among the schema's records."""

    name: str
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = field(default=(), compare=False)
    attributes: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)


Leaf: TypeAlias = Scalar | Fixed | Decimal | Uuid | Enum
"""The types that contain no others."""

Branch: TypeAlias = Leaf | Array | Map | Record
Present: TypeAlias = Branch | Union
Type: TypeAlias = Present | Nullable


def present(type_: Type) -> Present:
    """Return the type of the values that are not null."""
    return type_.item if isinstance(type_, Nullable) else type_


def physical(leaf: Leaf) -> Kind | Fixed:
    """Return the type that stores the values of `leaf` in Avro."""
    match leaf:
        case Scalar(kind=kind):
            return kind.physical
        case Fixed():
            return leaf
        case Decimal(fixed=fixed):
            return fixed or Kind.BYTES
        case Uuid(fixed=fixed):
            return fixed or Kind.STRING
        case Enum():
            return Kind.INT


def walk(type_: Type) -> Iterator[Type]:
    """Yield `type_` and all types within it."""
    yield type_
    match type_:
        case Nullable(item=inner) | Array(items=inner) | Map(values=inner):
            yield from walk(inner)
        case Record(fields=fields):
            for field in fields:
                yield from walk(field.type)
        case Union(branches=branches):
            for branch in branches:
                yield from walk(branch)


def own_name(type_: Branch) -> str | None:
    """Return the full Avro name of a record, an enum or a fixed; None for other types."""
    match type_:
        case Record(name=name) | Enum(name=name) | Fixed(name=name):
            return name
        case Decimal(fixed=Fixed(name=name)) | Uuid(fixed=Fixed(name=name)):
            return name
    return None


def aliases_of(type_: Branch) -> tuple[str, ...]:
    """Return the earlier full names of a record, an enum or a fixed; none for other types."""
    match type_:
        case Record(aliases=aliases) | Enum(aliases=aliases) | Fixed(aliases=aliases):
            return aliases
        case Decimal(fixed=Fixed(aliases=aliases)) | Uuid(fixed=Fixed(aliases=aliases)):
            return aliases
    return ()


def written_name(field: Field, written: Container[str]) -> str | None:
    """Return the name of the written field whose values `field` reads; None without one.

    `written` contains the names of the written record's fields. The field's own name comes first,
    then its aliases in order.
    """
    return next((name for name in (field.name, *field.aliases) if name in written), None)


def branch_name(type_: Branch) -> str:
    """Return the name of a branch in its union, as in Avro's JSON encoding.

    It is the full name of a named type, else the name of the physical type.
    """
    match type_:
        case Array():
            return "array"
        case Map():
            return "map"
        case Record(name=name) | Enum(name=name):
            return name
        case leaf:
            stored = physical(leaf)
            return stored.name if isinstance(stored, Fixed) else stored.value


def branch_names(union: Union) -> str:
    """List the names of the branches of `union` in a message."""
    return ", ".join(map(branch_name, union.branches))


def checked_union(branches: tuple[Branch, ...], path: str) -> Union:
    """Return the union of `branches`. Raises InvalidSchema if two have one name, or for many."""
    if len(branches) > MAX_BRANCHES:
        raise invalid_schema(path, f"the union has more than {MAX_BRANCHES} types")
    names = [branch_name(branch) for branch in branches]
    for name in names:
        if names.count(name) > 1:
            problem = f"two branches of the union have the Avro type {name}; keep one of them"
            raise invalid_schema(path, problem)
    return Union(branches=branches)


def find_union(record: Record) -> str | None:
    """Return the path of the first union of several types within `record`, or None."""

    def first_union(type_: Type, path: str) -> str | None:
        match type_:
            case Union():
                return path
            case Nullable(item=item):
                return first_union(item, path)
            case Array(items=items):
                return first_union(items, f"{path}[]")
            case Map(values=values):
                return first_union(values, f"{path}{{}}")
            case Record(fields=fields):
                paths = (first_union(field.type, join_path(path, field.name)) for field in fields)
                return next(filter(None, paths), None)
        return None

    return first_union(record, "")


def map_leaves(
    record: Record, convert: Callable[[Leaf], Branch], name: Callable[[str], str] = str
) -> Record:
    """Return `record` with converted leaves, without defaults, and with records renamed.

    Enums that are branches of a union are only renamed: numbers would be ambiguous with other
    branches.
    """

    def mapped(type_: Type) -> Any:
        match type_:
            case Nullable(item=item, null_at=null_at):
                return Nullable(item=mapped(item), null_at=null_at)
            case Union(branches=branches):
                return Union(branches=tuple(map(branch, branches)))
            case Array(items=items):
                return Array(items=mapped(items))
            case Map(values=values):
                return Map(values=mapped(values))
            case Record():
                return map_leaves(type_, convert, name)
            case leaf:
                return convert(leaf)

    def branch(type_: Branch) -> Any:
        if isinstance(type_, Enum):
            return Enum(name=name(type_.name), symbols=type_.symbols)
        return mapped(type_)

    new_name = name(record.name)  # before the names of the records within
    fields = tuple(Field(name=f.name, type=mapped(f.type)) for f in record.fields)
    return Record(name=new_name, fields=fields)


def field_at(path: str) -> str:
    """Describe the field at `path` in a message."""
    return f"field {path!r}" if path else "the schema"


def invalid_schema(path: str, problem: str) -> InvalidSchema:
    """Return the exception for a problem of the field at `path`."""
    error = InvalidSchema(f"{field_at(path)}: {problem}")
    error.path = path
    return error


def join_path(path: str, name: str) -> str:
    """Return the path of the field `name` of the record at `path`."""
    return f"{path}.{name}" if path else name


class SchemaLimits:
    """The limits of a schema under construction, and its size so far."""

    def __init__(self) -> None:
        self.fields = 0
        self.depth = 0

    def count(self, fields: int, depth: int, path: str) -> None:
        """Count `fields` at `depth` levels. Raises InvalidSchema beyond the limits."""
        self.fields += fields
        self.depth = max(self.depth, depth)
        if self.fields > MAX_FIELDS:
            raise InvalidSchema(f"the schema has more than {MAX_FIELDS} fields")
        if depth > MAX_DEPTH:
            raise invalid_schema(path, f"nested deeper than {MAX_DEPTH} levels")


ROOT: Final = "Record"
"""The name of a record made from a schema without names."""

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""An Avro name without a namespace."""


def name_advice(name: str) -> str:
    """Return a message that `name` is not an Avro name, with a similar valid name."""
    better = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "field"
    better = f"_{better}" if better[0].isdigit() else better
    return (
        f"{name!r} is not an Avro name (letters, digits and _, no digit first); "
        f"rename it, for instance to {better!r}"
    )


def checked_field(path: str, name: str, taken: Container[str]) -> str:
    """Return the path of a new field. Raises InvalidSchema for an invalid or repeated name."""
    where = join_path(path, name)
    if not NAME.fullmatch(name):
        raise invalid_schema(where, name_advice(name))
    if name in taken:
        raise invalid_schema(where, "exists twice; rename one of the two")
    return where
