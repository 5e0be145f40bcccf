"""Fetch requests: messages from given offsets.

The client's fetch loop (`kafka/fetcher.py`) decodes one topic from positions that it keeps. Here
each request names offsets, of partitions of any topics, and takes messages as they are.
"""

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.exceptions import (
    LeaderNotAvailable,
    OffsetOutOfRangeError,
    ProtocolClientError,
    SocketDisconnectedError,
    partition_refusal,
    topic_refusal,
)
from sluiceway.broker.groups import group_state
from sluiceway.broker.requests import ByName, Message, each_once, in_bytes
from sluiceway.broker.responses import FetchPartitionResponse, FetchResponse
from sluiceway.errors import OptionError, SluicewayError
from sluiceway.fork_guard import ForkGuard
from sluiceway.kafka.config import MaskedProperties, consumer_config
from sluiceway.kafka.consumer import GATHER_S
from sluiceway.kafka.errors import create_client, is_unavailable, translate_error, with_retries
from sluiceway.records.to_python import gc_paused
from sluiceway.rest.models import Connection

__all__ = ["FetchRequests"]

_MAX_MESSAGES = 1000
"""How many messages are taken from librdkafka at once."""
_MAX_BUFFER_BYTES = 16 << 20
"""A partition with more in its buffer is dropped when others are asked for."""
_WATERMARKS_TIMEOUT_S = 10.0
_SLICE_S = 0.25
_GATHER_TIMEOUT_S, _GATHER_SLICE_S = 0.1, 0.01
_IDENTITY_MAX_AGE_S = 2.0
"""How long a topic counts as unchanged, also while no messages arrive."""


@dataclass(eq=False)
class _Partition:
    """A partition that is fetched, with the messages that no request has taken yet."""

    connection: Connection
    number: int
    start: int
    """The offset from which on messages are buffered."""
    next: int
    """The offset after the buffered messages."""
    messages: deque[tuple[int, int, Any]] = field(default_factory=deque)
    """Offset, size and message."""
    size: int = 0
    at_end: bool = False
    refusal: ProtocolClientError | None = None

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.connection.topic_name, self.number, self.next)

    @property
    def answered(self) -> bool:
        """Whether Kafka has answered: with messages, the end, or an error."""
        return bool(self.messages) or self.at_end or self.refusal is not None

    def add(self, message: Any) -> None:
        size = len(message.value() or b"") + len(message.key() or b"")
        offset = message.offset()
        self.messages.append((offset, size, message))
        self.size += size
        self.next = offset + 1
        self.at_end = False

    def skip_to(self, offset: int) -> None:
        self.start = offset
        while self.messages and self.messages[0][0] < offset:
            self.size -= self.messages.popleft()[1]

    def take(self, max_bytes: int) -> list[Any]:
        """Return messages of up to `max_bytes`, but at least one."""
        found: list[Any] = []
        left = max_bytes
        while self.messages and (not found or self.messages[0][1] <= left):
            offset, size, message = self.messages.popleft()
            self.size -= size
            left -= size
            self.start = offset + 1
            found.append(message)
        return found


@dataclass
class _Request:
    """A request for one partition, with the client and the buffer that serve it."""

    topic: bytes
    asked: Any
    connection: Connection
    client: "_Client" = field(init=False)
    partition: _Partition = field(init=False)

    @property
    def key(self) -> tuple[str, int]:
        return self.connection.topic_name, self.asked.partition_id


