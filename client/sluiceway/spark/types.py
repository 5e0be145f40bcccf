"""Spark's types beside a channel's: one table for both directions, and the checks of planning.

A channel's schema meets Spark in its Arrow form (`Schema.arrow`).
"""

import pyarrow as pa
from pyspark.sql import types as spark

from sluiceway.errors import SchemaMismatch, UnsupportedType
from sluiceway.schema import Schema

_TO_SPARK: dict[pa.DataType, spark.DataType] = {
    pa.bool_(): spark.BooleanType(),
    pa.int32(): spark.IntegerType(),
    pa.int64(): spark.LongType(),
    pa.float32(): spark.FloatType(),
    pa.float64(): spark.DoubleType(),
    pa.string(): spark.StringType(),
    pa.binary(): spark.BinaryType(),
    pa.date32(): spark.DateType(),
    pa.timestamp("us", tz="UTC"): spark.TimestampType(),
    pa.timestamp("us"): spark.TimestampNTZType(),
}
_TO_ARROW: dict[type[spark.DataType], pa.DataType] = {
    **{type(spark_type): arrow for arrow, spark_type in _TO_SPARK.items()},
    # Avro has no narrower integers: these widen.
    spark.ByteType: pa.int32(),
    spark.ShortType: pa.int32(),
    spark.CharType: pa.string(),
    spark.VarcharType: pa.string(),
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
_ADVICE: dict[type[spark.DataType], str] = {
    spark.DecimalType: 'cast it to double, or to string to keep every digit, as in col("{}")'
    '.cast("string")',
    spark.NullType: 'it has no value in any row: give it a type, as in lit(None).cast("string")',
    spark.DayTimeIntervalType: "write its length as a number, such as seconds in a long",
    spark.YearMonthIntervalType: "write its length as a number, such as months in an int",
    spark.CalendarIntervalType: "write its parts as numbers in columns of their own",
    spark.TimeType: "write the microseconds since midnight as a long",
    spark.VariantType: 'write it as JSON text, as in to_json(col("{}"))',
}


def struct_of(schema: pa.Schema) -> spark.StructType:
    """Return the dataframe schema of a channel: the same columns, order and nullability."""
    return spark.StructType([_field(field) for field in schema])


def arrow_of(struct: spark.StructType) -> pa.Schema:
    """Return the Arrow schema of the channel that can carry a dataframe of this schema.

    Byte and short become int, char and varchar become string. Raises UnsupportedType with the
    path of the first column that no channel can carry, and what to do about it.
    """
    return pa.schema([_arrow_field(field, field.name) for field in struct.fields])


def require_writable(struct: spark.StructType, channel: str, schema: Schema) -> None:
    """Check that rows of a dataframe fit a channel, but for what only rows can show.

    Columns go by name, in any order. A narrower number may go into a wider column (int to long,
    float to double), a nullable column into a non-null one (a null fails the write then). A
    column that the dataframe lacks must have a default in the channel's schema, which is written
    then; null is the default of every nullable column of a channel that was made from Spark.
    Raises SchemaMismatch, UnsupportedType.
    """
    theirs = {field.name: field for field in struct_of(schema.arrow).fields}
    for name in _doubled(struct):
        raise SchemaMismatch(f"the dataframe has the column {name!r} twice: rename or drop one")
    for field in struct.fields:
        if field.name not in theirs:
            raise SchemaMismatch(
                f"the channel {channel!r} has no column {field.name!r}, only "
                f"{', '.join(theirs)}: drop or rename the column"
            )
        _arrow_type(field.dataType, field.name)
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
    theirs = {field.name: field for field in struct_of(schema.arrow).fields}
    for name in _doubled(struct):
        raise SchemaMismatch(f"the schema has the column {name!r} twice: leave one out")
    for field in struct.fields:
        if field.name not in theirs:
            raise SchemaMismatch(
                f"the channel {channel!r} has no column {field.name!r}, only "
                f"{', '.join(theirs)}: leave it out of .schema(...)"
            )
        their = theirs[field.name]
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
    return _TO_SPARK[arrow]


def _arrow_field(field: spark.StructField, path: str) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType, path), nullable=field.nullable)


def _arrow_type(kind: spark.DataType, path: str) -> pa.DataType:
    """Return the Arrow type for a Spark type; raise UnsupportedType where there is none."""
    if isinstance(kind, spark.StructType):
        if not kind.fields:
            raise UnsupportedType(path=path, type_name="struct<>", hint="drop the column")
        return pa.struct([_arrow_field(field, f"{path}.{field.name}") for field in kind.fields])
    if isinstance(kind, spark.ArrayType):
        return pa.list_(
            pa.field("item", _arrow_type(kind.elementType, f"{path}[]"), kind.containsNull)
        )
    if isinstance(kind, spark.MapType):
        if not isinstance(kind.keyType, spark.StringType):
            raise UnsupportedType(
                path=path,
                type_name=kind.simpleString(),
                hint="keys of a map are strings: cast them, as in transform_keys",
            )
        values = _arrow_type(kind.valueType, f"{path}{{}}")
        return pa.map_(pa.string(), pa.field("value", values, kind.valueContainsNull))
    if type(kind) not in _TO_ARROW:
        advice = _ADVICE.get(type(kind), "convert it to another type, or drop the column")
        raise UnsupportedType(path=path, type_name=kind.simpleString(), hint=advice.format(path))
    return _TO_ARROW[type(kind)]


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
        case _ if type(mine) is type(their) and not isinstance(mine, spark.StructType):
            pass
        case _ if (type(mine), type(their)) in _WIDENINGS:
            pass
        case _:
            raise SchemaMismatch(
                f"the column {path!r} is {mine.simpleString()} in the dataframe and "
                f"{their.simpleString()} in the channel {channel!r}: cast it to the channel's type"
            )


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
