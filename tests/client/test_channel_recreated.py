"""A channel that is closed, deleted or recreated under its endpoints."""

import contextlib
from collections.abc import Callable
from typing import NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from faults import at_call
from sluiceway import Channel, Gateway
from sluiceway.errors import (
    ChannelNotFound,
    Conflict,
    EndpointClosed,
    Fenced,
    KafkaFailure,
    TopicGone,
)
from sluiceway.writer import ChannelWriter
from topics import DEFINITION, Topics, readings

NewChannel = Callable[..., Channel]

#: From the response to the call, or of an earlier heartbeat.
GONE = (ChannelNotFound, Conflict, EndpointClosed)


def again_and_again(call: Callable[[], object]) -> NoReturn:
    """Call until it raises, after the next heartbeat or an error from Kafka."""
    while True:
        call()


def written(channel: Channel, count: int = 10) -> Channel:
    with channel.writer() as writer:
        writer.write(readings(count))
    return channel


def test_a_reader_of_a_closed_channel_reads_and_commits(new_channel: NewChannel) -> None:
    channel = written(new_channel())
    with channel.reader(group="delays") as reader:
        records = reader.read(4, timeout=None)
        channel.close()
        records += list(reader)
        assert records == readings(10)
        reader.commit()
        assert reader.committed() == reader.position()


@pytest.mark.long
def test_a_reader_of_a_deleted_channel_gets_an_error_on_commit(
    new_channel: NewChannel,
) -> None:
    channel = written(new_channel())
    with channel.reader(group="delays", until=None) as reader:
        reader.read(4, timeout=None)
        channel.delete(force=True)
        with pytest.raises(GONE):
            reader.commit()
        with pytest.raises((*GONE, KafkaFailure)):
            again_and_again(lambda: reader.read(100, timeout=60))


@pytest.mark.long
def test_positions_of_a_recreated_channel_are_not_those_of_the_deleted_one(
    new_channel: NewChannel, gateway_url: str
) -> None:
    channel = new_channel()
    channel.delete()
    with Gateway(gateway_url) as gateway:
        again = written(gateway.channel(channel.name, DEFINITION))
        with again.reader(group="delays") as reader:
            assert len(reader.read(10, timeout=None)) == 10
            reader.commit()
    with pytest.raises(Conflict, match="deleted and created again"):
        channel.committed("delays")


def test_endpoints_and_schemas_are_not_those_of_a_recreated_channel(
    new_channel: NewChannel, gateway_url: str
) -> None:
    channel = new_channel()
    channel.delete()
    with Gateway(gateway_url) as gateway:
        written(gateway.channel(channel.name, DEFINITION))
    for request in (
        channel.endpoints,
        channel.schemas,
        lambda: channel.wait_for(writers=1, state="closed"),
    ):
        with pytest.raises(Conflict, match="deleted and created again"):
            request()


@pytest.mark.long
def test_a_reader_does_not_commit_to_a_recreated_channel(
    new_channel: NewChannel, gateway_url: str
) -> None:
    channel = written(new_channel())
    with Gateway(gateway_url) as gateway:
        writer = channel.writer()
        with channel.reader(group="delays", until=None) as reader:
            reader.read(4, timeout=None)
            channel.delete(force=True)
            other = written(gateway.channel(channel.name, schema=DEFINITION))
            with pytest.raises(GONE):
                reader.commit()
            with pytest.raises((*GONE, KafkaFailure)):
                again_and_again(lambda: (writer.write(readings(1)), writer.flush()))
            with contextlib.suppress(*GONE):
                writer.close()
        assert other.committed("delays") == {}
        assert [endpoint.role for endpoint in other.endpoints()] == ["writer"]
        with other.reader(group="delays") as reader:
            assert list(reader) == readings(10)


def test_a_superseded_writer_is_fenced_and_does_not_end_its_successor(
    new_channel: NewChannel,
) -> None:
    channel = new_channel()
    old = channel.writer(group="load")
    old.write(readings(3))
    with channel.writer(group="load") as new:
        with pytest.raises(Fenced, match="has to stop"):
            again_and_again(lambda: old.write(readings(1)))
        with pytest.raises(Fenced):
            old.close()
        states = [(endpoint.id, endpoint.state) for endpoint in channel.endpoints()]
        assert states == [(new.endpoint_id, "opened")]


@pytest.mark.sample
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("method", ["flush", "close"])
def test_records_in_a_topic_that_was_created_again_are_not_acknowledged(
    new_channel: NewChannel, topics: Topics, method: str, delivery: str
) -> None:
    channel = new_channel(delivery=delivery)
    writer = channel.writer()
    if delivery == "at_least_once":
        # Batches would notice by themselves that offsets go back.
        writer.write(readings(3))
        writer.flush()
    topics.create_again(writer.connection.topic_name, writer.connection.partitions)
    writer.write(readings(3))
    with pytest.raises(TopicGone, match="is not the one that was opened"):
        getattr(writer, method)()
    with contextlib.suppress(TopicGone):
        writer.close()
    assert [endpoint.state for endpoint in channel.endpoints()] == ["error"]
    if delivery == "exactly_once":
        assert "commit" not in [event.kind for event in channel.commits().events]


def test_a_flush_asks_for_the_topic_once_after_each_delivery(
    topics: Topics,
) -> None:
    requests: list[str] = []
    answers = True

    def count(*_: object, **__: object) -> None:
        requests.append("describe")
        if not answers:
            raise KafkaException(KafkaError(KafkaError.BROKER_NOT_AVAILABLE))

    # Requests over one connection cannot be told apart outside.
    with (
        ChannelWriter(topics.connect()) as writer,
        at_call(AdminClient, "describe_topics", count),
    ):
        writer.flush()
        assert len(requests) == 0
        writer.write(readings(3))
        for _ in range(2):
            writer.flush()
        assert len(requests) == 1
        # Delivered records are not lost, so the next call asks instead.
        writer.write(readings(3))
        answers = False
        writer.flush()
        answers = True
        for _ in range(2):
            writer.flush()
        assert len(requests) == 3
