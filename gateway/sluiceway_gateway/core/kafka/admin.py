"""Admin calls to Kafka, each bounded by a timeout."""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicDescription,
)

from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.client import Client, accepted, outcomes, rejected, rejection
from sluiceway_gateway.core.kafka.cluster_identity import ClusterIdentity
from sluiceway_gateway.core.kafka.model import (
    AlterConfig,
    Broker,
    Cause,
    Cluster,
    CreateTopic,
    GroupOffset,
    GrowPartitions,
    KafkaGroup,
    NewMessage,
    ObservedTopic,
    ObservedTopics,
    PartitionLeadership,
    Rejection,
    TopicMetadata,
    Watermarks,
)

_T = TypeVar("_T")

#: Topics per request.
TOPICS = 200
#: Partitions per request. Kafka refuses to create more than 10,000 partitions or records at once.
PARTITIONS = 5_000
#: librdkafka may end the process if this time is over while it looks up the leaders.
_LEAST_LIST_S = 1.0


def pages(items: Sequence[_T], size: int = TOPICS) -> Iterator[Sequence[_T]]:
    """Cut the items into pages of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def weighted_pages(items: Sequence[_T], weight: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Cut the items into pages of at most `TOPICS` items and a total weight of `PARTITIONS`.

    A heavier item gets a page of its own.
    """
    page: list[_T] = []
    total = 0
    for item in items:
        if page and (len(page) == TOPICS or total + weight(item) > PARTITIONS):
            yield page
            page, total = [], 0
        page.append(item)
        total += weight(item)
    if page:
        yield page


Outcomes = Mapping[str, Rejection | None]
"""By topic: None after success, else the rejection."""

GroupOffsets = Mapping[tuple[str, int], int]
"""Offset of the next message, by topic and partition."""

_LATEST_MS = 253_402_300_799_000
"""The last second of the year 9999 in Unix time."""
#: Timeout of a repeated check of the cluster, and of requests for racks. One broker that hangs must
#: not hold up requests to others.
_CHECK_S = 1.0
#: librdkafka keeps the leaders of a described topic for `metadata.max.age.ms`: 15 minutes.
_LEADERS_MAX_AGE_S = 300.0
_NOT_THERE = (Cause.TOPIC_ABSENT, Cause.INVALID_NAME)
_WITHOUT_MEMBERS = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
_NO_LEADER = Rejection(cause=Cause.UNAVAILABLE, message="a partition has no leader")
_SILENT = Rejection(cause=Cause.UNAVAILABLE, message="the leader of a partition does not answer")


class _Leaders(NamedTuple):
    """The partitions of a topic that had leaders when it was described, at `at_s`."""

    at_s: float
    partitions: Collection[int]


