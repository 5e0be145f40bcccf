"""Readers with foreign messages, lost records, a deleted topic, or no Kafka."""

from typing import Any

import pytest

from relay import Relay
from shared_kafka import SharedKafka
from sluiceway.api.endpoints import Position
from sluiceway.api.models import Connection
from sluiceway.errors import (
    CorruptMessage,
    KafkaFailure,
    KafkaUnavailable,
    OffsetOutOfRange,
    TopicGone,
)
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter
from topics import Topics, readings
from waiting import collect, until

BOTH = pytest.mark.usefixtures("each_stream")
FOREIGN = [b"", b"{}", b"\0\0\0\0\x08abc", b"SLWA\x01\0\0\0\0\0\0\x07\0\0\0\x01", None]


def read_patiently(reader: ChannelReader, count: int) -> list[dict[str, Any]]:
    """Read a number of records; a timeout, which keeps the position, does not end it."""
    return collect(
        lambda missing: reader.read(missing, timeout=None), count, despite=KafkaUnavailable
    )


def with_foreign(topics: Topics, format_: str, value: bytes | None) -> Connection:
    """Twenty readings in two messages or twenty, foreign messages, five readings."""
    connection = topics.connect(format_, partitions=1)
    with ChannelWriter(connection, batch_records=10) as writer:
        writer.write(readings(20))
    topics.produce(connection.topic_name, 0, [value])
    with ChannelWriter(connection) as writer:
        writer.write(readings(5, 20))
    return connection


@pytest.mark.sample
@BOTH
@pytest.mark.parametrize("value", FOREIGN)
def test_a_foreign_message_is_an_error_with_its_offset_after_earlier_records(
    topics: Topics, each_format: str, value: bytes | None
) -> None:
    connection = with_foreign(topics, each_format, value)
    offset = 2 if each_format == "arrow" else 20
    with ChannelReader(connection, until="now", refresh=lambda: connection) as reader:
        assert reader.read(100, timeout=None) == readings(20)
        for _ in range(2):
            with pytest.raises(CorruptMessage, match=f"partition 0, offset {offset}") as raised:
                reader.read(100, timeout=None)
            assert (raised.value.partition, raised.value.offset) == (0, offset)
            assert raised.value.reason
            assert reader.position() == {0: Position(offset=offset)}
        reader.seek({0: offset + 1})
        assert list(reader) == readings(5, 20)


@pytest.mark.sample
@pytest.mark.parametrize("value", FOREIGN)
def test_skipping_counts_foreign_messages(
    topics: Topics, each_format: str, value: bytes | None
) -> None:
    connection = with_foreign(topics, each_format, value)
    with ChannelReader(
        connection, until="now", on_corrupt="skip", refresh=lambda: connection
    ) as reader:
        assert list(reader) == readings(25)
        assert reader.corrupt_messages == 1


@BOTH
def test_a_damaged_batch_is_an_error_at_its_position_until_a_seek(
    topics: Topics, kafka: SharedKafka, each_format: str
) -> None:
    connection = topics.connect(each_format, partitions=1)
    for first in (0, 10, 20):
        with ChannelWriter(connection) as writer:
            writer.write(readings(10, first))
    messages = 1 if each_format == "arrow" else 10
    topics.damage(kafka.log_dir, connection.topic_name, messages)
    with ChannelReader(connection, until="now") as reader:
        assert reader.read(100, timeout=None) == readings(10)
        for _ in range(2):
            with pytest.raises(KafkaFailure, match=f"reading partition 0 .* offset {messages} "):
                reader.read(100, timeout=None)
            assert reader.position() == {0: Position(offset=messages)}
        reader.seek({0: 2 * messages})
        assert list(reader) == readings(10, 20)


def test_a_channel_with_only_foreign_messages_ends(topics: Topics, each_format: str) -> None:
    connection = topics.connect(each_format, partitions=1)
    topics.produce(connection.topic_name, 0, [b"x", None, b"y"])
    with ChannelReader(connection, until="now", on_corrupt="skip") as reader:
        assert list(reader) == []
        assert reader.corrupt_messages == 3
        assert reader.position() == {0: Position(offset=3)}


