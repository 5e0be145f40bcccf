"""Schemas to and from Arrow."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyarrow import types as arrow_types

from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema.parsing import NAME, name_advice
from sluiceway.schema.types import (
    MAX_DEPTH,
    MAX_FIELDS,
    Array,
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
"""The name of a record that was made from an Arrow schema, which has none."""

_ARROW: Final = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.LOCAL_TIMESTAMP: pa.timestamp("us"),
}
_KINDS: Final = {
    pa.bool_(): Kind.BOOLEAN,
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()), Kind.INT),
    **dict.fromkeys((pa.int64(), pa.uint32()), Kind.LONG),
    **dict.fromkeys((pa.float16(), pa.float32()), Kind.FLOAT),
    pa.float64(): Kind.DOUBLE,
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), Kind.STRING),
    **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), Kind.BYTES),
    pa.date32(): Kind.DATE,
}
_HINTS: Final = (
    (arrow_types.is_dictionary, "decode it with pyarrow.compute.dictionary_decode"),
    (arrow_types.is_uint64, "cast it to int64 if its values fit, or to string"),
    (arrow_types.is_decimal, "cast it to string, double, or a long of the smallest unit"),
    (arrow_types.is_date64, "cast it to date32"),
    (arrow_types.is_time, "cast it to int64"),
    (arrow_types.is_duration, "cast it to int64"),
    (arrow_types.is_null, "cast it to the type it should have"),
    (arrow_types.is_fixed_size_binary, "cast it to binary"),
)


def to_arrow(record: Record) -> pa.Schema:
    """Give the Arrow schema of `record`: not nullable in Avro means not nullable in Arrow."""
    return pa.schema([_field(field.name, field.type) for field in record.fields])


def arrow_type(type_: Type) -> pa.DataType:
    """Give the Arrow type of a value of `type_`, null or not."""
    match type_:
        case Scalar(kind=kind):
            return _ARROW[kind]
        case Nullable(item=item):
            return arrow_type(item)
        case Array(items=items):
            return pa.list_(_field("item", items))
        case Map(values=values):
            return pa.map_(pa.string(), _field("value", values))
        case Record(fields=fields):
            return pa.struct([_field(field.name, field.type) for field in fields])


def _field(name: str, type_: Type) -> pa.Field:
    return pa.field(name, arrow_type(type_), nullable=isinstance(type_, Nullable))


def from_arrow(schema: pa.Schema) -> Record:
    """Make the record that carries batches of the Arrow `schema`.

    Narrow integers widen to int and long, large types to their plain forms, timestamps of any unit
    to microseconds; nullable fields become unions with null as the default. Raises UnsupportedType
    or InvalidSchema, naming the field's path.
    """
    if not len(schema):
        raise InvalidSchema("the Arrow schema has no fields; a channel's records need one")
    budget = _Budget()
    return Record(name=ROOT, fields=_fields(schema, "", ROOT, 0, budget))


class _Budget:
    def __init__(self) -> None:
        self.left = MAX_FIELDS

    def take(self, fields: int, depth: int, path: str) -> None:
        self.left -= fields
        if self.left < 0:
            raise InvalidSchema(f"the schema has more than {MAX_FIELDS} fields")
        if depth > MAX_DEPTH:
            raise InvalidSchema(f"{at(path)} is nested deeper than {MAX_DEPTH} levels")


def _fields(members: Any, path: str, name: str, depth: int, budget: _Budget) -> tuple[Field, ...]:
    fields: dict[str, Field] = {}
    for member in members:
        where = below(path, member.name)
        if not NAME.fullmatch(member.name):
            raise InvalidSchema(f"{at(where)}: {name_advice(member.name)}")
        if member.name in fields:
            raise InvalidSchema(f"{at(where)} is there twice; rename one of the two")
        type_ = _type(member, where, f"{name}.{member.name}", depth + 1, budget)
        default = "null" if isinstance(type_, Nullable) else None
        fields[member.name] = Field(name=member.name, type=type_, default=default)
    budget.take(len(fields), depth, path)
    return tuple(fields.values())


def _type(field: pa.Field, path: str, name: str, depth: int, budget: _Budget) -> Type:
    if not field.nullable:
        return _present(field.type, path, name, depth, budget)
    return Nullable(item=_present(field.type, path, name, depth + 1, budget))


def _present(type_: pa.DataType, path: str, name: str, depth: int, budget: _Budget) -> Present:
    budget.take(0, depth, path)
    if kind := _KINDS.get(type_):
        return Scalar(kind=kind)
    if arrow_types.is_timestamp(type_):
        return Scalar(kind=Kind.LOCAL_TIMESTAMP if type_.tz is None else Kind.TIMESTAMP)
    if _is_list(type_):
        item = _type(type_.value_field, f"{path}[]", f"{name}.item", depth + 1, budget)
        return Array(items=item)
    if arrow_types.is_map(type_):
        if _KINDS.get(type_.key_type) is not Kind.STRING:
            hint = "only string keys can be carried: cast the keys to string"
            raise UnsupportedType(path=path, type_name=str(type_), hint=hint)
        item = _type(type_.item_field, f"{path}{{}}", f"{name}.value", depth + 1, budget)
        return Map(values=item)
    if arrow_types.is_struct(type_) and type_.num_fields:
        return Record(name=name, fields=_fields(type_, path, name, depth, budget))
    hint = next((hint for applies, hint in _HINTS if applies(type_)), "leave the field out")
    raise UnsupportedType(path=path, type_name=str(type_), hint=hint)


def _is_list(type_: pa.DataType) -> bool:
    return bool(
        arrow_types.is_list(type_)
        or arrow_types.is_large_list(type_)
        or arrow_types.is_fixed_size_list(type_)
        or arrow_types.is_list_view(type_)
        or arrow_types.is_large_list_view(type_)
    )
