"""Schemas from record classes and from Spark's StructType."""

from __future__ import annotations

import decimal
import re
import types
from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any, Final, Literal, Union, get_args, get_origin
from uuid import UUID

from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema import avro, defaults
from sluiceway.schema import types as t
from sluiceway.schema.classes import (
    MISSING,
    RECORD_CLASSES,
    ClassField,
    RecordClass,
    record_class,
    unwrapped,
)

_TYPES: Final[dict[object, t.Leaf]] = {
    **{kind.traits.python: t.Scalar(kind=kind) for kind in t.Kind if kind.traits.plain},
    UUID: t.Uuid(),
}
_ANNOTATED: Final[dict[object, t.Kind]] = {
    (kind.traits.python, kind.value): kind for kind in t.Kind if kind.ticks or not kind.traits.plain
}
"""The types of `Annotated[..., "int"]`, by annotation and word."""

_DECIMAL: Final = re.compile(r"decimal\((\d{1,9})(?:, ?(\d{1,9}))?\)")
_FIXED: Final = re.compile(r"fixed\((\d{1,9})\)")
_ADVICE: Final = (
    "use bool, int, float, str, bytes, Decimal, date, time, datetime, UUID, an Enum, Literal, "
    f"X | None, list[X], dict[str, X], or {RECORD_CLASSES}"
)


def from_class(cls: RecordClass) -> t.Record:
    """Return the record for instances of a class.

    An int is a long, a float a double, and times and timestamps have microseconds, unless
    `Annotated` gives Avro's name of another type: `Annotated[int, "int"]`,
    `Annotated[datetime, "local-timestamp-micros"]`. A Decimal needs its precision and scale,
    `Annotated[Decimal, "decimal(10, 2)"]`. Bytes and UUIDs may have a length,
    `Annotated[bytes, "fixed(20)"]`. The symbols of an Enum are its members' values if they are
    text, else their names. A field's default becomes the Avro default if Avro can express it. The
    names of fields are those that the class's library gives them outside of Python, such as
    pydantic's aliases. A key that a TypedDict need not have is nullable.

    Raises UnsupportedType or InvalidSchema with the path of the field.
    """
    record = _ClassParser().record(cls, "", 0)
    if not record.fields:
        raise InvalidSchema(f"the class {cls.cls.__name__} has no fields; give it one")
    return record


class _ClassParser:
    def __init__(self) -> None:
        self.classes: dict[str, type] = {}
        self.records: dict[str, t.Record | None] = {}  # None: being parsed

    def record(self, cls: RecordClass, path: str, depth: int) -> t.Record:
        name = self.name(cls.cls, path)
        if name in self.records:
            if (existing := self.records[name]) is None:
                hint = "records cannot hold themselves"
                raise UnsupportedType(path=path, type_name=f"{name} (recursive)", hint=hint)
            return existing
        self.records[name] = None
        fields: dict[str, t.Field] = {}
        for member in cls.fields:
            where = t.checked_field(path, member.name, fields)
            type_ = self.type(member.hint, where, f"{name}.{member.name}", depth + 1)
            fields[member.name] = _field(member, type_, where)
        if not fields and path:
            raise t.invalid_schema(path, f"the class {name} has no fields; give it one")
        self.records[name] = record = t.Record(name=name, fields=tuple(fields.values()))
        return record

    def name(self, cls: type, path: str) -> str:
        name = cls.__name__
        if not t.NAME.fullmatch(name):
            raise t.invalid_schema(path, f"the class name {t.name_advice(name)}")
        if self.classes.setdefault(name, cls) is not cls:
            raise t.invalid_schema(path, f"two classes are called {name!r}; rename one")
        return name

    def type(self, hint: object, path: str, name: str, depth: int) -> t.Type:
        """Parse an annotation; `name` is for a type without its own name."""
        hint, words = unwrapped(hint)
        if get_origin(hint) not in (Union, types.UnionType):
            return self.present(hint, words, path, name, depth)
        branches = tuple(
            self.present(inner, words + inner_words, path, name, depth + 1)
            for inner, inner_words in map(unwrapped, get_args(hint))
            if inner is not type(None)
        )
        present = branches[0] if len(branches) == 1 else t.checked_union(branches, path)
        return t.Nullable(item=present) if type(None) in get_args(hint) else present

    def present(
        self, hint: object, words: tuple[str, ...], path: str, name: str, depth: int
    ) -> t.Branch:
        if depth > t.MAX_DEPTH:
            raise t.invalid_schema(path, f"is nested deeper than {t.MAX_DEPTH} levels")
        if words or hint is decimal.Decimal:
            return _annotated(hint, words, path, name)
        if isinstance(hint, Hashable) and (leaf := _TYPES.get(hint)):
            return leaf
        match get_origin(hint), get_args(hint):
            case (origin, (item,)) if origin is list:
                return t.Array(items=self.type(item, f"{path}[]", f"{name}.item", depth + 1))
            case (origin, (key, item)) if origin is dict and key is str:
                return t.Map(values=self.type(item, f"{path}{{}}", f"{name}.value", depth + 1))
            case (origin, symbols) if origin is Literal:
                return avro.enum(name, symbols, None, path)
        if (nested := record_class(hint)) is not None:
            return self.record(nested, path, depth)
        if isinstance(hint, type) and issubclass(hint, Enum):
            enum_symbols = tuple(defaults.symbol(member) for member in hint)
            return avro.enum(self.name(hint, path), enum_symbols, None, path)
        shown = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
        raise UnsupportedType(path=path, type_name=shown, hint=_ADVICE)


