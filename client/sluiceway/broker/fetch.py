"""Fetch requests: messages from given offsets.

The client's fetch loop (`kafka/fetcher.py`) decodes one topic from its own positions. Here each
request has offsets, for partitions of any topics, and messages are not decoded.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluiceway import Connection
from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.exceptions import (
    LeaderNotAvailable,
    OffsetOutOfRangeError,
    ProtocolClientError,
    SocketDisconnectedError,
    UnknownError,
    topic_refusal,
)
from sluiceway.broker.groups import group_state
from sluiceway.broker.protocol import (
    ByName,
    FetchPartitionResponse,
    FetchResponse,
    Message,
    checked_count,
    requests_by_topic,
)
from sluiceway.errors import OptionError, RecordsLost, SluicewayError
from sluiceway.spi import SHARED_CONSUMERS, FairLock, Visibility, gc_paused, open_stream

__all__ = ["Sources"]

_SLICE_S, _SHORT_SLICE_S = 0.25, 0.01
"""The longest wait for one source; the short one if several are polled in turn."""
_GATHER_TIMEOUT_S, _GATHER_SLICE_S = 0.1, 0.01
_IDENTITY_MAX_AGE_S = 2.0
"""The interval of checks that a topic is unchanged."""
_MAX_MESSAGES = 1000
"""The most messages taken from librdkafka at once."""
_MAX_BUFFER_BYTES = 16 << 20
"""A partition with a larger buffer is dropped when other partitions are requested."""
_LEAST_TIMEOUT_S = 1.0


@dataclass(eq=False)
class FetchedPartition:
    """A fetched partition, with the messages that no request has taken yet."""

    number: int
    start: int
    """The first offset to buffer."""
    next: int
    """The offset after the buffered messages."""
    messages: deque[tuple[int, int, Any]] = field(default_factory=deque)
    """Offset, size and message."""
    size: int = 0
    at_end: bool = False
    refusal: ProtocolClientError | None = None

    @property
    def answered(self) -> bool:
        """Whether Kafka has answered: with messages, the end, or an error."""
        return bool(self.messages) or self.at_end or self.refusal is not None

    def add(self, message: Any) -> None:
        """Buffer a message."""
        size = len(message.value() or b"") + len(message.key() or b"")
        offset = message.offset()
        self.messages.append((offset, size, message))
        self.size += size
        self.next = offset + 1
        self.at_end = False

    def skip_to(self, offset: int) -> None:
        """Drop the messages before an offset."""
        self.start = offset
        while self.messages and self.messages[0][0] < offset:
            self.size -= self.messages.popleft()[1]

    def take(self, max_bytes: int) -> list[Any]:
        """Take messages of up to `max_bytes`, and at least one if there is one."""
        taken: list[Any] = []
        left = max_bytes
        while self.messages and (not taken or self.messages[0][1] <= left):
            offset, size, message = self.messages[0]
            # First: after an interrupt, a request for this offset fetches it again.
            self.start = offset + 1
            self.messages.popleft()
            self.size -= size
            left -= size
            taken.append(message)
        return taken


class Source:
    """Partitions of one channel that are fetched together. Not thread-safe.

    Those of an exactly-once channel have a `visibility`, and end at its committed messages.
    """

    def __init__(
        self, connection: Connection, visibility: Visibility | None, *, timeout_s: float
    ) -> None:
        """Connect to the channel's topic."""
        self._stream = open_stream(
            connection,
            {},
            timeout_s=max(_LEAST_TIMEOUT_S, timeout_s),
            visibility=visibility,
            consumers=SHARED_CONSUMERS,
            whole_messages=True,
        )
        self._visibility = visibility
        self._partitions: dict[int, FetchedPartition] = {}
        # Whether the stream has the partitions, and continues after their buffers. False after an
        # exception in between; the next `assign` then begins with none.
        self._in_step = True

    def assign(self, offsets: Mapping[int, int]) -> Mapping[int, FetchedPartition]:
        """Fetch these partitions from these offsets; return their buffers.

        If all committed messages were taken, requests new commits. Partitions without such an
        offset, and all if the gateway refuses that request, are refused. Raises SluicewayError.
        """
        refusal = self._refresh(offsets)
        if not self._in_step:
            self._stream.assign({})
            self._partitions = {}
        self._in_step = False
        buffers: dict[int, FetchedPartition] = {}
        moved: dict[int, FetchedPartition] = {}
        for number, offset in offsets.items():
            buffer = self._partitions.get(number)
            if buffer and buffer.start <= offset <= buffer.next:
                buffer.skip_to(offset)
            else:
                buffer = moved[number] = FetchedPartition(number, offset, offset)
            buffer.refusal = buffer.refusal or refusal
            buffers[number] = buffer
        self._drop(moved)
        if moved:
            self._stream.add({number: buffer.next for number, buffer in moved.items()})
            self._partitions |= moved
        self._update_ends(buffers.values())
        self._in_step = True
        return buffers

    def drop(self, numbers: Collection[int]) -> None:
        """Stop fetching partitions, and forget their messages."""
        if self._in_step:
            self._in_step = False
            self._drop(numbers)
            self._in_step = True

    def drop_large(self, requested: Collection[int]) -> None:
        """Drop the partitions with large buffers that are not requested."""
        idle = self._partitions.keys() - set(requested)
        large = [n for n in idle if self._partitions[n].size > _MAX_BUFFER_BYTES]
        if large:
            self.drop(large)

    def poll(self, timeout_s: float) -> bool:
        """Buffer the messages of any partition that arrive in time; return whether some did."""
        self._in_step = False
        try:
            polled = self._stream.poll(_MAX_MESSAGES, timeout_s)
            for message in polled.items:
                self._partitions[message.partition()].add(message)
            for number, offset in polled.next.items():
                self._partitions[number].next = offset
                self._partitions[number].at_end = number in polled.at_end
            if polled.refused:
                self._check_range({n: self._partitions[n].next for n in polled.refused})
            arrived = bool(polled.next or polled.refused)
        except SluicewayError as error:
            lost = isinstance(error, RecordsLost)
            refusal = UnknownError(str(error)) if lost else topic_refusal(error)
            for partition in self._partitions.values():
                partition.refusal = refusal
            arrived = True
        self._update_ends(self._partitions.values())
        self._in_step = True
        return arrived

    def high_watermark(self, partition: FetchedPartition) -> int:
        """Return the last known end of a partition; -1 if unknown."""
        return self._stream.known_end(partition.number)

    def close(self) -> None:
        """Disconnect from Kafka."""
        self._stream.close()

    def _refresh(self, offsets: Mapping[int, int]) -> ProtocolClientError | None:
        """Request new commits if all known ones were taken; return the gateway's refusal."""
        visibility = self._visibility
        if visibility is None or all(
            offset < visibility.runs.stable_of(number) for number, offset in offsets.items()
        ):
            return None
        try:
            visibility.refresh()
        except SluicewayError as error:
            return topic_refusal(error)
        return None

    def _update_ends(self, partitions: Iterable[FetchedPartition]) -> None:
        """Compare the partitions of an exactly-once channel with the end of its commits."""
        if self._visibility is None:
            return
        for partition in partitions:
            stable = self._visibility.runs.stable_of(partition.number)
            partition.at_end = partition.next >= stable
            if partition.next > stable and partition.refusal is None:
                begin = self._stream.begins([partition.number])[partition.number]
                partition.refusal = _out_of_range(partition.next, begin, stable)

    def _check_range(self, offsets: Mapping[int, int]) -> None:
        """Refuse the partitions whose next offset is out of range."""
        for number, error in self._stream.reassign_refused(offsets).items():
            self._partitions[number].refusal = _out_of_range(error.offset, error.begin, error.end)

    def _drop(self, numbers: Iterable[int]) -> None:
        dropped = [n for n in numbers if self._partitions.pop(n, None) is not None]
        if dropped:
            self._stream.drop(dropped)


