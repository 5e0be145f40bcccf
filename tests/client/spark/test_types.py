import re
from datetime import UTC, datetime, time

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from sluiceway.errors import SchemaMismatch, UnsupportedType, ValueOutOfRange
from sluiceway.records import to_batches, to_records
from sluiceway.schema import Schema
from sluiceway.spark.types import (
    merged_schema,
    require_readable,
    require_writable,
    spark_transform,
    struct_of,
)


def struct(ddl: str) -> spark.StructType:
    """Parse `name type [not null], ...`, with commas only inside nested types."""
    kinds = {
        "int": spark.IntegerType(),
        "bigint": spark.LongType(),
        "float": spark.FloatType(),
        "double": spark.DoubleType(),
        "string": spark.StringType(),
    }
    fields = [part.split() for part in ddl.split(",")]
    return spark.StructType(
        [spark.StructField(field[0], kinds[field[1]], len(field) == 2) for field in fields]
    )


class Box(spark.UserDefinedType):
    @classmethod
    def sqlType(cls) -> spark.DataType:  # noqa: N802 - Spark's name
        return spark.IntegerType()

    @classmethod
    def module(cls) -> str:
        return __name__

    @classmethod
    def scalaUDT(cls) -> str:  # noqa: N802 - Spark's name
        return "org.example.Box"


CHANNEL = Schema.of(struct("id bigint not null, n int, s string"))
DEEP = spark.StructType(
    [
        spark.StructField("a", spark.ArrayType(spark.IntegerType(), False), False),
        spark.StructField("m", spark.MapType(spark.StringType(), spark.DateType())),
        spark.StructField(
            "r", spark.StructType([spark.StructField("t", spark.TimestampNTZType(), False)])
        ),
        spark.StructField("d", spark.ArrayType(spark.DecimalType(38, 38))),
        spark.StructField("c", spark.TimeType(6)),
        spark.StructField("u", spark.TimestampType(), False),
    ]
)


def test_a_union_of_several_types_is_refused_where_it_is_used() -> None:
    union = {"type": "array", "items": ["null", "int", "string"]}
    fields = [{"name": "id", "type": "long"}, {"name": "u", "type": union, "default": []}]
    schema = Schema.parse({"type": "record", "name": "r", "fields": fields})
    with pytest.raises(SchemaMismatch, match=r"'u\[\]' is a union .*int, string.*\.schema"):
        struct_of(schema.arrow)
    ids = struct("id bigint not null")
    require_readable(ids, "mixed", schema)
    require_writable(ids, "mixed", schema)
    both = spark.StructType([*ids.fields, spark.StructField("u", spark.StringType())])
    with pytest.raises(SchemaMismatch, match=r"'u\[\]' is a union .* write its records in Python"):
        require_writable(both, "mixed", schema)
    with pytest.raises(SchemaMismatch, match=r"'u\[\]' is a union .* read the channel in Python"):
        require_readable(both, "mixed", schema)


def test_a_schema_survives_a_round_trip() -> None:
    assert struct_of(Schema.of(DEEP).arrow) == DEEP


def test_narrow_types_are_widened() -> None:
    carried = {
        spark.ByteType(): pa.int32(),
        spark.ShortType(): pa.int32(),
        spark.VarcharType(5): pa.string(),
        spark.CharType(5): pa.string(),
        spark.StringType("UTF8_LCASE"): pa.string(),
        spark.TimeType(3): pa.time64("us"),
    }
    narrow = spark.StructType([spark.StructField(f"c{i}", kind) for i, kind in enumerate(carried)])

    assert Schema.of(narrow).arrow.types == list(carried.values())


def of_avro(*types: object) -> Schema:
    fields = [{"name": f"x{number}", "type": type_} for number, type_ in enumerate(types)]
    return Schema.parse({"type": "record", "name": "r", "fields": fields})


FIXED = {"type": "fixed", "name": "f", "size": 4}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
WIDE = {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}
TIME = {"type": "int", "logicalType": "time-millis"}
ENUM = {"type": "enum", "name": "e", "symbols": ["A"]}


