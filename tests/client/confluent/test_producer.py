"""sluiceway.confluent.Producer: delivery, reports, refusals."""

import asyncio
import base64
import collections
import cProfile
import gc
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from confluent_facade import NUMBER, Facade, KafkaError, error_code_of, offsets, poll_messages
from faults import failing_call, no_threads
from sluiceway.confluent import Message, Producer, TopicPartition
from sluiceway.confluent.aio import AIOProducer
from sluiceway.confluent.local_queue import Deliveries
from sluiceway.confluent.schema_registry import SchemaRegistryClient
from sluiceway.confluent.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from sluiceway.confluent.serialization import MessageField, SerializationContext
from sluiceway.errors import SluicewayTimeout
from topics import Topics
from waiting import until

Reported = list[tuple[int | None, str, int | None, int | None]]


@pytest.fixture
def name(site: Facade) -> str:
    return site.channel()


def noting(reported: Reported) -> Any:
    def note(error: KafkaError | None, message: Message) -> None:
        code = None if error is None else error.code()
        reported.append((code, message.topic(), message.partition(), message.offset()))

    return note


def test_messages_are_delivered_and_reports_have_the_channels_name(site: Facade, name: str) -> None:
    reported: Reported = []
    with site.producer() as producer:
        producer.produce(name, b"one", b"key", 1, on_delivery=noting(reported), headers={"h": b"1"})
        producer.produce(
            name, value="two", partition=1, callback=noting(reported), timestamp=1234567
        )
        producer.produce(name, None, "key", 1)
        assert len(producer) >= 1
        assert producer.flush(30) == 0
        assert len(producer) == 0
        assert reported == [(None, name, 1, 0), (None, name, 1, 1)]
        assert producer.poll(0) == 0
    with site.consumer() as reader:
        reader.assign([TopicPartition(name, 1, 0)])
        messages = poll_messages(reader, 3)
    assert [message.value() for message in messages] == [b"one", b"two", None]
    assert [message.key() for message in messages] == [b"key", None, b"key"]
    assert messages[0].headers() == [("h", b"1")]
    assert messages[1].timestamp()[1] == 1234567


def test_polling_calls_back(site: Facade, name: str) -> None:
    reported: Reported = []
    with site.producer(on_delivery=noting(reported)) as producer:
        assert producer.poll(0) == 0
        producer.produce(name, b"1", partition=0)
        while not reported:
            producer.poll(1)
    assert reported == [(None, name, 0, 0)]


def test_a_delivery_callback_may_poll_flush_and_produce(site: Facade, name: str) -> None:
    """librdkafka's binding ends the process if a callback's call runs others."""
    reported: Reported = []
    note = noting(reported)
    with site.producer() as producer:

        def again(error: KafkaError | None, message: Message) -> None:
            note(error, message)
            assert producer.poll(0) == 0
            assert producer.flush(10) > 0
            if message.value() == b"first":
                producer.produce(name, b"second", partition=0, on_delivery=again)

        for _ in range(20):
            producer.produce(name, b"first", partition=0, on_delivery=again)
        while producer.flush(10):
            pass
    assert sorted(offset for _, _, _, offset in reported) == list(range(40))


def test_a_later_callback_gets_delivery_reports_in_order(site: Facade, name: str) -> None:
    reported: Reported = []
    with site.producer() as producer:
        for number in range(20):
            producer.produce(
                name,
                b"%d" % number,
                None,
                0,
                **({"callback": noting(reported)} if number > 9 else {}),
            )
        producer.flush()
    assert reported == [(None, name, 0, number) for number in range(10, 20)]


