"""sluiceway.confluent.Producer: delivery, reports, refusals."""

import collections
import gc
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from confluent_facade import NUMBER, Facade, KafkaError, offsets, raised, taken
from sluiceway.confluent import Message, Producer, TopicPartition

Told = list[tuple[int | None, str, int, int]]


@pytest.fixture
def name(site: Facade) -> str:
    return site.channel()


def noting(told: Told) -> Any:
    def note(error: KafkaError | None, message: Message) -> None:
        code = None if error is None else error.code()
        told.append((code, message.topic(), message.partition(), message.offset()))

    return note


def test_messages_are_delivered_and_reports_have_the_channels_name(site: Facade, name: str) -> None:
    told: Told = []
    with site.producer() as producer:
        producer.produce(name, b"one", b"key", 1, on_delivery=noting(told), headers={"h": b"1"})
        producer.produce(name, value="two", partition=1, callback=noting(told), timestamp=1234567)
        producer.produce(name, None, "key", 1)
        assert len(producer) >= 1
        assert producer.flush(30) == 0
        assert len(producer) == 0
        assert told == [(None, name, 1, 0), (None, name, 1, 1)]
        assert producer.poll(0) == 0
    with site.consumer() as reader:
        reader.assign([TopicPartition(name, 1, 0)])
        found = taken(reader, 3)
    assert [message.value() for message in found] == [b"one", b"two", None]
    assert [message.key() for message in found] == [b"key", None, b"key"]
    assert found[0].headers() == [("h", b"1")]
    assert found[1].timestamp()[1] == 1234567


def test_polling_calls_back(site: Facade, name: str) -> None:
    told: Told = []
    with site.producer(on_delivery=noting(told)) as producer:
        assert producer.poll(0) == 0
        producer.produce(name, b"1", partition=0)
        while not told:
            producer.poll(1)
    assert told == [(None, name, 0, 0)]


def test_a_later_callback_gets_delivery_reports_in_order(site: Facade, name: str) -> None:
    told: Told = []
    with site.producer() as producer:
        for number in range(20):
            producer.produce(
                name, b"%d" % number, None, 0, **({"callback": noting(told)} if number > 9 else {})
            )
        producer.flush()
    assert told == [(None, name, 0, number) for number in range(10, 20)]


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
    (writer,) = (each for each in channel.endpoints() if each.role == "writer")
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


def test_an_abandoned_producer_is_closed(site: Facade, name: str) -> None:
    producer = site.producer()
    producer.produce(name, b"last words")
    del producer
    gc.collect()
    with site.gateway.channel(name).reader() as reader:
        assert list(reader) == [{"value": b"last words"}]


def test_a_full_queue_raises_and_accepts_messages_after_a_poll(site: Facade, name: str) -> None:
    config = {"queue.buffering.max.messages": 10, "linger.ms": 200}
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
    told: Told = []
    producer = site.producer(**{"linger.ms": 60_000})
    producer.produce(name, b"x", partition=0, on_delivery=noting(told))
    producer.purge()
    assert producer.flush(30) == 0
    assert [code for code, *_ in told] == [KafkaError._PURGE_QUEUE]
    producer.close()
    (writer,) = site.gateway.channel(name).endpoints()
    assert writer.state == "error"
    assert "_PURGE_QUEUE" in str(writer.cause)


def test_a_message_without_a_value_is_refused_as_by_hpes_client(site: Facade, name: str) -> None:
    told: Told = []
    with site.producer(**{"sluiceway.behaves.like": "hpe"}) as producer:
        producer.produce(name, None, on_delivery=noting(told))
        assert (told, len(producer)) == ([], 1)
        assert producer.poll(0) == 1
        assert [(code, topic) for code, topic, *_ in told] == [(KafkaError._INVALID_ARG, name)]
    assert site.gateway.channel(name).reader(until="now").finished


