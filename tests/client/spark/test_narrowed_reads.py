"""Reads of selected columns, and of selected offsets by filters on `_metadata`."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import sluiceway.spark
from sluiceway import Gateway
from sluiceway.codecs import codec
from sluiceway.schema import Schema
from spark_tasks import SCHEMA, Produce, fill

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark_session: SparkSession, gateway_url: str) -> Iterator[SparkSession]:
    """The session with filter pushdown enabled, registered with the tests' gateway."""
    spark_session.conf.set(PUSHDOWN, "true")
    sluiceway.spark.register(spark_session, gateway=gateway_url)
    yield spark_session
    spark_session.conf.unset(PUSHDOWN)
    sluiceway.spark.register(spark_session, gateway=gateway_url)


def load(spark: SparkSession, name: str, **options: str) -> DataFrame:
    return spark.read.format("channel").options(**options).load(name)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


def with_bad_text(schema_id: int) -> bytes:
    """Return an `arrow` message of the record 7 whose text is not UTF-8."""
    text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    batch = pa.RecordBatch.from_arrays([pa.array([7]), text], schema=Schema.of(SCHEMA).arrow)
    (value,) = codec("arrow", Schema.of(SCHEMA), schema_id).encode(batch, limit_bytes=10_000)
    assert value is not None
    return value


def test_columns_outside_of_the_given_schema_are_not_decoded(
    spark: SparkSession, gateway: Gateway, name: str, produce: Produce
) -> None:
    channel = gateway.channel(name, SCHEMA, format="arrow")
    connection = channel.connection("read")
    produce(connection, with_bad_text(connection.schema_id))
    fill(channel, range(2))

    some = spark.read.format("channel").schema("id long").load(name)
    assert ids(some) == [0, 1, 7]
    with pytest.raises(PySparkException, match="CorruptMessage"):
        load(spark, name).collect()


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


def test_filters_on_metadata_narrow_what_is_read(
    pushing: SparkSession, gateway: Gateway, name: str, produce: Produce
) -> None:
    channel = gateway.channel(name, SCHEMA, partitions=2)
    produce(channel.connection("read"), b"corrupt")
    fill(channel, range(5))
    fill(channel, range(5, 8), partition=1)
    frame = load(pushing, name, includeMetadata="true")

    with pytest.raises(PySparkException, match="CorruptMessage"):
        frame.where("id >= 0").collect()
    # The corrupt message is at offset 0 of partition 0.
    assert ids(frame.where("_metadata.offset >= 1 and id < 7")) == [0, 1, 2, 3, 4, 6]
    assert ids(frame.where("_metadata.partition = 1")) == [5, 6, 7]
    assert ids(frame.where("_metadata.partition in (1, 9) and _metadata.offset <= 1")) == [5, 6]
    assert ids(frame.where("_metadata.partition = 0 and _metadata.offset > 7")) == []


def test_a_filter_on_the_timestamp_narrows_what_is_read(
    pushing: SparkSession, gateway: Gateway, name: str, produce: Produce
) -> None:
    channel = gateway.channel(name, SCHEMA)
    produce(channel.connection("read"), b"corrupt")
    fill(channel, range(3))
    frame = load(pushing, name, includeMetadata="true", startingOffsets='{"0": 1}')
    written: datetime = frame.selectExpr("max(_metadata.timestamp) at").collect()[0].at
    later = written + timedelta(milliseconds=1)

    frame = load(pushing, name, includeMetadata="true")

    assert ids(frame.where(frame["_metadata"]["timestamp"] >= later)) == []
    with pytest.raises(PySparkException, match="CorruptMessage"):
        ids(frame.where(frame["_metadata"]["timestamp"] <= written))


def test_a_session_without_filter_pushdown_returns_the_same_rows(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    fill(gateway.channel(name, SCHEMA), range(5))
    frame = load(spark, name, includeMetadata="true")

    assert ids(frame.where("_metadata.offset between 1 and 2")) == [1, 2]
