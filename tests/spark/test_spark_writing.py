"""What a write task does, without Spark around it."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from sluiceway import Gateway
from sluiceway.channel import Channel
from sluiceway.errors import (
    DeliveryFailed,
    InvalidRecord,
    KafkaUnavailable,
    OptionError,
    RecordTooLarge,
    TopicGone,
)
from sluiceway.protocol import Connection
from sluiceway.schema import Schema
from sluiceway.spark import writing
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.writing import ChannelDataWriter
from sluiceway_gateway.embedded import KafkaServer

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.string())])


@pytest.fixture(params=["avro", "arrow"])
def channel(request: pytest.FixtureRequest, gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=3, format=request.param)


def writer(connection: Connection, **options: str) -> ChannelDataWriter:
    made = ChannelDataWriter(connection, WriteOptions.parse({"path": "c"} | options))
    copy: ChannelDataWriter = pickle.loads(pickle.dumps(made))  # noqa: S301
    return copy


def batch(*ids: int | None, text: str | None = "x") -> pa.RecordBatch:
    columns = [pa.array(ids, pa.int64()), pa.array([text] * len(ids), pa.string())]
    return pa.record_batch(columns, names=["id", "s"])


def partitions(channel: Channel) -> dict[int, list[int]]:
    """Return the ids in each partition that has some, in order."""
    found = {}
    for partition in range(channel.partitions):
        with channel.reader(until="now", partitions=[partition]) as reader:
            ids = [record["id"] for record in reader]
        if ids:
            found[partition] = ids
    return found


@pytest.mark.parametrize(("task", "partition"), [(0, 0), (1, 1), (5, 2)])
def test_a_task_writes_to_the_partition_of_its_number(
    channel: Channel, monkeypatch: pytest.MonkeyPatch, task: int, partition: int
) -> None:
    class Task:
        def partitionId(self) -> int:  # noqa: N802 - Spark's name
            return task

    monkeypatch.setattr(writing.TaskContext, "get", Task)

    wrote = writer(channel.connection("write")).write(iter([batch(1, 2), batch(3)]))

    assert wrote.records == 3
    assert partitions(channel) == {partition: [1, 2, 3]}


def everything(channel: Channel) -> list[int]:
    return [each for ids in partitions(channel).values() for each in ids]


def test_with_a_key_equal_values_go_to_one_partition(channel: Channel) -> None:
    rows = [batch(*range(20)), batch(*range(20))]
    writer(channel.connection("write"), key="id").write(iter(rows))

    found = partitions(channel)

    assert len(found) == 3
    assert sorted(everything(channel)) == sorted([*range(20)] * 2)
    assert sum(len(set(ids)) for ids in found.values()) == 20


def test_a_key_that_is_no_column_is_refused_before_anything_is_sent(channel: Channel) -> None:
    with pytest.raises(OptionError, match="key is 'x'; the channel has the fields id, s"):
        writer(channel.connection("write"), key="x").check()


def test_an_empty_task_writes_nothing(channel: Channel) -> None:
    assert writer(channel.connection("write")).write(iter([])).records == 0
    assert partitions(channel) == {}


def test_a_null_where_none_may_be_fails_its_batch_before_it_is_sent(channel: Channel) -> None:
    with pytest.raises(InvalidRecord, match="record 1, field 'id'") as caught:
        writer(channel.connection("write")).write(iter([batch(1, 2), batch(3, None, 4)]))

    assert "2 records that this task wrote before it" in "".join(caught.value.__notes__)
    assert not {3, 4} & set(everything(channel))


def test_messages_stay_below_the_topics_limit(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, SCHEMA, format="arrow", config={"max.message.bytes": "20000"})
    ids = range(300)

    writer(channel.connection("write")).write(iter([batch(*ids, text="x" * 1000)]))

    assert partitions(channel) == {0: [*ids]}


def test_a_record_larger_than_a_message_is_refused(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, SCHEMA, config={"max.message.bytes": "20000"})

    with pytest.raises(RecordTooLarge, match="record 0 takes"):
        writer(channel.connection("write")).write(iter([batch(1, text="x" * 30_000)]))
    assert partitions(channel) == {}


def test_a_writing_task_keeps_its_producer_for_the_next(channel: Channel) -> None:
    made = writer(channel.connection("write"))
    before = {id(sink) for idle in writing.SINKS._idle.values() for sink in idle}
    made.write(iter([batch(1)]))
    made.write(iter([batch(2)]))
    after = {id(sink) for idle in writing.SINKS._idle.values() for sink in idle}

    assert len(after - before) == 1
    assert everything(channel) == [1, 2]


def test_a_topic_that_is_gone_fails_the_task(channel: Channel) -> None:
    made = writer(channel.connection("write"))
    channel.delete()

    with pytest.raises(TopicGone):
        made.write(iter([batch(1)]))


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[tuple[KafkaServer, Connection]]:
    """A broker of the test's own, with a topic in it."""
    with KafkaServer.start(tmp_path, heap_mb=256) as server:
        kafka = {"bootstrap.servers": server.bootstrap_servers}
        admin = AdminClient(kafka)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
        yield (
            server,
            Connection(
                channel_name="t",
                channel_uid="0" * 32,
                generation=1,
                format="avro",
                schema_id=1,
                schema_definition=Schema.of(SCHEMA).definition,
                topic_name="t",
                topic_id=None,
                partitions=1,
                max_message_bytes=1_048_588,
                kafka=kafka,
            ),
        )


def test_a_broker_that_goes_away_fails_the_task_and_counts_what_was_written(
    fragile: tuple[KafkaServer, Connection],
) -> None:
    server, connection = fragile
    made = writer(connection, deliverytimeoutms="3000")

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch(1, 2)
        server.stop()
        yield batch(3)

    with pytest.raises(DeliveryFailed, match="partition 0") as caught:
        made.write(batches())

    assert caught.value.written_records + caught.value.failed_records == 3
    assert caught.value.failed_records >= 1


def test_without_a_broker_a_task_fails_in_time(
    fragile: tuple[KafkaServer, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, connection = fragile
    server.stop()
    monkeypatch.setattr(writing, "_VERIFY_TIMEOUT_S", 1.5)

    with pytest.raises(KafkaUnavailable):
        writer(connection).write(iter([batch(1)]))


MEASURED = """
import pickle, resource, sys
from pathlib import Path
import pyarrow as pa

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

made = pickle.loads(Path(sys.argv[1]).read_bytes())
text = pa.array(["x" * 100_000] * 40)
batches = (pa.record_batch([pa.array(range(40)), text], names=["id", "s"]) for _ in range(100))
before = peak_mb()
print(made.write(batches).records, peak_mb() - before)
"""


def test_a_long_task_writes_in_little_memory(channel: Channel, tmp_path: Path) -> None:
    """400 MB; what a task holds is a batch of Spark's and what waits for Kafka."""
    made = writer(channel.connection("write"))
    (tmp_path / "task").write_bytes(pickle.dumps(made))

    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "task")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    records, grown_mb = map(int, done.stdout.split())
    assert records == 4000
    assert grown_mb < 200
