"""Shared stream: one reader's messages from a shared consumer."""

import threading
import weakref
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import Message

from sluiceway.concurrency import ForkGuard
from sluiceway.errors import EndpointClosed, OptionError
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.consumer import MessageStream, OwnStream
from sluiceway.kafka.shared_consumer import SharedConsumer, SharedPartitionBuffer
from sluiceway.rest.models import Connection

__all__ = ["SharedStream", "open_stream"]

# A broker answers one fetch after the other, and a new partition is part of the next one, so this
# delays the first message of a reader.
_TUNING = MaskedProperties({"fetch.wait.max.ms": 20})


class _ConsumerPool:
    """The shared consumers of one configuration, usually one.

    Another one is needed when two readers read the same partition, because a consumer reads a
    partition once. A consumer is closed with its last buffer.
    """

    def __init__(self, properties: MaskedProperties) -> None:
        self._properties = properties
        self._lock = threading.RLock()
        self._consumers: list[SharedConsumer] = []
        self._by_buffer: dict[SharedPartitionBuffer, SharedConsumer] = {}
        # Buffers of garbage-collected streams; the next call removes them.
        self.abandoned: deque[SharedPartitionBuffer] = deque()

    def consumer(self, buffer: SharedPartitionBuffer) -> SharedConsumer | None:
        """Return the consumer that has a buffer."""
        return self._by_buffer.get(buffer)

    def assign(
        self, buffer: SharedPartitionBuffer, offsets: Mapping[int, int], *, timeout_s: float
    ) -> None:
        """Read these partitions for a buffer instead of its earlier ones."""
        with self._lock:
            current = self._by_buffer.get(buffer)
            if current is not None:
                if current.assign(buffer, offsets, timeout_s=timeout_s):
                    return
                self.remove(buffer)
            for consumer in [*self._consumers, None]:
                if consumer is None:
                    consumer = SharedConsumer(self._properties)
                    self._consumers.append(consumer)
                self._by_buffer[buffer] = consumer
                if consumer.assign(buffer, offsets, timeout_s=timeout_s):
                    return

    def remove(self, buffer: SharedPartitionBuffer, *, silent: bool = False) -> None:
        """Remove a buffer. May be repeated. A `silent` consumer gets no other buffers."""
        with self._lock:
            consumer = self._by_buffer.pop(buffer, None)
            if consumer is None:
                return
            consumer.remove(buffer)
            if (consumer.unused or silent) and consumer in self._consumers:
                self._consumers.remove(consumer)
            if consumer.unused:
                consumer.close()

    def remove_abandoned(self) -> None:
        """Remove the buffers of abandoned streams."""
        while self.abandoned:
            self.remove(self.abandoned.popleft())


_POOLS: "weakref.WeakValueDictionary[tuple[ForkGuard, MaskedProperties], _ConsumerPool]" = (
    weakref.WeakValueDictionary()
)


class SharedStream(MessageStream):
    """A stream that shares its consumer with others of this process."""

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, object] | None = None,
        *,
        timeout_s: float,
    ) -> None:
        super().__init__(connection, _TUNING.over(config or {}), timeout_s=timeout_s)
        key = (self._fork_guard, self._properties)
        self._pool = _POOLS.get(key) or _POOLS.setdefault(key, _ConsumerPool(self._properties))
        self._buffer = SharedPartitionBuffer(
            connection.topic_name, connection.topic_id, connection.partitions
        )
        abandon = self._fork_guard.finalize(self, self._pool.abandoned.append, self._buffer)
        abandon.atexit = False

    def discover_partitions(self) -> int:
        """Refresh the topic's metadata and return the number of its partitions."""
        if self._pool.consumer(self._buffer) is None:
            self.assign({})
        refresh = self._consumer().discover_partitions
        return int(self._call(refresh, self._buffer, timeout_s=self._timeout_s))

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets."""
        self._check()
        self._pending_failure = None
        self._call(self._pool.assign, self._buffer, offsets, timeout_s=self._timeout_s)

    def add(self, offsets: Mapping[int, int]) -> bool:
        """Read these partitions as well; False if another stream has one of them."""
        return bool(self._call(self._consumer().add, self._buffer, offsets))

    def drop(self, partitions: Collection[int]) -> None:
        """Stop reading partitions."""
        self._call(self._consumer().drop, self._buffer, partitions)

    def close(self) -> None:
        """Remove this stream from its consumer. May be repeated."""
        if not self._fork_guard.forked:
            self._pool.remove(self._buffer)

    def _refresh_metadata(self, timeout_s: float) -> object:
        return self._consumer().discover_partitions(self._buffer, timeout_s=timeout_s)

    def _replace_client(self) -> None:
        self._pool.remove(self._buffer, silent=True)

    def _poll(self, limit: int, wait_s: float) -> Sequence[Message]:
        consumer = self._consumer()
        polled: list[Message] = self._call(consumer.poll, self._buffer, limit, wait_s)
        if not polled and self._buffer.failures:
            raise self._failure(self._buffer.failures.popleft())
        return polled

    def _consumer(self) -> SharedConsumer:
        self._check()
        consumer = self._pool.consumer(self._buffer)
        if consumer is None:
            raise EndpointClosed("this reader is closed; open a new one with channel.reader()")
        return consumer

    def _check(self) -> None:
        self._fork_guard.check("this reader with share_connection")
        self._pool.remove_abandoned()


def open_stream(
    connection: Connection,
    config: Mapping[str, object] | None,
    *,
    timeout_s: float,
    grouped: bool,
    shared: bool,
) -> MessageStream:
    """Open a reader's stream; `shared`: with a shared consumer. Raises OptionError.

    For an exactly-once channel, the stream includes uncommitted messages.
    """
    if not isinstance(timeout_s, int | float) or not 1 <= timeout_s <= 86_400:
        raise OptionError(f"timeout_s is {timeout_s!r}; it takes seconds from 1 to 86400")
    if connection.delivery == "exactly_once":
        # With read_committed, a foreign Kafka transaction would hold back committed records.
        # Partitions are fetched only up to known commits, so short waits cost nothing.
        fixed = {"isolation.level": "read_uncommitted", **_TUNING}
        config = MaskedProperties(config or {}).over(fixed)
    if shared:
        return SharedStream(connection, config, timeout_s=timeout_s)
    # A thousand waiting members send two requests a second each instead of ten.
    tuning = MaskedProperties({"fetch.wait.max.ms": 500} if grouped else {})
    return OwnStream(connection, tuning.over(config or {}), timeout_s=timeout_s)
