"""Streaming reads of exactly-once channels without a Spark session."""

import json
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest

from relay import Relay
from sluiceway import Gateway
from sluiceway.api.ledger import Interval
from sluiceway.channel import Channel
from sluiceway.errors import (
    ChannelNotFound,
    CheckpointMismatch,
    GatewayUnavailable,
    OffsetOutOfRange,
    SluicewayTimeout,
)
from sluiceway.ledger.committed_stream import open_stream
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.microbatch import (
    ChannelStreamReader,
    UnlimitedStreamReader,
    held_back,
)
from sluiceway.spark.offsets import OffsetRange, StreamOffset
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.readable_offsets import ReadableOffsets
from sluiceway.spark.types import struct_of
from sluiceway.spark.worker import RefreshableConnection
from sluiceway.writer import ChannelWriter
from spark_tasks import SCHEMA, fill
from topics import Topics
from waiting import until


@pytest.fixture
def patient_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for Kafka than the option `pollTimeoutMs` says, but not for open batches."""
    # The option would also limit the wait for open batches.
    monkeypatch.setattr(
        "sluiceway.spark.readable_offsets.open_stream",
        lambda *arguments, **named: open_stream(*arguments, **{**named, "timeout_s": 60.0}),
    )


Json = Mapping[str, Any]


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=2, delivery="exactly_once")


def abort(channel: Channel, *ids: int, partition: int = 0) -> None:
    """Write records into Kafka that are never committed."""
    with (
        suppress(ZeroDivisionError),
        channel.writer(partition=partition) as writer,
        writer.batch("aborted"),
    ):
        writer.write([{"id": row_id, "s": None} for row_id in ids])
        writer.flush()
        raise ZeroDivisionError


@contextmanager
def open_batch(channel: Channel, partition: int = 0) -> Iterator[ChannelWriter]:
    """Keep a batch open, to which the block may write."""
    with channel.writer(partition=partition) as writer, writer.batch("slow", owner="nightly"):
        yield writer


class Query:
    """A query's driver, which calls the reader in the same order as Spark."""

    def __init__(self, url: str, channel: str, **options: str) -> None:
        source = ChannelDataSource({"path": channel} | options, gateway_url=url)
        reader = source.streamReader(struct_of(SCHEMA))
        assert isinstance(reader, ChannelStreamReader)
        self.reader = reader
        self.planner = reader.planner

    def close(self) -> None:
        self.reader.stop()

    def start(self) -> Json:
        return stored(self.reader.initialOffset())

    def end(self) -> Json:
        return stored(self.planner.end().to_json())

    def batch(self, start: Json, end: Json) -> list[int]:
        """Plan and read a micro-batch, and return its ids."""
        splits = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))  # noqa: S301
        return [
            row_id
            for split in splits
            for batch in self.reader.read(split)
            for row_id in batch.column("id").to_pylist()
        ]


def stored(offset: Json) -> Json:
    """Return an offset after a round trip through a checkpoint."""
    parsed: Json = json.loads(json.dumps(offset))
    return parsed


def offsets(offset: Json) -> dict[int, int]:
    return dict(StreamOffset.parse(offset).next_offsets)


@pytest.fixture
def new_query(gateway_url: str, channel: Channel) -> Iterator[Callable[..., Query]]:
    with ExitStack() as stack:

        def new_query(**options: str) -> Query:
            query = Query(gateway_url, channel.name, **options)
            stack.callback(query.close)
            return query

        yield new_query


def test_a_stream_reads_committed_records_up_to_stable(
    channel: Channel, new_query: Callable[..., Query]
) -> None:
    fill(channel, range(3))
    query = new_query()
    start, first = query.start(), query.end()
    abort(channel, 90, 91)
    fill(channel, range(3, 4), partition=1)
    with open_batch(channel) as writer:
        writer.write([{"id": 5, "s": None}])
        writer.flush()
        fill(channel, range(6, 8))
        until(lambda: offsets(query.end())[1] == 1)
        second = query.end()
    until(lambda: offsets(query.end())[0] == 8)
    third = query.end()

    assert [offsets(offset) for offset in (start, first, second, third)] == [
        {0: 0, 1: 0},
        {0: 3, 1: 0},
        {0: 3, 1: 1},
        {0: 8, 1: 1},
    ]
    assert query.batch(start, first) == [0, 1, 2]
    assert query.batch(first, second) == [3]
    assert query.batch(second, third) == [5, 6, 7]


def test_a_replayed_batch_has_the_same_records(
    channel: Channel, new_query: Callable[..., Query]
) -> None:
    fill(channel, range(3))
    abort(channel, 90)
    fill(channel, range(3, 5))
    query = new_query()
    start, end = query.start(), query.end()
    before = query.batch(start, end)
    fill(channel, range(5, 9))
    abort(channel, 91)

    assert before == query.batch(start, end) == new_query().batch(start, end) == [*range(5)]
    assert query.batch(end, end) == []


