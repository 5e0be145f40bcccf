"""Tables, views and INSERT INTO of channels in SQL."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluiceway import Gateway
from spark_tasks import SCHEMA, all_ids, fill

Table = Callable[[str], str]


@pytest.fixture
def new_table(spark: SparkSession, gateway: Gateway) -> Iterator[Table]:
    """Create a channel with the ids 0 to 2, and a table of the same name but for the dashes."""
    tables = []

    def create(name: str) -> str:
        fill(gateway.channel(name, SCHEMA), range(3))
        table = name.replace("-", "_")
        spark.sql(f"CREATE TABLE {table} USING channel OPTIONS (path '{name}')")
        tables.append(table)
        return table

    yield create
    for table in tables:
        spark.sql(f"DROP TABLE {table}")


@pytest.fixture
def table(new_table: Table, name: str) -> str:
    return new_table(name)


def ids(spark: SparkSession, query: str) -> list[int]:
    return sorted(row.id for row in spark.sql(query).collect())


def test_each_query_reads_what_its_table_holds(
    spark: SparkSession, gateway: Gateway, name: str, table: str
) -> None:
    assert ids(spark, f"SELECT * FROM {table}") == [0, 1, 2]  # noqa: S608

    fill(gateway.channel(name), range(3, 5))

    assert ids(spark, f"SELECT * FROM {table} WHERE s = '4'") == [4]  # noqa: S608
    assert spark.table(table).count() == 5


def test_a_table_is_written_with_the_name_of_its_channel(
    spark: SparkSession, gateway: Gateway, name: str, table: str
) -> None:
    to = f"INSERT INTO {table} WITH (path '{name}')"

    spark.sql(f"{to} VALUES (3, 'c')")
    spark.sql(f"{to} SELECT id, s FROM {table} WHERE id = 3")  # noqa: S608
    row = spark.table(table).where("id = 1")
    row.writeTo(table).option("path", name).append()
    row.write.format("channel").mode("append").option("path", name).saveAsTable(table)

    assert all_ids(gateway.channel(name)) == [0, 1, 1, 1, 2, 3, 3]


@pytest.mark.long
def test_a_table_from_a_query_is_refused_at_its_creation(
    spark: SparkSession, gateway: Gateway, name: str, table: str
) -> None:
    # Its write has the columns of the table that it reads, and would append to its channel.
    query = f"USING channel OPTIONS (path '{name}-copy') AS SELECT * FROM {table}"  # noqa: S608

    with pytest.raises(PySparkException, match="create the table without AS SELECT, then insert"):
        spark.sql(f"CREATE TABLE {table}_copy {query}")

    assert not spark.catalog.tableExists(f"{table}_copy")
    assert all_ids(gateway.channel(name)) == [0, 1, 2]


@pytest.mark.long
def test_a_write_to_a_table_alone_is_refused(
    spark: SparkSession, gateway: Gateway, name: str, table: str, new_table: Table
) -> None:
    # Spark passes the columns of the other table with such a write, not those of its target.
    other = new_table(f"{name}-other")
    rows = spark.table(other)
    appending = rows.write.format("channel").mode("append")

    for write in (
        lambda: spark.sql(f"INSERT INTO {table} SELECT * FROM {other}"),  # noqa: S608
        lambda: spark.sql(f"INSERT INTO {table} VALUES (3, 'c')"),  # noqa: S608
        lambda: rows.write.insertInto(table),
        lambda: rows.writeTo(table).append(),
        lambda: appending.saveAsTable(table),
        lambda: appending.save(),
    ):
        with pytest.raises(PySparkException, match=r"INSERT INTO t WITH \(path 'flights'\)"):
            write()

    assert all_ids(gateway.channel(name)) == all_ids(gateway.channel(f"{name}-other")) == [0, 1, 2]


@pytest.mark.long
def test_options_of_a_query_are_added_to_those_of_the_table(
    spark: SparkSession, name: str, table: str
) -> None:
    some = f"""SELECT * FROM {table} WITH (startingOffsets '{{"0": 2}}')"""  # noqa: S608

    assert ids(spark, some) == [2]
    with pytest.raises(PySparkException, match="there is no option 'startingoffset'"):
        ids(spark, f"SELECT * FROM {table} WITH (startingOffset 'latest')")  # noqa: S608


@pytest.mark.long
def test_a_table_of_a_changed_channel_is_refused_with_advice(
    spark: SparkSession, gateway: Gateway, name: str, table: str
) -> None:
    gateway.channel(name).update(schema=pa.schema([*SCHEMA, pa.field("n", pa.int32())]))
    assert spark.table(table).columns == ["id", "s"]
    assert ids(spark, f"SELECT * FROM {table}") == [0, 1, 2]  # noqa: S608

    gateway.channel(name).update(schema=SCHEMA.remove(1))
    with pytest.raises(PySparkException, match=r"'s'.*: the table has .* create it again"):
        ids(spark, f"SELECT * FROM {table}")  # noqa: S608


@pytest.mark.long
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


@pytest.mark.long
def test_a_stream_writes_a_table_with_the_name_of_its_channel(
    spark: SparkSession, gateway: Gateway, name: str, new_table: Table, tmp_path: Path
) -> None:
    source, table = new_table(f"{name}-in"), new_table(name)

    def run(**options: str) -> None:
        writer = spark.readStream.table(source).writeStream.options(**options)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).toTable(table).awaitTermination()

    with pytest.raises(PySparkException, match=r"""\.option\("path", "flights"\)\.toTable"""):
        run()
    run(path=name)

    assert all_ids(gateway.channel(name)) == [0, 0, 1, 1, 2, 2]


def test_a_channel_cannot_be_overwritten_by_insert(spark: SparkSession, table: str) -> None:
    with pytest.raises(PySparkException, match="a channel cannot be overwritten"):
        spark.sql(f"INSERT OVERWRITE {table} VALUES (3, 'c')")  # noqa: S608


@pytest.mark.long
def test_a_temporary_view_is_read_and_written(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    fill(gateway.channel(name, SCHEMA), range(2))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING channel OPTIONS (path '{name}')")

    spark.sql("INSERT INTO v VALUES (2, 'b')")

    assert ids(spark, "SELECT * FROM v") == [0, 1, 2]


@pytest.mark.long
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


@pytest.mark.long
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
