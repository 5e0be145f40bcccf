"""Produce requests: messages as they are, acknowledged before the call returns."""

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.errors import Refusal, of_kafka, of_topic
from sluiceway.broker.exceptions import InvalidMessageError, MessageSizeTooLarge, RequestTimedOut
from sluiceway.broker.requests import ByName, CompressionType, in_bytes
from sluiceway.broker.responses import ProducePartitionResponse, ProduceResponse
from sluiceway.codecs.wire import WireFormatValidator
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.errors import DeliveryFailed, KafkaFailure, OptionError, SluicewayError, TopicGone
from sluiceway.kafka.config import MaskedProperties, producer_config
from sluiceway.kafka.errors import create_client
from sluiceway.rest.models import Connection

_LAST_WORD_S = 5.0
_OPEN: set["Outlets"] = set()


class Outlets:
    """One writer for each channel that a Broker produces to, from its first message on.

    Closing says where the records end. A process that ends without that closes them too, as
    failed ones if an exception ended it: what it was told to be written is there. `flush` waits
    for what nobody waited for.
    """

    def __init__(self, handler: RequestHandler) -> None:
        self.handler = handler
        self.flush: Callable[[], None] = _nothing
        self._process = os.getpid()
        self._lost: dict[str, tuple[int, str]] = {}
        self._lock = threading.Lock()
        self._writers: dict[str, tuple[Connection, EndpointHandle]] = {}

    def open(self, connection: Connection) -> None:
        """Have a writer at the channel; raises GatewayError, EndpointClosed."""
        with self._lock:
            known = self._writers.get(connection.channel_uid)
            if known is not None:
                known[1].check()
                # It has the partitions that the channel has got since.
                self._writers[connection.channel_uid] = connection, known[1]
                return
            attachment = EndpointHandle(
                HeartbeatSession.of(self.handler.control.endpoints, grace_s=_GRACE_S),
                channel=connection.channel_name,
                uid=connection.channel_uid,
                role="writer",
                membership=None,
                timeout_s=self.handler.timeout_s,
                close_timeout_s=0,
            )
            self._writers[connection.channel_uid] = connection, attachment
            _OPEN.add(self)

    def note(self, connection: Connection, messages: int) -> None:
        """Count messages that were sent."""
        _, attachment = self._writers[connection.channel_uid]
        attachment.record_cycle(attachment.metrics.records + messages)

    def lose(self, connection: Connection, reason: str) -> None:
        """Note a message that was not written, and that nobody has waited for."""
        lost, first = self._lost.get(connection.channel_uid, (0, reason))
        self._lost[connection.channel_uid] = (lost + 1, first)

    def lose_all(self, reason: str) -> None:
        """Note that of messages to any channel it is not known whether they are written."""
        for connection, _ in self._writers.values():
            self.lose(connection, reason)

    def close(self, error: BaseException | None = None, *, timeout_s: float | None = None) -> None:
        """Close all writers; raises what the first that was not closed met, after all others."""
        if os.getpid() != self._process:
            return
        self.flush()
        timeout_s = self.handler.timeout_s if timeout_s is None else timeout_s
        with self._lock:
            writers, self._writers = list(self._writers.values()), {}
            _OPEN.discard(self)
        failures: list[SluicewayError] = []
        for connection, attachment in writers:
            try:
                self._leave(connection, attachment, error, timeout_s)
            except SluicewayError as failure:
                attachment.fail(failure)
                failures.append(failure)
        if failures:
            raise failures[0]

    def _leave(
        self,
        connection: Connection,
        attachment: EndpointHandle,
        error: BaseException | None,
        timeout_s: float,
    ) -> None:
        lost, reason = self._lost.pop(connection.channel_uid, (0, ""))
        if lost:
            written = attachment.metrics.records - lost
            error = error or DeliveryFailed(
                partition=None, reason=reason, written_records=written, failed_records=lost
            )
        if error is not None:
            attachment.fail(error)
            return
        identity = self.handler.identity(connection)
        try:
            found = identity.all_ends(timeout_s=timeout_s, least=connection.partitions)
        except KafkaFailure:
            try:
                identity.verify(timeout_s=timeout_s)
            except TopicGone as gone:
                # What was written is deleted, and whoever would hear of it with it.
                attachment.fail(gone)
                return
            raise
        attachment.detach(ends={partition: end for partition, end in found.items() if end})


def _nothing() -> None:
    """Nothing was sent yet."""


@atexit.register
def _close_all() -> None:
    error = getattr(sys, "last_value", None)
    for each in list(_OPEN):
        try:
            each.close(error, timeout_s=_LAST_WORD_S)
        except SluicewayError:
            # It was written to the log; nobody is there to hear more.
            continue


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
        self._checks: dict[str, WireFormatValidator] = {}
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
            WireFormatValidator(place, refresh=lambda: self._handler.connection(topic, fresh=True)),
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
            properties, create_client(Producer, properties)
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


__all__ = ["Outlets", "Producing"]
