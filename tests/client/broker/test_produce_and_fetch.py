"""Messages by pykafka's Broker: produce, fetch, offset limits, metadata."""

import datetime as dt
import signal
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from broker_calls import broker_at, encode, fetch, fetch_offset, produce_values
from faults import AS_SIGNALS, at_call, interrupted_at_call, interrupted_in_report
from relay import Relay
from sluiceway import Channel, Gateway, Retention
from sluiceway.broker import (
    Broker,
    CompressionType,
    Message,
    OffsetType,
    PartitionFetchRequest,
    PartitionOffsetRequest,
    ProduceRequest,
    produce,
)
from sluiceway.broker.exceptions import (
    InvalidMessageError,
    InvalidTopic,
    MessageSizeTooLarge,
    OffsetOutOfRangeError,
    SocketDisconnectedError,
    UnknownTopicOrPartition,
)
from sluiceway.errors import KafkaUnavailable, OptionError
from sluiceway.kafka.consumer import MessageStream
from topics import Topics, readings
from waiting import until

NewChannel = Callable[..., Channel]


@pytest.fixture
def channel(new_channel: NewChannel) -> Channel:
    """A channel with unlimited retention, as some messages have old timestamps."""
    return new_channel(partitions=2, retention=Retention(ms=-1))


def values(response: Any) -> list[bytes | None]:
    return [message.value for message in response.messages]


def test_produced_messages_are_fetched_unchanged(broker: Broker, channel: Channel) -> None:
    sent = encode(channel, 5)
    request = ProduceRequest(compression_type=CompressionType.GZIP, required_acks=-1)
    moment = dt.datetime(2020, 1, 2, tzinfo=dt.UTC)
    for partition, value in enumerate(sent[:2]):
        message = Message(value, partition_key=b"k", timestamp=moment)
        request.add_message(message, channel.name.encode(), partition)
    assert request.message_count() == 2
    response = broker.produce_messages(request)
    assert response is not None
    assert {
        p: (reported.err, reported.offset) for p, reported in response.topics[channel.name].items()
    } == {
        0: (0, 0),
        1: (0, 0),
    }
    assert produce_values(broker, channel, sent[2:]).offset == 1

    reported = fetch(broker, channel, min_bytes=sum(map(len, sent)) - len(sent[1]))
    assert (reported.err, values(reported)) == (0, [sent[0], *sent[2:]])
    assert reported.max_offset == 4
    first = reported.messages[0]
    assert (first.offset, first.partition_id, first.partition_key) == (0, 0, b"k")
    assert first.timestamp_dt == moment
    # Native readers read them as records.
    with channel.reader(until="now") as reader:
        assert sorted(record["id"] for record in reader) == [0, 1, 2, 3, 4]


@pytest.mark.long
def test_a_fetch_begins_at_its_offset_and_ends_at_max_bytes(
    broker: Broker, channel: Channel
) -> None:
    sent = encode(channel, 50)
    produce_values(broker, channel, sent)
    three = sum(map(len, sent[7:10]))
    assert values(fetch(broker, channel, 7, max_bytes=three)) == sent[7:10]
    # The next offset, a step ahead, a step back, and another one.
    assert values(fetch(broker, channel, 10, max_bytes=1)) == sent[10:11]
    assert values(fetch(broker, channel, 13, max_bytes=len(sent[13]))) == sent[13:14]
    assert values(fetch(broker, channel, 8, max_bytes=1)) == sent[8:9]
    assert values(fetch(broker, channel, 40)) == sent[40:]
    reported = fetch(broker, channel, 50, timeout=0)
    assert (values(reported), reported.max_offset, reported.err) == ([], 50, 0)


