"""Streaming writes without a Spark session."""

import pickle
import uuid
from collections import defaultdict
from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import Message

from sluiceway import Gateway
from sluiceway.channel import Channel
from sluiceway.codecs import Envelope, Provenance
from sluiceway.errors import OptionError, SchemaMismatch
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.types import struct_of
from sluiceway.spark.writer import (
    HEADER,
    MARKER_BYTES,
    ChannelStreamWriter,
    ProvenanceMarker,
    TaskResult,
    TaskWriter,
    provenance_batch_id,
    topic_id_bytes,
)
from spark_tasks import SCHEMA, all_ids, ids_in, messages_of

Run = Callable[..., TaskResult]

QUERY = uuid.UUID("00000000-0000-4000-8000-000000000001")


class Task:
    """Spark's TaskContext of a micro-batch."""

    def __init__(self, number: int = 0, batch: int = 7) -> None:
        self._number = number
        self._properties = {
            "sql.streaming.queryId": str(QUERY),
            "streaming.sql.batchId": str(batch),
        }

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._number

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)


@pytest.fixture(params=["avro", "arrow"])
def channel(request: pytest.FixtureRequest, gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=3, format=request.param)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, channel: Channel) -> Run:
    """Run a task of a micro-batch over batches of ids, and return its commit message."""

    def run(*batches: range, task: Task | None = None, **options: str) -> TaskResult:
        task = task or Task()
        monkeypatch.setattr("sluiceway.spark.writer.TaskContext.get", lambda: task)
        parsed = WriteOptions.parse({"path": channel.name} | options, streaming=True)
        stream_writer = ChannelStreamWriter(TaskWriter(channel.connection("write"), parsed))
        shipped: ChannelStreamWriter = pickle.loads(pickle.dumps(stream_writer))  # noqa: S301
        return shipped.write(iter([rows(each) for each in batches]))

    return run


def rows(ids: range) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": each, "s": str(each)} for each in ids], SCHEMA)


def provenance(message: Message) -> tuple[Provenance, int]:
    """Return a message's provenance and number of records."""
    headers = dict(message.headers() or ())
    if headers:
        assert [*headers] == [HEADER]
        assert len(HEADER) + len(headers[HEADER]) < MARKER_BYTES
        return Provenance.unpack(headers[HEADER]), 1
    head = Envelope.unpack(message.value())
    assert head.provenance is not None
    return head.provenance, head.records


def sequences(channel: Channel) -> dict[tuple[bytes, bytes], dict[int, list[int]]]:
    """Return sequence numbers by batch and attempt id, then by partition."""
    found: dict[tuple[bytes, bytes], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    connection = channel.connection("read")
    for message in messages_of(connection):
        marker, records = provenance(message)
        assert marker.topic_id == topic_id_bytes(connection.topic_id)
        numbers = range(marker.sequence, marker.sequence + records)
        found[marker.batch_id, marker.attempt_id][message.partition()].extend(numbers)
    return {key: dict(partitions) for key, partitions in found.items()}


def test_each_record_has_its_batch_attempt_and_sequence_number(channel: Channel, run: Run) -> None:
    assert run(range(3), range(3, 5), task=Task(number=1)).records == 5

    (((batch_id, _), partitions),) = sequences(channel).items()
    assert batch_id == provenance_batch_id(QUERY, 7)
    assert partitions == {1: [*range(5)]}
    assert all_ids(channel) == [*range(5)]


def test_sequence_numbers_with_a_key_have_no_gaps(channel: Channel, run: Run) -> None:
    run(range(30), range(30), key="id")

    (partitions,) = sequences(channel).values()
    assert len(partitions) == 3
    assert all(numbers == [*range(len(numbers))] for numbers in partitions.values())
    assert sum(map(len, partitions.values())) == 60


def test_keys_go_to_the_same_partitions_as_with_a_python_writer(channel: Channel, run: Run) -> None:
    run(range(30), key="id")
    placed = ids_in(channel)
    with channel.writer(key="id") as writer:
        writer.write([{"id": each, "s": ""} for each in range(30)])

    assert ids_in(channel) == {p: ids + ids for p, ids in placed.items()}


def test_a_replay_has_the_same_batch_id_and_another_attempt_id(channel: Channel, run: Run) -> None:
    for batch in (7, 7, 8):
        run(range(2), task=Task(batch=batch))

    found = sequences(channel)
    assert [*found.values()] == [{0: [0, 1]}] * 3
    batches, attempts = zip(*found, strict=True)
    assert batches == tuple(provenance_batch_id(QUERY, number) for number in (7, 7, 8))
    assert len(set(attempts)) == 3


def test_a_task_without_rows_writes_nothing(channel: Channel, run: Run) -> None:
    assert run().records == 0
    assert messages_of(channel.connection("read")) == []


def test_marked_messages_stay_below_the_topics_size_limit(gateway: Gateway, name: str) -> None:
    for kind in ("avro", "arrow"):
        channel = gateway.channel(
            f"{name}-{kind}", SCHEMA, format=kind, config={"max.message.bytes": "20000"}
        )
        connection = channel.connection("write")
        writer = TaskWriter(connection, WriteOptions.parse({"path": channel.name}))
        batch = pa.record_batch([pa.array(range(300)), pa.array(["x" * 1000] * 300)], schema=SCHEMA)
        marker = ProvenanceMarker(connection, bytes(16))

        assert writer.write(iter([batch]), marker) == 300
        assert all_ids(channel) == [*range(300)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "x"}, "key is 'x'; the channel has the fields id, s"),
        ({"checkpointLocatio": "/c"}, "there is no option 'checkpointlocatio'"),
        ({"token": "slw_1_secret"}, "tokens are never options"),
        ({"startingOffsets": "latest"}, "is an option of a read"),
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


def test_a_sink_follows_a_recreated_channel(
    gateway: Gateway, gateway_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluiceway.spark.datasource._REFRESH_EVERY_S", 0.0)
    source = ChannelDataSource({"path": name}, gateway_url=gateway_url)
    channel = gateway.channel(name, SCHEMA)
    first = source.streamWriter(struct_of(SCHEMA), overwrite=False)
    channel.delete()
    recreated = gateway.channel(name, SCHEMA)
    second = source.streamWriter(struct_of(SCHEMA), overwrite=False)

    uids = [each._task_writer.connection.channel_uid for each in (first, second)]
    assert uids == [channel.uid, recreated.uid]


def test_a_batch_id_depends_on_the_query_and_the_batch_number() -> None:
    other = uuid.UUID(int=QUERY.int + 1)

    assert provenance_batch_id(QUERY, 7) == provenance_batch_id(QUERY, 7)
    assert (
        len(
            {
                provenance_batch_id(QUERY, 7),
                provenance_batch_id(QUERY, 8),
                provenance_batch_id(other, 7),
            }
        )
        == 3
    )
    assert len(provenance_batch_id(QUERY, 7)) == 16
