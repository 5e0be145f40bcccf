"""Admin requests: groups, topics, metadata, offset limits."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from sluiceway.broker.connection import RequestHandler
from sluiceway.broker.errors import Refusal, of_kafka, of_topic
from sluiceway.broker.exceptions import (
    LeaderNotAvailable,
    SocketDisconnectedError,
    UnknownTopicOrPartition,
)
from sluiceway.broker.requests import ByName, OffsetType, each_once, in_bytes, in_text
from sluiceway.broker.responses import (
    BrokerMetadata,
    ListOffsetResponse,
    MemberAssignment,
    MetadataResponse,
    OffsetPartitionResponse,
    PartitionMetadata,
    TopicMetadata,
)
from sluiceway.channel import Channel
from sluiceway.errors import Forbidden, OptionError, SluicewayError
from sluiceway.kafka.config import MaskedProperties, admin_config
from sluiceway.kafka.errors import create_client, is_unavailable, translate_error, with_retries
from sluiceway.rest.endpoint_models import Endpoint
from sluiceway.rest.models import Connection

_PROTOCOL_TYPE = b"consumer"


@dataclass(frozen=True)
class GroupListing:
    """A group that somebody was in, or committed for."""

    group_id: bytes
    protocol_type: bytes = _PROTOCOL_TYPE


@dataclass(frozen=True)
class ListGroupsResponse:
    """Groups by name, whichever channel they read."""

    groups: ByName[GroupListing]
    error: int = 0


@dataclass(frozen=True)
class GroupMember:
    """A reader that is at work; `member_assignment` names its channel, and no partitions."""

    member_id: bytes
    client_id: bytes
    client_host: bytes
    member_metadata: Any
    member_assignment: MemberAssignment


@dataclass(frozen=True)
class DescribeGroupResponse:
    """A group: `Stable` with its members at work, `Empty` without, `Dead` if there is none."""

    error_code: int
    group_id: bytes
    state: bytes
    protocol_type: bytes
    protocol: bytes
    members: dict[bytes, GroupMember]


@dataclass(frozen=True)
class DescribeGroupsResponse:
    """Groups by name."""

    groups: ByName[DescribeGroupResponse]


@dataclass(frozen=True)
class CreateTopicRequest:
    """A channel to be made, of the format `bytes`."""

    name: bytes | str
    num_partitions: int = 1
    replication_factor: int = -1
    replica_assignment: Any = ()
    config_entries: Any = ()


@dataclass(frozen=True)
class ApiVersionsSpec:
    """The versions of a request that are understood."""

    key: int
    min: int = 0
    max: int = 0


@dataclass(frozen=True)
class ApiVersionsResponse:
    """What a Broker understands, by the numbers that Kafka gives to requests."""

    api_versions: dict[int, ApiVersionsSpec] = field(
        default_factory=lambda: {
            key: ApiVersionsSpec(key) for key in (*range(4), 8, 9, *range(11, 17), 18, 19, 20)
        }
    )


class Administering:
    """What one Broker asks about groups and topics; what is refused is raised, as in pykafka."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._control = handler.control

    def groups(self) -> ListGroupsResponse:
        """List the groups of all channels that the token may see."""
        found: ByName[GroupListing] = ByName()
        for channel in self._handler.ask(lambda: list(self._control.channels())):
            for name in self._names(channel.name):
                found[name.encode()] = GroupListing(name.encode())
        return ListGroupsResponse(found)

    def described(self, group_ids: Iterable[Any]) -> DescribeGroupsResponse:
        """Describe groups, with their readers that are at work."""
        names = [in_bytes(each, "group") for each in group_ids]
        known: set[bytes] = set()
        members: dict[bytes, dict[bytes, GroupMember]] = {}
        for channel in self._handler.ask(lambda: list(self._control.channels())):
            topic = channel.name.encode()
            known |= {name.encode() for name in self._names(channel.name)}
            for each in self._readers(channel.name):
                mine = members.setdefault((each.group or "").encode(), {})
                mine[each.id.encode()] = GroupMember(
                    each.id.encode(), b"", b"", None, MemberAssignment([(topic, [])])
                )
        found: ByName[DescribeGroupResponse] = ByName()
        for name in names:
            there = members.get(name, {})
            state = b"Stable" if there else b"Empty" if name in known else b"Dead"
            found[name] = DescribeGroupResponse(0, name, state, _PROTOCOL_TYPE, b"", there)
        return DescribeGroupsResponse(found)

    def create(self, requests: Iterable[Any], timeout_s: float) -> None:
        """Make channels of the format `bytes`; wait until they are ready, if there is time to."""
        deadline_s = time.monotonic() + timeout_s
        for each in list(requests):
            if each.replica_assignment:
                raise OptionError(
                    "replica_assignment is Kafka's to decide: leave it out, and say how many by "
                    "replication_factor"
                )
            spec: dict[str, Any] = {"format": "bytes", "partitions": each.num_partitions}
            if each.replication_factor > 0:
                spec["replication"] = each.replication_factor
            spec |= _settings(each.config_entries)
            name = in_text(each.name, "topic")
            made = self._handler.ask(
                lambda name=name, spec=spec: self._control.create(name, spec=spec, labels={})  # type: ignore[misc]
            )
            if timeout_s > 0:
                Channel(self._control, made).wait_until_ready(deadline_s - time.monotonic())

    def delete(self, topics: Iterable[Any], timeout_s: float) -> None:
        """Delete channels with their records; wait until they are gone, if there is time to."""
        deadline_s = time.monotonic() + timeout_s
        for name in [in_text(each, "topic") for each in topics]:
            channel = Channel(
                self._control,
                self._handler.ask(lambda name=name: self._control.channel(name)),  # type: ignore[misc]
            )
            self._handler.ask(
                lambda channel=channel: self._control.delete(  # type: ignore[misc]
                    channel.name, uid=channel.uid, keep_topic=False
                )
            )
            self._handler.forget(name)
            if timeout_s > 0:
                channel.wait_until_gone(deadline_s - time.monotonic())

    def _names(self, channel: str) -> Iterator[str]:
        report = self._handler.ask(lambda: self._control.status(channel))
        return (each.group for each in (report.groups if report is not None else ()))

    def _readers(self, channel: str) -> list[Endpoint]:
        found, _ = self._handler.ask(lambda: self._control.endpoints.endpoints(channel))
        return [each for each in found or () if each.role == "reader" and each.lives and each.group]


