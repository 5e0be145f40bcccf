"""Spark types of a channel's schema, and checks of dataframes against it.

The other direction, from a StructType to a schema, is in `sluiceway.schema.inference`.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import types as spark

from sluiceway import Schema
from sluiceway.errors import SchemaMismatch, ValueOutOfRange
from sluiceway.spi import BatchTransform, arrow_type, union_branches
from sluiceway.spi import types as t

_TO_SPARK: dict[pa.DataType, spark.DataType] = {
    arrow_type(t.Scalar(kind=kind)): spark.StructField.fromJson(
        {"name": kind.value, "type": kind.spark[0], "nullable": False}
    ).dataType
    for kind in t.Kind
}
_WIDENINGS = {
    (spark.FloatType, spark.DoubleType),
    (spark.CharType, spark.StringType),
    (spark.VarcharType, spark.StringType),
}
_MAX_PRECISION = 38
_DIGITS: dict[type[spark.DataType], int] = {
    spark.ByteType: 3,
    spark.ShortType: 5,
    spark.IntegerType: 10,
    spark.LongType: 19,
}
"""Maximum number of digits of integer types."""


def struct_of(schema: pa.Schema) -> spark.StructType:
    """Return the dataframe schema of a channel: the same columns, order and nullability.

    A fixed becomes binary, a UUID a string (or 16 bytes), an enum a string. Raises SchemaMismatch
    with the path of a column that Spark has no type for.
    """
    for field in schema:
        _require_supported(field, field.name)
    return spark.StructType([_field(field) for field in schema])


def _require_supported(field: pa.Field, path: str) -> None:
    type_ = field.type
    branches = union_branches(field)
    if branches is None and pa.types.is_struct(type_):
        for member in type_.fields:
            _require_supported(member, f"{path}.{member.name}")
    elif pa.types.is_list(type_):
        _require_supported(type_.value_field, f"{path}[]")
    elif pa.types.is_map(type_):
        _require_supported(type_.item_field, f"{path}{{}}")
    reason = None
    if branches is not None:
        reason = f"a union of several types ({', '.join(branches)}), which Spark does not have"
    elif pa.types.is_decimal(type_) and type_.precision > _MAX_PRECISION:
        reason = f"a decimal of {type_.precision} digits; Spark's have at most {_MAX_PRECISION}"
    elif pa.types.is_timestamp(type_) and type_.unit == "ns":
        reason = "a timestamp in nanoseconds; Spark's are in microseconds"
    if reason:
        raise SchemaMismatch(
            f"the column {path!r} is {reason}: select the other columns with .schema(...), or "
            "read the channel in Python"
        )


def require_writable(struct: spark.StructType, channel: str, schema: Schema) -> None:
    """Check that a dataframe's columns fit a channel.

    Columns are matched by name, in any order. A narrower number may go into a wider column (int
    to long, float to double), a nullable column into a non-null one (the write fails on a null).
    A missing column needs a default in the channel's schema; null is the default of every nullable
    column of a channel created by Spark. Raises SchemaMismatch, UnsupportedType.
    """
    theirs = _columns_of(schema)
    advice = 'drop or rename the column, or add it to the channel by .option("mergeSchema", "true")'
    _require_columns(struct, theirs, "the dataframe", channel, advice)
    for field in struct.fields:
        if path := t.find_union(schema.select([field.name]).record):
            raise SchemaMismatch(
                f"the column {path!r} is a union of several types in the channel {channel!r}, "
                "which Spark does not have: write its records in Python"
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


_WIDER: Final = frozenset({(t.Kind.INT, t.Kind.LONG), (t.Kind.FLOAT, t.Kind.DOUBLE)})


def merged_schema(struct: spark.StructType, schema: Schema) -> Schema:
    """Return a channel's schema with the columns of a dataframe that it lacks, and wider numbers.

    Added columns, also those within structs, come last, and are nullable, so that records without
    them can be read. An int becomes a long, a float a double. Whatever else differs stays, for
    `require_writable`. Raises InvalidSchema, UnsupportedType.
    """
    if not struct.fields:
        return schema
    return Schema(_merged_record(Schema.of(struct).record, schema.record))


def _merged_record(mine: t.Record, theirs: t.Record) -> t.Record:
    columns = {field.name: field for field in mine.fields}
    kept = [
        replace(field, type=_merged_type(columns[field.name].type, field.type))
        if field.name in columns
        else field
        for field in theirs.fields
    ]
    names = {field.name for field in theirs.fields}
    added = [
        replace(field, type=t.Nullable(item=t.present(field.type)), default="null")
        for field in mine.fields
        if field.name not in names
    ]
    return replace(theirs, fields=(*kept, *added))


def _merged_type(mine: t.Type, theirs: t.Type) -> t.Type:
    match t.present(mine), theirs:
        case _, t.Nullable(item=item):
            merged = _merged_type(mine, item)
            # A present type stays one.
            return replace(theirs, item=t.present(merged))
        case t.Record() as ours, t.Record():
            return _merged_record(ours, theirs)
        case t.Array(items=items), t.Array():
            return replace(theirs, items=_merged_type(items, theirs.items))
        case t.Map(values=values), t.Map():
            return replace(theirs, values=_merged_type(values, theirs.values))
        case t.Scalar(kind=kind), t.Scalar() if (theirs.kind, kind) in _WIDER:
            return replace(theirs, kind=kind)
    return theirs


_LOAD_AGAIN: Final = (
    " in .schema(...). Without .schema(...), the channel has changed since it was loaded: load it "
    "again"
)
_CREATE_AGAIN: Final = (
    "the table has the channel's columns as of its creation: drop it and create it again"
)


def require_readable(
    struct: spark.StructType, channel: str, schema: Schema, *, of_table: bool = False
) -> None:
    """Check that the columns of a user's schema, or of a table, are columns of the channel.

    Columns may be omitted and reordered. They keep the channel's types, and a nullable column
    stays nullable. Raises SchemaMismatch.
    """
    theirs = _columns_of(schema)
    source, advice = "the schema", f"remove it{_LOAD_AGAIN}"
    if of_table:
        source, advice = "the table", _CREATE_AGAIN
    _require_columns(struct, theirs, source, channel, advice)
    for field in struct.fields:
        _require_supported(schema.arrow.field(field.name), field.name)
        require_same_type(field, theirs[field.name], channel, of_table=of_table)


def require_same_type(
    field: spark.StructField, their: spark.StructField, channel: str, *, of_table: bool = False
) -> None:
    """Check that a column to read has the type of the channel's, and admits all of its nulls.

    Raises SchemaMismatch.
    """
    # Without nullability and metadata, such as comments.
    mine, wanted = field.dataType.simpleString(), their.dataType.simpleString()
    if mine != wanted:
        advice = _CREATE_AGAIN if of_table else f"use the channel's type{_LOAD_AGAIN}"
        raise SchemaMismatch(
            f"the column {field.name!r} is {wanted} in the channel {channel!r}, not {mine}: "
            + advice
        )
    if path := _null_refused(field, their, field.name):
        advice = _CREATE_AGAIN if of_table else f"make it nullable{_LOAD_AGAIN}"
        raise SchemaMismatch(
            f"the column {path!r} may be null in the channel {channel!r}: {advice}"
        )


def _null_refused(mine: spark.StructField, their: spark.StructField, path: str) -> str | None:
    """Return the path of a field that may be null only in `their`, of the same type; or None."""
    if their.nullable and not mine.nullable:
        return path
    inner = zip(_members(mine.dataType), _members(their.dataType), strict=True)
    paths = (_null_refused(one, other, path + one.name) for one, other in inner)
    return next(filter(None, paths), None)


def _members(kind: spark.DataType) -> list[spark.StructField]:
    """Return the fields, items or values of a nested type, named by their part of a path."""
    match kind:
        case spark.StructType():
            return [
                spark.StructField(f".{field.name}", field.dataType, field.nullable)
                for field in kind
            ]
        case spark.ArrayType():
            return [spark.StructField("[]", kind.elementType, kind.containsNull)]
        case spark.MapType():
            return [spark.StructField("{}", kind.valueType, kind.valueContainsNull)]
    return []


def _columns_of(schema: Schema) -> dict[str, spark.StructField]:
    return {field.name: _field(field) for field in schema.arrow}


def _require_columns(
    struct: spark.StructType, theirs: Collection[str], source: str, channel: str, advice: str
) -> None:
    """Raise SchemaMismatch for a duplicate column and for one that the channel lacks."""
    for name in struct.names:
        if struct.names.count(name) > 1:
            raise SchemaMismatch(f"{source} has the column {name!r} twice: rename or drop one")
        if name not in theirs:
            raise SchemaMismatch(
                f"the channel {channel!r} has no column {name!r}, only {', '.join(theirs)}: "
                f"{advice}"
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
        case _ if (type(mine), type(their)) in _WIDENINGS:
            pass
        case _ if _DIGITS.get(type(mine), math.inf) < _DIGITS.get(type(their), 0):
            pass
        case _ if type(mine) is not type(their) or isinstance(
            mine, spark.DecimalType | spark.StructType
        ):
            raise SchemaMismatch(
                f"the column {path!r} is {mine.simpleString()} in the dataframe and "
                f"{their.simpleString()} in the channel {channel!r}: cast it to the channel's type"
            )


def _digits(kind: spark.DataType, scale: int) -> float:
    """Return the number of digits before the point; infinite if `scale` cuts digits after it."""
    if isinstance(kind, spark.DecimalType) and kind.scale <= scale:
        return kind.precision - kind.scale
    return _DIGITS.get(type(kind), math.inf)


def spark_transform(schema: Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return the function that casts batches of `schema.arrow` to Spark's Arrow types.

    The function raises ValueOutOfRange for an instant beyond the range of Spark's timestamps.
    """
    arrow = schema.arrow
    wanted = pa.schema([_field_for_spark(field) for field in arrow])
    if wanted.equals(arrow):
        return lambda batch: batch
    return BatchTransform(schema.record, wanted, _is_cast, _cast).apply


