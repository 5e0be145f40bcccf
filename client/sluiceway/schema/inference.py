"""Schema inference from dataclasses and from Spark's StructType."""

from __future__ import annotations

import dataclasses
import decimal
import re
import types
import typing
from collections.abc import Hashable, Mapping
from datetime import date, datetime, time
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin
from uuid import UUID

from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema import avro, defaults
from sluiceway.schema import defaults as literals
from sluiceway.schema.types import (
    INSTANTS,
    LOCALS,
    MAX_DEPTH,
    NAME,
    Array,
    Budget,
    Decimal,
    Field,
    Kind,
    Leaf,
    Map,
    Nullable,
    Present,
    Record,
    Scalar,
    Type,
    Uuid,
    at,
    below,
    name_advice,
)

_TYPES: Final[dict[object, Leaf]] = {
    bool: Scalar(kind=Kind.BOOLEAN),
    int: Scalar(kind=Kind.LONG),
    float: Scalar(kind=Kind.DOUBLE),
    str: Scalar(kind=Kind.STRING),
    bytes: Scalar(kind=Kind.BYTES),
    date: Scalar(kind=Kind.DATE),
    time: Scalar(kind=Kind.TIME),
    datetime: Scalar(kind=Kind.TIMESTAMP),
    UUID: Uuid(),
}
_WORDS: Final[dict[object, frozenset[Kind]]] = {
    int: frozenset({Kind.INT}),
    float: frozenset({Kind.FLOAT}),
    time: frozenset({Kind.TIME_MILLIS}),
    datetime: INSTANTS | LOCALS,
}
"""What `Annotated[..., "int"]` may say instead of the annotation's own kind."""

_DECIMAL: Final = re.compile(r"decimal\((\d{1,9})(?:, ?(\d{1,9}))?\)")
_FIXED: Final = re.compile(r"fixed\((\d{1,9})\)")
_ADVICE: Final = (
    "use bool, int, float, str, bytes, Decimal, date, time, datetime, UUID, an Enum, Literal, "
    "X | None, list[X], dict[str, X] or another dataclass"
)


def from_class(cls: type) -> Record:
    """Make the record whose instances are those of the dataclass `cls`.

    int is Avro's long, float its double, times and instants are in microseconds, unless
    `Annotated` says otherwise with Avro's name of the type: `Annotated[int, "int"]`,
    `Annotated[datetime, "local-timestamp-micros"]`. A Decimal must say how many digits it has in
    all and behind the point, `Annotated[Decimal, "decimal(10, 2)"]`; bytes may have a length,
    `Annotated[bytes, "fixed(20)"]`, and so may a UUID, `"fixed(16)"`. The symbols of an Enum are
    its members' values where they are text, and else their names. A field's default is Avro's
    default where it is a value that Avro can express.

    Raises UnsupportedType or InvalidSchema, naming the field's path.
    """
    record = _Reading().record(cls, "", 0)
    if not record.fields:
        raise InvalidSchema(f"the dataclass {cls.__name__} has no fields; records need one")
    return record


