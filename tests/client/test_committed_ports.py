"""Ports on exactly-once channels."""

from collections.abc import Callable

import pytest

from sluiceway import Channel, InputPort, OutputPort
from topics import readings

NewChannel = Callable[..., Channel]


def ids(channel: Channel) -> list[int]:
    with channel.reader(until="now") as reader:
        return sorted(record["id"] for record in reader)


@pytest.mark.long
def test_flush_commits_to_every_channel(new_channel: NewChannel) -> None:
    channels = [new_channel(delivery="exactly_once") for _ in range(2)]
    with OutputPort(channels, commit_every_s=600) as port:
        port.write(readings(10))
        port.flush()
        assert [ids(channel) for channel in channels] == [list(range(10))] * 2
        port.write(readings(5, 10))
        assert [len(ids(channel)) for channel in channels] == [10, 10]
    assert [len(ids(channel)) for channel in channels] == [15, 15]


def test_leaving_by_an_exception_commits_nothing(new_channel: NewChannel) -> None:
    channel = new_channel(delivery="exactly_once")

    def failing() -> None:
        with OutputPort([channel], commit_every_s=600) as port:
            port.write(readings(10))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert ids(channel) == []


def test_an_input_port_reads_committed_records_until_its_writers_have_finished(
    new_channel: NewChannel,
) -> None:
    channel = new_channel(delivery="exactly_once")
    with OutputPort([channel], group="out") as port:
        port.write(readings(10))
    with InputPort(channel, group="in", open_timeout_s=30) as inlet:
        assert sorted(record["id"] for record in inlet) == list(range(10))
        inlet.commit()
