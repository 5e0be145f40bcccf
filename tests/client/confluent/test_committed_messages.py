"""sluiceway.confluent.Consumer on exactly-once channels: committed messages only."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from confluent_facade import NUMBER, Facade, at, codes, offsets, poll_messages
from faults import interrupted_at_call
from sluiceway import Channel
from sluiceway.confluent import Consumer, KafkaError
from sluiceway.kafka.consumer import FetchedMessages
from sluiceway.ledger.committed_stream import CommittedStream
from topics import Topics

MakeConsumer = Callable[..., Consumer]


@pytest.fixture
def channel(site: Facade) -> Channel:
    name = site.channel(delivery="exactly_once", format="avro", schema=NUMBER)
    return site.gateway.channel(name)


def write(channel: Channel, *numbers: int, partition: int = 0) -> None:
    with channel.writer(partition=partition) as writer:
        writer.write([{"n": number} for number in numbers])


def abandon(channel: Channel, count: int, partition: int = 0) -> None:
    """Leave messages of an aborted batch in a partition."""

    def failing() -> None:
        with channel.writer(partition=partition) as writer, writer.batch("abandoned"):
            writer.write([{"n": -1}] * count)
            writer.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()


@pytest.mark.long
def test_only_committed_messages_are_returned(channel: Channel, consumer: MakeConsumer) -> None:
    write(channel, 1, 2)
    abandon(channel, 10)
    write(channel, 3, 4)
    reader = consumer(**{"auto.offset.reset": "earliest"})
    reader.subscribe([channel.name])
    messages = poll_messages(reader, 4)
    assert {message.topic() for message in messages} == {channel.name}
    read = offsets(messages)[0]
    assert read[:2] == [0, 1]
    assert read[2] == 12
    assert reader.position([at(channel.name)])[0].offset == read[-1] + 1
    assert reader.poll(0.2) is None
    reader.commit(asynchronous=False)
    assert reader.committed([at(channel.name)])[0].offset == read[-1] + 1


@pytest.mark.long
def test_channels_may_be_added_while_another_thread_polls(
    channel: Channel, site: Facade, consumer: MakeConsumer
) -> None:
    write(channel, 1)
    reader = consumer(**{"auto.offset.reset": "earliest"})
    reader.subscribe([channel.name])
    assert offsets(poll_messages(reader, 1)) == {0: [0]}
    adding: list[Future[Any]] = []

    def add() -> None:
        other = site.channel(delivery="exactly_once", format="avro", schema=NUMBER)
        adding.append(pool.submit(reader.get_watermark_offsets, at(other), 30))
        # Briefly, because the poll may hold a lock that this call needs.
        wait(adding, 0.5)

    with ThreadPoolExecutor() as pool:
        for number in range(1, 16):
            interrupted_at_call(number, partial(reader.poll, 0), ("call",), action=add)
        assert len(adding) > 5
        assert {call.result(60) for call in adding} == {(0, 0)}
    write(channel, 2)
    assert offsets(poll_messages(reader, 1)) == {0: [1]}


@pytest.mark.parametrize("reset", ["earliest", "error"])
def test_all_partitions_whose_offsets_are_gone_continue_by_the_policy(
    channel: Channel, topics: Topics, consumer: MakeConsumer, reset: str
) -> None:
    for partition in (0, 1):
        write(channel, 1, 2, 3, partition=partition)
        topics.truncate(channel.status.topic.name, partition, 2)
    reader = consumer(**{"auto.offset.reset": reset})
    reader.assign([at(channel.name, 0, 0), at(channel.name, 1, 0)])
    messages = poll_messages(reader, 2)
    if reset == "earliest":
        assert offsets(messages) == {0: [2], 1: [2]}
    else:
        assert codes(messages) == [KafkaError._AUTO_OFFSET_RESET] * 2
        assert {message.partition() for message in messages} == {0, 1}


@pytest.mark.long
def test_a_late_error_for_an_earlier_offset_repeats_no_messages(
    channel: Channel, consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(channel, 1, 2, 3)
    reader = consumer(**{"auto.offset.reset": "earliest"})
    reader.assign([at(channel.name, 0, 1)])
    assert offsets(poll_messages(reader, 2)) == {0: [1, 2]}
    late = FetchedMessages(chunks=[], next={}, refused={0})
    with monkeypatch.context() as patched:
        # Kafka's response to a request from before a seek cannot be timed.
        patched.setattr(CommittedStream, "poll", lambda *_: late)
        assert reader.poll(0) is None
    write(channel, 4)
    assert offsets(poll_messages(reader, 1)) == {0: [3]}


def test_messages_that_were_fetched_before_an_offset_is_gone_are_returned(
    channel: Channel, topics: Topics, consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(channel, 1, 2, 3)
    poll = CommittedStream.poll

    def refusing(stream: CommittedStream, limit: int, wait_s: float) -> FetchedMessages:
        polled = poll(stream, limit, wait_s)
        if polled.chunks and polled.next == {0: 3}:
            write(channel, 4, 5)
            topics.truncate(channel.status.topic.name, 0, 5)
            return replace(polled, refused={0})
        return polled

    reader = consumer(**{"auto.offset.reset": "earliest"})
    reader.assign([at(channel.name, 0, 0)])
    # Kafka's response after a loss right behind fetched messages cannot be timed.
    monkeypatch.setattr(CommittedStream, "poll", refusing)
    assert offsets(poll_messages(reader, 3)) == {0: [0, 1, 2]}
    write(channel, 6)
    assert offsets(poll_messages(reader, 1)) == {0: [5]}


def test_an_open_batch_hides_later_records_until_it_ends(
    channel: Channel, consumer: MakeConsumer
) -> None:
    reader = consumer()
    reader.assign([at(channel.name, 0, 0), at(channel.name, 1, 0)])
    with channel.writer(partition=0) as writer:
        with writer.batch("open"):
            writer.write({"n": 1})
            writer.flush()
            write(channel, 2)
            write(channel, 3, partition=1)
            assert reader.get_watermark_offsets(at(channel.name, 0)) == (0, 0)
            assert reader.poll(0.2) is None
        assert offsets(poll_messages(reader, 3)) == {0: [0, 1], 1: [0]}
    assert reader.get_watermark_offsets(at(channel.name, 0)) == (0, 2)


@pytest.mark.long
def test_a_restarted_consumer_continues_after_its_commit(
    channel: Channel, consumer: MakeConsumer
) -> None:
    write(channel, *range(10))
    first = consumer(**{"auto.offset.reset": "earliest"})
    first.subscribe([channel.name])
    poll_messages(first, 4)
    first.commit(asynchronous=False)
    first.close()
    abandon(channel, 5)
    write(channel, 10)
    second = consumer(**{"auto.offset.reset": "earliest"})
    second.subscribe([channel.name])
    assert offsets(poll_messages(second, 7)) == {0: [4, 5, 6, 7, 8, 9, 15]}


def test_seeking_pausing_and_resuming_lose_nothing(
    channel: Channel, consumer: MakeConsumer
) -> None:
    write(channel, *range(10))
    write(channel, *range(10), partition=1)
    reader = consumer()
    places = [at(channel.name, 0, 0), at(channel.name, 1, 0)]
    reader.assign(places)
    messages = poll_messages(reader, 5)
    reader.pause([places[0]])
    messages += poll_messages(
        reader,
        20
        - len(offsets(messages).get(0, []))
        - len(messages)
        - (10 - len(offsets(messages).get(0, []))),
    )
    reader.resume([places[0]])
    messages += poll_messages(reader, 20 - len(messages))
    assert offsets(messages) == {0: [*range(10)], 1: [*range(10)]}
    reader.seek(at(channel.name, 0, 7))
    assert offsets(poll_messages(reader, 3)) == {0: [7, 8, 9]}
    reader.seek(at(channel.name, 0, OFFSET_BEGINNING))
    assert offsets(poll_messages(reader, 10)) == {0: [*range(10)]}
    reader.seek(at(channel.name, 0, OFFSET_END))
    write(channel, 10)
    assert offsets(poll_messages(reader, 1)) == {0: [10]}


@pytest.mark.long
def test_large_batches_are_consumed_beside_another_channel(
    site: Facade, channel: Channel, consumer: MakeConsumer
) -> None:
    other = site.channel(filled=50)
    write(channel, *range(1000))
    reader = consumer(**{"auto.offset.reset": "earliest"})
    reader.subscribe([channel.name, other])
    messages = []
    while len(messages) < 1100:
        messages += reader.consume(500, 1)
    by_channel = {
        name: [m for m in messages if m.topic() == name] for name in (channel.name, other)
    }
    assert offsets(by_channel[channel.name]) == {0: [*range(1000)]}
    assert offsets(by_channel[other]) == {0: [*range(50)], 1: [*range(50)]}


def test_the_end_is_reported_once(channel: Channel, consumer: MakeConsumer) -> None:
    write(channel, 1)
    reader = consumer(**{"enable.partition.eof": True})
    reader.assign([at(channel.name, 0, 0)])
    message, event = poll_messages(reader, 2)
    assert message.error() is None
    assert event.error().code() == KafkaError._PARTITION_EOF
    assert event
    assert (event.topic(), event.partition(), event.offset()) == (channel.name, 0, 1)
    assert reader.poll(0.2) is None


def test_times_of_uncommitted_messages_are_the_end(
    channel: Channel, consumer: MakeConsumer
) -> None:
    write(channel, 1)
    with channel.writer(partition=0) as writer, writer.batch("open"):
        writer.write({"n": 2})
        writer.flush()
        reader = consumer()
        places = reader.offsets_for_times([at(channel.name, 0, 0), at(channel.name, 1, 0)])
        assert [place.offset for place in places] == [0, OFFSET_END]
