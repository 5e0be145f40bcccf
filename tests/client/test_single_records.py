"""Writing record by record."""

import itertools
import time
from typing import Any

import pytest

from relay import Relay
from sluiceway.api.models import Connection
from sluiceway.errors import (
    DeliveryFailed,
    EndpointClosed,
    InvalidRecord,
    OptionError,
    RecordTooLarge,
)
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter
from topics import Topics, readings
from waiting import until


def ids(connection: Connection) -> list[Any]:
    with ChannelReader(connection, until="now") as reader:
        return [record["id"] for record in reader]


@pytest.mark.long
def test_records_written_one_by_one_and_in_batches_keep_their_order(
    topics: Topics, each_format: str
) -> None:
    connection = topics.connect(each_format, partitions=1)
    with ChannelWriter(connection) as writer:
        for first in range(0, 5_000, 50):
            for record in readings(20, first):
                assert writer.write(record) == 1
            writer.write(readings(20, first + 20))
            writer.write(readings(10, first + 40)[:5])
            writer.write(readings(5, first + 45))
        assert writer.accepted_records == 5_000
    assert ids(connection) == [*range(5_000)]


def test_a_single_record_arrives_without_another_call(topics: Topics) -> None:
    connection = topics.connect("avro")
    with ChannelWriter(connection) as writer:
        writer.write(readings(1)[0])
        until(lambda: ids(connection) == [0])


def test_flush_sends_single_records(topics: Topics, each_format: str) -> None:
    connection = topics.connect(each_format)
    with ChannelWriter(connection) as writer:
        for record in readings(10):
            writer.write(record)
        writer.flush()
        assert sorted(ids(connection)) == [*range(10)]


@pytest.mark.sample
@pytest.mark.parametrize("bad", [{"id": "x"}, {"id": 2**63}, {"name": "x"}, {}])
def test_a_bad_record_is_refused_by_its_own_call(
    topics: Topics, each_format: str, bad: dict[str, Any]
) -> None:
    connection = topics.connect(each_format, partitions=1)
    with ChannelWriter(connection) as writer:
        for record in readings(5):
            writer.write(record)
        with pytest.raises(InvalidRecord):
            writer.write(bad if not bad else readings(1)[0] | bad)
        for record in readings(5, 5):
            writer.write(record)
    assert ids(connection) == [*range(10)]


def test_a_record_too_large_is_refused_by_its_own_call(topics: Topics, each_format: str) -> None:
    connection = topics.connect(each_format, partitions=1, max_message_bytes=10_000)
    large = {"id": 5, "station": "x" * 20_000, "celsius": 0.0}
    with ChannelWriter(connection) as writer:
        for record in readings(5):
            writer.write(record)
        with pytest.raises(RecordTooLarge):
            writer.write(large)
        writer.write(readings(1, 5)[0])
    assert ids(connection) == [*range(6)]


@pytest.mark.long
def test_records_near_the_limit_with_a_long_key_are_written(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1, max_message_bytes=10_000)
    with ChannelWriter(connection, key="station") as writer:
        for number, size in enumerate(range(4_000, 4_920, 7)):
            writer.write({"id": number, "station": "x" * size, "celsius": 0.0})
    assert ids(connection) == [*range(len(range(4_000, 4_920, 7)))]


def test_a_key_function_refuses_a_record_in_its_own_call(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1)
    with ChannelWriter(connection, key=lambda record: record["celsius"] or None) as writer:
        writer.write(readings(1)[0])
        with pytest.raises(OptionError, match="the key function returned"):
            writer.write(readings(1, 1)[0])
    assert ids(connection) == [0]


def test_a_reused_dict_is_written_with_its_values_at_each_call(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1)
    record = readings(1)[0]
    with ChannelWriter(connection) as writer:
        for number in range(100):
            record["id"] = number
            writer.write(record)
    assert ids(connection) == [*range(100)]


def test_a_failed_delivery_is_raised_by_a_later_write(
    fragile_kafka: Relay, fragile_topics: Topics
) -> None:
    connection = fragile_topics.connect("avro")
    writer = ChannelWriter(connection, delivery_timeout_s=1)
    fragile_kafka.cut()
    deadline_s = time.monotonic() + 60

    def write_on() -> None:
        for number in itertools.count():
            assert time.monotonic() < deadline_s
            writer.write(readings(1, number)[0])

    with pytest.raises(DeliveryFailed) as raised:
        write_on()
    assert raised.value.written_records == 0
    assert raised.value.failed_records == writer.accepted_records
    with pytest.raises(EndpointClosed):
        writer.write(readings(1)[0])
    fragile_kafka.restore()


def test_a_failure_in_the_background_counts_the_records_that_wait(topics: Topics) -> None:
    writer = ChannelWriter(topics.connect("avro"))
    # The thread that sends single records waits for the turn.
    with writer.turn:
        for record in readings(3):
            writer.write(record)
        writer.failure = DeliveryFailed(
            partition=0, reason="refused", written_records=0, failed_records=1
        )
        writer.failed_unnoticed = True
        with pytest.raises(DeliveryFailed, match="3 may not be") as raised:
            writer.flush()
    assert raised.value.failed_records == 3
    writer.close()


def test_closing_raises_a_failed_delivery_that_no_call_has_raised(
    fragile_kafka: Relay, fragile_topics: Topics
) -> None:
    connection = fragile_topics.connect("avro")
    writer = ChannelWriter(connection, delivery_timeout_s=1)
    fragile_kafka.cut()
    writer.write(readings(1)[0])
    with pytest.raises(DeliveryFailed):
        writer.close()
    fragile_kafka.restore()


def test_abort_discards_single_records(topics: Topics) -> None:
    connection = topics.connect("avro")
    writer = ChannelWriter(connection)
    writer.write(readings(1)[0])
    writer.abort(ZeroDivisionError())
    with pytest.raises(EndpointClosed):
        writer.write(readings(1)[0])