def _annotated(hint: object, words: tuple[str, ...], path: str, name: str) -> t.Leaf:
    """Return the type of an annotation with an Avro name."""
    if hint is decimal.Decimal and not words:
        hint_ = 'give its precision and scale, as in Annotated[Decimal, "decimal(38, 18)"]'
        raise UnsupportedType(path=path, type_name="Decimal", hint=hint_)
    word = words[0]
    if hint is decimal.Decimal and (match := _DECIMAL.fullmatch(word)):
        return avro.decimal(int(match[1]), int(match[2] or 0), path)
    if hint in (bytes, UUID) and (match := _FIXED.fullmatch(word)):
        fixed = avro.fixed(name, int(match[1]), path)
        if hint is bytes:
            return fixed
        if fixed.size == t.UUID_BYTES:
            return t.Uuid(fixed=fixed)
    if kind := _ANNOTATED.get((hint, word)):
        return t.Scalar(kind=kind)
    raise t.invalid_schema(
        path,
        f"Annotated[…, {word!r}] does not fit its type; allowed are 'int' on int, "
        "'float' on float, 'decimal(10, 2)' on Decimal, 'fixed(16)' on bytes and "
        "UUID, and Avro's names of times and timestamps on time and datetime",
    )


def _field(member: ClassField, type_: t.Type, path: str) -> t.Field:
    value = member.default
    if value is MISSING:
        return t.Field(name=member.name, type=type_)
    if value is not None:
        type_ = _with_default_first(type_, value)
    text = defaults.default_text(defaults.default_from_python(value, type_), type_, path)
    return t.Field(name=member.name, type=type_, default=text)


def _with_default_first(type_: t.Type, value: object) -> t.Type:
    """Order the branches of a union as Avro requires: the branch of the default first."""
    match type_:
        case t.Nullable(item=t.Union() as union):
            last = len(union.branches)
            return t.Nullable(item=_with_branch_first(union, value), null_at=last)
        case t.Nullable(item=item):
            return t.Nullable(item=item, null_at=1)
        case t.Union():
            return _with_branch_first(type_, value)
    return type_


def _with_branch_first(union: t.Union, value: object) -> t.Union:
    own = _TYPES.get(type(value))
    for branch in sorted(union.branches, key=lambda branch: branch != own):
        try:
            defaults.default_text(defaults.default_from_python(value, branch), branch, "")
        except InvalidSchema:
            continue
        return t.Union(branches=(branch, *(other for other in union.branches if other != branch)))
    return union


