"""Local queue of a Producer: messages of channels that are not attached yet, and callbacks."""

import collections
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, Message

from sluiceway.confluent.errors import MSG_TIMED_OUT, PURGE_QUEUE, TIMED_OUT
from sluiceway.spi import run_callbacks

__all__ = [
    "SHORT_WAIT_S",
    "Deliveries",
    "LocalQueue",
    "OnDelivery",
    "PendingMessage",
    "checked_headers",
    "encoded",
]

OnDelivery = Callable[[KafkaError | None, Message], object]

# librdkafka's own overhead of a message.
_OVERHEAD_BYTES: Final = 96


_CONTENT: Final = (str, bytes, type(None))


class PendingMessage(NamedTuple):
    """A message that waits for its channel until `due_s` (monotonic)."""

    topic: str
    value: str | bytes | None
    key: str | bytes | None
    partition: int
    on_delivery: OnDelivery | None
    timestamp: int
    headers: list[tuple[str, bytes | None]] | None
    due_s: float

    def check(self) -> None:
        """Raise TypeError, as confluent-kafka does, for a wrong argument."""
        if not isinstance(self.topic, str):
            raise TypeError(f"topic must be str, not {type(self.topic).__name__}")
        for name, content in (("value", self.value), ("key", self.key)):
            if not isinstance(content, _CONTENT):
                raise TypeError(f"{name} must be str or bytes, not {type(content).__name__}")
        for name, number in (("partition", self.partition), ("timestamp", self.timestamp)):
            if not isinstance(number, int):
                raise TypeError(f"{name} must be int, not {type(number).__name__}")
        if self.on_delivery is not None and not callable(self.on_delivery):
            raise TypeError("on_delivery must be callable")

    @property
    def size_bytes(self) -> int:
        """Its size in the queue."""
        return len(self.value or b"") + len(self.key or b"") + _OVERHEAD_BYTES

    def report(self, error: KafkaError) -> None:
        """Call its delivery callback."""
        if self.on_delivery is None:
            return
        message = Message(
            topic=self.topic,
            value=encoded(self.value),
            key=encoded(self.key),
            headers=self.headers,
            partition=self.partition,
            error=error,
        )
        self.on_delivery(error, message)


class LocalQueue:
    """Messages in order, by channel; the limits include librdkafka's queue.

    Not thread-safe: callers hold the lock of `MessageSender`; only `calls` may be read and
    emptied by any thread. A failed message becomes a call, which counts until it is made.
    """

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._bytes = 0
        self._by_channel: dict[str, collections.deque[PendingMessage]] = {}
        self._causes: dict[str, str] = {}
        self.calls: collections.deque[Callable[[], object]] = collections.deque()
        self.lost = 0
        """The number of failed messages without a delivery callback."""
        self.lost_error: KafkaError | None = None
        self.failures: dict[str, KafkaError] = {}
        """By channel, the reason why a message never reached Kafka."""

    def __len__(self) -> int:
        return self.waiting + len(self.calls)

    @property
    def waiting(self) -> int:
        """The number of messages. Not a counter, which an interrupt could leave wrong."""
        return sum(map(len, list(self._by_channel.values())))

    def add(self, message: PendingMessage, *, others: int) -> None:
        """Add a message; `others` are in librdkafka's queue. Raises BufferError if it is full."""
        size = self._bytes + message.size_bytes
        if (self._max_messages and len(self) + others >= self._max_messages) or (
            self.waiting and size > self._max_bytes
        ):
            raise BufferError("Local: Queue full")
        self._bytes = size
        self._by_channel.setdefault(message.topic, collections.deque()).append(message)

    def first(self, channel: str) -> PendingMessage | None:
        """Return the oldest message of a channel that has not timed out."""
        self._expire(channel, time.monotonic())
        messages = self._by_channel.get(channel)
        return messages[0] if messages else None

    def has_callback(self, channel: str) -> bool:
        """Whether the oldest message of a channel has a delivery callback."""
        messages = self._by_channel.get(channel)
        return messages is not None and messages[0].on_delivery is not None

    def remove(self, message: PendingMessage, error: KafkaError | None = None) -> bool:
        """Remove a message that was the oldest of its channel; False if it is gone.

        With an `error`, it has failed.
        """
        messages = self._by_channel.get(message.topic)
        if not messages or messages[0] is not message:
            return False
        if error is not None:
            # First: `flush` looks without the lock, and must find the message or its failure.
            self.report(message, error)
        self._pop(message.topic, messages)
        return True

    def explain(self, channel: str, cause: str) -> None:
        """Record the reason why the messages of a channel wait."""
        self._causes[channel] = cause

    def expire(self) -> None:
        """Fail the messages that have timed out."""
        now_s = time.monotonic()
        for channel in list(self._by_channel):
            self._expire(channel, now_s)

    def fail(self, channel: str, error: KafkaError) -> int:
        """Fail the messages of a channel, and return their number."""
        count = 0
        messages = self._by_channel.get(channel)
        while messages:
            # Reported first: an interrupt may report a message twice, but never loses one.
            self.report(messages[0], error)
            self._pop(channel, messages)
            count += 1
        return count

    def purge(self, error: KafkaError | None = None) -> None:
        """Fail all messages; without an `error`, as purged by the user."""
        purged = error or KafkaError(PURGE_QUEUE)
        lost, lost_error = self.lost, self.lost_error
        for channel in list(self._by_channel):
            self.fail(channel, purged)
        if error is None:
            self.lost, self.lost_error = lost, lost_error

    def report(self, message: PendingMessage, error: KafkaError) -> None:
        """Queue the delivery callback of a failed message for `poll`."""
        self.failures.setdefault(message.topic, error)
        if message.on_delivery is None:
            self.lost += 1
            self.lost_error = self.lost_error or error
        else:
            self.calls.append(partial(message.report, error))

    def _expire(self, channel: str, now_s: float) -> None:
        messages = self._by_channel.get(channel)
        while messages and messages[0].due_s <= now_s:
            cause = self._causes.get(channel, "the gateway has not answered yet")
            error = KafkaError(
                MSG_TIMED_OUT,
                f"Local: Message timed out: the channel {channel!r} is not attached: {cause}",
            )
            self.report(messages[0], error)
            self._pop(channel, messages)

    def _pop(self, channel: str, messages: collections.deque[PendingMessage]) -> None:
        self._bytes -= messages.popleft().size_bytes
        if not messages:
            del self._by_channel[channel]
            self._causes.pop(channel, None)
        if not self._by_channel:
            self._bytes = 0