def test_avro_channels_accept_only_their_own_messages(site: Facade) -> None:
    name = site.typed()
    (schema,) = site.gateway.channel(name).schemas()
    mine = b"\0" + schema.id.to_bytes(4, "big") + b"\x0c"
    with site.producer() as producer:
        producer.produce(name, mine)
        for wrong in (b"\0\0\0\x7f\xff\x0c", b"\1" + mine[1:], b"", b"{}", None, "text"):
            assert raised(producer.produce, name, wrong) == KafkaError._INVALID_ARG
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


def test_arrow_channels_accept_only_their_own_messages(site: Facade) -> None:
    name = site.typed("arrow")
    with site.consumer() as reader:
        reader.assign([TopicPartition(name, 0, 0)])
        (message,) = taken(reader, 1)
    with site.producer() as producer:
        producer.produce(name, message.value())
        assert raised(producer.produce, name, b"not one") == KafkaError._INVALID_ARG
    with site.gateway.channel(name).reader(until="now") as records:
        assert [record["n"] for record in records] == [5, 5]


def test_invalid_messages_raise(site: Facade, name: str) -> None:
    with site.producer() as producer:
        assert raised(producer.produce, "nowhere", b"x") == KafkaError.UNKNOWN_TOPIC_OR_PART
        producer.produce(name, b"x")
        producer.flush()
        assert raised(producer.produce, name, b"x", partition=9) == KafkaError._UNKNOWN_PARTITION
        for wrong in ({"value": 1}, {"partition": "1"}, {"on_delivery": 3}, {"headers": 3}):
            with pytest.raises(TypeError):
                producer.produce(name, **wrong)
    channel = site.gateway.channel(name)
    channel.close(force=True)
    with site.producer() as late:
        assert raised(late.produce, name, b"x") == KafkaError.POLICY_VIOLATION
    for call in (lambda: late.produce(name, b"x"), late.poll, late.flush, late.purge):
        with pytest.raises(RuntimeError, match="Producer closed"):
            call()
    assert late.close() is True


def test_keys_select_the_partitions_of_native_writers(site: Facade, name: str) -> None:
    with site.producer() as producer:
        for number in range(10):
            producer.produce(name, b"p", b"key-%d" % number)
    with site.gateway.channel(name).writer(key=lambda record: record["value"]) as writer:
        writer.write({"value": b"key-%d" % number} for number in range(10))
    with site.consumer() as reader:
        reader.assign([TopicPartition(name, p, 0) for p in (0, 1)])
        found = taken(reader, 20)
    places = {(message.key(), message.partition()) for message in found}
    assert len(places) == 10
    assert sum(map(len, offsets(found).values())) == 20


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
        channel.update(partitions=3)
        producer._channels.producer.list_topics(producer._by_name[name].topic, timeout=20)
        producer.produce(name, b"2", partition=2)
    with site.gateway.channel(name).reader() as reader:
        assert sorted(record["value"] for record in reader) == [b"0", b"2"]


def test_threads_share_one_writer_and_each_gets_its_own_reports(site: Facade, name: str) -> None:
    told: dict[int, set[int]] = {number: set() for number in range(4)}
    producer = site.producer()
    begin = threading.Barrier(4)

    def work(number: int) -> None:
        def note(error: KafkaError | None, message: Message) -> None:
            told[number].add(int(message.value() or b"") // 1000)

        begin.wait(20)
        for each in range(500):
            producer.produce(name, b"%d" % (1000 * number + each), on_delivery=note)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(work, number) for number in range(4)]:
                done.result(60)
    finally:
        sys.setswitchinterval(interval_s)
    producer.close()
    assert told == {number: {number} for number in range(4)}
    (writer,) = site.gateway.channel(name).endpoints()
    assert sum((writer.ends or {}).values()) == 2000


def test_polling_before_the_first_message_waits(site: Facade, name: str) -> None:
    with site.producer() as producer:
        began_s = time.monotonic()
        assert producer.poll(0.2) == 0
        assert time.monotonic() - began_s >= 0.2
