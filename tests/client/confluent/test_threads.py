"""Threads that share a Consumer or Producer of sluiceway.confluent."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from confluent_kafka import KafkaError, Message

from confluent_facade import Facade, at
from sluiceway.confluent import Consumer
from waiting import until

THREADS = 16


@pytest.fixture
def name(site: Facade) -> str:
    return site.channel()


def in_threads(work: Callable[[int], object]) -> None:
    together = threading.Barrier(THREADS)

    def run(number: int) -> None:
        together.wait(60)
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(run, number) for number in range(THREADS)]:
            done.result(120)


@pytest.mark.long
def test_threads_produce_poll_and_flush_and_each_message_is_delivered_and_reported_once(
    site: Facade, name: str
) -> None:
    reported: list[bytes] = []

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None
        reported.append(message.value() or b"")

    producer = site.producer()

    def work(number: int) -> None:
        for index in range(100):
            producer.produce(name, b"%d" % (100 * number + index), on_delivery=note)
            producer.poll(0)
            if index % 50 == 0:
                producer.flush()

    in_threads(work)
    producer.close()
    wanted = sorted(b"%d" % number for number in range(100 * THREADS))
    assert sorted(reported) == wanted
    with site.gateway.channel(name).reader() as reader:
        assert sorted(record["value"] for record in reader) == wanted


def test_a_message_produced_during_close_is_delivered_or_refused(site: Facade, name: str) -> None:
    producer = site.producer()
    numbers = count()
    produced: list[int] = []

    def work(thread: int) -> None:
        if thread == 0:
            until(lambda: len(produced) > 2000)
            producer.close()
            return
        while True:
            number = next(numbers)
            try:
                producer.produce(name, b"%d" % number)
            except RuntimeError as error:
                assert str(error) == "Producer has been closed"  # noqa: PT017
                return
            except BufferError:
                continue
            produced.append(number)

    in_threads(work)
    with site.gateway.channel(name).reader() as reader:
        assert sorted(int(record["value"] or b"") for record in reader) == sorted(produced)


@pytest.mark.sample
@pytest.mark.parametrize("subscribes", [True, False])
def test_threads_that_share_a_consumer_get_each_message_once_and_close_it(
    site: Facade, consumer: Callable[..., Consumer], subscribes: bool
) -> None:
    name = site.channel(filled=1000)
    reader = consumer(**{"auto.offset.reset": "earliest"})
    if subscribes:
        reader.subscribe([name])
    else:
        reader.assign([at(name, partition, 0) for partition in range(2)])
    values: list[bytes] = []

    def work(number: int) -> None:
        if number == 0:
            until(lambda: len(values) >= 2000)
            reader.commit(asynchronous=False)
            reader.close()
            return
        while True:
            try:
                messages = [reader.poll(0.2)] if number % 2 else reader.consume(7, 0.2)
            except RuntimeError as error:
                assert str(error) == "Consumer closed"  # noqa: PT017
                return
            for message in messages:
                if message is not None:
                    assert message.error() is None
                    values.append(message.value() or b"")

    in_threads(work)
    assert sorted(values) == sorted(b"%d-%d" % (p, n) for p in range(2) for n in range(1000))
    kept = site.gateway.channel(name).committed("g")
    assert {p: place.offset for p, place in kept.items()} == {0: 1000, 1: 1000}
