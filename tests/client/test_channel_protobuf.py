"""Channels of the format `protobuf`: records of classes and tables, versions, and adopted topics.

Messages of generated classes are in `test_protobuf_clients.py`.
"""

import contextlib
import logging
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
import pydantic
import pytest

from sluiceway import Channel, Gateway
from sluiceway.errors import Conflict, CorruptMessage, InvalidRecord, InvalidRequest, SchemaMismatch
from topics import Topics, messages_of


@dataclass
class Line:
    product: str
    count: int


@dataclass
class Order:
    id: int
    price: Annotated[Decimal, "decimal(10, 2)"]
    at: datetime
    day: date
    note: str | None = None
    lines: list[Line] = field(default_factory=list)
    stock: dict[str, int] = field(default_factory=dict)


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
READING = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "celsius", "type": ["null", "double"], "default": None},
    ],
}


def order(number: int, **more: Any) -> Order:
    return Order(number, Decimal("12.50"), NOON, NOON.date(), **more)


@pytest.fixture
def name() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def readings(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, READING, format="protobuf", partitions=1)


def reading(number: int, celsius: float | None = None) -> dict[str, Any]:
    return {"id": number, "celsius": celsius}


def body_of(channel: Channel) -> list[bytes]:
    """Return the messages behind the schema id and the place of the message in its file."""
    return [message.value()[6:] for message in messages_of(channel.connection("read"))]


def test_instances_are_written_and_read(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, Order, format="protobuf", partitions=2)
    orders = [order(1, note=""), order(2, lines=[Line("a", 0), Line("", 2)], stock={"k": 1})]
    with channel.writer(key="id") as writer:
        writer.write(orders)
        writer.write(order(3))
    with channel.reader(until="now", as_=Order) as reader:
        assert sorted(reader, key=lambda read: read.id) == [*orders, order(3)]


class Station(pydantic.BaseModel):
    id: int
    name: str | None = None


def test_models_and_tables_are_written_and_read(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, Station, format="protobuf")
    table = pa.table({"id": pa.array(range(1000)), "name": ["x", None] * 500})
    with channel.writer() as writer:
        writer.write(Station(id=-1, name="first"))
        writer.write(table)
    with channel.reader(until="now", as_=Station) as reader:
        models = list(reader)
    assert models[0] == Station(id=-1, name="first")
    assert models[-1] == Station(id=999)
    with channel.reader(until="now") as reader:
        read = pa.Table.from_batches(reader.batches())
    assert read.slice(1).to_pydict() == table.to_pydict()


@dataclass
class Products:
    """Fields of an order, one of them under another type."""

    note: str | None
    lines: list[Line] | None
    id: float


def test_a_reader_has_its_own_schema_without_numbers(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, Order, format="protobuf")
    with channel.writer() as writer:
        writer.write([order(number, lines=[Line("a", number)]) for number in range(200)])
    with gateway.channel(name, Products).reader(until="now", as_=Products) as reader:
        assert list(reader) == [Products(None, [Line("a", n)], float(n)) for n in range(200)]
    aliased = {**READING, "fields": [{"name": "number", "type": "long", "aliases": ["id"]}]}
    with gateway.channel(name, aliased).reader(until="now") as reader:
        assert reader.read(2) == [{"number": 0}, {"number": 1}]


def test_groups_continue_at_their_committed_positions(readings: Channel) -> None:
    with readings.writer() as writer:
        writer.write(reading(number) for number in range(200))
    with readings.reader(group="g", until="now") as reader:
        first = reader.read(120, timeout=None)
        reader.commit()
    with readings.reader(group="g", until="now") as reader:
        rest = list(reader)
    assert [record["id"] for record in first + rest] == [*range(200)]


def test_batches_are_visible_together_or_never(gateway: Gateway, name: str) -> None:
    channel = gateway.channel(name, READING, format="protobuf", delivery="exactly_once")
    with channel.writer() as writer:
        with writer.batch("1"):
            writer.write([reading(1), reading(2)])
        with contextlib.suppress(KeyError), writer.batch("2"):
            writer.write(reading(3))
            raise KeyError
    with channel.reader(until="now") as reader:
        assert sorted(record["id"] for record in reader) == [1, 2]