@pytest.mark.parametrize(
    ("owner", "name", "doing"),
    [(MessageStream, "poll", "fetching"), (produce, "run_callbacks", "producing")],
)
def test_a_signal_handler_that_interrupts_a_request_can_neither_repeat_it_nor_close(
    broker: Broker, channel: Channel, owner: object, name: str, doing: str
) -> None:
    (value,) = encode(channel, 1)
    produce_values(broker, channel, [value])
    requests = {
        "fetching": lambda: fetch(broker, channel),
        "producing": lambda: produce_values(broker, channel, [value], partition=1),
    }
    refused: list[OptionError] = []

    def handle(*_: object) -> None:
        for work in (requests[doing], broker.close):
            with pytest.raises(OptionError, match=f"this thread is {doing} already") as raised:
                work()
            refused.append(raised.value)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with at_call(owner, name, lambda *_, **__: signal.raise_signal(signal.SIGUSR1)):
            assert requests[doing]().err == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) >= 2
    assert values(fetch(broker, channel)) == [value]


@pytest.mark.long
def test_several_partitions_of_several_channels_are_fetched_together(
    broker: Broker, new_channel: NewChannel
) -> None:
    channels = [new_channel(partitions=2) for _ in range(2)]
    requests, sent = [], {}
    for channel in channels:
        for partition in (0, 1):
            sent[channel.name, partition] = encode(channel, 3, first=10 * partition)
            produce_values(broker, channel, sent[channel.name, partition], partition)
            requests.append(PartitionFetchRequest(channel.name, partition, 0))
    everything = sum(len(value) for part in sent.values() for value in part)
    response = broker.fetch_messages(requests, min_bytes=everything)
    assert {
        (channel.name, p): values(response.topics[channel.name][p])
        for channel in channels
        for p in (0, 1)
    } == sent


def test_a_fetch_waits_for_min_bytes_or_its_timeout(
    broker: Broker, channel: Channel, gateway_url: str
) -> None:
    sent = encode(channel, 2)
    produce_values(broker, channel, sent[:1])
    assert values(fetch(broker, channel, timeout=60_000, min_bytes=1)) == sent[:1]
    begun_s = time.monotonic()
    assert values(fetch(broker, channel, timeout=1000, min_bytes=10_000)) == sent[:1]
    assert time.monotonic() - begun_s >= 1
    # It waits for more messages, after one message and without any.
    with ThreadPoolExecutor() as threads, broker_at(gateway_url) as another:
        both = threads.submit(
            fetch, broker, channel, timeout=60_000, min_bytes=len(sent[0] + sent[1])
        )
        second = threads.submit(fetch, another, channel, 1, timeout=60_000)
        produce_values(broker, channel, sent[1:])
        assert values(both.result()) == sent
        assert values(second.result()) == sent[1:]


@pytest.mark.long
def test_threads_that_share_a_broker_produce_each_message_once(
    gateway_url: str, channel: Channel
) -> None:
    messages = encode(channel, 160)

    def produce(number: int) -> None:
        own = messages[10 * number : 10 * number + 10]
        assert produce_values(another, channel, own[:5], number % 2).err == 0
        assert produce_values(another, channel, own[5:], number % 2, required_acks=0) is None

    with broker_at(gateway_url) as another, ThreadPoolExecutor(16) as threads:
        for done in [threads.submit(produce, number) for number in range(16)]:
            done.result(60)
    with channel.reader() as reader:
        assert sorted(record["id"] for record in reader) == list(range(160))


def test_offset_limits_are_beginning_end_and_first_offset_not_older(
    broker: Broker, channel: Channel, topics: Topics
) -> None:
    assert fetch_offset(broker, channel, OffsetType.EARLIEST).offset == [0]
    assert fetch_offset(broker, channel, OffsetType.LATEST).offset == [0]
    request = ProduceRequest()
    for index, value in enumerate(encode(channel, 4)):
        request.add_message(Message(value, timestamp=1000 * (index + 1)), channel.name, 0)
    broker.produce_messages(request)
    topics.truncate(channel.status.topic.name, 0, before=1)
    assert fetch_offset(broker, channel, OffsetType.EARLIEST).offset == [1]
    assert fetch_offset(broker, channel, OffsetType.LATEST).offset == [4]
    assert fetch_offset(broker, channel, 2001).offset == [2]
    # No message is that young, so the result is the end.
    assert fetch_offset(broker, channel, 10_000).offset == [4]


