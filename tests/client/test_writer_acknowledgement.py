"""Acknowledgement: a writer waits until groups have committed past its records."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sluiceway import Channel
from sluiceway.errors import OptionError, SluicewayTimeout
from sluiceway.kafka.partitioner import partition_of
from sluiceway.writer import ChannelWriter
from topics import Topics, readings

NewChannel = Callable[..., Channel]


@pytest.mark.sample
def test_waiting_returns_when_every_group_has_committed_past_the_last_record(
    new_channel: NewChannel, each_format: str
) -> None:
    channel = new_channel(partitions=2, format=each_format)
    with (
        channel.writer() as writer,
        channel.reader(group="delays") as delays,
        channel.reader(group="maps") as maps,
        ThreadPoolExecutor() as pool,
    ):
        # Nothing was written: there is nothing to wait for.
        writer.wait_acknowledged(["delays"], timeout_s=0)
        writer.write(readings(20))
        writer.flush()
        for reader in (delays, maps):
            assert len(reader.read(20, timeout=None)) == 20
        delays.commit()
        writer.wait_acknowledged(["delays"], timeout_s=30)
        with pytest.raises(SluicewayTimeout, match=r"the group 'maps': partition \d: none of"):
            writer.wait_acknowledged(["delays", "maps"], timeout_s=0.2)
        acknowledged = pool.submit(writer.wait_acknowledged, ["delays", "maps"], timeout_s=60)
        maps.commit()
        acknowledged.result(60)


def test_a_timeout_names_group_and_partition_and_missing_records(new_channel: NewChannel) -> None:
    channel = new_channel(partitions=2)
    with channel.writer(partition=1) as writer, channel.reader(group="delays") as reader:
        writer.write(readings(20))
        writer.flush()
        reader.read(5, timeout=None)
        reader.commit()
        # Only the partition that was written to counts.
        missing = "the group 'delays': partition 1: 15 messages missing (5 of 20)"
        with pytest.raises(SluicewayTimeout, match=re.escape(missing)):
            writer.wait_acknowledged(["delays"], timeout_s=0.1)
        with pytest.raises(SluicewayTimeout, match="'later': it never had a member"):
            writer.wait_acknowledged(["later"], timeout_s=0.1)


def test_partitions_that_this_writer_did_not_write_to_are_not_waited_for(
    new_channel: NewChannel,
) -> None:
    channel = new_channel(partitions=3)
    with channel.writer(partition=0) as other, channel.writer(partition=2) as writer:
        other.write(readings(5))
        other.flush()
        writer.write(readings(5))
        with channel.reader(group="delays", start={2: 0}) as reader:
            reader.read(10, timeout=None)
            reader.commit({2: reader.position()[2]})
            writer.wait_acknowledged(["delays"], timeout_s=30)


def test_with_keys_only_the_partitions_of_the_keys_are_awaited(
    new_channel: NewChannel,
) -> None:
    channel = new_channel(partitions=3)
    places = {partition_of(b"s%d" % n, 3): f"s{n}" for n in range(20)}
    with (
        channel.writer(partition=2) as other,
        channel.writer(key="station") as writer,
        channel.reader(group="delays") as reader,
    ):
        other.write(readings(5))
        other.flush()
        writer.write([{"id": 0, "station": places[p], "celsius": 1.0} for p in (0, 1)])
        writer.flush()
        reader.read(7, timeout=None)
        reader.commit({0: reader.position()[0]})
        with pytest.raises(SluicewayTimeout, match="'delays': partition 1: none of"):
            writer.wait_acknowledged(["delays"], timeout_s=0.1)
        reader.commit({1: reader.position()[1]})
        writer.wait_acknowledged(["delays"], timeout_s=30)


def test_members_of_a_broadcast_group_are_named(new_channel: NewChannel) -> None:
    channel = new_channel()
    with channel.writer() as writer:
        writer.write(readings(5))
        with channel.reader(group="all", index=1, size=2, mode="broadcast") as reader:
            reader.read(5, timeout=None)
            reader.commit()
            with pytest.raises(SluicewayTimeout, match="member 0, partition 0: none of"):
                writer.wait_acknowledged(["all"], timeout_s=0.1)


def test_invalid_groups_to_wait_for_are_refused(new_channel: NewChannel, topics: Topics) -> None:
    with new_channel().writer() as writer:
        for groups in ("delays", [], [1]):
            with pytest.raises(OptionError, match="list of group names"):
                writer.wait_acknowledged(groups)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="seconds"):
            writer.wait_acknowledged(["delays"], timeout_s=-1)
        with pytest.raises(OptionError, match="group"):
            writer.wait_acknowledged(["a\nb"], timeout_s=0)
    with (
        ChannelWriter(topics.connect()) as alone,
        pytest.raises(OptionError, match="has no gateway"),
    ):
        alone.wait_acknowledged(["delays"])
