"""Reading across schema changes, on real topics without a gateway."""

import struct
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from sluiceway.api.endpoints import Position
from sluiceway.api.models import Connection, SchemaVersion
from sluiceway.codecs import codec
from sluiceway.errors import CorruptMessage, GatewayUnavailable, SchemaMismatch
from sluiceway.reader import ChannelReader
from sluiceway.records import to_batches
from sluiceway.schema import Schema
from sluiceway.writer import ChannelWriter
from topics import DEFINITION, Topics, readings

NEWER = {
    **DEFINITION,
    "fields": [
        {"name": "id", "type": "double"},
        {"name": "quality", "type": "string", "default": "good"},
        {"name": "station", "type": ["null", "string"]},
        {"name": "celsius", "type": "double", "default": 0.0},
    ],
}
OTHER = {**DEFINITION, "fields": [{"name": "text", "type": "string"}]}
OLD_VERSION = SchemaVersion(id=7, version=1, definition=DEFINITION)
NEW_VERSION = SchemaVersion(id=8, version=2, definition=NEWER)
OTHER_VERSION = SchemaVersion(id=9, version=3, definition=OTHER)


def using(connection: Connection, *versions: SchemaVersion) -> Connection:
    """The connection of a job that uses the last of `versions`, the only ones there are."""
    used = versions[-1]
    return replace(
        connection, schemas=versions, schema_id=used.id, schema_definition=used.definition
    )


def newer(records: list[dict[str, Any]], quality: str = "good") -> list[dict[str, Any]]:
    return [{**record, "id": float(record["id"]), "quality": quality} for record in records]


def write(connection: Connection, records: list[dict[str, Any]]) -> None:
    with ChannelWriter(connection, batch_records=5) as writer:
        writer.write(records)


@pytest.fixture
def interleaved(topics: Topics, each_format: str) -> Connection:
    """Ten old readings, ten new, ten old, ten new; the connection is the first job's."""
    old = topics.connect(each_format, partitions=1)
    new = using(old, OLD_VERSION, NEW_VERSION)
    for first in (0, 20):
        write(old, readings(10, first))
        write(new, newer(readings(10, first + 10), "fair"))
    return old


EXPECTED = [
    *newer(readings(10, 0)),
    *newer(readings(10, 10), "fair"),
    *newer(readings(10, 20)),
    *newer(readings(10, 30), "fair"),
]


@pytest.mark.sample
def test_old_and_new_messages_are_read_with_the_newer_schema(interleaved: Connection) -> None:
    with ChannelReader(using(interleaved, OLD_VERSION, NEW_VERSION), until="now") as reader:
        records = list(islice(reader, 13))
        place = reader.position()
        records += [row for batch in reader.batches() for row in batch.to_pylist()]
        assert records == EXPECTED
        reader.seek(place)
        assert reader.read(100, timeout=None) == EXPECTED[13:]


def test_a_schema_that_appears_while_reading_is_fetched_and_its_new_fields_dropped(
    topics: Topics,
) -> None:
    asked = []
    longer = {
        **DEFINITION,
        "fields": [*DEFINITION["fields"], {"name": "quality", "type": "string"}],  # type: ignore[misc]
    }
    old = topics.connect("avro", partitions=1)
    new = using(old, OLD_VERSION, SchemaVersion(id=8, version=2, definition=longer))

    def refresh() -> Connection:
        asked.append("connection")
        return new

    write(old, readings(10))
    with ChannelReader(old, until=None, refresh=refresh) as reader:
        assert reader.read(10, timeout=None) == readings(10)
        for first in (10, 20):
            write(new, [{**record, "quality": "fair"} for record in readings(10, first)])
            assert reader.read(10, timeout=None) == readings(10, first)
    assert asked == ["connection"]


@pytest.mark.sample
def test_an_unknown_schema_during_an_outage_is_an_error_and_nothing_is_lost(
    interleaved: Connection,
) -> None:
    responses: list[BaseException] = [GatewayUnavailable("away"), KeyboardInterrupt()]

    def refresh() -> Connection:
        if responses:
            raise responses.pop(0)
        return using(interleaved, OLD_VERSION, NEW_VERSION)

    # This job started with its own schema, which no message has.
    own = using(interleaved, OLD_VERSION, SchemaVersion(id=5, version=0, definition=NEWER))
    with ChannelReader(own, until="now", refresh=refresh) as reader:
        with pytest.raises(GatewayUnavailable, match="away"):
            next(iter(reader))
        with pytest.raises(KeyboardInterrupt):
            next(iter(reader))
        assert list(reader) == EXPECTED