_KINDS: Final = {
    name: kind
    for kind in t.Kind
    if kind.ticks in (0, t.MICROSECONDS)  # Spark's only unit
    for name in kind.spark
}
_TEXT: Final = re.compile(r"(?:string collate \w+|(?:var)?char\(\d+\))")
_TIME: Final = re.compile(r"time\([0-6]\)")
_SPARK_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_HINTS: Final = (
    ("void", 'it is always null: give it a type, as in lit(None).cast("string")'),
    ("interval year", "write its length as a number, such as months in an int"),
    ("interval month", "write its length as a number, such as months in an int"),
    ("interval", "write its length as a number, such as seconds in a long"),
    ("variant", 'write it as JSON text, as in to_json(col("{}"))'),
    ("udt", "select the fields of its storage into separate columns"),
    ("decimal", "cast it to one whose scale lies between 0 and the precision"),
    ("time", "cast it to time(6), which holds microseconds"),
)


def is_struct_type(source: object) -> bool:
    """Return whether `source` is a StructType, without importing Spark."""
    return any(
        (base.__module__, base.__name__) == ("pyspark.sql.types", "StructType")
        for base in type(source).__mro__
    )


def from_struct_type(struct: Any) -> t.Record:
    """Return the record for rows of the StructType `struct`.

    Byte and short widen to int; char, varchar and collated strings become strings; nullable
    columns become unions with null as the default. Raises UnsupportedType or InvalidSchema with
    the path of the column.
    """
    source = struct.jsonValue()
    if not source["fields"]:
        raise InvalidSchema("the dataframe has no columns; records need a field")
    return _record(source, "", t.ROOT, 0, t.SchemaLimits())


def _record(
    source: Mapping[str, Any], path: str, name: str, depth: int, limits: t.SchemaLimits
) -> t.Record:
    members = source["fields"]
    limits.count(len(members), depth, path)
    if not members:
        raise UnsupportedType(path=path, type_name="struct<>", hint="drop the column")
    fields: dict[str, t.Field] = {}
    for member in members:
        column = member["name"]
        where = t.checked_field(path, column, fields)
        nullable = member["nullable"]
        type_ = _type(member["type"], nullable, where, f"{name}.{column}", depth + 1, limits)
        fields[column] = t.Field(name=column, type=type_, default="null" if nullable else None)
    return t.Record(name=name, fields=tuple(fields.values()))


def _type(
    source: Any, nullable: bool, path: str, name: str, depth: int, limits: t.SchemaLimits
) -> t.Type:
    depth += nullable
    limits.count(0, depth, path)
    present = _present(source, path, name, depth, limits)
    return t.Nullable(item=present) if nullable else present


def _present(source: Any, path: str, name: str, depth: int, limits: t.SchemaLimits) -> t.Present:
    if isinstance(source, str):
        return _leaf(source, path)
    match source["type"]:
        case "struct":
            return _record(source, path, name, depth, limits)
        case "array":
            inner = (f"{path}[]", f"{name}.item", depth + 1, limits)
            return t.Array(items=_type(source["elementType"], source["containsNull"], *inner))
        case "map":
            if not isinstance(key := source["keyType"], str) or (
                key != "string" and not _TEXT.fullmatch(key)
            ):
                hint = "map keys must be strings: cast them, as with transform_keys"
                name = key if isinstance(key, str) else str(key["type"])
                raise UnsupportedType(path=path, type_name=f"map with keys of {name}", hint=hint)
            inner = (f"{path}{{}}", f"{name}.value", depth + 1, limits)
            return t.Map(values=_type(source["valueType"], source["valueContainsNull"], *inner))
    raise _unsupported(str(source["type"]), path)


def _leaf(name: str, path: str) -> t.Present:
    plain = "time(6)" if _TIME.fullmatch(name) else "string" if _TEXT.fullmatch(name) else name
    if kind := _KINDS.get(plain):
        return t.Scalar(kind=kind)
    if match := _SPARK_DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if 0 <= scale <= precision != 0:
            return t.Decimal(precision=precision, scale=scale)
    raise _unsupported(name, path)


def _unsupported(name: str, path: str) -> UnsupportedType:
    hint = next(
        (hint for start, hint in _HINTS if name.startswith(start)),
        "convert it to another type, or drop the column",
    )
    return UnsupportedType(path=path, type_name=name, hint=hint.replace("{}", path))
