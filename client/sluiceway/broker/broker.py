"""Broker: pykafka's requests, for programs that send Kafka's requests one by one."""

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from sluiceway.api.auth import Token
from sluiceway.broker.admin import AdminRequests, ApiVersionsResponse
from sluiceway.broker.connection import GatewayAddress, RequestHandler
from sluiceway.broker.exceptions import SocketDisconnectedError
from sluiceway.broker.fetch import FetchRequests
from sluiceway.broker.groups import DescribeGroupsResponse, GroupRequests, ListGroupsResponse
from sluiceway.broker.offsets import OffsetRequests
from sluiceway.broker.produce import ProduceRequests
from sluiceway.broker.protocol import (
    FetchResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListOffsetResponse,
    MetadataResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    ProduceResponse,
    Response,
    SyncGroupResponse,
    checked_count,
)
from sluiceway.endpoint.channel_endpoint import is_success
from sluiceway.errors import GatewayUnavailable, SluicewayError

__all__ = ["Broker"]

LOGGER = logging.getLogger("sluiceway.broker")

R = TypeVar("R", bound=Response)


class _Requests:
    """The requests of one connection, by kind."""

    def __init__(
        self, handler: RequestHandler, address: GatewayAddress, produces: ProduceRequests
    ) -> None:
        self.handler = handler
        self.produces = produces
        self.admin = AdminRequests(handler, gateway=address)
        self.fetches = FetchRequests(handler)
        self.groups = GroupRequests(handler)

    def close(self) -> None:
        self.fetches.close()
        self.handler.stop()


