"""The client against a real gateway and a real broker."""

import pickle
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from sluiceway import Channel, ChannelWriter, Gateway, Retention
from sluiceway.errors import (
    ChannelNotFound,
    Conflict,
    InvalidRequest,
    OptionError,
    SchemaMismatch,
    UnsupportedType,
)
from topics import readings


@dataclass
class Reading:
    id: int
    station: str | None
    celsius: float


@pytest.fixture
def name() -> str:
    return f"readings-{uuid.uuid4().hex[:8]}"


def test_a_channel_is_created_written_and_read(
    gateway: Gateway, name: str, each_format: str
) -> None:
    channel = gateway.channel(name, schema=Reading, partitions=2, format=each_format)
    assert channel.status.phase == "ready"
    assert (channel.name, channel.partitions, channel.format) == (name, 2, each_format)
    assert channel.status.topic.name.endswith(f"{name}-{channel.uid[:8]}")
    with channel.writer() as writer:
        writer.write(Reading(**row) for row in readings(100))  # type: ignore[arg-type]
    with gateway.channel(name).reader(until="now") as reader:
        assert sorted(reader, key=lambda record: record["id"]) == readings(100)


def test_pickling_an_open_object_says_where_to_open_it(gateway: Gateway, name: str) -> None:
    """Spark pickles what a function for its executors uses, and shows the error to the user."""
    channel = gateway.channel(name, schema=Reading)
    with (
        channel.writer() as writer,
        channel.reader(group="a") as member,
        channel.reader(until="now") as reader,
    ):
        for resource in (gateway, channel, writer, member, reader):
            with pytest.raises(TypeError, match="open them inside of the function"):
                pickle.dumps(resource)


def test_opening_again_returns_the_same_channel_and_keeps_its_settings(
    gateway: Gateway, name: str
) -> None:
    made = gateway.channel(name, schema=Reading, labels={"team": "air"})
    opened = gateway.channel(name, schema=made.schema.definition)
    assert opened.uid == made.uid
    assert (opened.partitions, opened.format, opened.pinned) == (1, "avro", False)
    assert (opened.replication, opened.retention, opened.config) == (None, Retention(), {})
    assert opened.labels == {"team": "air"}
    assert opened.created_at <= datetime.now(UTC)
    assert opened.generation == 1


def test_a_missing_channel_without_a_schema_is_an_error_with_advice(
    gateway: Gateway, name: str
) -> None:
    with pytest.raises(ChannelNotFound, match="to create it, give a schema"):
        gateway.channel(name)


def test_another_schema_is_refused_and_other_differences_warn(gateway: Gateway, name: str) -> None:
    gateway.channel(name, schema=Reading)
    with pytest.raises(SchemaMismatch, match="does not fit the channel"):
        gateway.channel(name, schema=pa.schema([("id", pa.string())]))
    with pytest.warns(UserWarning, match=r"has partitions=1, not 4 as given"):
        channel = gateway.channel(name, schema=Reading, partitions=4)
    assert channel.partitions == 1
    with pytest.warns(UserWarning, match="has format='avro', not 'arrow' as given"):
        gateway.channel(name, format="arrow")


def test_a_channel_grows_in_place_and_keeps_its_records(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, schema=Reading)
    with channel.writer() as writer:
        writer.write(readings(10))
    channel.update(
        partitions=3,
        labels={"team": "air"},
        retention=Retention(ms=3_600_000),
        config={"cleanup.policy": "delete"},
    )
    assert (channel.partitions, channel.status.topic.partitions) == (3, 3)
    assert (channel.labels, channel.retention.ms) == ({"team": "air"}, 3_600_000)
    assert channel.config == {"cleanup.policy": "delete"}
    with channel.writer() as writer:
        writer.write(readings(10, 10))
    with channel.reader(until="now") as reader:
        assert len(reader.partitions) == 3
        assert sorted(reader, key=lambda record: record["id"]) == readings(20)


@pytest.mark.long
def test_disallowed_changes_are_conflicts_with_their_codes(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, schema=Reading, partitions=3, pinned=True)
    for partitions, code in ((2, "partitions_shrink"), (4, "channel_pinned")):
        with pytest.raises(Conflict) as raised:
            channel.update(partitions=partitions)
        assert raised.value.code == code
    assert channel.refresh().generation == 1


def test_a_deleted_channel_is_gone_and_its_name_is_free(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, schema=Reading)
    channel.delete()
    channel.delete()
    with pytest.raises(ChannelNotFound):
        gateway.channel(name)
    with pytest.raises(ChannelNotFound):
        channel.refresh()
    anew = gateway.channel(name, schema=Reading)
    assert anew.uid != channel.uid
    for use in (channel.refresh, channel.writer, lambda: channel.update(partitions=2)):
        with pytest.raises(Conflict) as raised:
            use()
        assert raised.value.code == "uid_mismatch"
    assert anew.refresh().partitions == 1


def test_a_topic_can_be_kept(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, schema=Reading)
    connection = channel.connection("write")
    channel.delete(keep_topic=True)
    with ChannelWriter(connection) as writer:
        assert writer.write(readings(3)) == 3


def test_channels_are_listed_by_their_labels(gateway: Gateway, name: str) -> None:
    for suffix, stage in (("a", "test"), ("b", "live"), ("c", "test")):
        gateway.channel(f"{name}-{suffix}", schema=Reading, labels={"run": name, "stage": stage})
    names = [channel.name for channel in gateway.channels(f"run={name},stage=test")]
    assert names == [f"{name}-a", f"{name}-c"]
    assert all(isinstance(channel, Channel) for channel in gateway.channels(f"run={name}"))
    with pytest.raises(InvalidRequest):
        list(gateway.channels("run in ("))


@pytest.mark.parametrize("bad", ["a b", "a/b", "ä", "x" * 231, "sluiceway.x", ".."])
def test_an_invalid_channel_name_is_refused(gateway: Gateway, bad: str) -> None:
    with pytest.raises(InvalidRequest):
        gateway.channel(bad, schema=Reading)


@pytest.mark.sample
@pytest.mark.parametrize(
    "wrong",
    [
        {"partitions": 0},
        {"partitions": -1},
        {"partitions": 1_000_000},
        {"format": "csv"},
        {"replication": 0},
        {"retention": Retention(ms=-5)},
        {"config": {"plugin.library.paths": "x"}},
        {"labels": {"a b": "c"}},
    ],
)
def test_an_invalid_spec_is_refused(gateway: Gateway, name: str, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        gateway.channel(name, schema=Reading, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ChannelNotFound):
        gateway.channel(name)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"retention": timedelta(days=1)}, "retention is .*; it takes a Retention"),
        ({"heartbeat": 2.0}, "heartbeat is 2.0; it takes a Heartbeat"),
    ],
)
def test_settings_of_another_type_are_refused_by_name(
    gateway: Gateway, name: str, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        gateway.channel(name, schema=Reading, **wrong)


def test_more_replicas_than_brokers_are_refused(gateway: Gateway, name: str) -> None:
    with pytest.raises(Conflict) as raised:
        gateway.channel(name, schema=Reading, replication=3)
    assert raised.value.code == "replication_exceeds_brokers"


def test_an_unsupported_type_is_refused_before_any_request(gateway: Gateway, name: str) -> None:
    with pytest.raises(UnsupportedType):
        gateway.channel(name, schema=pa.schema([("x", pa.duration("s"))]))
    with pytest.raises(ChannelNotFound):
        gateway.channel(name)
