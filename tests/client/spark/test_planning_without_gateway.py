"""Tasks that meet unknown schemas, planned with and without an available gateway.

Plans and tasks are pickled as by Spark; topics are real.
"""

import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from scripted_gateway import Script
from sluiceway import Gateway
from sluiceway.api.models import Connection
from sluiceway.channel import Channel
from sluiceway.errors import ChannelNotFound, GatewayUnavailable
from sluiceway.spark.batch_reader import ChannelDataReader
from sluiceway.spark.microbatch import ChannelStreamReader
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.types import struct_of
from sluiceway.spark.worker import RefreshableConnection
from spark_tasks import SCHEMA, fill, produce
from waiting import until

NEWER = SCHEMA.append(pa.field("t", pa.string()))
FOREIGN = b"\0" + struct.pack(">I", 2**31 - 7) + b"\x02"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A reader as pickled for tasks, and the splits that it planned."""

    reader: ChannelDataReader | ChannelStreamReader
    splits: Sequence[InputPartition]

    def ids(self, partition: int) -> list[int]:
        row_ids: list[int] = []
        for split in self.splits:
            if split.value.offsets.partition == partition:
                for batch in self.reader.read(split):
                    row_ids += batch.column("id").to_pylist()
        return row_ids


def batch(source: RefreshableConnection) -> Planned:
    options = ReadOptions.parse({"path": source.connection.channel_name, "onCorrupt": "skip"})
    reader = ChannelDataReader(source, options, struct_of(SCHEMA))
    return shipped(Planned(reader=reader, splits=reader.partitions()))


def stream(source: RefreshableConnection) -> Planned:
    options = ReadOptions.parse({"path": source.connection.channel_name, "onCorrupt": "skip"})
    reader = ChannelStreamReader(source, options, struct_of(SCHEMA))
    planner = reader.planner
    splits = reader.partitions(planner.start().to_json(), planner.end().to_json())
    reader.stop()
    return shipped(Planned(reader=reader, splits=splits))


Plan = Callable[[RefreshableConnection], Planned]


def shipped(planned: Planned) -> Planned:
    copy: Planned = pickle.loads(pickle.dumps(planned))  # noqa: S301
    return copy


UNREACHABLE = "http://127.0.0.1:9"


def without_gateway(connection: Connection) -> RefreshableConnection:
    """Return a connection of an unreachable gateway, with a short timeout."""
    return RefreshableConnection(connection, "read", gateway_url=UNREACHABLE, timeout_s=0.3)


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    channel = gateway.channel(name, SCHEMA, partitions=2)
    fill(channel, range(3))
    fill(channel, range(3, 5), partition=1)
    return channel


@pytest.fixture
def early(channel: Channel, gateway: Gateway) -> Connection:
    """A connection older than the channel's newest schema, which has a record in partition 1."""
    connection = channel.connection("read")
    gateway.channel(channel.name).update(schema=NEWER)
    with gateway.channel(channel.name).writer(partition=1) as writer:
        writer.write({"id": 5, "s": "5", "t": "new"})
    return connection


@pytest.mark.sample
@pytest.mark.parametrize("plan", [batch, stream])
def test_a_message_with_an_unknown_schema_is_not_skipped_without_the_gateway(
    early: Connection, plan: Plan
) -> None:
    planned = plan(without_gateway(early))

    assert planned.ids(0) == [0, 1, 2]
    with pytest.raises(GatewayUnavailable, match=r"No message was skipped: run the job"):
        planned.ids(1)


@pytest.mark.sample
@pytest.mark.parametrize("plan", [batch, stream])
def test_a_new_schema_is_read_and_foreign_messages_skipped_with_the_gateway(
    early: Connection, gateway_url: str, plan: Plan
) -> None:
    produce(early, FOREIGN, partition=1)

    planned = plan(RefreshableConnection(early, "read", gateway_url=gateway_url))

    assert planned.ids(0) == [0, 1, 2]
    assert planned.ids(1) == [3, 4, 5]


@pytest.mark.sample
@pytest.mark.parametrize("plan", [batch, stream])
def test_a_foreign_message_is_not_skipped_without_the_gateway(channel: Channel, plan: Plan) -> None:
    connection = channel.connection("read")
    produce(connection, FOREIGN)

    planned = plan(without_gateway(connection))

    with pytest.raises(GatewayUnavailable):
        planned.ids(0)
    assert planned.ids(1) == [3, 4]


def test_a_connection_is_not_current_while_requests_pause(early: Connection) -> None:
    source = without_gateway(early)

    assert [source.refresh(max_age_s=60.0) for _ in range(2)] == [False, False]


def test_a_connection_stays_in_use_while_requests_are_refused(
    channel: Channel, gateway_url: str, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no option for the pause.
    monkeypatch.setattr("sluiceway.spark.worker._RETRY_AFTER_S", 0.0)
    source = RefreshableConnection(channel.connection("read"), "read", gateway_url=script.url)
    script.problem(401, "unauthenticated")
    script.problem(500, "internal_error")
    script.response(404, b"<html>")
    assert [source.refresh() for _ in range(3)] == [False, False, False]
    script.problem(404, "channel_not_found")
    with pytest.raises(ChannelNotFound):
        source.refresh()

    source.gateway_url = gateway_url
    assert source.refresh()


def test_a_recently_refreshed_connection_is_current(channel: Channel, gateway_url: str) -> None:
    source = RefreshableConnection(
        channel.connection("read"), "read", gateway_url=gateway_url, timeout_s=2.0
    )
    until(source.refresh)
    source.gateway_url = UNREACHABLE

    assert source.refresh(max_age_s=60.0)
    assert not source.refresh()