def test_the_checkpoint_of_a_recreated_channel_is_refused(
    gateway: Gateway, channel: Channel, new_query: Callable[..., Query]
) -> None:
    fill(channel, range(3))
    query = new_query()
    start, end = query.start(), query.end()
    channel.delete(force=True)
    recreated = gateway.channel(channel.name, SCHEMA, partitions=2, delivery="exactly_once")
    fill(recreated, range(10, 15))
    restarted = new_query()

    with pytest.raises(CheckpointMismatch, match="was deleted and recreated since the checkpoint"):
        restarted.batch(start, end)
    with pytest.raises(CheckpointMismatch, match="a new checkpointLocation to start over"):
        restarted.batch(end, restarted.end())


@pytest.mark.sample
@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": "latest"}, {0: 3, 1: 0}),
        ({"startingOffsets": '{"0": 2, "1": -1}'}, {0: 2, 1: 0}),
        ({"startingTimestamp": str(2**42)}, {0: 3, 1: 0}),
    ],
)
def test_start_offsets_are_within_committed_records(
    channel: Channel, new_query: Callable[..., Query], options: dict[str, str], start: Any
) -> None:
    fill(channel, range(3))
    abort(channel, 90, 91)

    assert offsets(new_query(**options).start()) == start


def test_a_start_past_the_committed_records_is_refused(
    channel: Channel, new_query: Callable[..., Query]
) -> None:
    fill(channel, range(3))
    abort(channel, 90, 91)

    with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 5"):
        new_query(startingOffsets='{"0": 5, "1": 0}').start()


def test_a_checkpoint_of_commits_that_the_gateway_does_not_have_fails(
    channel: Channel, new_query: Callable[..., Query]
) -> None:
    fill(channel, range(3))
    query = new_query()
    start, end = query.start(), query.end()
    assert query.batch(start, end) == [0, 1, 2]
    fill(channel, range(3, 5))
    assert new_query().batch(start, end) == [0, 1, 2]
    # As after a restore of the database and later commits.
    for other in ({"at": "2026-01-01T00:00:00+00:00"}, {"number": 9}):
        old = {**end, "commit": {**end["commit"], **other}}
        again = new_query()
        for _ in range(2):
            with pytest.raises(CheckpointMismatch, match="which the gateway does not have: the ga"):
                again.batch(old, old)


def test_a_checkpoint_ahead_of_the_commits_fails(
    channel: Channel, new_query: Callable[..., Query]
) -> None:
    fill(channel, range(3))
    abort(channel, 90, 91)
    query = new_query()
    end = query.end()
    ahead = {**end, "offsets": {"0": 5, "1": 0}}

    with pytest.raises(CheckpointMismatch, match="up to 5, but it is committed only up to 3: the"):
        query.batch(query.start(), ahead)


def test_an_available_now_query_waits_for_the_commits_before_its_start(
    channel: Channel, relay: Relay
) -> None:
    fill(channel, range(3))
    with closing(Query(relay.url, channel.name)) as query, ThreadPoolExecutor(1) as threads:
        with open_batch(channel):
            fill(channel, range(3, 5))
            query.start()
            relay.sent[b"wait="] = 0
            ending = threads.submit(query.planner.final_end, held_back)
            # Now it waits for the end of the open batch.
            until(lambda: relay.sent[b"wait="])
            fill(channel, range(5, 7))
        end = ending.result(180)

    assert end.next_offsets == {0: 5, 1: 0}


@pytest.mark.usefixtures("patient_planning")
def test_an_available_now_query_that_is_held_back_fails_with_the_batch(
    channel: Channel, new_query: Callable[..., Query]
) -> None:
    with open_batch(channel):
        fill(channel, range(5))
        query = new_query(**{"kafkaConsumer.pollTimeoutMs": "1000"})

        with pytest.raises(SluicewayTimeout, match="the batch 'slow' of 'nightly', open since"):
            query.planner.final_end(held_back)


