"""The stream of one reader over a shared consumer."""

import threading
import weakref
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import Message

from sluiceway.errors import EndpointClosed, OptionError
from sluiceway.fork_guard import ForkGuard
from sluiceway.kafka.config import MaskedProperties, consumer_config
from sluiceway.kafka.consumer import MessageStream, OwnStream
from sluiceway.kafka.shared_consumer import SharedConsumer, SharedPartitionBuffer
from sluiceway.rest.models import Connection

# How long a broker waits for messages. It answers one request after the other, and a partition
# that is new is in the next one: so long the first message of a reader may have to wait.
_TUNING = MaskedProperties({"fetch.wait.max.ms": 20})


class _Carriers:
    """The carriers of one process and one configuration: usually one.

    There is another where two readers read the same partition, as a consumer has it once. A
    carrier is closed with its last seat.
    """

    def __init__(self, properties: MaskedProperties) -> None:
        self._properties = properties
        self._lock = threading.Lock()
        self._carriers: list[SharedConsumer] = []
        self._by_seat: dict[SharedPartitionBuffer, SharedConsumer] = {}
        # Seats of streams that were let go of without a word; whoever comes next clears up.
        self.gone: deque[SharedPartitionBuffer] = deque()

    def of(self, seat: SharedPartitionBuffer) -> SharedConsumer | None:
        """Return the carrier that a seat is at, if it is at one."""
        return self._by_seat.get(seat)

    def assign(
        self, seat: SharedPartitionBuffer, offsets: Mapping[int, int], *, timeout_s: float
    ) -> None:
        """Have a carrier read these partitions for a seat, in the place of those before."""
        with self._lock:
            present = self._by_seat.get(seat)
            if present is not None:
                if present.assign(seat, offsets, timeout_s=timeout_s):
                    return
                self._leave(seat)
            for carrier in [*self._carriers, None]:
                if carrier is None:
                    carrier = SharedConsumer(self._properties)
                    self._carriers.append(carrier)
                self._by_seat[seat] = carrier
                if carrier.assign(seat, offsets, timeout_s=timeout_s):
                    return

    def leave(self, seat: SharedPartitionBuffer) -> None:
        """Give up a seat. May be repeated."""
        with self._lock:
            self._leave(seat)

    def clear_up(self) -> None:
        """Give up the seats that nobody has any more."""
        while self.gone:
            self.leave(self.gone.popleft())

    def _leave(self, seat: SharedPartitionBuffer) -> None:
        carrier = self._by_seat.pop(seat, None)
        if carrier is None:
            return
        carrier.leave(seat)
        if carrier.empty:
            self._carriers.remove(carrier)
            carrier.close()


_CARRIERS: "weakref.WeakValueDictionary[tuple[ForkGuard, MaskedProperties], _Carriers]" = (
    weakref.WeakValueDictionary()
)
"""By process, as librdkafka's threads are not there in one that was forked, and configuration."""


class SharedStream(MessageStream):
    """Fetches by a consumer that other streams of this process fetch by.

    Offsets are asked for by the client that looks at topics, which is one in the process, too:
    the consumer's own connections are busy with waiting for messages.
    """

    def __init__(
        self,
        connection: Connection,
        config: Mapping[str, object] | None = None,
        *,
        timeout_s: float,
    ) -> None:
        super().__init__(connection, config, timeout_s=timeout_s)
        self._fork_guard = ForkGuard()
        properties = consumer_config(connection.kafka, _TUNING.over(config or {}))
        self._committed = properties.get("isolation.level") != "read_uncommitted"
        key = (self._fork_guard, properties)
        self._carriers = _CARRIERS.get(key) or _CARRIERS.setdefault(key, _Carriers(properties))
        self._seat = SharedPartitionBuffer(
            connection.topic_name, connection.topic_id, connection.partitions
        )
        weakref.finalize(self, self._carriers.gone.append, self._seat).atexit = False

    def meet_new_partitions(self) -> int:
        """Learn of partitions that the topic has grown by, and return how many it has."""
        if self._carriers.of(self._seat) is None:
            self.assign({})
        carrier = self._carrier()
        return int(self._call(carrier.meet, self._seat, timeout_s=self._timeout_s))

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets."""
        self._here()
        self._late = None
        self._call(self._carriers.assign, self._seat, offsets, timeout_s=self._timeout_s)

    def drop(self, partitions: Collection[int]) -> None:
        """Read no more of these partitions."""
        self._call(self._carrier().drop, self._seat, partitions)

    def close(self) -> None:
        """Leave the consumer to the others. May be repeated."""
        if not self._fork_guard.forked:
            self._carriers.leave(self._seat)

    def ends_at_once(self, partitions: Collection[int]) -> dict[int, int]:
        """Return what `ends` does, which waits for no fetch here."""
        return self.ends(partitions)

    def _got(self, limit: int, wait_s: float) -> Sequence[Message]:
        carrier = self._carrier()
        got: list[Message] = self._call(carrier.take, self._seat, limit, wait_s)
        if not got and self._seat.failures:
            raise self._failure(self._seat.failures.popleft())
        return got

    def _offsets_now(self, times: Mapping[int, int]) -> dict[int, int]:
        self._here()
        return self._identity.offsets(times, timeout_s=self._timeout_s, committed=self._committed)

    def _carrier(self) -> SharedConsumer:
        self._here()
        carrier = self._carriers.of(self._seat)
        if carrier is None:
            raise EndpointClosed("this reader is closed; open a new one with channel.reader()")
        return carrier

    def _here(self) -> None:
        self._fork_guard.check("this reader with share_connection")
        self._carriers.clear_up()


def opened(
    connection: Connection,
    config: Mapping[str, object] | None,
    *,
    timeout_s: float,
    grouped: bool,
    shared: bool,
) -> MessageStream:
    """Return a stream for a reader; `shared`: by a consumer of several. Raises OptionError."""
    if not isinstance(timeout_s, int | float) or not 1 <= timeout_s <= 86_400:
        raise OptionError(f"timeout_s is {timeout_s!r}; it takes seconds from 1 to 86400")
    if shared:
        return SharedStream(connection, config, timeout_s=timeout_s)
    # A thousand members that wait ask their broker twice a second, and not ten times.
    patience = MaskedProperties({"fetch.wait.max.ms": 500} if grouped else {})
    return OwnStream(connection, patience.over(config or {}), timeout_s=timeout_s)


__all__ = ["SharedStream", "opened"]
