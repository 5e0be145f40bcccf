import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from sluiceway.errors import SchemaMismatch, UnsupportedType
from sluiceway.schema import Schema
from sluiceway.spark.types import arrow_of, require_readable, require_writable, struct_of


def struct(ddl: str) -> spark.StructType:
    """Read `name type [not null], ...` of types without commas, but for nested ones."""
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


CHANNEL = Schema.of(arrow_of(struct("id bigint not null, n int, s string")))
DEEP = spark.StructType(
    [
        spark.StructField("a", spark.ArrayType(spark.IntegerType(), False), False),
        spark.StructField("m", spark.MapType(spark.StringType(), spark.DateType())),
        spark.StructField(
            "r", spark.StructType([spark.StructField("t", spark.TimestampNTZType(), False)])
        ),
    ]
)


def test_a_schema_survives_the_way_through_a_channel() -> None:
    assert struct_of(Schema.of(arrow_of(DEEP)).arrow) == DEEP


def test_narrow_types_are_carried_by_wider_ones() -> None:
    kinds = [spark.ByteType(), spark.ShortType(), spark.VarcharType(5), spark.CharType(5)]
    narrow = spark.StructType([spark.StructField(f"c{i}", kind) for i, kind in enumerate(kinds)])

    assert arrow_of(narrow).types == [pa.int32(), pa.int32(), pa.string(), pa.string()]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (spark.DecimalType(10, 2), r"'c' has the type decimal\(10,2\).*cast it to double"),
        (spark.NullType(), "'c' has the type void.*give it a type"),
        (spark.DayTimeIntervalType(), "'c' has the type interval day to second.*seconds"),
        (spark.YearMonthIntervalType(), "'c' has the type interval year to month.*months"),
        (spark.CalendarIntervalType(), "'c' has the type interval"),
        (spark.VariantType(), "'c' has the type variant.*to_json"),
        (spark.StructType([]), "'c' has the type struct<>.*drop the column"),
        (spark.MapType(spark.IntegerType(), spark.StringType()), "keys of a map are strings"),
        (spark.ArrayType(spark.DecimalType(5, 1)), r"'c\[\]' has the type decimal"),
        (spark.MapType(spark.StringType(), spark.NullType()), r"'c\{\}' has the type void"),
        (
            spark.StructType([spark.StructField("d", spark.DecimalType(5, 1))]),
            r"'c\.d' has the type decimal",
        ),
    ],
)
def test_a_type_that_no_channel_carries_is_named_with_what_to_do(
    kind: spark.DataType, said: str
) -> None:
    with pytest.raises(UnsupportedType, match=said):
        arrow_of(spark.StructType([spark.StructField("c", kind)]))


@pytest.mark.parametrize(
    "ddl",
    [
        "id bigint not null, n int, s string",
        "s string, n int, id bigint",  # another order; nulls are looked for in the rows
        "id int, s string",  # widened; a nullable column left out
    ],
)
def test_a_dataframe_that_fits_may_be_written(ddl: str) -> None:
    require_writable(struct(ddl), "c", CHANNEL)


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("id string", "column 'id' is string in the dataframe and bigint in the channel 'c'"),
        ("id bigint, n bigint", "column 'n' is bigint in the dataframe and int in the channel"),
        ("id double", "column 'id' is double in the dataframe and bigint"),
        ("id bigint, x int", "no column 'x', only id, n, s: drop or rename"),
        ("n int", r"lacks the column 'id' \(bigint\).*add it"),
        ("id bigint, id bigint", "column 'id' twice"),
    ],
)
def test_a_dataframe_that_does_not_fit_is_refused_by_column(ddl: str, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        require_writable(struct(ddl), "c", CHANNEL)


def test_nested_types_are_compared_to_the_leaf() -> None:
    deep = Schema.of(arrow_of(DEEP))
    wrong = spark.StructType(
        [*DEEP.fields[:1], spark.StructField("m", spark.MapType(spark.StringType(), LONG))]
    )

    require_writable(DEEP, "c", deep)
    with pytest.raises(SchemaMismatch, match=r"column 'm\{\}' is bigint in the dataframe and date"):
        require_writable(wrong, "c", deep)


LONG = spark.LongType()


def test_a_choice_of_columns_may_be_read() -> None:
    require_readable(struct("s string, id bigint"), "c", CHANNEL)
    require_readable(struct("id bigint not null"), "c", CHANNEL)


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("id int", r"column 'id' is bigint in the channel 'c', not int: read it as it is"),
        ("x int", "no column 'x', only id, n, s"),
        ("n int not null", "column 'n' may be null in the channel 'c'"),
        ("id bigint, id bigint", "column 'id' twice"),
    ],
)
def test_a_schema_that_is_not_the_channels_is_refused_by_column(ddl: str, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        require_readable(struct(ddl), "c", CHANNEL)


def test_what_is_nested_cannot_be_read_as_less_nullable() -> None:
    nullable = spark.StructType([spark.StructField("a", spark.ArrayType(LONG, True))])
    strict = spark.StructType([spark.StructField("a", spark.ArrayType(LONG, False))])

    require_readable(nullable, "c", Schema.of(arrow_of(strict)))
    with pytest.raises(SchemaMismatch, match="'a'"):
        require_readable(strict, "c", Schema.of(arrow_of(nullable)))
