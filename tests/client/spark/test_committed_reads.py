"""Reads of exactly-once channels without a Spark session: plan, pickle, read."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from pyspark.sql.datasource import DataSourceReader, InputPartition

from relay import Relay
from sluiceway import Gateway
from sluiceway.api.ledger import Interval
from sluiceway.channel import Channel
from sluiceway.errors import (
    GatewayAccessFailed,
    OffsetOutOfRange,
    OptionError,
    RecordsLost,
)
from sluiceway.schema import Schema
from sluiceway.spark.batch_reader import InputSplit
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.offsets import OffsetRange
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.readable_offsets import ReadableOffsets
from sluiceway.spark.types import struct_of
from sluiceway.spark.worker import RefreshableConnection
from sluiceway.writer import ChannelWriter
from spark_tasks import SCHEMA, fill, produce
from topics import Topics

Read = Callable[..., list[int]]

TLS_HANDSHAKE = b"\x16\x03\x01"
"""The first bytes of a TLS connection."""


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=2, delivery="exactly_once")


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": row_id, "s": str(row_id)} for row_id in ids]


def abort(channel: Channel, *ids: int, partition: int = 0) -> None:
    """Write records into Kafka that are never committed."""
    with (
        suppress(ZeroDivisionError),
        channel.writer(partition=partition) as writer,
        writer.batch("aborted"),
    ):
        writer.write(rows(*ids))
        writer.flush()
        raise ZeroDivisionError


@contextmanager
def open_batch(channel: Channel, partition: int = 0) -> Iterator[ChannelWriter]:
    """Keep a batch open, to which the block may write."""
    with channel.writer(partition=partition) as writer, writer.batch("slow", owner="nightly"):
        yield writer


@pytest.fixture
def relay(gateway_url: str) -> Iterator[Relay]:
    with closing(Relay(httpx.URL(gateway_url).port or 0)) as relay:
        yield relay


@pytest.fixture
def planned(gateway_url: str, channel: Channel) -> Callable[..., DataSourceReader]:
    def planned(url: str = gateway_url, **options: str) -> DataSourceReader:
        source = ChannelDataSource({"path": channel.name} | options, gateway_url=url)
        columns = struct_of(Schema.parse(channel.connection("read").schema_definition).arrow)
        reader: DataSourceReader = pickle.loads(pickle.dumps(source.reader(columns)))  # noqa: S301
        return reader

    return planned


def tasks(reader: DataSourceReader) -> list[list[int]]:
    """Return the ids that each task of a plan reads."""
    return tasks_of(reader, *reader.partitions())


def tasks_of(reader: DataSourceReader, *partitions: InputPartition) -> list[list[int]]:
    return [
        [row_id for batch in reader.read(split) for row_id in batch.column("id").to_pylist()]
        for split in pickle.loads(pickle.dumps(partitions))  # noqa: S301
    ]


@pytest.fixture
def read(planned: Callable[..., DataSourceReader]) -> Read:
    def read(**options: str) -> list[int]:
        return [row_id for ids in tasks(planned(**options)) for row_id in ids]

    return read


def test_only_committed_records_are_read(channel: Channel, read: Read) -> None:
    fill(channel, range(3))
    abort(channel, 90, 91)
    fill(channel, range(3, 5))
    abort(channel, 92, partition=1)
    produce(channel.connection("read"), b"from a foreign producer", partition=1)
    with open_batch(channel, partition=1) as writer:
        writer.write(rows(93))

        assert read() == [0, 1, 2, 3, 4]


def test_each_split_has_its_part_of_the_committed_offsets(
    channel: Channel, planned: Callable[..., DataSourceReader]
) -> None:
    fill(channel, range(4))
    abort(channel, *range(90, 94))
    fill(channel, range(4, 8))

    reader = planned(maxRecordsPerPartition="4")
    splits: list[InputSplit] = [partition.value for partition in reader.partitions()]

    assert [split.visible for split in splits] == [(Interval(0, 4),), (Interval(8, 12),)]
    assert [(split.offsets.start, split.offsets.end) for split in splits] == [(0, 4), (8, 12)]
    assert tasks(reader) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_committed_records_are_requested_once_in_a_plan(
    channel: Channel, planned: Callable[..., DataSourceReader], relay: Relay
) -> None:
    fill(channel, range(4))
    reader = planned(relay.url, minPartitions="4")
    relay.sent[b"/committed?"] = 0

    assert tasks(reader) == [[0], [1], [2], [3]]
    assert relay.sent == {b"/committed?": 1}


def test_a_read_has_the_batches_that_are_committed_each_wholly(
    channel: Channel, planned: Callable[..., DataSourceReader]
) -> None:
    fill(channel, range(3))
    with open_batch(channel) as writer:
        writer.write(rows(7))
        writer.flush()
        fill(channel, range(3, 5))
        plan = planned()
        splits = plan.partitions()
        assert tasks(planned(endingOffsets='{"0": 3, "1": -2}')) == [[0, 1, 2]]
        writer.write(rows(8))

    # The batch ended after the plan was made.
    assert [row_id for ids in tasks_of(plan, *splits) for row_id in ids] == [0, 1, 2, 3, 4]
    assert [row_id for ids in tasks(planned()) for row_id in ids] == [0, 1, 2, 7, 3, 4, 8]


def test_an_end_past_the_committed_records_is_refused(channel: Channel, read: Read) -> None:
    fill(channel, range(3))
    abort(channel, 90, 91)

    with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 4"):
        read(endingOffsets='{"0": 4, "1": 0}')
    with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 5"):
        read(startingOffsets='{"0": 5, "1": 0}')


def test_timestamps_and_latest_stay_within_committed_records(channel: Channel, read: Read) -> None:
    fill(channel, range(3))
    abort(channel, 90, 91)

    assert read(endingTimestamp=str(2**42)) == [0, 1, 2]
    assert read(endingTimestamp="0") == []
    assert read(startingTimestamp="0") == [0, 1, 2]
    assert read(startingOffsets="latest") == []


def test_a_snapshot_is_the_channel_as_of_a_commit(channel: Channel, read: Read) -> None:
    fill(channel, range(3))
    first = channel.commits().events[0]
    fill(channel, range(3, 5))
    fill(channel, range(5, 8), partition=1)

    assert read() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert read(snapshot=str(first.number)) == read(versionAsOf=str(first.number)) == [0, 1, 2]
    assert read(snapshot=first.at.isoformat()) == [0, 1, 2]
    assert read(timestampAsOf=first.at.isoformat()) == [0, 1, 2]
    assert read(snapshot=datetime.now(UTC).isoformat()) == [0, 1, 2, 3, 4, 5, 6, 7]
    with open_batch(channel):
        fill(channel, range(8, 9))
        # An open batch does not hold back records of that snapshot.
        assert read(snapshot=str(first.number)) == [0, 1, 2]


@pytest.mark.parametrize("text", ["-1", "yesterday", "2026-11-24T08:00:00", "1.5"])
def test_a_snapshot_is_a_number_or_a_time_with_a_zone(read: Read, text: str) -> None:
    with pytest.raises(OptionError, match=r"snapshot is .*; it takes the number of a commit, or a"):
        read(snapshot=text)


def test_a_snapshot_of_which_retention_has_removed_records_is_refused(
    channel: Channel, read: Read, topics: Topics
) -> None:
    fill(channel, range(3))
    fill(channel, range(3, 6))
    second, first = channel.commits().events
    connection = channel.connection("read")
    topics.truncate(connection.topic_name, 0, 2)

    for number in (str(first.number), str(second.number)):
        with pytest.raises(OffsetOutOfRange, match="no longer has all records of this snapshot"):
            read(snapshot=number)
    assert read(snapshot=str(first.number), failOnDataLoss="false") == [2]
    assert read(snapshot=str(second.number), startingOffsets='{"0": 2, "1": -2}') == [2, 3, 4, 5]
    with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 1"):
        read(snapshot=str(second.number), startingOffsets='{"0": 1, "1": 0}')
    topics.truncate(connection.topic_name, 0, 6)
    with pytest.raises(OffsetOutOfRange, match="no longer has all records of this snapshot"):
        read(snapshot=str(second.number))
    assert read(snapshot=str(second.number), failOnDataLoss="false") == []


def test_a_channel_without_commits_has_no_snapshots(gateway: Gateway, gateway_url: str) -> None:
    channel = gateway.channel("spark-plain-snapshot", SCHEMA)
    source = ChannelDataSource({"path": channel.name, "snapshot": "1"}, gateway_url=gateway_url)
    with pytest.raises(OptionError, match="has no snapshots: its delivery is at_least_once"):
        source.reader(struct_of(SCHEMA)).partitions()
    with pytest.raises(OptionError, match="'snapshot' is an option of a batch read"):
        source.streamReader(struct_of(SCHEMA))


def test_an_open_transaction_of_a_foreign_producer_holds_nothing_back(
    channel: Channel, read: Read
) -> None:
    connection = channel.connection("read")
    fill(channel, range(2))
    producer = Producer({**connection.kafka, "transactional.id": connection.topic_name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(connection.topic_name, b"foreign", partition=0)
    producer.flush(30)
    fill(channel, range(2, 4))

    assert read(**{"kafka.isolation.level": "read_committed"}) == [0, 1, 2, 3]
    producer.abort_transaction(30)


def test_a_hole_in_committed_records_fails_the_task(
    channel: Channel, planned: Callable[..., DataSourceReader], topics: Topics
) -> None:
    fill(channel, range(6))
    # Lost records are skipped only if the log begins after them.
    reader = planned(failOnDataLoss="false")
    (partition,) = reader.partitions()
    connection = channel.connection("read")
    for _ in range(2):
        # The marker that ends a transaction takes an offset and is never delivered.
        topics.produce_in_transaction(connection.topic_name, 1, [b"x"])
    offsets = OffsetRange(partition=1, start=1, end=3)
    partition.value = replace(partition.value, offsets=offsets, visible=(Interval(1, 3),))

    with pytest.raises(RecordsLost, match="partition 1: the record at offset 1 is committed, but"):
        tasks_of(reader, partition)


def test_expired_records_fail_a_read_or_are_skipped_on_request(
    channel: Channel, read: Read, topics: Topics
) -> None:
    fill(channel, range(6))
    topics.truncate(channel.connection("read").topic_name, 0, 4)

    assert read() == [4, 5]
    with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 1"):
        read(startingOffsets='{"0": 1, "1": 0}')
    assert read(startingOffsets='{"0": 1, "1": 0}', failOnDataLoss="false") == [4, 5]


def test_records_that_expire_after_planning_fail_the_task(
    channel: Channel, planned: Callable[..., DataSourceReader], topics: Topics
) -> None:
    fill(channel, range(6))
    strict, lenient = planned(), planned(failOnDataLoss="false")
    plans = [list(reader.partitions()) for reader in (strict, lenient)]
    topics.truncate(channel.connection("read").topic_name, 0, 4)

    with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 0"):
        tasks_of(strict, *plans[0])
    assert tasks_of(lenient, *plans[1]) == [[4, 5]]


def test_a_gateway_that_does_not_speak_tls_fails_a_plan_at_once(
    channel: Channel, relay: Relay
) -> None:
    relay.sent[TLS_HANDSHAKE] = 0
    url = relay.url.replace("http:", "https:")
    source = RefreshableConnection(channel.connection("read"), "read", gateway_url=url)
    options = ReadOptions.parse({"path": channel.name})
    with pytest.raises(GatewayAccessFailed):
        ReadableOffsets(source, options, {}, timeout_s=30, gateway_timeout_s=60)
    assert relay.sent == {TLS_HANDSHAKE: 1}
