"""Broker: pykafka's requests, for programs that send Kafka's requests one by one."""

import logging
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar, TypeVarTuple

from sluiceway.broker import admin, groups
from sluiceway.broker.connection import GatewayAddress, RequestHandler
from sluiceway.broker.exceptions import SocketDisconnectedError
from sluiceway.broker.fetch import Sources
from sluiceway.broker.produce import Writers, is_unreported
from sluiceway.broker.protocol import (
    ApiVersionsResponse,
    DescribeGroupsResponse,
    FetchResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    ListOffsetResponse,
    MetadataResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    ProduceResponse,
    Response,
    SyncGroupResponse,
    checked_count,
)
from sluiceway.errors import SluicewayError
from sluiceway.spi import FairLock, Token, is_success, this_process

__all__ = ["Broker"]

LOGGER = logging.getLogger("sluiceway.broker")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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
        self._inherited: list[object] = []
        self._begin()
        try:
            self.connect()
        except SocketDisconnectedError as error:
            LOGGER.warning("the broker %s is not connected: %s", self, error)

    def _begin(self) -> None:
        """Begin without connections."""
        # Guards the handlers; a call that connects for offsets holds it, so no other thread does.
        self._lock = FairLock()
        self._handler: RequestHandler | None = None
        self._offsets_handler: RequestHandler | None = None
        self._sources = Sources()
        self._writers = Writers()
        self._close_failure: SluicewayError | None = None
        # Last, because other threads of a forked child check it before they use the new state.
        self._process = this_process()

    def _begin_after_fork(self) -> None:
        """Begin without connections in a forked process, where its parent's are unusable."""
        if self._process.forked:
            # Even the garbage collection of their clients would wait for threads of the parent.
            parents = (self._handler, self._offsets_handler, self._sources, self._writers)
            self._inherited.append(parents)
            self._begin()

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
        return self._handler is not None and self._handler.connected

    @property
    def offsets_channel_connected(self) -> bool:
        """Whether the gateway answered the last request to commit or fetch offsets."""
        return self._offsets_handler is not None and self._offsets_handler.connected

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
        return self._handler

    @property
    def offsets_channel_handler(self) -> RequestHandler | None:
        """The connection for committing and fetching offsets; None: not connected."""
        return self._offsets_handler

    def _get_unique_req_handler(self, connection_id: object) -> RequestHandler | None:
        """Return `handler` for any id, because requests of members do not block each other."""
        del connection_id
        return self.handler

    def connect(self, attempts: int = 3) -> None:
        """Connect, or connect again. Raises SocketDisconnectedError after `attempts`.

        A forked process has to connect again. Raises Unauthenticated for a token that the gateway
        does not know.
        """
        self._begin_after_fork()
        handler = RequestHandler(self._address, timeout_s=self._timeout_s, attempts=attempts)
        with self._lock:
            before, self._handler = self._handler, handler
            self._close_failure = None
        if before is not None:
            self._sources.close()
            before.stop()

    def connect_offsets_channel(self, attempts: int = 3) -> None:
        """Connect for offsets, which their calls also do; raises the errors of `connect`."""
        self._begin_after_fork()
        timeout_s = self._offsets_timeout_s
        handler = RequestHandler(self._address, timeout_s=timeout_s, attempts=attempts)
        with self._lock:
            before, self._offsets_handler = self._offsets_handler, handler
        if before is not None:
            before.stop()

    def close(self, error: BaseException | None = None) -> None:
        """Report the end offsets of the produced messages, or `error`, and disconnect.

        A repeated call raises a failure again, unless an `error` is given. After a GatewayError
        that is not final, the end is reported by a repeated call, or once the gateway accepts it.
        Members leave their groups by `leave_group`, or become lost without heartbeats.
        """
        self._begin_after_fork()
        self._writers.lock.require_free("producing")
        self._sources.lock.require_free("fetching")
        with self._lock:
            handler, self._handler = self._handler, None
            offsets_handler, self._offsets_handler = self._offsets_handler, None
        try:
            if handler is None and error is None and self._close_failure is not None:
                raise self._close_failure
            self._writers.close(error, timeout_s=self._timeout_s)
        except SluicewayError as failure:
            if not is_unreported(failure):
                self._close_failure = failure
            raise
        finally:
            self._sources.close()
            if handler is not None:
                handler.stop()
            if offsets_handler is not None:
                offsets_handler.stop()

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
        return self._send(self._sources.fetch, partition_requests, timeout, min_bytes)

    def produce_messages(self, produce_request: Any) -> ProduceResponse | None:
        """Write the messages of a ProduceRequest; return when all replicas have them.

        With `required_acks=0` it returns None without waiting. A partition's messages are
        validated before any of them is sent. Codes: InvalidMessageError, MessageSizeTooLarge,
        UnknownTopicOrPartition, also if the topic was created again since the first request,
        InvalidTopic for a closed channel, RequestTimedOut.
        """
        return self._send(self._writers.produce, produce_request)

    def request_offset_limits(self, partition_requests: Iterable[Any]) -> ListOffsetResponse:
        """Return an offset for each partition: the beginning (-2) or the end (-1).

        For a time in milliseconds, the first offset that is not older, or the end.
        """
        return self._send(admin.list_offsets, partition_requests)

    def request_metadata(self, topics: Iterable[Any] | None = None) -> MetadataResponse:
        """Describe channels and Kafka's brokers; without names all channels the token may see."""
        return self._send(admin.describe_topics, topics)

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
        return self._respond(
            self._running_offsets_handler(),
            groups.commit_offsets,
            consumer_group,
            consumer_group_generation_id,
            consumer_id,
            preqs,
        )

    def fetch_consumer_group_offsets(
        self, consumer_group: bytes | str, preqs: Iterable[Any]
    ) -> OffsetFetchResponse:
        """Return a group's committed offsets, -1 without one."""
        return self._respond(
            self._running_offsets_handler(), groups.fetch_offsets, consumer_group, preqs
        )

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
        return self._send(
            groups.join_group, consumer_group, member_id, topic_name, membership_protocol
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
        return self._send(
            groups.sync_group, consumer_group, generation_id, member_id, group_assignment
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
        return self._send(groups.heartbeat, consumer_group, generation_id, member_id)

    def leave_group(
        self, connection_id: object, consumer_group: bytes | str, member_id: bytes | str
    ) -> LeaveGroupResponse:
        """Leave the group; the other members get the partitions."""
        del connection_id
        return self._send(groups.leave_group, consumer_group, member_id)

    def list_groups(self) -> ListGroupsResponse:
        """List the groups of all channels that the token may see."""
        return self._send(groups.list_groups)

    def describe_groups(self, group_ids: Iterable[bytes | str]) -> DescribeGroupsResponse:
        """Describe groups, with their live readers."""
        return self._send(groups.describe_groups, group_ids)

    def create_topics(self, topic_reqs: Iterable[Any], timeout: int = 0) -> None:
        """Create channels of the format `bytes`, and wait up to `timeout` milliseconds for them.

        Raises Conflict if one exists; `Gateway.channel` creates channels with a schema.
        """
        self._send(admin.create_topics, topic_reqs, timeout)

    def delete_topics(self, topics: Iterable[bytes | str], timeout: int = 0) -> None:
        """Delete channels with their records, and wait up to `timeout` milliseconds for that.

        Raises Conflict while a channel has live endpoints or unread records.
        """
        self._send(admin.delete_topics, topics, timeout)

    def fetch_api_versions(self) -> ApiVersionsResponse:
        """Return the supported requests, each with version 0 only."""
        self._running_handler()
        return ApiVersionsResponse()

    def _running_handler(self) -> RequestHandler:
        self._begin_after_fork()
        handler = self._handler
        if handler is None or not handler.running:
            raise SocketDisconnectedError("the Broker is not connected: call connect()")
        return handler

    def _running_offsets_handler(self) -> RequestHandler:
        """Return the connection for offsets, a new one if there is none."""
        self._begin_after_fork()
        with self._lock:
            handler = self._offsets_handler
            if handler is None or not handler.running:
                handler = RequestHandler(self._address, timeout_s=self._offsets_timeout_s)
                self._offsets_handler = handler
            return handler

    def _send(self, request: Callable[[RequestHandler, *Ts], T], *arguments: *Ts) -> T:
        """Return the response of a request. Raises SocketDisconnectedError."""
        return self._respond(self._running_handler(), request, *arguments)

    def _respond(
        self, handler: RequestHandler, request: Callable[[RequestHandler, *Ts], T], *arguments: *Ts
    ) -> T:
        with handler.request():
            response = request(handler, *arguments)
        if self._raise_errors and isinstance(response, Response):
            response.check()
        return response