def test_a_native_reader_finishes_after_the_producer_closes(site: Facade, name: str) -> None:
    channel = site.gateway.channel(name)
    with site.producer() as producer:
        for number in range(100):
            producer.produce(name, b"%d" % number)
        producer.flush()
        (writer,) = channel.wait_for(writers=1, state="started", timeout_s=20)
        assert writer.role == "writer"
    with channel.reader() as reader:
        assert sorted(int(record["value"]) for record in reader) == list(range(100))
    (writer,) = (endpoint for endpoint in channel.endpoints() if endpoint.role == "writer")
    assert (writer.state, sum((writer.ends or {}).values())) == ("closed", 100)


def test_leaving_a_producer_by_an_exception_fails_its_writer(site: Facade, name: str) -> None:
    def values() -> Iterator[bytes]:
        yield b"one"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), site.producer() as producer:
        collections.deque((producer.produce(name, value) for value in values()), maxlen=0)
    (writer,) = site.gateway.channel(name).endpoints()
    assert (writer.state, str(writer.cause)[:17]) == ("error", "ZeroDivisionError")
    assert producer.close() is True


def test_a_producer_whose_end_by_an_exception_was_interrupted_has_failed(
    site: Facade, name: str
) -> None:
    with (
        failing_call(Deliveries, "flush_or_fail", KeyboardInterrupt(), arrives=False),
        site.producer() as producer,
    ):
        producer.produce(name, b"one")
        assert producer.flush(30) == 0
        raise ZeroDivisionError
    producer.close()
    (writer,) = site.gateway.channel(name).endpoints()
    assert (writer.state, str(writer.cause)[:17]) == ("error", "ZeroDivisionError")


def test_an_abandoned_producer_is_closed(site: Facade, name: str) -> None:
    producer = site.producer()
    producer.produce(name, b"last words")
    del producer
    gc.collect()
    with site.gateway.channel(name).reader() as reader:
        assert list(reader) == [{"value": b"last words"}]


