"""Idempotent producer that accounts for the delivery of every message."""

import itertools
import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sluiceway.errors import DeliveryFailed
from sluiceway.fork_guard import ForkGuard
from sluiceway.kafka.accumulator import Messages
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.errors import made, translated

__all__ = ["IdempotentProducer"]

_STRIDE = 10_000
_SLICE_S = 0.25
_GRACE_S = 10.0

_Header = tuple[str, bytes]
_Placed = tuple[bytes | None, bytes | None, int, _Header | None]


class IdempotentProducer:
    """An idempotent producer of one topic.

    Each message is produced once and waits for the acknowledgement of all replicas. The first
    that fails ends it all: what was not sent is thrown away, and DeliveryFailed counts what is
    known to be written. Nothing here waits longer than the delivery timeout and ten seconds.

    One thread at a time may `send` and `flush`; the others may call what else there is meanwhile.
    """

    def __init__(
        self,
        topic: str,
        config: MaskedProperties,
        *,
        connect_timeout_s: float,
        delivery_timeout_s: float,
        records_in: Callable[[bytes | None], int],
        partitions: int = 0,
    ) -> None:
        self._fork_guard = ForkGuard()
        self._topic = topic
        self._timeout_s = delivery_timeout_s + _GRACE_S
        self._records_in = records_in
        self._first_failure: tuple[int | None, KafkaError] | None = None
        # One number for each failure, as several threads may serve delivery reports.
        self._lost_records: deque[int] = deque()
        self._accepted_records = 0
        self._partitions = partitions
        self._touched: set[int] = set()
        self._producer = made(Producer, config.over({"on_delivery": self._on_failure}))
        self._connect(connect_timeout_s)

    @property
    def accepted_records(self) -> int:
        """How many records were handed to the producer."""
        return self._accepted_records

    def may_have_touched(self, partition: int) -> bool:
        """Whether a message was sent there, acknowledged or not.

        Only known where the number of `partitions` was given.
        """
        return partition in self._touched

    def send(self, messages: Messages) -> None:
        """Produce messages, in order.

        Raises DeliveryFailed when a message failed, of this call or of one before.
        """
        values = messages.values
        keys = itertools.repeat(None) if messages.keys is None else messages.keys
        headers = itertools.repeat(None) if messages.headers is None else messages.headers
        self._accepted_records += messages.records
        if self._first_failure is not None:
            raise self._failed(values)
        pending = iter(values)
        partitions = self._noted(messages.partitions)
        rest = zip(pending, keys, partitions, headers, strict=False)
        try:
            while operator.length_hint(pending):
                self._produce(itertools.islice(rest, _STRIDE))
                self._producer.poll(0)
                if self._first_failure is not None:
                    raise self._failed(values[len(values) - operator.length_hint(pending) :])
        except KafkaException as error:
            if self._first_failure is None:
                self._first_failure = (None, error.args[0])
            # The one that was refused counts with those that were not tried.
            unsent = operator.length_hint(pending) + 1
            raise self._failed(values[len(values) - unsent :]) from error

    def settle(self) -> None:
        """Wait a moment for acknowledgements, also while another thread sends."""
        self._producer.flush(_SLICE_S)

    def flush(self) -> None:
        """Return when Kafka has acknowledged everything. Raises DeliveryFailed."""
        deadline_s = time.monotonic() + self._timeout_s
        # In slices, so that an interrupt of the process is served in between.
        while self._producer.flush(_SLICE_S) and self._first_failure is None:
            if time.monotonic() > deadline_s:
                self._first_failure = (None, KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
        if self._first_failure is not None:
            raise self._failed(())

    def discard(self) -> None:
        """Throw away what was not sent yet; what is on its way may still be written.

        A `send` that another thread is in fails.
        """
        if self._fork_guard.forked:
            return
        if self._first_failure is None:
            self._first_failure = (None, KafkaError(KafkaError._PURGE_QUEUE))  # noqa: SLF001
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._producer.flush(_GRACE_S)

    def _noted(self, partitions: Iterable[int]) -> Iterable[int]:
        """Give the partitions as they are; those that messages go to first are noted."""
        touched = self._touched
        if len(touched) >= self._partitions:
            return partitions
        if isinstance(partitions, Sequence):
            touched.update(partitions)
            return partitions
        return self._noting(partitions)

    def _noting(self, partitions: Iterable[int]) -> Iterator[int]:
        for each in partitions:
            self._touched.add(each)
            yield each

    def _connect(self, timeout_s: float) -> None:
        # An idempotent producer asks for its id whenever metadata arrive, or half a second later.
        # The first metadata come from a bootstrap address, which cannot give ids; the second from
        # a broker that can.
        try:
            for _ in range(2):
                self._producer.list_topics(self._topic, timeout=timeout_s)
        except KafkaException as error:
            raise translated(error.args[0], doing="connecting", topic=self._topic) from error

    def _produce(self, messages: Iterable[_Placed]) -> None:
        # The hot loop: one call a message.
        produce, topic = self._producer.produce, self._topic
        for value, key, partition, header in messages:
            try:
                if header is None:
                    produce(topic, value, key, partition)
                else:
                    produce(topic, value, key, partition, headers=[header])
            except BufferError:
                self._produce_patiently(value, key, partition, header)

    def _produce_patiently(
        self, value: bytes | None, key: bytes | None, partition: int, header: _Header | None
    ) -> None:
        headers = {} if header is None else {"headers": [header]}
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            self._producer.poll(_SLICE_S)
            if self._first_failure is not None:
                raise KafkaException(self._first_failure[1])
            try:
                self._producer.produce(self._topic, value, key, partition, **headers)
            except BufferError as error:
                if time.monotonic() > deadline_s:
                    cause = KafkaError(KafkaError._TIMED_OUT_QUEUE)  # noqa: SLF001
                    raise KafkaException(cause) from error
            else:
                return

    def _on_failure(self, error: KafkaError, message: Message) -> None:
        if error is None:
            return
        if self._first_failure is None:
            self._first_failure = (message.partition(), error)
        self._lost_records.append(self._records_in(message.value()))

    def _failed(self, unsent: Sequence[bytes | None]) -> DeliveryFailed:
        assert self._first_failure is not None  # noqa: S101 - the callers have looked
        partition, error = self._first_failure
        self._lost_records.append(sum(map(self._records_in, unsent)))
        self.discard()
        lost = sum(self._lost_records)
        return DeliveryFailed(
            partition=partition,
            reason=f"{error.name()}, {error.str()}",
            written_records=self._accepted_records - lost,
            failed_records=lost,
        )