def test_metadata_has_channels_partitions_and_kafkas_brokers(
    broker: Broker, channel: Channel
) -> None:
    reported = broker.request_metadata([channel.name.encode()])
    (kafka,) = reported.brokers.values()
    topic = reported.topics[channel.name.encode()]
    assert (topic.name, topic.err) == (channel.name.encode(), 0)
    assert {p: (part.leader, part.err) for p, part in topic.partitions.items()} == {
        0: (kafka.id, 0),
        1: (kafka.id, 0),
    }
    assert reported.cluster_id
    assert reported.controller_id == kafka.id
    assert channel.name in broker.request_metadata().topics
    # Without a channel, the gateway names the brokers.
    assert broker.request_metadata(["no-such-channel"]).brokers.keys() == {kafka.id}
    # A Broker for it uses the same gateway.
    with Broker.from_metadata(kafka, None, 20_000, 20_000) as named:
        assert (named.id, named.host, named.port) == (kafka.id, kafka.host, kafka.port)
        assert fetch_offset(named, channel, OffsetType.LATEST).offset == [0]


def test_unknown_topics_and_partitions_are_refused_one_by_one(
    broker: Broker, channel: Channel
) -> None:
    (sent,) = encode(channel, 1)
    produce_values(broker, channel, [sent])
    nowhere = [(b"no-such-channel", 0), (channel.name.encode(), 2), (channel.name.encode(), -1)]
    unknown = UnknownTopicOrPartition.ERROR_CODE
    places = [*nowhere, (channel.name.encode(), 0)]
    response: Any = broker.fetch_messages([PartitionFetchRequest(t, p, 0) for t, p in places])
    assert [response.topics[t][p].err for t, p in places] == [unknown, unknown, unknown, 0]
    assert values(response.topics[channel.name][0]) == [sent]
    assert "partitions 0 to 1, but not 2" in response.topics[channel.name][2].reason
    with pytest.raises(UnknownTopicOrPartition, match="no-such-channel, partition 0: "):
        response.check()
    response = broker.request_offset_limits([PartitionOffsetRequest(t, p, -1) for t, p in places])
    assert [response.topics[t][p].err for t, p in places] == [unknown, unknown, unknown, 0]
    request = ProduceRequest()
    for topic, partition in places:
        request.add_message(Message(sent), topic, partition)
    response = broker.produce_messages(request)
    assert [response.topics[t][p].err for t, p in places] == [unknown, unknown, unknown, 0]
    assert broker.request_metadata(["no-such-channel"]).topics["no-such-channel"].err == unknown


def test_an_offset_out_of_range_is_refused_and_the_next_fetch_works(
    broker: Broker, channel: Channel, topics: Topics
) -> None:
    sent = encode(channel, 3)
    produce_values(broker, channel, sent)
    topics.truncate(channel.status.topic.name, 0, before=1)
    for offset in (0, 4, -7):
        reported = fetch(broker, channel, offset)
        assert (reported.err, reported.messages) == (OffsetOutOfRangeError.ERROR_CODE, [])
    assert "its range is 1 to 3" in fetch(broker, channel, 4).reason
    assert values(fetch(broker, channel, 1)) == sent[1:]


def test_kafka_that_is_unavailable_during_a_fetch_is_a_lost_connection(
    broker: Broker, channel: Channel
) -> None:
    produce_values(broker, channel, encode(channel, 1))
    error = KafkaUnavailable("no broker answers")
    for step in ("watermarks", "poll", "add"):
        with (
            at_call(MessageStream, step, Mock(side_effect=error)),
            pytest.raises(SocketDisconnectedError, match="no broker answers"),
        ):
            fetch(broker, channel, offset=7)
        (message,) = fetch(broker, channel).messages
        assert message.offset == 0


