"""Fetch requests: messages from given offsets."""

import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.errors import Refusal, of_kafka, of_topic
from sluiceway.broker.exceptions import (
    LeaderNotAvailable,
    OffsetOutOfRangeError,
    SocketDisconnectedError,
)
from sluiceway.broker.group_members import REACH
from sluiceway.broker.requests import ByName, Message, each_once, in_bytes
from sluiceway.broker.responses import FetchPartitionResponse, FetchResponse
from sluiceway.errors import OptionError, SluicewayError
from sluiceway.garbage import gc_paused
from sluiceway.kafka.config import MaskedProperties, consumer_config
from sluiceway.kafka.errors import create_client, is_unavailable, translate_error, with_retries
from sluiceway.rest.models import Connection

_GATHER_S = 0.001
_MOST = 1000
"""Messages that are taken from librdkafka at once."""
_MOST_HELD_BYTES = 16 << 20
"""Of a partition that others are asked for instead of; then it is let go of."""
_LOOK_S = 10.0


@dataclass
class FetchedPartition:
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
        self._consumer = create_client(Consumer, properties)
        self._tracks: dict[tuple[str, int], FetchedPartition] = {}

    def stand(
        self, wanted: Mapping[tuple[str, int], tuple[Connection, int]]
    ) -> list[FetchedPartition]:
        """Have partitions be fetched from these offsets, and return how they stand."""
        moved = []
        for at, (connection, offset) in wanted.items():
            track = self._tracks.get(at)
            same = track is not None and track.connection == connection
            if track is not None and same and track.start <= offset <= track.next:
                track.skip(offset)
            else:
                moved.append(at)
                self._tracks[at] = FetchedPartition(
                    connection=connection, start=offset, next=offset
                )
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
            with gc_paused():
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

    def _note(self, event: Any, track: FetchedPartition | None) -> None:
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

    def _refuse(self, track: FetchedPartition, at: Any) -> None:
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


_SLICE_S = 0.25
_SETTLE_S, _BREATH_S = 0.1, 0.01
_MAX_AGE_S = 2.0
"""For so long it is believed that a topic is the same, also while nothing comes."""