@dataclass
class _Request:
    """A request for one partition, with the source and the buffer that serve it."""

    topic: bytes
    number: int
    offset: int
    max_bytes: int
    connection: Connection
    source: Source
    partition: FetchedPartition = field(init=False)


class Sources:
    """Sources of one Broker, one for each channel from the first request to fetch on.

    Requests are answered one at a time. Messages beyond a request stay buffered.
    """

    def __init__(self) -> None:
        self.lock = FairLock()
        """Held during a request, and while the sources are closed."""
        self._sources: dict[tuple[str, str | None], Source] = {}

    def fetch(
        self, handler: RequestHandler, requests: Iterable[Any], timeout_ms: int, min_bytes: int
    ) -> FetchResponse:
        """Return messages of partitions, from each request's offset on."""
        timeout_s = checked_count(timeout_ms, "timeout") / 1000
        checked_count(min_bytes, "min_bytes")
        topics: ByName[dict[int, FetchPartitionResponse]] = ByName()
        valid: list[_Request] = []
        by_topic = requests_by_topic(requests)
        self.lock.require_free("fetching")
        with self.lock:
            for topic, requested in by_topic.items():
                topics[topic] = {}
                for number, request in requested.items():
                    try:
                        connection = _locate(handler, topic, number, request)
                        source = self._source(handler, connection)
                    except ProtocolClientError as refusal:
                        topics[topic][number] = _refused(refusal)
                        timeout_s = 0.0
                        continue
                    offset, max_bytes = request.offset, request.max_bytes
                    valid.append(_Request(topic, number, offset, max_bytes, connection, source))
            results = self._fetch(handler, valid, timeout_s, min_bytes)
        for fetched, response in zip(valid, results, strict=True):
            topics[fetched.topic][fetched.number] = response
        for topic, responses in topics.items():
            if any(response.err for response in responses.values()):
                # The name may belong to another channel by now.
                handler.forget(topic)
        return FetchResponse(topics)

    def close(self) -> None:
        """Close the connections to Kafka."""
        with self.lock:
            sources, self._sources = self._sources, {}
            for source in sources.values():
                source.close()

    def _fetch(
        self,
        handler: RequestHandler,
        requests: Collection[_Request],
        timeout_s: float,
        min_bytes: int,
    ) -> list[FetchPartitionResponse]:
        deadline_s = time.monotonic() + timeout_s
        # The wait for Kafka's first response may exceed the request's own timeout.
        response_deadline_s = max(deadline_s, time.monotonic() + handler.timeout_s)
        sources = self._assign(requests)
        slice_s = _SLICE_S if len(sources) == 1 else _SHORT_SLICE_S
        while not _is_enough(requests, min_bytes):
            answered = all(request.partition.answered for request in requests)
            wait_s = (deadline_s if answered else response_deadline_s) - time.monotonic()
            if wait_s <= 0:
                break
            for source in sources:
                source.poll(min(wait_s, slice_s))
            for request in requests:
                try:
                    _verify(handler, request.connection)
                except ProtocolClientError as refusal:
                    request.partition.refusal = request.partition.refusal or refusal
        _gather(requests)
        if requests and not any(request.partition.answered for request in requests):
            raise SocketDisconnectedError(
                f"Kafka did not answer within {handler.timeout_s:g} s; fetch again when "
                "its brokers are available"
            )
        return [_response(request) for request in requests]

    def _assign(self, requests: Iterable[_Request]) -> Collection[Source]:
        """Assign the requested partitions to their sources, and return these."""
        by_source: dict[Source, list[_Request]] = {source: [] for source in self._sources.values()}
        for request in requests:
            by_source[request.source].append(request)
        for source, assigned in by_source.items():
            try:
                source.drop_large([request.number for request in assigned])
                if not assigned:
                    continue
                partitions = source.assign({request.number: request.offset for request in assigned})
            except SluicewayError as error:
                raise topic_refusal(error) from error
            for request in assigned:
                request.partition = partitions[request.number]
        return [source for source, assigned in by_source.items() if assigned]

    def _source(self, handler: RequestHandler, connection: Connection) -> Source:
        """Return the source of a channel. Raises the errors of `RequestHandler.visibility`."""
        key = (connection.channel_uid, connection.topic_id)
        if key not in self._sources:
            committed = connection.delivery == "exactly_once"
            visibility = handler.visibility(connection) if committed else None
            self._sources[key] = Source(connection, visibility, timeout_s=handler.timeout_s)
        return self._sources[key]


