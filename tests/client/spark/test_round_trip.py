from datetime import UTC, date, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import Row

from sluiceway import Gateway

ALL_TYPES = """
    truth boolean, small int, big bigint not null, single float, twice double, text string,
    raw binary, day date, instant timestamp, wall timestamp_ntz,
    nested struct<a: bigint, deep: struct<b: string not null>>,
    list array<int>, table map<string, double>
"""
INSTANT = datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC)
ROWS = [
    Row(
        truth=True,
        small=-(2**31),
        big=2**63 - 1,
        single=0.5,
        twice=1e300,
        text="Zürich ✈",
        raw=bytearray(b"\x00\xff"),
        day=date(1969, 12, 31),
        instant=INSTANT,
        wall=INSTANT.replace(tzinfo=None),
        nested=Row(a=1, deep=Row(b="x")),
        list=[1, None, 3],
        table={"x": 1.5, "y": None},
    ),
    Row(*[None, None, 7, *[None] * 10]),
    Row(*[False, 0, -1, *[None] * 7], Row(a=None, deep=None), [], {}),
]


def rows(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: row.big)


@pytest.fixture
def all_types(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, ALL_TYPES)


@pytest.mark.sample
@pytest.mark.parametrize("format_", ["avro", "arrow"])
def test_rows_survive_a_round_trip(
    spark: SparkSession, all_types: DataFrame, name: str, format_: str
) -> None:
    options = {"create": "true", "format": format_, "partitions": 3}
    all_types.repartition(3).write.format("channel").mode("append").options(**options).save(name)

    back = spark.read.format("channel").load(name)

    assert back.schema == all_types.schema
    assert rows(back) == rows(all_types)


def test_a_protobuf_channel_is_created_from_columns_that_its_format_has(
    spark: SparkSession, all_types: DataFrame, name: str
) -> None:
    options = {"create": "true", "format": "protobuf", "partitions": 3}
    frame = all_types.drop("wall", "list", "table")
    frame.repartition(3).write.format("channel").mode("append").options(**options).save(name)

    back = spark.read.format("channel").load(name)

    assert back.schema == frame.schema
    assert rows(back) == rows(frame)
    for column in ("wall", "list"):
        refused = all_types.select("big", column).write.format("channel").mode("append")
        with pytest.raises(Exception, match=f"field '{column}'.*Protobuf"):
            refused.options(**options).save(f"{name}-{column}")


def test_python_reads_records_written_by_spark(
    all_types: DataFrame, gateway: Gateway, name: str
) -> None:
    frame = all_types.coalesce(1)
    frame.write.format("channel").mode("append").option("create", "true").save(name)

    with gateway.channel(name).reader(until="now") as reader:
        records = list(reader)

    first = ROWS[0].asDict(recursive=True)
    assert records[0] == first | {"raw": b"\x00\xff"}
    assert [record["big"] for record in records] == [2**63 - 1, 7, -1]
    assert records[2]["nested"] == {"a": None, "deep": None}


@pytest.mark.long
def test_a_schema_selects_and_reorders_columns(
    spark: SparkSession, all_types: DataFrame, name: str
) -> None:
    all_types.write.format("channel").mode("append").option("create", "true").save(name)

    some = spark.read.format("channel").schema("text string, big bigint").load(name)

    assert rows(some) == [
        Row(text=None, big=-1),
        Row(text=None, big=7),
        Row(text="Zürich ✈", big=2**63 - 1),
    ]


def test_narrow_numbers_widen_and_absent_columns_become_null(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    wide = spark.createDataFrame([], "a bigint not null, b double, c string")
    wide.write.format("channel").mode("append").option("create", "true").save(name)
    narrow = spark.createDataFrame([Row(b=0.5, a=3)], "b float, a int")

    narrow.write.format("channel").mode("append").save(name)

    assert spark.read.format("channel").load(name).collect() == [Row(a=3, b=0.5, c=None)]


@pytest.mark.long
def test_bytes_and_shorts_become_ints(spark: SparkSession, name: str) -> None:
    frame = spark.createDataFrame([Row(a=-128, b=-32768)], "a tinyint, b smallint")
    frame.write.format("channel").mode("append").option("create", "true").save(name)

    back = spark.read.format("channel").load(name)

    assert back.dtypes == [("a", "int"), ("b", "int")]
    assert back.collect() == [Row(a=-128, b=-32768)]


def test_a_channel_of_bytes_is_a_binary_column(
    spark: SparkSession, gateway_url: str, name: str
) -> None:
    with Gateway(gateway_url) as gateway:
        with gateway.channel(name, format="bytes").writer() as writer:
            writer.write([{"value": b"by hand"}, {"value": None}])
        frame = spark.createDataFrame([(bytearray(b"by Spark"),)], "value binary")
        frame.write.format("channel").mode("append").save(name)
        back = spark.read.format("channel").load(name)
        assert [(field.name, field.dataType.simpleString()) for field in back.schema] == [
            ("value", "binary")
        ]
        values = {None if row.value is None else bytes(row.value) for row in back.collect()}
        assert values == {b"by hand", None, b"by Spark"}