def test_an_incompatible_schema_stops_a_reader_even_with_skip(
    topics: Topics, each_format: str
) -> None:
    old = topics.connect(each_format, partitions=1)
    other = using(old, OLD_VERSION, NEW_VERSION, OTHER_VERSION)
    write(old, readings(10))
    topics.produce(old.topic_name, 0, [b"foreign"])
    write(other, [{"text": "hello"}])
    offset = 3 if each_format == "arrow" else 11
    reading = using(old, OTHER_VERSION, NEW_VERSION, OLD_VERSION)
    with ChannelReader(reading, until="now", on_corrupt="skip") as reader:
        assert reader.read(100, timeout=None) == readings(10)
        for _ in range(2):
            with pytest.raises(SchemaMismatch) as raised:
                reader.read(1, timeout=None)
            said = str(raised.value)
            assert f"partition 0, offset {offset}: it has the channel's schema 9" in (said)
            assert "field 'id' is read but not written" in said
            assert reader.position() == {0: Position(offset=offset)}
            assert reader.corrupt_messages == 1
        place = reader.position()
    with ChannelReader(other, until="now", start=place) as reader:
        assert list(reader) == [{"text": "hello"}]


def test_without_a_gateway_a_newer_schema_is_not_skipped(topics: Topics, each_format: str) -> None:
    connection = topics.connect(each_format, partitions=1)
    write(connection, readings(3))
    newer = codec(each_format, Schema.parse(DEFINITION), connection.schema_id + 1)
    (batch,) = to_batches(readings(1, 3), Schema.parse(DEFINITION))
    values = newer.encode(batch, limit_bytes=1 << 20).values.to_pylist()
    topics.produce(connection.topic_name, 0, [b"plain text", *values])
    with ChannelReader(connection, until="now", on_corrupt="skip") as reader:
        assert reader.read(10, timeout=None) == readings(3)
        for _ in range(2):
            with pytest.raises(
                SchemaMismatch,
                match="cannot be looked up without a gateway: it may belong to a newer",
            ):
                reader.read(10, timeout=None)
        assert reader.corrupt_messages == 1


@pytest.mark.long
def test_a_foreign_adopted_topic_loses_nothing(topics: Topics, each_format: str) -> None:
    """Foreign schema ids are recognized, even with the schema of the channel."""
    connection = topics.connect(each_format, partitions=1)
    strange = [
        value
        for batch in to_batches(readings(3), Schema.parse(DEFINITION))
        for value in codec(each_format, Schema.parse(DEFINITION), 10_007)
        .encode(batch, limit_bytes=1 << 20)
        .values.to_pylist()
    ]
    foreign = [b"plain text", b"", b'{"id": 1}', None, *strange, struct.pack(">bI", 0, 7)]
    write(connection, readings(5))
    topics.produce(connection.topic_name, 0, foreign)
    write(connection, readings(5, 5))
    first = 1 if each_format == "arrow" else 5
    asked = []

    def refresh() -> Connection:
        asked.append("connection")
        return connection

    with ChannelReader(connection, until="now", refresh=refresh) as reader:
        assert reader.read(100, timeout=None) == readings(5)
        for number in range(len(foreign)):
            with pytest.raises(CorruptMessage) as raised:
                reader.read(1, timeout=None)
            assert raised.value.offset == first + number
            assert reader.position() == {0: Position(offset=first + number)}
            if foreign[number] in strange:
                assert "schema id 10007 is not one of the channel's" in raised.value.reason
            reader.seek({0: first + number + 1})
        assert list(reader) == readings(5, 5)
    assert asked == ["connection"]
    with ChannelReader(connection, until="now", on_corrupt="skip", refresh=refresh) as reader:
        assert list(reader) == readings(10)
        assert reader.corrupt_messages == len(foreign)
