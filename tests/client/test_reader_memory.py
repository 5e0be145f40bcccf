"""Cost of reading: memory for large messages, and decoding next to corrupt ones."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from faults import at_call
from sluiceway.api.endpoints import Position
from sluiceway.api.models import Connection
from sluiceway.codecs import Decoder
from sluiceway.errors import CorruptMessage, SchemaMismatch, ValueOutOfRange
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter
from topics import Topics, readings

FLAGS = {"type": "record", "name": "Flag", "fields": [{"name": "up", "type": "boolean"}]}
MILLIONS = 8_000_000

PROGRAM = """
import json, resource, sys
from sluiceway.api.models import Connection
from sluiceway.reader import ChannelReader

connection = Connection(**json.loads(sys.argv[1]))
with ChannelReader(connection, until="now") as reader:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert reader.read(10, timeout=None) == [{"up": False}] * 10
    assert next(iter(reader)) == {"up": False}
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib)
"""


@pytest.fixture
def decoded() -> Iterator[list[int]]:
    """The number of messages of each call of the decoder."""
    messages: list[int] = []
    # A message that is decoded twice costs time only.
    with at_call(Decoder, "decode", lambda _, values: messages.append(len(values))):
        yield messages


def flags(topics: Topics, messages: int) -> Connection:
    """Create a channel with messages of about a megabyte and eight million records each."""
    connection = topics.connect("arrow", partitions=1, schema_definition=FLAGS)
    column = pa.array(np.zeros(MILLIONS, np.bool_))
    batch = pa.RecordBatch.from_arrays([column], names=["up"])
    with ChannelWriter(connection, batch_records=MILLIONS) as writer:
        for _ in range(messages):
            writer.write(batch)
    return connection


@pytest.mark.long
def test_a_huge_message_takes_memory_only_for_the_records_read(
    topics: Topics,
) -> None:
    connection = flags(topics, 4)
    reported = {name: value for name, value in asdict(connection).items() if name != "schemas"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(reported)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 120 * 1024


@pytest.fixture
def traced() -> Iterator[None]:
    """Trace the memory of Python's objects."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_records_of_a_large_message_are_created_on_demand(topics: Topics) -> None:
    connection = flags(topics, 1)
    with ChannelReader(connection, until="now") as reader:
        tracemalloc.reset_peak()
        before_bytes, _ = tracemalloc.get_traced_memory()
        assert len(reader.read(10, timeout=None)) == 10
        assert reader.position() == {0: Position(offset=0, records=10)}
        assert len(reader.read(20_000, timeout=None)) == 20_000
        next(iter(reader))
        rest = next(reader.batches())
        _, peak_bytes = tracemalloc.get_traced_memory()
        assert rest.num_rows == MILLIONS - 20_011
        assert reader.finished
    # Each record takes about 200 bytes, and Arrow's memory is not traced.
    assert peak_bytes - before_bytes < 20_000_000


@pytest.mark.long
def test_records_before_an_invalid_one_are_returned(topics: Topics, each_format: str) -> None:
    days = {"name": "day", "type": {"type": "int", "logicalType": "date"}}
    connection = topics.connect(
        each_format,
        partitions=1,
        schema_definition={"type": "record", "name": "Day", "fields": [days]},
    )
    column = pa.array([0] * 20_000 + [2**31 - 1], pa.int32()).cast(pa.date32())
    with ChannelWriter(connection, batch_records=30_000) as writer:
        writer.write(pa.table({"day": column}))
    count = 0
    with ChannelReader(connection, until="now") as reader:
        while records := _read_or_nothing(reader):
            count += len(records)
        with pytest.raises(ValueOutOfRange):
            reader.read(1)
        for batch in reader.batches():
            count += batch.num_rows
    assert count == 20_001


def _read_or_nothing(reader: ChannelReader) -> list[dict[str, Any]]:
    try:
        return reader.read(7000, timeout=None)
    except ValueOutOfRange:
        return []


@pytest.mark.long
@pytest.mark.usefixtures("each_stream")
def test_seeking_past_corrupt_messages_decodes_each_message_once(
    topics: Topics, each_format: str, decoded: list[int]
) -> None:
    connection = topics.connect(each_format, partitions=2)
    expected = []
    for number in range(10):
        with ChannelWriter(connection, partition=0, batch_records=2) as writer:
            writer.write(readings(2, 2 * number))
        expected += readings(2, 2 * number)
        topics.produce(connection.topic_name, 0, [b"none of ours", b"nor this"])
    with ChannelWriter(connection, partition=1) as writer:
        writer.write(readings(5, 20))
    expected += readings(5, 20)
    records: list[dict[str, Any]] = []
    refused = 0
    with ChannelReader(connection, until="now") as reader:
        end = reader.end_offsets()
        while not reader.finished:
            error = _read_up_to_corrupt(reader, records)
            if error is not None:
                refused += 1
                assert reader.position()[error.partition] == Position(offset=error.offset)
                reader.seek({error.partition: error.offset + 1})
                assert reader.position()[error.partition].offset == error.offset + 1
        assert reader.position() == {p: Position(offset=at) for p, at in end.items()}
    assert refused == 20
    assert sorted(records, key=lambda record: record["id"]) == expected
    assert sum(decoded) == sum(end.values())


def test_seeks_from_a_corrupt_message_go_to_the_given_position(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=2)
    for partition in range(2):
        with ChannelWriter(connection, partition=partition) as writer:
            writer.write(readings(5, 10 * partition))
        topics.produce(connection.topic_name, partition, [b"none of ours"])
        with ChannelWriter(connection, partition=partition) as writer:
            writer.write(readings(2, 10 * partition + 5))
    with ChannelReader(connection, until="now", partitions=[0]) as reader:
        assert reader.read(10, timeout=None) == readings(5)
        for _ in range(2):
            with pytest.raises(CorruptMessage):
                reader.read(10, timeout=None)
        reader.seek({0: 3})
        assert reader.read(10, timeout=None) == readings(2, 3)
        with pytest.raises(CorruptMessage):
            reader.read(10, timeout=None)
        reader.seek({0: 7})
        assert reader.read(10, timeout=None) == readings(1, 6)
    with ChannelReader(connection, until="now") as reader:
        before: list[dict[str, Any]] = []
        assert _read_up_to_corrupt(reader, before) is not None
        assert len(before) >= 5
        reader.seek({0: 6, 1: 6})
        records = reader.read(10, timeout=None)
        assert sorted(record["id"] for record in records) == [5, 6, 15, 16]


def _read_up_to_corrupt(
    reader: ChannelReader, target: list[dict[str, Any]]
) -> CorruptMessage | None:
    """Read into `target` until a corrupt message or the end."""
    try:
        while records := reader.read(7, timeout=None):
            target += records
    except CorruptMessage as error:
        return error
    return None


@pytest.mark.long
def test_messages_of_many_records_of_several_schemas_keep_their_order(topics: Topics) -> None:
    connection = topics.connect("arrow", partitions=1)
    values = []
    for number in range(6):
        with ChannelWriter(connection, batch_records=100) as writer:
            writer.write(readings(100, 100 * number))
        topics.produce(connection.topic_name, 0, [b"SLWA\x01\x00\x00\x00\x00\x00\x00\x09"])
        values += readings(100, 100 * number)
    with ChannelReader(connection, until="now") as reader:
        records = []
        while not reader.finished:
            try:
                records += reader.read(1000, timeout=None)
            except (CorruptMessage, SchemaMismatch):
                at = reader.position()[0].offset
                reader.seek({0: at + 1})
    assert records == values
