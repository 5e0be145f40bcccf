"""Reading committed records from a real topic with a given visibility."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from faults import at_call
from sluiceway.api.endpoints import Position
from sluiceway.api.ledger import Committed, Interval
from sluiceway.api.models import Connection
from sluiceway.errors import (
    KafkaUnavailable,
    OffsetOutOfRange,
    OptionError,
    RecordsLost,
    SluicewayTimeout,
)
from sluiceway.kafka.consumer import MessageStream
from sluiceway.ledger.committed_stream import open_stream
from sluiceway.ledger.visibility import Visibility
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter
from topics import Topics, connection_to, readings
from waiting import collect, until

BOTH = pytest.mark.usefixtures("each_stream")
Runs = Mapping[int, Sequence[tuple[int, int]]]


def read_patiently(reader: ChannelReader, count: int) -> list[dict[str, Any]]:
    """Read a number of records; a timeout, which keeps the position, does not end it."""
    return collect(
        lambda missing: reader.read(missing, timeout=None), count, despite=KafkaUnavailable
    )


class GivenVisibility(Visibility):
    """Visibility as set by the test."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.number = 0
        self.holder: str | None = None
        self.waits = 0
        self._changed = threading.Condition()

    def commit(self, runs: Runs, *, stable: Mapping[int, int] | None = None) -> None:
        """Make runs visible; `stable` is the end of the last ones, unless given."""
        ends = {p: intervals[-1][1] for p, intervals in runs.items() if intervals}
        with self._changed:
            self.number += 1
            self.visible_end = {**self.visible_end, **ends}
            response = Committed(
                uid=self._uid,
                topic_id=self._topic_id,
                number=self.number,
                stable={**self.runs.stable, **(ends if stable is None else stable)},
                visible_end=self.visible_end,
                runs={
                    p: tuple(Interval(*bounds) for bounds in intervals)
                    for p, intervals in runs.items()
                },
            )
            self.runs.add(response)
            self._changed.notify_all()

    def refresh(self) -> None:
        pass

    def wait(self, number: int, timeout_s: float) -> bool:
        with self._changed:
            self.waits += 1
            return self._changed.wait_for(lambda: self.number != number, timeout_s)

    def held_back_by(self) -> str | None:
        return self.holder


class Rig:
    """A topic of readings, one a message in avro, and its visibility."""

    def __init__(self, topics: Topics, format_: str, partitions: int) -> None:
        made = topics.connect(format_, partitions=partitions)
        self._plain = made
        self.connection = replace(made, delivery="exactly_once")
        self.topics = topics
        self.visibility = GivenVisibility(self.connection)

    def write(self, count: int, first: int = 0, partition: int = 0) -> None:
        with ChannelWriter(self._plain, partition=partition, batch_records=10) as writer:
            writer.write(readings(count, first))

    def reader(self, **options: Any) -> ChannelReader:
        return ChannelReader(
            self.connection, **{"until": "now", "visibility": self.visibility, **options}
        )

    def read(self, **options: Any) -> list[int]:
        with self.reader(**options) as reader:
            return [record["id"] for record in reader]


NewRig = Callable[..., Rig]


@pytest.fixture
def new_rig(topics: Topics) -> NewRig:
    def make(format_: str = "avro", partitions: int = 1) -> Rig:
        return Rig(topics, format_, partitions)

    return make


@pytest.fixture
def rig(new_rig: NewRig) -> Rig:
    return new_rig()


@BOTH
def test_only_records_in_runs_are_read(rig: Rig) -> None:
    rig.write(100)
    rig.visibility.commit({0: [(0, 10), (15, 16), (40, 80)]})
    assert rig.read() == [*range(10), 15, *range(40, 80)]


def test_batches_hold_committed_records_only(new_rig: NewRig) -> None:
    rig = new_rig("arrow", 2)
    rig.write(40, partition=0)
    rig.write(40, 40, partition=1)
    # Ten records a message.
    rig.visibility.commit({0: [(0, 1), (2, 3)], 1: [(1, 4)]})
    with rig.reader() as reader:
        ids = [row["id"] for batch in reader.batches() for row in batch.to_pylist()]
    assert sorted(ids) == [*range(10), *range(20, 30), *range(50, 80)]


