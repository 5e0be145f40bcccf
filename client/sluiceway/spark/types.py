"""Spark types for a channel's schema, and the checks between the two.

How a StructType becomes a schema is in `sluiceway.schema.inference`; here is the way back, from
a schema's Arrow form (`Schema.arrow`).
"""

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import types as spark

from sluiceway.codecs.physical import BatchTransform
from sluiceway.errors import SchemaMismatch, ValueOutOfRange
from sluiceway.schema import Schema
from sluiceway.schema.types import Fixed, Kind, Leaf, Scalar, Uuid

_TO_SPARK: dict[pa.DataType, spark.DataType] = {
    pa.bool_(): spark.BooleanType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
    pa.time32("ms"): spark.TimeType(),
    pa.time64("us"): spark.TimeType(),
    **dict.fromkeys((pa.timestamp(u, tz="UTC") for u in ("ms", "us", "ns")), spark.TimestampType()),
    **dict.fromkeys((pa.timestamp(u) for u in ("ms", "us", "ns")), spark.TimestampNTZType()),
}
_WIDENINGS = {
    (spark.ByteType, spark.IntegerType),
    (spark.ByteType, spark.LongType),
    (spark.ShortType, spark.IntegerType),
    (spark.ShortType, spark.LongType),
    (spark.IntegerType, spark.LongType),
    (spark.FloatType, spark.DoubleType),
    (spark.CharType, spark.StringType),
    (spark.VarcharType, spark.StringType),
}
_MOST_DIGITS = 38
_NO_NUMBER = 1_000
_DIGITS: dict[type[spark.DataType], int] = {
    spark.ByteType: 3,
    spark.ShortType: 5,
    spark.IntegerType: 10,
    spark.LongType: 19,
}
"""How many digits the numbers of a type may have."""


def struct_of(schema: pa.Schema) -> spark.StructType:
    """Return the dataframe schema of a channel: the same columns, order and nullability.

    A fixed is binary, a UUID a string (or binary of 16 bytes), an enum a string. Raises
    SchemaMismatch for a column that Spark has no type for, with its path and what to do.
    """
    for field in schema:
        _require_held(field.type, field.name)
    return spark.StructType([_field(field) for field in schema])


def _require_held(type_: pa.DataType, path: str) -> None:
    """Raise SchemaMismatch for a channel's type that Spark has no type for."""
    if pa.types.is_struct(type_):
        for field in type_.fields:
            _require_held(field.type, f"{path}.{field.name}")
    elif pa.types.is_list(type_):
        _require_held(type_.value_type, f"{path}[]")
    elif pa.types.is_map(type_):
        _require_held(type_.item_type, f"{path}{{}}")
    reason = None
    if pa.types.is_decimal(type_) and type_.precision > _MOST_DIGITS:
        reason = f"a decimal of {type_.precision} digits, and Spark's have at most {_MOST_DIGITS}"
    elif pa.types.is_timestamp(type_) and type_.unit == "ns":
        reason = "a timestamp in nanoseconds, and Spark's are in microseconds"
    if reason:
        raise SchemaMismatch(
            f"the column {path!r} is {reason}: name the other columns in .schema(...), or read "
            "the channel in Python"
        )


def require_writable(struct: spark.StructType, channel: str, schema: Schema) -> None:
    """Check that rows of a dataframe fit a channel, but for what only rows can show.

    Columns go by name, in any order. A narrower number may go into a wider column (int to long,
    float to double), a nullable column into a non-null one (a null fails the write then). A
    column that the dataframe lacks must have a default in the channel's schema, which is written
    then; null is the default of every nullable column of a channel that was made from Spark.
    Raises SchemaMismatch, UnsupportedType.
    """
    theirs = {field.name: _field(field) for field in schema.arrow}
    for name in _doubled(struct):
        raise SchemaMismatch(f"the dataframe has the column {name!r} twice: rename or drop one")
    for field in struct.fields:
        if field.name not in theirs:
            raise SchemaMismatch(
                f"the channel {channel!r} has no column {field.name!r}, only "
                f"{', '.join(theirs)}: drop or rename the column"
            )
        Schema.of(spark.StructType([field]))
        _require_fits(field.dataType, theirs[field.name].dataType, field.name, channel)
    for wanted in schema.record.fields:
        if wanted.name not in struct.names and wanted.default is None:
            kind = theirs[wanted.name].dataType.simpleString()
            raise SchemaMismatch(
                f"the dataframe lacks the column {wanted.name!r} ({kind}), for which the channel "
                f"{channel!r} has no default: add it"
            )


