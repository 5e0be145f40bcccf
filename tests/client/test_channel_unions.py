"""Channels with unions of several types: records written and read, and refused uses."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sluiceway import Channel, Gateway
from sluiceway.errors import InvalidRecord, InvalidRequest, OptionError, SchemaMismatch


@dataclass
class Circle:
    radius: float


@dataclass
class Square:
    side: float


@dataclass
class Drawn:
    id: int
    shape: Circle | Square
    label: int | str | None = None


@dataclass
class Wider:
    id: int
    shape: Circle | Square | str
    label: float | int | str | None = None


RECORDS: list[Any] = [
    Drawn(1, Circle(1.5), "a"),
    {"id": 2, "shape": {"side": 2.0}, "label": 7},
    {"id": 3, "shape": ("Circle", {"radius": 0.5})},
]
READ = [
    {"id": 1, "shape": {"radius": 1.5}, "label": "a"},
    {"id": 2, "shape": {"side": 2.0}, "label": 7},
    {"id": 3, "shape": {"radius": 0.5}, "label": None},
]


@pytest.fixture
def create(gateway: Gateway) -> Callable[..., Channel]:
    def created(schema: Any = Drawn, **wishes: Any) -> Channel:
        return gateway.channel(f"unions-{uuid.uuid4().hex[:8]}", schema, **wishes)

    return created


@pytest.mark.long
def test_records_with_unions_are_written_and_read(create: Callable[..., Channel]) -> None:
    channel = create()
    with channel.writer() as writer:
        assert writer.write(RECORDS) == 3
        for record in RECORDS:
            writer.write(record)
        with pytest.raises(InvalidRecord, match=r"field 'label': .* branches long, string; "):
            writer.write({"id": 4, "shape": Circle(1.0), "label": 0.5})
        with pytest.raises(
            InvalidRecord, match=r"field 'shape': .* no branch .* Circle \(.*Square"
        ):
            writer.write({"id": 4, "shape": {"radius": 1.0, "side": 1.0}})
    with channel.reader() as reader:
        assert list(reader) == READ * 2
    with channel.reader() as reader:
        assert reader.read(6, timeout=None) == READ * 2


@pytest.mark.long
def test_old_records_are_read_with_a_wider_union(
    gateway: Gateway, create: Callable[..., Channel]
) -> None:
    old = create()
    with old.writer() as writer:
        writer.write(RECORDS)
    new = gateway.channel(old.name)
    new.update(schema=Wider)
    with new.writer() as writer:
        writer.write({"id": 4, "shape": "dot", "label": 0.5})
    with new.reader(until="now") as reader:
        assert list(reader) == [*READ, {"id": 4, "shape": "dot", "label": 0.5}]
    with old.reader(until="now") as reader:
        assert reader.read(3, timeout=None) == READ
        with pytest.raises(SchemaMismatch, match="cannot be read as any branch"):
            reader.read(1, timeout=None)


def test_readers_that_cannot_return_a_union_are_refused_when_opened(
    create: Callable[..., Channel],
) -> None:
    with pytest.raises(InvalidRequest, match="'shape' is a union of several types"):
        create(format="arrow")
    channel = create()
    for key in ("shape", "label"):
        with pytest.raises(OptionError, match=f"key is '{key}', a field with a union"):
            channel.writer(key=key)
    with (
        channel.reader(until="now") as reader,
        pytest.raises(SchemaMismatch, match=r"'shape' is a union .* read records instead"),
    ):
        reader.batches()


def test_a_function_gives_the_key_of_a_record_with_unions(create: Callable[..., Channel]) -> None:
    channel = create(partitions=4)
    with channel.writer(key=lambda record: str(record["label"])) as writer:
        writer.write([{**READ[1], "id": number} for number in range(5)])
    with channel.reader(until="now") as reader:
        assert [record["id"] for record in reader] == [0, 1, 2, 3, 4]
        assert sum(position.offset > 0 for position in reader.position().values()) == 1