def test_uncommitted_messages_are_not_decoded(rig: Rig) -> None:
    rig.write(5)
    rig.topics.produce(rig.connection.topic_name, 0, [b"no record", None])
    rig.write(5, 5)
    rig.visibility.commit({0: [(0, 5), (7, 12)]})
    with rig.reader() as reader:
        assert [record["id"] for record in reader] == [*range(10)]
        assert reader.corrupt_messages == 0


@BOTH
def test_nothing_at_or_above_stable_is_read_before_it_is_committed(rig: Rig) -> None:
    rig.write(100)
    rig.visibility.commit({0: [(0, 30)]})
    with rig.reader(until=None) as reader:
        assert [record["id"] for record in reader.read(30, timeout=None)] == [*range(30)]
        assert reader.read(1, timeout=0.3) == []
        assert reader.position() == {0: Position(offset=30)}
        assert reader.lag() == {0: 0}
        rig.visibility.commit({0: [(50, 70)]})
        assert [record["id"] for record in reader.read(20, timeout=None)] == [*range(50, 70)]
        assert reader.position() == {0: Position(offset=70)}


def test_committed_records_that_do_not_arrive_are_looked_for_and_then_an_error(rig: Rig) -> None:
    # As while librdkafka fetches from a former leader: it sees an earlier end.
    rig.write(5)
    rig.visibility.commit({0: [(0, 10)]})
    calls: list[str] = []
    with until(lambda: rig.reader(until=None, timeout_s=1), despite=KafkaUnavailable) as reader:
        assert read_patiently(reader, 5) == readings(5)
        with (
            at_call(MessageStream, "renew", lambda *_, **__: calls.append("renew")),
            at_call(MessageStream, "assign", lambda *_: calls.append("assign")),
            pytest.raises(KafkaUnavailable, match="no messages arrived"),
        ):
            reader.read(1, timeout=None)
        # The client answers, so it was not replaced, which would need another assignment.
        assert set(calls) == {"renew"}
        rig.write(5, 5)
        assert read_patiently(reader, 5) == readings(5, 5)
        # Nothing more is committed, so nothing more is awaited.
        assert reader.read(1, timeout=2.0) == []


@BOTH
def test_a_run_above_stable_waits_for_the_batch_before_it(rig: Rig) -> None:
    rig.write(100)
    rig.visibility.commit({0: [(0, 10)]})
    rig.visibility.commit({0: [(20, 40)]}, stable={0: 10})
    with rig.reader(until=None) as reader:
        assert len(reader.read(10, timeout=None)) == 10
        assert reader.read(1, timeout=0.3) == []
        rig.visibility.commit({0: [(10, 20), (20, 40)]})
        assert [record["id"] for record in reader.read(30, timeout=None)] == [*range(10, 40)]


@pytest.mark.long
@BOTH
def test_partitions_go_on_independently(new_rig: NewRig) -> None:
    rig = new_rig(partitions=3)
    for partition in range(3):
        rig.write(3000, partition * 10_000, partition)
    rig.visibility.commit({0: [(0, 100)], 1: [(0, 3000)]})
    with rig.reader(until=None) as reader:
        first = {record["id"] for record in reader.read(3100, timeout=None)}
        assert first == {*range(100), *range(10_000, 13_000)}
        assert reader.read(1, timeout=0.2) == []
        rig.visibility.commit({2: [(1000, 1500)]})
        assert {record["id"] for record in reader.read(500, timeout=None)} == {
            *range(21_000, 21_500)
        }
        rig.visibility.commit({0: [(100, 3000)], 2: [(2000, 3000)]})
        rest = {record["id"] for record in reader.read(3900, timeout=None)}
        assert rest == {*range(100, 3000), *range(22_000, 23_000)}


