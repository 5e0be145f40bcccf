"""Producer: confluent-kafka's, on channels."""

import collections
import functools
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message

from sluiceway.confluent.channel_producers import Outlet, Outlets, finish_quietly
from sluiceway.confluent.config import producer_settings
from sluiceway.confluent.errors import INVALID_ARG, kafka_error, kafkas_names, refused
from sluiceway.confluent.fetcher import when_forgotten
from sluiceway.kafka.partitioner import partition_of

__all__ = ["Producer"]

OnDelivery = Callable[[KafkaError | None, Message], object]


class Producer:
    """Writes messages into channels as confluent-kafka's Producer writes into topics.

    The configuration is librdkafka's, with the gateway's address as Consumer has it. Values are
    the bytes of the messages: any in channels of the format `bytes`, in others those that begin as
    the channel's messages do. The producer is a writer of each channel it has written to, from the
    first message until it is closed: native readers that read until the writers have finished wait
    for it. A producer that is dropped without `close` is closed then, or when the process ends.

    Raises KafkaException with the codes that librdkafka has, BufferError when its queue is full,
    and RuntimeError once it is closed.
    """

    def __init__(self, config: object = None, /, **named: Any) -> None:
        self._settings = producer_settings(config, named)
        self._default: OnDelivery | None = self._settings.on_delivery
        self._outlets = Outlets(self._settings)
        self._by_name = self._outlets.by_name
        self._produce: Callable[..., None]
        self._refused: collections.deque[Callable[[], object]] = collections.deque()
        self._closed = False
        self._failure: KafkaError | None = None
        self._told_s = 0.0
        self._finish = when_forgotten(self, finish_quietly, self._outlets)

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
        """Hand a message over; `poll` and `flush` call `on_delivery(error, message)` later.

        Raises BufferError while too many wait: poll, and try again. Raises KafkaException at once
        for a channel that is not there (UNKNOWN_TOPIC_OR_PART), and _INVALID_ARG for a value that
        the channel cannot have.
        """
        told = on_delivery or callback or self._default
        try:
            outlet = self._by_name[topic]
        except KeyError:
            outlet = self._opened(topic, full=told is not None)
        if (value is None or outlet.checks) and not self._allowed(outlet, topic, value, key, told):
            return
        if key is not None and partition == -1:
            partition = _place(key, outlet.partitions)
        # The hot path: no keyword, and nothing new to be collected for a message.
        if told is not outlet.told or timestamp or headers is not None:
            self._produce_with(outlet, value, key, partition, told, timestamp, headers)
        elif told is None:
            self._produce(outlet.topic, value, key, partition)
        else:
            self._produce(outlet.topic, value, key, partition, outlet.telling)
        outlet.records += 1
        if partition >= outlet.reach:
            outlet.reach = partition + 1

    def poll(self, timeout: float = -1) -> int:
        """Call what waits to be told, for `timeout` seconds; return how many that were."""
        self._require_open()
        told = self._tell_refused()
        if self._outlets.raw is None:
            # As with Kafka's: who polls in a thread of its own is held up by it.
            self._outlets.made.wait(0 if told else None if timeout < 0 else timeout)
        if self._outlets.raw is None:
            return told
        found: int = self._outlets.raw.poll(0 if told else timeout)
        return told + found

    def flush(self, timeout: float = -1) -> int:
        """Wait until all messages are delivered, or have failed; return how many are left."""
        self._require_open()
        self._tell_refused()
        if self._outlets.raw is None:
            return 0
        left: int = self._outlets.raw.flush(timeout)
        self._outlets.tell()
        return left

    def purge(
        self,
        in_queue: bool = True,
        in_flight: bool = True,
        blocking: bool = True,
    ) -> None:
        """Give up what was not delivered; `on_delivery` hears of it as of failures."""
        self._require_open()
        if self._outlets.raw is not None:
            self._outlets.raw.purge(in_queue=in_queue, in_flight=in_flight, blocking=blocking)

    def close(self) -> bool:
        """Flush, and tell the gateway where the messages end. May be repeated.

        Messages that failed make it a writer that failed. Raises KafkaException where the gateway
        cannot be told, and does so again when it is repeated; and what a callback raised, when all
        is done.
        """
        if self._failure is not None:
            raise KafkaException(self._failure)
        if not self._end():
            return True
        self._outlets.require_here()
        try:
            self._tell_refused()
        finally:
            failure = self._outlets.finish()
        if failure is not None:
            self._failure = kafka_error(failure)
            raise KafkaException(self._failure)
        return True

    def __len__(self) -> int:
        """How many messages and reports are on their way."""
        waiting = 0 if self._outlets.raw is None else len(self._outlets.raw)
        return waiting + len(self._refused)

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
        """Close; after an exception flush, and tell the gateway that the producer failed."""
        if error is not None and self._end():
            self._outlets.require_here()
            self._outlets.finish(error)
            return
        self.close()

    def _end(self) -> bool:
        """Take no message any more; False if that was so before."""
        with self._outlets.turn:
            if self._closed:
                return False
            self._closed = True
            # Once another function is here, no thread hands a message over: between looking this
            # up and calling it, a thread runs nothing that lets others run.
            self._produce = _closed
        self._finish.detach()
        return True

    def _opened(self, topic: str, *, full: bool) -> Outlet:
        self._require_open()
        if not isinstance(topic, str):
            raise TypeError(f"topic is to be str, not {type(topic).__name__}")
        with self._outlets.turn:
            outlet = self._by_name.get(topic)
            if outlet is None:
                outlet = self._outlets.open(topic, full=full and not self._settings.only_errors)
                self._require_open()
                self._produce = self._outlets.raw.produce
                # At last, as other threads look there.
                self._by_name[topic] = outlet
        return outlet

    def _produce_with(
        self,
        outlet: Outlet,
        value: Any,
        key: Any,
        partition: int,
        told: OnDelivery | None,
        timestamp: int,
        headers: Any,
    ) -> None:
        named: dict[str, Any] = {}
        if told is not None:
            if not self._outlets.full and not self._settings.only_errors:
                with self._outlets.turn:
                    self._require_open()
                    self._outlets.widen()
                    self._produce = self._outlets.raw.produce
            if not callable(told):
                raise TypeError("on_delivery is to be callable")
            named["on_delivery"] = self._telling(outlet, told)
        if timestamp:
            named["timestamp"] = timestamp
        if headers is not None:
            named["headers"] = headers
        self._produce(outlet.topic, value, key, partition, **named)

    def _telling(self, outlet: Outlet, told: OnDelivery) -> OnDelivery:
        """Return what calls `told`; the same for one who was the latest before, as for methods."""
        latest, telling = outlet.latest
        if telling is None or latest != told:
            telling = self._outlets.telling(outlet, told)
            outlet.latest = (told, telling)
            if outlet.told is None:
                # In this order: who sees the one has the other.
                outlet.telling = telling
                outlet.told = told
        return telling

    def _allowed(
        self, outlet: Outlet, topic: str, value: Any, key: Any, told: OnDelivery | None
    ) -> bool:
        """Whether to go on with a value. Raises KafkaException _INVALID_ARG."""
        if value is None and self._settings.hpe:
            reason = "a message without a value is none for HPE's client"
            error = KafkaError(INVALID_ARG, reason)
            if told is not None:
                message = Message(topic=topic, key=key, error=error)
                self._refused.append(partial(told, error, message))
            return False
        if outlet.checks:
            with kafkas_names():
                given = value.encode() if isinstance(value, str) else value
                if given is not None and not isinstance(given, bytes):
                    raise TypeError(f"a value is str or bytes, not {type(value).__name__}")
                reason_ = outlet.wire.error(given)
            if reason_ is not None:
                raise refused(INVALID_ARG, reason_)
        return True

    def _tell_refused(self) -> int:
        now_s = time.monotonic()
        if now_s >= self._told_s + 1:
            self._told_s = now_s
            self._outlets.tell()
        told = 0
        while True:
            try:
                tell = self._refused.popleft()
            except IndexError:
                return told
            tell()
            told += 1

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("Producer closed")
        self._outlets.require_here()


@functools.lru_cache(maxsize=4096)
def _place(key: str | bytes, partitions: int) -> int:
    """Return the partition of a key; hashing one takes longer than handing its message over."""
    return partition_of(key.encode() if isinstance(key, str) else key, partitions)


def _closed(*_: object, **__: object) -> None:
    raise RuntimeError("Producer closed")