def test_iterating_delivers_all_records_before_the_foreign_message(topics: Topics) -> None:
    connection = with_foreign(topics, "avro", b"x")
    seen: list[Any] = []
    with ChannelReader(connection, until="now") as reader:
        with pytest.raises(CorruptMessage):
            seen.extend(reader)
        assert len(seen) in (0, 20)
        assert reader.position() == {0: Position(offset=20)}


@BOTH
def test_truncated_records_are_an_error_before_positions_move(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1)
    with ChannelWriter(connection) as writer:
        writer.write(readings(50))
    topics.truncate(connection.topic_name, 0, 20)
    with pytest.raises(OffsetOutOfRange, match="no offset 5: its range is 20 to 50") as raised:
        ChannelReader(connection, until="now", start={0: 5})
    assert (raised.value.begin, raised.value.end) == (20, 50)
    with ChannelReader(connection, until="now") as reader:
        assert list(reader) == readings(30, 20)


@BOTH
def test_truncation_under_a_reader_is_an_error_before_positions_move(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1)
    with ChannelWriter(connection) as writer:
        writer.write(readings(50))
    with ChannelReader(connection, until={0: 50}, start={0: 50}) as reader:
        reader.seek({0: 5})
        # Fetching has not begun: a new assignment drops fetched messages.
        topics.truncate(connection.topic_name, 0, 20)
        reader.seek({})
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange, match="no offset 5: its range is 20 to 50"):
                reader.read(1, timeout=None)
            assert reader.position() == {0: Position(offset=5)}
        reader.seek({0: 20})
        assert list(reader) == readings(30, 20)


@pytest.mark.long
@BOTH
def test_a_deleted_topic_is_gone(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1)
    with ChannelReader(connection, until=None) as reader:
        assert reader.read(1, timeout=0) == []
        topics.delete(connection.topic_name)
        with pytest.raises(TopicGone, match=connection.topic_name):
            reader.read(1, timeout=None)
    with pytest.raises(TopicGone):
        ChannelReader(connection, until="now")
    with pytest.raises(TopicGone):
        ChannelWriter(connection)


def test_a_recreated_topic_is_an_error(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1)
    topics.delete(connection.topic_name)
    topics.create(connection.topic_name, 1)
    for open_ in (
        lambda: ChannelReader(connection, until="now"),
        lambda: ChannelWriter(connection),
    ):
        with pytest.raises(TopicGone, match="is not the one that was opened"):
            open_()


def test_kafka_unavailable_during_a_read_is_an_error_that_keeps_positions(
    fragile_kafka: Relay, fragile_topics: Topics
) -> None:
    connection = fragile_topics.connect("avro", partitions=1)
    with ChannelWriter(connection) as writer:
        writer.write(readings(30))
    with (
        until(
            lambda: ChannelReader(connection, until=None, timeout_s=2), despite=KafkaUnavailable
        ) as own,
        until(
            lambda: ChannelReader(connection, until=None, timeout_s=2, share_connection=True),
            despite=KafkaUnavailable,
        ) as sharing,
    ):
        for reader in (own, sharing):
            assert read_patiently(reader, 10) == readings(10)
        fragile_kafka.cut()
        for reader in (own, sharing):
            assert reader.read(20, timeout=None) == readings(20, 10)
            with pytest.raises(KafkaUnavailable, match="try again"):
                reader.read(1, timeout=None)
            assert reader.position() == {0: Position(offset=30)}
        for call in (own.lag, sharing.lag):
            with pytest.raises(KafkaUnavailable):
                call()
        fragile_kafka.restore()
        with ChannelWriter(connection) as writer:
            writer.write(readings(5, 30))
        for reader in (own, sharing):
            assert read_patiently(reader, 5) == readings(5, 30)


def test_kafka_unavailable_on_open_is_an_error_within_the_timeout(
    fragile_kafka: Relay, fragile_topics: Topics
) -> None:
    connection = fragile_topics.connect("avro", partitions=1)
    fragile_kafka.cut()
    with pytest.raises(KafkaUnavailable):
        ChannelReader(connection, until="now", timeout_s=1)
    with pytest.raises(KafkaUnavailable):
        ChannelWriter(connection, timeout_s=1)