class _Reading:
    def __init__(self) -> None:
        self.classes: dict[str, type] = {}
        self.records: dict[str, Record | None] = {}  # None: still being read

    def record(self, cls: type, path: str, depth: int) -> Record:
        name = self.name(cls, path)
        if name in self.records:
            if (known := self.records[name]) is None:
                hint = "records cannot hold themselves"
                raise UnsupportedType(path=path, type_name=f"{name} (recursive)", hint=hint)
            return known
        self.records[name] = None
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except (NameError, TypeError) as error:
            raise InvalidSchema(f"the annotations of {name} cannot be read: {error}") from error
        fields = []
        for member in dataclasses.fields(cls):
            where = below(path, member.name)
            if not NAME.fullmatch(member.name):
                raise InvalidSchema(f"{at(where)}: {name_advice(member.name)}")
            type_ = self.type(hints[member.name], where, f"{name}.{member.name}", depth + 1)
            fields.append(_field(member, type_, where))
        if not fields and path:
            raise InvalidSchema(f"{at(path)}: the dataclass {name} has no fields; records need one")
        self.records[name] = record = Record(name=name, fields=tuple(fields))
        return record

    def name(self, cls: type, path: str) -> str:
        name = cls.__name__
        if not NAME.fullmatch(name):
            raise InvalidSchema(f"{at(path)}: the class name {name_advice(name)}")
        if self.classes.setdefault(name, cls) is not cls:
            raise InvalidSchema(f"{at(path)}: two classes are called {name!r}; rename one")
        return name

    def type(self, hint: object, path: str, name: str, depth: int) -> Type:
        """Read an annotation; `name` is for a type that has none of its own."""
        extras: tuple[object, ...] = ()
        if get_origin(hint) is Annotated:
            hint, *rest = get_args(hint)
            extras = tuple(extra for extra in rest if isinstance(extra, str))
        if get_origin(hint) not in (Union, types.UnionType):
            return self.present(hint, extras, path, name, depth)
        branches = [branch for branch in get_args(hint) if branch is not type(None)]
        if len(branches) != 1:
            advice = "a field may be of one type, or of one type or None"
            raise UnsupportedType(path=path, type_name=str(hint), hint=advice)
        hint = branches[0]
        if get_origin(hint) is Annotated:
            hint, *rest = get_args(hint)
            extras += tuple(extra for extra in rest if isinstance(extra, str))
        return Nullable(item=self.present(hint, extras, path, name, depth + 1))

    def present(
        self, hint: object, extras: tuple[object, ...], path: str, name: str, depth: int
    ) -> Present:
        if depth > MAX_DEPTH:
            raise InvalidSchema(f"{at(path)} is nested deeper than {MAX_DEPTH} levels")
        if extras or hint is decimal.Decimal:
            return _annotated(hint, extras, path, name)
        if isinstance(hint, Hashable) and (leaf := _TYPES.get(hint)):
            return leaf
        match get_origin(hint), get_args(hint):
            case (origin, (item,)) if origin is list:
                return Array(items=self.type(item, f"{path}[]", f"{name}.item", depth + 1))
            case (origin, (key, item)) if origin is dict and key is str:
                return Map(values=self.type(item, f"{path}{{}}", f"{name}.value", depth + 1))
            case (origin, symbols) if origin is Literal:
                return avro.enum(name, symbols, None, path)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self.record(hint, path, depth)
        if isinstance(hint, type) and issubclass(hint, Enum):
            known = tuple(literals.symbol(member) for member in hint)
            return avro.enum(self.name(hint, path), known, None, path)
        shown = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
        raise UnsupportedType(path=path, type_name=shown, hint=_ADVICE)


def _annotated(hint: object, words: tuple[object, ...], path: str, name: str) -> Leaf:
    """Read the type that a plain annotation and Avro's word for it make together."""
    if hint is decimal.Decimal and not words:
        hint_ = 'say how many digits it has, as in Annotated[Decimal, "decimal(38, 18)"]'
        raise UnsupportedType(path=path, type_name="Decimal", hint=hint_)
    word = str(words[0])
    if hint is decimal.Decimal and (found := _DECIMAL.fullmatch(word)):
        return avro.decimal(int(found[1]), int(found[2] or 0), path)
    if hint in (bytes, UUID) and (found := _FIXED.fullmatch(word)):
        fixed = avro.fixed(name, int(found[1]), path)
        if hint is bytes:
            return fixed
        if fixed.size == avro.UUID_BYTES:
            return Uuid(fixed=fixed)
    if kinds := _WORDS.get(hint):
        for kind in kinds:
            if kind.value == word:
                return Scalar(kind=kind)
    raise InvalidSchema(
        f"{at(path)}: Annotated[…, {word!r}] does not go with its type; the words allowed are "
        "'int' on int, 'float' on float, 'decimal(10, 2)' on Decimal, 'fixed(16)' on bytes and "
        "UUID, and Avro's names of times and timestamps on time and datetime"
    )


def _field(member: dataclasses.Field[Any], type_: Type, path: str) -> Field:
    value = member.default
    if member.default_factory in (list, dict):
        value = member.default_factory()
    if value is dataclasses.MISSING or dataclasses.is_dataclass(value):
        return Field(name=member.name, type=type_)
    if isinstance(type_, Nullable) and value is not None:
        type_ = Nullable(item=type_.item, null_first=False)  # the default's branch comes first
    text = defaults.default_text(defaults.as_json(value, type_), type_, path)
    return Field(name=member.name, type=type_, default=text)


