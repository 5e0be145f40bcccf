"""Readers that return instances and dataframes, on real channels."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pydantic
import pytest

from faults import failing_call
from sluiceway import Channel, Gateway, InputPort, aio
from sluiceway.errors import OptionError, SchemaMismatch, ValidationFailed, WriterFailed
from topics import readings

NewChannel = Callable[..., Channel]


class Reading(pydantic.BaseModel):
    id: int
    station: str | None
    celsius: float

    @pydantic.field_validator("id")
    @classmethod
    def refuse_ten(cls, number: int) -> int:
        if number == 10:
            raise ValueError("ten is out of order")
        return number


@dataclass
class Narrow:
    id: int
    station: str | None = None


def write(channel: Channel, count: int, first: int = 0) -> None:
    with channel.writer() as writer:
        writer.write(readings(count, first))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_group_reads_instances_and_goes_on_after_an_invalid_one(
    new_channel: NewChannel, each_format: str, dynamic: bool
) -> None:
    channel = new_channel(format=each_format)
    write(channel, 20)
    with channel.reader(group="g", dynamic=dynamic, as_=Reading) as reader:
        records = reader.read(20, timeout=None)
        assert records == [Reading(**row) for row in readings(10)]  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(ValidationFailed, match=r"'id' .* ten is out of order") as raised:
                reader.read(20, timeout=None)
        error = raised.value
        assert (error.channel, error.partition, error.field) == (channel.name, 0, "id")
        reader.commit()
    # It is not skipped by a commit.
    with channel.reader(group="g", dynamic=dynamic, as_=Reading) as reader:
        with pytest.raises(ValidationFailed) as raised:
            next(iter(reader))
        reader.seek({raised.value.partition: raised.value.following})
        assert [record.id for record in reader] == [*range(11, 20)]
        assert reader.finished


def test_instances_are_written_to_a_channel_of_their_class(gateway: Gateway) -> None:
    channel = gateway.channel("instances-of-their-class", schema=Narrow)
    with channel.writer() as writer:
        writer.write(Narrow(1))
        writer.write([Narrow(2, "a"), {"id": 3}])
    with InputPort(channel, as_=Narrow) as port:
        assert list(port) == [Narrow(1), Narrow(2, "a"), Narrow(3)]


def test_a_class_that_does_not_fit_is_refused_when_the_reader_is_opened(channel: Channel) -> None:
    class Wrong(pydantic.BaseModel):
        missing: int

    with pytest.raises(SchemaMismatch, match="Wrong needs the field 'missing'"):
        channel.reader(as_=Wrong, until="now")


def test_all_records_are_returned_as_a_table_or_a_dataframe(
    new_channel: NewChannel, each_format: str
) -> None:
    channel = new_channel(format=each_format)
    with channel.reader(until="now") as reader:
        empty = reader.to_arrow()
        assert (empty.num_rows, empty.schema) == (0, reader.schema.arrow)
    write(channel, 20)
    with channel.reader(group="frames") as reader:
        assert len(reader.read(5, timeout=None)) == 5
        table = reader.to_arrow()
        assert table.to_pylist() == readings(15, 5)
        assert reader.finished
        assert reader.to_arrow().num_rows == 0
        reader.commit()
        assert {at.offset for at in reader.committed().values()} != {0}
    with channel.reader(until="now") as reader:
        frame = reader.to_polars()
        assert frame.equals(pl.DataFrame(readings(20)))
    with channel.reader(until="now") as reader:
        pd.testing.assert_frame_equal(
            reader.to_pandas(), pd.DataFrame(readings(20)), check_dtype=False
        )


def test_a_dataframe_of_pandas_has_exact_nullable_integers(gateway: Gateway) -> None:
    @dataclass
    class Exact:
        required: int
        number: int | None

    channel = gateway.channel("exact-integers", schema=Exact)
    with channel.writer() as writer:
        writer.write([Exact(1, 2**53 + 1), Exact(2, None)])
    with channel.reader() as reader:
        frame = reader.to_pandas()
    assert frame["number"].tolist() == [2**53 + 1, pd.NA]
    assert (str(frame.dtypes["required"]), str(frame.dtypes["number"])) == ("int64", "Int64")


def test_nested_values_of_a_dataframe_of_pandas_are_exact(gateway: Gateway) -> None:
    @dataclass
    class Inner:
        number: int | None

    @dataclass
    class Nested:
        numbers: list[int | None]
        inner: Inner
        by_name: dict[str, int | None]

    channel = gateway.channel("exact-nested-integers", schema=Nested)
    large = 2**53 + 1
    with channel.writer() as writer:
        writer.write(Nested([large, None], Inner(large), {"a": large, "b": None}))
        writer.write(Nested([], Inner(None), {}))
    with channel.reader() as reader:
        frame = reader.to_pandas()
    assert frame["numbers"].tolist() == [[large, None], []]
    assert frame["inner"].tolist() == [{"number": large}, {"number": None}]
    assert frame["by_name"].tolist() == [{"a": large, "b": None}, {}]


def test_records_of_a_dataframe_that_failed_are_read_by_the_next_reader(channel: Channel) -> None:
    write(channel, 10)
    # The library fails after the end of the channel was read.
    failing = failing_call(pl, "from_arrow", MemoryError(), arrives=False)
    with channel.reader(group="g") as reader, failing:
        reader.to_polars()
    # It ends, because the writer has not been read by the one before.
    with channel.reader(group="g", open_timeout_s=5) as reader:
        assert len(list(reader)) == 10


@pytest.mark.usefixtures("brief_replacement")
def test_an_error_at_the_end_takes_none_of_the_records(channel: Channel) -> None:
    writer = channel.writer()
    writer.write(readings(10))
    writer.flush()
    writer.abort(ZeroDivisionError())
    with channel.reader() as reader:
        with pytest.raises(WriterFailed) as raised:
            reader.to_arrow()
        assert {at.offset for at in reader.position().values()} == {0}
        channel.dismiss(*raised.value.endpoints)
        assert reader.to_arrow().num_rows == 10


def test_a_reader_without_an_end_has_no_table(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        channel.reader(until=None) as reader,
        pytest.raises(OptionError, match=r"no end \(until=None\).*until='now'.*batches\(\)"),
    ):
        reader.to_arrow()
    with (
        channel.reader(group="d", dynamic=True) as member,
        pytest.raises(OptionError, match=r"dynamic group's member.*loop over batches\(\)"),
    ):
        member.to_arrow()
    # As in an environment without it.
    monkeypatch.setitem(sys.modules, "polars", None)
    with (
        channel.reader(until="now") as plain,
        pytest.raises(OptionError, match=r"to_polars\(\) needs polars.*pip install polars"),
    ):
        plain.to_polars()


def test_instances_and_tables_are_awaited(new_channel: NewChannel, gateway_url: str) -> None:
    name = new_channel().name

    async def run() -> None:
        async with aio.Gateway(gateway_url) as gateway:
            channel = await gateway.channel(name)
            async with channel.writer() as writer:
                await writer.write(readings(20))
            async with channel.reader(as_=Reading, until="now") as reader:
                records = await reader.read(20, timeout=None)
                assert [record.id for record in records] == [*range(10)]
                with pytest.raises(ValidationFailed) as raised:
                    await reader.read(1)
                await reader.seek({raised.value.partition: raised.value.following})
                assert [record.id async for record in reader] == [*range(11, 20)]
            async with channel.reader() as whole:
                table: Any = await whole.to_arrow()
                assert isinstance(table, pa.Table)
                assert table.to_pylist() == readings(20)
                assert whole.finished
            async with channel.reader(until="now") as framed:
                assert (await framed.to_polars()).equals(pl.DataFrame(readings(20)))
            async with channel.writer() as open_writer, channel.reader() as waiting:
                await open_writer.write(readings(1, 20))
                await open_writer.flush()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(waiting.to_arrow(), 0.5)
                await open_writer.close()
                assert (await waiting.to_arrow()).num_rows == 21

    asyncio.run(run())