class _Client:
    """A Kafka consumer for the partitions that are reached by the same properties."""

    def __init__(self, properties: MaskedProperties) -> None:
        self._guard = ForkGuard()
        self._consumer = create_client(Consumer, properties)
        self._partitions: dict[tuple[str, int], _Partition] = {}

    def assign(self, requests: Collection[_Request]) -> None:
        """Fetch the requested partitions from the requested offsets, and set their buffers."""
        moved: dict[tuple[str, int], _Partition] = {}
        for each in requests:
            offset, known = each.asked.offset, self._partitions.get(each.key)
            same = known and known.connection == each.connection
            if known and same and known.start <= offset <= known.next:
                known.skip_to(offset)
            else:
                known = _Partition(each.connection, each.asked.partition_id, offset, offset)
                moved[each.key] = known
            each.client, each.partition = self, known
        wanted = {each.key for each in requests}
        idle = [
            key
            for key, partition in self._partitions.items()
            if key not in wanted and partition.size > _MAX_BUFFER_BYTES
        ]
        self.drop([*moved, *idle])
        if moved:
            self._consumer.incremental_assign([each.place for each in moved.values()])
            self._partitions |= moved

    def drop(self, keys: Collection[tuple[str, int]]) -> None:
        """Stop fetching partitions, and forget their messages."""
        assigned = {(each.topic, each.partition) for each in self._consumer.assignment()}
        if gone := [TopicPartition(*key) for key in keys if key in assigned]:
            self._consumer.incremental_unassign(gone)
        for key in keys:
            self._partitions.pop(key, None)

    def poll(self, timeout_s: float) -> bool:
        """Buffer the messages of any partition that arrive in time; return whether some did."""
        got = self._consumer.consume(1, min(_SLICE_S, max(0.0, timeout_s)))
        if got:
            with gc_paused():
                got += self._consumer.consume(_MAX_MESSAGES, GATHER_S)
        for message in got:
            partition = self._partitions.get((message.topic(), message.partition()))
            if partition is None:
                continue
            if message.error() is None:
                partition.add(message)
            else:
                self._take_error(partition, message.error(), message.offset())
        return bool(got)

    def high_watermark(self, partition: _Partition) -> int:
        """Return the end of a partition by the last fetch; -1 before the first."""
        _low, high = self._consumer.get_watermark_offsets(partition.place, cached=True)
        return int(high) if high >= 0 else -1

    def close(self) -> None:
        """Close the consumer."""
        # librdkafka's threads do not exist in a forked process: closing would wait forever.
        if not self._guard.forked:
            self._consumer.close()

    def _take_error(self, partition: _Partition, error: KafkaError, offset: int) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            partition.at_end = offset >= partition.next
            partition.next = max(partition.next, offset)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            self._check_range(partition)
        elif not is_unavailable(error):
            partition.refusal = partition_refusal(error, "fetching")

    def _check_range(self, partition: _Partition) -> None:
        """Refuse the partition if its next offset is out of range."""
        place = partition.place
        low, high = with_retries(
            lambda left_s: self._consumer.get_watermark_offsets(place, timeout=left_s),
            timeout_s=_WATERMARKS_TIMEOUT_S,
        )
        if low <= partition.next <= high:
            # Stale error for an offset we already moved past. librdkafka stopped fetching, so
            # assign the partition again.
            self._consumer.incremental_unassign([place])
            self._consumer.incremental_assign([place])
            return
        partition.refusal = OffsetOutOfRangeError(
            f"the partition has no offset {partition.next}: it reaches from {low} to {high}"
        )


