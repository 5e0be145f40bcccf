"""Reading from real topics."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from sluiceway.api.endpoints import Position
from sluiceway.api.models import Connection
from sluiceway.errors import EndpointClosed, OffsetOutOfRange, OptionError, ValueOutOfRange
from sluiceway.kafka.fetcher import Fetcher
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter
from topics import Topics, messages_of, readings

Written = Callable[..., Connection]
BOTH = pytest.mark.usefixtures("each_stream")


@pytest.fixture
def written(topics: Topics) -> Written:
    """Create a channel of `count` readings, in arrow ten per message."""

    def write(
        format: str = "avro",
        count: int = 100,
        partitions: int = 2,
        **wishes: Any,
    ) -> Connection:
        connection = topics.connect(format, partitions=partitions)
        with ChannelWriter(connection, batch_records=10, **wishes) as writer:
            writer.write(readings(count))
        return connection

    return write


def by_id(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(records, key=lambda record: record["id"])


@BOTH
def test_records_and_batches_and_lists_continue_from_one_position(
    written: Written, each_format: str
) -> None:
    connection = written(each_format, 200)
    with ChannelReader(connection, until="now") as reader:
        records = list(islice(reader, 3))
        assert len(records) == 3
        taken = reader.read(7, timeout=None)
        assert len(taken) == 7
        records += taken
        assert not reader.finished
        batch = next(reader.batches())
        assert isinstance(batch, pa.RecordBatch)
        assert batch.schema == reader.schema.arrow
        records += batch.to_pylist()
        for rest in reader.batches():
            records += rest.to_pylist()
        assert reader.finished
    assert by_id(records) == readings(200)


@pytest.mark.sample
@BOTH
def test_until_now_excludes_records_written_after_opening(
    written: Written, each_format: str
) -> None:
    connection = written(each_format)
    with ChannelReader(connection, until="now") as reader:
        with ChannelWriter(connection) as writer:
            writer.write(readings(50, 100))
        assert by_id(list(reader)) == readings(100)
        assert list(reader) == []
        assert reader.read(5) == []
        assert sum(reader.lag().values()) > 0


@pytest.mark.sample
@BOTH
def test_until_none_continues_with_new_records(written: Written, each_format: str) -> None:
    connection = written(each_format)
    with ChannelReader(connection, until=None) as reader:
        assert by_id(reader.read(100, timeout=None)) == readings(100)
        assert reader.read(1, timeout=0.05) == []
        with ChannelWriter(connection) as writer:
            writer.write(readings(5, 100))
        assert by_id(reader.read(5, timeout=None)) == readings(5, 100)
        assert not reader.finished


@BOTH
def test_an_end_for_each_partition_can_be_given(written: Written) -> None:
    connection = written("avro", partition=1)
    with ChannelReader(connection, until={1: 30}, start={1: 10}, partitions=[1]) as reader:
        assert list(reader) == readings(20, 10)
        assert reader.position() == {1: Position(offset=30)}
    with ChannelReader(connection, until={1: 10}, start={1: 10}, partitions=[1]) as reader:
        assert reader.finished
        assert list(reader) == []


@BOTH
def test_reading_starts_at_the_given_position(written: Written) -> None:
    connection = written("avro", 20, partition=0)
    for start, first in ((0, 0), ({0: 5}, 5), ({0: Position(offset=7)}, 7), ({0: 20}, 20)):
        wanted: Any = "earliest" if start == 0 else start
        with ChannelReader(connection, until="now", start=wanted) as reader:
            assert list(reader) == readings(20 - first, first)
    with ChannelReader(connection, until="now", start="latest") as reader:
        assert list(reader) == []
        assert reader.position() == {0: Position(offset=20), 1: Position(offset=0)}


@pytest.mark.sample
@BOTH
def test_reading_starts_at_a_time(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1)
    with ChannelWriter(connection) as writer:
        writer.write(readings(10))
        writer.flush()
        stamp_ms = messages_of(connection)[-1].timestamp()[1]
        between = datetime.fromtimestamp((stamp_ms + 1) / 1000, UTC)
        while datetime.now(UTC) <= between:
            pass
        writer.write(readings(10, 10))
    with ChannelReader(connection, until="now", start=between) as reader:
        assert list(reader) == readings(10, 10)
        reader.seek_to_time(datetime.fromtimestamp(0, UTC))
        assert list(reader) == readings(20)
        reader.seek_to_time(datetime.now(UTC) + timedelta(days=1))
        assert list(reader) == []
        with pytest.raises(OptionError, match="no time zone"):
            reader.seek_to_time(datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.sample
@BOTH
def test_seeking_moves_the_named_partitions_only_and_takes_effect_inside_a_loop(
    written: Written, each_format: str
) -> None:
    connection = written(each_format, 40, partition=0)
    seen = []
    with ChannelReader(connection, until="now") as reader:
        for record in reader:
            seen.append(record["id"])
            if len(seen) == 15:
                reader.seek({0: 0})
        assert seen == [*range(15), *range(40)]
        assert set(reader.position()) == {0, 1}


def test_a_chosen_partition_is_read_alone(written: Written) -> None:
    connection = written("avro", 30, partitions=3, partitioner=lambda record, n: record["id"] % n)
    with ChannelReader(connection, until="now", partitions=[2]) as reader:
        assert [record["id"] for record in reader] == list(range(2, 30, 3))
        assert set(reader.position()) == {2}


@BOTH
def test_lag_counts_the_messages_to_come(written: Written) -> None:
    connection = written("avro", 30, partition=0)
    with ChannelReader(connection, until="now") as reader:
        assert reader.lag() == {0: 30, 1: 0}
        assert reader.end_offsets() == {0: 30, 1: 0}
        assert reader.read(12, timeout=None) == readings(12)
        assert reader.lag() == {0: 18, 1: 0}


def test_lag_waits_for_no_fetch(written: Written) -> None:
    connection = written("avro", 3, partition=0)
    with ChannelReader(connection, until=None, config={"fetch.wait.max.ms": 40_000}) as reader:
        assert len(reader.read(3, timeout=None)) == 3
        # From here on the broker delays one response and all later ones.
        assert reader.read(1, timeout=0.5) == []
        asked_s = time.monotonic()
        assert sum(reader.lag().values()) == 0
        assert time.monotonic() - asked_s < 30


@pytest.mark.sample
@BOTH
def test_transaction_markers_do_not_delay_the_end(topics: Topics, written: Written) -> None:
    connection = written("avro", 3, partition=0)
    value = messages_of(connection)[0].value()
    topics.produce_in_transaction(connection.topic_name, 0, [value, value])
    with ChannelReader(connection, until="now", timeout_s=60) as reader:
        assert len(list(reader)) == 5
        assert reader.position()[0] == Position(offset=6)
        assert reader.lag()[0] == 0
    topics.produce_in_transaction(connection.topic_name, 0, [value])
    with ChannelReader(connection, until={0: 6, 1: 0}, start={0: 5}, timeout_s=60) as reader:
        assert list(reader) == []
        assert reader.position()[0] == Position(offset=6)


@pytest.mark.parametrize(
    ("wanted", "offset"),
    [({0: 31}, 31), ({0: Position(offset=30, records=1)}, 30), ({0: 10**15}, 10**15)],
)
def test_a_position_past_the_end_is_an_error_that_names_the_range(
    written: Written, wanted: Any, offset: int
) -> None:
    connection = written("avro", 30, partition=0)
    message = f"partition 0 has no offset {offset}: its range is 0 to 30"
    with pytest.raises(OffsetOutOfRange, match=message):
        ChannelReader(connection, until="now", start=wanted)
    with ChannelReader(connection, until="now") as reader:
        assert reader.read(5, timeout=None) == readings(5)
        with pytest.raises(OffsetOutOfRange, match=message):
            reader.seek(wanted)
        assert list(reader) == readings(25, 5)


def test_a_position_past_its_message_is_an_error(written: Written) -> None:
    connection = written("arrow", 30, partition=0)
    start = {0: Position(offset=1, records=11)}
    with ChannelReader(connection, until="now", start=start) as reader:
        for _ in range(2):
            with pytest.raises(OptionError, match="past its message, which holds 10"):
                reader.read(1, timeout=None)
        reader.seek({0: Position(offset=1, records=10)})
        assert list(reader) == readings(10, 20)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"until": "finished"}, "until is 'finished'"),
        ({"until": {0: 1}}, "until lacks partition 1"),
        ({"start": "beginning"}, "start is 'beginning'"),
        ({"start": {5: 1}}, "partition 5 is not assigned to this reader, which has 0, 1"),
        ({"start": {0: -1}}, "offset of a position is -1"),
        ({"start": {0: "1"}}, "offset of a position is '1'"),
        ({"partitions": [2]}, "partitions names 2; the channel has the partitions 0 to 1"),
        ({"partitions": []}, "partitions is empty"),
        ({"partitions": 1}, "partitions is 1; it takes their numbers"),
        ({"on_corrupt": "ignore"}, "on_corrupt is 'ignore'"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"config": {"group.id": "mine"}}, "group.id"),
    ],
)
def test_invalid_arguments_are_refused_by_name(
    written: Written, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        ChannelReader(written(count=1), **{"until": "now", **wrong})


def test_the_lag_is_that_of_the_partitions_before_another_thread_adds_one(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ChannelReader(written(count=10), until=None) as reader:
        before = {0: reader.position()[0]}
        # The other thread comes between two lines.
        monkeypatch.setattr(Fetcher, "position", lambda _: before)
        assert reader.lag() == {0: reader.end_offsets()[0]}


def test_a_count_of_records_is_positive(written: Written) -> None:
    with ChannelReader(written(count=1), until="now") as reader:
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(OptionError, match="max_records"):
                reader.read(wrong)  # type: ignore[arg-type]


@BOTH
def test_a_closed_reader_raises_and_closes_again_without_error(written: Written) -> None:
    reader = ChannelReader(written(), until="now")
    reader.close()
    reader.close()
    for call in (lambda: list(reader), lambda: reader.read(1), reader.position, reader.lag):
        with pytest.raises(EndpointClosed, match="open a new one"):
            call()


def test_values_outside_pythons_range_are_an_error_but_readable_as_batches(
    topics: Topics, each_format: str
) -> None:
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    definition = {"type": "record", "name": "R", "fields": [{"name": "at", "type": moment}]}
    connection = topics.connect(each_format, schema_definition=definition)
    batch = pa.record_batch({"at": pa.array([2**62], pa.timestamp("us", tz="UTC"))})
    with ChannelWriter(connection) as writer:
        writer.write(batch)
    with ChannelReader(connection, until="now") as reader:
        before = reader.position()
        for _ in range(2):
            with pytest.raises(ValueOutOfRange, match="'at'"):
                list(reader)
        assert reader.position() == before
        (read_batch,) = reader.batches()
        assert read_batch.column("at").cast(pa.int64()).to_pylist() == [2**62]
        assert reader.finished