def _locate(handler: RequestHandler, topic: bytes, number: int, request: Any) -> Connection:
    """Return the connection of a request's channel. Raises ProtocolClientError, OptionError."""
    connection = handler.locate(topic, number)
    if type(request.offset) is not int or type(request.max_bytes) is not int:
        raise OptionError(f"offset and max_bytes are numbers: {request!r}")
    if request.offset < 0:
        raise OffsetOutOfRangeError(
            f"{request.offset} is not an offset; request_offset_limits returns the "
            "beginning and the end of the partition"
        )
    _verify(handler, connection)
    return connection


def _verify(handler: RequestHandler, connection: Connection) -> None:
    """Raise the refusal of a topic that was deleted or created again."""
    try:
        identity = handler.identity(connection)
        identity.verify(timeout_s=handler.timeout_s, max_age_s=_IDENTITY_MAX_AGE_S)
    except SluicewayError as error:
        raise topic_refusal(error) from error


def _response(request: _Request) -> FetchPartitionResponse:
    partition, connection = request.partition, request.connection
    if partition.refusal is not None:
        request.source.drop([request.number])
        return _refused(partition.refusal)
    if not partition.answered:
        return _refused(LeaderNotAvailable("no broker answers for the partition; try again"))
    taken = partition.take(request.max_bytes)
    with gc_paused():
        messages = [_message(message) for message in taken]
    fetched = taken[-1].offset() + 1 if taken else request.offset
    group_state().add_fetched(connection.topic_id, partition.number, fetched)
    end = max(request.source.high_watermark(partition), partition.next if partition.at_end else -1)
    return FetchPartitionResponse(max_offset=end, messages=messages, err=0)


def _is_enough(requests: Collection[_Request], min_bytes: int) -> bool:
    """Return whether there are enough bytes, or an error, to respond without further waiting."""
    if not all(request.partition.answered for request in requests):
        return False
    if any(request.partition.refusal is not None for request in requests):
        return True
    sizes = [(request.partition.size, request.max_bytes) for request in requests]
    full = all(size >= most for size, most in sizes)
    return full or sum(min(size, most) for size, most in sizes) >= min_bytes


def _gather(requests: Collection[_Request]) -> None:
    """Poll briefly for messages in flight."""
    deadline_s = time.monotonic() + _GATHER_TIMEOUT_S
    for request in requests:
        partition, most = request.partition, request.max_bytes
        while not partition.at_end and partition.refusal is None and partition.size < most:
            if not request.source.poll(_GATHER_SLICE_S) or time.monotonic() > deadline_s:
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


def _out_of_range(offset: int, begin: int, end: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"the partition has no offset {offset}: its range is {begin} to {end}"
    )
