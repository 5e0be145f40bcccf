"""Partitions that are being fetched, and the consumers that fetch them."""

import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from sluiceway.broker.errors import Refusal, of_kafka
from sluiceway.broker.exceptions import OffsetOutOfRangeError
from sluiceway.garbage import nothing_to_collect
from sluiceway.kafka.errors import is_unavailable, made, with_retries
from sluiceway.kafka.masked import MaskedProperties
from sluiceway.rest.models import Connection

__all__ = ["Client", "Track"]

_SLICE_S = 0.25
_GATHER_S = 0.001
_MOST = 1000
"""Messages that are taken from librdkafka at once."""
_MOST_HELD_BYTES = 16 << 20
"""Of a partition that others are asked for instead of; then it is let go of."""
_LOOK_S = 10.0


@dataclass
class Track:
    """A partition that is being fetched: what came and was not asked for yet."""

    connection: Connection
    start: int
    """The offset from which on it has what came."""
    next: int
    """The offset that follows what came."""
    held: deque[tuple[int, int, Any]] = field(default_factory=deque)
    """Offset, size and message."""
    size: int = 0
    at_end: bool = False
    refusal: Refusal | None = None

    def put(self, message: Any) -> None:
        """Keep a message that came."""
        size = len(message.value() or b"") + len(message.key() or b"")
        offset = message.offset()
        self.held.append((offset, size, message))
        self.size += size
        self.next = offset + 1
        self.at_end = False

    def skip(self, offset: int) -> None:
        """Throw away what is before `offset`."""
        self.start = offset
        while self.held and self.held[0][0] < offset:
            self.size -= self.held.popleft()[1]

    def take(self, max_bytes: int) -> list[Any]:
        """Return what there is, up to so many bytes, and one message at least."""
        found: list[Any] = []
        left = max_bytes
        while self.held and (not found or self.held[0][1] <= left):
            offset, size, message = self.held.popleft()
            self.size -= size
            left -= size
            self.start = offset + 1
            found.append(message)
        return found

    @property
    def answered(self) -> bool:
        """Whether it is known what there is."""
        return bool(self.held) or self.at_end or self.refusal is not None


class Client:
    """A consumer for topics that are reached by the same properties."""

    def __init__(self, properties: MaskedProperties) -> None:
        self._process = os.getpid()
        self._consumer = made(Consumer, properties)
        self._tracks: dict[tuple[str, int], Track] = {}

    def stand(self, wanted: Mapping[tuple[str, int], tuple[Connection, int]]) -> list[Track]:
        """Have partitions be fetched from these offsets, and return how they stand."""
        moved = []
        for at, (connection, offset) in wanted.items():
            track = self._tracks.get(at)
            same = track is not None and track.connection == connection
            if track is not None and same and track.start <= offset <= track.next:
                track.skip(offset)
            else:
                moved.append(at)
                self._tracks[at] = Track(connection=connection, start=offset, next=offset)
        idle = [
            at
            for at, track in self._tracks.items()
            if at not in wanted and track.size > _MOST_HELD_BYTES
        ]
        self.drop([*moved, *idle], forget=idle)
        if moved:
            self._consumer.incremental_assign(
                [TopicPartition(*at, self._tracks[at].next) for at in moved]
            )
        return [self._tracks[at] for at in wanted]

    def drop(self, partitions: Sequence[tuple[str, int]], *, forget: Any = None) -> None:
        """Let go of partitions."""
        assigned = {(each.topic, each.partition) for each in self._consumer.assignment()}
        gone = [TopicPartition(*at) for at in partitions if at in assigned]
        if gone:
            self._consumer.incremental_unassign(gone)
        for at in partitions if forget is None else forget:
            self._tracks.pop(at, None)

    def take_in(self, wait_s: float) -> bool:
        """Take what comes within `wait_s`, for whatever partition; whether something came."""
        got = self._consumer.consume(1, min(_SLICE_S, max(0.0, wait_s)))
        if got:
            with nothing_to_collect():
                got += self._consumer.consume(_MOST, _GATHER_S)
        for message in got:
            track = self._tracks.get((message.topic(), message.partition()))
            if message.error() is not None:
                self._note(message, track)
            elif track is not None:
                track.put(message)
        return bool(got)

    def end(self, at: tuple[str, int]) -> int:
        """Return where a partition ends, as the last fetch said; -1 if none did."""
        _low, high = self._consumer.get_watermark_offsets(TopicPartition(*at), cached=True)
        return int(high) if high >= 0 else -1

    def close(self) -> None:
        """Let go of the connections."""
        # In a process that was forked, librdkafka's threads are missing: it would wait for them.
        if os.getpid() == self._process:
            self._consumer.close()

    def _note(self, event: Any, track: Track | None) -> None:
        error = event.error()
        code = error.code()
        if track is None:
            return
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001
            track.at_end = event.offset() >= track.next
            track.next = max(track.next, event.offset())
        elif code == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            self._refuse(track, TopicPartition(event.topic(), event.partition(), track.next))
        elif not is_unavailable(error):
            track.refusal = of_kafka(error, "fetching")

    def _refuse(self, track: Track, at: Any) -> None:
        """Kafka does not have the offset that was to be fetched next, or an earlier one."""
        low, high = with_retries(
            lambda left_s: self._consumer.get_watermark_offsets(at, timeout=left_s),
            timeout_s=_LOOK_S,
        )
        if low <= track.next <= high:
            # Said of a place that was left since: a late word, but fetching stopped over it.
            self._consumer.incremental_unassign([at])
            self._consumer.incremental_assign([at])
            return
        track.refusal = Refusal.of(
            OffsetOutOfRangeError,
            f"the partition has no offset {track.next}: it reaches from {low} to {high}",
        )
