"""Batches of a channel in the Arrow types that Spark takes."""

from collections.abc import Callable

import pyarrow as pa

from sluiceway.codecs.remaking import Remaking
from sluiceway.errors import ValueOutOfRange
from sluiceway.schema import Schema
from sluiceway.schema.types import Fixed, Kind, Leaf, Scalar, Uuid

_HELD: dict[pa.DataType, pa.DataType] = {
    pa.time32("ms"): pa.time64("ns"),
    pa.time64("us"): pa.time64("ns"),
    pa.timestamp("ms", tz="UTC"): pa.timestamp("us", tz="UTC"),
    pa.timestamp("ms"): pa.timestamp("us"),
}
"""The Arrow types that Spark wants instead of a channel's."""


def held(schema: Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return what turns batches of `schema.arrow` into the form that Spark takes.

    It raises ValueOutOfRange for an instant that Spark's timestamps cannot hold.
    """
    arrow = schema.arrow
    wanted = pa.schema([_held_field(field) for field in arrow])
    if wanted.equals(arrow):
        return lambda batch: batch
    return Remaking(schema.record, wanted, _is_cast, _cast).of


def _is_cast(leaf: Leaf) -> bool:
    match leaf:
        case Fixed() | Uuid(fixed=Fixed()):
            return True
        case Scalar(kind=kind):
            return kind in (
                Kind.TIME,
                Kind.TIME_MILLIS,
                Kind.TIMESTAMP_MILLIS,
                Kind.LOCAL_TIMESTAMP_MILLIS,
            )
    return False


def _cast(array: pa.Array, leaf: Leaf) -> pa.Array:
    del leaf
    try:
        return array.cast(_held_type(array.type))
    except pa.ArrowInvalid as error:
        raise ValueOutOfRange(
            "an instant cannot be held by Spark's timestamps, which count microseconds in 64 "
            f"bits: {error}. Read the other columns, with .schema(...), or read it in Python"
        ) from error


def _held_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_struct(type_):
        return pa.struct([_held_field(field) for field in type_.fields])
    if pa.types.is_list(type_):
        return pa.list_(_held_field(type_.value_field))
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, _held_field(type_.item_field))
    return _HELD.get(type_, type_)


def _held_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _held_type(field.type), field.nullable)