def _settings(entries: Iterable[Any]) -> dict[str, Any]:
    """Return a topic's settings as a channel has them, which keeps retention apart."""
    config = {in_text(key, "setting"): in_text(value, "setting's value") for key, value in entries}
    retention = {}
    for word in ("ms", "bytes"):
        given = config.pop(f"retention.{word}", None)
        if given is not None:
            try:
                retention[word] = int(given)
            except ValueError as error:
                raise OptionError(f"retention.{word} is {given!r}; it takes a number") from error
    return ({"retention": retention} if retention else {}) | ({"config": config} if config else {})


_NO_LEADER = -1
_MAX_LOOK_S = 2.0


class Looking:
    """The questions of one Broker about topics."""

    def __init__(self, handler: RequestHandler, *, known_as: Any) -> None:
        """Ask by `handler`; `known_as` is what brokers say they were heard of from."""
        self._handler = handler
        self._known_as = known_as
        self._admins: dict[MaskedProperties, Any] = {}

    def metadata(self, topics: Iterable[Any] | None) -> MetadataResponse:
        """Describe channels, all that the token may see if none is named, and Kafka's brokers."""
        names = list(topics or ())
        if not names:
            names = [each.name for each in self._handler.ask(self._channels)]
        told: ByName[TopicMetadata] = ByName()
        brokers: dict[int, BrokerMetadata] = {}
        controller, cluster = None, None
        for name in (in_bytes(each, "topic") for each in names):
            try:
                connection = self._handler.connection(name, fresh=True)
            except OptionError:
                raise
            except SluicewayError as error:
                refusal = of_topic(error)
                told[name] = TopicMetadata(name, {}, refusal.err, refusal.reason)
                continue
            found = self._listed(connection)
            told[name] = _topic(name, found.topics[connection.topic_name])
            controller, cluster = found.controller_id, found.cluster_id
            for each in found.brokers.values():
                brokers[each.id] = BrokerMetadata(
                    each.id, each.host, each.port, gateway=self._known_as
                )
        if not brokers:
            return self._without_channels(told)
        return MetadataResponse(brokers, told, controller, cluster)

    def limits(self, requests: Any) -> ListOffsetResponse:
        """Return an offset for each partition; `Broker.request_offset_limits` says which."""
        topics: ByName[dict[int, OffsetPartitionResponse]] = ByName()
        asked: dict[tuple[bytes, int], tuple[Any, Connection]] = {}
        for request in each_once(requests):
            topic = in_bytes(request.topic_name, "topic")
            when = request.offsets_before
            if type(when) is not int or when < OffsetType.EARLIEST:
                raise OptionError(
                    f"offsets_before is {when!r}; it takes -2 (the beginning), -1 (the end) or "
                    "milliseconds since 1970"
                )
            place = self._handler.located(topic, request.partition_id)
            answers = topics.setdefault(topic, {})
            if isinstance(place, Refusal):
                answers[request.partition_id] = _refused(place)
            else:
                asked[topic, request.partition_id] = request, place
        for (topic, partition), answer in self._found(asked).items():
            topics[topic][partition] = answer
        return ListOffsetResponse(topics)

    def _without_channels(self, told: ByName[TopicMetadata]) -> MetadataResponse:
        """Name Kafka's brokers where no channel leads to them, if the gateway does."""
        try:
            found = self._handler.ask(self._handler.control.cluster)
        except Forbidden:
            return MetadataResponse({}, told)
        brokers = {
            each.id: BrokerMetadata(each.id, each.host, each.port, gateway=self._known_as)
            for each in found.brokers
        }
        return MetadataResponse(brokers, told, found.controller_id, found.cluster_id)

    def _channels(self) -> list[Any]:
        return list(self._handler.control.channels())

    def _found(
        self, asked: Mapping[Any, tuple[Any, Connection]]
    ) -> dict[Any, OffsetPartitionResponse]:
        by_time = self._asked({at: each for at, each in asked.items() if not _at_end(each)})
        # What is later than all messages begins at the end.
        late = {at for at, answer in by_time.items() if answer.offset == [-1]}
        at_end = {at: each for at, each in asked.items() if at not in by_time or at in late}
        return by_time | self._asked(at_end, latest=True)

    def _asked(
        self, asked: Mapping[Any, tuple[Any, Connection]], *, latest: bool = False
    ) -> dict[Any, OffsetPartitionResponse]:
        # All at once; those that meet an election are asked for again one by one.
        deadline_s = time.monotonic() + self._handler.timeout_s
        futures = {
            at: self._asking(*each, self._handler.timeout_s, latest=latest)
            for at, each in asked.items()
        }
        answers = {}
        for at, (request, connection) in asked.items():
            try:
                offset = self._offset(futures[at], request, connection, deadline_s, latest=latest)
                answers[at] = OffsetPartitionResponse([offset])
            except KafkaException as error:
                told = error.args[0]
                # What librdkafka found out by itself is of no one partition.
                if told.code() < 0 and is_unavailable(told):
                    failure = translate_error(told, doing="asking for offsets", topic="several")
                    raise SocketDisconnectedError(str(failure)) from error
                answers[at] = _refused(of_kafka(told, "telling the offset"))
            except TimeoutError as error:
                raise SocketDisconnectedError(
                    f"Kafka did not tell the offsets within {self._handler.timeout_s:g} s; "
                    "ask again when its brokers are back"
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
        """Return the offset that `future` brings, or that a further question does."""

        def ask(left_s: float) -> int:
            nonlocal future
            asked, future = future, None
            asked = asked or self._asking(request, connection, left_s, latest=latest)
            return int(asked.result(left_s + 1).offset)

        def refresh(left_s: float) -> None:
            # After an election, librdkafka would ask with the epoch of the leader before.
            with contextlib.suppress(KafkaException):
                name, timeout_s = connection.topic_name, min(left_s, _MAX_LOOK_S)
                self._admin(connection).list_topics(name, timeout=timeout_s)

        left_s = max(0.0, deadline_s - time.monotonic())
        return with_retries(ask, timeout_s=left_s, refresh=refresh)

    def _asking(
        self, request: Any, connection: Connection, timeout_s: float, *, latest: bool
    ) -> "Future[Any]":
        place = TopicPartition(connection.topic_name, request.partition_id)
        spec = OffsetSpec.latest() if latest else _spec(request.offsets_before)
        asked = self._admin(connection).list_offsets({place: spec}, request_timeout=timeout_s)
        future: Future[Any] = asked[place]
        return future

    def _listed(self, connection: Connection) -> Any:
        name = connection.topic_name
        try:
            return self._admin(connection).list_topics(name, timeout=self._handler.timeout_s)
        except KafkaException as error:
            failure = translate_error(error.args[0], doing="describing the topic", topic=name)
            raise SocketDisconnectedError(str(failure)) from error

    def _admin(self, connection: Connection) -> Any:
        properties = admin_config(connection.kafka)
        return self._admins.get(properties) or self._admins.setdefault(
            properties, create_client(AdminClient, properties)
        )


def _at_end(asked: tuple[Any, Connection]) -> bool:
    return bool(asked[0].offsets_before == OffsetType.LATEST)


def _spec(when: int) -> Any:
    if when == OffsetType.EARLIEST:
        return OffsetSpec.earliest()
    return OffsetSpec.for_timestamp(when)


def _topic(name: bytes, found: Any) -> TopicMetadata:
    if found.error is not None:
        refusal = of_kafka(found.error, "describing the topic")
        return TopicMetadata(name, {}, refusal.err, refusal.reason)
    if not found.partitions:
        return TopicMetadata(
            name,
            {},
            UnknownTopicOrPartition.ERROR_CODE,
            "its topic is not in Kafka; ask the gateway what became of it",
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


__all__ = [
    "Administering",
    "ApiVersionsResponse",
    "ApiVersionsSpec",
    "CreateTopicRequest",
    "DescribeGroupResponse",
    "DescribeGroupsResponse",
    "GroupListing",
    "GroupMember",
    "ListGroupsResponse",
    "Looking",
]
