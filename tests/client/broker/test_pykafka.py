"""pykafka's producers and consumers on our Broker."""

import uuid
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from sluiceway import Channel, Gateway, Heartbeat
from sluiceway.broker import Broker, OffsetType
from waiting import until

# pykafka uses deprecated names of newer libraries.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pykafka

pytestmark = pytest.mark.filterwarnings("ignore")
SENT = [b"message %d" % number for number in range(20)]


@pytest.fixture
def channel(gateway_url: str) -> Iterator[Channel]:
    with Gateway(gateway_url) as gateway:
        name, heartbeat = (
            f"old-{uuid.uuid4().hex[:8]}",
            Heartbeat(interval_ms=200, timeout_ms=60_000),
        )
        yield gateway.channel(name, format="bytes", partitions=2, heartbeat=heartbeat)


@pytest.fixture
def topic(
    gateway_url: str, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], Any]]:
    """pykafka's topic of the channel, with any broker as the group coordinator."""
    made: list[Broker] = []

    class Kept(Broker):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            made.append(self)

    # As docs/coming-from.md says: pykafka has no parameter for its broker and coordinator.
    monkeypatch.setattr(pykafka.cluster, "Broker", Kept)
    # Nor for its coordinator.
    monkeypatch.setattr(
        pykafka.cluster.Cluster,
        "get_group_coordinator",
        lambda self, _group: next(iter(self.brokers.values())),
    )
    client = pykafka.KafkaClient(gateway_url.removeprefix("http://"), broker_version="1.0.0")
    topic = client.topics[channel.name.encode()]
    with topic.get_sync_producer(linger_ms=0) as producer:
        for value in SENT:
            producer.produce(value)
    yield topic
    for broker in made:
        broker.close()


@pytest.mark.long
def test_a_simple_consumer_continues_at_the_committed_offsets(topic: Any) -> None:
    options = {"consumer_group": b"simple", "consumer_timeout_ms": 30_000}
    options["auto_offset_reset"] = OffsetType.EARLIEST
    first = topic.get_simple_consumer(**options)
    messages = [first.consume().value for _ in range(12)]
    first.commit_offsets()
    first.stop()
    second = topic.get_simple_consumer(**options)
    messages += [second.consume().value for _ in range(8)]
    second.stop()
    assert sorted(messages) == sorted(SENT)


@pytest.mark.long
def test_a_topic_and_its_partitions_have_offset_limits(topic: Any) -> None:
    limits = topic.latest_available_offsets()
    assert sum(position.offset[0] for position in limits.values()) == len(SENT)
    assert {
        number: partition.err for number, partition in topic.earliest_available_offsets().items()
    } == {
        0: 0,
        1: 0,
    }
    for number, partition in topic.partitions.items():
        assert partition.earliest_available_offset() == 0
        assert [partition.latest_available_offset()] == limits[number].offset
    long_ago = datetime(2000, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    assert [partition.offset for partition in topic.fetch_offset_limits(long_ago).values()] == [
        [0],
        [0],
    ]


def test_pykafkas_requests_create_and_delete_topics(gateway_url: str) -> None:
    protocol = pykafka.protocol
    host, port = gateway_url.removeprefix("http://").split(":")
    name = f"new-{uuid.uuid4().hex[:8]}".encode()
    request = protocol.CreateTopicRequest(name, 2, 1, [], [(b"retention.ms", b"60000")])
    with Broker(0, host, int(port), None, 20_000, 20_000) as broker:
        broker.create_topics([request], timeout=30_000)
        offset_request = protocol.PartitionOffsetRequest(name, 1, OffsetType.LATEST, 1)
        ((offset,), code) = broker.request_offset_limits([offset_request]).topics[name][1]
        assert (offset, code) == (0, 0)
        broker.delete_topics([name], timeout=30_000)


@pytest.mark.long
def test_kafka_tools_show_the_lag_of_a_group(topic: Any) -> None:
    from pykafka.cli import kafka_tools

    consumer = topic.get_simple_consumer(
        consumer_group=b"lagging", consumer_timeout_ms=30_000, auto_offset_reset=OffsetType.EARLIEST
    )
    for _ in range(12):
        consumer.consume()
    consumer.commit_offsets()
    consumer.stop()
    lags = kafka_tools.fetch_consumer_lag(None, topic, b"lagging")
    assert sum(latest - at for latest, at in lags.values()) == len(SENT) - 12


@pytest.mark.long
def test_managed_consumers_share_the_partitions(topic: Any) -> None:
    options = {"managed": True, "consumer_timeout_ms": 30_000, "heartbeat_interval_ms": 100}
    options["auto_offset_reset"] = OffsetType.EARLIEST
    first = topic.get_balanced_consumer(b"managed", **options)
    assert sorted(first.partitions) == [0, 1]
    messages = [first.consume().value for _ in range(5)]
    first.commit_offsets()
    second = topic.get_balanced_consumer(b"managed", **options)
    until(lambda: [list(consumer.partitions) for consumer in (first, second)] == [[0], [1]])

    def is_complete() -> bool:
        for consumer in (first, second):
            while (message := consumer.consume(block=False)) is not None:
                messages.append(message.value)
        return sorted(set(messages)) == sorted(SENT)

    until(is_complete)
    first.stop()
    second.stop()
