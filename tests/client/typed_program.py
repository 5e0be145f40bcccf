"""The types of readers' records, as a strict type checker sees them; for `test_types`."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

from sluiceway import Channel, ChannelReader, Gateway, InputPort, aio


@dataclass
class Flight:
    carrier: str


class Row(TypedDict):
    carrier: str


def read(channel: Channel, gateway: Gateway) -> None:
    plain = channel.reader(group="g")
    assert_type(plain, ChannelReader[dict[str, Any]])
    assert_type(plain.read(1), list[dict[str, Any]])
    typed = channel.reader(group="g", dynamic=True, as_=Flight)
    assert_type(typed, ChannelReader[Flight])
    assert_type(iter(typed), Iterator[Flight])
    assert_type(typed.read(1), list[Flight])
    assert_type(channel.reader(as_=Row).read(1), list[Row])
    assert_type(InputPort(channel, as_=Flight).read(1), list[Flight])
    assert_type(InputPort(channel).read(1), list[dict[str, Any]])
    with channel.writer() as writer, typed, gateway.transaction(typed, writer):
        for flight in typed:
            writer.write(flight.carrier)


def annotated(reader: ChannelReader) -> list[dict[str, Any]]:
    """An annotation without a parameter is one of dicts."""
    return reader.read(1)


async def await_records(channel: aio.Channel) -> None:
    async with channel.reader(as_=Flight) as reader:
        assert_type(reader, aio.Reader[Flight])
        assert_type(await reader.read(1), list[Flight])
        assert_type(reader.__aiter__(), AsyncIterator[Flight])
    plain = await channel.reader()
    assert_type(await plain.read(1), list[dict[str, Any]])
