"""Admin and metadata requests: topics, Kafka's brokers, offset limits."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sluiceway.api.models import ChannelSpec, Connection, Retention
from sluiceway.broker.connection import GatewayAddress, RequestHandler
from sluiceway.broker.exceptions import (
    LeaderNotAvailable,
    ProtocolClientError,
    SocketDisconnectedError,
    UnknownTopicOrPartition,
    partition_refusal,
    topic_refusal,
)
from sluiceway.broker.protocol import (
    BrokerMetadata,
    ByName,
    ListOffsetResponse,
    MetadataResponse,
    OffsetPartitionResponse,
    OffsetType,
    PartitionMetadata,
    TopicMetadata,
    in_bytes,
    in_text,
    last_requests,
)
from sluiceway.channel import Channel
from sluiceway.errors import Forbidden, KafkaFailure, OptionError, SluicewayError
from sluiceway.kafka.config import MaskedProperties, admin_config
from sluiceway.kafka.errors import create_client, translate_error

__all__ = [
    "AdminRequests",
    "ApiVersionsResponse",
    "ApiVersionsSpec",
    "CreateTopicRequest",
]

_NO_LEADER = -1
_NO_LEADER_REASON = "the partition has no leader; try again when its brokers are available"


class CreateTopicRequest(NamedTuple):
    """A channel to create, of the format `bytes`."""

    topic_name: bytes | str
    num_partitions: int = 1
    replication_factor: int = -1
    replica_assignment: Any = ()
    config_entries: Any = ()


class ApiVersionsSpec(NamedTuple):
    """The supported versions of a request."""

    key: int
    min: int = 0
    max: int = 0


@dataclass(frozen=True)
class ApiVersionsResponse:
    """The supported requests, by Kafka's numbers."""

    api_versions: dict[int, ApiVersionsSpec] = field(
        default_factory=lambda: {
            key: ApiVersionsSpec(key) for key in (*range(4), 8, 9, *range(11, 17), 18, 19, 20)
        }
    )


