"""Adopted and closed channels under the reconciler, on a real broker."""

import uuid

import pytest

from reconciler_rig import RESYNC_S, Rig, condition, status
from sluiceway_gateway.channels.model import Channel, Phase, TopicRef
from sluiceway_gateway.provisioning.reconciler import Counts
from topics import Topics


@pytest.fixture
def adopted(rig: Rig, operator: Topics) -> Channel:
    """A ready channel of an adopted topic."""
    name = f"foreign-{uuid.uuid4().hex[:8]}"
    operator.create(name, 2, {"segment.ms": "7000", "flush.ms": "9000"})
    topic = TopicRef(name=name, id=rig.topic_id(name), partitions=2)
    channel = rig.add(topic=topic, adopted=True)
    assert rig.run_once() == Counts(checked=1, changed=1)
    found = rig.get(channel)
    assert (found.phase, status(found, "Ready")) == (Phase.READY, ("True", "TopicAdopted"))
    return found


def look_twice(rig: Rig) -> None:
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
    assert rig.run_once() == Counts(checked=1, changed=1)
    found, topic = rig.get(adopted), rig.topic(adopted)
    assert topic is not None
    assert topic.config == {"retention.ms": "5000", "segment.ms": "8000", "flush.ms": "9000"}
    assert (found.spec.partitions, found.topic.partitions) == (4, 4)
    assert (found.spec.retention.ms, found.spec.config) == (5000, {"segment.ms": "8000"})
    assert found.generation == adopted.generation, "nobody asked for it"
    assert found.revision == adopted.revision + 1


def test_a_missing_or_recreated_adopted_topic_is_reported_and_unchanged(
    rig: Rig, operator: Topics, adopted: Channel
) -> None:
    name = adopted.topic.name
    operator.delete(name)
    rig.await_topic(adopted, lambda topic: topic is None)
    look_twice(rig)
    found = rig.get(adopted)
    assert (found.phase, status(found, "Ready")) == (Phase.FAILED, ("False", "TopicMissing"))
    assert "adopt a topic again" in condition(found, "Ready").message
    assert rig.topic(adopted) is None, "it is not made anew"

    operator.create(name)
    rig.await_topic(adopted, lambda topic: topic is not None)
    look_twice(rig)
    found = rig.get(adopted)
    assert (found.phase, status(found, "Ready")) == (Phase.FAILED, ("False", "TopicRecreated"))
    rig.delete(adopted, keep_topic=True)
    rig.run_once()
    assert rig.find(adopted) is None
    assert rig.topic(adopted) is not None, "it is somebody else's"


def test_a_closed_channel_stays_closed_without_its_topic(rig: Rig, operator: Topics) -> None:
    ready = rig.ready()
    rig.close(ready)
    rig.run_once()
    assert status(rig.get(ready), "Ready") == ("True", "Closed")
    operator.delete(ready.topic.name)
    rig.await_topic(ready, lambda topic: topic is None)
    look_twice(rig)
    found = rig.get(ready)
    assert (found.phase, status(found, "Ready")) == (Phase.CLOSED, ("False", "TopicMissing"))