def test_fields_are_added_removed_and_renamed(gateway: Gateway, readings: Channel) -> None:
    first = gateway.channel(readings.name).reader(until=None)
    with first:
        with readings.writer() as writer:
            writer.write(reading(1, 0.5))
        renamed = {"name": "number", "type": "long", "aliases": ["id"]}
        added = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}
        readings.update(schema={**READING, "fields": [added, renamed]})
        with readings.writer() as writer:
            writer.write({"tags": ["new"], "number": 2})
        # The number of a field that was removed is not used again.
        assert body_of(readings) == [b"\x08\1\x11" + bytes(6) + b"\xe0\x3f", b"\x08\2\x1a\3new"]
        with gateway.channel(readings.name).reader(until="now") as reader:
            assert list(reader) == [{"tags": [], "number": 1}, {"tags": ["new"], "number": 2}]
        assert first.read(1, timeout=None) == [reading(1, 0.5)]
        with pytest.raises(SchemaMismatch, match="'id'"):
            first.read(1, timeout=None)


def test_a_version_that_gives_a_number_another_meaning_is_refused(
    gateway: Gateway, name: str
) -> None:
    channel = gateway.channel(name, READING, format="protobuf", compatibility="none")
    texts = {"name": "text", "type": "string", "protobuf": {"number": 2}}
    with pytest.raises(Conflict, match="the number 2 is string here and double there"):
        channel.update(schema={**READING, "fields": [texts]})


def test_an_adopted_topic_of_another_producer_is_read_strictly(
    gateway: Gateway, name: str, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = f"theirs-{name}"
    topics.create(topic, 1)
    channel = gateway.channel(name, READING, format="protobuf", topic=topic)
    head = b"\0" + channel.schemas()[-1].id.to_bytes(4, "big")
    values = [
        head + b"\0\x08\1",
        # Fields in another order, and unknown ones.
        head + b"\0\x1a\1x\x11" + bytes(8) + b"\x08\2",
        head + b"\2\0\x08\3",
        head + b"\0\x08",
        head + b"\2\2\x08\4",
        b"\0\0\0\x63\0\0\x08\5",
        None,
        head + b"\0\x0a\1x",
        head + b"\0\x08\6",
    ]
    topics.produce(topic, 0, values)
    records = [reading(1), reading(2, 0.0), reading(3), reading(6)]
    reasons = {
        3: "not a Protobuf message",
        4: r"the message \[1\] of its file",
        5: "schema id 25344 is not one of the channel's",
        6: "a tombstone",
        7: "'id' has another form than int64",
    }
    with channel.reader(until="now") as reader:
        assert reader.read(3) == records[:3]
        for offset, reason in reasons.items():
            with pytest.raises(CorruptMessage, match=f"offset {offset}: .*{reason}"):
                reader.read(1)
            reader.seek({0: offset + 1})
        assert list(reader) == records[3:]
    with (
        caplog.at_level(logging.WARNING, "sluiceway.kafka.fetcher"),
        channel.reader(until="now", on_corrupt="skip") as reader,
    ):
        assert list(reader) == records
        assert reader.corrupt_messages == len(reasons)


def test_what_protobuf_cannot_represent_is_refused_and_nothing_is_written(
    gateway: Gateway, name: str
) -> None:
    lists = {"name": "x", "type": ["null", {"type": "array", "items": "int"}]}
    with pytest.raises(InvalidRequest, match=r"nullable array or map.*leave null out"):
        gateway.channel(f"{name}-lists", {**READING, "fields": [lists]}, format="protobuf")
    small = {"name": "x", "type": "long", "protobuf": {"type": "uint32"}}
    either = {"type": ["null", "int"], "default": None, "protobuf": {"oneof": "either"}}
    fields = [small, {"name": "a", **either}, {"name": "b", **either}]
    channel = gateway.channel(name, {**READING, "fields": fields}, format="protobuf")
    with channel.writer() as writer:
        writer.write({"x": 0})
        writer.write({"x": 1, "b": 2})
        for wrong, where, reason in (
            ({"x": -1}, "x", "not a number of the type uint32"),
            ({"x": 0, "a": 1, "b": 2}, "b", "set beside 'a'"),
        ):
            with pytest.raises(InvalidRecord, match=reason) as caught:
                writer.write([{"x": 0}, wrong])
            assert (caught.value.index, caught.value.field) == (1, where)
            with pytest.raises(InvalidRecord, match=reason):
                writer.write(wrong)
    with channel.reader(until="now") as reader:
        assert list(reader) == [{"x": 0, "a": None, "b": None}, {"x": 1, "a": None, "b": 2}]
