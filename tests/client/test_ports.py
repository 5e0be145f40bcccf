"""Ports: writing to many channels, and reading from many writers."""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import httpx
import pytest

from faults import failing_call, lose
from relay import Relay
from sluiceway import Channel, Gateway, Heartbeat, InputPort, OutputPort
from sluiceway.errors import (
    ChannelClosed,
    Fenced,
    InvalidRecord,
    OptionError,
    PortError,
    RecordTooLarge,
    SluicewayError,
    SluicewayTimeout,
    WriterFailed,
)
from topics import readings

NewChannel = Callable[..., Channel]


@pytest.fixture
def pair(new_channel: NewChannel) -> tuple[Channel, Channel]:
    return new_channel(), new_channel(partitions=2, format="arrow")


def held(channel: Channel) -> list[dict[str, Any]]:
    with channel.reader(until="now") as reader:
        return sorted(reader, key=lambda record: record["id"])


def states(channel: Channel) -> list[str]:
    return [endpoint.state for endpoint in channel.endpoints() if endpoint.role == "writer"]


def write(channel: Channel, count: int, first: int = 0, **place: Any) -> None:
    with channel.writer(**place) as writer:
        writer.write(readings(count, first))


def test_every_channel_of_an_output_port_gets_every_record(pair: tuple[Channel, Channel]) -> None:
    with OutputPort(pair, group="load") as port:
        assert port.write(readings(50)) == 50
        assert port.write(iter(readings(50, 50))) == 50
        port.flush()
        assert list(port.writers) == [channel.name for channel in pair]
    for channel in pair:
        assert held(channel) == readings(100)
        assert states(channel) == ["closed"]


@dataclass
class Fare:
    id: uuid.UUID
    sold: datetime
    price: Annotated[Decimal, "decimal(10, 2)"]
    stops: list[str]
    refunded: date | None = None


def test_records_validated_once_are_written_unchanged_to_all_channels(gateway_url: str) -> None:
    fares = [
        Fare(uuid.uuid4(), datetime(2013, 1, day, tzinfo=UTC), Decimal("9.50"), ["a", "b"][:day])
        for day in (1, 2)
    ]
    with Gateway(gateway_url) as gateway:
        name = f"fares-{uuid.uuid4().hex[:8]}"
        pair = [
            gateway.channel(f"{name}-{format_}", Fare, format=format_)
            for format_ in ("avro", "arrow")
        ]
        with OutputPort(pair) as port:
            port.write(fares)
        for channel in pair:
            assert [Fare(**record) for record in channel.reader()] == fares


def test_an_interrupt_of_an_abort_leaves_no_writer_of_a_port_open(
    pair: tuple[Channel, Channel],
) -> None:
    port = OutputPort(pair)
    port.write(readings(5))
    first = port.writers[pair[0].name]
    with failing_call(first.producer, "discard", KeyboardInterrupt(), arrives=False):
        port.abort(ValueError())
    assert states(pair[1]) == ["error"]
    with pytest.raises(PortError):
        port.close()
    assert states(pair[0]) == ["error"]


@pytest.mark.long
def test_an_iterator_may_change_and_yield_the_same_record_again(
    new_channel: NewChannel,
) -> None:
    # Two formats, so the port validates the records twice.
    pair = (new_channel(), new_channel(format="arrow"))

    def records() -> Iterator[dict[str, Any]]:
        changed: dict[str, Any] = {}
        for record in readings(20):
            changed.update(record)
            yield changed

    with OutputPort(pair) as port:
        port.write(records())
    assert [held(channel) for channel in pair] == [readings(20)] * 2


def test_a_record_refused_by_one_channel_is_sent_to_none(
    channel: Channel, gateway_url: str
) -> None:
    with Gateway(gateway_url) as gateway:
        other = gateway.channel(f"{channel.name}-fares", Fare)
        with OutputPort([channel, other]) as port:
            with pytest.raises(InvalidRecord):
                port.write(readings(5))
            port.flush()
    assert held(channel) == []