class FetchRequests:
    """Fetch requests of one Broker, one at a time. Messages not asked for yet stay buffered."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._lock = threading.Lock()
        self._clients: dict[MaskedProperties, _Client] = {}

    def fetch(self, requests: Any, *, timeout_s: float, min_bytes: int) -> FetchResponse:
        """Answer requests; `Broker.fetch_messages` documents them."""
        topics: ByName[dict[int, FetchPartitionResponse]] = ByName()
        valid: list[_Request] = []
        for asked in each_once(requests):
            topic = in_bytes(asked.topic_name, "topic")
            answers = topics.setdefault(topic, {})
            try:
                valid.append(_Request(topic, asked, self._locate(asked)))
            except ProtocolClientError as refusal:
                answers[asked.partition_id] = _refused(refusal)
                timeout_s = 0.0
        with self._lock:
            found = self._fetch(valid, timeout_s, min_bytes)
        for each, answer in zip(valid, found, strict=True):
            topics[each.topic][each.asked.partition_id] = answer
        for topic, answers in topics.items():
            if any(answer.err for answer in answers.values()):
                # The name may belong to another channel by now.
                self._handler.forget(topic)
        return FetchResponse(topics)

    def close(self) -> None:
        """Close the connections to Kafka."""
        with self._lock:
            clients, self._clients = self._clients, {}
            for each in clients.values():
                each.close()

    def _locate(self, asked: Any) -> Connection:
        connection = self._handler.locate(asked.topic_name, asked.partition_id)
        if type(asked.offset) is not int or type(asked.max_bytes) is not int:
            raise OptionError(f"offset and max_bytes are numbers: {asked!r}")
        if asked.offset < 0:
            raise OffsetOutOfRangeError(
                f"{asked.offset} is not an offset; request_offset_limits returns where the "
                "partition begins and ends"
            )
        self._verify(connection)
        return connection

    def _verify(self, connection: Connection) -> None:
        """Raise the refusal of a topic that was deleted or created again."""
        try:
            identity = self._handler.identity(connection)
            identity.verify(timeout_s=self._handler.timeout_s, max_age_s=_IDENTITY_MAX_AGE_S)
        except SluicewayError as error:
            raise topic_refusal(error) from error

    def _fetch(
        self, requests: Collection[_Request], timeout_s: float, min_bytes: int
    ) -> list[FetchPartitionResponse]:
        deadline_s = time.monotonic() + timeout_s
        # Kafka's first answer is waited for even if the request's own timeout is shorter.
        answer_deadline_s = max(deadline_s, time.monotonic() + self._handler.timeout_s)
        try:
            clients = self._assign(requests)
            while not _is_enough(requests, min_bytes):
                answered = all(each.partition.answered for each in requests)
                wait_s = (deadline_s if answered else answer_deadline_s) - time.monotonic()
                if wait_s <= 0:
                    break
                for client in clients:
                    client.poll(min(wait_s, _SLICE_S / len(clients)))
                for each in requests:
                    try:
                        self._verify(each.connection)
                    except ProtocolClientError as refusal:
                        each.partition.refusal = each.partition.refusal or refusal
            _gather(requests)
            if requests and not any(each.partition.answered for each in requests):
                raise SocketDisconnectedError(
                    f"Kafka did not answer within {self._handler.timeout_s:g} s; fetch again when "
                    "its brokers are back"
                )
            return [_answer(each) for each in requests]
        except KafkaException as error:
            failure = translate_error(error.args[0], doing="fetching", topic="several")
            raise SocketDisconnectedError(str(failure)) from error

    def _assign(self, requests: Iterable[_Request]) -> Collection[_Client]:
        """Assign the requested partitions to clients, and return these."""
        by_client: dict[_Client, list[_Request]] = {}
        for each in requests:
            properties = consumer_config(each.connection.kafka)
            client = self._clients.get(properties)
            if client is None:
                client = self._clients[properties] = _Client(properties)
            by_client.setdefault(client, []).append(each)
        for client, assigned in by_client.items():
            client.assign(assigned)
        return by_client.keys()


def _answer(request: _Request) -> FetchPartitionResponse:
    partition, connection = request.partition, request.connection
    if partition.refusal is not None:
        request.client.drop([request.key])
        return _refused(partition.refusal)
    if not partition.answered:
        return _refused(LeaderNotAvailable("no broker answers for the partition; try again"))
    taken = partition.take(request.asked.max_bytes)
    with gc_paused():
        messages = [_message(each) for each in taken]
    fetched = taken[-1].offset() + 1 if taken else request.asked.offset
    group_state().add_fetched(connection.topic_id, partition.number, fetched)
    end = max(request.client.high_watermark(partition), partition.next if partition.at_end else -1)
    return FetchPartitionResponse(max_offset=end, messages=messages, err=0)


def _is_enough(requests: Collection[_Request], min_bytes: int) -> bool:
    """Whether the requests can be answered without waiting for more."""
    if not all(each.partition.answered for each in requests):
        return False
    if any(each.partition.refusal is not None for each in requests):
        return True
    sizes = [(each.partition.size, each.asked.max_bytes) for each in requests]
    full = all(size >= most for size, most in sizes)
    return full or sum(min(size, most) for size, most in sizes) >= min_bytes


def _gather(requests: Collection[_Request]) -> None:
    """Poll for a moment more, for messages that are already on their way."""
    deadline_s = time.monotonic() + _GATHER_TIMEOUT_S
    for each in requests:
        partition, most = each.partition, each.asked.max_bytes
        while not partition.at_end and partition.refusal is None and partition.size < most:
            if not each.client.poll(_GATHER_SLICE_S) or time.monotonic() > deadline_s:
                return


def _refused(refusal: ProtocolClientError) -> FetchPartitionResponse:
    return FetchPartitionResponse(-1, [], refusal.ERROR_CODE).because(refusal)


def _message(fetched: Any) -> Message:
    _kind, time_ms = fetched.timestamp()
    return Message(
        fetched.value(),
        partition_key=fetched.key(),
        offset=fetched.offset(),
        partition_id=fetched.partition(),
        timestamp=time_ms,
    )
