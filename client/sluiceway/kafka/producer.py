"""Idempotent producer of columns of messages, with delivery reports in a thread of its own."""

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sluiceway.api.models import Connection
from sluiceway.concurrency import this_process
from sluiceway.errors import DeliveryFailed
from sluiceway.kafka.config import producer_config
from sluiceway.kafka.errors import create_client, translate_error
from sluiceway.kafka.librdkafka import BatchProducer, is_supported
from sluiceway.kafka.messages import DeliveryReport, Messages
from sluiceway.runtime.threads import call

__all__ = ["IdempotentProducer"]

LOGGER = logging.getLogger("sluiceway.kafka.producer")

_MESSAGES_PER_CALL = 10_000
_POLL_S = 0.25
_IDLE_S = 1.0
_GRACE_S = 10.0
_METADATA_TIMEOUT_S = 2.0
_QUEUE_KBYTES = 1_048_576
"""librdkafka's default of `queue.buffering.max.kbytes`."""
_FULL_S = 0.005
"""The pause before another look at a full queue, or for the last reports, without batches."""

OnDelivery: TypeAlias = Callable[[DeliveryReport], KafkaError | None]
"""Gets a report of delivered messages, and returns an error if the report cannot be right."""


class IdempotentProducer:
    """An idempotent producer of one topic.

    Each message is produced once and acknowledged by all replicas. The first failure is final:
    unsent messages are purged, and DeliveryFailed counts the written records. No call waits longer
    than the delivery timeout plus ten seconds.

    One thread at a time may `send` and `flush`; the other methods are thread-safe. Delivery reports
    are read by a thread of the producer, where no signal handler runs: an interrupt loses none.
    """

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, object],
        *,
        connect_timeout_s: float,
        delivery_timeout_s: float,
        on_delivery: OnDelivery | None = None,
        until_flush: bool = False,
    ) -> None:
        """Connect.

        `config` has further properties, and `until_flush` is that of `producer_config`.
        `on_delivery` gets the reports of delivered messages; without it, only failures are
        reported. Raises KafkaUnavailable, OptionError.
        """
        self._process = this_process()
        self._topic = connection.topic_name
        self._timeout_s = delivery_timeout_s + _GRACE_S
        self.accepted_records = 0
        """The number of records passed to the producer."""
        properties = producer_config(
            connection.kafka,
            config,
            delivery_timeout_ms=round(delivery_timeout_s * 1000),
            max_message_bytes=connection.max_message_bytes,
            until_flush=until_flush,
        ).over({"delivery.report.only.error": on_delivery is None})
        self._queue_bytes = 1024 * int(
            str(properties.get("queue.buffering.max.kbytes", _QUEUE_KBYTES))
        )

        def start() -> tuple[_Client, _Reports]:
            client = _client(self._topic, properties)
            reports = _Reports(client, on_delivery)
            finalizer = self._process.finalize(self, reports.stop)
            # A process that ends needs no thread to end before.
            finalizer.atexit = False
            reports.start()
            return client, reports

        # An interrupt between the steps would leave a client that nothing destroys.
        self._client, self._reports = call(start)
        # By partition, whether a message was sent to it.
        self._touched = np.zeros(0, np.bool_)
        # librdkafka requests an idempotent producer's id when metadata arrive, or half a second
        # later. The first metadata come from a bootstrap address, which cannot give ids; the
        # second from a broker that can.
        for _ in range(2):
            self._request_partitions(connect_timeout_s)

    @property
    def missing(self) -> int:
        """The number of messages that Kafka has not acknowledged."""
        return self._client.missing()

    def may_have_written_to(self, partition: int) -> bool:
        """Whether the partition may have messages of this producer, acknowledged or not."""
        return bool(self._touched[partition : partition + 1].any())

    def discover_partitions(self) -> int:
        """Refresh the topic's metadata, and return the number of its partitions.

        librdkafka learns of added partitions only after minutes. Raises KafkaUnavailable.
        """
        return self._request_partitions(_METADATA_TIMEOUT_S)

    def send(self, messages: Messages) -> None:
        """Produce messages, in order; wait while the queue is full.

        Raises DeliveryFailed when a message of this or an earlier call has failed, and
        EndpointClosed in a forked child, which has no thread to send it.
        """
        self._process.check("this writer")
        unsent = messages.records
        self.accepted_records += unsent
        obstacle = self._obstacle(messages) if self._reports.failure is None else None
        if obstacle is not None:
            self._reports.fail(*obstacle)
        for start in range(0, len(messages), _MESSAGES_PER_CALL):
            if self._reports.failure is not None:
                break
            piece = messages.slice(start, _MESSAGES_PER_CALL)
            self._touched[piece.partitions] = True
            refused, error = self._client.produce(piece)
            unsent -= piece.records - refused
            if error is not None:
                self._reports.fail(None, error)
        if self._reports.failure is not None:
            raise self._failed(unsent)

    def flush(self, check: Callable[[], None] = lambda: None) -> None:
        """Return when Kafka has acknowledged everything. Raises DeliveryFailed, EndpointClosed.

        `check` is called from time to time; the wait ends with its exception.
        """
        self._process.check("this writer")
        deadline_s = time.monotonic() + self._timeout_s
        # In short waits, between which an interrupt of the process is handled.
        while self.flush_briefly() and self._reports.failure is None:
            if time.monotonic() > deadline_s:
                self._reports.fail(None, KafkaError(KafkaError._TIMED_OUT))
            check()
        if self._reports.failure is not None:
            raise self._failed(0)

    def discard(self) -> None:
        """Purge unsent messages; those in flight may still be written.

        A concurrent `send` of another thread fails.
        """
        if self._process.forked:
            return
        self._reports.fail(None, KafkaError(KafkaError._PURGE_QUEUE))
        self._client.flush(_GRACE_S)

    def flush_briefly(self) -> int:
        """Wait a moment for acknowledgements, also while another thread sends.

        Returns the number of missing ones.
        """
        return self._client.flush(_POLL_S)

    def _request_partitions(self, timeout_s: float) -> int:
        try:
            return self._update_partitions(timeout_s)
        except KafkaException as error:
            raise translate_error(error.args[0], doing="connecting", topic=self._topic) from error

    def _update_partitions(self, timeout_s: float) -> int:
        """Request the number of the topic's partitions. Raises KafkaException."""
        partitions = self._client.partitions(timeout_s)
        added = max(0, partitions - len(self._touched))
        self._touched = np.concatenate([self._touched, np.zeros(added, np.bool_)])
        return len(self._touched)

    def _obstacle(self, messages: Messages) -> tuple[int | None, KafkaError] | None:
        """Return why librdkafka would keep one of the messages for ever, or None."""
        if not len(messages):
            return None
        last = int(messages.partitions.max())
        try:
            if last >= len(self._touched) and last >= self._update_partitions(_METADATA_TIMEOUT_S):
                return last, KafkaError(KafkaError._UNKNOWN_PARTITION)
        except KafkaException as error:
            return last, error.args[0]
        if messages.values.nbytes <= self._queue_bytes:
            return None
        longest: int = pc.max(pc.binary_length(messages.values)).as_py() or 0
        if longest > self._queue_bytes:
            reason = f"a message of {longest:,} bytes is larger than queue.buffering.max.kbytes"
            return None, KafkaError(KafkaError._QUEUE_FULL, reason)
        return None

    def _failed(self, unsent_records: int) -> DeliveryFailed:
        assert self._reports.failure is not None  # noqa: S101 - checked by the callers
        partition, error = self._reports.failure
        self.discard()
        self._reports.lost_records.append(unsent_records)
        lost = sum(self._reports.lost_records)
        return DeliveryFailed(
            partition=partition,
            reason=f"{error.name()}, {error.str()}",
            written_records=self.accepted_records - lost,
            failed_records=lost,
        )


