"""sluiceway.confluent.Producer: channels that are deleted, or created again, under it."""

from collections.abc import Callable

import pytest

from confluent_facade import BEAT, Facade, KafkaError, codes, error_code_of, poll_messages
from sluiceway.confluent import Message, Producer, TopicPartition
from topics import Topics
from waiting import until

GONE = KafkaError.UNKNOWN_TOPIC_OR_PART


def recording(reported: list[Message]) -> Callable[[KafkaError | None, Message], None]:
    def note(error: KafkaError | None, message: Message) -> None:
        assert (error is None) == (message.error() is None)
        assert error is None or error.str() == message.error().str()
        reported.append(message)

    return note


@pytest.mark.sample
@pytest.mark.parametrize("recreated", [True, False], ids=["recreated", "deleted"])
def test_messages_to_a_deleted_channel_fail_at_once_and_not_by_their_timeout(
    site: Facade, recreated: bool
) -> None:
    name, reported = site.channel(), list[Message]()
    producer = site.producer(on_delivery=recording(reported))
    producer.produce(name, b"0")
    assert producer.flush(30) == 0
    site.gateway.channel(name).delete(force=True)
    if recreated:
        site.gateway.channel(name, format="bytes", heartbeat=BEAT)

    # The first ones are in librdkafka's queue, and the last one is refused before.
    producer.produce(name, b"1", partition=0)
    producer.produce(name, b"2", partition=1)
    assert producer.flush(30) == 0
    producer.produce(name, b"3")
    assert producer.flush(30) == 0
    assert sorted(str(message.value()) for message in reported[1:]) == ["b'1'", "b'2'", "b'3'"]
    assert codes(reported[1:]) == [GONE] * 3
    for message in reported[1:]:
        assert f"the channel {name!r} was deleted: create another producer" in str(message.error())
        assert (message.topic(), message.error().fatal()) == (name, True)
    assert error_code_of(producer.close) == GONE
    if recreated:
        assert delivered_to_a_new_channel(site, name)


def delivered_to_a_new_channel(site: Facade, name: str) -> bool:
    with site.producer() as producer:
        producer.produce(name, b"new", partition=0)
    with site.consumer() as reader:
        reader.assign([TopicPartition(name, 0, 0)])
        return [message.value() for message in poll_messages(reader, 1)] == [b"new"]


def test_a_batch_of_a_deleted_channel_fails_at_once(site: Facade) -> None:
    name, reported = site.channel(delivery="exactly_once"), list[Message]()
    producer = site.producer(on_delivery=recording(reported))
    producer.produce(name, b"0")
    until(lambda: producer.poll(1))
    site.gateway.channel(name).delete(force=True)
    producer.produce(name, b"1")
    assert error_code_of(producer.flush, 30) == GONE
    assert [message.error() and message.error().code() for message in reported] == [None, GONE]
    assert error_code_of(producer.close) == GONE


def test_the_next_batch_of_a_recreated_channel_fails_at_once(site: Facade) -> None:
    name, reported = site.channel(delivery="exactly_once"), list[Message]()
    producer = site.producer(on_delivery=recording(reported))
    producer.produce(name, b"0")
    assert producer.flush(30) == 0
    site.gateway.channel(name).delete(force=True)
    site.gateway.channel(name, format="bytes", delivery="exactly_once")
    producer.produce(name, b"1")
    assert error_code_of(producer.flush, 30) == GONE
    assert codes(reported[1:]) == [GONE]
    assert error_code_of(producer.close) == GONE


@pytest.mark.sample
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("method", ["flush", "close"])
def test_messages_in_a_topic_that_was_created_again_raise(
    site: Facade, topics: Topics, method: str, delivery: str
) -> None:
    name = site.channel(delivery=delivery)
    producer = site.producer()
    producer.produce(name, b"0")
    assert producer.flush(30) == 0
    connection = site.gateway.channel(name).connection("write")
    topics.create_again(connection.topic_name, connection.partitions)
    producer.produce(name, b"1")
    assert error_code_of(getattr(producer, method)) == GONE
    assert error_code_of(producer.close) == GONE
    assert [endpoint.state for endpoint in site.gateway.channel(name).endpoints()] == ["error"]


@pytest.mark.long
def test_the_other_channels_of_a_producer_go_on(site: Facade) -> None:
    deleted, other, reported = site.channel(), site.channel(), list[Message]()
    producer = site.producer(
        **{"on_delivery": recording(reported), "message.timeout.ms": 15_000, "linger.ms": 0}
    )
    for name in (deleted, other):
        producer.produce(name, b"0")
    assert producer.flush(30) == 0
    site.gateway.channel(deleted).delete(force=True)
    producer.produce(deleted, b"1")
    del reported[:]

    def failed() -> list[Message]:
        return [message for message in reported if message.topic() == deleted]

    until(lambda: produced(producer, other) and failed())
    # It was in the queue that the channels share, until it timed out.
    (last,) = failed()
    assert codes([last]) == [GONE]
    assert f"the channel {deleted!r} was deleted" in str(last.error())
    reported.remove(last)
    assert reported
    assert all(message.error() is None for message in reported)
    assert error_code_of(producer.close) == GONE


def produced(producer: Producer, name: str) -> bool:
    """Produce a message, and call the delivery callbacks of some."""
    producer.produce(name, b"x")
    return producer.poll(0.1) > 0
