from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from unittest.mock import Mock

import pytest

from faults import at_statements
from reconciler_rig import RESYNC_S, Rig, condition, status
from shared_kafka import SharedKafka
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Delivery, Phase, Retention
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import ObservedTopics
from sluiceway_gateway.provisioning.reconciler import ReconcileCounts
from topics import Topics


def test_a_channel_gets_its_topic_and_becomes_ready(rig: Rig) -> None:
    config = {"max.message.bytes": "2097152"}
    channel = rig.add(partitions=3, retention=Retention(ms=60_000), config=config)
    counts = rig.run_once()
    assert (counts.created, counts.checked, counts.changed, counts.more) == (1, 1, 1, False)
    current, topic = rig.get(channel), rig.topic(channel)
    assert topic is not None
    assert topic.config == {"retention.ms": "60000", "max.message.bytes": "2097152"}
    assert current.phase is Phase.READY
    assert current.observed_generation == current.generation == 1
    assert (current.topic.id, current.topic.partitions) == (topic.id, 3)
    assert status(current, "Ready") == ("True", "TopicCreated")
    assert status(current, "Synced") == ("True", "UpToDate")


def test_a_topic_of_exactly_once_delivery_has_the_brokers_times(rig: Rig) -> None:
    channel = rig.ready(delivery=Delivery.EXACTLY_ONCE)
    topic = rig.topic(channel)
    assert topic is not None
    assert topic.config == {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
    assert status(rig.get(channel), "Synced") == ("True", "UpToDate")


def test_a_settled_channel_is_not_checked_before_the_resync(rig: Rig) -> None:
    channel = rig.ready()
    assert rig.run_once() == ReconcileCounts()
    rig.clock.advance(RESYNC_S - 1)
    assert rig.run_once() == ReconcileCounts()
    rig.clock.advance(1)
    assert rig.run_once() == ReconcileCounts(checked=1)
    assert rig.get(channel) == channel, "the channel must not change"


def test_partitions_grow_in_place(rig: Rig) -> None:
    channel = rig.ready(partitions=2)
    rig.change_spec(channel, partitions=5)
    assert rig.run_once().grown == 1
    current, topic = rig.get(channel), rig.topic(channel)
    assert topic is not None
    assert topic.id == channel.topic.id
    assert (topic.partitions, current.topic.partitions) == (5, 5)
    assert (current.phase, current.observed_generation) == (Phase.READY, 2)


def test_partitions_that_others_added_stay(rig: Rig, operator: Topics) -> None:
    channel = rig.ready(partitions=1)
    operator.grow(channel.topic.name, 4)
    rig.await_topic(channel, lambda topic: topic is not None and topic.partitions == 4)
    rig.clock.advance(RESYNC_S)
    assert rig.run_once().grown == 0
    current = rig.get(channel)
    assert current.topic.partitions == 4
    assert status(current, "Synced") == ("True", "PartitionsExceedSpec")
    rig.change_spec(channel, partitions=4)
    rig.run_once()
    assert status(rig.get(channel), "Synced") == ("True", "UpToDate")


def test_a_new_configuration_is_applied_and_removed_settings_are_deleted(rig: Rig) -> None:
    channel = rig.ready(config={"segment.ms": "1000"}, retention=Retention(ms=5_000))
    rig.change_spec(channel, config={"min.insync.replicas": "1"}, retention=Retention(bytes=10))
    assert rig.run_once().configured == 1
    topic = rig.topic(channel)
    assert topic is not None
    assert topic.config == {"min.insync.replicas": "1", "retention.bytes": "10"}
    assert status(rig.get(channel), "Synced") == ("True", "UpToDate")


def test_drift_and_unrequested_overrides_are_reverted(rig: Rig, operator: Topics) -> None:
    channel = rig.ready(config={"segment.ms": "1000"})
    operator.set(channel.topic.name, segment_ms="77", cleanup_policy="compact")
    rig.await_topic(channel, lambda topic: topic is not None and len(topic.config) == 2)
    rig.clock.advance(RESYNC_S)
    assert rig.run_once().configured == 1
    topic = rig.topic(channel)
    assert topic is not None
    assert topic.config == {"segment.ms": "1000"}
    reverted = rig.get(channel)
    assert status(reverted, "Synced") == ("True", "DriftReverted")
    assert "cleanup.policy, segment.ms" in condition(reverted, "Synced").message
    rig.clock.advance(RESYNC_S)
    rig.run_once()
    assert rig.get(channel) == reverted, "the reason must stay until the spec changes"
    rig.change_spec(channel, config={})
    rig.run_once()
    assert status(rig.get(channel), "Synced") == ("True", "UpToDate")


def test_a_missing_topic_is_reported_and_never_recreated(rig: Rig, operator: Topics) -> None:
    channel = rig.ready()
    operator.delete(channel.topic.name)
    rig.await_topic(channel, lambda topic: topic is None)
    rig.clock.advance(RESYNC_S)
    rig.run_once()
    assert rig.get(channel).phase is Phase.READY, (
        "a single observation may come from a broker that lags behind"
    )
    for _ in range(3):
        rig.clock.advance(RESYNC_S)
        assert rig.run_once().created == 0
        current = rig.get(channel)
        assert current.phase is Phase.FAILED
        assert status(current, "Ready") == status(current, "Synced") == ("False", "TopicMissing")
        assert channel.topic.id is not None
        assert channel.topic.id in condition(current, "Ready").message
        assert "create it again" in condition(current, "Ready").message
    rig.change_spec(channel, partitions=2)
    rig.run_once()
    assert rig.topic(channel) is None
    assert rig.get(channel).observed_generation == 1


def test_a_topic_that_others_recreated_is_reported_and_unchanged(
    rig: Rig, operator: Topics
) -> None:
    channel = rig.ready(partitions=2, config={"segment.ms": "1000"})
    operator.delete(channel.topic.name)
    operator.create(channel.topic.name, 1)
    rig.await_topic(channel, lambda topic: topic is not None and topic.id != channel.topic.id)
    for _ in range(2):
        rig.clock.advance(RESYNC_S)
        rig.run_once()
    current, topic = rig.get(channel), rig.topic(channel)
    assert topic is not None
    assert (topic.partitions, topic.config) == (1, {})
    assert current.phase is Phase.FAILED
    assert current.topic.id == channel.topic.id
    assert status(current, "Ready") == ("False", "TopicRecreated")
    assert topic.id in condition(current, "Ready").message
    # Deleting the channel does not delete the foreign topic.
    rig.delete(channel)
    assert rig.run_once().removed == 1
    assert rig.find(channel) is None
    assert rig.topic(channel) == topic


def test_a_failed_channel_is_ready_again_when_its_topic_returns(rig: Rig) -> None:
    channel = rig.ready()
    failed = replace(channel, phase=Phase.FAILED, revision=channel.revision + 1)
    with rig.database.write() as tx:
        assert channels_store.save(tx, failed, was=channel, from_phases=(Phase.READY,))
    rig.run_once()
    assert rig.get(channel).phase is Phase.READY
    assert rig.get(channel).topic == channel.topic


def test_a_topic_left_unrecorded_by_a_crash_is_taken_over(rig: Rig, operator: Topics) -> None:
    channel = rig.add(partitions=2, config={"segment.ms": "1000"})
    operator.create(channel.topic.name, 1)
    rig.await_topic(channel, lambda topic: topic is not None)
    before = rig.topic(channel)
    assert before is not None
    counts = rig.run_once()
    assert (counts.created, counts.grown, counts.configured) == (0, 1, 1)
    current = rig.get(channel)
    assert current.phase is Phase.READY
    assert (current.topic.id, current.topic.partitions) == (before.id, 2)


def test_deleting_a_channel_deletes_its_topic_then_its_row(rig: Rig) -> None:
    channel = rig.ready()
    rig.delete(channel)
    counts = rig.run_once()
    assert (counts.deleted, counts.removed) == (1, 1)
    assert rig.find(channel) is None
    assert rig.topic(channel) is None
    assert rig.run_once() == ReconcileCounts()


def test_deleting_a_channel_may_keep_its_topic(rig: Rig) -> None:
    channel = rig.ready()
    rig.delete(channel, keep_topic=True)
    counts = rig.run_once()
    assert (counts.deleted, counts.removed) == (0, 1)
    assert rig.find(channel) is None
    assert rig.topic(channel) is not None


def test_a_channel_deleted_before_its_topic_exists_is_removed(rig: Rig) -> None:
    channel = rig.add()
    rig.delete(channel)
    assert rig.run_once().removed == 1
    assert rig.topic(channel) is None


def test_a_deletion_finds_a_topic_not_yet_in_the_metadata(rig: Rig, operator: Topics) -> None:
    channel = rig.add()
    rig.delete(channel)
    # Created by a replica that crashed before it recorded the topic.
    operator.create(channel.topic.name)
    while rig.find(channel) is not None:
        rig.run_once()
        rig.clock.advance(60)
    rig.await_topic(channel, lambda topic: topic is None)


class LaggingKafka(KafkaAdmin):
    """The real Kafka, whose brokers do not show topics in the first description."""

    shows = False

    def observe(self, names: Iterable[str]) -> ObservedTopics:
        shows, self.shows = self.shows, True
        return super().observe(names) if shows else ObservedTopics(topics={}, rejections={})


def test_a_deletion_does_not_trust_a_single_observation_without_the_topic(
    rig: Rig, kafka: SharedKafka
) -> None:
    channel = rig.ready()
    rig.delete(channel)
    with closing(LaggingKafka(kafka.bootstrap_servers)) as lagging:
        assert rig.reconciler(kafka=lagging).run_once().removed == 0
    rig.clock.advance(1)
    counts = rig.run_once()
    assert (counts.deleted, counts.removed) == (1, 1)
    assert rig.topic(channel) is None


def test_more_replicas_than_brokers_are_reported_with_the_brokers_message(rig: Rig) -> None:
    channel = rig.add(replication=3)
    assert rig.run_once().refused == 1
    current = rig.get(channel)
    assert current.phase is Phase.PROVISIONING
    assert current.observed_generation == 0
    assert status(current, "Ready") == status(current, "Synced") == ("False", "InvalidReplication")
    assert "only 1 broker(s)" in condition(current, "Ready").message
    assert "fewer replicas" in condition(current, "Ready").message


# Each setting is valid; Kafka refuses the combination.
CONTRADICTION = {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "1"}


def test_a_refused_configuration_is_reported_and_retried_when_the_spec_changes(rig: Rig) -> None:
    channel = rig.add(config=CONTRADICTION)
    rig.run_once()
    current = rig.get(channel)
    assert (current.phase, current.topic.id) == (Phase.PROVISIONING, None)
    assert status(current, "Synced") == ("False", "ConfigRejected")
    assert "min.compaction.lag.ms" in condition(current, "Synced").message
    rig.change_spec(channel, config={"min.compaction.lag.ms": "5"})
    rig.run_once()
    assert rig.get(channel).phase is Phase.READY


def test_a_refused_change_leaves_a_ready_channel_ready(rig: Rig) -> None:
    channel = rig.ready()
    rig.change_spec(channel, config=CONTRADICTION)
    rig.run_once()
    current = rig.get(channel)
    assert (current.phase, current.generation, current.observed_generation) == (Phase.READY, 2, 1)
    assert status(current, "Ready") == ("True", "TopicCreated")
    assert status(current, "Synced") == ("False", "ConfigRejected")


@pytest.mark.long
def test_requests_refused_by_kafka_are_retried_with_backoff(rig: Rig) -> None:
    channel = rig.add(replication=3)
    rig.run_once()
    refused = rig.get(channel)
    pauses_s = []
    for _ in range(9):
        waited_s = 0.0
        while rig.run_once().refused == 0:
            rig.clock.advance(1)
            waited_s += 1
        pauses_s.append(waited_s)
    assert pauses_s == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert rig.get(channel) == refused, "a repeated refusal must change nothing"


def test_one_refusal_does_not_block_other_channels(rig: Rig) -> None:
    refused, fine = rig.add(replication=3), rig.add()
    counts = rig.run_once()
    assert (counts.created, counts.refused, counts.checked) == (1, 1, 2)
    assert rig.get(fine).phase is Phase.READY
    assert rig.get(refused).phase is Phase.PROVISIONING


def test_a_channel_that_cannot_be_reconciled_delays_no_other(rig: Rig) -> None:
    channels = [rig.add() for _ in range(4)]
    bad = channels[1]

    fail = Mock(side_effect=ValueError("a defect"))
    with (
        at_statements(rig.database, "UPDATE channels", fail, values=bad.uid),
        pytest.raises(ValueError, match="a defect"),
    ):
        rig.run_once()
    phases = [rig.get(channel).phase for channel in channels]
    assert phases == [Phase.READY, Phase.PROVISIONING, Phase.READY, Phase.READY]
    assert rig.run_once().changed == 1
    assert rig.get(bad).phase is Phase.READY


def test_many_channels_are_reconciled_in_pages(rig: Rig) -> None:
    channels = [rig.add() for _ in range(25)]
    reconciler = rig.reconciler(page_size=10)
    passes = [reconciler.run_once() for _ in range(3)]
    assert [counts.created for counts in passes] == [10, 10, 5]
    assert [counts.more for counts in passes] == [True, True, False]
    assert all(rig.get(channel).phase is Phase.READY for channel in channels)


@pytest.mark.long
def test_a_clock_set_back_delays_no_pending_channel(rig: Rig) -> None:
    channel = rig.add(replication=3)
    counts = rig.run_once()
    assert counts.refused == 1
    rig.clock.advance(-3600)
    assert rig.reconciler(resync_s=86_400).run_once().checked == 1
    assert rig.get(channel).phase is Phase.PROVISIONING
    rig.delete(channel)


def test_a_clock_set_back_delays_no_resync(rig: Rig) -> None:
    rig.ready()
    assert rig.run_once().checked == 0
    rig.clock.advance(-3600)
    assert [rig.run_once().checked for _ in range(2)] == [1, 0]


@pytest.mark.parametrize("pause", [False, True])
def test_changed_channels_precede_resyncs(rig: Rig, pause: bool) -> None:
    settled = [rig.ready() for _ in range(3)]
    rig.clock.advance(RESYNC_S * (10 if pause else 1))
    new = rig.add()
    assert rig.reconciler(page_size=1).run_once().created == 1
    assert rig.get(new).phase is Phase.READY
    assert all(rig.get(channel) == channel for channel in settled)
