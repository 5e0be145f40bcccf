"""Closing: writers finish and readers read to the end; deletion requires both."""

import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest

from relay import Relay
from sluiceway import Channel, Gateway, Heartbeat
from sluiceway.errors import ChannelClosed, Conflict, EndpointClosed, SluicewayTimeout, TopicGone
from topics import Topics, readings

NewChannel = Callable[..., Channel]


def write(channel: Channel, count: int) -> None:
    with channel.writer() as writer:
        writer.write(readings(count))


def drained(channel: Channel) -> str:
    condition = channel.refresh().status.condition("Drained")
    assert condition is not None
    return condition.reason


def test_a_closing_channel_is_written_and_read_to_its_end_and_then_closed(
    channel: Channel,
) -> None:
    with channel.reader(group="delays") as reader:
        with channel.writer(group="load") as writer:
            writer.write(readings(50))
            with pytest.raises(SluicewayTimeout, match=r"it waits for writers: load\[0\]"):
                channel.close(wait_s=0.1)
            assert channel.status.phase == "closing"
            with pytest.raises(ChannelClosed, match="is closing"):
                channel.writer(group="load")
            writer.write(readings(50, 50))
        assert len(list(reader)) == 100
        while drained(channel) != "Unread":
            with suppress(SluicewayTimeout):
                channel.wait_until_closed(1)
        with pytest.raises(SluicewayTimeout, match="'delays' has not committed 50 messages"):
            channel.wait_until_closed(0.1)
        reader.commit()
        channel.wait_until_closed(60)
    assert channel.status.phase == "closed"
    assert drained(channel) == "Drained"
    # It is read as before.
    assert len(list(channel.reader(until="now"))) == 100


def test_an_endless_reader_ends_when_its_channel_closes(channel: Channel) -> None:
    with channel.reader(group="delays", until=None) as reader:
        write(channel, 10)
        channel.close()
        count, deadline_s = 0, time.monotonic() + 180
        while not (reader.finish_requested and count == 10):
            count += len(reader.read(10, timeout=0.1))
            assert time.monotonic() < deadline_s
        reader.commit()
        channel.wait_until_closed(60)


def test_a_reset_skips_unread_records_of_a_group(channel: Channel) -> None:
    write(channel, 10)
    with channel.reader(group="delays") as reader:
        reader.read(5, timeout=None)
        reader.commit()
    channel.close()
    assert channel.status.phase == "closing"
    channel.reset("delays", reason="nobody needs them")
    channel.wait_until_closed(60)


def test_a_reader_that_waits_for_more_writers_ends_when_the_channel_closes(
    channel: Channel,
) -> None:
    with channel.reader(writers=3) as reader:
        write(channel, 10)
        assert len(reader.read(10, timeout=None)) == 10
        assert reader.read(1, timeout=0.7) == []
        assert not reader.finished
        channel.close()
        assert list(reader) == []
    channel.wait_until_closed(60)


def test_a_reader_of_a_closed_channel_without_records_ends(
    channel: Channel, topics: Topics
) -> None:
    channel.close()
    assert channel.status.phase == "closed"
    assert list(channel.reader()) == []


@pytest.mark.long
def test_a_lost_writer_does_not_block_closing(new_channel: NewChannel, gateway_url: str) -> None:
    channel = new_channel(heartbeat=Heartbeat(interval_ms=100, timeout_ms=60_000))
    request = {"uid": channel.uid, "id": uuid.uuid4().hex, "session": uuid.uuid4().hex}
    path = f"{gateway_url}/v1/channels/{channel.name}/endpoints"
    assert httpx.post(path, json=request | {"role": "writer"}).status_code == 201
    channel.close()
    assert drained(channel) == "WritersOpen"
    channel.update(heartbeat=Heartbeat(interval_ms=100, timeout_ms=400))
    channel.wait_until_closed(60)


def test_an_adopted_channel_drains(
    gateway_url: str, topics: Topics, new_channel: NewChannel
) -> None:
    owner = new_channel()
    topics.create(f"{owner.name}-adopted", 1)
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(
            f"{owner.name}-a", schema=owner.schema, topic=f"{owner.name}-adopted"
        )
        write(channel, 10)
        with channel.reader(group="delays", until="now") as reader:
            channel.close()
            assert channel.status.phase == "closing"
            assert len(list(reader)) == 10
            reader.commit()
        channel.wait_until_closed(60)
        channel.delete()


def test_deleting_a_channel_in_use_needs_force_and_its_reader_raises(
    channel: Channel,
) -> None:
    write(channel, 10)
    reader = channel.reader(group="d", until=None)
    assert len(reader.read(10, timeout=None)) == 10
    for keep in (False, True):
        with pytest.raises(Conflict, match=r"in use by d\[0\].*force=true") as refused:
            channel.delete(keep_topic=keep)
        assert refused.value.code == "endpoints_live"
    channel.delete(force=True)
    with pytest.raises((EndpointClosed, TopicGone)):
        reader.read(1, timeout=60)
    reader.close()


def test_a_flush_into_a_deleted_channel_ends_with_the_next_heartbeat(
    channel: Channel, gateway_url: str
) -> None:
    with (
        closing(Relay(httpx.URL(gateway_url).port or 0)) as relay,
        Gateway(relay.url) as gateway,
        gateway.channel(channel.name).writer() as writer,
    ):
        writer.write(readings(1))
        writer.flush()
        # The next heartbeat is sent after the write.
        with relay.stalled():
            channel.delete(force=True)
            writer.write(readings(1))
        begun_s = time.monotonic()
        with pytest.raises(EndpointClosed, match="its channel was deleted"):
            writer.flush()
        # Kafka's client reports a deleted topic after 30 s.
        assert time.monotonic() - begun_s < 25
        with pytest.raises(EndpointClosed):
            writer.write(readings(1))


@pytest.mark.sample
@pytest.mark.parametrize("settled", ["committed", "reset", "kept", "forced"])
def test_a_channel_with_unread_records_is_not_deleted(channel: Channel, settled: str) -> None:
    write(channel, 10)
    with channel.reader(group="delays") as reader:
        reader.read(4, timeout=None)
        reader.commit()
    with pytest.raises(Conflict, match="'delays' has not committed 5 messages") as refused:
        channel.delete()
    assert refused.value.code == "unread_data"
    options: dict[str, Any] = {}
    if settled == "committed":
        with channel.reader(group="delays") as reader:
            assert len(list(reader)) == 6
            reader.commit()
    elif settled == "reset":
        channel.reset("delays", {0: 5, 1: 5}, reason="nobody needs them")
    else:
        options = {"keep_topic": True} if settled == "kept" else {"force": True}
    channel.delete(**options)