def test_an_error_of_one_channel_is_raised_after_all_were_tried(
    new_channel: NewChannel, channel: Channel
) -> None:
    narrow = new_channel(config={"max.message.bytes": "1024"})
    record = {"id": 1, "station": "s" * 2000, "celsius": 0.0}
    with OutputPort([narrow, channel]) as port:
        with pytest.raises(PortError, match=f"1 of the 2 channels.*{narrow.name}: ") as raised:
            port.write(record)
        assert isinstance(raised.value.errors[narrow.name], RecordTooLarge)
        assert list(raised.value.errors) == [narrow.name]
        assert not raised.value.retriable
    assert (held(narrow), held(channel)) == ([], [record])


def test_a_port_opens_all_of_its_channels_or_none(pair: tuple[Channel, Channel]) -> None:
    pair[1].close()
    with pytest.raises(PortError, match=rf"opening failed .* {pair[1].name}: ") as raised:
        OutputPort(pair)
    assert isinstance(raised.value.errors[pair[1].name], ChannelClosed)
    assert states(pair[0]) == ["error"]
    for wrong in ([], [pair[0], pair[0]]):
        with pytest.raises(OptionError, match="needs different channels"):
            OutputPort(wrong)


def test_leaving_a_port_by_an_exception_fails_all_of_its_writers(
    pair: tuple[Channel, Channel],
) -> None:
    with suppress(ZeroDivisionError), OutputPort(pair) as port:
        port.write(readings(5))
        raise ZeroDivisionError
    assert [states(channel) for channel in pair] == [["error"], ["error"]]


def test_an_output_port_waits_for_its_readers(channel: Channel) -> None:
    with (
        OutputPort([channel], readers=2, open_timeout_s=0.2) as port,
        channel.reader(group="delays", index=0, size=2),
    ):
        with pytest.raises(SluicewayTimeout, match=r"1 of 2 opened \(delays\[1\] never attached"):
            port.write(readings(5))
        with channel.reader(group="delays", index=1, size=2):
            assert port.write(readings(5)) == 5


def test_an_input_port_waits_for_a_writer_and_reports_a_missing_one(channel: Channel) -> None:
    with InputPort(channel, open_timeout_s=0.2) as port:
        with pytest.raises(SluicewayTimeout, match=r"writers: 0 of 1 opened \(1 never attached\)"):
            port.read(1)
        assert not port.finished
        write(channel, 10)
        assert len(list(port)) == 10
        assert port.finished


def test_an_input_port_waits_until_all_writers_are_open(channel: Channel) -> None:
    with (
        channel.writer(group="load", index=0, size=2) as first,
        InputPort(channel, writers=2, all_open=True, open_timeout_s=0.2) as port,
    ):
        first.write(readings(10))
        first.flush()
        with pytest.raises(SluicewayTimeout, match=r"load\[1\] never attached"):
            port.read(1)
        with channel.writer(group="load", index=1, size=2) as second:
            assert len(port.read(10, timeout=None)) == 10
            second.write(readings(10, 10))
        first.close()
        assert len(list(port)) == 10


@pytest.mark.long
def test_a_sequential_input_port_waits_until_all_writers_have_finished(channel: Channel) -> None:
    with InputPort(channel, writers=2, sequential=True, open_timeout_s=0.2) as port:
        write(channel, 10, group="load", index=1, size=2)
        with channel.writer(group="load", index=0, size=2) as writer:
            writer.write(readings(10, 10))
            writer.flush()
            with pytest.raises(SluicewayTimeout, match=r"load\[0\] is (opened|started)"):
                port.read(1)
        assert len(list(port)) == 20


def fail(channel: Channel, count: int, **place: Any) -> None:
    with suppress(ZeroDivisionError), channel.writer(**place) as writer:
        writer.write(readings(count))
        writer.flush()
        raise ZeroDivisionError


@pytest.mark.long
def test_a_failed_writer_does_not_block_other_channels_of_a_sequential_port(
    new_channel: NewChannel,
) -> None:
    channel = new_channel(heartbeat=Heartbeat(interval_ms=100, timeout_ms=1500))
    fail(channel, 10, group="load")
    with InputPort(channel, sequential=True) as port:
        assert len(port.read(20, timeout=60)) == 10
        with pytest.raises(WriterFailed):
            port.read(1, timeout=60)


