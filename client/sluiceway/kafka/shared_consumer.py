"""A consumer shared by many readers of one process."""

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import groupby

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from sluiceway.garbage import nothing_to_collect
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.consumer import GATHER_S
from sluiceway.kafka.errors import is_gone, is_unavailable, made

_MESSAGE_BYTES = 300
"""What a message takes in Python beside its value."""


@dataclass
class _Run:
    """Messages and events of one partition, in their order, and how many bytes they take."""

    partition: int
    items: list[Message]
    size: int


class SharedPartitionBuffer:
    """A reader's place at a carrier, which guards it; not for use by several threads at once.

    `next` has the partitions that are read, each with the offset after what came of it last.
    `size` is how many bytes wait to be taken. `held`: more came than was taken, so nothing is
    fetched for it now.
    """

    def __init__(self, topic: str, topic_id: str | None, partitions: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions
        self.next: dict[int, int] = {}
        self.size = 0
        self.held = False
        self.failures: deque[KafkaError] = deque(maxlen=1)
        self._runs: deque[_Run] = deque()

    @property
    def waits(self) -> bool:
        """Whether there is nothing to take."""
        return not self._runs and not self.failures

    def put(self, partition: int, items: list[Message]) -> None:
        """Add what came of a partition."""
        run = _Run(partition=partition, items=items, size=_size(items))
        self._runs.append(run)
        self.next[partition] = max(self.next[partition], _after(items))
        self.size += run.size

    def pop(self, limit: int) -> list[Message]:
        """Take up to `limit` messages and events, in their order."""
        popped: list[Message] = []
        while self._runs and len(popped) < limit:
            run, left = self._runs[0], limit - len(popped)
            if len(run.items) <= left:
                self._runs.popleft()
                self.size -= run.size
                popped += run.items
            else:
                piece, run.items = run.items[:left], run.items[left:]
                size = _size(piece)
                run.size -= size
                self.size -= size
                popped += piece
        return popped

    def keep(self, wanted: Collection[int]) -> None:
        """Throw away what came of other partitions."""
        self._runs = deque(run for run in self._runs if run.partition in wanted)
        self.size = sum(run.size for run in self._runs)

    def catch_up(self) -> None:
        """Make `next` and `size` right by what is here, wherever `put` was interrupted."""
        self.keep(self.next)
        for run in self._runs:
            self.next[run.partition] = max(self.next[run.partition], _after(run.items))


def _size(items: list[Message]) -> int:
    return sum(map(len, items)) + _MESSAGE_BYTES * len(items)


def _after(items: list[Message]) -> int:
    """Return the offset after these; 0 if none of them tells."""
    for item in reversed(items):
        error = item.error()
        if error is None:
            return int(item.offset() or 0) + 1
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return int(item.offset() or 0)
    return 0


_ROUND = 1024
"""So many messages are consumed at once at least, as most may be for others."""
_SEAT_BYTES = 1024 * 1024
_ALL_BYTES = 64 * 1024 * 1024
_OF_A_PARTITION = frozenset(
    {KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET}  # noqa: SLF001
)


class SharedConsumer:
    """A consumer, and the seats of those that it fetches for.

    It has no thread: of those who wait for messages one consumes for all, hands out what came,
    and leaves that to another when it has what it waited for. Who does not take what comes is
    held: its partitions are given up, and assigned again from where they stood once it has taken
    it. That begins when 64 MB wait for all together, with those for whom 1 MB waits.

    The lock guards everything but the wait for a message. What came of a partition that was given
    up during that wait may be from before: it is dropped, and the partition begins again.
    """

    def __init__(self, properties: MaskedProperties) -> None:
        self._consumer = made(Consumer, properties)
        self._lock = threading.Lock()
        self._seats: dict[SharedPartitionBuffer, None] = {}
        self._routes: dict[tuple[str, int], SharedPartitionBuffer] = {}
        # The id of each topic, and how many partitions of it the consumer knows.
        self._topics: dict[str, tuple[str | None, int]] = {}
        self._waiting: dict[SharedPartitionBuffer, threading.Condition] = {}
        self._consuming = False
        # Whether something may be consumed and not handed out: an interrupt came in between.
        self._owing = False
        # Partitions that were given up since somebody waits for a message.
        self._left: set[tuple[str, int]] = set()

    @property
    def empty(self) -> bool:
        """Whether nobody has a seat here."""
        return not self._seats

    def assign(
        self, seat: SharedPartitionBuffer, offsets: Mapping[int, int], *, timeout_s: float
    ) -> bool:
        """Read these partitions for a seat, and no others; what came before is dropped.

        False, and nothing is changed, if one of them is read for another seat already.
        """
        with self._lock:
            if any(self._routes.get((seat.topic, p), seat) is not seat for p in offsets):
                return False
            topic_id, known = self._topics.get(seat.topic, (seat.topic_id, seat.partitions))
            if topic_id != seat.topic_id:
                # The topic was made anew, and this consumer may still know the old one.
                return False
            self._seats[seat] = None
            self._give_up(seat)
            if known < seat.partitions:
                known = self._count(seat.topic, timeout_s)
            self._topics[seat.topic] = (topic_id, known)
            self._assign(seat, offsets)
            seat.next.update(offsets)
            self._routes.update(((seat.topic, p), seat) for p in offsets)
            return True

    def drop(self, seat: SharedPartitionBuffer, partitions: Collection[int]) -> None:
        """Read no more of these partitions, and throw away what came of them."""
        with self._lock:
            self._drop(seat, partitions)

    def leave(self, seat: SharedPartitionBuffer) -> None:
        """Read nothing for this seat any more."""
        with self._lock:
            self._give_up(seat)
            self._seats.pop(seat, None)

    def meet(self, seat: SharedPartitionBuffer, *, timeout_s: float) -> int:
        """Learn how many partitions the topic of this seat has by now."""
        with self._lock:
            seat.partitions = self._count(seat.topic, timeout_s)
            self._topics[seat.topic] = (seat.topic_id, seat.partitions)
            return seat.partitions

    def take(self, seat: SharedPartitionBuffer, limit: int, wait_s: float) -> list[Message]:
        """Return up to `limit` messages and events for a seat, as soon as there are some."""
        deadline_s = time.monotonic() + wait_s
        with self._lock:
            try:
                while seat.waits:
                    left_s = max(0.0, deadline_s - time.monotonic())
                    if not self._consuming:
                        self._consume(max(limit, _ROUND), left_s)
                    elif left_s:
                        self._wait(seat, left_s)
                    if not left_s:
                        break
                taken = seat.pop(limit)
                if seat.held and seat.size <= _SEAT_BYTES // 2:
                    self._assign(seat, seat.next)
                    seat.held = False
                return taken
            finally:
                if not self._consuming and self._waiting:
                    next(iter(self._waiting.values())).notify()

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()

    def _wait(self, seat: SharedPartitionBuffer, timeout_s: float) -> None:
        self._waiting[seat] = condition = threading.Condition(self._lock)
        try:
            condition.wait(timeout_s)
        finally:
            del self._waiting[seat]

    def _consume(self, limit: int, wait_s: float) -> None:
        """Wait for a message for anyone, and hand out all that is there then."""
        if self._owing:
            self._begin_again()
        self._left.clear()
        self._consuming = self._owing = True
        try:
            self._lock.release()
            got = self._consumer.consume(1, wait_s)
        finally:
            self._lock.acquire()
            self._consuming = False
        if got:
            self._hand_out(self._sure(got))
            with nothing_to_collect():
                # Nothing is given up meanwhile, and librdkafka drops what is from before.
                self._hand_out(self._consumer.consume(limit, GATHER_S))
        self._owing = False

    def _sure(self, got: list[Message]) -> list[Message]:
        place = (got[0].topic(), got[0].partition())
        if place not in self._left:
            return got
        seat = self._routes.get(place)
        if seat is not None and not seat.held:
            self._fetch_again(seat, {place[1]: seat.next[place[1]]})
        return []

    def _hand_out(self, got: list[Message]) -> None:
        """Put messages and events, in their order, to the seats that they are for."""
        first = 0
        places = zip(map(Message.topic, got), map(Message.partition, got), strict=True)
        for place, same in groupby(places):
            end = first + len(list(same))
            items, first = got[first:end], end
            seat = self._routes.get(place)
            if seat is None:
                self._tell_all(place[0], items)
                continue
            seat.put(place[1], items)
            self._wake(seat)
            if seat.size > _SEAT_BYTES and not seat.held:
                self._bound(seat)

    def _bound(self, seat: SharedPartitionBuffer) -> None:
        if sum(each.size for each in self._seats) > _ALL_BYTES:
            self._unassign(seat, seat.next)
            seat.held = True

    def _tell_all(self, topic: str | None, events: list[Message]) -> None:
        """Tell of what concerns no partition that is read here, but a topic or the brokers."""
        for event in events:
            error = event.error()
            if error is None or error.code() in _OF_A_PARTITION:
                # Of a partition that was just given up.
                continue
            if is_unavailable(error) or is_gone(error):
                continue
            for seat in self._seats:
                if not topic or topic == seat.topic:
                    seat.failures.append(error)
                    self._wake(seat)

    def _wake(self, seat: SharedPartitionBuffer) -> None:
        if seat in self._waiting:
            self._waiting[seat].notify()

    def _begin_again(self) -> None:
        """Fetch for all from where they stand, as what was consumed last is lost."""
        for seat in self._seats:
            seat.catch_up()
            if not seat.held:
                self._fetch_again(seat, seat.next)
        self._owing = False

    def _fetch_again(self, seat: SharedPartitionBuffer, offsets: Mapping[int, int]) -> None:
        self._unassign(seat, offsets)
        self._assign(seat, offsets)

    def _give_up(self, seat: SharedPartitionBuffer) -> None:
        self._drop(seat, [*seat.next])
        seat.failures.clear()
        seat.held = False

    def _drop(self, seat: SharedPartitionBuffer, partitions: Collection[int]) -> None:
        places = {p: seat.next.pop(p) for p in partitions if p in seat.next}
        for partition in places:
            self._routes.pop((seat.topic, partition), None)
        seat.keep(seat.next)
        if not seat.held:
            self._unassign(seat, places)

    def _assign(self, seat: SharedPartitionBuffer, offsets: Mapping[int, int]) -> None:
        if offsets:
            self._consumer.incremental_assign(_places(seat.topic, offsets))

    def _unassign(self, seat: SharedPartitionBuffer, offsets: Mapping[int, int]) -> None:
        if offsets:
            self._left.update((seat.topic, p) for p in offsets)
            self._consumer.incremental_unassign(_places(seat.topic, offsets))

    def _count(self, topic: str, timeout_s: float) -> int:
        known = self._consumer.list_topics(topic, timeout=timeout_s)
        return len(known.topics[topic].partitions)


def _places(topic: str, offsets: Mapping[int, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, p, offset) for p, offset in offsets.items()]


__all__ = ["SharedConsumer", "SharedPartitionBuffer"]
