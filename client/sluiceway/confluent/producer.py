"""Producer: confluent-kafka's interface on channels."""

import collections
import functools
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message

from sluiceway.confluent.channel_producers import ChannelProducer, ChannelProducers, OnDelivery
from sluiceway.confluent.config import producer_settings
from sluiceway.confluent.errors import INVALID_ARG, kafka_error, kafka_exceptions, refused
from sluiceway.fork_guard import ForkGuard
from sluiceway.kafka.partitioner import partition_of

__all__ = ["Producer"]


class Producer:
    """Writes messages into channels as confluent-kafka's Producer writes into topics.

    The configuration has librdkafka's names; the gateway's address is set as for Consumer. Values
    are the messages' bytes: any bytes in channels of the format `bytes`, in other formats bytes
    with the channel's header. The producer is a writer of each channel from its first message
    until it is closed: native readers that read until writers have finished wait for it. A producer
    that is not closed is closed when it is garbage collected, or at exit.

    Raises KafkaException with librdkafka's codes, BufferError when its queue is full, and
    RuntimeError once it is closed.
    """

    def __init__(self, config: object = None, /, **named: Any) -> None:
        self._settings = producer_settings(config, named)
        self._default: OnDelivery | None = self._settings.on_delivery
        self._channels = ChannelProducers(self._settings)
        self._by_name = self._channels.by_name
        self._produce: Callable[..., None]
        self._refused: collections.deque[Callable[[], object]] = collections.deque()
        self._closed = False
        self._failure: KafkaError | None = None
        self._report_due_s = 0.0
        self._finalizer = ForkGuard().finalize_in_thread(self, self._channels.close_abandoned)

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Send a message in the background; `poll` and `flush` call `on_delivery(error, message)`.

        Raises BufferError while the queue is full: poll, and try again. Raises KafkaException
        UNKNOWN_TOPIC_OR_PART for a channel that does not exist, and _INVALID_ARG for a value that
        is invalid in the channel.
        """
        on_delivery = on_delivery or callback or self._default
        try:
            channel = self._by_name[topic]
        except KeyError:
            channel = self._open(topic, reports_all=on_delivery is not None)
        if (value is None or channel.validates) and not self._is_valid(
            channel, topic, value, key, on_delivery
        ):
            return
        if key is not None and partition == -1:
            partition = _partition_of(key, channel.partitions)
        # The hot path: without keywords, and without new objects that are tracked by the collector.
        if on_delivery is not channel.on_delivery or timestamp or headers is not None:
            self._produce_with(channel, value, key, partition, on_delivery, timestamp, headers)
        elif on_delivery is None:
            self._produce(channel.topic, value, key, partition)
        else:
            self._produce(channel.topic, value, key, partition, channel.wrapper)
        channel.records += 1
        if partition >= channel.partitions_used:
            channel.partitions_used = partition + 1

    def poll(self, timeout: float = -1) -> int:
        """Call delivery callbacks for up to `timeout` seconds; return how many were called."""
        self._require_open()
        called = self._call_refused()
        if self._channels.producer is None:
            # Without a message, as in confluent-kafka, a thread that only polls waits.
            self._channels.created.wait(0 if called else None if timeout < 0 else timeout)
        if self._channels.producer is None:
            return called
        found: int = self._channels.producer.poll(0 if called else timeout)
        return called + found

    def flush(self, timeout: float = -1) -> int:
        """Wait until all messages are delivered, or have failed; return how many are left."""
        self._require_open()
        self._call_refused()
        left: int = sum(each.flush(timeout) for each in self._channels.producers)
        self._channels.report()
        return left

    def purge(
        self,
        in_queue: bool = True,
        in_flight: bool = True,
        blocking: bool = True,
    ) -> None:
        """Drop messages that are not delivered yet; `on_delivery` gets them as failures."""
        self._require_open()
        if self._channels.producer is not None:
            self._channels.producer.purge(in_queue=in_queue, in_flight=in_flight, blocking=blocking)

    def close(self) -> bool:
        """Flush, and report to the gateway where the messages end. May be repeated.

        If messages failed, the writer has failed. Raises KafkaException if the gateway does not
        answer, again if it is repeated, and the exception of a callback after everything else.
        """
        if self._failure is not None:
            raise KafkaException(self._failure)
        if not self._end():
            return True
        try:
            self._call_refused()
        finally:
            failure = self._channels.close()
        if failure is not None:
            self._failure = kafka_error(failure)
            raise KafkaException(self._failure)
        return True

    def __len__(self) -> int:
        """Return how many messages and delivery reports are under way."""
        return sum(map(len, self._channels.producers)) + len(self._refused)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an exception flush, and report that the writer failed."""
        if error is not None and self._end():
            self._channels.close(error)
            return
        self.close()

    def _end(self) -> bool:
        """Refuse further messages; return False if it was closed before."""
        with self._channels.lock:
            if self._closed:
                return False
            self._closed = True
            # From here on no thread sends a message: between looking this attribute up and calling
            # it, a thread runs nothing that lets other threads run.
            self._produce = _closed
        self._finalizer.detach()
        self._channels.require_same_process()
        return True

    def _open(self, topic: str, *, reports_all: bool) -> ChannelProducer:
        self._require_open()
        if not isinstance(topic, str):
            raise TypeError(f"topic must be str, not {type(topic).__name__}")
        with self._channels.lock:
            channel = self._by_name.get(topic)
            if channel is None:
                reports_all = reports_all and not self._settings.only_errors
                channel = self._channels.open(topic, reports_all=reports_all)
                self._require_open()
                self._produce = self._channels.producer.produce
                # Last, as other threads look here.
                self._by_name[topic] = channel
        return channel

    def _produce_with(
        self,
        channel: ChannelProducer,
        value: Any,
        key: Any,
        partition: int,
        on_delivery: OnDelivery | None,
        timestamp: int,
        headers: Any,
    ) -> None:
        named: dict[str, Any] = {}
        if on_delivery is not None:
            if not self._channels.reports_all and not self._settings.only_errors:
                with self._channels.lock:
                    self._require_open()
                    self._channels.report_all()
                    self._produce = self._channels.producer.produce
            if not callable(on_delivery):
                raise TypeError("on_delivery must be callable")
            named["on_delivery"] = self._channels.wrapped(channel, on_delivery)
        if timestamp:
            named["timestamp"] = timestamp
        if headers is not None:
            named["headers"] = headers
        self._produce(channel.topic, value, key, partition, **named)

    def _is_valid(
        self,
        channel: ChannelProducer,
        topic: str,
        value: Any,
        key: Any,
        on_delivery: OnDelivery | None,
    ) -> bool:
        """Validate a value; False: the callback gets an error. Raises KafkaException."""
        if value is None and self._settings.hpe:
            error = KafkaError(INVALID_ARG, "HPE's client sends no message without a value")
            if on_delivery is not None:
                message = Message(topic=topic, key=key, error=error)
                self._refused.append(partial(on_delivery, error, message))
            return False
        if channel.validates:
            with kafka_exceptions():
                given = value.encode() if isinstance(value, str) else value
                if given is not None and not isinstance(given, bytes):
                    raise TypeError(f"a value is str or bytes, not {type(value).__name__}")
                reason = channel.validator.error(given)
            if reason is not None:
                raise refused(INVALID_ARG, reason)
        return True

    def _call_refused(self) -> int:
        """Call the callbacks of refused messages; return how many. Reports counts, too."""
        now_s = time.monotonic()
        if now_s >= self._report_due_s:
            self._report_due_s = now_s + 1
            self._channels.report()
        called = 0
        while True:
            try:
                callback = self._refused.popleft()
            except IndexError:
                return called
            callback()
            called += 1

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("Producer closed")
        self._channels.require_same_process()


@functools.lru_cache(maxsize=4096)
def _partition_of(key: str | bytes, partitions: int) -> int:
    """Return the partition of a key; hashing takes longer than sending, so results are cached."""
    return partition_of(key.encode() if isinstance(key, str) else key, partitions)


def _closed(*_: object, **__: object) -> None:
    raise RuntimeError("Producer closed")
