"""Admin calls to Kafka, each bounded by a timeout."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicDescription,
)

from sluiceway_gateway.kafka.calls import Observation
from sluiceway_gateway.kafka.client import Client, accepted, outcomes, rejected
from sluiceway_gateway.kafka.errors import rejection
from sluiceway_gateway.kafka.model import (
    Broker,
    Cause,
    Cluster,
    ObservedTopic,
    PartitionLeadership,
    Rejection,
    TopicMetadata,
    Watermarks,
)
from sluiceway_gateway.provisioning.plan import AlterConfig, CreateTopic, GrowPartitions

_T = TypeVar("_T")

#: Topics in one request to describe, alter or delete.
TOPICS = 200
#: Kafka refuses a request that would make more than 10,000 partitions or records in all.
PARTITIONS = 5_000


def pages(items: Sequence[_T], size: int = TOPICS) -> Iterator[Sequence[_T]]:
    """Give the items in pieces of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def weighted_pages(items: Sequence[_T], weight: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Give the items in pieces of at most `TOPICS`, whose weights sum up to `PARTITIONS`.

    An item that is heavier than that has a piece of its own.
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
"""By topic: None where it was done, else why it was not."""

GroupOffsets = Mapping[tuple[str, int], int]
"""By topic and partition, the offset of the next message."""

_NOT_THERE = (Cause.TOPIC_ABSENT, Cause.INVALID_NAME)


class Kafka:
    """The admin interface of one cluster; may be used by many threads.

    Calls raise KafkaUnavailable where Kafka as a whole does not answer within `timeout_s`. What
    Kafka refuses for one topic comes back as that topic's `Rejection`. `properties` are
    librdkafka's; making it raises InvalidSettings for those that are not allowed or not right.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        properties: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 10.0,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._timeout_s = timeout_s
        self._client = Client(bootstrap_servers, properties or {})
        self._admin = self._client.admin

    def close(self) -> None:
        """Serve what is outstanding. The connections end with the last reference to this."""
        self._admin.poll(0)

    def describe_cluster(self, timeout_s: float | None = None) -> Cluster:
        """Who is in the cluster now, brokers in ascending order of their ids."""
        timeout_s = timeout_s or self._timeout_s
        future = self._admin.describe_cluster(request_timeout=timeout_s)
        described = self._client.answers({None: future}, timeout_s)[None]
        if isinstance(described, Rejection):
            raise self._client.unavailable(described.message)
        return Cluster(
            cluster_id=described.cluster_id,
            controller_id=described.controller.id if described.controller else None,
            brokers=tuple(
                Broker(id=node.id, host=node.host, port=node.port, rack=node.rack)
                for node in sorted(described.nodes, key=lambda node: node.id)
            ),
        )

    def describe_topic(self, name: str) -> TopicMetadata | None:
        """Say which topic this is and who serves it; None if there is none of this name."""
        answers = self._describe([name])
        for refusal in rejected(answers, but=_NOT_THERE).values():
            raise self._client.unavailable(refusal.message)
        return next((_metadata(each) for each in accepted(answers).values()), None)

    def observe(self, names: Iterable[str]) -> Observation:
        """Look at many topics and their overrides, with few requests for all of them."""
        topics: dict[str, ObservedTopic] = {}
        rejections: dict[str, Rejection] = {}
        for page in pages(sorted(set(names))):
            descriptions = self._describe(page)
            configs = self._describe_configs(sorted(accepted(descriptions)))
            rejections |= rejected(descriptions, but=_NOT_THERE)
            # One that is absent here was deleted between the two looks.
            rejections |= rejected(configs, but=_NOT_THERE)
            for name, entries in accepted(configs).items():
                topics[name] = _observed(_metadata(descriptions[name]), entries)
        return Observation(topics=topics, rejections=rejections)

    def create_topics(self, topics: Sequence[CreateTopic]) -> Outcomes:
        """Make topics, as many with one request as Kafka takes."""
        done: dict[str, Rejection | None] = {}
        for page in weighted_pages(topics, lambda each: each.partitions):
            futures = self._admin.create_topics([_new_topic(each) for each in page], **self._bounds)
            done |= outcomes(self._client.answers(futures, self._timeout_s))
        return done

    def grow_partitions(self, growths: Sequence[GrowPartitions]) -> Outcomes:
        """Raise numbers of partitions; Kafka refuses to lower them."""
        done: dict[str, Rejection | None] = {}
        for page in weighted_pages(growths, lambda each: each.partitions):
            new = [NewPartitions(each.name, each.partitions) for each in page]
            futures = self._admin.create_partitions(new, **self._bounds)
            done |= outcomes(self._client.answers(futures, self._timeout_s))
        return done

    def alter_configs(self, changes: Sequence[AlterConfig]) -> Outcomes:
        """Set and delete overrides; those of one topic change together or not at all."""
        done: dict[str, Rejection | None] = {}
        for page in pages(changes):
            resources = [
                ConfigResource(
                    ConfigResource.Type.TOPIC, each.name, incremental_configs=_entries(each)
                )
                for each in page
            ]
            futures = self._admin.incremental_alter_configs(
                resources, request_timeout=self._timeout_s
            )
            named = {each.name: future for each, future in futures.items()}
            done |= outcomes(self._client.answers(named, self._timeout_s))
        return done

    def delete_topics(self, names: Sequence[str]) -> Outcomes:
        """Delete topics with all that they hold."""
        done: dict[str, Rejection | None] = {}
        for page in pages(names):
            futures = self._admin.delete_topics(list(page), **self._bounds)
            done |= outcomes(self._client.answers(futures, self._timeout_s))
        return done

    def watermarks(self, name: str, partitions: Iterable[int]) -> dict[int, Watermarks | None]:
        """First and next offset by partition; None where no leader could be asked."""
        return self._marks([(name, each) for each in sorted(partitions)])[name]

    def watermarks_of(self, topics: Mapping[str, int]) -> dict[str, dict[int, Watermarks | None]]:
        """First and next offset of topics with so many partitions each, with few requests."""
        found: dict[str, dict[int, Watermarks | None]] = {name: {} for name in topics}
        places = [(name, each) for name, count in topics.items() for each in range(count)]
        for page in pages(places, PARTITIONS):
            for name, marks in self._marks(page).items():
                found[name] |= marks
        return found

    def commit_offsets(self, groups: Mapping[str, GroupOffsets]) -> Outcomes:
        """Set offsets of Kafka's own consumer groups, each of which need not be there.

        Kafka refuses it for a group that has members of its own.
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
            answers = self._client.answers(futures, self._timeout_s)
            done |= outcomes({group: _first_refusal(each) for group, each in answers.items()})
        return done

    def newest(self, name: str, partitions: Iterable[int]) -> datetime | None:
        """Return the latest time that a message of the topic bears, None if it has no messages.

        It is by the clock of whoever wrote it.
        """
        wanted = {TopicPartition(name, p): OffsetSpec.max_timestamp() for p in partitions}
        if not wanted:
            return None
        futures = self._admin.list_offsets(wanted, request_timeout=self._timeout_s)
        answers = accepted(self._client.answers(futures, self._timeout_s))
        times_ms = [each.timestamp for each in answers.values() if each.timestamp >= 0]
        return datetime.fromtimestamp(max(times_ms) / 1000, UTC) if times_ms else None

    @property
    def _bounds(self) -> dict[str, float]:
        return {"request_timeout": self._timeout_s, "operation_timeout": self._timeout_s / 2}

    def _describe(self, names: Sequence[str]) -> dict[str, Any]:
        futures = self._admin.describe_topics(
            TopicCollection(list(names)), request_timeout=self._timeout_s
        )
        return self._client.answers(futures, self._timeout_s)

    def _describe_configs(self, names: Sequence[str]) -> dict[str, Any]:
        if not names:
            return {}
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        futures = self._admin.describe_configs(resources, request_timeout=self._timeout_s)
        named = {each.name: future for each, future in futures.items()}
        return self._client.answers(named, self._timeout_s)

    def _marks(
        self, places: Sequence[tuple[str, int]]
    ) -> defaultdict[str, dict[int, Watermarks | None]]:
        begin = self._offsets(places, OffsetSpec.earliest())
        end = self._offsets(places, OffsetSpec.latest())
        found: defaultdict[str, dict[int, Watermarks | None]] = defaultdict(dict)
        for place in places:
            both = place in begin and place in end
            found[place[0]][place[1]] = (
                Watermarks(begin_offset=begin[place], end_offset=end[place]) if both else None
            )
        return found

    def _offsets(
        self, places: Sequence[tuple[str, int]], spec: OffsetSpec
    ) -> dict[tuple[str, int], int]:
        if not places:
            return {}
        asked = {TopicPartition(name, partition): spec for name, partition in places}
        futures = self._admin.list_offsets(asked, request_timeout=self._timeout_s)
        numbered = {(place.topic, place.partition): future for place, future in futures.items()}
        answers = accepted(self._client.answers(numbered, self._timeout_s))
        return {place: answer.offset for place, answer in answers.items()}


def _metadata(description: TopicDescription) -> TopicMetadata:
    return TopicMetadata(
        name=description.name,
        # librdkafka writes ids in plain base64, Kafka itself in the alphabet that is safe in URLs.
        id=str(description.topic_id).translate(str.maketrans("+/", "-_")),
        partitions=tuple(
            PartitionLeadership(
                partition=each.id,
                leader=each.leader.id if each.leader is not None and each.leader.id >= 0 else None,
                replicas=tuple(node.id for node in each.replicas),
                isr=tuple(node.id for node in each.isr),
            )
            for each in sorted(description.partitions, key=lambda each: each.id)
        ),
    )


def _observed(topic: TopicMetadata, entries: Mapping[str, ConfigEntry]) -> ObservedTopic:
    return ObservedTopic(
        name=topic.name,
        id=topic.id,
        partitions=len(topic.partitions),
        replication=max((len(each.replicas) for each in topic.partitions), default=0),
        config={
            entry.name: entry.value or ""
            for entry in entries.values()
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        },
    )


def _group_request(group: str, offsets: GroupOffsets) -> ConsumerGroupTopicPartitions:
    places = [TopicPartition(*place, offset) for place, offset in sorted(offsets.items())]
    return ConsumerGroupTopicPartitions(group, places)


def _first_refusal(answer: Any) -> Any:
    """Return the answer to a group, or why one of its partitions was refused."""
    if isinstance(answer, Rejection):
        return answer
    refused = [each.error for each in answer.topic_partitions if each.error is not None]
    return rejection(refused[0]) if refused else answer


def _new_topic(topic: CreateTopic) -> NewTopic:
    replication = {} if topic.replication is None else {"replication_factor": topic.replication}
    return NewTopic(
        topic.name, num_partitions=topic.partitions, config=dict(topic.config), **replication
    )


def _entries(change: AlterConfig) -> list[ConfigEntry]:
    return [
        ConfigEntry(name, change.set.get(name), incremental_operation=operation)
        for names, operation in (
            (change.set, AlterConfigOpType.SET),
            (change.delete, AlterConfigOpType.DELETE),
        )
        for name in sorted(names)
    ]
