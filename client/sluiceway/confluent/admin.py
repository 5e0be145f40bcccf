"""AdminClient: confluent-kafka's interface for what a gateway knows of channels and groups."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NoReturn, TypeVar

import confluent_kafka.admin
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import *  # noqa: F403 - what programs import beside AdminClient
from confluent_kafka.admin import (
    ClusterMetadata,
    ConsumerGroupListing,
    ListConsumerGroupsResult,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicDescription,
)

from sluiceway import Channel, Position, Retention
from sluiceway.confluent.committer import committed_partitions
from sluiceway.confluent.config import DEFAULT_PARTITIONER, admin_settings, configuration_of
from sluiceway.confluent.errors import INVALID_ARG, kafka_exceptions, refused
from sluiceway.confluent.fetcher import MessageFetcher
from sluiceway.confluent.metadata import cluster_metadata
from sluiceway.confluent.partition_offsets import by_channel
from sluiceway.confluent.waiting import left_s
from sluiceway.errors import ChannelNotFound, Conflict
from sluiceway.spi import (
    ChannelSpec,
    PositionAdvance,
    Signal,
    admin_config,
    create_client,
    this_process,
    visibility_of,
)

T = TypeVar("T")

_TIMEOUT_S: Final = 60.0
_RESET_REASON: Final = "alter_consumer_group_offsets of an AdminClient"


class AdminClient:
    """Administers channels as confluent-kafka's AdminClient administers topics.

    The gateway's address is set as for Consumer. Calls return futures, which raise KafkaException.
    Channels are created with the format `bytes`. What only Kafka knows, such as brokers' settings,
    ACLs and users, is not here: use confluent_kafka.admin.AdminClient with Kafka's address.
    """

    def __init__(self, conf: Mapping[str, Any], **named: Any) -> None:
        # Masked, because error reporters show the arguments of frames.
        conf = named = configuration_of(conf, named)
        self._settings = admin_settings(named)
        self._control = self._settings.control
        # confluent-kafka's has no `close`, so the connections end with it.
        this_process().finalize_in_thread(self, self._control.close)
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="sluiceway-admin")

    def poll(self, timeout: float = -1) -> int:
        """Return 0: nothing calls back."""
        del timeout
        return 0

    def __len__(self) -> int:
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Return brokers and channels. Raises KafkaException."""
        return cluster_metadata(self._settings, topic, timeout)

    def cluster_id(self, timeout: float = -1) -> str | None:
        """Return the id of the Kafka cluster."""
        cluster_id: str | None = self.list_topics(timeout=timeout).cluster_id
        return cluster_id

    def create_topics(
        self,
        new_topics: Sequence[NewTopic],
        operation_timeout: float = _TIMEOUT_S,
        request_timeout: float = _TIMEOUT_S,
        validate_only: bool = False,
    ) -> dict[str, "Future[None]"]:
        """Create channels of the format `bytes`, with the partitioner `consistent_random`.

        A future ends when its channel is ready, or with TOPIC_ALREADY_EXISTS.
        """
        wait_s = max(operation_timeout, request_timeout)
        if validate_only:
            raise refused(INVALID_ARG, "validate_only is not available: use `sluiceway apply`")

        def create(topic: NewTopic) -> None:
            if topic.replica_assignment:
                raise refused(
                    INVALID_ARG, "replica_assignment cannot be set: Kafka assigns the replicas"
                )
            config = dict(topic.config or {})
            limits = {name: config.pop(f"retention.{name}", None) for name in ("ms", "bytes")}
            spec = ChannelSpec(
                format="bytes",
                partitions=topic.num_partitions if topic.num_partitions > 0 else None,
                replication=topic.replication_factor if topic.replication_factor > 0 else None,
                retention=_retention(limits),
                config=config or None,
                partitioner=DEFAULT_PARTITIONER,
            )
            try:
                created = self._control.create(topic.topic, spec=spec)
            except Conflict as error:
                if error.code != "precondition_failed":
                    raise
                raise KafkaException(
                    KafkaError(
                        KafkaError.TOPIC_ALREADY_EXISTS,
                        f"the channel {topic.topic!r} exists already",
                    )
                ) from error
            Channel(self._control, created).wait_until_ready(wait_s)

        return {topic.topic: self._submit(create, topic) for topic in new_topics}

    def delete_topics(
        self,
        topics: Sequence[str],
        operation_timeout: float = _TIMEOUT_S,
        request_timeout: float = _TIMEOUT_S,
    ) -> dict[str, "Future[None]"]:
        """Delete channels with their records; an adopted topic stays.

        A channel that is in use or unread is kept: POLICY_VIOLATION.
        """
        wait_s = max(operation_timeout, request_timeout)

        def delete(name: str) -> None:
            Channel(self._control, self._control.channel(name)).delete(wait_s=wait_s)

        return {name: self._submit(delete, name) for name in topics}

    def create_partitions(
        self,
        new_partitions: Sequence[NewPartitions],
        operation_timeout: float = _TIMEOUT_S,
        request_timeout: float = _TIMEOUT_S,
        validate_only: bool = False,
    ) -> dict[str, "Future[None]"]:
        """Add partitions to channels."""
        wait_s = max(operation_timeout, request_timeout)
        if validate_only:
            raise refused(INVALID_ARG, "validate_only is not available: use `sluiceway apply`")

        def grow(wanted: NewPartitions) -> None:
            channel = Channel(self._control, self._control.channel(wanted.topic))
            channel.update(partitions=wanted.new_total_count, wait_s=wait_s)

        return {wanted.topic: self._submit(grow, wanted) for wanted in new_partitions}

    def describe_topics(
        self, topics: TopicCollection, request_timeout: float = _TIMEOUT_S
    ) -> dict[str, "Future[TopicDescription]"]:
        """Return the channels' topics as Kafka describes them, with the channels' names."""

        def describe(name: str) -> TopicDescription:
            connection = self._control.connection(name, "read", timeout_s=request_timeout)
            kafka = create_client(
                confluent_kafka.admin.AdminClient,
                admin_config(connection.kafka, self._settings.kafka),
            )
            topic = connection.topic_name
            futures = kafka.describe_topics(
                TopicCollection([topic]), request_timeout=request_timeout
            )
            description = futures[topic].result()
            description.name = name
            return description

        return {name: self._submit(describe, name) for name in topics.topic_names}

    def list_offsets(
        self,
        topic_partition_offsets: Mapping[TopicPartition, OffsetSpec],
        isolation_level: object = None,
        request_timeout: float = _TIMEOUT_S,
    ) -> dict[TopicPartition, "Future[ListOffsetsResultInfo]"]:
        """Return first, last or later offsets; of exactly-once channels, of committed messages."""
        del isolation_level

        def look_up(wanted: tuple[TopicPartition, OffsetSpec]) -> ListOffsetsResultInfo:
            place, spec = wanted
            time_ms = int(spec._value)  # noqa: SLF001 - it has no other way to its time
            if time_ms < OFFSET_BEGINNING:
                raise refused(INVALID_ARG, "offsets of the latest timestamp are not available")
            connection = self._control.connection(place.topic, "read", timeout_s=request_timeout)
            visibility = visibility_of(
                self._control.ledger, connection, grace_s=self._control.grace_s
            )
            fetcher = MessageFetcher(
                self._settings.kafka,
                {},
                arrived=Signal(),
                notify=lambda: None,
                reset="error",
                eof=False,
            )
            try:
                fetcher.add_channel(connection, visibility)
                partition = (place.topic, place.partition)
                fetcher.check(partition, request_timeout)
                offset = fetcher.offsets_at({partition: time_ms}, request_timeout)[partition]
            finally:
                fetcher.close()
            return ListOffsetsResultInfo(offset, -1, -1)

        wanted = topic_partition_offsets.items()
        return {place: self._submit(look_up, (place, spec)) for place, spec in wanted}

    def list_consumer_groups(
        self,
        states: Collection[ConsumerGroupState] | None = None,
        types: object = None,
        request_timeout: float = _TIMEOUT_S,
    ) -> "Future[ListConsumerGroupsResult]":
        """Return the groups of readers of all channels; one without live members is EMPTY."""
        del types
        deadline_s = time.monotonic() + request_timeout

        def read(_: object) -> ListConsumerGroupsResult:
            live: dict[str, bool] = {}
            for channel in self._control.channels(timeout_s=left_s(deadline_s)):
                try:
                    report = self._control.status(channel.name, timeout_s=left_s(deadline_s))
                except ChannelNotFound:
                    # It was deleted meanwhile.
                    continue
                for group in report.groups if report else ():
                    live[group.group] = live.get(group.group, False) or group.members > 0
            stable, empty = ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY
            group_states = {group: stable if lives else empty for group, lives in live.items()}
            return ListConsumerGroupsResult(
                valid=[
                    ConsumerGroupListing(group, False, state)
                    for group, state in sorted(group_states.items())
                    if not states or state in states
                ]
            )

        return self._submit(read, None)

    def list_consumer_group_offsets(
        self,
        list_consumer_group_offsets_request: Sequence[ConsumerGroupTopicPartitions],
        require_stable: bool = False,
        request_timeout: float = _TIMEOUT_S,
    ) -> dict[str, "Future[ConsumerGroupTopicPartitions]"]:
        """Return committed offsets of groups; without partitions those of all channels."""
        del require_stable
        deadline_s = time.monotonic() + request_timeout

        def read(request: ConsumerGroupTopicPartitions) -> ConsumerGroupTopicPartitions:
            wanted = None
            if request.topic_partitions is not None:
                wanted = [(place.topic, place.partition) for place in request.topic_partitions]
                names = list(dict.fromkeys(name for name, _ in wanted))
            else:
                channels = self._control.channels(timeout_s=left_s(deadline_s))
                names = [channel.name for channel in channels]
            stored: dict[tuple[str, int], Position] = {}
            for name in names:
                try:
                    positions = self._control.endpoints.committed(
                        name, request.group_id, index=None, timeout_s=left_s(deadline_s)
                    )
                except ChannelNotFound:
                    if wanted is not None:
                        raise
                    # It was deleted meanwhile.
                    continue
                stored |= {(name, partition): at for partition, at in positions.items()}
            places = {
                (place.topic, place.partition): place for place in committed_partitions(stored, {})
            }
            return ConsumerGroupTopicPartitions(
                request.group_id,
                list(places.values())
                if wanted is None
                else [places.get(p, TopicPartition(*p, OFFSET_INVALID)) for p in wanted],
            )

        requests = list_consumer_group_offsets_request
        return {request.group_id: self._submit(read, request) for request in requests}

    def alter_consumer_group_offsets(
        self,
        alter_consumer_group_offsets_request: Sequence[ConsumerGroupTopicPartitions],
        request_timeout: float = _TIMEOUT_S,
    ) -> dict[str, "Future[ConsumerGroupTopicPartitions]"]:
        """Set committed offsets of groups without live members, channel by channel.

        The audit trail has each as a reset, except those of a group that has not read the channel
        yet, which is created. Channels before a refused one stay altered.
        """
        del request_timeout

        def alter(request: ConsumerGroupTopicPartitions) -> ConsumerGroupTopicPartitions:
            offsets = {
                (place.topic, place.partition): place.offset for place in request.topic_partitions
            }
            for name, positions in by_channel(offsets).items():
                channel = Channel(self._control, self._control.channel(name))
                try:
                    channel.reset(request.group_id, positions, reason=_RESET_REASON)
                except Conflict as error:
                    if error.code != "group_not_found":
                        raise
                    self._create_group(channel, request.group_id, positions)
            return request

        requests = alter_consumer_group_offsets_request
        return {request.group_id: self._submit(alter, request) for request in requests}

    def _create_group(self, channel: Channel, group: str, positions: Mapping[int, int]) -> None:
        """Create a group by its first positions, as a commit without membership does."""
        self._control.endpoints.commit(
            PositionAdvance(
                channel=channel.name,
                uid=channel.uid,
                topic_id=channel.status.topic.id,
                group=group,
                endpoint=None,
                epoch=0,
                generation=0,
                number=0,
                before={},
                after={p: Position(offset=at) for p, at in positions.items()},
            )
        )

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(confluent_kafka.admin.AdminClient, name):
            raise AttributeError(
                f"{name}() is not available for channels: use the gateway's own calls, "
                "`sluiceway channels`, or confluent_kafka.admin.AdminClient with Kafka's address"
            )
        raise AttributeError(f"'AdminClient' object has no attribute {name!r}")

    def _submit(self, work: Callable[[Any], T], request: object) -> "Future[T]":
        def run() -> T:
            with kafka_exceptions():
                return work(request)

        return self._threads.submit(run)


def _retention(limits: Mapping[str, str | None]) -> Retention | None:
    set_limits = {}
    for name, limit in limits.items():
        if limit is not None:
            try:
                set_limits[name] = int(limit)
            except ValueError:
                raise refused(
                    INVALID_ARG, f"retention.{name} is {limit!r}; it takes a whole number"
                ) from None
    return Retention(**set_limits) if set_limits else None
