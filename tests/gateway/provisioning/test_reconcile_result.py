from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler_rig import RESYNC_S, Rig, condition, status
from shared_kafka import SharedKafka
from sluiceway_gateway.channels.model import Channel, Phase, Spec, TopicRef, may_become
from sluiceway_gateway.core.errors import AccessFailure, AccessProblem
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import (
    Cause,
    ObservedTopic,
    ObservedTopics,
    Rejection,
    unavailable_reason,
)
from sluiceway_gateway.provisioning.reconcile_result import (
    compute_status,
    desired_topic,
    unreachable,
)
from sluiceway_gateway.provisioning.topic import plan

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAME = "rig.one-00000000"

channels = st.builds(
    Channel,
    name=st.just("one"),
    uid=st.just("0" * 32),
    labels=st.just({}),
    generation=st.just(2),
    revision=st.just(2),
    created_at=st.just(NOW),
    spec=st.builds(Spec, partitions=st.integers(min_value=1, max_value=3)),
    schema=st.just("{}"),
    schema_id=st.just(1),
    schema_version=st.just(1),
    phase=st.sampled_from(Phase),
    adopted=st.booleans(),
    observed_generation=st.integers(min_value=0, max_value=2),
    conditions=st.just(()),
    topic=st.builds(
        TopicRef, name=st.just(NAME), id=st.none() | st.just("id-1"), partitions=st.none()
    ),
).filter(lambda channel: channel.topic.id is not None or not channel.adopted)
topics = st.none() | st.builds(
    ObservedTopic,
    name=st.just(NAME),
    id=st.sampled_from(["id-1", "id-2"]),
    partitions=st.integers(min_value=1, max_value=3),
    replication=st.just(1),
)
rejections = st.none() | st.builds(
    Rejection, cause=st.sampled_from(Cause), message=st.just("The broker's message.")
)


@given(channels, topics, rejections, st.integers(min_value=0, max_value=100))
def test_a_reconcile_result_is_a_legal_transition_based_on_observations(
    channel: Channel, topic: ObservedTopic | None, rejection: Rejection | None, refusals: int
) -> None:
    last = plan(desired_topic(channel), topic)
    result = compute_status(
        channel,
        refusals=refusals,
        first=last,
        last=last,
        observed=topic,
        rejection=rejection,
        now=NOW,
    )
    if result.channel is None:
        assert channel.phase is Phase.DELETING
        topic_gone = topic is None or topic.id != (channel.topic.id or topic.id)
        assert topic_gone or channel.adopted
        return
    after = result.channel
    assert may_become(channel.phase, after.phase)
    assert channel.topic.id in (None, after.topic.id), "a recorded id must not change"
    if after.observed_generation == after.generation != channel.observed_generation:
        assert not last.actions
        assert status(after, "Synced")[0] == "True"
    if after.phase is Phase.READY and channel.phase is not Phase.READY:
        assert topic is not None
        assert after.topic.id == topic.id
        assert channel.phase is not Phase.PROVISIONING or (
            topic.partitions >= after.spec.partitions
        )
    if result.refusals:
        assert result.next_check_s is None or 1 <= result.next_check_s <= 60


access_failures = st.none() | st.builds(
    AccessFailure, problem=st.sampled_from(AccessProblem), message=st.just("A message.")
)


@given(channels, access_failures, st.integers(min_value=0, max_value=100))
def test_an_outage_changes_no_phase_and_is_retried_soon(
    channel: Channel, failure: AccessFailure | None, refusals: int
) -> None:
    result = unreachable(channel, failure, refusals=refusals, now=NOW)
    assert result.channel is not None
    if result.channel.conditions:
        assert condition(result.channel, "Synced").reason == unavailable_reason(failure)
    assert (result.channel.phase, result.channel.topic) == (channel.phase, channel.topic)
    assert (result.next_check_s, result.refusals) == (1.0, refusals)


class HidingKafka(KafkaAdmin):
    """The real Kafka, but topics are hidden from the gateway's user."""

    def observe(self, names: Iterable[str]) -> ObservedTopics:
        denied = Rejection(cause=Cause.DENIED, message="Topic authorization failed.")
        return ObservedTopics(topics={}, rejections=dict.fromkeys(names, denied))


@pytest.mark.sample
@pytest.mark.parametrize("deleting", [False, True])
def test_a_topic_hidden_by_authorization_is_neither_missing_nor_changed(
    rig: Rig, kafka: SharedKafka, deleting: bool
) -> None:
    channel = rig.ready()
    new = rig.add()
    if deleting:
        rig.delete(channel)
    rig.clock.advance(RESYNC_S)
    before = rig.get(channel)
    hiding = HidingKafka(kafka.bootstrap_servers)
    for _ in range(3):
        counts = rig.reconciler(kafka=hiding).run_once()
        assert (counts.created, counts.deleted, counts.removed) == (0, 0, 0)
        rig.clock.advance(RESYNC_S * 2)
    hiding.close()
    after = rig.get(channel)
    assert (after.phase, after.topic) == (before.phase, before.topic)
    for hidden_channel in (after, rig.get(new)):
        assert status(hidden_channel, "Synced") == ("False", "KafkaRefused")
        assert (
            "authorization failed. To do: let the gateway"
            in condition(hidden_channel, "Synced").message
        )
    rig.run_once()
    if deleting:
        assert rig.find(channel) is None
    else:
        assert status(rig.get(channel), "Synced") == ("True", "UpToDate")
        assert replace(rig.get(channel), revision=0, conditions=()) == replace(
            channel, revision=0, conditions=()
        )
