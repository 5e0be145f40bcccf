"""Reconciliation of adopted and closed channels, on a real broker."""

import uuid

import pytest

from reconciler_rig import RESYNC_S, Rig, condition, status
from sluiceway_gateway.channels.model import Channel, Phase
from sluiceway_gateway.provisioning.reconciler import ReconcileCounts
from topics import Topics


@pytest.fixture
def adopted(rig: Rig, operator: Topics) -> Channel:
    """A ready channel of an adopted topic."""
    name = f"foreign-{uuid.uuid4().hex[:8]}"
    operator.create(name, 2, {"segment.ms": "7000", "flush.ms": "9000"})
    channel = rig.add(observed=rig.created(name))
    assert rig.run_once() == ReconcileCounts(checked=1, changed=1)
    ready = rig.get(channel)
    assert (ready.phase, status(ready, "Ready")) == (Phase.READY, ("True", "TopicAdopted"))
    return ready


def reconcile_twice(rig: Rig) -> None:
    for _ in range(2):
        rig.clock.advance(RESYNC_S)
        rig.run_once()


def test_the_spec_follows_an_adopted_topic_without_reverting_it(
    rig: Rig, operator: Topics, adopted: Channel
) -> None:
    name = adopted.topic.name
    operator.grow(name, 4)
    operator.set(name, retention_ms="5000", segment_ms="8000")
    rig.await_topic(adopted, lambda topic: topic is not None and topic.partitions == 4)
    rig.await_topic(adopted, lambda topic: topic is not None and len(topic.config) == 3)
    rig.clock.advance(RESYNC_S)
    assert rig.run_once() == ReconcileCounts(checked=1, changed=1)
    after, topic = rig.get(adopted), rig.topic(adopted)
    assert topic is not None
    assert topic.config == {"retention.ms": "5000", "segment.ms": "8000", "flush.ms": "9000"}
    assert (after.spec.partitions, after.topic.partitions) == (4, 4)
    assert (after.spec.retention.ms, after.spec.config) == (5000, {"segment.ms": "8000"})
    assert after.generation == adopted.generation, "no request changed the spec"
    assert after.revision == adopted.revision + 1


def test_a_missing_or_recreated_adopted_topic_is_reported_and_unchanged(
    rig: Rig, operator: Topics, adopted: Channel
) -> None:
    name = adopted.topic.name
    operator.delete(name)
    rig.await_topic(adopted, lambda topic: topic is None)
    reconcile_twice(rig)
    failed = rig.get(adopted)
    assert (failed.phase, status(failed, "Ready")) == (Phase.FAILED, ("False", "TopicMissing"))
    assert "adopt a topic again" in condition(failed, "Ready").message
    assert rig.topic(adopted) is None, "the topic must not be created again"

    operator.create(name)
    rig.await_topic(adopted, lambda topic: topic is not None)
    reconcile_twice(rig)
    failed = rig.get(adopted)
    assert (failed.phase, status(failed, "Ready")) == (Phase.FAILED, ("False", "TopicRecreated"))
    rig.delete(adopted, keep_topic=True)
    rig.run_once()
    assert rig.find(adopted) is None
    assert rig.topic(adopted) is not None, "the foreign topic must stay"


def test_a_closed_channel_stays_closed_without_its_topic(rig: Rig, operator: Topics) -> None:
    ready = rig.ready()
    rig.change(ready, phase=Phase.CLOSED)
    rig.run_once()
    assert status(rig.get(ready), "Ready") == ("True", "Closed")
    operator.delete(ready.topic.name)
    rig.await_topic(ready, lambda topic: topic is None)
    reconcile_twice(rig)
    closed = rig.get(ready)
    assert (closed.phase, status(closed, "Ready")) == (Phase.CLOSED, ("False", "TopicMissing"))
