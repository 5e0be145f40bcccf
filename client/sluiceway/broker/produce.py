"""Producing: messages as they are, acknowledged before the call returns."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.errors import Refusal, of_kafka, of_topic
from sluiceway.broker.exceptions import InvalidMessageError, MessageSizeTooLarge, RequestTimedOut
from sluiceway.broker.names import ByName, in_bytes
from sluiceway.broker.outlets import Outlets
from sluiceway.broker.requests import CompressionType
from sluiceway.broker.responses import ProducePartitionResponse, ProduceResponse
from sluiceway.errors import OptionError, SluicewayError
from sluiceway.kafka.config import producer_config
from sluiceway.kafka.errors import made
from sluiceway.kafka.masked import MaskedProperties
from sluiceway.rest.models import Connection
from sluiceway.wire_bytes import WireBytes

__all__ = ["Producing"]

_COMPRESSIONS = {
    CompressionType.NONE: "none",
    CompressionType.GZIP: "gzip",
    CompressionType.SNAPPY: "snappy",
    CompressionType.LZ4: "lz4",
}
_UNKNOWN_PARTITION = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - a public code
_GRACE_S = 10.0
_SLICE_S = 0.25


@dataclass
class _Part:
    """What goes to one partition, and what became of it."""

    messages: list[Any]
    compression: str
    connection: Connection
    lose: Callable[[Connection, str], None] | None = None
    """Who hears of messages that are not written, where nobody waits for them."""
    waiting: int = 0
    first: int = -1
    refusal: Refusal | None = None

    def note(self, error: Any, message: Any) -> None:
        """Take a delivery report."""
        self.waiting -= 1
        if error is not None:
            self.refusal = self.refusal or of_kafka(error, "a message")
            if self.lose is not None:
                self.lose(self.connection, of_kafka(error, "a message").reason)
        elif self.first < 0 or message.offset() < self.first:
            self.first = message.offset()


class Producing:
    """The writes of one Broker."""

    def __init__(self, handler: RequestHandler, outlets: Outlets) -> None:
        self._handler = handler
        self._outlets = outlets
        self._lock = threading.Lock()
        self._producers: dict[MaskedProperties, Any] = {}
        self._checks: dict[str, WireBytes] = {}
        outlets.flush = self.flush

    def produce(self, request: Any) -> ProduceResponse | None:
        """Send a request's messages; `Broker.produce_messages` says how."""
        if type(request.timeout) is not int or not 0 < request.timeout <= 86_400_000:
            raise OptionError(f"timeout is {request.timeout!r}; it takes milliseconds from 1")
        wait = request.required_acks != 0
        topics: ByName[dict[int, ProducePartitionResponse]] = ByName()
        parts: dict[tuple[bytes, int], _Part] = {}
        for name, partitions in request.msets.items():
            topic = in_bytes(name, "topic")
            for partition, messages in partitions.items():
                part = self._part(topic, partition, messages)
                if isinstance(part, Refusal):
                    topics.setdefault(topic, {})[partition] = _refused(part)
                elif part.messages:
                    parts[topic, partition] = part
                    part.lose = None if wait else self._outlets.lose
        with self._lock:
            self._send(parts, request.timeout, wait=wait)
        if not wait:
            return None
        for (topic, partition), part in parts.items():
            answer = ProducePartitionResponse(0, part.first)
            if part.refusal is not None:
                answer = _refused(part.refusal)
                self._handler.forget(topic)
            topics.setdefault(topic, {})[partition] = answer
        return ProduceResponse(topics)

    def flush(self) -> None:
        """Wait until all is acknowledged that was not waited for."""
        with self._lock:
            for each in self._producers.values():
                if each.flush(_GRACE_S):
                    self._outlets.lose_all(f"Kafka said nothing of them for {_GRACE_S:g} s")

    def _part(self, topic: bytes, partition: int, given: Any) -> _Part | Refusal:
        """Return what goes to a partition, or why nothing of it does."""
        messages = list(given.messages)
        compression = _COMPRESSIONS.get(given.compression_type)
        if compression is None:
            raise OptionError(
                f"compression_type is {given.compression_type!r}; it takes a CompressionType"
            )
        if type(partition) is not int:
            raise OptionError(f"the partition is {partition!r}; it takes a number")
        for each in messages:
            for what in (each.value, each.partition_key):
                if what is not None and not isinstance(what, bytes):
                    raise OptionError(f"value and partition_key are bytes or None: {each!r}")
        place = self._handler.located(topic, partition)
        if isinstance(place, Refusal):
            return place
        try:
            self._outlets.open(place)
        except OptionError:
            raise
        except SluicewayError as error:
            return of_topic(error)
        check = self._checks.get(place.channel_uid) or self._checks.setdefault(
            place.channel_uid,
            WireBytes(place, refresh=lambda: self._handler.connection(topic, fresh=True)),
        )
        for index, each in enumerate(messages):
            size = len(each.value or b"") + len(each.partition_key or b"")
            if size > place.max_message_bytes:
                return Refusal.of(
                    MessageSizeTooLarge,
                    f"message {index} takes {size:,} bytes, the channel takes "
                    f"{place.max_message_bytes:,}; make it smaller, or raise the channel's "
                    "max.message.bytes. Nothing was sent to this partition",
                )
            refusal = check.refusal(each.value)
            if refusal is not None:
                return Refusal.of(
                    InvalidMessageError,
                    f"message {index}: {refusal}. Nothing was sent to this partition",
                )
        return _Part(messages=messages, compression=compression, connection=place)

    def _send(self, parts: Mapping[Any, _Part], timeout_ms: int, *, wait: bool) -> None:
        producers = set()
        for (_topic, partition), part in parts.items():
            producer = self._producer(part.connection, part.compression, timeout_ms)
            producers.add(producer)
            for message in part.messages:
                if part.refusal is None:
                    _produce(producer, part, partition, message, timeout_ms / 1000 + _GRACE_S)
            self._outlets.note(part.connection, len(part.messages))
        deadline_s = time.monotonic() + timeout_ms / 1000 + _GRACE_S
        while wait and any(part.waiting for part in parts.values()):
            for each in producers:
                each.poll(_SLICE_S / len(producers))
            if time.monotonic() > deadline_s:
                for part in parts.values():
                    if part.waiting:
                        part.refusal = Refusal.of(
                            RequestTimedOut, "Kafka said nothing of it; it may be written or not"
                        )
                return

    def _producer(self, connection: Connection, compression: str, timeout_ms: int) -> Any:
        properties = producer_config(
            connection.kafka,
            {"compression.type": compression, "linger.ms": 1},
            delivery_timeout_ms=max(1000, timeout_ms),
            max_message_bytes=connection.max_message_bytes,
        ).over({"delivery.report.only.error": False})
        return self._producers.get(properties) or self._producers.setdefault(
            properties, made(Producer, properties)
        )


