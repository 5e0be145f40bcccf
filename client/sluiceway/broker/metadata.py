"""Metadata requests: topics, Kafka's brokers, offset limits."""

import contextlib
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

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
from sluiceway.errors import Forbidden, OptionError, SluicewayError
from sluiceway.kafka.config import MaskedProperties, admin_config
from sluiceway.kafka.errors import is_unavailable, made, translated, with_retries
from sluiceway.rest.models import Connection

__all__ = ["MetadataRequests"]

_NO_LEADER = -1
_REFRESH_TIMEOUT_S = 2.0
_Key = tuple[bytes, int]
_Asked = tuple[Any, Connection]


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
        asked: dict[_Key, _Asked] = {}
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
                asked[topic, request.partition_id] = request, found
        for (topic, partition), answer in self._offsets(asked).items():
            topics[topic][partition] = answer
        return ListOffsetResponse(topics)

    def _brokers(self, found: Iterable[Any]) -> dict[int, BrokerMetadata]:
        return {
            each.id: BrokerMetadata(each.id, each.host, each.port, gateway=self._gateway)
            for each in found
        }

    def _offsets(self, asked: Mapping[_Key, _Asked]) -> dict[_Key, OffsetPartitionResponse]:
        at_end = {
            key for key, (each, _) in asked.items() if each.offsets_before == OffsetType.LATEST
        }
        found = self._list_offsets({key: asked[key] for key in asked if key not in at_end})
        # No message is as young as the time asked for: the answer is the end.
        at_end |= {key for key, answer in found.items() if answer.offset == [-1]}
        return found | self._list_offsets({key: asked[key] for key in at_end}, latest=True)

    def _list_offsets(
        self, asked: Mapping[_Key, _Asked], *, latest: bool = False
    ) -> dict[_Key, OffsetPartitionResponse]:
        # All at once; partitions with an election are asked for again one by one.
        timeout_s = self._handler.timeout_s
        deadline_s = time.monotonic() + timeout_s
        futures = {
            key: self._list_offset(*each, timeout_s, latest=latest) for key, each in asked.items()
        }
        answers = {}
        for key, each in asked.items():
            try:
                offset = self._offset(futures[key], *each, deadline_s, latest=latest)
                answers[key] = OffsetPartitionResponse([offset])
            except KafkaException as error:
                cause = error.args[0]
                # librdkafka's own errors concern the brokers, not this partition.
                if cause.code() < 0 and is_unavailable(cause):
                    failure = translated(cause, doing="asking for offsets", topic="several")
                    raise SocketDisconnectedError(str(failure)) from error
                answers[key] = _refused(partition_refusal(cause, "listing offsets"))
            except TimeoutError as error:
                raise SocketDisconnectedError(
                    f"Kafka did not list the offsets within {timeout_s:g} s; ask again when its "
                    "brokers are back"
                ) from error
        return answers

    def _offset(
        self,
        future: "Future[Any] | None",
        request: Any,
        connection: Connection,
        deadline_s: float,
        *,
        latest: bool,
    ) -> int:
        """Return the result of `future`, or that of another request."""

        def ask(left_s: float) -> int:
            nonlocal future
            pending, future = future, None
            pending = pending or self._list_offset(request, connection, left_s, latest=latest)
            return int(pending.result(left_s + 1).offset)

        def refresh(left_s: float) -> None:
            # After an election, librdkafka would send the epoch of the former leader.
            with contextlib.suppress(KafkaException):
                name, timeout_s = connection.topic_name, min(left_s, _REFRESH_TIMEOUT_S)
                self._admin(connection).list_topics(name, timeout=timeout_s)

        left_s = max(0.0, deadline_s - time.monotonic())
        return with_retries(ask, timeout_s=left_s, refresh=refresh)

    def _list_offset(
        self, request: Any, connection: Connection, timeout_s: float, *, latest: bool
    ) -> "Future[Any]":
        place = TopicPartition(connection.topic_name, request.partition_id)
        if latest:
            spec = OffsetSpec.latest()
        elif request.offsets_before == OffsetType.EARLIEST:
            spec = OffsetSpec.earliest()
        else:
            spec = OffsetSpec.for_timestamp(request.offsets_before)
        futures = self._admin(connection).list_offsets({place: spec}, request_timeout=timeout_s)
        future: Future[Any] = futures[place]
        return future

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
