"""The Arrow form of a schema."""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa

from sluiceway.errors import SchemaError
from sluiceway.schema import leaves
from sluiceway.schema.rendering import leaf_definition
from sluiceway.schema.types import (
    Array,
    Decimal,
    Enum,
    Fixed,
    Kind,
    Leaf,
    Map,
    Nullable,
    Record,
    Scalar,
    Type,
    Uuid,
)

_ARROW: Final = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.BYTES: pa.binary(),
    Kind.DATE: pa.date32(),
    Kind.TIME_MILLIS: pa.time32("ms"),
    Kind.TIME: pa.time64("us"),
    Kind.TIMESTAMP_MILLIS: pa.timestamp("ms", tz="UTC"),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.TIMESTAMP_NANOS: pa.timestamp("ns", tz="UTC"),
    Kind.LOCAL_TIMESTAMP_MILLIS: pa.timestamp("ms"),
    Kind.LOCAL_TIMESTAMP: pa.timestamp("us"),
    Kind.LOCAL_TIMESTAMP_NANOS: pa.timestamp("ns"),
}
_DIGITS_OF_128_BITS: Final = 38
AVRO: Final = b"sluiceway.avro"
"""Metadata of Arrow's fields: in Avro JSON, the type that Arrow's own does not tell whole."""


def to_arrow(record: Record) -> pa.Schema:
    """Give the Arrow schema of `record`: not nullable in Avro means not nullable in Arrow."""
    return pa.schema([_field(field.name, field.type) for field in record.fields])


def arrow_type(type_: Type) -> pa.DataType:
    """Give the Arrow type of a value of `type_`, null or not."""
    match type_:
        case Scalar(kind=kind):
            return _ARROW[kind]
        case Fixed(size=size) | Uuid(fixed=Fixed(size=size)):
            return pa.binary(size)
        case Decimal(precision=precision, scale=scale):
            wide = precision > _DIGITS_OF_128_BITS
            return (pa.decimal256 if wide else pa.decimal128)(precision, scale)
        case Uuid() | Enum():
            return pa.string()
        case Nullable(item=item):
            return arrow_type(item)
        case Array(items=items):
            return pa.list_(_field("item", items))
        case Map(values=values):
            return pa.map_(pa.string(), _field("value", values))
        case Record(fields=fields):
            return pa.struct([_field(field.name, field.type) for field in fields])


def _field(name: str, type_: Type) -> pa.Field:
    leaf = type_.item if isinstance(type_, Nullable) else type_
    note = None
    if isinstance(leaf, Fixed | Uuid | Enum) or (isinstance(leaf, Decimal) and leaf.fixed):
        note = {AVRO: json.dumps(leaf_definition(leaf), separators=(",", ":"))}
    return pa.field(name, arrow_type(type_), nullable=isinstance(type_, Nullable), metadata=note)


def noted(field: pa.Field, name: str) -> Leaf | None:
    """Give the type that the metadata of `field` tell, called `name`; None: Arrow's type is all.

    What is noted counts only where it goes with Arrow's type, which may have been changed since.
    """
    note = (field.metadata or {}).get(AVRO)
    if note is None:
        return None
    try:
        leaf = leaves.leaf(json.loads(note), name, field.name)
    except (KeyError, TypeError, ValueError, SchemaError):
        return None
    return leaf if arrow_type(leaf).equals(field.type) else None
