"""Schema versions, closing and adoption, with a real gateway and broker."""

import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer

from shared_kafka import SharedKafka
from sluiceway import Channel, Gateway
from sluiceway.errors import ChannelClosed, Conflict, CorruptMessage, InvalidRequest, SchemaMismatch
from topics import Topics


@dataclass
class First:
    id: int


@dataclass
class Second:
    id: int
    station: str = "unknown"


@dataclass
class Third:
    id: int
    station: str = "unknown"
    celsius: float = 0.0


@dataclass
class Needy:
    id: int
    station: str


@pytest.fixture
def name() -> str:
    return f"changes-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(kafka: SharedKafka) -> str:
    """The name of an existing topic."""
    name = f"foreign-{uuid.uuid4().hex[:8]}"
    Topics(kafka.bootstrap_servers).create(name)
    return name


def write(channel: Channel, *records: Any) -> None:
    with channel.writer() as writer:
        writer.write(records)


def read(channel: Channel) -> list[dict[str, Any]]:
    with channel.reader(until="now") as reader:
        return sorted(reader, key=lambda record: record["id"])


@pytest.mark.long
def test_each_reader_gets_old_and_new_records_in_its_schema(
    gateway: Gateway, name: str, each_format: str
) -> None:
    old = gateway.channel(name, First, format=each_format)
    write(old, First(1))
    new = gateway.channel(name)
    new.update(schema=Second)
    assert new.schema.definition == new.refresh().schemas()[-1].definition
    write(new, Second(2, "north"))
    write(old, First(3))
    assert [(schema.version, schema.id > 0) for schema in new.schemas()] == [(1, True), (2, True)]
    assert read(old) == [{"id": 1}, {"id": 2}, {"id": 3}]
    expected = [(1, "unknown"), (2, "north"), (3, "unknown")]
    assert [(record["id"], record["station"]) for record in read(gateway.channel(name))] == expected
    assert gateway.channel(name, First).schema == old.schema


def test_an_unregistered_schema_that_reads_all_versions_is_enough_for_readers(
    gateway: Gateway, name: str
) -> None:
    write(gateway.channel(name, First), First(1))
    channel = gateway.channel(name, Second)
    assert read(channel) == [{"id": 1, "station": "unknown"}]
    with pytest.raises(SchemaMismatch, match=r"register it with channel.update"):
        channel.writer()
    channel.update(schema=Second)
    write(channel, Second(2))
    assert len(read(channel)) == 2


def test_a_schema_that_cannot_read_stored_records_is_refused_with_the_rule(
    gateway: Gateway, name: str
) -> None:
    channel = gateway.channel(name, First)
    with pytest.raises(SchemaMismatch, match=r"version 1 .*'station' is read but not written"):
        gateway.channel(name, Needy)
    with pytest.raises(Conflict, match="'station' is read but not written") as raised:
        channel.update(schema=Needy)
    assert raised.value.code == "schema_incompatible"
    assert [error["pointer"] for error in raised.value.errors] == ["/spec/schema"]
    channel.update(schema=Needy, compatibility="none")
    assert (channel.compatibility, channel.generation) == ("none", 2)
    with pytest.raises(InvalidRequest):
        channel.update(compatibility="sideways")


def test_a_reader_learns_new_versions_while_reading(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, First)
    write(channel, First(1))
    with channel.reader(until=None) as reader:
        assert reader.read(1, timeout=30) == [{"id": 1}]
        later = gateway.channel(name)
        later.update(schema=Third)
        write(later, Third(2))
        assert reader.read(1, timeout=30) == [{"id": 2}]


def test_a_closed_channel_is_readable_and_refuses_writers(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, First)
    write(channel, First(1))
    channel.close()
    channel.close()
    assert channel.status.phase == "closed"
    with pytest.raises(ChannelClosed, match="new writers are refused"):
        channel.writer()
    assert read(gateway.channel(name, First)) == [{"id": 1}]
    channel.delete()


def test_a_channel_is_pinned_and_unpinned(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, First, pinned=True)
    with pytest.raises(Conflict):
        channel.update(partitions=2)
    channel.update(pinned=False)
    channel.update(partitions=2)
    assert (channel.pinned, channel.status.topic.partitions) == (False, 2)
    channel.update(pinned=True)
    assert channel.refresh().pinned


@pytest.mark.long
def test_the_topic_of_a_deleted_channel_is_adopted_with_its_records(
    gateway: Gateway, name: str, each_format: str
) -> None:
    channel = gateway.channel(name, First, format=each_format)
    write(channel, First(1))
    channel.update(schema=Second)
    write(channel, Second(2, "north"))
    kept = channel.status.topic.name
    channel.delete(keep_topic=True)

    again = gateway.channel(f"{name}-again", topic=kept)
    assert again.adopted
    assert (again.format, again.status.topic.name) == (each_format, kept)
    assert [schema.version for schema in again.schemas()] == [1, 2]
    write(again, Second(3, "south"))
    stations = [(record["id"], record["station"]) for record in read(again)]
    assert stations == [(1, "unknown"), (2, "north"), (3, "south")]
    again.delete()
    third = gateway.channel(name, topic=kept)
    assert len(read(third)) == 3, "deleting an adopted channel leaves the topic"


def test_adoption_errors_name_the_topic(gateway: Gateway, name: str, topic: str) -> None:
    with pytest.raises(InvalidRequest, match="needs a schema"):
        gateway.channel(name, topic=topic)
    with pytest.raises(Conflict) as absent:
        gateway.channel(name, First, topic="nowhere")
    assert absent.value.code == "topic_not_found"
    channel = gateway.channel(name, First, topic=topic)
    with pytest.raises(Conflict) as taken:
        gateway.channel(f"{name}-2", First, topic=topic)
    assert taken.value.code == "topic_taken"
    with pytest.raises(Conflict, match="choose another channel name") as other:
        gateway.channel(name, topic="another")
    assert other.value.code == "immutable_field"
    with pytest.raises(Conflict) as grown:
        channel.update(partitions=2)
    assert grown.value.code == "channel_adopted"
    assert gateway.channel(name, First, topic=topic).uid == channel.uid


def test_foreign_messages_in_an_adopted_topic_are_errors_or_skipped(
    gateway: Gateway, name: str, topic: str, kafka: SharedKafka
) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"not one of ours")
    assert producer.flush(30) == 0
    channel = gateway.channel(name, First, topic=topic)
    write(channel, First(1))
    with channel.reader(until="now") as reader, pytest.raises(CorruptMessage, match="offset 0"):
        list(reader)
    with channel.reader(until="now", on_corrupt="skip") as reader:
        assert list(reader) == [{"id": 1}]
        assert reader.corrupt_messages == 1