@pytest.mark.usefixtures("patient_planning")
def test_before_spark_4_2_the_first_batch_waits_and_later_ones_do_not(
    channel: Channel, gateway_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(channel, range(3))
    options = {"path": channel.name, "kafkaConsumer.pollTimeoutMs": "1000"}
    source = RefreshableConnection(channel.connection("read"), "read", gateway_url=gateway_url)
    reader = UnlimitedStreamReader(source, ReadOptions.parse(options), struct_of(SCHEMA))
    with open_batch(channel):
        fill(channel, range(3, 5))
        first = offsets(reader.latestOffset())
        again = offsets(reader.latestOffset())
    until(lambda: offsets(reader.latestOffset()) == {0: 5, 1: 0})
    reader.stop()

    assert first == again == {0: 3, 1: 0}
    (warning,) = [message for message in caplog.messages if "'slow'" in message]
    assert "They are read by a later batch, or by the next run of the query" in warning


@pytest.fixture
def new_readable(channel: Channel, relay: Relay) -> Iterator[Callable[..., ReadableOffsets]]:
    """Return the readable offsets of a query whose requests have a short timeout."""
    source = RefreshableConnection(channel.connection("read"), "read", gateway_url=relay.url)
    options = ReadOptions.parse({"path": channel.name})
    with ExitStack() as stack:

        def new_readable(**limits: float) -> ReadableOffsets:
            readable = ReadableOffsets(
                source, options, {}, timeout_s=30, gateway_timeout_s=5, **limits
            )
            stack.callback(readable.close)
            return readable

        yield new_readable


def followed(readable: ReadableOffsets) -> dict[int, int]:
    """Return the readable ends, as a query requests them."""
    readable.follow()
    return readable.ends(range(2))


def test_a_query_with_rare_polls_requests_the_ledger_each_time(
    channel: Channel, new_readable: Callable[..., ReadableOffsets]
) -> None:
    readable = new_readable(followed_s=0.0)
    followed(readable)
    fill(channel, range(4))

    assert followed(readable) == {0: 4, 1: 0}


def test_an_idle_query_leaves_the_gateway_alone(
    channel: Channel, relay: Relay, new_readable: Callable[..., ReadableOffsets]
) -> None:
    fill(channel, range(4))
    # Whatever the time between two calls, they are those of an idle query.
    readable = new_readable(followed_s=3600.0)
    followed(readable)
    relay.sent.update({b"/committed?": 0, b"wait=20": 0})
    began_s = time.monotonic()
    for _ in range(100):
        followed(readable)
    lasted_s = time.monotonic() - began_s

    # One after the other that waits for commits.
    assert relay.sent[b"/committed?"] == relay.sent[b"wait=20"]
    assert relay.sent[b"/committed?"] <= 1 + lasted_s // 20


def test_a_query_waits_while_the_gateway_does_not_answer(
    channel: Channel,
    relay: Relay,
    new_readable: Callable[..., ReadableOffsets],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(channel, range(4))
    readable = new_readable(followed_s=0.0)
    relay.cut()

    assert followed(readable) == followed(readable) == {0: 4, 1: 0}
    assert readable.visible(OffsetRange(partition=0, start=0, end=4)) == (Interval(0, 4),)
    assert sum("waits for further commits" in message for message in caplog.messages) == 1


@pytest.mark.parametrize(
    ("status", "code"), [(401, "unauthenticated"), (500, "internal_error"), (404, None)]
)
def test_a_query_waits_while_its_requests_are_refused(
    channel: Channel,
    refusing: Any,
    new_readable: Callable[..., ReadableOffsets],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str | None,
) -> None:
    # There is no option for the pause.
    monkeypatch.setattr("sluiceway.spark.readable_offsets._RETRY_AFTER_S", 0.0)
    readable = new_readable(followed_s=0.0)
    fill(channel, range(4))
    with refusing(status, code):
        assert followed(readable) == {0: 0, 1: 0}
    assert followed(readable) == {0: 4, 1: 0}

    with refusing(404, "channel_not_found"), pytest.raises(ChannelNotFound):
        followed(readable)


def test_a_starting_query_waits_for_the_gateway(
    channel: Channel,
    relay: Relay,
    refusing: Any,
    new_readable: Callable[..., ReadableOffsets],
) -> None:
    fill(channel, range(4))
    with ThreadPoolExecutor(1) as threads:
        with refusing(503, "overloaded") as script:
            starting = threads.submit(new_readable)
            until(lambda: len(script.requests) > 1)
        assert starting.result(60).ends(range(2)) == {0: 4, 1: 0}

    relay.cut()
    with pytest.raises(GatewayUnavailable):
        new_readable(open_timeout_s=0.0)


def test_a_stream_continues_after_expired_records_of_failed_attempts(
    channel: Channel, new_query: Callable[..., Query], topics: Topics
) -> None:
    fill(channel, range(3))
    abort(channel, 90, 91)
    topics.truncate(channel.connection("read").topic_name, 0, 5)
    query = new_query()
    start, first = query.start(), query.end()
    fill(channel, range(3, 5))
    until(lambda: offsets(query.end())[0] == 7)

    assert offsets(start) == offsets(first) == {0: 5, 1: 0}
    assert query.batch(first, query.end()) == [3, 4]


def test_expired_records_fail_a_stream(
    channel: Channel, new_query: Callable[..., Query], topics: Topics
) -> None:
    fill(channel, range(6))
    query = new_query()
    start, end = query.start(), query.end()
    topics.truncate(channel.connection("read").topic_name, 0, 4)

    with pytest.raises(OffsetOutOfRange, match="partition 0 has no offset 0"):
        query.batch(start, end)
    assert new_query(failOnDataLoss="false").batch(start, end) == [4, 5]
