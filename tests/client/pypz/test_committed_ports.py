"""pypz's channels on an exactly-once channel."""

from collections.abc import Iterator

import pytest

from faults import failing_call
from pypz_rig import SCHEMA, Bench, demo, take
from sluiceway import Channel, Gateway
from sluiceway.api.ledger import LedgerCalls
from sluiceway.errors import CommitUnknown
from waiting import until


@pytest.fixture
def channel(bench: Bench, gateway_url: str) -> Iterator[Channel]:
    with Gateway(gateway_url) as gateway:
        yield gateway.channel(bench.name, SCHEMA, delivery="exactly_once")


def abandon(channel: Channel) -> None:
    """Leave messages of an aborted batch at the end of the topic."""

    def failing() -> None:
        with channel.writer() as writer, writer.batch("abandoned"):
            writer.write(demo(100, 1000))
            writer.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()


@pytest.mark.long
def test_records_arrive_once_they_are_committed(bench: Bench, channel: Channel) -> None:
    abandon(channel)
    reader, writer = bench.pair()
    writer.start_channel()
    writer.invoke_write_records(demo(5))
    assert reader.invoke_read_records() == []
    writer.stop_channel()
    assert take(reader, 5) == demo(5)
    assert not reader.has_records()


def test_uncommitted_messages_of_others_do_not_delay_the_acknowledgement(
    bench: Bench, channel: Channel
) -> None:
    reader, writer = bench.pair()
    until(lambda: writer.is_any_connected_channels_healthy())
    writer.invoke_write_records(demo(5))
    assert not writer.is_all_connected_input_channels_acknowledged()
    abandon(channel)
    assert take(reader, 5) == demo(5)
    reader.acknowledge_input()
    until(writer.is_all_connected_input_channels_acknowledged)


def test_closing_ends_although_the_commit_has_no_answer(bench: Bench, channel: Channel) -> None:
    _, writer = bench.pair()
    writer.invoke_write_records(demo(5))
    unknown = CommitUnknown(channel=channel.name, key="lost")
    with failing_call(LedgerCalls, "commit", unknown, arrives=False):
        assert not writer.invoke_close_channel()
        writer.invoke_close_channel()
    assert not writer.is_channel_open()
    assert writer.invoke_close_channel()
