"""Names of channels and groups that are legal in Kafka."""

import uuid
from collections.abc import Callable
from functools import partial

import confluent_kafka
import pytest

from confluent_facade import Facade, poll_messages, poll_until
from sluiceway import Channel, Gateway, Position
from sluiceway.confluent import Consumer
from sluiceway.errors import InvalidRequest, OptionError
from topics import DEFINITION, readings

GROUPS = ["team a/billing", "..", ".", "100% größe 東京", "%2F", "offsets/reset", "a+b;c=d?e#f"]


@pytest.fixture
def channel(gateway: Gateway) -> Channel:
    """A channel with a name that is legal for a topic of Kafka."""
    return gateway.channel(f"Sensor_Readings.V1-{uuid.uuid4().hex[:8]}", schema=DEFINITION)


@pytest.mark.sample
@pytest.mark.parametrize("group", GROUPS)
def test_a_group_of_any_name_reads_commits_and_is_reset(channel: Channel, group: str) -> None:
    with channel.writer(group=group) as writer:
        writer.write(readings(10))
    with channel.reader(group=group) as reader:
        assert len(list(reader)) == 10
        reader.commit()
    assert channel.committed(group) == {0: Position(offset=10)}
    assert [group_report.name for group_report in channel.report().groups] == [group]
    channel.reset(group, {0: 4}, reason="again", force=True)
    with channel.reader(group=group, dynamic=False) as reader:
        assert len(list(reader)) == 6
    channel.resize(group, 2)
    assert channel.endpoints()


@pytest.mark.parametrize("group", ["", "a\n", "x" * 250, "\ud800", 5])
def test_a_name_that_no_group_can_have_is_refused(channel: Channel, group: object) -> None:
    with pytest.raises(OptionError, match="1 to 249 characters, and no control characters"):
        channel.reader(group=group)  # type: ignore[arg-type]


def test_a_consumer_group_of_any_name_is_mirrored_to_kafka(
    site: Facade, consumer: Callable[..., Consumer]
) -> None:
    group = f"team a/größe {uuid.uuid4().hex[:8]}"
    name = site.channel(partitions=1, filled=5, mirrored=True)
    one = consumer(**{"group.id": group, "auto.offset.reset": "earliest"})
    one.subscribe([name])
    poll_messages(one, 5)
    one.commit(asynchronous=False)
    connection = site.gateway.channel(name).connection("read")
    kafka = confluent_kafka.Consumer({**connection.kafka, "group.id": group})
    topic = confluent_kafka.TopicPartition(connection.topic_name, 0)
    poll_until(partial(lambda: kafka.committed([topic], 10)[0].offset == 5))
    kafka.close()


@pytest.mark.parametrize("name", ["a b", "a/b", "..", "", "ä"])
def test_a_name_that_no_channel_can_have_is_refused_with_the_rule(
    gateway: Gateway, name: str
) -> None:
    with pytest.raises(InvalidRequest, match="it may contain a-z, A-Z, 0-9"):
        gateway.channel(name)