def test_a_sequential_port_waits_for_the_successor_of_a_failed_writer(
    channel: Channel,
) -> None:
    fail(channel, 10, group="load")
    fail(channel, 0)
    with InputPort(channel, sequential=True, open_timeout_s=0.5) as port:
        with pytest.raises(SluicewayTimeout, match=r"load\[0\] is error"):
            port.read(1)
        write(channel, 10, group="load")
        assert len(list(port)) == 20


@pytest.mark.long
def test_a_writer_that_failed_before_writing_does_not_count_as_attached(channel: Channel) -> None:
    fail(channel, 0)
    with InputPort(channel, open_timeout_s=0.5) as port:
        with pytest.raises(SluicewayTimeout, match="is error"):
            port.read(1)
        write(channel, 10)
        assert len(list(port)) == 10


@pytest.mark.long
def test_a_lost_writer_that_left_nothing_undone_does_not_count_as_attached(
    new_channel: NewChannel, gateway_url: str
) -> None:
    channel = new_channel(delivery="exactly_once")
    with (
        closing(Relay(httpx.URL(gateway_url).port or 0)) as relay,
        Gateway(relay.url, timeout_s=1) as elsewhere,
    ):
        silent = elsewhere.channel(channel.name).writer()
        with suppress(SluicewayError), silent.batch("day-1", owner="job"):
            silent.write(readings(5))
            assert silent.endpoint_id is not None
            relay.cut()
            lose(channel, silent.endpoint_id)
            # Its job is repeated.
            with channel.writer() as writer, writer.batch("day-1", owner="job"):
                writer.write(readings(5))
        with (
            InputPort(channel, writers=2, all_open=True, open_timeout_s=0.5) as port,
            pytest.raises(SluicewayTimeout, match=r"writers: 1 of 2 opened \(1 never attached\)"),
        ):
            port.read(1)
        with suppress(SluicewayError):
            silent.close()


def test_a_port_stops_waiting_when_its_channel_closes(channel: Channel) -> None:
    write(channel, 10)
    with ThreadPoolExecutor() as threads:
        port = InputPort(channel, writers=3, all_open=True)
        reading = threads.submit(list, port)
        channel.wait_for(readers=1)
        channel.close()
        assert len(reading.result(30)) == 10
        port.close()


def test_a_fenced_port_stops_waiting(channel: Channel) -> None:
    port = InputPort(channel, group="delays")
    with channel.reader(group="delays", until="now"), pytest.raises(Fenced):
        port.wait()


@pytest.mark.long
def test_each_port_of_a_broadcast_group_gets_all_records(channel: Channel) -> None:
    ports = [InputPort(channel, group="g", index=i, size=2, mode="broadcast") for i in (0, 1)]
    write(channel, 20)
    for port in reversed(ports):
        with port:
            assert len(list(port)) == 20
            port.commit()


def test_an_invalid_timeout_is_refused(channel: Channel) -> None:
    with pytest.raises(OptionError, match="open_timeout_s is -1"):
        InputPort(channel, open_timeout_s=-1)


def test_a_cycle_of_channels_ends_when_one_of_them_is_closed(new_channel: NewChannel) -> None:
    there, back = new_channel(), new_channel()

    def echo() -> int:
        laps = 0
        with InputPort(there) as inlet, OutputPort([back]) as outlet:
            for record in inlet:
                outlet.write(record)
                outlet.flush()
                laps += 1
        return laps

    def begin() -> int:
        laps = 0
        with InputPort(back) as inlet, OutputPort([there]) as outlet:
            outlet.write(readings(1))
            outlet.flush()
            while not inlet.finished:
                for record in inlet.read(10, timeout=0.2):
                    laps += 1
                    if not outlet.finish_requested:
                        outlet.write(record)
                        outlet.flush()
                    if laps == 3:
                        there.close()
                if outlet.finish_requested:
                    # The other job has then read everything, and ends as well.
                    outlet.close()
        return laps

    with ThreadPoolExecutor() as threads:
        jobs = [threads.submit(job) for job in (echo, begin)]
        echoed, begun = (job.result(60) for job in jobs)
    assert echoed == begun >= 3
    there.wait_until_closed(10)
    assert states(back) == ["closed"]
