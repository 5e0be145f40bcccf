"""Metadata requests: topics, Kafka's brokers, offset limits."""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sluiceway.broker.connection import GatewayAddress, RequestHandler
from sluiceway.broker.exceptions import (
    LeaderNotAvailable,
    Refusal,
    SocketDisconnectedError,
    UnknownTopicOrPartition,
    partition_refusal,
    topic_refusal,
)
from sluiceway.broker.requests import ByName, OffsetType, each_once, in_bytes
from sluiceway.broker.responses import (
    BrokerMetadata,
    ListOffsetResponse,
    MetadataResponse,
    OffsetPartitionResponse,
    PartitionMetadata,
    TopicMetadata,
)
from sluiceway.errors import Forbidden, KafkaFailure, OptionError, SluicewayError
from sluiceway.kafka.config import MaskedProperties, admin_config
from sluiceway.kafka.errors import made, translated
from sluiceway.rest.models import Connection

__all__ = ["MetadataRequests"]

_NO_LEADER = -1


class MetadataRequests:
    """Metadata requests of one Broker; `gateway` goes into the brokers that it returns."""

    def __init__(self, handler: RequestHandler, *, gateway: GatewayAddress) -> None:
        self._handler = handler
        self._gateway = gateway
        self._admins: dict[MaskedProperties, Any] = {}

    def describe(self, topics: Iterable[Any] | None) -> MetadataResponse:
        """Describe channels and Kafka's brokers; without names all channels the token may see."""
        names = list(topics or ()) or [each.name for each in self._handler.control.channels()]
        described: ByName[TopicMetadata] = ByName()
        cluster: Any = None
        brokers: dict[int, BrokerMetadata] = {}
        for name in (in_bytes(each, "topic") for each in names):
            try:
                connection = self._handler.connection(name, fresh=True)
            except OptionError:
                raise
            except SluicewayError as error:
                refusal = topic_refusal(error)
                described[name] = TopicMetadata(name, {}, refusal.err, refusal.reason)
                continue
            cluster = self._list_topics(connection)
            described[name] = _topic(name, cluster.topics[connection.topic_name])
            brokers |= self._brokers(cluster.brokers.values())
        if not brokers:
            # Without a channel that leads to them, the gateway may name the brokers.
            try:
                cluster = self._handler.control.cluster()
            except Forbidden:
                return MetadataResponse({}, described)
            brokers = self._brokers(cluster.brokers)
        return MetadataResponse(brokers, described, cluster.controller_id, cluster.cluster_id)

    def offset_limits(self, requests: Any) -> ListOffsetResponse:
        """Return an offset for each partition; `Broker.request_offset_limits` documents it."""
        topics: ByName[dict[int, OffsetPartitionResponse]] = ByName()
        asked: dict[bytes, tuple[Connection, dict[int, int]]] = {}
        for request in each_once(requests):
            topic = in_bytes(request.topic_name, "topic")
            when = request.offsets_before
            if type(when) is not int or when < OffsetType.EARLIEST:
                raise OptionError(
                    f"offsets_before is {when!r}; it takes -2 (the beginning), -1 (the end) or "
                    "milliseconds since 1970"
                )
            found = self._handler.locate(topic, request.partition_id)
            answers = topics.setdefault(topic, {})
            if isinstance(found, Refusal):
                answers[request.partition_id] = _refused(found)
            else:
                _, times = asked.setdefault(topic, (found, {}))
                times[request.partition_id] = when
        for topic, (connection, times) in asked.items():
            topics[topic] |= self._offsets(connection, times)
        return ListOffsetResponse(topics)

    def _brokers(self, found: Iterable[Any]) -> dict[int, BrokerMetadata]:
        return {
            each.id: BrokerMetadata(each.id, each.host, each.port, gateway=self._gateway)
            for each in found
        }

    def _offsets(
        self, connection: Connection, times: Mapping[int, int]
    ) -> dict[int, OffsetPartitionResponse]:
        identity, timeout_s = self._handler.identity(connection), self._handler.timeout_s
        try:
            found = identity.offsets(times, timeout_s=timeout_s, committed=False)
            # Without a message that is not older than the time, the answer is the end.
            late = [partition for partition, offset in found.items() if offset < 0]
            found |= identity.ends(late, timeout_s=timeout_s) if late else {}
        except SluicewayError as error:
            cause = error.__cause__
            if type(error) is KafkaFailure and isinstance(cause, KafkaException):
                refusal = partition_refusal(cause.args[0], "listing offsets")
            else:
                refusal = topic_refusal(error)
            return dict.fromkeys(times, _refused(refusal))
        return {partition: OffsetPartitionResponse([offset]) for partition, offset in found.items()}

    def _list_topics(self, connection: Connection) -> Any:
        name = connection.topic_name
        try:
            return self._admin(connection).list_topics(name, timeout=self._handler.timeout_s)
        except KafkaException as error:
            failure = translated(error.args[0], doing="describing the topic", topic=name)
            raise SocketDisconnectedError(str(failure)) from error

    def _admin(self, connection: Connection) -> Any:
        properties = admin_config(connection.kafka)
        return self._admins.get(properties) or self._admins.setdefault(
            properties, made(AdminClient, properties)
        )


def _topic(name: bytes, found: Any) -> TopicMetadata:
    if found.error is not None:
        refusal = partition_refusal(found.error, "describing the topic")
        return TopicMetadata(name, {}, refusal.err, refusal.reason)
    if not found.partitions:
        return TopicMetadata(
            name,
            {},
            UnknownTopicOrPartition.ERROR_CODE,
            "Kafka does not have the channel's topic; ask the gateway for the channel's status",
        )
    return TopicMetadata(
        name, {number: _partition(each) for number, each in sorted(found.partitions.items())}
    )


def _partition(found: Any) -> PartitionMetadata:
    led = found.leader != _NO_LEADER
    return PartitionMetadata(
        id=found.id,
        leader=found.leader,
        replicas=list(found.replicas),
        isr=list(found.isrs),
        err=0 if led else LeaderNotAvailable.ERROR_CODE,
        reason="" if led else "the partition has no leader; ask again when its brokers are back",
    )


def _refused(refusal: Refusal) -> OffsetPartitionResponse:
    return OffsetPartitionResponse([], refusal.err, refusal.reason)
