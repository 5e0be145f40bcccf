"""Fetching of records from one stream: interrupts, growth, seeks, and replaced consumers."""

import itertools
import math
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import Any

import pytest

from sluiceway.api.endpoints import Position
from sluiceway.api.models import Connection
from sluiceway.codecs.decoder import decoder_for
from sluiceway.errors import (
    KafkaUnavailable,
)
from sluiceway.kafka.consumer import FetchedMessages, MessageStream, PartitionStream
from sluiceway.kafka.fetcher import Fetcher
from sluiceway.schema import Schema
from sluiceway.writer import ChannelWriter
from topics import Topics, readings
from waiting import until


class EndOffsets:
    """The end offsets of a fetcher; with an `error`, they are unavailable."""

    def __init__(self, offsets: Mapping[int, int]) -> None:
        self.offsets = offsets
        self.error: Exception | None = None

    def ends(self) -> Mapping[int, int]:
        if self.error is not None:
            raise self.error
        return self.offsets

    def on_idle(self) -> None:
        """Accept the wait."""


def fetcher_of(connection: Connection, stream: PartitionStream, end_offsets: EndOffsets) -> Fetcher:
    """Fetch from the beginning up to the end offsets."""
    return Fetcher(
        connection,
        decoder_for(connection, target=Schema.parse(connection.schema_definition), refresh=None),
        stream,
        positions={p: Position(offset=0) for p in end_offsets.offsets},
        end_offsets=end_offsets,
        skip_corrupt=False,
        timeout_s=30,
    )


def fetched_by(fetcher: Fetcher, limit: int | None = None) -> list[dict[str, Any]]:
    """Return up to `limit` records; fewer at the end, or if another thread waits for its turn."""
    with fetcher.turn:
        records = iter(lambda: fetcher.fetch(math.inf, holding=False), False)
        every = itertools.chain.from_iterable(fetcher.records() for _ in records)
        return list(itertools.islice(every, limit))


def test_a_failed_lookup_of_end_offsets_during_growth_loses_nothing(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1)
    with ChannelWriter(connection) as writer:
        writer.write(readings(100))
    end_offsets = EndOffsets({0: 100})
    with closing(MessageStream(connection, timeout_s=30)) as stream:
        fetcher = fetcher_of(connection, stream, end_offsets)
        records = fetched_by(fetcher, 10)
        end_offsets.error = KafkaUnavailable("no broker tells where the partition ends")
        with pytest.raises(KafkaUnavailable):
            fetcher.reassign()
        end_offsets.error = None
        records += fetched_by(fetcher)
    assert records == readings(100)


def test_a_message_fetched_during_a_seek_of_another_thread_is_not_lost(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1)
    with ChannelWriter(connection) as writer:
        writer.write(readings(10))
    took, go_on = threading.Event(), threading.Event()

    class Slow(MessageStream):
        def poll(self, limit: int, wait_s: float) -> FetchedMessages:
            fetched = super().poll(limit, wait_s)
            took.set()
            assert go_on.wait(60)
            return fetched

    with ThreadPoolExecutor() as pool, closing(Slow(connection, timeout_s=30)) as stream:
        fetcher = fetcher_of(connection, stream, EndOffsets({0: 10}))
        reading = pool.submit(fetched_by, fetcher)
        assert took.wait(60)
        seeking = pool.submit(fetcher.seek, {0: Position(offset=5)})
        until(lambda: fetcher.turn.contended)
        assert fetcher.position() == {0: Position(offset=0)}
        go_on.set()
        seeking.result(120)
        records = reading.result(120) + fetched_by(fetcher)
    assert records in (readings(10) + readings(5, 5), readings(5, 5))


def written(topics: Topics, format_: str, count: int) -> Connection:
    connection = topics.connect(format_, partitions=1)
    with ChannelWriter(connection, batch_records=10) as writer:
        writer.write(readings(count))
    return connection


class Interrupted(MessageStream):
    """A stream whose first poll with messages is interrupted before it returns."""

    interrupts = 1

    def poll(self, limit: int, wait_s: float) -> FetchedMessages:
        fetched = super().poll(limit, wait_s)
        if fetched.chunks and self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return fetched


def test_messages_that_an_interrupted_poll_has_taken_are_read_again(
    topics: Topics, each_format: str
) -> None:
    connection = written(topics, each_format, 50)
    with closing(Interrupted(connection, timeout_s=30)) as stream:
        fetcher = fetcher_of(connection, stream, EndOffsets(stream.ends([0])))
        with pytest.raises(KeyboardInterrupt):
            fetched_by(fetcher)
        assert fetched_by(fetcher) == readings(50)


class Stranded(MessageStream):
    """A stream whose first consumer gets nothing; replacing it may be interrupted."""

    replaced = False
    interrupts = 0

    def assign(self, offsets: Mapping[int, int]) -> None:
        if self.replaced:
            super().assign(offsets)

    def renew(self, *, timeout_s: float) -> bool:
        replaced = super().renew(timeout_s=timeout_s)
        self.replaced |= replaced
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return replaced

    def request_metadata(self, timeout_s: float, *, max_age_s: float = 0.0) -> None:
        del timeout_s, max_age_s
        if not self.replaced:
            raise KafkaUnavailable("no broker answers this consumer")


@pytest.mark.parametrize("interrupts", [0, 1])
def test_a_reader_goes_on_with_the_consumer_that_replaces_another(
    topics: Topics, interrupts: int
) -> None:
    connection = written(topics, "avro", 50)
    with closing(Stranded(connection, timeout_s=30)) as stream:
        stream.interrupts = interrupts
        fetcher = fetcher_of(connection, stream, EndOffsets(stream.ends([0])))
        with pytest.raises(KeyboardInterrupt) if interrupts else nullcontext():
            assert fetched_by(fetcher) == readings(50)
        assert fetched_by(fetcher) == (readings(50) if interrupts else [])
