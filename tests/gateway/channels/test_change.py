from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.channels.change import adopting, changed, created, deleted
from sluiceway_gateway.channels.model import (
    AdoptedTopic,
    Channel,
    Condition,
    Heartbeat,
    Phase,
    Spec,
    TopicRef,
)
from sluiceway_gateway.core.errors import (
    ChannelDeleting,
    ChannelPinned,
    Conflict,
    ImmutableField,
    InvalidRequest,
    PartitionsShrink,
)
from sluiceway_gateway.core.kafka.model import ObservedTopic
from sluiceway_gateway.schemas.model import Compatibility, Format, SchemaVersion

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=5)
FIRST = SchemaVersion(id=7, version=1, fingerprint="f1", definition="s1", created_at=NOW)
SECOND = SchemaVersion(id=9, version=2, fingerprint="f2", definition="s2", created_at=NOW)


def requests(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


SIZES = st.none() | st.integers(-1, 5)
REQUESTS = requests(
    compatibility=st.sampled_from(Compatibility),
    format=st.sampled_from(Format),
    partitions=st.integers(1, 4),
    pinned=st.booleans(),
    replication=st.none() | st.integers(1, 3),
    retention=requests(ms=SIZES, bytes=SIZES),
    config=st.dictionaries(st.sampled_from(["segment.ms"]), st.sampled_from("12")),
    heartbeat=requests(
        interval_ms=st.sampled_from([100, 2000]), timeout_ms=st.sampled_from([6000, 120_000])
    ),
    idle_ms=st.none() | st.just(60_000),
    max_partitions=st.none() | st.integers(1, 4),
).map(Spec.model_validate)
LABELS = st.none() | st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))


def make(request: Spec | None = None, labels: Mapping[str, str] | None = None) -> Channel:
    return created(
        request or Spec(),
        labels,
        name="flights",
        uid="0" * 32,
        schema=FIRST,
        prefix="p.",
        now=NOW,
    )


def test_a_new_channel_waits_for_its_topic() -> None:
    channel = make(Spec(partitions=3))
    assert channel.phase is Phase.PROVISIONING
    assert (channel.generation, channel.observed_generation) == (1, 0)
    assert channel.topic == TopicRef(name="p.flights-00000000")
    assert channel.spec.partitions == 3
    assert {(condition.type, condition.status) for condition in channel.conditions} == {
        ("Ready", "False"),
        ("Synced", "False"),
    }


@given(first=REQUESTS, first_labels=LABELS, second=REQUESTS, second_labels=LABELS)
def test_an_accepted_change_is_idempotent_and_counted_once(
    first: Spec,
    first_labels: Mapping[str, str] | None,
    second: Spec,
    second_labels: Mapping[str, str] | None,
) -> None:
    channel = make(first, first_labels)
    try:
        once = changed(channel, second, second_labels)
    except Conflict:
        return
    assert changed(once, second, second_labels) is once
    assert once.generation - channel.generation == once.revision - channel.revision
    assert once.generation - channel.generation == int(once is not channel)
    assert once.spec.partitions >= channel.spec.partitions
    assert (once.schema, once.spec.format) == (channel.schema, channel.spec.format)
    assert once.uid == channel.uid


@given(request=REQUESTS, labels=LABELS)
def test_omitted_fields_stay(request: Spec, labels: Mapping[str, str] | None) -> None:
    channel = make(request, labels)
    assert changed(channel, Spec()) is channel


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (Spec(topic=AdoptedTopic(name="t")), ImmutableField),
        (Spec(format=Format.ARROW), ImmutableField),
        (Spec(replication=2), ImmutableField),
        (Spec(partitions=1), PartitionsShrink),
        (Spec(partitions=3, pinned=False), ChannelPinned),
    ],
)
def test_changes_that_would_lose_records_are_refused(spec: Spec, error: type[Conflict]) -> None:
    channel = make(Spec(partitions=2, pinned=True))
    with pytest.raises(error):
        changed(channel, spec)