class Fetching:
    """The fetches of one Broker, one at a time; what came and was not asked for is kept."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._lock = threading.Lock()
        self._clients: dict[MaskedProperties, Client] = {}

    def fetch(self, requests: Any, *, timeout_s: float, min_bytes: int) -> FetchResponse:
        """Answer requests; `Broker.fetch_messages` says how."""
        topics: ByName[dict[int, FetchPartitionResponse]] = ByName()
        found: dict[tuple[bytes, int], tuple[Any, Connection]] = {}
        for request in each_once(requests):
            topic = in_bytes(request.topic_name, "topic")
            place = self._place(request)
            answers = topics.setdefault(topic, {})
            if isinstance(place, Refusal):
                answers[request.partition_id] = _refused(place)
            else:
                found[topic, request.partition_id] = request, place
        refused = any(told.err for answers in topics.values() for told in answers.values())
        with self._lock:
            told = self._answers(found, timeout_s=0.0 if refused else timeout_s, least=min_bytes)
        for (topic, partition), answer in told.items():
            topics[topic][partition] = answer
        for topic, answers in topics.items():
            if any(answer.err for answer in answers.values()):
                # It may be another channel by now.
                self._handler.forget(topic)
        return FetchResponse(topics)

    def close(self) -> None:
        """Close the connections to Kafka."""
        with self._lock:
            clients, self._clients = self._clients, {}
            for each in clients.values():
                each.close()

    def _place(self, request: Any) -> Connection | Refusal:
        place = self._handler.located(request.topic_name, request.partition_id)
        if isinstance(place, Refusal):
            return place
        if type(request.offset) is not int or type(request.max_bytes) is not int:
            raise OptionError(f"offset and max_bytes are numbers: {request!r}")
        if request.offset < 0:
            return Refusal.of(
                OffsetOutOfRangeError,
                f"{request.offset} is no offset; request_offset_limits says where the partition "
                "begins and ends",
            )
        return self._gone(place) or place

    def _gone(self, place: Connection) -> Refusal | None:
        """Return what to say of a topic that is not the one that it was; None if it is."""
        try:
            identity = self._handler.identity(place)
            identity.verify(timeout_s=self._handler.timeout_s, max_age_s=_MAX_AGE_S)
        except SluicewayError as error:
            return of_topic(error)
        return None

    def _answers(
        self, found: Mapping[Any, tuple[Any, Connection]], *, timeout_s: float, least: int
    ) -> dict[Any, FetchPartitionResponse]:
        deadline_s = time.monotonic() + timeout_s
        # What there is has to be learned first, whatever the request's own patience.
        patience_s = max(deadline_s, time.monotonic() + self._handler.timeout_s)
        try:
            standing = self._standing(found)
            while not _enough(standing, found, least):
                answered = all(track.answered for _, track in standing.values())
                wait_s = (deadline_s if answered else patience_s) - time.monotonic()
                if wait_s <= 0:
                    break
                waiting = {id(client): client for client, _ in standing.values()}
                for client in waiting.values():
                    client.take_in(min(wait_s, _SLICE_S / len(waiting)))
                for at, (_, track) in standing.items():
                    track.refusal = track.refusal or self._gone(found[at][1])
            _settle(standing, found)
            if not any(track.answered for _, track in standing.values()) and standing:
                raise SocketDisconnectedError(
                    f"nothing came from Kafka for {self._handler.timeout_s:g} s, though there "
                    "must be something, or an end; fetch again when its brokers are back"
                )
            return {at: self._answer(found[at], *standing[at]) for at in found}
        except KafkaException as error:
            failure = translate_error(error.args[0], doing="fetching", topic="several")
            raise SocketDisconnectedError(str(failure)) from error

    def _standing(
        self, found: Mapping[Any, tuple[Any, Connection]]
    ) -> dict[Any, tuple[Client, FetchedPartition]]:
        by_client: dict[MaskedProperties, dict[tuple[str, int], tuple[Connection, int]]] = {}
        for request, connection in found.values():
            wanted = by_client.setdefault(consumer_config(connection.kafka), {})
            at = (connection.topic_name, request.partition_id)
            wanted[at] = connection, request.offset
        standing: dict[tuple[str, int], tuple[Client, FetchedPartition]] = {}
        for properties, wanted in by_client.items():
            client = self._clients.get(properties)
            if client is None:
                client = self._clients[properties] = Client(properties)
            tracks = client.stand(wanted)
            standing |= {at: (client, track) for at, track in zip(wanted, tracks, strict=True)}
        return {
            at: standing[connection.topic_name, request.partition_id]
            for at, (request, connection) in found.items()
        }

    def _answer(
        self, asked: tuple[Any, Connection], client: Client, track: FetchedPartition
    ) -> FetchPartitionResponse:
        request, connection = asked
        at = (connection.topic_name, request.partition_id)
        if track.refusal is not None:
            client.drop([at])
            return _refused(track.refusal)
        if not track.answered:
            return _refused(
                Refusal.of(LeaderNotAvailable, "no broker answers for the partition; try again")
            )
        taken = track.take(request.max_bytes)
        with gc_paused():
            messages = [_message(each) for each in taken]
        reached = taken[-1].offset() + 1 if taken else request.offset
        end = max(client.end(at), track.next if track.at_end else -1)
        REACH.extend(connection.topic_id, request.partition_id, reached)
        return FetchPartitionResponse(max_offset=end, messages=messages)


def _enough(
    standing: Mapping[Any, tuple[Any, FetchedPartition]],
    found: Mapping[Any, tuple[Any, Connection]],
    least: int,
) -> bool:
    """Whether an answer need not wait for more."""
    if not all(track.answered for _, track in standing.values()):
        return False
    if any(track.refusal is not None for _, track in standing.values()):
        return True
    sizes = [(track.size, found[at][0].max_bytes) for at, (_, track) in standing.items()]
    full = all(size >= most for size, most in sizes)
    return full or sum(min(size, most) for size, most in sizes) >= least


def _settle(
    standing: Mapping[Any, tuple[Client, FetchedPartition]],
    found: Mapping[Any, tuple[Any, Connection]],
) -> None:
    """Take what is on its way already, for a moment."""
    deadline_s = time.monotonic() + _SETTLE_S
    for at, (client, track) in standing.items():
        most = found[at][0].max_bytes
        while not track.at_end and track.refusal is None and track.size < most:
            if not client.take_in(_BREATH_S) or time.monotonic() > deadline_s:
                return


def _refused(refusal: Refusal) -> FetchPartitionResponse:
    return FetchPartitionResponse(
        max_offset=-1, messages=[], err=refusal.err, reason=refusal.reason
    )


def _message(taken: Any) -> Message:
    _kind, at_ms = taken.timestamp()
    return Message(
        taken.value(),
        partition_key=taken.key(),
        offset=taken.offset(),
        partition_id=taken.partition(),
        timestamp=at_ms,
    )


__all__ = ["Client", "FetchedPartition", "Fetching"]
