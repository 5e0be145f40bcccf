"""Reads of selected columns, filters on `_metadata`, and repeated queries."""

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sluiceway import Gateway
from sluiceway.codecs import codec
from sluiceway.schema import Schema
from spark_tasks import SCHEMA, fill, produce

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def load(spark: SparkSession, name: str, **options: str) -> DataFrame:
    return spark.read.format("channel").options(**options).load(name)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


def with_bad_text(schema_id: int) -> bytes:
    """Return an `arrow` message of the record 7 whose text is not UTF-8."""
    text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array([7]), text], schema=Schema.of(SCHEMA).arrow)
    (value,) = (
        codec("arrow", Schema.of(SCHEMA), schema_id)
        .encode(batch, limit_bytes=10_000)
        .values.to_pylist()
    )
    assert value is not None
    return value


@pytest.mark.long
def test_columns_outside_of_the_given_schema_are_not_decoded(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    channel = gateway.channel(name, SCHEMA, format="arrow")
    connection = channel.connection("read")
    produce(connection, with_bad_text(connection.schema_id))
    fill(channel, range(2))

    some = spark.read.format("channel").schema("id long").load(name)
    assert ids(some) == [0, 1, 7]
    with pytest.raises(PySparkException, match="CorruptMessage"):
        load(spark, name).collect()


@pytest.mark.sample
@pytest.mark.parametrize("format_", ["avro", "arrow"])
def test_metadata_can_be_read_without_any_column(
    spark: SparkSession, gateway: Gateway, name: str, format_: str
) -> None:
    fill(gateway.channel(name, SCHEMA, format=format_), range(3))
    whole = load(spark, name, includeMetadata="true")
    only = spark.read.format("channel").option("includeMetadata", "true")
    metadata = [field for field in whole.schema.fields if field.name == "_metadata"]

    frame = only.schema(type(whole.schema)(metadata)).load(name)

    assert frame.columns == ["_metadata"]
    assert frame.count() == 3
    assert len(frame.collect()) == 3


@pytest.mark.sample
@pytest.mark.parametrize("pushdown", ["false", "true"])
def test_the_filters_of_one_query_do_not_narrow_others(
    spark: SparkSession, gateway: Gateway, name: str, pushdown: str
) -> None:
    channel = gateway.channel(name, SCHEMA, partitions=2)
    fill(channel, range(5))
    fill(channel, range(5, 8), partition=1)
    spark.conf.set(PUSHDOWN, pushdown)
    try:
        frame = load(spark, name, includeMetadata="true")
        first, second = (
            frame.where(f"_metadata.partition = {partition}") for partition in range(2)
        )

        assert ids(first.union(second)) == [*range(8)]
        assert ids(second) == [5, 6, 7]
        assert ids(frame.where("_metadata.offset between 1 and 2")) == [1, 2, 6, 7]
        assert ids(frame) == [*range(8)]
    finally:
        spark.conf.unset(PUSHDOWN)


@pytest.mark.long
def test_a_dataframe_reads_the_same_messages_in_all_queries(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    channel = gateway.channel(name, SCHEMA)
    fill(channel, range(3))
    frame = load(spark, name)
    assert ids(frame) == [0, 1, 2]

    fill(channel, range(3, 5))

    assert frame.count() == 3
    assert ids(frame.where("id > 0")) == [1, 2]
    assert ids(load(spark, name)) == [0, 1, 2, 3, 4]


@pytest.mark.long
def test_metadata_columns_have_types_in_sql(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    fill(gateway.channel(name, SCHEMA), range(3))
    columns = """
        id long,
        _metadata struct<partition: int, offset: bigint, timestamp: timestamp, key: binary>,
        headers array<struct<key: string, value: binary>>
    """
    read = spark.read.format("channel").option("includeMetadata", "true")

    frame = read.option("includeHeaders", "true").schema(columns).load(name)

    assert ids(frame.where("_metadata.offset > 0")) == [1, 2]
    with pytest.raises(PySparkException, match=r"'_metadata' is struct<.*not struct<"):
        read.schema("_metadata struct<partition: int, offset: int>").load(name).collect()
