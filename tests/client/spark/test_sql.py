"""Tables, views and INSERT INTO of channels in SQL."""

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluiceway import Gateway
from spark_tasks import SCHEMA, all_ids, fill


@pytest.fixture
def table(spark: SparkSession, gateway: Gateway, name: str) -> Iterator[str]:
    """A table of a channel with the ids 0 to 2, both with the same name but for the dashes."""
    fill(gateway.channel(name, SCHEMA), range(3))
    table = name.replace("-", "_")
    spark.sql(f"CREATE TABLE {table} USING channel OPTIONS (path '{name}')")
    yield table
    spark.sql(f"DROP TABLE {table}")


def ids(spark: SparkSession, query: str) -> list[int]:
    return sorted(row.id for row in spark.sql(query).collect())


def test_a_table_of_a_channel_is_read_and_written(
    spark: SparkSession, gateway: Gateway, name: str, table: str
) -> None:
    assert ids(spark, f"SELECT * FROM {table}") == [0, 1, 2]  # noqa: S608

    spark.sql(f"INSERT INTO {table} VALUES (3, 'c')")  # noqa: S608
    spark.sql(f"INSERT INTO {table} (s, id) VALUES ('d', 4)")  # noqa: S608

    assert all_ids(gateway.channel(name)) == [0, 1, 2, 3, 4]
    assert ids(spark, f"SELECT * FROM {table} WHERE s = 'd'") == [4]  # noqa: S608
    assert spark.table(table).count() == 5


def test_options_of_a_query_are_added_to_those_of_the_table(
    spark: SparkSession, name: str, table: str
) -> None:
    some = f"""SELECT * FROM {table} WITH (startingOffsets '{{"0": 2}}')"""  # noqa: S608

    assert ids(spark, some) == [2]
    with pytest.raises(PySparkException, match="there is no option 'startingoffset'"):
        ids(spark, f"SELECT * FROM {table} WITH (startingOffset 'latest')")  # noqa: S608


def test_a_stream_reads_a_table(spark: SparkSession, table: str) -> None:
    seen: list[int] = []
    query = (
        spark.readStream.table(table)
        .writeStream.foreachBatch(lambda batch, _: seen.extend(row.id for row in batch.collect()))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert seen == [0, 1, 2]


def test_a_channel_cannot_be_overwritten_by_insert(spark: SparkSession, table: str) -> None:
    with pytest.raises(PySparkException, match="a channel cannot be overwritten"):
        spark.sql(f"INSERT OVERWRITE {table} VALUES (3, 'c')")  # noqa: S608


def test_a_temporary_view_is_read_and_written(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    fill(gateway.channel(name, SCHEMA), range(2))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING channel OPTIONS (path '{name}')")

    spark.sql("INSERT INTO v VALUES (2, 'b')")

    assert ids(spark, "SELECT * FROM v") == [0, 1, 2]


def test_a_temporary_view_with_columns_creates_its_channel(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW v (id BIGINT, s STRING) USING channel "
        f"OPTIONS (path '{name}', create 'true', partitions '2')"
    )

    spark.sql("INSERT INTO v VALUES (2, 'b')")

    assert all_ids(gateway.channel(name)) == [2]
    assert gateway.channel(name).connection("read").partitions == 2


def test_a_table_whose_options_spark_drops_is_refused_with_advice(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    fill(gateway.channel(name, SCHEMA), range(2))
    table = name.replace("-", "_")
    spark.sql(f"CREATE TABLE {table} (id BIGINT) USING channel OPTIONS (path '{name}')")
    try:
        with pytest.raises(PySparkException, match="for a table without a list of columns"):
            ids(spark, f"SELECT * FROM {table}")  # noqa: S608
        assert ids(spark, f"SELECT * FROM {table} WITH (path '{name}')") == [0, 1]  # noqa: S608
    finally:
        spark.sql(f"DROP TABLE {table}")


def test_a_table_of_a_missing_channel_cannot_be_created(spark: SparkSession, name: str) -> None:
    with pytest.raises(PySparkException, match=f"ChannelNotFound.*'{name}'"):
        spark.sql(f"CREATE TABLE t USING channel OPTIONS (path '{name}')")
    assert not spark.catalog.tableExists("t")
