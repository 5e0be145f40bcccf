"""Positions are exact: reading from any of them returns the rest and nothing else."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluiceway.api.endpoints import Position
from sluiceway.api.models import Connection
from sluiceway.errors import OptionError
from sluiceway.reader import ChannelReader
from sluiceway.writer import ChannelWriter
from topics import Topics, readings

PARTITIONS = 3
RECORDS = 60


@pytest.fixture(scope="module")
def channels(topics: Topics) -> dict[str, Connection]:
    """One channel a format; in arrow, messages of one to seven records."""
    made = {}
    for format_ in ("avro", "arrow"):
        made[format_] = topics.connect(format_, partitions=PARTITIONS)
        with ChannelWriter(made[format_], batch_records=7) as writer:
            first = 0
            for count in (1, 9, 2, 20, 3, 25):
                writer.write(readings(count, first))
                writer.flush()
                first += count
    return made


@pytest.fixture(scope="module")
def readers(channels: dict[str, Connection]) -> Callable[[str], ChannelReader]:
    opened = {name: ChannelReader(connection, until="now") for name, connection in channels.items()}
    return opened.__getitem__


Step = tuple[str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("iterate"), st.integers(1, 15)),
        st.tuples(st.just("read"), st.integers(1, 15)),
        st.tuples(st.just("batch"), st.just(1)),
        st.tuples(st.just("resume"), st.just(0)),
    ),
    max_size=8,
)


def take(reader: ChannelReader, step: Step) -> list[dict[str, Any]]:
    how, count = step
    if how == "iterate":
        return list(islice(reader, count))
    if how == "read":
        return reader.read(count, timeout=None)
    if how == "batch":
        return next((batch.to_pylist() for batch in reader.batches()), [])
    reader.seek(reader.position())
    return []


@pytest.mark.long
@pytest.mark.parametrize("format_", ["avro", "arrow"])
@settings(
    max_examples=settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=STEPS)
def test_records_before_and_after_a_position_are_everything_once(
    readers: Callable[[str], ChannelReader], format_: str, steps: list[Step]
) -> None:
    reader = readers(format_)
    reader.seek({p: Position(offset=0) for p in range(PARTITIONS)})
    before = [record for step in steps for record in take(reader, step)]
    reader.seek(reader.position())
    rest = list(reader)
    assert sorted(record["id"] for record in before + rest) == list(range(RECORDS))


@pytest.mark.long
@pytest.mark.parametrize("format_", ["avro", "arrow"])
def test_a_new_reader_resumes_at_any_record(channels: dict[str, Connection], format_: str) -> None:
    connection = channels[format_]
    with ChannelReader(connection, until="now", partitions=[1]) as reader:
        passed: list[tuple[dict[int, Position], int]] = [(reader.position(), 0)]
        whole = []
        for record in reader:
            whole.append(record)
            passed.append((reader.position(), len(whole)))
        assert [p[1] for p, _ in passed] == sorted({p[1] for p, _ in passed})
        for position, done in passed:
            reader.seek(position)
            assert list(reader) == whole[done:]
    for position, done in passed[:: len(passed) // 3]:
        with ChannelReader(connection, until="now", start=position, partitions=[1]) as resumed:
            assert list(resumed) == whole[done:]


def test_reading_ends_between_messages(channels: dict[str, Connection]) -> None:
    with ChannelReader(channels["arrow"], until="now", partitions=[1]) as reader:
        while not (position := reader.position()[1]).records:
            reader.read(1, timeout=None)
    with pytest.raises(OptionError, match=r"partition 1, which is inside a message"):
        ChannelReader(channels["arrow"], until={1: position}, partitions=[1])  # type: ignore[dict-item]


def test_partitions_that_were_not_chosen_are_not_added(channels: dict[str, Connection]) -> None:
    with ChannelReader(channels["avro"], until=None, partitions=[1]) as reader:
        assert reader.discover_partitions() == ()
        assert reader.partitions == (1,)
