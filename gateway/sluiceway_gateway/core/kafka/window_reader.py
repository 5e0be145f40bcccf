"""Windows of a topic's partitions, read without a group."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
)

from sluiceway_gateway.core.kafka.client import Client
from sluiceway_gateway.core.kafka.model import Interval, ReadMessage
from sluiceway_gateway.core.tracing import child_span

_POLL_S = 0.1
_GATHER_S = 0.001
_MESSAGES_PER_POLL = 500
_TIMESTAMPS: Mapping[int, Literal["create", "append"]] = {
    TIMESTAMP_CREATE_TIME: "create",
    TIMESTAMP_LOG_APPEND_TIME: "append",
}
_CONSUMER = {
    # librdkafka requires a group id; without a subscription or a commit there is no group.
    "group.id": "sluiceway-gateway",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Where retention has removed the beginning of a window, read on at the log start.
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "check.crcs": True,
    # Short: a broker serves a connection's fetches in order, so a fetch after a seek waits for it.
    "fetch.wait.max.ms": 50,
    # Small, because surplus messages are discarded.
    "queued.min.messages": 500,
    "queued.max.messages.kbytes": 8 * 1024,
    "fetch.max.bytes": 4 * 1024 * 1024,
    "max.partition.fetch.bytes": 512 * 1024,
}


class WindowReader:
    """Reads windows of a topic's partitions, through one consumer."""

    def __init__(self, client: Client, consumer: Consumer, topic: str) -> None:
        self._client = client
        self._consumer = consumer
        self._topic = topic
        self._failure: KafkaError | None = None
        self._answered = False

    def read(
        self,
        windows: Mapping[int, Interval],
        deadline_s: float,
        on_message: Callable[[ReadMessage], None],
        *,
        stopped: Callable[[], bool] = lambda: False,
    ) -> dict[int, int]:
        """Call `on_message` with the messages of the windows, in order by partition.

        Returns, by partition, the offset up to which it was read: the window's end unless the
        monotonic clock reached `deadline_s`, or `stopped`, which is asked after each message, and
        every 100 ms at least.
        Raises KafkaUnavailable if until the deadline this reader has never read anything.
        """
        consumer, name = self._consumer, self._topic
        read = {partition: interval.first for partition, interval in windows.items()}
        consumer.assign(
            [TopicPartition(name, partition, first) for partition, first in read.items()]
        )
        open_ = set(windows)
        with child_span("kafka Fetch", {"messaging.system": "kafka"}):
            while open_ and not stopped() and (left_s := deadline_s - time.monotonic()) > 0:
                # First one message, then the available ones: `consume` waits for the whole number.
                polled = consumer.consume(1, min(_POLL_S, left_s))
                if polled:
                    polled += consumer.consume(_MESSAGES_PER_POLL, _GATHER_S)
                for message in polled:
                    partition = message.partition()
                    if self._is_end(message):
                        done = True
                    elif message.error() is not None or partition not in open_:
                        continue
                    else:
                        offset = message.offset()
                        if windows[partition].first <= offset < windows[partition].end:
                            on_message(_read_message(message))
                        read[partition] = offset + 1
                        done = read[partition] >= windows[partition].end
                    self._answered = True
                    if done and partition in open_:
                        open_.remove(partition)
                        read[partition] = windows[partition].end
                        consumer.incremental_unassign([TopicPartition(name, partition)])
                    # What is left of the poll was not read; handling a message may take long.
                    if stopped() or time.monotonic() >= deadline_s:
                        break
        if open_ and not self._answered and not stopped():
            if self._failure is not None:
                raise self._client.failure(self._failure, name, "READ")
            raise self._client.unavailable("no message arrived in time")
        return read

    def _is_end(self, message: Message) -> bool:
        """Whether this event is the end of its partition; keep other errors."""
        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            return True
        self._failure = error
        return False


@contextmanager
def window_reader(client: Client, topic: str) -> Iterator[WindowReader]:
    """Give a reader of a topic's windows, with connections of its own."""
    consumer = client.consumer(_CONSUMER)
    try:
        yield WindowReader(client, consumer, topic)
    finally:
        consumer.close()


def _read_message(message: Message) -> ReadMessage:
    kind, timestamp_ms = message.timestamp()
    timestamp_type = _TIMESTAMPS.get(kind)
    headers: Any = message.headers() or ()
    return ReadMessage(
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=timestamp_ms if timestamp_type else None,
        timestamp_type=timestamp_type,
        key=message.key(),
        value=message.value(),
        headers=tuple((str(name), value) for name, value in headers),
    )