# An interrupt within a generator's end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_an_interrupt_of_any_call_of_a_fetch_loses_no_message(
    broker: Broker, new_channel: NewChannel, delivery: str
) -> None:
    channel = new_channel(partitions=1, delivery=delivery)
    sent = encode(channel, 20)
    produce_values(broker, channel, sent)

    def fetch_all(offset: int) -> list[bytes | None]:
        return values(fetch(broker, channel, offset, min_bytes=sum(map(len, sent[offset:]))))

    number, offset = 1, 0
    # A fetch from a lower offset asks Kafka; one from a higher offset has messages left.
    while interrupted_at_call(number, partial(fetch_all, offset), AS_SIGNALS):
        offset = number % 3
        assert fetch_all(offset) == sent[offset:]
        number += 23
    assert number > 100
    # A refused partition is dropped.
    number = 1
    while interrupted_at_call(number, partial(fetch, broker, channel, 99), AS_SIGNALS):
        assert fetch_all(0) == sent
        number += 7
    assert number > 50


def test_new_partitions_of_a_channel_are_found(broker: Broker, channel: Channel) -> None:
    assert fetch_offset(broker, channel, OffsetType.LATEST, 2).err
    channel.update(partitions=3)
    assert fetch_offset(broker, channel, OffsetType.LATEST, 2).offset == [0]


def test_a_recreated_channel_is_another_one(
    broker: Broker, channel: Channel, gateway_url: str
) -> None:
    produce_values(broker, channel, encode(channel, 3))
    assert len(fetch(broker, channel).messages) == 3
    channel.delete(force=True)
    # This also ends a long fetch.
    assert fetch(broker, channel, 3, timeout=60_000).err == UnknownTopicOrPartition.ERROR_CODE
    with Gateway(gateway_url) as gateway:
        anew = gateway.channel(channel.name, channel.schema)
        sent = encode(anew, 1)
        produce_values(broker, anew, sent)
        assert values(fetch(broker, anew)) == sent


def test_undecodable_messages_are_refused_with_their_partition(
    broker: Broker, channel: Channel
) -> None:
    good, other = encode(channel, 2)
    bad = [b"plain", b"", None, b"\x00\xff\xff\xff\xff" + good[5:]]
    for value in bad:
        request = ProduceRequest()
        request.add_message(Message(good), channel.name, 0)
        request.add_message(Message(value), channel.name, 0)
        request.add_message(Message(other), channel.name, 1)
        response = broker.produce_messages(request)
        assert response is not None
        reported = response.topics[channel.name]
        assert reported[0].err == InvalidMessageError.ERROR_CODE
        assert reported[0].reason.startswith("message 1: ")
        assert reported[1].err == 0
    assert fetch_offset(broker, channel, OffsetType.LATEST, 0).offset == [0]
    assert fetch_offset(broker, channel, OffsetType.LATEST, 1).offset == [len(bad)]


@pytest.mark.parametrize("reconnected", [False, True])
def test_messages_with_a_new_schema_are_accepted(
    broker: Broker, channel: Channel, reconnected: bool
) -> None:
    produce_values(broker, channel, encode(channel, 1))
    if reconnected:
        broker.connect()
    newer = channel.schema.definition | {}
    field = {"name": "note", "type": ["null", "string"], "default": None}
    newer["fields"] = [*newer["fields"], field]
    channel.update(schema=newer)
    (old,) = encode(channel, 1)
    assert produce_values(broker, channel, [old + b"\x00"]).err == 0


def test_a_message_that_is_too_large_is_refused(broker: Broker, new_channel: NewChannel) -> None:
    channel = new_channel(config={"max.message.bytes": "2000"})
    reported = produce_values(broker, channel, [encode(channel, 1)[0] + b"x" * 3000])
    assert reported.err == MessageSizeTooLarge.ERROR_CODE
    assert "the limit of the channel is 2,000" in reported.reason
    channel.update(config={"max.message.bytes": "20000"})
    # Kafka's brokers may learn the new limit a moment later.
    until(lambda: produce_values(broker, channel, [encode(channel, 1)[0] + b"x" * 3000]).err == 0)


