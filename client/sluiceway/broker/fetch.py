"""Fetch requests: messages from given offsets.

The client's fetch loop (`kafka/fetcher.py`) decodes one topic from its own positions. Here each
request has offsets, for partitions of any topics, and messages are not decoded.
"""

import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from sluiceway.api.models import Connection
from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.exceptions import (
    LeaderNotAvailable,
    OffsetOutOfRangeError,
    ProtocolClientError,
    SocketDisconnectedError,
    topic_refusal,
)
from sluiceway.broker.fetch_sources import FetchedPartition, Source, open_source
from sluiceway.broker.groups import group_state
from sluiceway.broker.protocol import (
    ByName,
    FetchPartitionResponse,
    FetchResponse,
    Message,
    in_bytes,
    last_requests,
)
from sluiceway.errors import OptionError, SluicewayError
from sluiceway.records.to_python import gc_paused

__all__ = ["FetchRequests"]

_SLICE_S, _SHORT_SLICE_S = 0.25, 0.01
"""The longest wait for one client; the short one if several are polled in turn."""
_GATHER_TIMEOUT_S, _GATHER_SLICE_S = 0.1, 0.01
_IDENTITY_MAX_AGE_S = 2.0
"""The interval of checks that a topic is unchanged."""


@dataclass
class _Request:
    """A request for one partition, with the client and the buffer that serve it."""

    topic: bytes
    partition_request: Any
    connection: Connection
    client: Source
    partition: FetchedPartition = field(init=False)

    @property
    def number(self) -> int:
        return int(self.partition_request.partition_id)


class FetchRequests:
    """Fetch requests of one Broker, one at a time. Messages beyond a request stay buffered."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str | None], Source] = {}

    def fetch(self, requests: Any, *, timeout_s: float, min_bytes: int) -> FetchResponse:
        """Answer requests; `Broker.fetch_messages` documents them."""
        topics: ByName[dict[int, FetchPartitionResponse]] = ByName()
        valid: list[_Request] = []
        requested = last_requests(requests)
        with self._lock:
            for partition_request in requested:
                topic = in_bytes(partition_request.topic_name, "topic")
                responses = topics.setdefault(topic, {})
                try:
                    connection = self._locate(partition_request)
                    valid.append(
                        _Request(topic, partition_request, connection, self._client(connection))
                    )
                except ProtocolClientError as refusal:
                    responses[partition_request.partition_id] = _refused(refusal)
                    timeout_s = 0.0
            results = self._fetch(valid, timeout_s, min_bytes)
        for request, response in zip(valid, results, strict=True):
            topics[request.topic][request.partition_request.partition_id] = response
        for topic, responses in topics.items():
            if any(response.err for response in responses.values()):
                # The name may belong to another channel by now.
                self._handler.forget(topic)
        return FetchResponse(topics)

    def close(self) -> None:
        """Close the connections to Kafka."""
        with self._lock:
            clients, self._clients = self._clients, {}
            for client in clients.values():
                client.close()

    def _locate(self, partition_request: Any) -> Connection:
        connection = self._handler.locate(
            partition_request.topic_name, partition_request.partition_id
        )
        if (
            type(partition_request.offset) is not int
            or type(partition_request.max_bytes) is not int
        ):
            raise OptionError(f"offset and max_bytes are numbers: {partition_request!r}")
        if partition_request.offset < 0:
            raise OffsetOutOfRangeError(
                f"{partition_request.offset} is not an offset; request_offset_limits returns the "
                "beginning and the end of the partition"
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
        # The wait for Kafka's first response may exceed the request's own timeout.
        response_deadline_s = max(deadline_s, time.monotonic() + self._handler.timeout_s)
        clients = self._assign(requests)
        slice_s = _SLICE_S if len(clients) == 1 else _SHORT_SLICE_S
        while not _is_enough(requests, min_bytes):
            answered = all(request.partition.answered for request in requests)
            wait_s = (deadline_s if answered else response_deadline_s) - time.monotonic()
            if wait_s <= 0:
                break
            for client in clients:
                client.poll(min(wait_s, slice_s))
            for request in requests:
                try:
                    self._verify(request.connection)
                except ProtocolClientError as refusal:
                    request.partition.refusal = request.partition.refusal or refusal
        _gather(requests)
        if requests and not any(request.partition.answered for request in requests):
            raise SocketDisconnectedError(
                f"Kafka did not answer within {self._handler.timeout_s:g} s; fetch again when "
                "its brokers are available"
            )
        return [_response(request) for request in requests]

    def _assign(self, requests: Iterable[_Request]) -> Collection[Source]:
        """Assign the requested partitions to their clients, and return these."""
        by_client: dict[Source, list[_Request]] = {client: [] for client in self._clients.values()}
        for request in requests:
            by_client[request.client].append(request)
        for client, assigned in by_client.items():
            try:
                client.drop_large([request.number for request in assigned])
                if not assigned:
                    continue
                partitions = client.assign({r.number: r.partition_request.offset for r in assigned})
            except SluicewayError as error:
                raise topic_refusal(error) from error
            for request in assigned:
                request.partition = partitions[request.number]
        return [client for client, assigned in by_client.items() if assigned]

    def _client(self, connection: Connection) -> Source:
        """Return the source of a channel. Raises the errors of `RequestHandler.visibility`."""
        key, handler = (connection.channel_uid, connection.topic_id), self._handler
        if key not in self._clients:
            committed = connection.delivery == "exactly_once"
            visibility = handler.visibility(connection) if committed else None
            self._clients[key] = open_source(connection, visibility, timeout_s=handler.timeout_s)
        return self._clients[key]


def _response(request: _Request) -> FetchPartitionResponse:
    partition, connection = request.partition, request.connection
    if partition.refusal is not None:
        request.client.drop([request.number])
        return _refused(partition.refusal)
    if not partition.answered:
        return _refused(LeaderNotAvailable("no broker answers for the partition; try again"))
    taken = partition.take(request.partition_request.max_bytes)
    with gc_paused():
        messages = [_message(message) for message in taken]
    fetched = taken[-1].offset() + 1 if taken else request.partition_request.offset
    group_state().add_fetched(connection.topic_id, partition.number, fetched)
    end = max(request.client.high_watermark(partition), partition.next if partition.at_end else -1)
    return FetchPartitionResponse(max_offset=end, messages=messages, err=0)


def _is_enough(requests: Collection[_Request], min_bytes: int) -> bool:
    """Return whether there are enough bytes, or an error, to respond without further waiting."""
    if not all(request.partition.answered for request in requests):
        return False
    if any(request.partition.refusal is not None for request in requests):
        return True
    sizes = [(request.partition.size, request.partition_request.max_bytes) for request in requests]
    full = all(size >= most for size, most in sizes)
    return full or sum(min(size, most) for size, most in sizes) >= min_bytes


def _gather(requests: Collection[_Request]) -> None:
    """Poll briefly for messages in flight."""
    deadline_s = time.monotonic() + _GATHER_TIMEOUT_S
    for request in requests:
        partition, most = request.partition, request.partition_request.max_bytes
        while not partition.at_end and partition.refusal is None and partition.size < most:
            if not request.client.poll(_GATHER_SLICE_S) or time.monotonic() > deadline_s:
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
