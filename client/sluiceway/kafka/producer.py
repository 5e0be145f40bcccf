"""Idempotent producer with a delivery report for every message."""

import functools
import itertools
import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sluiceway.concurrency import ForkGuard
from sluiceway.errors import DeliveryFailed
from sluiceway.kafka.accumulator import Messages
from sluiceway.kafka.config import producer_config
from sluiceway.kafka.errors import create_client, run_callbacks, translate_error
from sluiceway.rest.models import Connection

__all__ = ["IdempotentProducer", "OnDelivery"]

_MESSAGES_PER_POLL = 10_000
_SHORT_MESSAGE_BYTES = 256
_SHORT_MESSAGES_PER_POLL = 1_000
"""Reports of short messages are served while the processor's cache still holds the messages, which
saves a tenth of the calling thread's time. Long messages take more time if freed so often."""
_POLL_S = 0.25
_GRACE_S = 10.0
_METADATA_TIMEOUT_S = 2.0

OnDelivery: TypeAlias = Callable[[KafkaError | None, Message], None]
"""A callback for delivery reports: the error, or None, and the message."""

_Message = tuple[bytes | None, bytes | None, int]


class IdempotentProducer:
    """An idempotent producer of one topic.

    Each message is produced once and acknowledged by all replicas. The first failure is final:
    unsent messages are purged, and DeliveryFailed counts the written records. No call waits longer
    than the delivery timeout plus ten seconds.

    One thread at a time may `send` and `flush`; the other methods are thread-safe.
    """

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, object],
        *,
        connect_timeout_s: float,
        delivery_timeout_s: float,
        records_in: Callable[[bytes | None], int],
        partitions: int = 0,
        until_flush: bool = False,
        reporting: Callable[[OnDelivery], OnDelivery] | None = None,
    ) -> None:
        """Connect.

        `config` has further properties, and `until_flush` is that of `producer_config`.
        `reporting` gets the callback for failed deliveries and returns the callback for all
        reports. Without it, only failures are reported. Raises KafkaUnavailable, OptionError.
        """
        self._fork_guard = ForkGuard()
        self._topic = connection.topic_name
        self._timeout_s = delivery_timeout_s + _GRACE_S
        self._records_in = records_in
        self._first_failure: tuple[int | None, KafkaError] | None = None
        # One item per failure, because several threads may serve delivery reports.
        self._lost_records: deque[int] = deque()
        self.accepted_records = 0
        """The number of records passed to the producer."""
        self._partitions = partitions
        self._touched: set[int] = set()
        # A signal handler may raise before the first line of a callback in Python, and librdkafka
        # does not repeat a report. This cache keeps nothing, and counts the calls in C.
        self._failures = functools.lru_cache(maxsize=0)(self._on_failure)
        reports: dict[str, object] = {"on_delivery": self._failures}
        if reporting is not None:
            reports = {"on_delivery": reporting(self._on_failure)}
            reports["delivery.report.only.error"] = False
        properties = producer_config(
            connection.kafka,
            config,
            delivery_timeout_ms=round(delivery_timeout_s * 1000),
            max_message_bytes=connection.max_message_bytes,
            until_flush=until_flush,
        )
        self._producer = create_client(Producer, properties.over(reports))
        # librdkafka requests an idempotent producer's id when metadata arrive, or half a second
        # later. The first metadata come from a bootstrap address, which cannot give ids; the
        # second from a broker that can.
        try:
            for _ in range(2):
                self._producer.list_topics(self._topic, timeout=connect_timeout_s)
        except KafkaException as error:
            raise translate_error(error.args[0], doing="connecting", topic=self._topic) from error

    def may_have_written_to(self, partition: int) -> bool:
        """Whether a message was sent to a partition, acknowledged or not.

        Known only if the producer was created with the number of `partitions`.
        """
        return partition in self._touched

    def discover_partitions(self) -> int:
        """Refresh the topic's metadata, and return the number of its partitions.

        librdkafka learns of added partitions only after minutes. Raises KafkaUnavailable.
        """
        try:
            found = self._producer.list_topics(self._topic, timeout=_METADATA_TIMEOUT_S)
        except KafkaException as error:
            raise translate_error(error.args[0], doing="connecting", topic=self._topic) from error
        self._partitions = max(self._partitions, len(found.topics[self._topic].partitions))
        return self._partitions

    def send(self, messages: Messages) -> None:
        """Produce messages, in order.

        Raises DeliveryFailed when a message of this or an earlier call has failed, and
        EndpointClosed in a forked child, which has no thread to send it.
        """
        self._fork_guard.check("this writer")
        values = messages.values
        keys = itertools.repeat(None) if messages.keys is None else messages.keys
        self.accepted_records += messages.records
        if self._first_failure is not None:
            raise self._failed(values)
        pending = iter(values)
        partitions = self._tracked(messages.partitions)
        rest = zip(pending, keys, partitions, strict=False)
        short = bool(values) and len(values[0] or b"") <= _SHORT_MESSAGE_BYTES
        per_poll = _SHORT_MESSAGES_PER_POLL if short else _MESSAGES_PER_POLL
        try:
            while operator.length_hint(pending):
                self._produce(itertools.islice(rest, per_poll))
                run_callbacks(self._producer.poll, 0)
                if self._first_failure is not None:
                    raise self._failed(values[len(values) - operator.length_hint(pending) :])
        except KafkaException as error:
            if self._first_failure is None:
                self._first_failure = (None, error.args[0])
            # The refused message counts as unsent.
            unsent = operator.length_hint(pending) + 1
            raise self._failed(values[len(values) - unsent :]) from error

    def flush(self, check: Callable[[], None] = lambda: None) -> None:
        """Return when Kafka has acknowledged everything. Raises DeliveryFailed, EndpointClosed.

        `check` is called from time to time; the wait ends with its exception.
        """
        self._fork_guard.check("this writer")
        deadline_s = time.monotonic() + self._timeout_s
        # In short waits, between which an interrupt of the process is handled.
        while self.flush_briefly() and self._first_failure is None:
            if time.monotonic() > deadline_s:
                self._first_failure = (None, KafkaError(KafkaError._TIMED_OUT))
            check()
        if self._first_failure is None and self._failures.cache_info().misses:
            interrupted = KafkaError(KafkaError._FAIL, "an interrupt lost the delivery report")
            self._first_failure = (None, interrupted)
            self._lost_records.append(self._failures.cache_info().misses)
        if self._first_failure is not None:
            raise self._failed(())

    def discard(self) -> None:
        """Purge unsent messages; those in flight may still be written.

        A concurrent `send` of another thread fails.
        """
        if self._fork_guard.forked:
            return
        if self._first_failure is None:
            self._first_failure = (None, KafkaError(KafkaError._PURGE_QUEUE))
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        run_callbacks(self._producer.flush, _GRACE_S)

    def flush_briefly(self) -> int:
        """Wait a moment for acknowledgements, also while another thread sends.

        Returns the number of missing ones.
        """
        missing: int = run_callbacks(self._producer.flush, _POLL_S)
        return missing

    def _tracked(self, partitions: Iterable[int]) -> Iterable[int]:
        """Return `partitions`, and record those that had no messages before."""
        touched = self._touched
        if len(touched) >= self._partitions:
            return partitions
        if isinstance(partitions, Sequence):
            touched.update(partitions)
            return partitions

        def tracking() -> Iterator[int]:
            for partition in partitions:
                touched.add(partition)
                yield partition

        return tracking()

    def _produce(self, messages: Iterable[_Message]) -> None:
        # The hot loop: one call per message.
        produce, topic = self._producer.produce, self._topic
        for value, key, partition in messages:
            try:
                produce(topic, value, key, partition)
            except BufferError:
                self._produce_when_possible(value, key, partition)

    def _produce_when_possible(
        self, value: bytes | None, key: bytes | None, partition: int
    ) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            run_callbacks(self._producer.poll, _POLL_S)
            if self._first_failure is not None:
                raise KafkaException(self._first_failure[1])
            try:
                self._producer.produce(self._topic, value, key, partition)
            except BufferError as error:
                if time.monotonic() > deadline_s:
                    cause = KafkaError(KafkaError._TIMED_OUT_QUEUE)
                    raise KafkaException(cause) from error
            else:
                return

    def _on_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        if self._first_failure is None:
            self._first_failure = (message.partition(), error)
        self._lost_records.append(self._records_in(message.value()))

    def _failed(self, unsent: Sequence[bytes | None]) -> DeliveryFailed:
        assert self._first_failure is not None  # noqa: S101 - checked by the callers
        partition, error = self._first_failure
        self._lost_records.append(sum(map(self._records_in, unsent)))
        self.discard()
        lost = sum(self._lost_records)
        return DeliveryFailed(
            partition=partition,
            reason=f"{error.name()}, {error.str()}",
            written_records=self.accepted_records - lost,
            failed_records=lost,
        )