@pytest.mark.long
def test_an_abandoned_producer_calls_no_callback_of_its_program(
    site: Facade, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: collections.Counter[str] = collections.Counter()
    every = {"statistics.interval.ms": 50}
    producer = site.producer(stats_cb=lambda _: calls.update(["abandoned"]), **every)
    producer.produce(name, b"x")
    assert producer.flush(30) == 0
    with site.producer(stats_cb=lambda _: calls.update(["other"]), **every) as other:
        other.produce(name, b"x")
        # Both have the same interval, so events of the first one wait to be called.
        until(lambda: other.poll(0.1) < 0 or calls["other"] >= 3)
    called = calls["abandoned"]
    del producer
    gc.collect()
    with site.gateway.channel(name).reader() as reader:
        assert len(list(reader)) == 2, "both producers have reported their ends"
    assert calls["abandoned"] == called
    assert not [
        record
        for record in caplog.records
        # Kafka's client may log errors of earlier tests.
        if record.levelname == "ERROR" and record.name != "sluiceway.kafka"
    ]


def test_a_full_queue_raises_and_accepts_messages_after_a_poll(site: Facade, name: str) -> None:
    config = {"queue.buffering.max.messages": 10, "linger.ms": 60_000}
    with site.producer(**config) as producer:
        for _ in range(10):
            producer.produce(name, b"x", partition=0)
        with pytest.raises(BufferError):
            producer.produce(name, b"x", partition=0)
        assert len(producer) == 10
        assert producer.flush(30) == 0
        producer.produce(name, b"x", partition=0)
    assert site.gateway.channel(name).reader(until="now").end_offsets()[0] == 11


def test_purged_messages_have_failed_and_fail_the_writer(site: Facade, name: str) -> None:
    reported: Reported = []
    producer = site.producer(**{"linger.ms": 60_000})
    producer.produce(name, b"x", partition=0, on_delivery=noting(reported))
    assert producer.flush(30) == 0
    producer.produce(name, b"x", partition=0, on_delivery=noting(reported))
    producer.purge()
    assert producer.flush(30) == 0
    assert [code for code, *_ in reported] == [None, KafkaError._PURGE_QUEUE]
    producer.close()
    (writer,) = site.gateway.channel(name).endpoints()
    assert writer.state == "error"
    assert "_PURGE_QUEUE" in str(writer.cause)


def test_a_message_without_a_value_is_refused_as_by_hpes_client(site: Facade, name: str) -> None:
    reported: Reported = []
    with site.producer(**{"sluiceway.behaves.like": "hpe"}) as producer:
        producer.produce(name, None, on_delivery=noting(reported))
        assert (reported, len(producer)) == ([], 1)
        assert producer.poll(0) == 1
        assert [(code, topic) for code, topic, *_ in reported] == [(KafkaError._INVALID_ARG, name)]
    assert site.gateway.channel(name).reader(until="now").finished


def test_avro_channels_accept_only_their_own_messages(site: Facade) -> None:
    name = site.typed()
    (schema,) = site.gateway.channel(name).schemas()
    mine = b"\0" + schema.id.to_bytes(4, "big") + b"\x0c"
    with site.producer() as producer:
        reported: Reported = []
        producer.produce(name, mine)
        producer.produce(name, b"{}", on_delivery=noting(reported))
        producer.flush()
        # The schema id is looked up in the background.
        producer.produce(name, b"\0\0\0\x7f\xff\x0c", on_delivery=noting(reported))
        producer.flush()
        assert reported == [(KafkaError._INVALID_ARG, name, None, None)] * 2
        for wrong in (b"\0\0\0\x7f\xff\x0c", b"\1" + mine[1:], b"", b"{}", None, "text"):
            assert error_code_of(producer.produce, name, wrong) == KafkaError._INVALID_ARG
        with pytest.raises(TypeError):
            producer.produce(name, 6)  # type: ignore[arg-type]
        newer = {**NUMBER, "fields": [*NUMBER["fields"], {"name": "m", "type": ["null", "int"]}]}
        newer["fields"][1]["default"] = None
        channel = site.gateway.channel(name)
        channel.update(schema=newer)
        second = channel.schemas()[-1].id
        producer.produce(name, b"\0" + second.to_bytes(4, "big") + b"\x0e\x00")
    with site.gateway.channel(name).reader() as reader:
        assert [record["n"] for record in reader] == [5, 6, 7]


def test_json_channels_accept_json_objects(site: Facade) -> None:
    name = site.typed("json")
    with site.producer() as producer:
        producer.produce(name, b' {"n":6}')
        producer.flush()
        producer.produce(name, b'\0\0\0\x7f\xff{"n":7}')
        for wrong in (b"5", b"", None, "text"):
            assert error_code_of(producer.produce, name, wrong) == KafkaError._INVALID_ARG
    with site.gateway.channel(name).reader() as reader:
        assert [record["n"] for record in reader] == [5, 6, 7]


def test_protobuf_channels_accept_their_messages(site: Facade, gateway_url: str) -> None:
    name = site.typed("protobuf")
    context = SerializationContext(name, MessageField.VALUE)
    with SchemaRegistryClient({"url": f"{gateway_url}/registry"}) as registry:
        latest = registry.get_latest_version(f"{name}-value", "serialized").schema.schema_str
        pool = DescriptorPool()
        file = pool.AddSerializedFile(base64.b64decode(latest))
        number = GetMessageClass(file.message_types_by_name["N"])
        serialize = ProtobufSerializer(number, registry, {"auto.register.schemas": False})
        with site.producer() as producer:
            producer.produce(name, serialize(number(n=6), context))
            producer.flush()
            for wrong in (b"\x08\6", b"", None, "text"):
                assert error_code_of(producer.produce, name, wrong) == KafkaError._INVALID_ARG
        with site.consumer() as consumer:
            consumer.assign([TopicPartition(name, 0, 0)])
            values = [message.value() for message in poll_messages(consumer, 2)]
        deserialize = ProtobufDeserializer(number, {}, registry)
        assert [deserialize(value, context).n for value in values] == [5, 6]
    with site.gateway.channel(name).reader() as reader:
        assert [record["n"] for record in reader] == [5, 6]


@pytest.mark.long
def test_arrow_channels_accept_only_their_own_messages(site: Facade) -> None:
    name = site.typed("arrow")
    with site.consumer() as reader:
        reader.assign([TopicPartition(name, 0, 0)])
        (message,) = poll_messages(reader, 1)
    with site.producer() as producer:
        producer.produce(name, message.value())
        producer.flush()
        assert error_code_of(producer.produce, name, b"not one") == KafkaError._INVALID_ARG
    with site.gateway.channel(name).reader(until="now") as records:
        assert [record["n"] for record in records] == [5, 5]


def test_invalid_messages_raise(site: Facade, name: str) -> None:
    with site.producer() as producer:
        for wrong in ({"value": 1}, {"partition": "1"}, {"on_delivery": 3}, {"headers": 3}):
            with pytest.raises(TypeError):
                producer.produce(name, **wrong)
        producer.produce(name, b"x")
        producer.flush()
        assert (
            error_code_of(producer.produce, name, b"x", partition=9)
            == KafkaError._UNKNOWN_PARTITION
        )
        for wrong in ({"value": 1}, {"partition": "1"}, {"on_delivery": 3}, {"headers": 3}):
            with pytest.raises(TypeError):
                producer.produce(name, **wrong)
    channel = site.gateway.channel(name)
    channel.close(force=True)
    reported: Reported = []
    with site.producer() as late:
        late.produce(name, b"x", on_delivery=noting(reported))
        late.flush()
    assert reported == [(KafkaError.POLICY_VIOLATION, name, None, None)]
    for call in (lambda: late.produce(name, b"x"), late.poll, late.flush, late.purge):
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            call()
    with late as entered:
        assert entered is late
    assert late.close() is True


@pytest.mark.long
def test_keys_select_the_partitions_of_native_writers(site: Facade, name: str) -> None:
    with site.producer() as producer:
        for number in range(10):
            producer.produce(name, b"p", b"key-%d" % number)
    with site.gateway.channel(name).writer(key=lambda record: record["value"]) as writer:
        writer.write({"value": b"key-%d" % number} for number in range(10))
    with site.consumer() as reader:
        reader.assign([TopicPartition(name, p, 0) for p in (0, 1)])
        messages = poll_messages(reader, 20)
    places = {(message.key(), message.partition()) for message in messages}
    assert len(places) == 10
    assert sum(map(len, offsets(messages).values())) == 20


def test_a_producer_without_messages_is_true(site: Facade) -> None:
    with site.producer() as producer:
        assert isinstance(producer, Producer)
        assert bool(producer)
        assert (len(producer), producer.flush(), producer.poll(0)) == (0, 0, 0)


def test_a_raising_callback_does_not_prevent_closing(site: Facade, name: str) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    producer = site.producer(on_delivery=fail)
    for number in range(3):
        producer.produce(name, b"%d" % number, partition=0)
    with pytest.raises(ZeroDivisionError):
        producer.close()
    (writer,) = site.gateway.channel(name).endpoints()
    assert (writer.state, writer.ends) == ("closed", {0: 3})


def test_end_offsets_include_new_partitions(site: Facade, name: str) -> None:
    channel = site.gateway.channel(name)
    with site.producer() as producer:
        producer.produce(name, b"0", partition=0)
        producer.flush()
        channel.update(partitions=3)

        def produces_to_the_new_partition() -> bool:
            # After a heartbeat, librdkafka requests the partitions.
            producer.poll(0)
            with suppress(KafkaException):
                producer.produce(name, b"2", partition=2)
                return True
            return False

        until(produces_to_the_new_partition)
    with site.gateway.channel(name).reader() as reader:
        assert sorted(record["value"] for record in reader) == [b"0", b"2"]


def test_threads_share_one_writer_and_each_gets_its_own_reports(site: Facade, name: str) -> None:
    reported: dict[int, set[int]] = {number: set() for number in range(4)}
    producer = site.producer()
    begin = threading.Barrier(4)

    def work(number: int) -> None:
        def note(error: KafkaError | None, message: Message) -> None:
            reported[number].add(int(message.value() or b"") // 1000)

        begin.wait(20)
        for index in range(500):
            producer.produce(name, b"%d" % (1000 * number + index), on_delivery=note)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(work, number) for number in range(4)]:
                done.result(60)
    finally:
        sys.setswitchinterval(interval_s)
    producer.close()
    assert reported == {number: {number} for number in range(4)}
    (writer,) = site.gateway.channel(name).endpoints()
    assert sum((writer.ends or {}).values()) == 2000


def test_polling_before_the_first_message_waits(site: Facade, name: str) -> None:
    with site.producer() as producer:
        began_s = time.monotonic()
        assert producer.poll(0.2) == 0
        assert time.monotonic() - began_s >= 0.2


def test_batches_are_produced_and_refused_messages_are_marked(site: Facade, name: str) -> None:
    reported: Reported = []
    other: Reported = []
    config = {"queue.buffering.max.messages": 3, "linger.ms": 60_000}
    with site.producer(**config) as producer:
        producer.produce(name, b"first", partition=0)
        producer.flush()
        batch: list[dict[str, Any]] = [
            {"value": b"1", "key": b"k", "partition": 1, "callback": noting(other)},
            {"value": "2"},
            {},
            {"value": b"too many"},
        ]
        assert producer.produce_batch(name, batch, partition=0, on_delivery=noting(reported)) == 3
        assert ["_error" in message for message in batch] == [False, False, False, True]
        assert batch[3]["_error"].code() == KafkaError._QUEUE_FULL
        producer.flush()
        assert (other, reported) == ([(None, name, 1, 0)], [(None, name, 0, 1), (None, name, 0, 2)])
        for wrong, text in (
            ({}, "messages must be a list"),
            ([{}, 1], "Message at index 1 must be a dict"),
            ([{"value": 1}], "Message value at index 0 must be bytes or str"),
            ([{"partition": "1"}], "Message partition at index 0 must be int"),
        ):
            with pytest.raises(TypeError, match=text):
                producer.produce_batch(name, wrong)  # type: ignore[arg-type]


def test_topics_are_listed_by_the_channels_names(site: Facade, name: str) -> None:
    with site.producer() as producer, site.consumer() as consumer:
        one = producer.list_topics(name, timeout=30)
        assert list(one.topics) == [name]
        assert (one.topics[name].topic, one.topics[name].error) == (name, None)
        assert list(one.topics[name].partitions) == [0, 1]
        assert one.topics[name].partitions[0].leader in one.brokers
        assert name in producer.list_topics(timeout=30).topics
        absent = producer.list_topics("nowhere", timeout=30).topics["nowhere"]
        assert absent.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert producer.cluster_id(30) == consumer.cluster_id(30) == one.cluster_id
        assert list(consumer.list_topics(name, timeout=30).topics[name].partitions) == [0, 1]


def test_a_message_without_a_thread_to_attach_its_channel_is_refused(
    site: Facade, name: str
) -> None:
    reported: Reported = []
    with site.producer() as producer:
        with no_threads("sluiceway-attach"), pytest.raises(RuntimeError, match="new thread"):
            producer.produce(name, b"one", partition=0)
        assert len(producer) == 0
        producer.produce(name, b"two", partition=0, on_delivery=noting(reported))
        assert producer.flush(30) == 0
    assert reported == [(None, name, 0, 0)]


@pytest.mark.long
def test_topics_are_listed_while_the_first_channel_has_failed(
    site: Facade, topics: Topics, name: str
) -> None:
    failed = site.gateway.channel(f"0-{uuid.uuid4().hex}", format="bytes")
    topics.delete(failed.status.topic.name)
    with suppress(SluicewayTimeout):
        failed.update(partitions=2, wait_s=0)
    until(lambda: failed.refresh().status.phase == "failed")
    with site.producer() as producer:
        assert name in producer.list_topics(timeout=30).topics
    failed.delete(force=True)


def test_partitioners_place_keys_as_librdkafka_does(site: Facade) -> None:
    name = site.channel(partitions=7)
    keys = [b"key-%d" % number for number in range(20)]
    connection = site.gateway.channel(name).connection("write")

    def places(producer: Any, topic: str) -> dict[bytes, int]:
        partitions: dict[bytes, int] = {}
        for key in keys:
            producer.produce(
                topic,
                b"",
                key,
                on_delivery=lambda _, m: partitions.update({m.key(): m.partition()}),
            )
        producer.flush(30)
        return partitions

    for partitioner in ("consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a"):
        plain = confluent_kafka.Producer({**connection.kafka, "partitioner": partitioner})
        with site.producer(partitioner=partitioner) as producer:
            assert places(producer, name) == places(plain, connection.topic_name), partitioner


def test_a_missing_channel_is_created_on_request(site: Facade) -> None:
    name = f"confluent-{uuid.uuid4().hex[:8]}"
    reported: Reported = []
    with site.producer(**{"allow.auto.create.topics": True}) as producer:
        producer.produce(name, b"x", on_delivery=noting(reported))
        assert producer.flush(30) == 0
    assert reported == [(None, name, 0, 0)]
    channel = site.gateway.channel(name)
    assert (channel.format, channel.partitions) == ("bytes", 1)


def test_confluent_kafkas_asynchronous_producer_runs_on_this_one(site: Facade, name: str) -> None:
    async def produce() -> list[Message]:
        producer = AIOProducer({"bootstrap.servers": site.url}, batch_size=10)
        waiting = [await producer.produce(name, b"%d" % n, partition=0) for n in range(25)]
        lost = await producer.produce("nowhere", b"x")
        await producer.flush()
        with pytest.raises(KafkaException, match="There is no channel 'nowhere'"):
            await lost
        delivered = [await message for message in waiting]
        await producer.close()
        return delivered

    delivered = asyncio.run(produce())
    assert [(message.topic(), message.offset()) for message in delivered] == [
        (name, n) for n in range(25)
    ]


def test_a_delivery_callback_is_released_after_its_last_call(site: Facade, name: str) -> None:
    class Owner:
        def delivered(self, error: KafkaError | None, message: Message) -> None:
            assert (error, message.topic()) == (None, name)

    with site.producer() as producer:
        for _ in range(2):
            owner = Owner()
            for _ in range(3):
                producer.produce(name, b"x", on_delivery=owner.delivered)
            producer.flush()
            released = weakref.ref(owner)
            del owner
            until(lambda: released() is None)  # noqa: B023


def is_librdkafka_called(send: Callable[[], object]) -> bool:
    """Send a message; was librdkafka's own method called in this thread?"""
    profile = cProfile.Profile()
    profile.runcall(send)
    called = {str(entry.code) for entry in profile.getstats()}
    return "<method 'produce' of 'cimpl.Producer' objects>" in called


def test_a_loop_of_messages_leaves_the_queue_once_the_channel_is_attached(
    site: Facade, name: str
) -> None:
    channel = site.gateway.channel(name)
    with site.producer() as producer:
        attached = False
        for number in range(450_000):
            send = partial(producer.produce, name, b"%d" % number, partition=0)
            if number % 100:
                send()
            elif is_librdkafka_called(send):
                break
            elif not attached:
                # A busy machine may take long for it, so fill the queue slowly.
                attached = channel.endpoints() != ()
        else:
            pytest.fail("every message went by the queue")
    with site.consumer() as reader:
        reader.assign([TopicPartition(name, 0, 0)])
        messages = poll_messages(reader, number + 1)
    assert [int(message.value() or b"") for message in messages] == list(range(number + 1))
