"""sluiceway.confluent.Producer without a gateway, and with errors of attaching."""

import contextlib
import gc
import logging
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from confluent_facade import Facade, KafkaError
from relay import Relay, reserve_port
from sluiceway.confluent import KafkaException, Message, Producer
from waiting import until

Reported = list[tuple[int, str]]


@pytest.fixture
def silent() -> Iterator[str]:
    """A gateway that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def noting(reported: Reported) -> Any:
    def note(error: KafkaError | None, message: Message) -> None:
        assert error is not None
        assert message.error().code() == error.code()
        reported.append((error.code(), error.str()))

    return note


def test_producing_and_polling_never_wait_for_a_silent_gateway(silent: str) -> None:
    producer = Producer({"bootstrap.servers": silent, "message.timeout.ms": 60_000})
    began_s = time.monotonic()
    for number in range(100):
        producer.produce("flights", b"x", str(number), headers={"h": "v"}, timestamp=1)
        assert producer.poll(0) == 0
    # Less than all timeouts.
    assert time.monotonic() - began_s < 20
    assert (len(producer), producer.flush(0.3)) == (100, 100)
    assert time.monotonic() - began_s < 25
    assert producer.poll(0.1) == 0
    producer.purge()
    assert len(producer) == 0
    producer.close()


def test_messages_time_out_with_their_callbacks_and_the_outage_is_reported_once() -> None:
    reported: Reported = []
    errors: list[KafkaError] = []
    with reserve_port() as held:
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        producer = Producer(
            {"bootstrap.servers": url, "message.timeout.ms": 4000, "error_cb": errors.append}
        )
        for name in ("one", "other"):
            producer.produce(name, b"x", b"k", on_delivery=noting(reported))
        assert producer.flush(30) == 0
        assert [error.code() for error in errors] == [KafkaError._TRANSPORT]
        assert [code for code, _ in reported] == [KafkaError._MSG_TIMED_OUT] * 2
        assert all(
            "Message timed out" in text and "does not answer" in text for _, text in reported
        )
        assert producer.close() is True


@pytest.mark.long
def test_messages_are_delivered_in_order_once_the_gateway_answers(site: Facade) -> None:
    name = site.channel()
    delivered: list[bytes | None] = []
    errors: list[KafkaError] = []
    relay = Relay(int(site.url.rpartition(":")[2]))
    try:
        relay.cut()
        producer = Producer({"bootstrap.servers": relay.url, "error_cb": errors.append})
        for number in range(50):
            # The first messages have no callback, so the mode of the reports changes in between.
            note = None if number < 10 else lambda _, message: delivered.append(message.value())
            producer.produce(name, b"%d" % number, partition=0, on_delivery=note)
        until(lambda: producer.poll(0.1) or errors)
        relay.restore()
        assert producer.flush(30) == 0
        assert producer.close() is True
    finally:
        relay.close()
    assert [error.code() for error in errors] == [KafkaError._TRANSPORT]
    assert delivered == [b"%d" % number for number in range(10, 50)]
    with site.gateway.channel(name).reader() as reader:
        assert [record["value"] for record in reader] == [b"%d" % n for n in range(50)]


def test_the_local_queue_is_bounded(silent: str) -> None:
    config = {"bootstrap.servers": silent, "queue.buffering.max.messages": 3}
    producer = Producer(config)
    for _ in range(3):
        producer.produce("flights", b"x")
    with pytest.raises(BufferError, match="Queue full"):
        producer.produce("flights", b"x")
    producer.purge()
    producer.produce("flights", b"x")
    small = Producer({"bootstrap.servers": silent, "queue.buffering.max.kbytes": 1})
    small.produce("flights", b"x" * 900)
    with pytest.raises(BufferError):
        small.produce("flights", b"x" * 900)
    for client in (producer, small):
        client.purge()
        client.close()


@pytest.mark.parametrize("leave", ["close", pytest.param("with", marks=pytest.mark.long)])
def test_closing_is_bounded_and_fails_undelivered_messages(silent: str, leave: str) -> None:
    reported: Reported = []
    producer = Producer({"bootstrap.servers": silent})
    producer.produce("flights", b"x", on_delivery=noting(reported))
    producer.produce("flights", b"x")
    began_s = time.monotonic()
    end = contextlib.nullcontext() if leave == "close" else producer
    with pytest.raises(KafkaException, match="2 messages failed"), end:
        producer.close(timeout=0.5) if leave == "close" else None
    # Less than the timeout of requests and messages.
    assert time.monotonic() - began_s < 25
    assert [code for code, _ in reported] == [KafkaError._PURGE_QUEUE]
    assert "close() stopped" in reported[0][1]
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.produce("flights", b"x")
    with pytest.raises(KafkaException, match="2 messages failed"):
        producer.close()


def test_errors_of_attaching_are_the_errors_of_the_messages(site: Facade) -> None:
    reported: Reported = []
    with site.producer() as producer:
        producer.produce("nowhere", b"x", on_delivery=noting(reported))
        assert producer.flush(30) == 0
    ((code, text),) = reported
    assert code == KafkaError.UNKNOWN_TOPIC_OR_PART
    for advice in ("gateway.channel('nowhere'", "sluiceway channels create", "auto.create.topics"):
        assert advice in text


def test_messages_that_failed_without_a_callback_are_logged_and_raised_by_close(
    site: Facade, caplog: pytest.LogCaptureFixture
) -> None:
    producer = site.producer()
    with caplog.at_level(logging.ERROR, "sluiceway.confluent"):
        producer.produce("nowhere", b"x")
        assert producer.flush(30) == 0
    assert "1 messages to nowhere are not delivered" in caplog.text
    with pytest.raises(KafkaException, match="without a delivery callback were not delivered"):
        producer.close()


def test_a_channel_that_is_created_later_gets_the_next_messages(site: Facade) -> None:
    name = f"confluent-{uuid.uuid4().hex[:8]}"
    reported: list[int | None] = []
    with site.producer(on_delivery=lambda error, _: reported.append(error and error.code())) as it:
        it.produce(name, b"lost")
        it.flush(30)
        site.gateway.channel(name, format="bytes")
        it.produce(name, b"kept")
        it.flush(30)
    assert reported == [KafkaError.UNKNOWN_TOPIC_OR_PART, None]


def test_a_polling_thread_gets_the_errors_of_another_threads_messages(site: Facade) -> None:
    reported: Reported = []
    name = site.channel()
    with site.producer() as producer:
        producer.produce(name, b"x")
        producer.flush()
        polls = threading.Thread(target=lambda: producer.poll(30))
        polls.start()
        producer.produce("nowhere", b"x", on_delivery=noting(reported))
        polls.join(30)
        assert [code for code, _ in reported] == [KafkaError.UNKNOWN_TOPIC_OR_PART]


@pytest.mark.long
def test_an_abandoned_producer_of_a_silent_gateway_is_garbage_collected(silent: str) -> None:
    reported: Reported = []
    producer = Producer({"bootstrap.servers": silent, "message.timeout.ms": 500})
    producer.produce("flights", b"x", on_delivery=noting(reported))
    del producer
    gc.collect()
    until(lambda: reported)
    assert reported[0][0] == KafkaError._MSG_TIMED_OUT
