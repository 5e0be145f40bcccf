"""Batch reads of a channel whose schema changed."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from sluiceway import Gateway

FIELDS = [{"name": "id", "type": "int"}, {"name": "place", "type": "string"}]
OLD = {"type": "record", "name": "Reading", "fields": FIELDS}
NEW = {
    **OLD,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "unit", "type": "string", "default": "m"},
        {"name": "place", "type": ["null", "string"]},
    ],
}
OTHER = {**OLD, "fields": [{"name": "text", "type": "string"}]}


def load(spark: SparkSession, name: str, **options: str) -> DataFrame:
    return spark.read.format("channel").options(**options).load(name)


@pytest.mark.sample
@pytest.mark.parametrize("format_", ["avro", "arrow"])
def test_old_and_new_messages_are_read_with_the_newest_schema(
    spark: SparkSession, gateway: Gateway, name: str, format_: str
) -> None:
    before = gateway.channel(name, schema=OLD, format=format_)
    frame = load(spark, name)  # planned with the old schema, read after the update
    after = gateway.channel(name)
    with before.writer() as old_writer:
        old_writer.write([{"id": 0, "place": "a"}, {"id": 1, "place": "b"}])
        old_writer.flush()
        after.update(schema=NEW)
        with after.writer() as writer:
            writer.write([{"id": 2, "unit": "ft", "place": "c"}])
        old_writer.write([{"id": 3, "place": "d"}])
    assert load(spark, name).orderBy("id").collect() == [
        Row(id=0, unit="m", place="a"),
        Row(id=1, unit="m", place="b"),
        Row(id=2, unit="ft", place="c"),
        Row(id=3, unit="m", place="d"),
    ]
    with pytest.raises(
        PySparkException, match=r"the column 'id' is bigint in the channel '.*', not int"
    ):
        frame.collect()


@pytest.mark.long
def test_a_record_unreadable_by_the_newest_schema_is_never_skipped(
    spark: SparkSession, gateway: Gateway, name: str
) -> None:
    channel = gateway.channel(name, schema=OLD, compatibility="none")
    with channel.writer() as writer:
        writer.write({"id": 0, "place": "a"})
    channel.update(schema=OTHER)
    with channel.writer() as writer:
        writer.write({"text": "hello"})
    said = (
        r"SchemaMismatch: channel .* partition 0, offset 0: .*field 'text' is read but not written"
    )
    with pytest.raises(PySparkException, match=f"{said}.*never skipped"):
        load(spark, name, onCorrupt="skip").collect()
    rows = load(spark, name, onCorrupt="skip", startingOffsets='{"0": 1}').collect()
    assert rows == [Row(text="hello")]
