"""Schema updates under readers, with a real gateway and broker."""

import uuid
from dataclasses import dataclass

import pytest

from sluiceway import Gateway
from sluiceway.api.endpoints import Position
from sluiceway.errors import CorruptMessage, EndpointClosed, SchemaMismatch
from topics import Topics, readings


@dataclass
class Reading:
    id: int
    station: str | None
    celsius: float


@dataclass
class Judged:
    id: int
    station: str | None
    celsius: float
    quality: str = "good"


@dataclass
class Bare:
    id: int


@dataclass
class Other:
    text: str


def judged(records: list[dict[str, object]], quality: str = "good") -> list[dict[str, object]]:
    return [{**record, "quality": quality} for record in records]


@pytest.fixture
def name() -> str:
    return f"readings-{uuid.uuid4().hex[:8]}"


@pytest.mark.sample
def test_old_and_new_records_are_read_with_any_compatible_schema(
    gateway: Gateway, name: str, each_format: str
) -> None:
    before = gateway.channel(name, schema=Reading, format=each_format)
    after = gateway.channel(name)
    with before.writer() as old_writer:
        old_writer.write(readings(10))
        old_writer.flush()
        after.update(schema=Judged)
        with after.writer() as writer:
            writer.write(judged(readings(10, 10), "fair"))
        old_writer.write(readings(10, 20))
    newest = [
        *judged(readings(10)),
        *judged(readings(10, 10), "fair"),
        *judged(readings(10, 20)),
    ]
    assert list(gateway.channel(name).reader(until="now")) == newest
    assert list(gateway.channel(name, schema=Reading).reader(until="now")) == readings(30)
    # A reader's own schema needs no registering.
    own = gateway.channel(name, schema=Bare)
    with own.reader(until="now") as reader:
        assert list(reader) == [{"id": number} for number in range(30)]
    with pytest.raises(SchemaMismatch, match=r"register it with channel.update"):
        own.writer()


def _late(name: str, **more: object) -> dict[str, object]:
    field = {"name": name, "type": ["null", "int"], "default": None, **more}
    return {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}, field]}


@pytest.mark.sample
def test_a_renamed_field_is_read_by_its_alias_and_warned_of_without_one(
    gateway: Gateway, name: str, each_format: str
) -> None:
    channel = gateway.channel(name, schema=_late("late"), format=each_format)
    with channel.writer() as writer:
        writer.write([{"id": 1, "late": 7}])
    with pytest.warns(UserWarning, match=r'add "aliases": \["late"\] to it'):
        channel.update(schema=_late("delay"))
    assert list(channel.reader(until="now")) == [{"id": 1, "delay": None}]
    channel.update(schema=_late("delay", aliases=["late"]))
    # Without an alias of its own, a reader has that of the channel.
    for reading in (gateway.channel(name), gateway.channel(name, schema=_late("delay"))):
        assert list(reading.reader(until="now")) == [{"id": 1, "delay": 7}]


def test_a_schema_is_updated_while_readers_read(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, schema=Reading, compatibility="none")
    with (
        gateway.channel(name).reader(until=None) as reader,
        gateway.channel(name, schema=Bare).reader(until=None) as own,
    ):
        with channel.writer() as writer:
            writer.write(readings(10))
        assert reader.read(10, timeout=None) == readings(10)
        channel.update(schema=Judged)
        with channel.writer() as writer:
            writer.write(judged(readings(10, 10)))
        assert reader.read(10, timeout=None) == readings(10, 10)
        channel.update(schema=Other)
        with channel.writer() as writer:
            writer.write({"text": "hello"})
        assert own.read(20, timeout=None) == [{"id": number} for number in range(20)]
        for old_reader in (reader, own):
            with pytest.raises(SchemaMismatch, match=r"partition 0, offset 20: .* field 'id'"):
                old_reader.read(1, timeout=None)
            place = old_reader.position()
            assert place == {0: Position(offset=20)}
    with gateway.channel(name).reader(until="now", start=place) as reader:
        assert list(reader) == [{"text": "hello"}]


@pytest.mark.long
def test_a_closed_gateway_cannot_look_up_a_new_schema_and_loses_no_record(
    gateway: Gateway, gateway_url: str, name: str, each_format: str
) -> None:
    gateway.channel(name, schema=Reading, format=each_format)
    with Gateway(gateway_url) as closed:
        channel = closed.channel(name)
        reader = channel.reader(until=None, on_corrupt="skip")
    changed = gateway.channel(name)
    with changed.writer() as writer:
        writer.write(readings(10))
    with reader:
        assert reader.read(10, timeout=None) == readings(10)
        changed.update(schema=Judged)
        with changed.writer() as writer:
            writer.write(judged(readings(10, 10)))
        for _ in range(2):
            with pytest.raises(
                EndpointClosed, match=r"the Gateway for http.* was closed\. Open a new"
            ):
                reader.read(1, timeout=None)
        place = reader.position()
    with gateway.channel(name).reader(until="now", start=place) as again:
        assert list(again) == judged(readings(10, 10))


def test_a_closed_gateway_refuses_calls(gateway_url: str, name: str) -> None:
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(name, schema=Reading)
    for call in (
        lambda: gateway.channel(name),
        lambda: list(gateway.channels()),
        lambda: gateway.channel(f"{name}-other", schema=Reading),
        lambda: channel.connection("read"),
        channel.refresh,
        channel.delete,
    ):
        with pytest.raises(EndpointClosed, match="Open a new one"):
            call()


def test_an_adopted_topic_keeps_foreign_records(
    gateway: Gateway, name: str, topics: Topics
) -> None:
    topics.create(name, 1)
    topics.produce(name, 0, [b"plain text", b"\0\x7f\0\0\0\x02", None])
    channel = gateway.channel(name, schema=Reading, topic=name)
    with channel.writer() as writer:
        writer.write(readings(5))
    with channel.reader(until="now") as reader:
        for offset, reason in enumerate(("b'plain'", "not one of the channel's", "tombstone")):
            with pytest.raises(CorruptMessage, match=f"offset {offset}: .*{reason}"):
                reader.read(1, timeout=None)
            reader.seek({0: offset + 1})
        assert list(reader) == readings(5)
    with channel.reader(until="now", on_corrupt="skip") as reader:
        assert list(reader) == readings(5)
        assert reader.corrupt_messages == 3
