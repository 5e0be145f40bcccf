"""Schemas from Spark's StructType, read from its own JSON: pyspark is not needed for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema.budget import Budget
from sluiceway.schema.names import NAME, name_advice
from sluiceway.schema.types import (
    Array,
    Decimal,
    Field,
    Kind,
    Map,
    Nullable,
    Present,
    Record,
    Scalar,
    Type,
    at,
    below,
)

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
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
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
    if found := _DECIMAL.fullmatch(name):
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