def test_a_closed_channel_refuses_messages(broker: Broker, channel: Channel) -> None:
    sent = encode(channel, 1)
    channel.close(force=True)
    assert produce_values(broker, channel, sent).err == InvalidTopic.ERROR_CODE


def test_without_acknowledgement_closing_waits_for_delivery(
    gateway_url: str, channel: Channel
) -> None:
    with broker_at(gateway_url) as broker:
        assert produce_values(broker, channel, encode(channel, 3), required_acks=0) is None
    assert channel.endpoints()[0].ends == {0: 3}


@pytest.mark.long
def test_closing_reports_the_ends_to_readers(gateway_url: str, channel: Channel) -> None:
    with broker_at(gateway_url) as broker:
        produce_values(broker, channel, encode(channel, 3))
        # The next heartbeat reports it.
        until(lambda: [(e.role, e.state) for e in channel.endpoints()] == [("writer", "started")])
    (writer,) = channel.endpoints()
    assert (writer.state, writer.ends) == ("closed", {0: 3})
    assert writer.counters["records"] == 3
    with channel.reader() as reader:
        assert list(reader) == readings(3)


@pytest.mark.long
def test_leaving_a_broker_by_an_exception_fails_its_writers(
    gateway_url: str, channel: Channel
) -> None:
    def work() -> None:
        with broker_at(gateway_url) as broker:
            produce_values(broker, channel, encode(channel, 3))
            raise RuntimeError("out of paper")

    with pytest.raises(RuntimeError):
        work()
    (writer,) = channel.endpoints()
    assert (writer.state, writer.cause) == ("error", "RuntimeError")


def test_a_channel_of_bytes_accepts_any_message(broker: Broker, gateway_url: str) -> None:
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(f"raw-{uuid.uuid4().hex[:8]}", format="bytes")
    sent: list[Any] = [b"plain", b"", None]
    assert produce_values(broker, channel, sent).err == 0
    reported = fetch(broker, channel, min_bytes=5)
    assert values(reported) == sent


@pytest.mark.long
def test_arrow_batches_pass_unchanged(broker: Broker, new_channel: NewChannel) -> None:
    channel = new_channel(format="arrow")
    with channel.writer() as writer:
        writer.write(readings(10))
    (message,) = fetch(broker, channel).messages
    assert produce_values(broker, channel, [message.value]).err == 0
    assert produce_values(broker, channel, [b"plain"]).err == InvalidMessageError.ERROR_CODE
    with channel.reader(until="now") as reader:
        assert len(list(reader)) == 20


