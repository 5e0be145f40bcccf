"""Admin and metadata requests: topics, Kafka's brokers, offset limits.

Refusals of admin requests are raised, as in pykafka.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaException

from sluiceway import Channel, Connection, Retention
from sluiceway.broker.connection import RequestHandler
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
    checked_count,
    in_bytes,
    in_text,
    requests_by_topic,
)
from sluiceway.errors import Forbidden, KafkaFailure, OptionError, SluicewayError
from sluiceway.spi import ChannelSpec, translate_error

__all__ = ["create_topics", "delete_topics", "describe_topics", "list_offsets"]

_NO_LEADER = -1
_NO_LEADER_REASON = "the partition has no leader; try again when its brokers are available"


def create_topics(handler: RequestHandler, requests: Iterable[Any], timeout_ms: int) -> None:
    """Create channels of the format `bytes`; with a timeout, wait until they are ready."""
    deadline_s = time.monotonic() + checked_count(timeout_ms, "timeout") / 1000
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
        created = handler.control.create(in_text(request.topic_name, "topic"), spec=spec)
        if timeout_ms > 0:
            Channel(handler.control, created).wait_until_ready(deadline_s - time.monotonic())


def delete_topics(handler: RequestHandler, topics: Iterable[Any], timeout_ms: int) -> None:
    """Delete channels with their records; with a timeout, wait until they are deleted."""
    deadline_s = time.monotonic() + checked_count(timeout_ms, "timeout") / 1000
    for name in [in_text(topic, "topic") for topic in topics]:
        channel = Channel(handler.control, handler.control.channel(name))
        handler.control.delete(name, uid=channel.uid, keep_topic=False)
        handler.forget(name)
        if timeout_ms > 0:
            channel.wait_until_gone(deadline_s - time.monotonic())


def describe_topics(handler: RequestHandler, topics: Iterable[Any] | None) -> MetadataResponse:
    """Describe channels and Kafka's brokers; without names all channels the token may see."""
    names = list(topics or ()) or [channel.name for channel in handler.control.channels()]
    described: ByName[TopicMetadata] = ByName()
    cluster: Any = None
    brokers: dict[int, BrokerMetadata] = {}
    for name in (in_bytes(topic, "topic") for topic in names):
        try:
            connection = handler.connection(name, fresh=True)
        except SluicewayError as error:
            described[name] = _refused_topic(name, topic_refusal(error))
            continue
        cluster = _list_topics(handler, connection)
        described[name] = _topic(name, cluster.topics[connection.topic_name])
        brokers |= _brokers(handler, cluster.brokers.values())
    if not brokers:
        # Without a channel's connection to Kafka, request the brokers from the gateway.
        try:
            cluster = handler.control.cluster()
        except Forbidden:
            return MetadataResponse({}, described)
        brokers = _brokers(handler, cluster.brokers)
    return MetadataResponse(brokers, described, cluster.controller_id, cluster.cluster_id)


def list_offsets(handler: RequestHandler, requests: Iterable[Any]) -> ListOffsetResponse:
    """Return an offset for each partition: its beginning, its end, or the one of a time."""
    topics: ByName[dict[int, OffsetPartitionResponse]] = ByName()
    for topic, requested in requests_by_topic(requests).items():
        responses = topics[topic] = {}
        times: dict[int, int] = {}
        for partition, request in requested.items():
            when = request.offsets_before
            if type(when) is not int or when < OffsetType.EARLIEST:
                raise OptionError(
                    f"offsets_before is {when!r}; it takes -2 (the beginning), -1 (the end) or "
                    "milliseconds since 1970"
                )
            try:
                connection = handler.locate(topic, partition)
            except ProtocolClientError as refusal:
                responses[partition] = _refused_offset(refusal)
            else:
                times[partition] = when
        if times:
            responses |= _offsets(handler, connection, times)
    return ListOffsetResponse(topics)


def _offsets(
    handler: RequestHandler, connection: Connection, times: Mapping[int, int]
) -> dict[int, OffsetPartitionResponse]:
    identity, timeout_s = handler.identity(connection), handler.timeout_s
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
            runs = handler.visibility(connection).runs
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


def _list_topics(handler: RequestHandler, connection: Connection) -> Any:
    name, client = connection.topic_name, handler.admin_client(connection)
    try:
        return client.list_topics(name, timeout=handler.timeout_s)
    except KafkaException as error:
        failure = translate_error(error.args[0], doing="describing the topic", topic=name)
        raise SocketDisconnectedError(str(failure)) from error


def _brokers(handler: RequestHandler, brokers: Iterable[Any]) -> dict[int, BrokerMetadata]:
    """Return Kafka's brokers by id; a Broker for one of them uses the handler's gateway."""
    return {broker.id: BrokerMetadata.named_by(handler.address, broker) for broker in brokers}


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