class AdminRequests:
    """Admin and metadata requests of one Broker; the brokers of its metadata have its `gateway`.

    Refusals of admin requests are raised, as in pykafka.
    """

    def __init__(self, handler: RequestHandler, *, gateway: GatewayAddress) -> None:
        self._handler = handler
        self._control = handler.control
        self._gateway = gateway
        self._clients: dict[MaskedProperties, Any] = {}

    def create_topics(self, requests: Iterable[Any], timeout_s: float) -> None:
        """Create channels of the format `bytes`; with a timeout, wait until they are ready."""
        deadline_s = time.monotonic() + timeout_s
        for request in list(requests):
            if request.replica_assignment:
                raise OptionError(
                    "replica_assignment cannot be set, because Kafka assigns replicas: omit it, "
                    "and set their number with replication_factor"
                )
            retention, config = _settings(request.config_entries)
            spec = ChannelSpec(
                format="bytes",
                partitions=request.num_partitions,
                replication=request.replication_factor if request.replication_factor > 0 else None,
                retention=retention,
                config=config,
            )
            created = self._control.create(in_text(request.topic_name, "topic"), spec=spec)
            if timeout_s > 0:
                Channel(self._control, created).wait_until_ready(deadline_s - time.monotonic())

    def delete_topics(self, topics: Iterable[Any], timeout_s: float) -> None:
        """Delete channels with their records; with a timeout, wait until they are deleted."""
        deadline_s = time.monotonic() + timeout_s
        for name in [in_text(topic, "topic") for topic in topics]:
            channel = Channel(self._control, self._control.channel(name))
            self._control.delete(name, uid=channel.uid, keep_topic=False)
            self._handler.forget(name)
            if timeout_s > 0:
                channel.wait_until_gone(deadline_s - time.monotonic())

    def describe_topics(self, topics: Iterable[Any] | None) -> MetadataResponse:
        """Describe channels and Kafka's brokers; without names all channels the token may see."""
        names = list(topics or ()) or [channel.name for channel in self._control.channels()]
        described: ByName[TopicMetadata] = ByName()
        cluster: Any = None
        brokers: dict[int, BrokerMetadata] = {}
        for name in (in_bytes(topic, "topic") for topic in names):
            try:
                connection = self._handler.connection(name, fresh=True)
            except SluicewayError as error:
                described[name] = _refused_topic(name, topic_refusal(error))
                continue
            cluster = self._list_topics(connection)
            described[name] = _topic(name, cluster.topics[connection.topic_name])
            brokers |= self._brokers(cluster.brokers.values())
        if not brokers:
            # Without a channel's connection to Kafka, request the brokers from the gateway.
            try:
                cluster = self._control.cluster()
            except Forbidden:
                return MetadataResponse({}, described)
            brokers = self._brokers(cluster.brokers)
        return MetadataResponse(brokers, described, cluster.controller_id, cluster.cluster_id)

    def offset_limits(self, requests: Any) -> ListOffsetResponse:
        """Return an offset for each partition; `Broker.request_offset_limits` documents it."""
        topics: ByName[dict[int, OffsetPartitionResponse]] = ByName()
        requested: dict[bytes, tuple[Connection, dict[int, int]]] = {}
        for request in last_requests(requests):
            topic = in_bytes(request.topic_name, "topic")
            when = request.offsets_before
            if type(when) is not int or when < OffsetType.EARLIEST:
                raise OptionError(
                    f"offsets_before is {when!r}; it takes -2 (the beginning), -1 (the end) or "
                    "milliseconds since 1970"
                )
            responses = topics.setdefault(topic, {})
            try:
                connection = self._handler.locate(topic, request.partition_id)
            except ProtocolClientError as refusal:
                responses[request.partition_id] = _refused_offset(refusal)
            else:
                _, times = requested.setdefault(topic, (connection, {}))
                times[request.partition_id] = when
        for topic, (connection, times) in requested.items():
            topics[topic] |= self._offsets(connection, times)
        return ListOffsetResponse(topics)

    def _brokers(self, brokers: Iterable[Any]) -> dict[int, BrokerMetadata]:
        return {broker.id: BrokerMetadata.named_by(self._gateway, broker) for broker in brokers}

    def _offsets(
        self, connection: Connection, times: Mapping[int, int]
    ) -> dict[int, OffsetPartitionResponse]:
        identity, timeout_s = self._handler.identity(connection), self._handler.timeout_s
        try:
            # Kafka's client fails for all partitions if one has no leader.
            leaderless = identity.leaderless(timeout_s=timeout_s)
            led = {p: when for p, when in times.items() if p not in leaderless}
            offsets = identity.offsets(led, timeout_s=timeout_s, committed=False) if led else {}
            # Without a message that is not older, the result is the end.
            late = [partition for partition, offset in offsets.items() if offset < 0]
            offsets |= identity.ends(late, timeout_s=timeout_s) if late else {}
            if connection.delivery == "exactly_once":
                # Later messages are uncommitted, or held back by an open batch.
                runs = self._handler.visibility(connection).runs
                offsets |= {
                    p: min(offset, runs.stable_of(p))
                    for p, offset in offsets.items()
                    if times[p] != OffsetType.EARLIEST
                }
        except SluicewayError as error:
            cause = error.__cause__
            if type(error) is KafkaFailure and isinstance(cause, KafkaException):
                refusal = partition_refusal(cause.args[0], "listing offsets")
            else:
                refusal = topic_refusal(error)
            return dict.fromkeys(times, _refused_offset(refusal))
        responses = dict.fromkeys(times, _refused_offset(LeaderNotAvailable(_NO_LEADER_REASON)))
        return responses | {p: OffsetPartitionResponse([at], 0) for p, at in offsets.items()}

    def _list_topics(self, connection: Connection) -> Any:
        name = connection.topic_name
        try:
            return self._client(connection).list_topics(name, timeout=self._handler.timeout_s)
        except KafkaException as error:
            failure = translate_error(error.args[0], doing="describing the topic", topic=name)
            raise SocketDisconnectedError(str(failure)) from error

    def _client(self, connection: Connection) -> Any:
        properties = admin_config(connection.kafka)
        return self._clients.get(properties) or self._clients.setdefault(
            properties, create_client(AdminClient, properties)
        )


def _settings(entries: Iterable[Any]) -> tuple[Retention | None, dict[str, str] | None]:
    """Return a topic's settings as the retention of a channel and its other settings."""
    config = {in_text(key, "setting"): in_text(value, "setting's value") for key, value in entries}
    retention = {}
    for unit in ("ms", "bytes"):
        value = config.pop(f"retention.{unit}", None)
        if value is not None:
            try:
                retention[unit] = int(value)
            except ValueError as error:
                raise OptionError(f"retention.{unit} is {value!r}; it takes a number") from error
    return Retention(**retention) if retention else None, config or None


def _topic(name: bytes, metadata: Any) -> TopicMetadata:
    if metadata.error is not None:
        return _refused_topic(name, partition_refusal(metadata.error, "describing the topic"))
    if not metadata.partitions:
        refusal = UnknownTopicOrPartition(
            "the channel's topic does not exist in Kafka; see the channel's status at the gateway"
        )
        return _refused_topic(name, refusal)
    return TopicMetadata(
        name,
        {
            number: _partition(partition)
            for number, partition in sorted(metadata.partitions.items())
        },
        0,
    )


def _partition(metadata: Any) -> PartitionMetadata:
    led = metadata.leader != _NO_LEADER
    return PartitionMetadata(
        id=metadata.id,
        leader=metadata.leader,
        replicas=list(metadata.replicas),
        isr=list(metadata.isrs),
        err=0 if led else LeaderNotAvailable.ERROR_CODE,
    ).because("" if led else _NO_LEADER_REASON)


def _refused_topic(name: bytes, refusal: ProtocolClientError) -> TopicMetadata:
    return TopicMetadata(name, {}, refusal.ERROR_CODE).because(refusal)


def _refused_offset(refusal: ProtocolClientError) -> OffsetPartitionResponse:
    return OffsetPartitionResponse([], refusal.ERROR_CODE).because(refusal)