def test_types_unknown_to_spark_are_converted() -> None:
    local = {"type": "long", "logicalType": "local-timestamp-millis"}
    times = {"type": "array", "items": TIME}
    uuid = {"type": "map", "values": {"type": "string", "logicalType": "uuid"}}

    struct_type = struct_of(of_avro(FIXED, MILLIS, local, times, uuid, ENUM).arrow)

    assert [field.dataType for field in struct_type.fields] == [
        spark.BinaryType(),
        spark.TimestampType(),
        spark.TimestampNTZType(),
        spark.ArrayType(spark.TimeType(), False),
        spark.MapType(spark.StringType(), spark.StringType(), False),
        spark.StringType(),
    ]


def test_batches_are_cast_to_the_types_that_spark_reads() -> None:
    inner = {
        "type": "record",
        "name": "i",
        "fields": [
            {"name": "f", "type": ["null", FIXED]},
            {"name": "m", "type": {"type": "map", "values": ["null", MILLIS]}},
            {"name": "t", "type": {"type": "array", "items": TIME}},
        ],
    }
    schema = of_avro(["null", inner], "int", MILLIS)
    moment = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    row = {
        "f": b"1234",
        "m": {"a": moment, "b": None},
        "t": [time(1), time(23, 59, 59, 999_000)],
    }
    rows = [{"x0": row, "x1": 1, "x2": moment}, {"x0": None, "x1": 2, "x2": moment}]
    (batch,) = to_batches(rows, schema)

    made = spark_transform(schema)(batch.slice(0, 2))

    made.validate(full=True)
    nested = made.schema.field("x0").type
    assert nested.field("f").type == pa.binary()
    assert nested.field("m").type.item_type == pa.timestamp("us", tz="UTC")
    assert nested.field("t").type.value_type == pa.time64("ns")
    assert made.schema.field("x2").type == pa.timestamp("us", tz="UTC")
    (again,) = to_batches(made, schema)
    assert to_records(again) == rows
    plain = of_avro("int")
    (untouched,) = to_batches({"x0": 1}, plain)
    assert spark_transform(plain)(untouched) is untouched


def test_an_instant_out_of_sparks_range_is_an_error() -> None:
    schema = of_avro(MILLIS)
    batch = pa.record_batch([pa.array([2**60], pa.timestamp("ms", tz="UTC"))], schema=schema.arrow)
    with pytest.raises(ValueOutOfRange, match=r"64 bits.*\.schema\(\.\.\.\)"):
        spark_transform(schema)(batch)


@pytest.mark.parametrize(
    ("type_", "said"),
    [
        (NANOS, "'x0' is a timestamp in nanoseconds"),
        ({"type": "array", "items": WIDE}, r"'x0\[\]' is a decimal of 50 digits"),
        ({"type": "map", "values": WIDE}, r"'x0\{\}' is a decimal of 50 digits"),
    ],
)
def test_unsupported_columns_are_named_and_can_be_omitted(type_: object, said: str) -> None:
    schema = of_avro(type_, "int")
    with pytest.raises(SchemaMismatch, match=said + r".*\.schema\(\.\.\.\)"):
        struct_of(schema.arrow)
    require_readable(struct("x1 int"), "c", schema)
    with pytest.raises(SchemaMismatch, match=said):
        require_readable(
            spark.StructType([spark.StructField("x0", spark.TimestampType())]), "c", schema
        )


@pytest.mark.parametrize(
    ("mine", "type_"),
    [
        (spark.DecimalType(38, 2), WIDE),
        (spark.LongType(), WIDE),
        (spark.ByteType(), {"type": "bytes", "logicalType": "decimal", "precision": 3}),
        (spark.TimestampType(), MILLIS),
        (spark.TimestampType(), NANOS),
        (spark.BinaryType(), FIXED),
        (spark.StringType(), ENUM),
        (spark.TimeType(0), {"type": "long", "logicalType": "time-micros"}),
    ],
)
def test_columns_that_fit_are_accepted(mine: spark.DataType, type_: object) -> None:
    require_writable(spark.StructType([spark.StructField("x0", mine)]), "c", of_avro(type_))