class Broker:
    """pykafka's Broker on channels: `host` and `port` are a gateway's, topics are channels.

    Messages go directly to and from Kafka, as bytes; in the format `avro` the first five bytes
    identify the schema. The gateway keeps groups and offsets. Names are bytes or str, in responses
    bytes. Refusals are codes in the response, with a reason; with `raise_errors` they are raised as
    pykafka's exceptions (`exceptions`). Calls raise SocketDisconnectedError if the gateway or Kafka
    does not answer.

    Leaving `with` closes it, which reports the end offsets of its messages to readers.
    """

    def __init__(
        self,
        id_: int,
        host: str,
        port: int,
        handler: Any = None,
        socket_timeout_ms: int = 30_000,
        offsets_channel_socket_timeout_ms: int = 10_000,
        buffer_size: int = 1024 * 1024,
        source_host: str = "",
        source_port: int = 0,
        ssl_config: Any = None,
        broker_version: str = "0.9.0",
        api_versions: Any = None,
        *,
        url: str | None = None,
        token: str | Token | None = None,
        listener: str | None = None,
        raise_errors: bool = False,
        gateway: GatewayAddress | None = None,
    ) -> None:
        """Connect to the gateway at `host` and `port`, or at `url`.

        `id_` is only returned by `id`. The timeouts limit each request, including retries. With
        `ssl_config` the connection is HTTPS, and its `cafile` is trusted. The token defaults to
        SLUICEWAY_TOKEN. `gateway` is for brokers of `request_metadata`. The others are ignored. An
        unreachable gateway is logged, and `connected` is False. Raises OptionError.
        """
        del handler, buffer_size, source_host, source_port, broker_version, api_versions
        # Error reporters render the locals of frames.
        token = Token.of(token)
        self._id, self._host, self._port = int(id_), host, int(port)
        self._address = gateway or GatewayAddress.of(
            host, self._port, url=url, ssl_config=ssl_config, token=token, listener=listener
        )
        self._timeout_s = checked_count(socket_timeout_ms, "socket_timeout_ms") / 1000
        name = "offsets_channel_socket_timeout_ms"
        self._offsets_timeout_s = checked_count(offsets_channel_socket_timeout_ms, name) / 1000
        self._raise_errors = raise_errors
        self._lock = threading.Lock()
        self._connecting_offsets = threading.Lock()
        self._requests: _Requests | None = None
        self._offsets: OffsetRequests | None = None
        self._closing: ProduceRequests | None = None
        self._close_failure: SluicewayError | None = None
        # Even the garbage collection of their clients would wait for threads of the parent process.
        self._inherited: list[_Requests] = []
        try:
            self.connect()
        except SocketDisconnectedError as error:
            LOGGER.warning("the broker %s is not connected: %s", self, error)

    @classmethod
    def from_metadata(
        cls,
        metadata: Any,
        handler: Any = None,
        socket_timeout_ms: int = 30_000,
        offsets_channel_socket_timeout_ms: int = 10_000,
        buffer_size: int = 64 * 1024,
        source_host: str = "",
        source_port: int = 0,
        ssl_config: Any = None,
        broker_version: str = "0.9.0",
        api_versions: Any = None,
        **more: Any,
    ) -> Self:
        """Return a Broker for an entry of `request_metadata`, with the same gateway.

        Other metadata must have the gateway's host and port.
        """
        del handler, buffer_size, source_host, source_port, broker_version, api_versions
        more["token"] = Token.of(more.get("token"))
        return cls(
            metadata.id,
            metadata.host,
            metadata.port,
            None,
            socket_timeout_ms,
            offsets_channel_socket_timeout_ms,
            ssl_config=ssl_config,
            **{"gateway": getattr(metadata, "gateway", None), **more},
        )

    @property
    def connected(self) -> bool:
        """Whether the gateway answered the last request."""
        return self._requests is not None and self._requests.handler.connected

    @property
    def offsets_channel_connected(self) -> bool:
        """Whether the gateway answered the last request to commit or fetch offsets."""
        return self._offsets is not None and self._offsets.handler.connected

    @property
    def id(self) -> int:
        """The id given to the constructor."""
        return self._id

    @property
    def host(self) -> str:
        """The host given to the constructor."""
        return self._host

    @property
    def port(self) -> int:
        """The port given to the constructor."""
        return self._port

    @property
    def handler(self) -> RequestHandler | None:
        """The connection for requests other than committed offsets; None: not connected."""
        return None if self._requests is None else self._requests.handler

    @property
    def offsets_channel_handler(self) -> RequestHandler | None:
        """The connection for committing and fetching offsets; None: not connected."""
        return None if self._offsets is None else self._offsets.handler

    def _get_unique_req_handler(self, connection_id: object) -> RequestHandler | None:
        """Return `handler` for any id, because requests of members do not block each other."""
        del connection_id
        return self.handler

    def connect(self, attempts: int = 3) -> None:
        """Connect, or connect again. Raises SocketDisconnectedError after `attempts`.

        A forked process has to connect again. Raises Unauthenticated for a token that the gateway
        does not know.
        """
        handler = RequestHandler(self._address, timeout_s=self._timeout_s)
        handler.greet(attempts)
        with self._lock:
            before = self._own()
            produces = before.produces if before else ProduceRequests(handler, self._address)
            produces.handler = handler
            self._requests = _Requests(handler, self._address, produces)
            self._close_failure = None
        if before is not None:
            before.close()

    def connect_offsets_channel(self, attempts: int = 3) -> None:
        """Connect for offsets, which their calls also do; raises the errors of `connect`."""
        handler = RequestHandler(self._address, timeout_s=self._offsets_timeout_s)
        handler.greet(attempts)
        with self._lock:
            before, self._offsets = self._offsets, OffsetRequests(handler)
        if before is not None:
            before.handler.stop()

    def close(self, error: BaseException | None = None) -> None:
        """Report the end offsets of the produced messages, or `error`, and disconnect.

        A repeated call raises a failure again, unless an `error` is given. After GatewayUnavailable
        the end is reported by a repeated call, or once the gateway answers. Members leave their
        groups by `leave_group`, or become lost without heartbeats.
        """
        with self._lock:
            requests, self._requests = self._own(), None
            offsets, self._offsets = self._offsets, None
            if requests is not None:
                self._closing = requests.produces
        if requests is None and error is None and self._close_failure is not None:
            raise self._close_failure
        try:
            if self._closing is not None:
                self._closing.close(error)
            self._closing = None
        except GatewayUnavailable:
            raise
        except SluicewayError as failure:
            self._closing, self._close_failure = None, failure
            raise
        finally:
            if requests is not None:
                requests.close()
            if offsets is not None:
                offsets.handler.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close; after an exception other than `sys.exit(0)` its writers have failed."""
        self.close(None if is_success(error) else error)

    def __repr__(self) -> str:
        kind = type(self)
        where = f"host={self._host}, port={self._port}, id={self._id}"
        return f"<{kind.__module__}.{kind.__name__} at {id(self):#x} ({where})>"

    def fetch_messages(
        self, partition_requests: Iterable[Any], timeout: int = 30_000, min_bytes: int = 1
    ) -> FetchResponse:
        """Return messages of partitions, from each request's offset on.

        Waits up to `timeout` milliseconds for `min_bytes` of keys and values, but not if a
        partition is refused. Each partition returns up to `max_bytes`, and at least one message.
        Codes: UnknownTopicOrPartition, OffsetOutOfRangeError, TopicAuthorizationFailed.
        """
        timeout_s = checked_count(timeout, "timeout") / 1000
        checked_count(min_bytes, "min_bytes")
        with self._request() as requests:
            return self._checked(
                requests.fetches.fetch(partition_requests, timeout_s=timeout_s, min_bytes=min_bytes)
            )

    def produce_messages(self, produce_request: Any) -> ProduceResponse | None:
        """Write the messages of a ProduceRequest; return when all replicas have them.

        With `required_acks=0` it returns None without waiting. A partition's messages are
        validated before any of them is sent. Codes: InvalidMessageError, MessageSizeTooLarge,
        UnknownTopicOrPartition, also if the topic was created again since the first request,
        InvalidTopic for a closed channel, RequestTimedOut.
        """
        with self._request() as requests:
            response = requests.produces.produce(produce_request)
            return None if response is None else self._checked(response)

    def request_offset_limits(self, partition_requests: Iterable[Any]) -> ListOffsetResponse:
        """Return an offset for each partition: the beginning (-2) or the end (-1).

        For a time in milliseconds, the first offset that is not older, or the end.
        """
        with self._request() as requests:
            return self._checked(requests.admin.offset_limits(partition_requests))

    def request_metadata(self, topics: Iterable[Any] | None = None) -> MetadataResponse:
        """Describe channels and Kafka's brokers; without names all channels the token may see."""
        with self._request() as requests:
            return self._checked(requests.admin.describe_topics(topics))

    def commit_consumer_group_offsets(
        self,
        consumer_group: bytes | str,
        consumer_group_generation_id: int,
        consumer_id: bytes | str,
        preqs: Iterable[Any],
    ) -> OffsetCommitResponse:
        """Commit the next offsets to read, as a member of the group in its generation.

        With the generation -1 and an empty id it commits without membership, if the group has no
        members. The partitions of a channel are committed together. Codes: UnknownMemberId;
        RebalanceInProgress before the member has synced; IllegalGeneration, also if another
        consumer moved the offset of a group without members since this process fetched it;
        OffsetOutOfRangeError for offsets that this process has not fetched or that go back.
        """
        with self._offset_request() as offsets:
            return self._checked(
                offsets.commit(consumer_group, consumer_group_generation_id, consumer_id, preqs)
            )

    def fetch_consumer_group_offsets(
        self, consumer_group: bytes | str, preqs: Iterable[Any]
    ) -> OffsetFetchResponse:
        """Return a group's committed offsets, -1 without one."""
        with self._offset_request() as offsets:
            return self._checked(offsets.fetch(consumer_group, preqs))

    def join_group(
        self,
        connection_id: object,
        consumer_group: bytes | str,
        member_id: bytes | str,
        topic_name: bytes | str,
        membership_protocol: Any = None,
    ) -> JoinGroupResponse:
        """Join a channel's group; an empty id joins as a new member.

        Returns at once. A member that joins again keeps its partitions until it syncs.
        """
        del connection_id
        with self._request() as requests:
            return self._checked(
                requests.groups.join(consumer_group, member_id, topic_name, membership_protocol)
            )

    def sync_group(
        self,
        connection_id: object,
        consumer_group: bytes | str,
        generation_id: int,
        member_id: bytes | str,
        group_assignment: Iterable[Any] = (),
    ) -> SyncGroupResponse:
        """Release the member's partitions, and return those of the joined generation.

        The gateway assigns partitions; `group_assignment` is ignored. Partitions that another
        member has not released yet follow later: a heartbeat then returns RebalanceInProgress.
        """
        del connection_id
        with self._request() as requests:
            return self._checked(
                requests.groups.sync(consumer_group, generation_id, member_id, group_assignment)
            )

    def heartbeat(
        self,
        connection_id: object,
        consumer_group: bytes | str,
        generation_id: int,
        member_id: bytes | str,
    ) -> HeartbeatResponse:
        """Send a member's heartbeat; RebalanceInProgress in the response means: join again.

        Without a heartbeat for the channel's heartbeat timeout, the member loses its partitions.
        """
        del connection_id
        with self._request() as requests:
            return self._checked(
                requests.groups.heartbeat(consumer_group, generation_id, member_id)
            )

    def leave_group(
        self, connection_id: object, consumer_group: bytes | str, member_id: bytes | str
    ) -> LeaveGroupResponse:
        """Leave the group; the other members get the partitions."""
        del connection_id
        with self._request() as requests:
            return self._checked(requests.groups.leave(consumer_group, member_id))

    def list_groups(self) -> ListGroupsResponse:
        """List the groups of all channels that the token may see."""
        with self._request() as requests:
            return requests.groups.list_all()

    def describe_groups(self, group_ids: Iterable[bytes | str]) -> DescribeGroupsResponse:
        """Describe groups, with their live readers."""
        with self._request() as requests:
            return requests.groups.describe(group_ids)

    def create_topics(self, topic_reqs: Iterable[Any], timeout: int = 0) -> None:
        """Create channels of the format `bytes`, and wait up to `timeout` milliseconds for them.

        Raises Conflict if one exists; `Gateway.channel` creates channels with a schema.
        """
        timeout_s = checked_count(timeout, "timeout") / 1000
        with self._request() as requests:
            requests.admin.create_topics(topic_reqs, timeout_s)

    def delete_topics(self, topics: Iterable[bytes | str], timeout: int = 0) -> None:
        """Delete channels with their records, and wait up to `timeout` milliseconds for that.

        Raises Conflict while a channel has live endpoints or unread records.
        """
        timeout_s = checked_count(timeout, "timeout") / 1000
        with self._request() as requests:
            requests.admin.delete_topics(topics, timeout_s)

    def fetch_api_versions(self) -> ApiVersionsResponse:
        """Return the supported requests, each with version 0 only."""
        self._online()
        return ApiVersionsResponse()

    def _own(self) -> _Requests | None:
        """Return the requests; keep those of the process that forked this one, and return None."""
        requests = self._requests
        if requests is not None and requests.handler.inherited:
            self._inherited.append(requests)
            return None
        return requests

    def _online(self) -> _Requests:
        requests = self._requests
        if requests is None or not requests.handler.running:
            raise SocketDisconnectedError("the Broker is not connected: call connect()")
        return requests

    @contextmanager
    def _request(self) -> Iterator[_Requests]:
        requests = self._online()
        with requests.handler.request():
            yield requests

    @contextmanager
    def _offset_request(self) -> Iterator[OffsetRequests]:
        # Only one thread may connect, or another one would close its connection.
        with self._connecting_offsets:
            handler = self.offsets_channel_handler
            if handler is None or not handler.running:
                self.connect_offsets_channel()
            offsets = self._offsets
        if offsets is None:
            raise SocketDisconnectedError("the Broker was closed: call connect_offsets_channel()")
        with offsets.handler.request():
            yield offsets

    def _checked(self, response: R) -> R:
        return response.check() if self._raise_errors else response