class KafkaAdmin:
    """Admin interface of one cluster; thread-safe.

    Calls raise KafkaUnavailable if Kafka does not answer within `timeout_s`. From then on, one call
    about topics and groups at a time checks whether it answers again; the others raise at once, so
    that an outage does not occupy a thread for each of them. A refusal for one topic is returned as
    that topic's `Rejection`. `properties` are librdkafka's; the constructor raises InvalidSettings
    for properties that are not allowed or not valid. With `identity`, all calls about topics and
    groups also raise KafkaUnavailable for another cluster than it expects.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        properties: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 10.0,
        identity: ClusterIdentity | None = None,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._timeout_s = timeout_s
        self._identity = identity
        self._client = Client(bootstrap_servers, properties or {})
        self._checking = threading.Lock()
        max_age_s = int((properties or {}).get("metadata.max.age.ms", 900_000)) / 1000
        self._leaders_max_age_s = min(_LEADERS_MAX_AGE_S, max_age_s / 3)
        # By client, as another one has not described the topics, and by topic.
        self._leaders: WeakKeyDictionary[AdminClient, dict[str, _Leaders]] = WeakKeyDictionary()

    def close(self) -> None:
        """Serve pending callbacks. The connections close with the last reference."""
        self._client.admin.poll(0)

    def answered(self, within_s: float) -> bool | None:
        """Return whether Kafka answered the last request; None if none ended within that time.

        False for another cluster than expected. Sends nothing.
        """
        if self._identity is not None and self._identity.refuses:
            return False
        return self._client.answered(within_s)

    def describe_cluster(self, timeout_s: float | None = None) -> Cluster:
        """Return the cluster and its live brokers, ordered by id, without their racks."""
        return self._client.describe_cluster(timeout_s or self._timeout_s)

    def with_racks(self, brokers: Iterable[Broker]) -> tuple[Broker, ...]:
        """Return brokers with their racks; None where a broker does not answer or refuses."""
        brokers, timeout_s = tuple(brokers), min(self._timeout_s, _CHECK_S)
        futures = {}
        for broker in brokers:
            # Only the broker itself knows, so this takes a request for each.
            resource = ConfigResource(ConfigResource.Type.BROKER, str(broker.id))
            described = self._client.admin.describe_configs([resource], request_timeout=timeout_s)
            futures[broker.id] = described[resource]
        settings = accepted(self._client.settled("DescribeConfigs", futures, timeout_s))
        racks = {id_: entries["broker.rack"].value for id_, entries in settings.items()}
        return tuple(replace(broker, rack=racks.get(broker.id)) for broker in brokers)

    def require_cluster(self, timeout_s: float | None = None, *, reread: bool = True) -> None:
        """Raise KafkaUnavailable if Kafka does not answer, or is another cluster than expected.

        Without `reread`, compares with the id that was last read from the database. Raises
        DatabaseUnavailable.
        """
        cluster = self.describe_cluster(timeout_s)
        if self._identity is not None:
            self._identity.compare(cluster.cluster_id, reread=reread)

    def describe_topic(self, name: str) -> TopicMetadata | None:
        """Return the topic's id and partitions; None if there is no topic of this name."""
        results = self._describe([name])
        for refusal in rejected(results, but=_NOT_THERE).values():
            raise self._client.unavailable(refusal.message)
        return next((_metadata(description) for description in accepted(results).values()), None)

    def observe(self, names: Iterable[str]) -> ObservedTopics:
        """Describe topics and their config overrides, many per request."""
        topics: dict[str, ObservedTopic] = {}
        rejections: dict[str, Rejection] = {}
        for page in pages(sorted(set(names))):
            descriptions = self._describe(page)
            configs = self._describe_configs(sorted(accepted(descriptions)))
            rejections |= rejected(descriptions, but=_NOT_THERE)
            # A topic without a config was deleted between the two requests.
            rejections |= rejected(configs, but=_NOT_THERE)
            for name, entries in accepted(configs).items():
                topics[name] = _observed(_metadata(descriptions[name]), entries)
        return ObservedTopics(topics=topics, rejections=rejections)

    def create_topics(self, topics: Sequence[CreateTopic]) -> Outcomes:
        """Create topics."""
        return self._outcomes(
            "CreateTopics",
            weighted_pages(topics, lambda topic: topic.partitions),
            lambda page: self._admin.create_topics(
                [_new_topic(topic) for topic in page], **self._bounds
            ),
        )

    def grow_partitions(self, growths: Sequence[GrowPartitions]) -> Outcomes:
        """Raise numbers of partitions; Kafka refuses to lower them."""
        return self._outcomes(
            "CreatePartitions",
            weighted_pages(growths, lambda growth: growth.partitions),
            lambda page: self._admin.create_partitions(
                [NewPartitions(growth.name, growth.partitions) for growth in page], **self._bounds
            ),
        )

    def alter_configs(self, changes: Sequence[AlterConfig]) -> Outcomes:
        """Set and delete config overrides, atomically per topic."""
        return self._outcomes(
            "IncrementalAlterConfigs",
            pages(changes),
            lambda page: self._admin.incremental_alter_configs(
                [_incremental(change) for change in page], request_timeout=self._timeout_s
            ),
        )

    def delete_topics(self, names: Sequence[str]) -> Outcomes:
        """Delete topics and their records."""
        for leaders in list(self._leaders.values()):
            for name in names:
                leaders.pop(name, None)
        return self._outcomes(
            "DeleteTopics",
            pages(names),
            lambda page: self._admin.delete_topics(list(page), **self._bounds),
        )

    def watermarks(self, name: str, partitions: Iterable[int]) -> dict[int, Watermarks | None]:
        """Return the watermarks by partition; None for a partition whose leader did not answer."""
        return self._watermarks([(name, partition) for partition in sorted(partitions)])[name]

    def end_offsets(self, name: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the end offsets by partition, without those whose leader did not answer."""
        pairs = [(name, partition) for partition in sorted(partitions)]
        return {at: end for (_, at), end in self._offsets(pairs, OffsetSpec.latest()).items()}

    def watermarks_of(self, topics: Mapping[str, int]) -> dict[str, dict[int, Watermarks | None]]:
        """Return the watermarks of topics, given their numbers of partitions."""
        watermarks: dict[str, dict[int, Watermarks | None]] = {name: {} for name in topics}
        partitions = [
            (name, partition) for name, count in topics.items() for partition in range(count)
        ]
        for page in pages(partitions, PARTITIONS):
            for name, marks in self._watermarks(page).items():
                watermarks[name] |= marks
        return watermarks

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return the numbers of partitions of topics, without those that Kafka did not describe."""
        return {
            name: len(description.partitions)
            for page in pages(sorted(set(names)))
            for name, description in accepted(self._describe(page)).items()
        }

    def commit_offsets(self, groups: Mapping[str, GroupOffsets]) -> Outcomes:
        """Set the offsets of Kafka's own consumer groups, creating missing groups.

        Kafka refuses this for a group with active members.
        """
        done: dict[str, Rejection | None] = {}
        for page in pages(sorted(groups)):
            futures = {
                group: future
                for group in page
                for future in self._admin.alter_consumer_group_offsets(
                    [_group_request(group, groups[group])], request_timeout=self._timeout_s
                ).values()
            }
            results = self._client.results("OffsetCommit", futures, self._timeout_s)
            done |= outcomes({group: _first_refusal(result) for group, result in results.items()})
        return done

    def consumer_group(self, group: str, topic: str, partitions: Iterable[int]) -> KafkaGroup:
        """Return one of Kafka's own consumer groups, with its offsets in a topic.

        A group that does not exist has none. Raises KafkaUnavailable also if Kafka does not allow
        the gateway's user to see the group, or a broker that may coordinate it does not list its
        groups.
        """
        # First, because members commit when they leave.
        listed = self._admin.list_consumer_groups(request_timeout=self._timeout_s)
        listing = self._client.results("ListGroups", {group: listed}, self._timeout_s)[group]
        committed = self._client.committed(
            group, topic, sorted(partitions), timeout_s=self._timeout_s
        )
        if isinstance(listing, Rejection):
            raise _unreadable_group(group, listing)
        if isinstance(committed, Rejection):
            raise _unreadable_group(group, committed)
        states = {row.group_id: row.state for row in listing.valid}
        if group not in states and listing.errors:
            raise _unreadable_group(group, rejection(listing.errors[0]))
        return KafkaGroup(
            name=group,
            active=states.get(group, ConsumerGroupState.EMPTY) not in _WITHOUT_MEMBERS,
            offsets={
                partition.partition: GroupOffset(
                    offset=partition.offset, metadata=partition.metadata or None
                )
                for partition in committed
                if partition.offset >= 0
            },
        )

    def newest(self, name: str, partitions: Iterable[int]) -> datetime | None:
        """Return the latest message timestamp, by its writer's clock; None without messages.

        Writers may set any number; one beyond the calendar is the calendar's end.
        """
        pairs = [(name, partition) for partition in sorted(partitions)]
        results = self._list_offsets(pairs, OffsetSpec.max_timestamp())
        times_ms = [result.timestamp for result in results.values() if result.timestamp >= 0]
        if not times_ms:
            return None
        return datetime.fromtimestamp(min(max(times_ms), _LATEST_MS) / 1000, UTC)

    def offsets_at(self, name: str, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        """Return by partition the offset of the first message not older than `time_ms` (Unix).

        -1 where there is none; without the partitions whose leader did not answer.
        """
        pairs = [(name, partition) for partition in sorted(partitions)]
        offsets = self._offsets(pairs, OffsetSpec.for_timestamp(time_ms))
        return {partition: offset for (_, partition), offset in offsets.items()}

    def produce(
        self, name: str, messages: Iterable[NewMessage], *, max_message_bytes: int
    ) -> list[int] | Rejection:
        """Produce messages, on all in-sync replicas, and return their offsets, in order.

        The result is a Rejection if Kafka refuses a message. Raises KafkaUnavailable if it has not
        acknowledged all. Some messages may be in the topic in both cases.
        """
        return self._client.produce(
            name, messages, timeout_s=self._timeout_s, max_message_bytes=max_message_bytes
        )

    @property
    def client(self) -> Client:
        """The client, for other requests with its properties."""
        return self._client

    @property
    def _admin(self) -> AdminClient:
        """The client for all requests about topics and groups, after a check of the cluster."""
        if self._client.answered(math.inf) is False:
            self._require_answer()
        if self._identity is not None:
            self._identity.require(self._cluster_id)
        return self._client.admin

    def _require_answer(self) -> None:
        """Raise KafkaUnavailable unless Kafka answers again; for the callers meanwhile, at once."""
        if not self._checking.acquire(blocking=False):
            raise self._client.still_unavailable()
        try:
            self.describe_cluster()
        finally:
            self._checking.release()

    def _cluster_id(self, must_answer: bool) -> str | None:
        if must_answer:
            return self.describe_cluster().cluster_id
        timeout_s = min(self._timeout_s, _CHECK_S)
        return self._client.describe_cluster(timeout_s, diagnosed=False).cluster_id

    @property
    def _bounds(self) -> dict[str, float]:
        return {"request_timeout": self._timeout_s, "operation_timeout": self._timeout_s / 2}

    def _outcomes(
        self,
        operation: str,
        items: Iterable[Sequence[_T]],
        request: Callable[[Sequence[_T]], Mapping[Any, Any]],
    ) -> Outcomes:
        """Send one request per page; return the outcomes by topic."""
        done: dict[str, Rejection | None] = {}
        for page in items:
            # Config resources are keyed by themselves, everything else by the topic's name.
            futures = {getattr(key, "name", key): future for key, future in request(page).items()}
            done |= outcomes(self._client.results(operation, futures, self._timeout_s))
        return done

    def _describe(self, names: Sequence[str]) -> dict[str, Any]:
        began_s, admin = time.monotonic(), self._admin
        futures = admin.describe_topics(
            TopicCollection(list(names)), request_timeout=self._timeout_s
        )
        results = self._client.results("DescribeTopics", futures, self._timeout_s)
        leaders = self._leaders.setdefault(admin, {})
        for name in rejected(results):
            leaders.pop(name, None)
        for name, description in accepted(results).items():
            leaders[name] = _Leaders(began_s, _led(description))
        return results

    def _describe_configs(self, names: Sequence[str]) -> dict[str, Any]:
        if not names:
            return {}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        futures = self._admin.describe_configs(resources, request_timeout=self._timeout_s)
        named = {resource.name: future for resource, future in futures.items()}
        return self._client.results("DescribeConfigs", named, self._timeout_s)

    def _watermarks(
        self, partitions: Sequence[tuple[str, int]]
    ) -> defaultdict[str, dict[int, Watermarks | None]]:
        begin = self._offsets(partitions, OffsetSpec.earliest())
        end = self._offsets(partitions, OffsetSpec.latest())
        watermarks: defaultdict[str, dict[int, Watermarks | None]] = defaultdict(dict)
        for pair in partitions:
            name, partition = pair
            both = pair in begin and pair in end
            watermarks[name][partition] = (
                Watermarks(begin_offset=begin[pair], end_offset=end[pair]) if both else None
            )
        return watermarks

    def _offsets(
        self, partitions: Sequence[tuple[str, int]], spec: OffsetSpec
    ) -> dict[tuple[str, int], int]:
        results = self._list_offsets(partitions, spec)
        return {partition: result.offset for partition, result in results.items()}

    def _list_offsets(
        self, partitions: Sequence[tuple[str, int]], spec: OffsetSpec
    ) -> dict[tuple[str, int], ListOffsetsResultInfo]:
        """Return the offsets by partition, without those whose leader did not answer."""
        if not partitions:
            return {}
        results = self._ask_leaders(partitions, spec)
        if again := sorted(rejected(results, but=_NOT_THERE)):
            # For minutes after an election librdkafka uses the previous leader or its epoch, and
            # brokers refuse the request. Describing the topic updates librdkafka's metadata.
            for page in pages(sorted({name for name, _ in again})):
                self._describe(page)
            results |= self._ask_leaders(again, spec)
        return accepted(self._client.require_response(results))

    def _ask_leaders(
        self, partitions: Sequence[tuple[str, int]], spec: OffsetSpec
    ) -> dict[tuple[str, int], Any]:
        """Request offsets of the partitions whose leaders the client has; reject the others.

        librdkafka 2.16 looks up other leaders in the caller's thread, and may then crash the
        process: a response with metadata continues the same lookup in another thread.
        """
        admin = self._admin
        refused: dict[str, Rejection] = {}
        unled = {name for name, _ in self._unled(admin, partitions)}
        for page in pages(sorted(unled)):
            refused |= rejected(self._describe(page))
        results: dict[tuple[str, int], Any] = {
            (name, partition): refused.get(name, _NO_LEADER)
            for name, partition in self._unled(admin, partitions)
        }
        specs = {TopicPartition(*pair): spec for pair in partitions if pair not in results}
        if specs:
            # Half of it, because there may be two requests.
            timeout_s = max(self._timeout_s / 2, _LEAST_LIST_S)
            futures = admin.list_offsets(specs, request_timeout=timeout_s)
            keyed = {(key.topic, key.partition): future for key, future in futures.items()}
            settled = self._client.settled("ListOffsets", keyed, timeout_s)
            results |= {pair: _response(result) for pair, result in settled.items()}
        return results

    def _unled(
        self, admin: AdminClient, partitions: Iterable[tuple[str, int]]
    ) -> list[tuple[str, int]]:
        """Return the partitions whose leaders this client may not have."""
        since_s = time.monotonic() - self._leaders_max_age_s
        described = self._leaders.get(admin, {})

        def is_led(name: str, partition: int) -> bool:
            leaders = described.get(name)
            if leaders is None or leaders.at_s < since_s:
                return False
            return partition in leaders.partitions

        return [pair for pair in partitions if not is_led(*pair)]


def _led(description: TopicDescription) -> frozenset[int]:
    """Return the partitions that have a leader."""
    return frozenset(
        partition.id
        for partition in description.partitions
        if partition.leader is not None and partition.leader.id >= 0
    )


def _response(result: ListOffsetsResultInfo | Rejection) -> ListOffsetsResultInfo | Rejection:
    """Return a rejection for a result that librdkafka returns for a silent leader."""
    if isinstance(result, Rejection) or result.offset != OFFSET_INVALID:
        return result
    return _SILENT


def _metadata(description: TopicDescription) -> TopicMetadata:
    return TopicMetadata(
        name=description.name,
        # librdkafka returns plain base64, Kafka uses the URL-safe alphabet.
        id=str(description.topic_id).translate(str.maketrans("+/", "-_")),
        partitions=tuple(
            PartitionLeadership(
                partition=partition.id,
                leader=partition.leader.id
                if partition.leader is not None and partition.leader.id >= 0
                else None,
                replicas=tuple(node.id for node in partition.replicas),
                isr=tuple(node.id for node in partition.isr),
            )
            for partition in sorted(description.partitions, key=lambda partition: partition.id)
        ),
    )


def _observed(topic: TopicMetadata, entries: Mapping[str, ConfigEntry]) -> ObservedTopic:
    return ObservedTopic(
        name=topic.name,
        id=topic.id,
        partitions=len(topic.partitions),
        replication=max((len(partition.replicas) for partition in topic.partitions), default=0),
        config={
            entry.name: entry.value or ""
            for entry in entries.values()
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        },
    )


def _group_request(group: str, offsets: GroupOffsets) -> ConsumerGroupTopicPartitions:
    partitions = [TopicPartition(*pair, offset) for pair, offset in sorted(offsets.items())]
    return ConsumerGroupTopicPartitions(group, partitions)


def _unreadable_group(group: str, refusal: Rejection) -> KafkaUnavailable:
    advice = "Nothing was lost: send the request again."
    if refusal.cause is Cause.DENIED:
        advice = (
            "The gateway's Kafka user needs the operation DESCRIBE on the group; then send the "
            "request again."
        )
    return KafkaUnavailable(
        f"Kafka does not return its group {group!r}: {refusal.message}. {advice}"
    )


def _first_refusal(result: Any) -> Any:
    """Return the group's result, or the rejection of its first refused partition."""
    if isinstance(result, Rejection):
        return result
    refused = [
        partition.error for partition in result.topic_partitions if partition.error is not None
    ]
    return rejection(refused[0]) if refused else result


def _new_topic(topic: CreateTopic) -> NewTopic:
    replication = {} if topic.replication is None else {"replication_factor": topic.replication}
    return NewTopic(
        topic.name, num_partitions=topic.partitions, config=dict(topic.config), **replication
    )


def _incremental(change: AlterConfig) -> ConfigResource:
    entries = [
        ConfigEntry(name, change.set.get(name), incremental_operation=operation)
        for names, operation in (
            (change.set, AlterConfigOpType.SET),
            (change.delete, AlterConfigOpType.DELETE),
        )
        for name in sorted(names)
    ]
    return ConfigResource(ConfigResource.Type.TOPIC, change.name, incremental_configs=entries)


def require_watermarks(
    kafka: KafkaAdmin, topic: str, partitions: int, *, unknown: str = ""
) -> dict[int, Watermarks]:
    """Return the watermarks of all partitions of a topic.

    Raises KafkaUnavailable, with a message that begins with `unknown`.
    """
    try:
        watermarks = kafka.watermarks(topic, range(partitions))
    except KafkaUnavailable as error:
        raise KafkaUnavailable(f"{unknown} {error}".lstrip(), error.access_failure) from error
    missing = [partition for partition, marks in watermarks.items() if marks is None]
    if missing:
        text = f"{unknown} Kafka did not return the end offset of partition {missing[0]}."
        raise KafkaUnavailable(text.lstrip())
    return {partition: marks for partition, marks in watermarks.items() if marks is not None}