def checked_headers(headers: Any) -> list[tuple[str, bytes | None]]:
    """Return headers, a dict or a list of tuples, as a list. Raises TypeError."""
    if not isinstance(headers, list | Mapping):
        raise TypeError(f"expected headers to be a dict or list, not {type(headers).__name__}")
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError("headers are expected to be a list of (name, value) tuples")
        if not isinstance(pair[1], str | bytes | None):
            raise TypeError(
                f"the header {pair[0]!r} is {type(pair[1]).__name__}; it takes bytes, str or None"
            )
    return [(name, encoded(value)) for name, value in pairs]


def encoded(value: Any) -> bytes | None:
    """Return a value as bytes. Raises TypeError."""
    content = value.encode() if isinstance(value, str) else value
    if content is not None and not isinstance(content, bytes):
        raise TypeError(f"a value is str or bytes, not {type(value).__name__}")
    return content


SHORT_WAIT_S: Final = 0.02
_SLICE_S: Final = 0.1


class Deliveries:
    """The local queue and librdkafka's producers, with waits for both.

    `lock` guards the queue, `changed` signals its changes. `report` updates the counts for
    heartbeats.
    """

    def __init__(self, queue: LocalQueue, report: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.queue = queue
        # The last one is current; another thread may still be in a call of a replaced one.
        self.producers: tuple[Any, ...] = ()
        self.abandoned = False
        self._report = report
        self._report_due_s = 0.0
        # Threads within a call of librdkafka's that runs callbacks: a nested one ends the process.
        self._serving: set[int] = set()

    def unless_abandoned(self, callbacks: Mapping[str, Any]) -> dict[str, Any]:
        """Return callbacks that do nothing once the producer is abandoned; loggers unchanged.

        They belong to a program that may have ended, as AIOProducer's to its closed event loop.
        """

        def guarded(callback: Callable[..., object]) -> Callable[..., object]:
            return lambda *args: None if self.abandoned else callback(*args)

        return {
            name: guarded(callback) if callable(callback) else callback
            for name, callback in callbacks.items()
        }

    def __len__(self) -> int:
        return len(self.queue) + self.in_librdkafka

    @property
    def in_librdkafka(self) -> int:
        """Number of messages and reports in librdkafka's queues."""
        return sum(map(len, self.producers))

    def poll(self, timeout_s: float) -> int:
        """Call callbacks for up to `timeout_s`, and return their number.

        Within a callback of librdkafka's, its other callbacks are left to the outer call.
        """
        if threading.get_ident() in self._serving:
            return self._call()
        deadline_s = time.monotonic() + timeout_s
        while True:
            called = self._call()
            left_s = deadline_s - time.monotonic()
            wait_s = 0.0 if called else max(0.0, min(_SLICE_S, left_s))
            producers = self.producers
            for producer in producers[:-1]:
                called += self._serve(producer.poll, 0) if len(producer) else 0
            if producers:
                called += self._serve(producers[-1].poll, wait_s)
            else:
                # As in confluent-kafka, a poll without messages waits.
                self._wait(wait_s)
            called += self._call() if self.queue.calls else 0
            if called or left_s <= 0:
                return called

    def flush(self, timeout_s: float) -> int:
        """Wait until all messages are delivered, and call callbacks; return the number left.

        Within a callback of librdkafka's it does not wait, and the callback's message is left.
        """
        if threading.get_ident() in self._serving:
            return max(1, len(self))
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._call()
            left_s = max(0.0, deadline_s - time.monotonic())
            for producer in self.producers:
                self._serve(producer.flush, min(_SLICE_S, left_s))
                left_s = max(0.0, deadline_s - time.monotonic())
            if not len(self) or not left_s:
                self._report()
                return len(self)
            if self.queue.waiting and not self.queue.calls:
                self._wait(min(SHORT_WAIT_S, left_s))

    def purge(self, *, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        """Drop messages; their callbacks are called by the next `poll` or `flush`."""
        if in_queue:
            with self.lock:
                self.queue.purge()
        for producer in self.producers:
            producer.purge(in_queue=in_queue, in_flight=in_flight, blocking=blocking)

    def flush_or_fail(self, timeout_s: float) -> tuple[KafkaError | None, Exception | None, float]:
        """Flush; after `timeout_s` without a delivery, fail the remaining messages.

        Returns the error, the exception of a callback, and the seconds without a delivery.
        """
        raised: Exception | None = None
        failure: KafkaError | None = None

        def flushed(wait_s: float) -> int:
            nonlocal raised
            while True:
                try:
                    return self.flush(wait_s)
                except Exception as error:
                    # The other callbacks run as well, and the ends are reported.
                    raised = raised or error

        moved_s = time.monotonic()
        least = left = len(self)
        while left and (idle_s := time.monotonic() - moved_s) < timeout_s:
            left = flushed(min(_SLICE_S, timeout_s - idle_s))
            if left < least:
                least, moved_s = left, time.monotonic()
        if left:
            failure = KafkaError(
                TIMED_OUT,
                f"{left} messages failed: close() stopped after {timeout_s:g} s without a "
                "delivery. Their delivery callbacks were called",
            )
            with self.lock:
                self.queue.purge(
                    KafkaError(PURGE_QUEUE, f"Local: Purged in queue: {failure.str()}")
                )
            for producer in self.producers:
                producer.purge()
            flushed(1.0)
        elif self.queue.lost_error is not None:
            failure = KafkaError(
                self.queue.lost_error.code(),
                f"{self.queue.lost} messages without a delivery callback were not delivered; the "
                f"first: {self.queue.lost_error.str()}",
            )
        return failure, raised, time.monotonic() - moved_s if left else 0.0

    def _call(self) -> int:
        """Call the callbacks of failed messages, return their number, and report counts."""
        now_s = time.monotonic()
        if now_s >= self._report_due_s:
            self._report_due_s = now_s + 1
            self._report()
        if self.queue.waiting:
            with self.lock:
                self.queue.expire()
        called = 0
        while True:
            try:
                call = self.queue.calls.popleft()
            except IndexError:
                return called
            call()
            called += 1

    def _serve(self, call: Callable[[float], int], wait_s: float) -> int:
        """Make a call of librdkafka's that runs callbacks in this thread."""
        thread = threading.get_ident()
        try:
            # In the block, because an interrupt right after it must not leave the thread marked.
            self._serving.add(thread)
            return run_callbacks(call, wait_s)
        finally:
            self._serving.discard(thread)

    def _wait(self, wait_s: float) -> None:
        with self.lock:
            if not self.queue.calls and wait_s > 0:
                self.changed.wait(wait_s)
