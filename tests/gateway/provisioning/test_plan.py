from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.core.kafka.model import (
    AlterConfig,
    CreateTopic,
    DeleteTopic,
    DesiredTopic,
    GrowPartitions,
    ObservedTopic,
)
from sluiceway_gateway.provisioning.reconciler import actions
from sluiceway_gateway.provisioning.topic import PARTITIONS_AT_CREATION, Action, TopicMatch, plan

NAME = "sluiceway.flights-0123abcd"
DEFAULT_REPLICATION = 3

configs = st.dictionaries(
    st.sampled_from(
        [
            "retention.ms",
            "max.message.bytes",
            "segment.ms",
            "follower.replication.throttled.replicas",
        ]
    ),
    st.sampled_from(["1", "2", "3"]),
)
ids = st.sampled_from(["id-1", "id-2"])
partitions = st.integers(min_value=1, max_value=10_000)
desired_topics = st.builds(
    DesiredTopic,
    name=st.just(NAME),
    id=st.none() | ids,
    partitions=partitions,
    replication=st.none() | st.integers(min_value=1, max_value=3),
    config=configs.map(
        lambda config: {k: v for k, v in config.items() if "throttled" not in k},
    ),
    wanted=st.booleans(),
)
observed_topics = st.none() | st.builds(
    ObservedTopic,
    name=st.just(NAME),
    id=ids,
    partitions=partitions,
    replication=st.integers(min_value=1, max_value=3),
    config=configs,
)


def apply(action: Action, topic: ObservedTopic | None) -> ObservedTopic | None:
    """Apply an action to a topic, or refuse it, as Kafka does."""
    match action:
        case CreateTopic():
            assert topic is None
            assert action.partitions < 10_000
            return ObservedTopic(
                name=action.name,
                id="id-new",
                partitions=action.partitions,
                replication=action.replication or DEFAULT_REPLICATION,
                config=action.config,
            )
        case GrowPartitions():
            assert topic is not None
            assert action.partitions > topic.partitions
            return replace(topic, partitions=action.partitions)
        case AlterConfig():
            assert topic is not None
            assert not action.set.keys() & action.delete
            remaining = {k: v for k, v in topic.config.items() if k not in action.delete}
            return replace(topic, config={**remaining, **action.set})
        case DeleteTopic():
            assert topic is not None
            return None


def apply_plan(desired: DesiredTopic, observed: ObservedTopic | None) -> ObservedTopic | None:
    for action in plan(desired, observed).actions:
        observed = apply(action, observed)
    return observed


@given(desired_topics, observed_topics)
def test_a_plan_after_an_applied_plan_is_empty(
    desired: DesiredTopic, observed: ObservedTopic | None
) -> None:
    after = apply_plan(desired, observed)
    assert plan(desired, after).actions == ()
    # As in the reconciler, observations are recorded before the next plan.
    if desired.id is None and after is not None:
        assert plan(replace(desired, id=after.id), after).actions == ()


@given(desired_topics, observed_topics)
def test_a_topic_with_another_id_is_never_changed(
    desired: DesiredTopic, observed: ObservedTopic | None
) -> None:
    if desired.id is not None and (observed is None or observed.id != desired.id):
        assert plan(desired, observed).actions == ()
        assert plan(desired, observed).lost


@given(desired_topics, observed_topics)
def test_a_plan_reaches_the_spec_without_losing_data(
    desired: DesiredTopic, observed: ObservedTopic | None
) -> None:
    if not desired.wanted or plan(desired, observed).lost:
        return
    actions = plan(desired, observed).actions
    assert not any(isinstance(action, DeleteTopic) for action in actions)
    assert observed is None or not any(isinstance(action, CreateTopic) for action in actions)
    after = apply_plan(desired, observed)
    assert after is not None
    assert after.partitions == max(desired.partitions, observed.partitions if observed else 0)
    assert {k: v for k, v in after.config.items() if "throttled" not in k} == desired.config


@given(desired_topics, observed_topics)
def test_an_adopted_topic_is_never_changed(
    desired: DesiredTopic, observed: ObservedTopic | None
) -> None:
    adopted = replace(desired, owned=False)
    adopted_plan = plan(adopted, observed)
    assert adopted_plan.actions == ()
    assert actions(adopted, adopted_plan) == ()
    assert adopted_plan.match is plan(desired, observed).match


def test_surplus_partitions_stay_and_are_counted() -> None:
    desired = DesiredTopic(name=NAME, id="id-1", partitions=2)
    observed = ObservedTopic(name=NAME, id="id-1", partitions=5, replication=1)
    assert plan(desired, observed).actions == ()
    assert plan(desired, observed).surplus_partitions == 3


def test_unrequested_overrides_are_deleted_except_replication_throttles() -> None:
    desired = DesiredTopic(name=NAME, id="id-1", partitions=1, config={"segment.ms": "5"})
    observed = ObservedTopic(
        name=NAME,
        id="id-1",
        partitions=1,
        replication=1,
        config={
            "segment.ms": "6",
            "retention.ms": "1",
            "leader.replication.throttled.replicas": "0:1",
        },
    )
    assert plan(desired, observed).actions == (
        AlterConfig(name=NAME, set={"segment.ms": "5"}, delete=frozenset({"retention.ms"})),
    )


def test_a_topic_found_under_the_channels_name_is_taken_over() -> None:
    desired = DesiredTopic(name=NAME, id=None, partitions=1)
    observed = ObservedTopic(name=NAME, id="id-1", partitions=1, replication=1)
    result = plan(desired, observed)
    assert (result.match, result.actions) == (TopicMatch.FOUND, ())


def test_a_late_deletion_does_not_touch_a_newer_topic_of_the_same_name() -> None:
    desired = DesiredTopic(name=NAME, id="id-1", partitions=1, wanted=False)
    observed = ObservedTopic(name=NAME, id="id-2", partitions=1, replication=1)
    assert plan(desired, observed).actions == ()


def test_a_topic_over_kafkas_creation_limit_grows_to_its_size() -> None:
    desired = DesiredTopic(name=NAME, id=None, partitions=10_000)
    create, grow = plan(desired, None).actions
    assert isinstance(create, CreateTopic)
    assert create.partitions == PARTITIONS_AT_CREATION
    assert grow == GrowPartitions(name=NAME, partitions=10_000)


@pytest.mark.parametrize(
    ("replication", "config", "expected"),
    [
        (1, {}, {}),
        (2, {}, {}),
        (3, {}, {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}),
        (
            4,
            {"min.insync.replicas": "3"},
            {"min.insync.replicas": "3", "unclean.leader.election.enable": "false"},
        ),
    ],
)
def test_a_topic_of_exactly_once_delivery_keeps_acknowledged_records(
    replication: int, config: dict[str, str], expected: dict[str, str]
) -> None:
    desired = DesiredTopic(
        name=NAME, id=None, partitions=1, replication=replication, config=config, exactly_once=True
    )
    (create,) = plan(desired, None).actions
    assert isinstance(create, CreateTopic)
    always = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
    assert create.config == {**always, **expected}


def test_a_topic_with_the_brokers_replication_gets_its_settings_once_that_is_known() -> None:
    desired = DesiredTopic(name=NAME, id=None, partitions=1, exactly_once=True)
    (create,) = plan(desired, None).actions
    created = replace(apply(create, None), replication=3)  # type: ignore[type-var]
    assert plan(desired, created).actions == (
        AlterConfig(
            name=NAME,
            set={"min.insync.replicas": "2", "unclean.leader.election.enable": "false"},
            delete=frozenset(),
        ),
    )
