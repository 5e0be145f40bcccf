"""Deletes of compacted channels in Spark."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sluiceway import Gateway
from spark_tasks import SCHEMA


def test_deletes_are_rows_on_request(spark: SparkSession, gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, SCHEMA, config={"cleanup.policy": "compact"})
    with channel.writer(key="id") as writer:
        writer.delete(0)
        for number in (1, 2):
            writer.write({"id": number, "s": "a"})
            writer.delete(number)

    def load(schema: str | None = None, **options: str) -> DataFrame:
        read = spark.read.format("channel").options(**options)
        return (read if schema is None else read.schema(schema)).load(name)

    assert sorted(row.id for row in load().collect()) == [1, 2]
    frame = load(includeDeletes="true", key="id", includeMetadata="true")
    rows = [(row.id, row.s, row["_deleted"]) for row in frame.orderBy("_metadata.offset").collect()]
    deletes = [(number, None, True) for number in (0, 1, 2)]
    assert rows == [deletes[0], (1, "a", False), deletes[1], (2, "a", False), deletes[2]]
    flags = load("_deleted boolean not null", includeDeletes="true").collect()
    assert sorted(row["_deleted"] for row in flags) == [False, False, True, True, True]

    with pytest.raises(PySparkException, match="the column 'id' is null in deletes"):
        load("id long not null", includeDeletes="true").collect()
    with pytest.raises(PySparkException, match="the channel has the fields id, s"):
        load(includeDeletes="true", key="ident").collect()
