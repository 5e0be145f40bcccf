"""Produce requests: encoded messages, acknowledged before the call returns."""

import atexit
import contextlib
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from sluiceway import Connection
from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.exceptions import (
    InvalidMessageError,
    MessageSizeTooLarge,
    ProtocolClientError,
    RequestTimedOut,
    UnknownError,
    partition_refusal,
    topic_refusal,
)
from sluiceway.broker.protocol import (
    ByName,
    CompressionType,
    ProducePartitionResponse,
    ProduceResponse,
    in_bytes,
)
from sluiceway.errors import (
    CommitUnknown,
    Conflict,
    GatewayError,
    OptionError,
    SluicewayError,
    TopicGone,
)
from sluiceway.spi import (
    BatchSequence,
    Control,
    FairLock,
    MaskedProperties,
    WriteBatch,
    WriterEndpoint,
    create_client,
    producer_config,
    run_callbacks,
    this_process,
)

__all__ = ["Writers", "is_unreported"]

_COMPRESSIONS = {
    CompressionType.NONE: "none",
    CompressionType.GZIP: "gzip",
    CompressionType.SNAPPY: "snappy",
    CompressionType.LZ4: "lz4",
}
_UNKNOWN_PARTITION = KafkaError._UNKNOWN_PARTITION
_EXIT_TIMEOUT_S = 5.0
_GRACE_S = 10.0
_SLICE_S = 0.25
_OPEN: set["Writers"] = set()


@dataclass
class _Part:
    """The messages for one partition, and their delivery."""

    partition: int
    messages: list[Any]
    compression: str
    connection: Connection
    writer: WriterEndpoint
    add_failure: Callable[[str], None] | None = None
    """Counts undelivered messages, if nothing waits for their reports."""
    pending: int = 0
    first_offset: int = -1
    refusal: ProtocolClientError | None = None
    batch: WriteBatch | None = None
    """The batch of its messages; a report that comes after its end is ignored."""

    def on_delivery(self, error: Any, message: Any) -> None:
        """Process a delivery report."""
        self.pending -= 1
        if error is not None:
            refusal = partition_refusal(error, "a message")
            self.refusal = self.refusal or refusal
            if self.add_failure is not None:
                self.add_failure(str(refusal))
            return
        if self.first_offset < 0 or message.offset() < self.first_offset:
            self.first_offset = message.offset()
        batches = self.writer.batches
        if batches is not None and batches.current is self.batch:
            batches.intervals.add_message(self.partition, message.offset())


