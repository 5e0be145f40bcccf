"""Writers that are open while their channel grows."""

import time
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from faults import at_call
from sluiceway import Channel, ChannelWriter, Gateway, Heartbeat
from sluiceway import writer as writer_module
from sluiceway.confluent import Producer
from sluiceway.errors import KafkaUnavailable
from waiting import until

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "v", "type": "long"}]}


@pytest.fixture
def growing(gateway: Gateway) -> Callable[..., Channel]:
    def make(**spec: Any) -> Channel:
        name = f"growing-{uuid.uuid4().hex[:8]}"
        heartbeat = Heartbeat(interval_ms=200, timeout_ms=60_000)
        return gateway.channel(name, SCHEMA, partitions=2, heartbeat=heartbeat, **spec)

    return make


def learn_of_growth(writer: ChannelWriter, partitions: int) -> None:
    """Wait for the heartbeat whose reply has the number of partitions."""
    until(lambda: writer.handle.partitions == partitions)


def written(channel: Channel, count: int) -> dict[int, list[int]]:
    """Return all records of a channel by partition."""
    values: dict[int, list[int]] = {}
    for partition in range(channel.refresh().partitions):
        with channel.reader(partitions=[partition], until="now") as reader:
            values[partition] = [record["v"] for record in reader]
    assert sorted(
        value for partition_values in values.values() for value in partition_values
    ) == list(range(count))
    return values


@pytest.mark.long
@pytest.mark.parametrize("format_", ["avro", "arrow"])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_records_without_a_key_go_to_added_partitions_and_are_in_the_end_offsets(
    growing: Callable[..., Channel], format_: str, delivery: str
) -> None:
    channel = growing(format=format_, delivery=delivery)
    with channel.reader(until="finished") as reader:
        with channel.writer() as writer:
            for value in range(8):
                writer.write({"v": value})
                writer.flush()
            channel.update(partitions=4)
            learn_of_growth(writer, 4)
            for value in range(8, 24):
                writer.write({"v": value})
                writer.flush()
            assert sorted(writer.end_offsets()) == [0, 1, 2, 3]
        ends = [endpoint.ends for endpoint in channel.endpoints() if endpoint.role == "writer"]
        if delivery == "at_least_once":
            assert [sorted(offsets or {}) for offsets in ends] == [[0, 1, 2, 3]]
        assert sorted(record["v"] for record in reader) == list(range(24))
    assert all(written(channel, 24).values())


def test_a_slow_request_for_added_partitions_is_not_repeated_at_once(
    growing: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = growing()
    now_s, requests = time.monotonic(), 0
    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep)
    # The clock of a producer whose request takes long.
    monkeypatch.setattr(writer_module, "time", clock)

    def time_out() -> None:
        nonlocal now_s, requests
        now_s, requests = now_s + 2, requests + 1
        raise KafkaUnavailable("no response")

    with channel.writer() as writer:
        channel.update(partitions=4)
        learn_of_growth(writer, 4)
        with at_call(writer.producer, "discover_partitions", time_out):
            for value in range(3):
                writer.write({"v": value})
                writer.flush()
            assert requests == 1
            now_s += 2
            writer.write({"v": 3})
            writer.flush()
            assert requests == 2


def test_a_batch_that_is_open_while_the_channel_grows_uses_the_partitions_that_it_has(
    growing: Callable[..., Channel],
) -> None:
    channel = growing(delivery="exactly_once")
    with channel.writer() as writer:
        with writer.batch("before"):
            writer.write([{"v": value} for value in range(4)])
            channel.update(partitions=4)
            learn_of_growth(writer, 4)
            writer.write([{"v": value} for value in range(4, 8)])
        before = written(channel, 8)
        assert [bool(values) for values in before.values()] == [True, True, False, False]
        with writer.batch("after"):
            writer.write([{"v": value} for value in range(8, 16)])
    assert all(written(channel, 16).values())


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_messages_without_a_key_of_a_confluent_producer_go_to_added_partitions(
    gateway: Gateway, gateway_url: str, delivery: str
) -> None:
    name = f"growing-{uuid.uuid4().hex[:8]}"
    heartbeat = Heartbeat(interval_ms=200, timeout_ms=60_000)
    channel = gateway.channel(
        name, format="bytes", partitions=2, heartbeat=heartbeat, delivery=delivery
    )
    partitions: set[int] = set()
    reports: list[object] = []

    def delivered(error: object, message: Any) -> None:
        reports.append(error)
        partitions.add(message.partition())

    def all_used() -> bool:
        # A batch goes to one partition after the other: librdkafka's partitioner is sticky.
        producer.produce(name, b"x", on_delivery=delivered)
        assert producer.flush(30) == 0
        return len(partitions) == 4

    with Producer({"bootstrap.servers": gateway_url}) as producer:
        producer.produce(name, b"x", on_delivery=delivered)
        assert producer.flush(30) == 0
        channel.update(partitions=4)
        until(all_used)
    assert set(reports) == {None}
    with channel.reader(until="finished") as reader:
        assert len(list(reader)) == len(reports)


@pytest.mark.long
@pytest.mark.parametrize("chosen", ["key", "partitioner", "partition"])
def test_other_writers_keep_the_number_of_partitions_with_which_they_opened(
    growing: Callable[..., Channel], chosen: str
) -> None:
    channel = growing()
    options: dict[str, Any] = {
        "key": {"key": "v"},
        "partitioner": {"partitioner": lambda record, partitions: record["v"] % partitions},
        "partition": {"partition": 1},
    }[chosen]
    records = [{"v": value} for value in range(16)]
    with channel.writer(**options) as writer:
        writer.write(records[:8])
        channel.update(partitions=4)
        learn_of_growth(writer, 4)
        writer.write(records[8:])
    values = written(channel, 16)
    assert values[2] == values[3] == []
    if chosen == "key":
        # A new writer hashes over the gateway's number.
        with channel.writer(key="v") as writer:
            writer.write([{"v": value} for value in range(16, 32)])
        assert all(written(channel, 32).values())