@pytest.mark.parametrize(
    ("mine", "type_"),
    [
        (spark.DecimalType(10, 3), {"type": "bytes", "logicalType": "decimal", "precision": 20}),
        (spark.IntegerType(), {"type": "bytes", "logicalType": "decimal", "precision": 9}),
        (spark.DoubleType(), WIDE),
        (spark.DoubleType(), "float"),
        (spark.DecimalType(10, 0), "double"),
        (spark.LongType(), MILLIS),
        (spark.TimestampNTZType(), MILLIS),
        (spark.StringType(), FIXED),
    ],
)
def test_columns_that_may_lose_values_are_errors(mine: spark.DataType, type_: object) -> None:
    with pytest.raises(SchemaMismatch, match=r"'x0' is .* in the channel 'c': cast it"):
        require_writable(spark.StructType([spark.StructField("x0", mine)]), "c", of_avro(type_))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (spark.NullType(), "'c' has the type void.*give it a type"),
        (spark.DayTimeIntervalType(), "'c' has the type interval day to second.*seconds"),
        (spark.YearMonthIntervalType(), "'c' has the type interval year to month.*months"),
        (spark.CalendarIntervalType(), "'c' has the type interval"),
        (spark.VariantType(), "'c' has the type variant.*to_json"),
        (spark.StructType([]), "'c' has the type struct<>.*drop the column"),
        (spark.MapType(spark.IntegerType(), spark.StringType()), "map keys must be strings"),
        (spark.ArrayType(spark.VariantType()), r"'c\[\]' has the type variant"),
        (spark.ArrayType(Box()), r"'c\[\]' has the type udt.*fields of its storage"),
        (spark.DecimalType(2, -3), "'c' has the type decimal.*scale lies between"),
        (spark.MapType(spark.StringType(), spark.NullType()), r"'c\{\}' has the type void"),
        (
            spark.StructType([spark.StructField("d", spark.YearMonthIntervalType())]),
            r"'c\.d' has the type interval",
        ),
    ],
)
def test_an_unsupported_type_is_an_error_with_advice(kind: spark.DataType, said: str) -> None:
    with pytest.raises(UnsupportedType, match=said):
        Schema.of(spark.StructType([spark.StructField("c", kind)]))