def _is_cast(leaf: t.Leaf) -> bool:
    arrow = arrow_type(leaf)
    return not arrow.equals(_type_for_spark(arrow))


def _cast(array: pa.Array, leaf: t.Leaf) -> pa.Array:
    del leaf
    try:
        return array.cast(_type_for_spark(array.type))
    except pa.ArrowInvalid as error:
        raise ValueOutOfRange(
            "an instant is out of range of Spark's timestamps, which are microseconds in 64 "
            f"bits: {error}. Select the other columns with .schema(...), or read it in Python"
        ) from error


def _type_for_spark(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_struct(type_):
        return pa.struct([_field_for_spark(field) for field in type_.fields])
    if pa.types.is_list(type_):
        return pa.list_(_field_for_spark(type_.value_field))
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, _field_for_spark(type_.item_field))
    if pa.types.is_time(type_):
        return pa.time64("ns")
    if pa.types.is_timestamp(type_) and type_.unit == "ms":
        return pa.timestamp("us", tz=type_.tz)
    return type_


def _field_for_spark(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _type_for_spark(field.type), field.nullable)


def selected_schema(schema: Schema, struct: spark.StructType) -> Schema:
    """Return the part of a channel's schema that a read of `struct` decodes.

    It has at least one field, which gives the number of records.
    """
    names = schema.arrow.names
    return schema.select([name for name in names if name in struct.names] or names[:1])