ROOT: Final = "Record"
_KINDS: Final = {
    "boolean": Kind.BOOLEAN,
    # Avro has no narrower integers: these widen.
    "byte": Kind.INT,
    "short": Kind.INT,
    "integer": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "string": Kind.STRING,
    "binary": Kind.BYTES,
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "timestamp_ntz": Kind.LOCAL_TIMESTAMP,
}
_TEXT: Final = re.compile(r"(?:string collate \w+|(?:var)?char\(\d+\))")
_TIME: Final = re.compile(r"time\(([0-6])\)")
_SPARK_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_HINTS: Final = (
    ("void", 'it has no value in any row: give it a type, as in lit(None).cast("string")'),
    ("interval year", "write its length as a number, such as months in an int"),
    ("interval month", "write its length as a number, such as months in an int"),
    ("interval", "write its length as a number, such as seconds in a long"),
    ("variant", 'write it as JSON text, as in to_json(col("{}"))'),
    ("udt", "select the fields of its storage into columns of their own"),
    ("decimal", "cast it to one whose scale lies between 0 and the precision"),
    ("time", "cast it to time(6), which holds microseconds"),
)


def is_struct_type(source: object) -> bool:
    """Tell whether `source` is Spark's StructType, without importing it."""
    return any(
        (base.__module__, base.__name__) == ("pyspark.sql.types", "StructType")
        for base in type(source).__mro__
    )


def from_struct_type(struct: Any) -> Record:
    """Make the record that carries rows of the StructType `struct`.

    Byte and short widen to int; char, varchar and strings of any collation become strings;
    nullable columns become unions with null as the default. Raises UnsupportedType or
    InvalidSchema, naming the column's path.
    """
    source = struct.jsonValue()
    if not source["fields"]:
        raise InvalidSchema("the dataframe has no columns; a channel's records need a field")
    return _record(source, "", ROOT, 0, Budget())


def _record(source: Mapping[str, Any], path: str, name: str, depth: int, budget: Budget) -> Record:
    members = source["fields"]
    budget.take(len(members), depth, path)
    if not members:
        raise UnsupportedType(path=path, type_name="struct<>", hint="drop the column")
    fields: dict[str, Field] = {}
    for member in members:
        column = member["name"]
        where = below(path, column)
        if not NAME.fullmatch(column):
            raise InvalidSchema(f"{at(where)}: {name_advice(column)}")
        if column in fields:
            raise InvalidSchema(f"{at(where)} is there twice; rename one of the two")
        nullable = member["nullable"]
        type_ = _type(member["type"], nullable, where, f"{name}.{column}", depth + 1, budget)
        fields[column] = Field(name=column, type=type_, default="null" if nullable else None)
    return Record(name=name, fields=tuple(fields.values()))


def _type(source: Any, nullable: bool, path: str, name: str, depth: int, budget: Budget) -> Type:
    depth += nullable
    budget.take(0, depth, path)
    present = _present(source, path, name, depth, budget)
    return Nullable(item=present) if nullable else present


def _present(source: Any, path: str, name: str, depth: int, budget: Budget) -> Present:
    if isinstance(source, str):
        return _leaf(source, path)
    match source["type"]:
        case "struct":
            return _record(source, path, name, depth, budget)
        case "array":
            below_ = (f"{path}[]", f"{name}.item", depth + 1, budget)
            return Array(items=_type(source["elementType"], source["containsNull"], *below_))
        case "map":
            if not isinstance(key := source["keyType"], str) or (
                key != "string" and not _TEXT.fullmatch(key)
            ):
                hint = "keys of a map are strings: cast them, as in transform_keys"
                name = key if isinstance(key, str) else str(key["type"])
                raise UnsupportedType(path=path, type_name=f"map with keys of {name}", hint=hint)
            below_ = (f"{path}{{}}", f"{name}.value", depth + 1, budget)
            return Map(values=_type(source["valueType"], source["valueContainsNull"], *below_))
    raise _unsupported(str(source["type"]), path)


def _leaf(name: str, path: str) -> Present:
    if kind := _KINDS.get(name):
        return Scalar(kind=kind)
    if _TEXT.fullmatch(name):
        return Scalar(kind=Kind.STRING)
    if _TIME.fullmatch(name):
        return Scalar(kind=Kind.TIME)
    if found := _SPARK_DECIMAL.fullmatch(name):
        precision, scale = int(found[1]), int(found[2])
        if 0 <= scale <= precision != 0:
            return Decimal(precision=precision, scale=scale)
    raise _unsupported(name, path)


def _unsupported(name: str, path: str) -> UnsupportedType:
    hint = next(
        (hint for start, hint in _HINTS if name.startswith(start)),
        "convert it to another type, or drop the column",
    )
    return UnsupportedType(path=path, type_name=name, hint=hint.replace("{}", path))