@pytest.mark.parametrize(
    "ddl",
    [
        "id bigint not null, n int, s string",
        "s string, n int, id bigint",  # another order; nulls are detected in the rows
        "id int, s string",  # widened; a nullable column left out
    ],
)
def test_a_matching_dataframe_is_accepted(ddl: str) -> None:
    require_writable(struct(ddl), "c", CHANNEL)


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("id string", "column 'id' is string in the dataframe and bigint in the channel 'c'"),
        ("id bigint, n bigint", "column 'n' is bigint in the dataframe and int in the channel"),
        ("id double", "column 'id' is double in the dataframe and bigint"),
        (
            "id bigint, x int",
            "no column 'x', only id, n, s: drop or rename .* or add it .*mergeSchema",
        ),
        ("n int", r"lacks the column 'id' \(bigint\).*add it"),
        ("id bigint, id bigint", "column 'id' twice"),
    ],
)
def test_a_mismatched_dataframe_is_an_error_that_names_the_column(ddl: str, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        require_writable(struct(ddl), "c", CHANNEL)


def test_nested_types_are_compared() -> None:
    deep = Schema.of(DEEP)
    wrong = spark.StructType(
        [*DEEP.fields[:1], spark.StructField("m", spark.MapType(spark.StringType(), LONG))]
    )

    require_writable(DEEP, "c", deep)
    with pytest.raises(SchemaMismatch, match=r"column 'm\{\}' is bigint in the dataframe and date"):
        require_writable(wrong, "c", deep)


LONG = spark.LongType()


def test_a_selection_of_columns_can_be_read() -> None:
    require_readable(struct("s string, id bigint"), "c", CHANNEL)
    require_readable(struct("id bigint not null"), "c", CHANNEL)


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        (
            "id int",
            r"column 'id' is bigint in the channel 'c', not int: use the channel's type",
        ),
        ("x int", "no column 'x', only id, n, s"),
        ("n int not null", "column 'n' may be null in the channel 'c'"),
        ("id bigint, id bigint", "column 'id' twice"),
    ],
)
def test_a_mismatched_schema_is_an_error_that_names_the_column(ddl: str, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        require_readable(struct(ddl), "c", CHANNEL)


@pytest.mark.parametrize("ddl", ["id int", "x int", "n int not null"])
def test_an_outdated_table_is_an_error_with_its_own_advice(ddl: str) -> None:
    with pytest.raises(SchemaMismatch, match=r": the table has .* drop it and create it again"):
        require_readable(struct(ddl), "c", CHANNEL, of_table=True)
    with pytest.raises(SchemaMismatch, match=r"Without \.schema.* load it again"):
        require_readable(struct(ddl), "c", CHANNEL)


def nested(items: bool, member: bool, values: bool, **metadata: str) -> spark.StructType:
    """Return a column `a`, an array of structs, which is nullable as given within."""
    row = spark.StructType()
    row.add("n", LONG, member, metadata or None)
    row.add("m", spark.MapType(spark.StringType(), LONG, values))
    return spark.StructType([spark.StructField("a", spark.ArrayType(row, items))])


@pytest.mark.parametrize("items", [False, True])
@pytest.mark.parametrize("member", [False, True])
def test_nested_columns_can_be_read_as_more_nullable(items: bool, member: bool) -> None:
    channel = Schema.of(nested(False, False, True))

    require_readable(nested(items, member, True, comment="a note"), "c", channel)


@pytest.mark.parametrize(
    ("column", "path"),
    [
        (nested(False, True, True), "a[]"),
        (nested(True, False, True), "a[].n"),
        (nested(True, True, False), "a[].m{}"),
    ],
)
def test_nested_columns_cannot_be_read_as_less_nullable(
    column: spark.StructType, path: str
) -> None:
    with pytest.raises(SchemaMismatch, match=re.escape(f"column {path!r} may be null")):
        require_readable(column, "c", Schema.of(nested(True, True, True)))


def test_a_merged_schema_has_further_columns_at_its_end_also_within_structs() -> None:
    def nested(**columns: spark.DataType) -> spark.StructType:
        inner = spark.StructType([spark.StructField(n, c, False) for n, c in columns.items()])
        return spark.StructType(
            [
                spark.StructField("r", inner, False),
                spark.StructField("a", spark.ArrayType(inner, False)),
                spark.StructField("m", spark.MapType(spark.StringType(), inner, False)),
            ]
        )

    before = nested(x=spark.IntegerType(), y=spark.FloatType())
    further = nested(z=spark.StringType(), y=spark.DoubleType(), x=spark.LongType())

    merged = struct_of(merged_schema(further, Schema.of(before)).arrow)

    inner = merged["r"].dataType.simpleString()
    assert inner == "struct<x:bigint,y:double,z:string>"
    assert merged["a"].dataType.simpleString() == f"array<{inner}>"
    assert merged["m"].dataType.simpleString() == f"map<string,{inner}>"
    assert [field.nullable for field in merged["r"].dataType] == [False, False, True]
    assert [field.nullable for field in merged] == [False, True, True]


def test_a_merged_schema_keeps_what_else_differs() -> None:
    for ddl in ("n bigint not null, s int", "id int, s string", "id int"):
        kept = merged_schema(struct(ddl), CHANNEL)
        assert [field.name for field in kept.record.fields] == ["id", "n", "s"]
        assert kept.arrow.field("id") == CHANNEL.arrow.field("id")
        assert kept.arrow.field("s") == CHANNEL.arrow.field("s")
    assert merged_schema(struct("id int"), CHANNEL) == CHANNEL
