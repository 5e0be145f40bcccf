"""Windows of a topic, read while Kafka answers and while it does not."""

import time
import uuid
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from relay import Relay
from shared_kafka import SharedKafka
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Interval, ReadMessage
from sluiceway_gateway.core.kafka.window_reader import WindowReader, window_reader
from topics import Topics


@pytest.fixture
def topic(kafka: SharedKafka) -> str:
    """A topic of two partitions with ten messages each."""
    topics, name = Topics(kafka.bootstrap_servers), f"windows-{uuid.uuid4().hex[:8]}"
    topics.create(name, 2)
    for partition in (0, 1):
        topics.produce(name, partition, [str(number).encode() for number in range(10)])
    return name


@pytest.fixture
def reader(fragile_kafka: Relay, topic: str) -> Iterator[WindowReader]:
    admin = KafkaAdmin(fragile_kafka.address, timeout_s=1)
    with window_reader(admin.client, topic) as reader:
        yield reader


def soon() -> float:
    return time.monotonic() + 60


def test_windows_end_within_the_log_and_at_its_end(reader: WindowReader) -> None:
    messages: list[ReadMessage] = []
    windows = {0: Interval(3, 6), 1: Interval(8, 99)}
    assert reader.read(windows, soon(), messages.append) == {0: 6, 1: 99}
    places = sorted((message.partition, message.offset) for message in messages)
    assert places == [(0, 3), (0, 4), (0, 5), (1, 8), (1, 9)]
    # The same partition again, and further back.
    messages.clear()
    assert reader.read({0: Interval(0, 2)}, soon(), messages.append) == {0: 2}
    assert [(message.offset, message.value) for message in messages] == [(0, b"0"), (1, b"1")]


def test_a_window_whose_beginning_was_removed_is_read_from_the_log_start(
    reader: WindowReader, kafka: SharedKafka, topic: str
) -> None:
    Topics(kafka.bootstrap_servers).truncate(topic, 0, before=4)
    messages: list[ReadMessage] = []
    assert reader.read({0: Interval(2, 7)}, soon(), messages.append) == {0: 7}
    assert [message.offset for message in messages] == [4, 5, 6]


def test_a_window_behind_the_end_has_no_messages(reader: WindowReader) -> None:
    messages: list[ReadMessage] = []
    assert reader.read({0: Interval(20, 25)}, soon(), messages.append) == {0: 25}
    assert messages == []


def test_kafka_that_goes_away_leaves_the_windows_unread(
    reader: WindowReader, fragile_kafka: Relay
) -> None:
    messages: list[ReadMessage] = []
    reader.read({0: Interval(0, 2)}, soon(), messages.append)
    fragile_kafka.cut()
    began_s = time.monotonic()
    assert reader.read({1: Interval(0, 2)}, began_s + 0.5, messages.append) == {1: 0}
    assert time.monotonic() - began_s < 45
    assert len(messages) == 2


def test_kafka_that_never_answers_is_unavailable(
    reader: WindowReader, fragile_kafka: Relay
) -> None:
    fragile_kafka.cut()
    with pytest.raises(KafkaUnavailable, match="does not answer"):
        reader.read({0: Interval(0, 2)}, time.monotonic() + 0.5, lambda _: None)


def test_the_rest_of_a_poll_is_left_once_the_read_is_stopped() -> None:
    def polled(offset: int) -> Mock:
        return Mock(
            partition=Mock(return_value=0),
            offset=Mock(return_value=offset),
            error=Mock(return_value=None),
            timestamp=Mock(return_value=(0, 0)),
            headers=Mock(return_value=None),
        )

    handled: list[ReadMessage] = []
    consumer = Mock(consume=Mock(side_effect=[[polled(0)], [polled(1), polled(2), polled(3)]]))
    reader = WindowReader(Mock(), consumer, "topic")
    windows = {0: Interval(0, 9)}
    read = reader.read(windows, soon(), handled.append, stopped=lambda: len(handled) == 2)
    assert (read, [message.offset for message in handled]) == ({0: 2}, [0, 1])
