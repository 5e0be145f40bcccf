"""Writing into real topics."""

import dataclasses
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sluiceway.codecs import Envelope
from sluiceway.errors import EndpointClosed, InvalidRecord, OptionError, RecordTooLarge
from sluiceway.kafka.partitioner import partition_of
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter
from topics import Topics, messages_of, readings


@dataclasses.dataclass
class Reading:
    id: int
    station: str | None
    celsius: float


def read_back(connection: Any) -> list[dict[str, Any]]:
    with ChannelReader(connection, until="now") as reader:
        return sorted(reader, key=lambda record: record["id"])


@pytest.mark.sample
@pytest.mark.parametrize(
    "form",
    [
        list,
        iter,
        lambda rows: [Reading(**row) for row in rows],
        pa.Table.from_pylist,
        pa.RecordBatch.from_pylist,
        pd.DataFrame,
    ],
    ids=["dicts", "iterable", "dataclasses", "table", "batch", "pandas"],
)
def test_records_of_every_input_form_are_written(
    topics: Topics, each_format: str, form: Any
) -> None:
    connection = topics.connect(each_format)
    with ChannelWriter(connection) as writer:
        assert writer.write(form(readings(100))) == 100
        assert writer.accepted_records == 100
    assert read_back(connection) == readings(100)


def test_one_record_and_an_empty_list_are_valid_writes(topics: Topics, each_format: str) -> None:
    connection = topics.connect(each_format)
    with ChannelWriter(connection) as writer:
        assert writer.write(readings(1)[0]) == 1
        assert writer.write(Reading(id=1, station="s1", celsius=0.5)) == 1
        assert writer.write([]) == 0
    assert read_back(connection) == readings(2)


def test_avro_round_robin_is_per_record_across_writes(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=3)
    with ChannelWriter(connection) as writer:
        for first in range(0, 70, 7):
            writer.write(readings(7, first))
    with ChannelReader(connection, until="now") as reader:
        ids_by_partition = {p: [] for p in range(3)}
        for partition in ids_by_partition:
            with ChannelReader(connection, until="now", partitions=[partition]) as one:
                ids_by_partition[partition] = [record["id"] for record in one]
        assert sum(1 for _ in reader) == 70
    for ids in ids_by_partition.values():
        assert {b - a for a, b in pairwise(ids)} == {3}


def test_a_writer_returns_the_end_offsets(topics: Topics) -> None:
    with ChannelWriter(topics.connect("avro", partitions=2), partition=1) as writer:
        writer.write(readings(7))
        writer.flush()
        assert writer.end_offsets() == {0: 0, 1: 7}
    with pytest.raises(EndpointClosed):
        writer.end_offsets()


def test_arrow_round_robin_is_per_message_and_fills_messages_across_writes(topics: Topics) -> None:
    connection = topics.connect("arrow", partitions=3)
    with ChannelWriter(connection, batch_records=10) as writer:
        for first in range(0, 64, 4):
            writer.write(readings(4, first))
    messages = messages_of(connection)
    counts = [Envelope.unpack(message.value()).records for message in messages]
    assert Counter(counts) == {10: 6, 4: 1}
    assert {*Counter(message.partition() for message in messages).values()} == {2, 3}
    assert read_back(connection) == readings(64)


def test_small_arrow_writes_wait_for_flush(topics: Topics) -> None:
    connection = topics.connect("arrow")
    with ChannelWriter(connection) as writer:
        writer.write(readings(5))
        assert read_back(connection) == []
        writer.flush()
        assert read_back(connection) == readings(5)


@pytest.mark.long
def test_a_large_table_is_split_into_messages(topics: Topics) -> None:
    connection = topics.connect("arrow", partitions=2)
    table = pa.Table.from_pylist(readings(25_000))
    with ChannelWriter(connection, batch_records=8192) as writer:
        assert writer.write(table) == 25_000
    counts = [Envelope.unpack(message.value()).records for message in messages_of(connection)]
    assert sorted(counts) == [424, 8192, 8192, 8192]
    assert read_back(connection) == readings(25_000)


@pytest.mark.sample
def test_records_of_one_key_go_to_the_partition_of_javas_client(
    topics: Topics, each_format: str
) -> None:
    connection = topics.connect(each_format, partitions=4)
    with ChannelWriter(connection, key="station") as writer:
        writer.write(readings(300))
        writer.write(readings(300, 300))
    seen = 0
    for partition in range(4):
        with ChannelReader(connection, until="now", partitions=[partition]) as reader:
            last: dict[str, int] = {}
            for record in reader:
                seen += 1
                station = record["station"]
                if station is not None:
                    assert partition_of(station.encode(), 4) == partition
                    assert last.get(station, -1) < record["id"]
                    last[station] = record["id"]
    assert seen == 600


def test_avro_messages_carry_their_keys(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=2)
    with ChannelWriter(connection, key=lambda record: record["id"]) as writer:
        writer.write(readings(10))
    keys = sorted(message.key() for message in messages_of(connection))
    assert keys == [i.to_bytes(8, "big") for i in range(10)]


def test_records_without_a_key_are_distributed_round_robin(
    topics: Topics, each_format: str
) -> None:
    connection = topics.connect(each_format, partitions=2)
    with ChannelWriter(connection, key=lambda _: None, batch_records=1) as writer:
        writer.write(readings(10))
    counts = Counter(message.partition() for message in messages_of(connection))
    assert counts == {0: 5, 1: 5}