class Writers:
    """Writers of one Broker, one for each channel from the first request to produce on.

    `close` reports the end offsets. So does the exit of the process without `close`, as a failed
    writer if an exception ended the process.
    """

    def __init__(self) -> None:
        self._process = this_process()
        self.lock = FairLock()
        """Held during a request, and while the writers are closed."""
        self._control: Control | None = None
        self._producers: dict[MaskedProperties, Any] = {}
        self._writers: dict[str, WriterEndpoint] = {}
        self._unreported: list[WriterEndpoint] = []

    def produce(self, handler: RequestHandler, request: Any) -> ProduceResponse | None:
        """Send a request's messages, and wait for Kafka's acknowledgement, if it is required."""
        if type(request.timeout) is not int or not 0 < request.timeout <= 86_400_000:
            raise OptionError(f"timeout is {request.timeout!r}; it takes milliseconds from 1")
        wait = request.required_acks != 0
        topics: ByName[dict[int, ProducePartitionResponse]] = ByName()
        parts: list[tuple[bytes, _Part]] = []
        self.lock.require_free("producing")
        with self.lock:
            for name, partitions in request.msets.items():
                topic = in_bytes(name, "topic")
                for partition, message_set in partitions.items():
                    try:
                        part = self._part(handler, topic, partition, message_set, wait=wait)
                    except ProtocolClientError as refusal:
                        topics.setdefault(topic, {})[partition] = _refused(refusal)
                        continue
                    if part.messages:
                        parts.append((topic, part))
            self._send([part for _, part in parts], request.timeout, wait=wait)
        if not wait:
            return None
        for topic, part in parts:
            response = ProducePartitionResponse(0, part.first_offset)
            if part.refusal is not None:
                response = _refused(part.refusal)
                handler.forget(topic)
            topics.setdefault(topic, {})[part.partition] = response
        return ProduceResponse(topics)

    def close(self, error: BaseException | None = None, *, timeout_s: float) -> None:
        """Flush and close all writers; raise the first failure after all of them.

        After an interrupt, the writers have failed. After a GatewayError that is not final it may
        be repeated.
        """
        if self._process.forked:
            return
        with self.lock:
            try:
                for producer in self._producers.values():
                    if run_callbacks(producer.flush, _GRACE_S):
                        for writer in self._writers.values():
                            writer.add_failure(f"Kafka acknowledged nothing for {_GRACE_S:g} s")
                self._producers = {}
            except BaseException as interrupt:
                with contextlib.suppress(SluicewayError):
                    self._close_writers(error or interrupt, timeout_s)
                raise
            self._close_writers(error, timeout_s)

    def _close_writers(self, error: BaseException | None, timeout_s: float) -> None:
        writers = [*self._unreported, *self._writers.values()]
        self._unreported, self._writers = [], {}
        _OPEN.discard(self)
        failures: list[SluicewayError] = []
        for writer in writers:
            try:
                writer.close(error, timeout_s=timeout_s, detach_timeout_s=timeout_s)
            except SluicewayError as failure:
                if is_unreported(failure):
                    # The end is reported later, or by a repeated call.
                    self._unreported.append(writer)
                    failures.append(failure)
                    continue
                writer.handle.fail(failure)
                # Without its topic, there are no messages and no readers that wait for them. Those
                # in a topic that was created again were refused.
                if not isinstance(failure, TopicGone):
                    failures.append(failure)
        if self._control is not None:
            self._control.close()
            self._control = None
        if failures:
            # Those last after which closing may be repeated.
            raise min(failures, key=is_unreported)

    def _writer(self, handler: RequestHandler, connection: Connection) -> WriterEndpoint:
        """Return the writer of a channel. Raises GatewayError, EndpointClosed, KafkaFailure."""
        if self._control is None:
            # The writers outlive the handler, which `Broker.connect` replaces.
            self._control = handler.address.control(handler.timeout_s)
        uid = connection.channel_uid
        writer = self._writers.get(uid)
        if writer is None:
            writer = self._writers[uid] = WriterEndpoint(
                self._control, connection.channel_name, uid=uid, timeout_s=handler.timeout_s
            )
            _OPEN.add(self)
        writer.handle.check()
        # The channel may have grown.
        writer.partitions_used = max(writer.partitions_used, connection.partitions)
        return writer

    def _part(
        self, handler: RequestHandler, topic: bytes, partition: int, message_set: Any, *, wait: bool
    ) -> _Part:
        """Return the messages of a partition, refused if one of them is invalid."""
        messages = list(message_set.messages)
        compression = _COMPRESSIONS.get(message_set.compression_type)
        if compression is None:
            raise OptionError(
                f"compression_type is {message_set.compression_type!r}; it takes a CompressionType"
            )
        if type(partition) is not int:
            raise OptionError(f"the partition is {partition!r}; it takes a number")
        for message in messages:
            for field in (message.value, message.partition_key):
                if field is not None and not isinstance(field, bytes):
                    raise OptionError(f"value and partition_key are bytes or None: {message!r}")
        connection = handler.locate(topic, partition)
        try:
            writer = self._writer(handler, connection)
        except SluicewayError as error:
            raise topic_refusal(error) from error
        if messages and not wait and writer.batches is not None:
            raise OptionError(
                f"required_acks is 0, but {topic.decode()!r} is an exactly-once channel, where "
                "only acknowledged messages can be committed: use -1"
            )
        add_failure = None if wait else writer.add_failure
        part = _Part(partition, messages, compression, connection, writer, add_failure)
        for index, message in enumerate(messages):
            size = len(message.value or b"") + len(message.partition_key or b"")
            if size > connection.max_message_bytes:
                part.refusal = MessageSizeTooLarge(
                    f"message {index} takes {size:,} bytes; the limit of the channel is "
                    f"{connection.max_message_bytes:,}. Make it smaller, or raise the channel's "
                    "max.message.bytes. Nothing was sent to this partition"
                )
                break
            if invalid := writer.validator.error(message.value):
                part.refusal = InvalidMessageError(
                    f"message {index}: {invalid}. Nothing was sent to this partition"
                )
                break
        return part

    def _send(self, parts: Collection[_Part], timeout_ms: int, *, wait: bool) -> None:
        opened: dict[BatchSequence, list[_Part]] = {}
        for part in parts:
            if part.writer.batches is not None and part.refusal is None:
                opened.setdefault(part.writer.batches, []).append(part)
        try:
            for batches, own in list(opened.items()):
                if not _open(batches, own):
                    del opened[batches]
            self._send_parts(parts, timeout_ms, wait=wait)
            if wait:
                _confirm_delivery(parts, timeout_ms / 1000)
            for batches, own in opened.items():
                _commit(batches, own)
        except BaseException as error:
            # Those that are committed have ended.
            for batches in opened:
                batches.abort(error)
            raise

    def _send_parts(self, parts: Collection[_Part], timeout_ms: int, *, wait: bool) -> None:
        producers = set()
        timeout_s = timeout_ms / 1000 + _GRACE_S
        for part in parts:
            producer = self._producer(part.connection, part.compression, timeout_ms)
            producers.add(producer)
            for message in part.messages:
                if part.refusal is None and _produce(producer, part, message, timeout_s):
                    part.writer.records += 1
                elif part.add_failure is not None:
                    part.writer.records += 1
                    part.add_failure(str(part.refusal))
            part.writer.report()
        deadline_s = time.monotonic() + timeout_s
        while wait and any(part.pending for part in parts):
            for kafka_producer in producers:
                run_callbacks(kafka_producer.poll, _SLICE_S / len(producers))
            if time.monotonic() > deadline_s:
                for part in parts:
                    if part.pending:
                        part.refusal = RequestTimedOut(
                            "Kafka did not acknowledge in time; the messages may or may not be "
                            "written"
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


def is_unreported(failure: SluicewayError) -> bool:
    """Whether the end of a writer may be reported by a later call, after this failure of one."""
    return isinstance(failure, GatewayError) and not failure.is_final


@atexit.register
def _close_all() -> None:
    error = getattr(sys, "last_value", None)
    for writers in list(_OPEN):
        # The failure is in the log.
        with contextlib.suppress(SluicewayError):
            writers.close(error, timeout_s=_EXIT_TIMEOUT_S)


def _produce(producer: Any, part: _Part, message: Any, timeout_s: float) -> bool:
    """Return whether librdkafka accepted the message; otherwise refuse its partition."""
    named = {} if message.timestamp is None else {"timestamp": int(message.timestamp)}
    deadline_s = time.monotonic() + timeout_s
    topic, refreshed = part.connection.topic_name, False
    while True:
        try:
            producer.produce(
                topic,
                message.value,
                message.partition_key,
                part.partition,
                on_delivery=part.on_delivery,
                **named,
            )
        except BufferError:
            if time.monotonic() > deadline_s:
                part.refusal = RequestTimedOut("the queue of Kafka's client is full")
                return False
            run_callbacks(producer.poll, _SLICE_S)
        except KafkaException as error:
            if error.args[0].code() != _UNKNOWN_PARTITION or refreshed:
                part.refusal = partition_refusal(error.args[0], "a message")
                return False
            # The channel has grown; librdkafka detects new partitions only after minutes.
            refreshed = True
            with contextlib.suppress(KafkaException):
                producer.list_topics(topic, timeout=timeout_s)
        else:
            part.pending += 1
            return True


def _confirm_delivery(parts: Collection[_Part], timeout_s: float) -> None:
    """Refuse the parts whose messages are in a topic that was created again."""
    delivered: dict[WriterEndpoint, list[_Part]] = {}
    for part in parts:
        if part.refusal is None:
            delivered.setdefault(part.writer, []).append(part)
    for writer, own in delivered.items():
        try:
            writer.confirm_delivery(timeout_s=timeout_s)
        except SluicewayError as error:
            _refuse(own, topic_refusal(error))


def _open(batches: BatchSequence, parts: Collection[_Part]) -> bool:
    """Open a batch for the parts of one channel, or refuse these and return False."""
    try:
        # First resolve a last batch whose state is unknown.
        batches.resolve()
        batch = batches.open()
    except SluicewayError as error:
        ended = isinstance(error, CommitUnknown | Conflict)
        refusal = UnknownError(f"{error}. Nothing was sent") if ended else topic_refusal(error)
        _refuse(parts, refusal)
        return False
    batches.block.admitted = sum(len(part.messages) for part in parts)
    for part in parts:
        part.batch = batch
    return True


def _commit(batches: BatchSequence, parts: Collection[_Part]) -> None:
    """Commit the parts of one channel, or refuse all of them."""
    failed = next((part.refusal for part in parts if part.refusal is not None), None)
    if failed is not None:
        batches.abort(failed)
        reason = f"no message of this request is visible, because one part failed: {failed}"
        _refuse(parts, type(failed)(reason))
        return
    try:
        try:
            batches.commit()
        except CommitUnknown:
            if not batches.resolve():
                reason = "the gateway did not answer the commit, and nothing is visible: send again"
                _refuse(parts, RequestTimedOut(reason))
    except CommitUnknown:
        reason = (
            "the gateway did not answer the commit, so the messages may or may not be visible: "
            "read the end of the channel before you send them again"
        )
        _refuse(parts, RequestTimedOut(reason))
    except SluicewayError as error:
        batches.abort(error)
        _refuse(parts, UnknownError(f"{error}. No message of this request is visible"))


def _refuse(parts: Collection[_Part], refusal: ProtocolClientError) -> None:
    for part in parts:
        part.refusal = refusal


def _refused(refusal: ProtocolClientError) -> ProducePartitionResponse:
    return ProducePartitionResponse(refusal.ERROR_CODE, -1).because(refusal)
