"""Moving a running service: groups of Kafka continue here, and the other way round."""

import logging
import uuid
from collections.abc import Callable
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from confluent_facade import Facade, poll_messages
from sluiceway import Channel
from sluiceway.confluent import Consumer, members
from sluiceway.errors import Conflict
from topics import Topics
from waiting import until

CONFIG = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
Readers = Callable[..., confluent_kafka.Consumer]


@pytest.fixture
def topic(topics: Topics) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    topics.create(name, 3)
    return name


@pytest.fixture
def groups() -> tuple[str, str]:
    return f"billing-{uuid.uuid4().hex[:8]}", f"shipping-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def in_kafka(topics: Topics) -> Readers:
    kafka = {"bootstrap.servers": topics.bootstrap_servers, "log_level": 3}
    return lambda group, **more: confluent_kafka.Consumer(
        {**kafka, **CONFIG, "group.id": group, **more}
    )


def produce(topics: Topics, topic: str, numbers: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": topics.bootstrap_servers})
    for number in numbers:
        producer.produce(topic, b"%d" % number, b"key-%d" % (number % 10))
    assert producer.flush(30) == 0


def take(reader: confluent_kafka.Consumer | Consumer, topic: str, count: int) -> set[int]:
    """Read a number of messages as a member of the group, commit, and return them."""
    reader.subscribe([topic])
    messages = poll_messages(reader, count)
    reader.commit(asynchronous=False)
    return {int(message.value()) for message in messages}


def kafka_offsets(channel: Channel, in_kafka: Readers, group: str) -> dict[int, int]:
    reader = in_kafka(group)
    places = [TopicPartition(channel.status.topic.name, p) for p in range(3)]
    offsets = {place.partition: place.offset for place in reader.committed(places, timeout=30)}
    reader.close()
    return {partition: offset for partition, offset in offsets.items() if offset >= 0}


def test_two_groups_move_here_and_back_and_read_every_message_once(
    site: Facade, topics: Topics, topic: str, groups: tuple[str, str], in_kafka: Readers
) -> None:
    produce(topics, topic, range(60))
    read: dict[str, set[int]] = {}
    # Of Kafka's two protocols of groups.
    protocols = ({"group.protocol": "consumer"}, {})
    for group, count, protocol in zip(groups, (20, 45), protocols, strict=True):
        reader = in_kafka(group, **protocol)
        read[group] = take(reader, topic, count)
        if group == groups[0]:
            running = reader
        else:
            reader.close()

    # The topic is adopted, and the plan made, while the service runs.
    channel = site.gateway.channel(
        topic, format="bytes", topic=topic, partitioner="consistent_random"
    )
    for group, count in zip(groups, (20, 45), strict=True):
        plan = channel.plan_import(group)
        assert sum(partition.kafka_offset or 0 for partition in plan.partitions) == count
        assert plan.kafka_group_active == (group == groups[0])
    with pytest.raises(Conflict, match="has members, which read on and commit there"):
        site.gateway.channel(topic, import_groups=groups)
    running.close()
    channel = site.gateway.channel(topic, import_groups=groups)

    # Producers move in any order: one of Kafka's is still there.
    with site.producer() as producer:
        for number in range(60, 80):
            producer.produce(topic, b"%d" % number, b"key-%d" % (number % 10))
    produce(topics, topic, range(80, 90))
    for group in groups:
        with site.consumer(**CONFIG, **{"group.id": group}) as consumer:
            here = take(consumer, topic, 90 - len(read[group]))
            assert here.isdisjoint(read[group])
            read[group] |= here
        assert read[group] == set(range(90))
        with pytest.warns(UserWarning, match="no committed offset in the topic"):
            site.gateway.channel(topic, import_groups=[group, "unheard-of"])

    # Back: mirrored until Kafka has the offsets.
    channel.update(mirrored=True)
    for group in groups:
        wanted = {p: at.offset for p, at in channel.committed(group).items()}
        until(lambda group=group, wanted=wanted: kafka_offsets(channel, in_kafka, group) == wanted)
    channel.update(mirrored=False)
    produce(topics, topic, range(90, 100))
    for group in groups:
        reader = in_kafka(group)
        assert take(reader, topic, 10) == set(range(90, 100))
        reader.close()

    # And here again: positions move forward.
    for group in groups:
        channel.import_offsets(group)
    produce(topics, topic, range(100, 110))
    for group in groups:
        with site.consumer(**CONFIG, **{"group.id": group}) as consumer:
            assert take(consumer, topic, 10) == set(range(100, 110))


@pytest.mark.parametrize("assigned", [False, True])
def test_a_consumer_with_offsets_in_kafka_only_warns_once(
    site: Facade,
    topics: Topics,
    topic: str,
    groups: tuple[str, str],
    in_kafka: Readers,
    caplog: pytest.LogCaptureFixture,
    assigned: bool,
) -> None:
    produce(topics, topic, range(9))
    reader = in_kafka(groups[0])
    take(reader, topic, 9)
    reader.close()
    site.gateway.channel(topic, format="bytes", topic=topic)

    def warnings() -> list[str]:
        return [text for text in caplog.messages if "offsets in Kafka" in text]

    with caplog.at_level(logging.WARNING, "sluiceway.confluent"):
        # The second group has no offsets in Kafka.
        for group in reversed(groups):
            with site.consumer(**CONFIG, **{"group.id": group}) as consumer:
                if assigned:
                    consumer.assign([TopicPartition(topic, p) for p in range(3)])
                else:
                    consumer.subscribe([topic])
                poll_messages(consumer, 9)
                if group == groups[0]:
                    until(warnings)
    (text,) = warnings()
    assert f"sluiceway offsets import --group {groups[0]} --from-kafka {topic}" in text


def test_a_consumer_that_begins_at_positions_of_its_own_compares_none_with_kafka(
    site: Facade,
    topics: Topics,
    topic: str,
    groups: tuple[str, str],
    in_kafka: Readers,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    produce(topics, topic, range(9))
    reader = in_kafka(groups[0])
    take(reader, topic, 9)
    reader.close()
    site.gateway.channel(topic, format="bytes", topic=topic)
    # A comparison in the background ends at no known time.
    monkeypatch.setattr(members, "Background", lambda: SimpleNamespace(run=lambda task: task()))
    with (
        caplog.at_level(logging.WARNING, "sluiceway.confluent"),
        site.consumer(**CONFIG, **{"group.id": groups[0]}) as consumer,
    ):
        consumer.assign([TopicPartition(topic, p, 0) for p in range(3)])
        poll_messages(consumer, 9)
    assert "offsets in Kafka" not in caplog.text


def test_an_offset_above_the_committed_records_of_an_exactly_once_channel_is_refused(
    site: Facade, topics: Topics, groups: tuple[str, str], in_kafka: Readers
) -> None:
    channel = site.gateway.channel(site.channel(delivery="exactly_once", partitions=1))
    with channel.writer() as writer:
        writer.write({"value": b"%d" % number} for number in range(5))
    topic = channel.status.topic.name
    group = groups[0]

    def commit_in_kafka(offset: int) -> None:
        reader = in_kafka(group)
        reader.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        reader.close()

    commit_in_kafka(5)
    assert channel.plan_import(group).refusal is None
    topics.produce(topic, 0, [b"in no batch"])
    commit_in_kafka(6)
    with pytest.raises(Conflict, match="where readers read up to 5"):
        channel.import_offsets(group)
    assert channel.committed(group) == {}