@BOTH
def test_commits_while_reading_are_read_in_order_and_once(rig: Rig) -> None:
    rig.write(5000)
    rig.visibility.commit({0: [(0, 7)]})

    def commit() -> None:
        for first in range(7, 5000, 119):
            rig.visibility.commit({0: [(first, min(5000, first + 119))]})

    committer = threading.Thread(target=commit)
    with rig.reader(until={0: 7}) as reader:
        assert len(list(reader)) == 7
    with rig.reader(until=None) as reader:
        committer.start()
        ids = [record["id"] for record in reader.read(5000, timeout=None)]
        committer.join()
        assert ids == [*range(5000)]


@pytest.mark.long
def test_a_long_part_without_committed_records_is_skipped(rig: Rig) -> None:
    rig.write(56_000)
    rig.visibility.commit({0: [(0, 10), (55_000, 55_100), (55_990, 56_000)]})
    assert rig.read() == [*range(10), *range(55_000, 55_100), *range(55_990, 56_000)]


@BOTH
def test_a_missing_committed_offset_is_an_error(rig: Rig) -> None:
    rig.write(5)
    # The marker that ends a transaction takes an offset and is never delivered.
    rig.topics.produce_in_transaction(rig.connection.topic_name, 0, [b"x"])
    rig.write(5, 5)
    rig.visibility.commit({0: [(0, 5), (6, 12)]})
    with rig.reader() as reader:
        for _ in range(2):
            records = reader.read(20, timeout=None) if not reader.position()[0].offset else []
            assert [record["id"] for record in records] == [*range(len(records))]
            with pytest.raises(RecordsLost, match=r"partition 0.*offset 6 .*seek to \{0: 7\}"):
                reader.read(20, timeout=None)
        reader.seek({0: 7})
        assert [record["id"] for record in reader] == [*range(5, 10)]


@BOTH
def test_a_lost_offset_at_the_end_of_the_log_is_an_error(rig: Rig) -> None:
    rig.write(5)
    rig.topics.produce_in_transaction(rig.connection.topic_name, 0, [b"x"])
    rig.visibility.commit({0: [(0, 5), (6, 7)]})
    with rig.reader() as reader:
        assert len(reader.read(20, timeout=None)) == 5
        with pytest.raises(RecordsLost, match="offset 6 "):
            reader.read(20, timeout=None)


@BOTH
def test_records_that_retention_removed_are_out_of_range(rig: Rig) -> None:
    rig.write(100)
    rig.visibility.commit({0: [(0, 50)]})
    with rig.reader(until=None) as reader:
        assert len(reader.read(50, timeout=None)) == 50
        rig.topics.truncate(rig.connection.topic_name, 0, 80)
        rig.visibility.commit({0: [(60, 100)]})
        with pytest.raises(OffsetOutOfRange, match="range is 80 to 100"):
            reader.read(100, timeout=None)
        assert reader.position() == {0: Position(offset=50)}
        reader.seek({0: 80})
        assert [record["id"] for record in reader.read(20, timeout=None)] == [*range(80, 100)]


def test_bounds_are_those_of_committed_records(rig: Rig) -> None:
    rig.write(100)
    rig.visibility.commit({0: [(0, 60)]})
    with rig.reader(until=None, start="latest") as reader:
        assert reader.position() == {0: Position(offset=60)}
        assert reader.end_offsets() == {0: 60}
        with pytest.raises(OffsetOutOfRange, match="range is 0 to 60"):
            reader.seek({0: 61})
        reader.seek({0: 20})
        assert reader.lag() == {0: 40}
        reader.seek_to_time(_far())
        assert reader.position() == {0: Position(offset=60)}
    with pytest.raises(OffsetOutOfRange, match="range is 0 to 60"):
        rig.reader(until={0: 61})


def test_reading_until_now_waits_for_the_batch_before_the_end(rig: Rig) -> None:
    rig.write(100)
    rig.visibility.commit({0: [(0, 10)]})
    rig.visibility.commit({0: [(20, 40)]}, stable={0: 10})
    with rig.reader() as reader:
        assert len(reader.read(10, timeout=None)) == 10
        assert reader.read(1, timeout=0.3) == []
        assert not reader.finished
        rig.visibility.commit({0: [(20, 40), (60, 70)]})
        assert [record["id"] for record in reader] == [*range(20, 40)]
        assert reader.finished