def test_a_custom_partitioner_selects_the_partition(topics: Topics, each_format: str) -> None:
    connection = topics.connect(each_format, partitions=3)

    def by_id(record: Any, partitions: int) -> int:
        return int(record["id"]) % partitions

    with ChannelWriter(connection, partitioner=by_id) as writer:
        writer.write(readings(30))
    for partition in range(3):
        with ChannelReader(connection, until="now", partitions=[partition]) as reader:
            assert [record["id"] for record in reader] == list(range(partition, 30, 3))


def test_a_fixed_partition_gets_all_records(topics: Topics, each_format: str) -> None:
    connection = topics.connect(each_format, partitions=3)
    with ChannelWriter(connection, partition=1) as writer:
        writer.write(readings(30))
    with ChannelReader(connection, until="now", partitions=[1]) as reader:
        assert list(reader) == readings(30)


@pytest.mark.sample
def test_one_invalid_record_fails_the_whole_write_before_sending(
    topics: Topics, each_format: str
) -> None:
    connection = topics.connect(each_format)
    records = [*readings(20_000), {"id": "x", "station": None, "celsius": 0.0}]
    with ChannelWriter(connection) as writer:
        with pytest.raises(InvalidRecord, match="record 20000, field 'id'"):
            writer.write(records)
        assert writer.accepted_records == 0
        writer.write(readings(3))
    assert read_back(connection) == readings(3)


@pytest.mark.sample
@pytest.mark.parametrize("wishes", [{}, {"key": "id"}, {"partitioner": lambda r, n: r["id"] % n}])
def test_a_too_large_record_fails_the_whole_write_with_its_number(
    topics: Topics, each_format: str, wishes: dict[str, Any]
) -> None:
    connection = topics.connect(
        each_format, config={"max.message.bytes": "20000"}, max_message_bytes=20_000
    )
    large = readings(2000)
    large[1234]["station"] = "x" * 20_000
    with ChannelWriter(connection, batch_records=100, **wishes) as writer:
        writer.write(readings(7, 10_000))
        with pytest.raises(RecordTooLarge) as raised:
            writer.write(large)
        assert raised.value.index == 1234
        assert raised.value.size_bytes > 20_000 >= raised.value.limit_bytes
    assert read_back(connection) == readings(7, 10_000)


def test_records_just_below_the_message_limit_are_written(topics: Topics, each_format: str) -> None:
    connection = topics.connect(
        each_format, config={"max.message.bytes": "20000"}, max_message_bytes=20_000
    )
    records = readings(50)
    for record in records:
        record["station"] = "x" * 15_000
    with ChannelWriter(connection, key="id", config={"compression.type": "none"}) as writer:
        writer.write(records)
    assert read_back(connection) == records


def test_a_write_larger_than_the_producers_queue_is_complete(topics: Topics) -> None:
    connection = topics.connect("avro")
    with ChannelWriter(connection, config={"queue.buffering.max.messages": 500}) as writer:
        writer.write(readings(5_000))
    assert read_back(connection) == readings(5_000)


def test_an_invalid_partition_sends_nothing(topics: Topics, each_format: str) -> None:
    connection = topics.connect(each_format)
    writer = ChannelWriter(connection, partitioner=lambda record, n: n if record["id"] else 0)
    with writer, pytest.raises(OptionError, match="returned 3 for record 1"):
        writer.write(readings(10))
    assert read_back(connection) == []


def test_leaving_by_an_exception_sends_no_more_and_does_not_mask_it(topics: Topics) -> None:
    connection = topics.connect("arrow")
    writer = ChannelWriter(connection)

    def fail_half_way() -> None:
        with writer:
            writer.write(readings(10))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert read_back(connection) == []
    with pytest.raises(EndpointClosed, match="closed"):
        writer.write(readings(1))


def test_a_closed_writer_raises_and_closes_again_without_error(topics: Topics) -> None:
    writer = ChannelWriter(topics.connect())
    writer.close()
    writer.close()
    for call in (lambda: writer.write({}), writer.flush):
        with pytest.raises(EndpointClosed, match="open a new one"):
            call()


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_records": 0},
        {"batch_records": "8"},
        {"delivery_timeout_s": 0},
        {"timeout_s": "1"},
        {"partition": 9},
        {"config": {"acks": "0"}},
    ],
)
def test_invalid_arguments_are_refused_by_name(topics: Topics, wrong: dict[str, Any]) -> None:
    name = next(iter(wrong.get("config", wrong)))
    with pytest.raises(OptionError, match=name):
        ChannelWriter(topics.connect(), **wrong)


def test_a_table_whose_memory_changes_later_is_written_as_it_was(
    topics: Topics, each_format: str
) -> None:
    connection = topics.connect(
        each_format,
        partitions=1,
        schema_definition={
            "type": "record",
            "name": "R",
            "fields": [{"name": "id", "type": "long"}],
        },
    )
    ids = np.arange(10)
    with ChannelWriter(connection, batch_records=7) as writer:
        for _ in range(5):
            writer.write(pa.table({"id": ids}))
            ids += 10
    with ChannelReader(connection, until="now") as reader:
        assert [record["id"] for record in reader] == [*range(50)]