def test_a_new_schema_version_is_counted_and_changes_nothing_else() -> None:
    channel = make(Spec(partitions=2))
    after = changed(channel, Spec(), schema=SECOND)
    assert (after.schema, after.schema_id, after.schema_version) == ("s2", 9, 2)
    assert (after.generation, after.revision) == (2, 2)
    assert after.spec == channel.spec
    assert changed(after, Spec(), schema=SECOND) is after


def adopted() -> Channel:
    observed = ObservedTopic(
        name="t", id="x", partitions=3, replication=2, config={"retention.ms": "5"}
    )
    request = Spec(topic=AdoptedTopic(name="t"))
    return adopting(request, observed, name="flights", uid="0" * 32, schema=FIRST, now=NOW)


@given(request=REQUESTS)
def test_every_change_of_an_adopted_topic_is_refused(request: Spec) -> None:
    channel = adopted()
    try:
        after = changed(channel, request)
    except Conflict:
        return
    for field in ("partitions", "replication", "retention", "config"):
        assert getattr(after.spec, field) == getattr(channel.spec, field)


def test_an_adopted_topic_is_always_kept() -> None:
    once = deleted(adopted(), keep_topic=False, now=NOW)
    assert once.keep_topic
    assert deleted(once, keep_topic=True, now=NOW) is once
    assert deleted(once, keep_topic=False, now=NOW) is once


@pytest.mark.parametrize(("status", "since"), [("False", NOW), ("True", LATER)])
def test_a_condition_keeps_its_time_while_its_status_is_unchanged(
    status: Literal["True", "False"], since: datetime
) -> None:
    before = make()
    after = before.with_condition("Ready", status, "After", "text", LATER)
    condition = Condition(
        type="Ready", status=status, reason="After", message="text", last_transition_at=since
    )
    assert after.conditions == (condition, before.condition("Synced"))


def test_pinning_can_be_undone() -> None:
    channel = changed(make(Spec(partitions=2, pinned=True)), Spec(pinned=False))
    assert changed(channel, Spec(partitions=3)).spec.partitions == 3


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.DELETING])
def test_deleting_starts_from_every_phase_and_repeats(phase: Phase) -> None:
    channel = replace(make(), phase=phase)
    once = deleted(channel, keep_topic=True, now=NOW)
    assert once.phase is Phase.DELETING
    assert once.keep_topic
    assert (once.generation, once.revision) == (channel.generation, channel.revision + 1)
    assert deleted(once, keep_topic=True, now=NOW) is once


@pytest.mark.parametrize(
    ("keep_topic", "way"), [(True, "without its topic"), (False, "with its topic")]
)
def test_a_deleting_channel_refuses_changes_and_other_transitions(
    keep_topic: bool, way: str
) -> None:
    channel = deleted(make(), keep_topic=keep_topic, now=NOW)
    with pytest.raises(ChannelDeleting):
        changed(channel, Spec())
    with pytest.raises(ChannelDeleting, match=f"already, {way}"):
        deleted(channel, keep_topic=not keep_topic, now=NOW)


def test_another_idle_time_ends_only_the_condition_of_the_former_one() -> None:
    channel = make(Spec(idle_ms=60_000))
    for type_ in ("Drained", "Idle"):
        channel = channel.with_condition(type_, "True", "Idle", "text", NOW)
    after = changed(channel, Spec(idle_ms=120_000))
    assert [condition.type for condition in after.conditions] == ["Drained", "Ready", "Synced"]
    renamed = changed(channel, Spec(), {"team": "a"})
    assert renamed.conditions == channel.conditions


def test_the_heartbeat_timeout_is_at_least_three_intervals_whichever_is_changed() -> None:
    channel = make(Spec(heartbeat=Heartbeat(interval_ms=1000, timeout_ms=3000)))
    for heartbeat in (Heartbeat(interval_ms=1001), Heartbeat(timeout_ms=2999)):
        with pytest.raises(InvalidRequest, match="three intervals"):
            changed(channel, Spec(heartbeat=heartbeat))
    faster = changed(channel, Spec(heartbeat=Heartbeat(interval_ms=500)))
    slower = changed(faster, Spec(heartbeat=Heartbeat(timeout_ms=1500)))
    assert slower.spec.heartbeat == Heartbeat(interval_ms=500, timeout_ms=1500)
