"""What a reader reads by a consumer that it shares, and what has come for it."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message

__all__ = ["Seat"]

_MESSAGE_BYTES = 300
"""What a message takes in Python beside its value."""


@dataclass
class _Run:
    """Messages and events of one partition, in their order, and how many bytes they take."""

    partition: int
    items: list[Message]
    size: int


class Seat:
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
