"""Mirroring of groups' positions to Kafka's group offsets."""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from reconciler_rig import Rig
from shared_kafka import SharedKafka
from sluiceway_gateway.channels.model import Channel
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.endpoints import position_store
from sluiceway_gateway.endpoints.positions import Committed, Position
from sluiceway_gateway.offsets.mirror import Mirror
from topics import Topics
from waiting import until


@dataclass
class Site:
    """A mirrored channel, and Kafka's group offsets for it."""

    rig: Rig
    admin: AdminClient
    channel: Channel
    group: str
    now_s: float = 0.0

    def mirror(self, prefix: str = "", leads: Callable[[], bool] = lambda: True) -> Mirror:
        return Mirror(
            database=self.rig.database,
            kafka=self.rig.kafka,
            prefix=prefix,
            leads=leads,
            clock=self.rig.clock,
            monotonic=lambda: self.now_s,
        )

    def put(self, *positions: tuple[int, int, int], member: int = -1, group: str = "") -> None:
        """Store positions: partition, offset, and number of the record in its message."""
        owner = (self.channel.uid, group or self.group, member)
        committed = [
            Committed(
                position=Position(partition=partition, offset=offset, record=record),
                topic_id=str(self.channel.topic.id),
                committed_at=self.rig.clock.now,
            )
            for partition, offset, record in positions
        ]
        with self.rig.database.write() as tx:
            position_store.put(
                tx, [(owner, committed_position) for committed_position in committed]
            )

    def kafka_offsets(self, group: str = "") -> dict[int, int]:
        """Return a group's offsets in Kafka, by partition."""
        name = group or self.group
        request = [ConsumerGroupTopicPartitions(name)]
        offsets = self.admin.list_consumer_group_offsets(request)[name].result(30)
        topic = self.channel.topic.name
        return {p.partition: p.offset for p in offsets.topic_partitions if p.topic == topic}


@pytest.fixture(scope="session")
def tools(kafka: SharedKafka, admin: KafkaAdmin, operator: Topics) -> AdminClient:
    # A new broker first creates its topic of group offsets, and loads each of its partitions;
    # listing offsets before that crashes the process (a bug of confluent-kafka 2.16.1).
    topic = f"first-{uuid.uuid4().hex[:8]}"
    operator.create(topic)
    # The hash of a group's name chooses one of 50 partitions: these groups have one each.
    groups = {f"first-{chr(ord('0') + number)}": {(topic, 0): 0} for number in range(50)}
    until(lambda: kafka_accepts(admin, groups))
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 3})


@pytest.fixture
def site(rig: Rig, tools: AdminClient) -> Site:
    channel = rig.ready(partitions=3, mirrored=True)
    return Site(rig=rig, admin=tools, channel=channel, group=f"delays-{uuid.uuid4().hex[:8]}")


def kafka_accepts(kafka: KafkaAdmin, groups: dict[str, dict[tuple[str, int], int]]) -> bool:
    try:
        return set(kafka.commit_offsets(groups).values()) == {None}
    except KafkaUnavailable:
        return False


def test_positions_are_mirrored_to_kafka_forwards_and_backwards(site: Site) -> None:
    mirror = site.mirror()
    assert mirror.run_once().written == 0
    site.put((0, 5, 0), (1, 7, 3))
    assert mirror.run_once().written == 1
    # A position within a message is mirrored as the offset of that message.
    assert site.kafka_offsets() == {0: 5, 1: 7}
    site.put((0, 9, 0))
    assert mirror.run_once().written == 1
    assert site.kafka_offsets() == {0: 9, 1: 7}
    # Backwards, as after a reset.
    site.put((0, 2, 0))
    mirror.run_once()
    assert site.kafka_offsets() == {0: 2, 1: 7}
    assert mirror.run_once().written == 0


def test_a_replica_that_has_lost_its_lease_sets_no_offsets_back(site: Site) -> None:
    site.put((0, 5, 0))

    def taken_over() -> bool:
        """Let another replica lead after this one has read positions."""
        site.put((0, 9, 0))
        assert site.mirror().run_once().written == 1
        return False

    assert site.mirror(leads=taken_over).run_once().written == 0
    assert site.kafka_offsets() == {0: 9}


def test_members_of_a_broadcast_group_are_mirrored_as_separate_groups(site: Site) -> None:
    site.put((0, 4, 0), member=0)
    site.put((0, 6, 0), member=1)
    assert site.mirror(prefix="mirror.").run_once().written == 2
    assert site.kafka_offsets(f"mirror.{site.group}-0") == {0: 4}
    assert site.kafka_offsets(f"mirror.{site.group}-1") == {0: 6}
    assert site.kafka_offsets() == {}


def test_only_mirrored_channels_are_mirrored(site: Site, rig: Rig) -> None:
    site.put((0, 5, 0))
    site.channel = rig.change_spec(site.channel, mirrored=False)
    assert site.mirror().run_once().written == 0
    assert site.kafka_offsets() == {}


@pytest.mark.sample
def test_positions_of_another_topic_are_not_mirrored(site: Site) -> None:
    with site.rig.database.write() as tx:
        place = Committed(
            position=Position(partition=0, offset=5),
            topic_id="another",
            committed_at=site.rig.clock.now,
        )
        position_store.put(tx, [((site.channel.uid, site.group, -1), place)])
    assert site.mirror().run_once().written == 0


def test_a_group_with_kafka_members_is_reported_and_retried(
    site: Site, kafka: SharedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": site.group,
            "session.timeout.ms": 45_000,
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([site.channel.topic.name])
    while not consumer.assignment():
        consumer.poll(0.1)
    mirror = site.mirror()
    site.put((0, 5, 0))
    site.put((0, 8, 0), group=f"{site.group}-other")
    counts = mirror.run_once()
    assert (counts.written, counts.refused) == (1, 1)
    assert site.kafka_offsets(f"{site.group}-other") == {0: 8}
    assert site.kafka_offsets() == {}
    assert "Kafka refuses a group's offsets" in caplog.text
    consumer.close()
    # The retry waits, whatever the age of the commit.
    assert mirror.run_once().written == 0
    site.now_s += 15
    site.rig.clock.advance(3600)
    assert mirror.run_once().written == 1
    assert site.kafka_offsets() == {0: 5}
    assert "the group is mirrored again" in caplog.text


def test_after_a_pause_a_leader_mirrors_everything_again(site: Site) -> None:
    mirror = site.mirror()
    site.put((0, 5, 0))
    mirror.run_once()
    moved = ConsumerGroupTopicPartitions(
        site.group, [TopicPartition(site.channel.topic.name, 0, 3)]
    )
    site.admin.alter_consumer_group_offsets([moved])[site.group].result(30)
    site.rig.clock.now -= timedelta(hours=1)
    site.now_s += 61
    assert mirror.run_once().written == 1
    assert site.kafka_offsets() == {0: 5}


def test_offsets_that_kafka_has_removed_are_written_again_within_an_hour(site: Site) -> None:
    mirror = site.mirror()
    site.put((0, 5, 0))
    mirror.run_once()
    # As after `offsets.retention.minutes`.
    site.admin.delete_consumer_groups([site.group])[site.group].result(30)
    assert site.kafka_offsets() == {}
    site.rig.clock.advance(3600)
    written = 0
    for _minute in range(60):
        site.now_s += 60
        written += mirror.run_once().written
    assert written == 1
    assert site.kafka_offsets() == {0: 5}