class ColumnSelection:
    """Selects the columns of `struct`, in its order, as nullable as there; values are shared.

    Spark 4.3 accepts only the planned schema, in which `.schema(...)` may have made columns
    nullable.
    """

    def __init__(self, struct: spark.StructType) -> None:
        self._struct = struct
        self._names = struct.names
        self._batch_schema: pa.Schema | None = None
        self._wanted: pa.Schema | None = None

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected columns of `batch`."""
        selected = batch.select(self._names)
        if self._batch_schema is None or not self._batch_schema.equals(selected.schema):
            # Batches of one read have the same schema, and its conversion costs as much as a batch.
            self._batch_schema = selected.schema
            pairs = zip(selected.schema, self._struct.fields, strict=True)
            wanted = pa.schema([_with_nullability(field, like) for field, like in pairs])
            self._wanted = None if wanted.equals(selected.schema) else wanted
        return selected if self._wanted is None else selected.cast(self._wanted)


def _with_nullability(field: pa.Field, like: spark.StructField) -> pa.Field:
    return pa.field(field.name, _nested_nullability(field.type, like.dataType), like.nullable)


def _nested_nullability(arrow: pa.DataType, like: spark.DataType) -> pa.DataType:
    match like:
        case spark.StructType():
            return pa.struct([_with_nullability(field, like[field.name]) for field in arrow.fields])
        case spark.ArrayType():
            element = spark.StructField("", like.elementType, like.containsNull)
            return pa.list_(_with_nullability(arrow.value_field, element))
        case spark.MapType():
            value = spark.StructField("", like.valueType, like.valueContainsNull)
            return pa.map_(arrow.key_type, _with_nullability(arrow.item_field, value))
    return arrow