class _Client(Protocol):
    """A Kafka client that produces into one topic; see `BatchProducer`."""

    def partitions(self, timeout_s: float) -> int: ...
    def produce(self, messages: Messages) -> tuple[int, KafkaError | None]: ...
    def flush(self, timeout_s: float) -> int: ...
    def missing(self) -> int: ...
    def purge(self) -> None: ...
    def reports(self, timeout_s: float) -> Iterator[DeliveryReport]: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...


class _Reports:
    """The thread that reads a client's delivery reports, and what they say.

    It does not refer to the producer, so that it ends once the producer is garbage collected.
    """

    def __init__(self, client: _Client, on_delivery: OnDelivery | None) -> None:
        self._client = client
        self._on_delivery = on_delivery
        self._stopped = False
        self.failure: tuple[int | None, KafkaError] | None = None
        """The partition and error of the first failure."""
        # One item per failure, because several threads add some.
        self.lost_records: deque[int] = deque()

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the process cannot have another one."""
        try:
            threading.Thread(target=self._run, name="sluiceway-reports", daemon=True).start()
        except RuntimeError:
            self._client.close()
            raise

    def stop(self) -> None:
        """Let the thread end after a moment, and destroy the client.

        Does not wake the thread, which may destroy the client from now on.
        """
        self._stopped = True

    def fail(self, partition: int | None, error: KafkaError) -> None:
        """Purge all messages because of an error, which counts if it is the first."""
        if self.failure is None:
            self.failure = (partition, error)
        self._client.purge()
        self._client.wake()

    def _run(self) -> None:
        while not self._stopped:
            # After a failure, a thread that waits for room in the queue must not wait for the rest.
            wait_s = _IDLE_S
            if self.failure is not None and self._client.missing():
                self._client.purge()
                wait_s = _POLL_S
            try:
                for report in self._client.reports(wait_s):
                    self._add(report)
            except Exception as error:
                LOGGER.exception("a delivery report was not read")
                self.fail(None, KafkaError(KafkaError._FAIL, f"a report was not read: {error}"))
        self._client.close()

    def _add(self, report: DeliveryReport) -> None:
        error = report.error
        if error is None and self._on_delivery is not None:
            error = self._on_delivery(report)
        if error is not None:
            self.lost_records.append(report.records)
            if self.failure is None:
                self.fail(report.partition, error)


def _client(topic: str, config: Mapping[str, object]) -> _Client:
    """Return a client. Raises OptionError for invalid properties."""
    if is_supported():
        return create_client(functools.partial(BatchProducer, topic), config)
    _log_fallback()
    return create_client(functools.partial(_MessageProducer, topic), config)


@functools.cache
def _log_fallback() -> None:
    LOGGER.info("this build of librdkafka was not tested: each message is a call, which is slower")


class _MessageProducer:
    """A client with a call and a report for each message, for builds without batches."""

    def __init__(self, topic: str, config: Mapping[str, object], **options: Any) -> None:
        self._topic = topic
        self._producer = Producer(dict(config), **options)
        self._read: deque[DeliveryReport] = deque()

    def partitions(self, timeout_s: float) -> int:
        metadata = self._producer.list_topics(self._topic, timeout=timeout_s)
        return len(metadata.topics[self._topic].partitions)

    def produce(self, messages: Messages) -> tuple[int, KafkaError | None]:
        values = messages.values.to_pylist()
        keys = [None] * len(values) if messages.keys is None else messages.keys.to_pylist()
        counts = [1] * len(values) if messages.counts is None else messages.counts.tolist()
        unsent = messages.records
        for value, key, partition, count in zip(
            values, keys, messages.partitions.tolist(), counts, strict=True
        ):
            report = functools.partial(self._report, count)
            while True:
                try:
                    self._producer.produce(self._topic, value, key, partition, on_delivery=report)
                except BufferError:
                    time.sleep(_FULL_S)
                except KafkaException as error:
                    return unsent, error.args[0]
                else:
                    break
            unsent -= count
        return 0, None

    def flush(self, timeout_s: float) -> int:
        # Not by its `flush`, which would call reports in this thread.
        deadline_s = time.monotonic() + timeout_s
        while self.missing() and time.monotonic() < deadline_s:
            time.sleep(_FULL_S)
        return self.missing()

    def missing(self) -> int:
        # A message counts in the client until its callback returns, then until its report is read.
        return len(self._producer) + len(self._read)

    def purge(self) -> None:
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def reports(self, timeout_s: float) -> Iterator[DeliveryReport]:
        self._producer.poll(min(timeout_s, _POLL_S))
        while self._read:
            try:
                yield self._read[0]
            finally:
                self._read.popleft()

    def wake(self) -> None:
        """Do nothing: `reports` waits for a moment only."""

    def close(self) -> None:
        self.purge()
        self._producer.flush(_GRACE_S)

    def _report(self, count: int, error: KafkaError | None, message: Message) -> None:
        self._read.append(
            DeliveryReport(
                partition=message.partition(),
                first=message.offset() if error is None else -1,
                messages=1,
                records=count,
                error=error,
            )
        )