def _produce(producer: Any, part: _Part, partition: int, message: Any, patience_s: float) -> None:
    at = {} if message.timestamp is None else {"timestamp": int(message.timestamp)}
    deadline_s = time.monotonic() + patience_s
    topic, looked = part.connection.topic_name, False
    while True:
        try:
            part.waiting += 1
            producer.produce(
                topic,
                message.value,
                message.partition_key,
                partition,
                on_delivery=part.note,
                **at,
            )
        except BufferError:
            part.waiting -= 1
            if time.monotonic() > deadline_s:
                part.refusal = Refusal.of(RequestTimedOut, "Kafka takes no more messages")
                return
            producer.poll(_SLICE_S)
        except KafkaException as error:
            part.waiting -= 1
            if error.args[0].code() == _UNKNOWN_PARTITION and not looked:
                # The channel has grown: the gateway knows, and librdkafka looks every few minutes.
                looked = _has_looked(producer, topic, patience_s)
                continue
            part.refusal = of_kafka(error.args[0], "a message")
            return
        else:
            return


def _has_looked(producer: Any, topic: str, timeout_s: float) -> bool:
    with contextlib.suppress(KafkaException):
        producer.list_topics(topic, timeout=timeout_s)
    return True


def _refused(refusal: Refusal) -> ProducePartitionResponse:
    return ProducePartitionResponse(refusal.err, -1, refusal.reason)