def test_a_batch_that_holds_back_the_end_for_too_long_is_named(rig: Rig) -> None:
    rig.write(100)
    rig.visibility.commit({0: [(0, 10)]})
    rig.visibility.commit({0: [(20, 40)]}, stable={0: 10})
    rig.visibility.holder = "the batch 'day-1' of 'job',"
    with until(lambda: rig.reader(timeout_s=1), despite=KafkaUnavailable) as reader:
        assert len(read_patiently(reader, 10)) == 10
        with pytest.raises(SluicewayTimeout, match=r"the batch 'day-1' of 'job'.*snapshot=2"):
            next(iter(reader))
        assert reader.position() == {0: Position(offset=10)}
        rig.visibility.commit({0: [(20, 40)]})
        assert len(read_patiently(reader, 20)) == 20
        assert list(reader) == []


@pytest.mark.long
def test_waiting_readers_fetch_nothing_and_see_a_commit_at_once(rig: Rig) -> None:
    rig.write(100)
    rig.visibility.commit({0: [(0, 10)]})
    with rig.reader(until=None) as reader:
        reader.read(10, timeout=None)
        delays_s = []
        for first in range(10, 100, 3):
            assert reader.read(1, timeout=0.03) == []
            began_s = time.monotonic()
            rig.visibility.commit({0: [(first, first + 3)]})
            assert len(reader.read(3, timeout=None)) == 3
            delays_s.append(time.monotonic() - began_s)
        assert min(delays_s) < 0.2


@BOTH
def test_the_first_commit_after_a_long_wait_is_seen_at_once(new_rig: NewRig) -> None:
    """Without metadata, librdkafka requests a partition's leader once a second."""

    def delay_s() -> float:
        rig = new_rig()
        rig.write(1)
        with rig.reader(until=None) as reader:
            assert reader.read(1, timeout=1.05) == []
            began_s = time.monotonic()
            rig.visibility.commit({0: [(0, 1)]})
            assert len(reader.read(1, timeout=None)) == 1
            return time.monotonic() - began_s

    # A busy machine delays some of them, a missing leader all.
    assert any(delay_s() < 0.6 for _ in range(4))


def test_a_reader_without_a_gateway_is_refused(rig: Rig) -> None:
    with pytest.raises(OptionError, match=r"channel\.reader"):
        ChannelReader(rig.connection, until="now")


def _far() -> Any:
    from datetime import UTC, datetime

    return datetime(2999, 1, 1, tzinfo=UTC)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, object]]:
    """The properties of the consumers that streams would have opened."""
    properties: list[Mapping[str, object]] = []
    # A consumer does not show its properties.
    monkeypatch.setattr(
        MessageStream, "__init__", lambda _self, _connection, config, **_: properties.append(config)
    )
    return properties


@pytest.mark.parametrize(
    ("delivery", "grouped", "config", "wait_ms"),
    [
        ("exactly_once", True, {}, 20),
        ("exactly_once", True, {"fetch.wait.max.ms": 5}, 5),
        ("at_least_once", True, {}, 500),
        ("at_least_once", True, {"fetch.wait.max.ms": 5}, 5),
        ("at_least_once", False, {}, None),
    ],
)
def test_the_callers_properties_come_before_those_of_the_stream(
    opened: list[Mapping[str, object]],
    delivery: str,
    grouped: bool,
    config: Mapping[str, object],
    wait_ms: int | None,
) -> None:
    open_stream(connection_to({}, delivery=delivery), config, timeout_s=1, grouped=grouped)
    assert [properties.get("fetch.wait.max.ms") for properties in opened] == [wait_ms]


def test_a_stream_reads_past_open_transactions_of_foreign_producers(
    opened: list[Mapping[str, object]],
) -> None:
    config = {"isolation.level": "read_committed"}
    open_stream(connection_to({}, delivery="exactly_once"), config, timeout_s=1)
    assert [properties["isolation.level"] for properties in opened] == ["read_uncommitted"]