def _compressed(compression_type: int) -> ProduceRequest:
    request = ProduceRequest(compression_type)
    request.add_message(Message(b""), "a", 0)
    return request


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda b: b.fetch_messages([PartitionFetchRequest(7, 0, 0)]), "name of a topic"),
        (lambda b: b.fetch_messages([PartitionFetchRequest("a", "0", 0)]), "partition_id is '0'"),
        (lambda b: b.fetch_messages([PartitionFetchRequest(b"\xff", 0, 0)]), "UTF-8"),
        (
            lambda b: b.request_offset_limits([PartitionOffsetRequest("a", 0, -3)]),
            "offsets_before is -3",
        ),
        (lambda b: b.produce_messages(_compressed(9)), "compression_type is 9"),
        (lambda b: b.produce_messages(ProduceRequest(timeout=0)), "timeout is 0"),
        (lambda b: b.fetch_messages([], timeout=-1), "timeout is -1"),
        (lambda b: b.fetch_messages([], min_bytes="1"), "min_bytes is '1'"),
        (lambda _: Message(b"", timestamp="now"), "timestamp is 'now'"),
    ],
)
def test_invalid_arguments_raise(
    broker: Broker, ask: Callable[[Broker], object], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        ask(broker)


@pytest.mark.long
@pytest.mark.parametrize("acks", [0, -1])
def test_an_interrupt_within_a_delivery_report_ends_the_call(
    gateway_url: str, channel: Channel, acks: int
) -> None:
    broker = broker_at(gateway_url)
    sent = encode(channel, 100)
    with interrupted_in_report():
        produce_values(broker, channel, sent, required_acks=acks)
        broker.close()
    broker.close()
    (writer,) = channel.endpoints()
    if acks:
        assert (writer.state, writer.ends) == ("closed", {0: 100})
    else:
        # The interrupt ended the wait for acknowledgements.
        cause = "KeyboardInterrupt: the program was interrupted"
        assert (writer.state, writer.cause) == ("error", cause)


def test_an_interrupted_close_raises_the_interrupt_also_if_writers_cannot_be_reported(
    gateway_url: str, channel: Channel
) -> None:
    with closing(Relay(int(gateway_url.rpartition(":")[2]))) as relay:
        broker = broker_at(relay.url, socket_timeout_ms=2_000)
        # The close gets the delivery report.
        produce_values(broker, channel, encode(channel, 1), required_acks=0)
        relay.cut()
        with interrupted_in_report():
            broker.close()
        relay.restore()
        until(lambda: [writer.state for writer in channel.endpoints()] == ["error"])


def test_new_partitions_are_read_to_their_ends(gateway_url: str, new_channel: NewChannel) -> None:
    channel = new_channel()
    with broker_at(gateway_url) as broker:
        produce_values(broker, channel, encode(channel, 1))
        channel.update(partitions=2)
        assert produce_values(broker, channel, encode(channel, 1, 1), partition=1).err == 0
    with channel.reader() as reader:
        assert len(list(reader)) == 2


def test_refused_messages_without_acknowledgement_fail_the_writer(
    gateway_url: str, channel: Channel
) -> None:
    with broker_at(gateway_url) as broker:
        produce_values(broker, channel, encode(channel, 1), required_acks=0)
        produce_values(broker, channel, [b"plain"], required_acks=0)
    (writer,) = channel.endpoints()
    assert writer.state == "error"
    assert "must begin with" in str(writer.cause)


def test_lost_messages_without_acknowledgement_fail_the_writer(
    gateway_url: str, topics: Topics
) -> None:
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(f"lost-{uuid.uuid4().hex[:8]}", format="bytes")
        with broker_at(gateway_url) as broker:
            produce_values(broker, channel, [b"x"], required_acks=0)
            topics.limit_messages(channel.status.topic.name)
            produce_values(broker, channel, [b"x" * 5000, b"y" * 5000], required_acks=0)
        (writer,) = channel.endpoints()
        assert writer.state == "error"
        assert "MSG_SIZE_TOO_LARGE" in str(writer.cause)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_messages_in_a_topic_that_was_created_again_are_not_acknowledged(
    gateway_url: str, new_channel: NewChannel, topics: Topics, delivery: str
) -> None:
    channel = new_channel(delivery=delivery)
    sent = encode(channel, 1)
    with broker_at(gateway_url) as broker:
        assert produce_values(broker, channel, sent).err == 0
        connection = channel.connection("write")
        topics.create_again(connection.topic_name, connection.partitions)
        for _ in range(2):
            response = produce_values(broker, channel, sent)
            assert response.err == UnknownTopicOrPartition.ERROR_CODE
        assert "is not the one that was opened" in response.reason
    (writer,) = channel.endpoints()
    assert (writer.state, writer.ends) == ("error", None)
    if delivery == "exactly_once":
        assert [event.kind for event in channel.commits().events].count("commit") == 1


def test_the_end_of_messages_without_acknowledgement_is_not_that_of_another_topic(
    gateway_url: str, channel: Channel, topics: Topics
) -> None:
    with broker_at(gateway_url) as broker:
        produce_values(broker, channel, encode(channel, 1))
        connection = channel.connection("write")
        topics.create_again(connection.topic_name, connection.partitions)
        produce_values(broker, channel, encode(channel, 3), required_acks=0)
    (writer,) = channel.endpoints()
    assert (writer.state, writer.ends) == ("error", None)
    assert "is not the one that was opened" in str(writer.cause)
