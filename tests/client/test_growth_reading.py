"""Readers of every kind, of a channel that grows while they read."""

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from shared_kafka import SharedKafka
from sluiceway import Channel, ChannelReader, Gateway, Heartbeat, InputPort
from sluiceway.confluent import Consumer
from sluiceway.kafka.consumer import MessageStream
from waiting import until

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "v", "type": "long"}]}
RECORDS = 10
WITHIN_S = 60
"""Ten seconds on a quiet machine."""

Take = Callable[[], list[int]]
"""Returns further records."""


def values(reader: ChannelReader | InputPort) -> Take:
    return lambda: [record["v"] for record in reader.read(100, timeout=0.05)]


def open_readers(channel: Channel, url: str, stack: ExitStack) -> dict[str, Take]:
    """Open a reader of each kind on a channel with two partitions, and read once."""

    def opened(**options: Any) -> Take:
        return values(stack.enter_context(channel.reader(until=None, **options)))

    readers = {
        "plain": opened(),
        "plain, shared connection": opened(share_connection=True),
        "plain, latest": opened(start="latest"),
        "until finished": values(stack.enter_context(channel.reader(until="finished"))),
        "place 0": opened(group="fixed", index=0, size=2),
        "place 1": opened(group="fixed", index=1, size=2, share_connection=True),
        "broadcast": opened(group="each", index=0, size=1, mode="broadcast", start="latest"),
        "first member": opened(group="work", dynamic=True),
        "second member": opened(group="work", dynamic=True),
        "member, latest": opened(group="late", dynamic=True, start="latest"),
        "port": values(stack.enter_context(InputPort(channel, until=None, group="port"))),
    }
    config = {"bootstrap.servers": url, "group.id": "facade", "auto.offset.reset": "latest"}
    consumer = stack.enter_context(Consumer(config))
    consumer.subscribe([channel.name])
    until(lambda: consumer.poll(0.1) or consumer.assignment())

    def consume() -> list[int]:
        messages = consumer.consume(100, 0.05)
        return [message.offset() for message in messages if message.error() is None]

    return readers | {"confluent": consume}


def assert_all_read(readers: dict[str, Take], expected: dict[str, int]) -> None:
    counts = dict.fromkeys(readers, 0)

    def enough() -> bool:
        for name, take in readers.items():
            counts[name] += len(take())
        return all(counts[name] >= expected[name] for name in readers)

    try:
        until(enough, WITHIN_S)
    finally:
        assert counts == expected


def expected_of(readers: dict[str, Take], added: dict[int, int]) -> dict[str, int]:
    """Return how many of the records in the added partitions each reader gets."""
    total = sum(added.values())
    parted = {
        name: sum(count for partition, count in added.items() if partition % 2 == place)
        for place, names in enumerate((("place 0", "first member"), ("place 1", "second member")))
        for name in names
    }
    return dict.fromkeys(readers, total) | parted


@pytest.fixture
def growing(gateway: Gateway) -> Callable[..., Channel]:
    def make(**spec: Any) -> Channel:
        name = f"growing-{uuid.uuid4().hex[:8]}"
        heartbeat = Heartbeat(interval_ms=500, timeout_ms=60_000)
        return gateway.channel(name, SCHEMA, partitions=2, heartbeat=heartbeat, **spec)

    return make


def test_a_reader_until_finished_reads_a_partition_that_its_broker_does_not_know_yet(
    growing: Callable[..., Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = growing(delivery="exactly_once")
    with channel.reader(until="finished") as reader:
        # A broker whose metadata lags cannot be arranged.
        monkeypatch.setattr(MessageStream, "discover_partitions", lambda _: 2)
        channel.update(partitions=3)
        with channel.writer(partition=2) as writer:
            writer.write([{"v": value} for value in range(RECORDS)])
        assert [record["v"] for record in reader] == list(range(RECORDS))


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("grown", ["by an update", "outside"])
def test_every_reader_gets_the_first_records_of_added_partitions(
    growing: Callable[..., Channel],
    gateway_url: str,
    kafka: SharedKafka,
    grown: str,
    delivery: str,
) -> None:
    channel = growing(delivery=delivery)
    with ExitStack() as stack:
        # Ports wait for a writer.
        stack.enter_context(channel.writer())
        readers = open_readers(channel, gateway_url, stack)
        for take in readers.values():
            assert take() == []
        if grown == "outside":
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
            topic = channel.status.topic.name
            admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
            until(lambda: channel.refresh().status.topic.partitions == 4)
        else:
            channel.update(partitions=4)
        # Open writers: a reader until="finished" does not wait for their end offsets.
        for partition in (2, 3):
            writer = stack.enter_context(channel.writer(partition=partition))
            writer.write([{"v": value} for value in range(RECORDS)])
            writer.flush()
        assert_all_read(readers, expected_of(readers, {2: RECORDS, 3: RECORDS}))


@pytest.mark.long
@pytest.mark.parametrize("stop", [None, "finished"])
def test_chosen_partitions_stay_the_same_also_if_they_were_all(
    growing: Callable[..., Channel], stop: Literal["finished"] | None
) -> None:
    """Another process may read the added ones."""
    channel = growing()
    with (
        channel.writer() as writer,
        channel.reader(partitions=[0, 1], until=stop) as chosen,
        channel.reader(until=stop) as all_,
    ):
        channel.update(partitions=4)
        until(lambda: writer.handle.partitions == 4)
        for partition in range(4):
            with channel.writer(partition=partition) as pinned:
                pinned.write([{"v": partition}])
        writer.close()
        assert sorted(record["v"] for record in all_.read(4, timeout=WITHIN_S)) == [0, 1, 2, 3]
        assert sorted(record["v"] for record in chosen.read(2, timeout=WITHIN_S)) == [0, 1]
        assert chosen.discover_partitions() == ()
        if stop == "finished":
            assert list(chosen) == list(all_) == []


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("grouped", ["places", "members"])
def test_readers_until_finished_read_added_partitions_before_they_end(
    growing: Callable[..., Channel], grouped: str, delivery: str
) -> None:
    channel = growing(delivery=delivery)
    with ExitStack() as stack:
        options: list[dict[str, Any]] = [{"dynamic": True}] * 2
        if grouped == "places":
            options = [{"index": index, "size": 2} for index in range(2)]
        readers = [
            stack.enter_context(channel.reader(group="all", until="finished", **member_options))
            for member_options in options
        ]
        with channel.writer() as writer:
            channel.update(partitions=4)
            until(lambda: writer.handle.partitions == 4)
            # The writer ends before the readers have seen the added partitions.
            for value in range(12):
                writer.write({"v": value})
                writer.flush()
        read_values: list[int] = []

        def all_finished() -> bool:
            for reader in readers:
                read_values.extend(record["v"] for record in reader.read(100, timeout=0.1))
            return all(reader.finished for reader in readers)

        until(all_finished, WITHIN_S)
        assert sorted(read_values) == list(range(12))
        assert sorted(p for reader in readers for p in reader.partitions) == [0, 1, 2, 3]
        # The first place closes last.
        for reader in reversed(readers):
            reader.close()