def require_readable(struct: spark.StructType, channel: str, schema: Schema) -> None:
    """Check that a schema given by the user is a choice of the channel's columns.

    Columns may be left out and reordered, with the channel's own types; a nullable one cannot be
    asked for as non-null. Raises SchemaMismatch.
    """
    theirs = {field.name: _field(field) for field in schema.arrow}
    for name in _doubled(struct):
        raise SchemaMismatch(f"the schema has the column {name!r} twice: leave one out")
    for field in struct.fields:
        if field.name not in theirs:
            raise SchemaMismatch(
                f"the channel {channel!r} has no column {field.name!r}, only "
                f"{', '.join(theirs)}: leave it out of .schema(...)"
            )
        their = theirs[field.name]
        _require_held(schema.arrow.field(field.name).type, field.name)
        if field.dataType not in (their.dataType, _nullable(their.dataType)):
            raise SchemaMismatch(
                f"the column {field.name!r} is {their.dataType.simpleString()} in the channel "
                f"{channel!r}, not {field.dataType.simpleString()}: read it as it is and cast it "
                "afterwards"
            )
        if their.nullable and not field.nullable:
            raise SchemaMismatch(
                f"the column {field.name!r} may be null in the channel {channel!r}: make it "
                "nullable in .schema(...)"
            )


def _field(field: pa.Field) -> spark.StructField:
    return spark.StructField(field.name, _spark_type(field.type), field.nullable)


def _spark_type(arrow: pa.DataType) -> spark.DataType:
    if pa.types.is_struct(arrow):
        return spark.StructType([_field(field) for field in arrow.fields])
    if pa.types.is_map(arrow):
        return spark.MapType(
            spark.StringType(), _spark_type(arrow.item_type), arrow.item_field.nullable
        )
    if pa.types.is_list(arrow):
        return spark.ArrayType(_spark_type(arrow.value_type), arrow.value_field.nullable)
    if pa.types.is_decimal(arrow):
        return spark.DecimalType(arrow.precision, arrow.scale)
    if pa.types.is_fixed_size_binary(arrow):
        return spark.BinaryType()
    return _TO_SPARK[arrow]


def _require_fits(mine: spark.DataType, their: spark.DataType, path: str, channel: str) -> None:
    match mine, their:
        case spark.StructType(), spark.StructType() if sorted(mine.names) == sorted(their.names):
            for inner in mine.fields:
                other = their[inner.name].dataType
                _require_fits(inner.dataType, other, f"{path}.{inner.name}", channel)
        case spark.ArrayType(), spark.ArrayType():
            _require_fits(mine.elementType, their.elementType, f"{path}[]", channel)
        case spark.MapType(), spark.MapType():
            _require_fits(mine.valueType, their.valueType, f"{path}{{}}", channel)
        case _, spark.DecimalType() if _digits(mine, their.scale) <= their.precision - their.scale:
            pass
        case spark.DecimalType(), spark.DecimalType():
            raise _misfit(mine, their, path, channel)
        case _ if type(mine) is type(their) and not isinstance(mine, spark.StructType):
            pass
        case _ if (type(mine), type(their)) in _WIDENINGS:
            pass
        case _:
            raise _misfit(mine, their, path, channel)


def _misfit(mine: spark.DataType, their: spark.DataType, path: str, channel: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"the column {path!r} is {mine.simpleString()} in the dataframe and "
        f"{their.simpleString()} in the channel {channel!r}: cast it to the channel's type"
    )


def _digits(kind: spark.DataType, scale: int) -> int:
    """Count the digits before the point; too many where `scale` digits behind it are too few."""
    if isinstance(kind, spark.DecimalType) and kind.scale <= scale:
        return kind.precision - kind.scale
    return _DIGITS.get(type(kind), _NO_NUMBER)


def _nullable(kind: spark.DataType) -> spark.DataType:
    """Return the type with everything inside it nullable, to compare by."""
    match kind:
        case spark.StructType():
            return spark.StructType(
                [spark.StructField(f.name, _nullable(f.dataType)) for f in kind.fields]
            )
        case spark.ArrayType():
            return spark.ArrayType(_nullable(kind.elementType))
        case spark.MapType():
            return spark.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def _doubled(struct: spark.StructType) -> list[str]:
    return sorted({name for name in struct.names if struct.names.count(name) > 1})


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
    return BatchTransform(schema.record, wanted, _is_cast, _cast).apply


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


def chosen(batch: pa.RecordBatch, struct: spark.StructType) -> pa.RecordBatch:
    """Return the columns of `struct`, in its order; values are shared.

    Types are those of the batch but for what may be null: Spark 4.3 takes no other than it
    planned with, and `.schema(...)` may have made columns nullable.
    """
    picked = batch.select(struct.names)
    wanted = pa.schema(
        [_relaxed(field, struct[field.name]) for field in picked.schema],
    )
    return picked if wanted.equals(picked.schema) else picked.cast(wanted)


def _relaxed(field: pa.Field, like: spark.StructField) -> pa.Field:
    return pa.field(field.name, _type(field.type, like.dataType), like.nullable)


def _type(arrow: pa.DataType, like: spark.DataType) -> pa.DataType:
    match like:
        case spark.StructType():
            return pa.struct([_relaxed(field, like[field.name]) for field in arrow.fields])
        case spark.ArrayType():
            items = arrow.value_field
            inner = pa.field(items.name, _type(items.type, like.elementType), like.containsNull)
            return pa.list_(inner)
        case spark.MapType():
            values = arrow.item_field
            inner = pa.field(
                values.name, _type(values.type, like.valueType), like.valueContainsNull
            )
            return pa.map_(arrow.key_type, inner)
    return arrow
