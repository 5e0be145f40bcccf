"""Streaming writes without a Spark session."""

import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest

from sluiceway import Gateway
from sluiceway.channel import Channel
from sluiceway.errors import (
    ChannelClosed,
    ChannelNotFound,
    ChannelNotReady,
    OptionError,
    SchemaMismatch,
)
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.ledger_batches import TaskResult
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.types import struct_of
from sluiceway.spark.writer import ChannelStreamWriter, TaskWriter
from spark_tasks import SCHEMA, Tasks, all_ids, ids_in, rows
from topics import messages_of

Run = Callable[..., TaskResult]


@pytest.fixture(params=["avro", "arrow"])
def channel(request: pytest.FixtureRequest, gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=3, format=request.param)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, channel: Channel) -> Run:
    """Run a task of a micro-batch over batches of ids, and return its commit message."""

    tasks = Tasks(monkeypatch)

    def run(*batches: range, task: int = 0, **options: str) -> TaskResult:
        tasks.run(task)
        parsed = WriteOptions.parse({"path": channel.name} | options, streaming=True)
        stream_writer = ChannelStreamWriter(
            channel.name, TaskWriter(channel.connection("write"), parsed)
        )
        shipped: ChannelStreamWriter = pickle.loads(pickle.dumps(stream_writer))  # noqa: S301
        return shipped.write(map(rows, batches))

    return run


def test_a_task_writes_messages_without_headers(channel: Channel, run: Run) -> None:
    assert run(range(3), range(3, 5), task=1).records == 5

    messages = messages_of(channel.connection("read"))
    assert {message.partition() for message in messages} == {1}
    assert [message.headers() for message in messages] == [None] * len(messages)
    assert all_ids(channel) == [*range(5)]


def test_keys_go_to_the_same_partitions_as_with_a_python_writer(channel: Channel, run: Run) -> None:
    run(range(30), key="id")
    placed = ids_in(channel)
    with channel.writer(key="id") as writer:
        writer.write([{"id": row_id, "s": ""} for row_id in range(30)])

    assert ids_in(channel) == {p: ids + ids for p, ids in placed.items()}


def test_a_task_without_rows_writes_nothing(channel: Channel, run: Run) -> None:
    assert run().records == 0
    assert messages_of(channel.connection("read")) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "x"}, "key is 'x'; the channel has the fields id, s"),
        ({"checkpointLocatio": "/c"}, "there is no option 'checkpointlocatio'"),
        ({"token": "slw_1_secret"}, "tokens are never options"),
        ({"startingOffsets": "latest"}, "is an option of a read"),
        ({"batchKey": "b"}, "batchKey is an option of a batch write"),
    ],
)
def test_invalid_options_fail_a_streaming_write(
    gateway: Gateway, gateway_url: str, name: str, options: dict[str, str], said: str
) -> None:
    gateway.channel(name, SCHEMA)
    source = ChannelDataSource({"path": name} | options, gateway_url=gateway_url)

    with pytest.raises(OptionError, match=said):
        source.streamWriter(struct_of(SCHEMA), overwrite=False)


def test_mismatched_columns_fail_a_streaming_write(
    gateway: Gateway, gateway_url: str, name: str
) -> None:
    gateway.channel(name, SCHEMA)
    source = ChannelDataSource({"path": name}, gateway_url=gateway_url)

    with pytest.raises(SchemaMismatch, match="lacks the column 'id'"):
        source.streamWriter(struct_of(pa.schema([("s", pa.string())])), overwrite=False)


def test_a_sink_follows_a_recreated_channel(gateway: Gateway, gateway_url: str, name: str) -> None:
    source = ChannelDataSource({"path": name}, gateway_url=gateway_url)

    def write(*ids: int) -> None:
        writer = source.streamWriter(struct_of(SCHEMA), overwrite=False)
        assert isinstance(writer, ChannelStreamWriter)
        writer.write(iter([rows(ids)]))

    channel = gateway.channel(name, SCHEMA)
    write(1)
    assert all_ids(channel) == [1]
    channel.delete()
    recreated = gateway.channel(name, SCHEMA)
    write(2)

    assert all_ids(recreated) == [2]


def test_a_sink_refuses_a_closed_or_deleted_channel(
    gateway: Gateway, gateway_url: str, name: str
) -> None:
    source = ChannelDataSource({"path": name}, gateway_url=gateway_url)
    channel = gateway.channel(name, SCHEMA)
    source.streamWriter(struct_of(SCHEMA), overwrite=False)
    channel.close()
    with pytest.raises(ChannelClosed):
        source.streamWriter(struct_of(SCHEMA), overwrite=False)
    channel.delete()
    with pytest.raises((ChannelNotReady, ChannelNotFound)):
        source.streamWriter(struct_of(SCHEMA), overwrite=False)
