"""sluiceway.confluent compared with confluent-kafka.

Both sides transfer the same messages of 100 bytes, over one broker and a channel of the format
`bytes`, with the facade's librdkafka properties. The facade's time includes joining and leaving the
group, and attaching and detaching the writer. Consumers request up to 10,000 messages per call, or
poll one by one; producers have a callback for each delivery, or none. Commits are synchronous, one
per message.
"""

import os
import time
import uuid
from typing import Any

import confluent_kafka
from bench.measure import Measured, Ratio, Side, in_own_process

from sluiceway import Gateway
from sluiceway.api.models import Connection
from sluiceway.confluent import Consumer, Producer
from sluiceway.kafka.config import consumer_config, producer_config

MESSAGES = 2_000_000
PARTITIONS = 4
AT_ONCE = 10_000
COMMITS = 2_000
VALUE = b"x" * 100
RATIOS = {
    "confluent_consume_to_native": Ratio(side="confluent_consume", to="native_consume", goal=0.9),
    "confluent_produce_to_native": Ratio(side="confluent_produce", to="native_produce", goal=0.9),
    "confluent_poll_to_native": Ratio(side="confluent_poll", to="native_poll", goal=None),
    "confluent_commit_to_native": Ratio(side="confluent_commit", to="native_commit", goal=None),
    "confluent_unreported_to_native": Ratio(
        side="confluent_unreported", to="native_unreported", goal=None
    ),
}


def new_channel(url: str, token: str) -> str:
    """Create an empty channel and return its name."""
    with Gateway(url, token=token) as gateway:
        name = f"bench-{uuid.uuid4().hex[:12]}"
        return gateway.channel(name, format="bytes", partitions=PARTITIONS).name


def connection_of(url: str, token: str, name: str) -> Connection:
    with Gateway(url, token=token) as gateway:
        return gateway.channel(name).connection("write")


def facade_config(url: str, token: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": url, "sluiceway.token": token, **more}


def consume_all(consumer: Any, one_by_one: bool) -> None:
    left = MESSAGES
    value = 0
    while left:
        ask = min(left, AT_ONCE)
        messages = [consumer.poll(10)] if one_by_one else consumer.consume(ask, 10)
        for message in messages:
            value += len(message.value())
        left -= len(messages)
    assert value == MESSAGES * len(VALUE)


def native_consume(url: str, token: str, name: str, one_by_one: bool) -> Measured:
    connection = connection_of(url, token, name)
    config = consumer_config(connection.kafka) | {"enable.partition.eof": False}
    started_s = time.perf_counter()
    consumer = confluent_kafka.Consumer(config)
    parts = range(PARTITIONS)
    topic = connection.topic_name
    consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in parts])
    consume_all(consumer, one_by_one)
    consumer.close()
    return Measured(records=MESSAGES, seconds=time.perf_counter() - started_s)


def facade_consume(url: str, token: str, name: str, one_by_one: bool) -> Measured:
    config = facade_config(url, token) | {"auto.offset.reset": "earliest"}
    started_s = time.perf_counter()
    with Consumer({**config, "group.id": uuid.uuid4().hex}) as consumer:
        consumer.subscribe([name])
        consume_all(consumer, one_by_one)
    return Measured(records=MESSAGES, seconds=time.perf_counter() - started_s)


class DeliveryCounter:
    """Delivery callback that counts deliveries."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: object, message: object) -> None:
        """Count a report."""
        del message
        assert error is None
        self.count += 1


def commit_each(consumer: Any) -> Measured:
    """Read one by one, and commit each message before the next; joining is not measured."""
    message = None
    while message is None:
        message = consumer.poll(10)
    started_s = time.perf_counter()
    for _ in range(COMMITS):
        consumer.commit(message=message, asynchronous=False)
        message = consumer.poll(10)
    seconds = time.perf_counter() - started_s
    consumer.close()
    return Measured(records=COMMITS, seconds=seconds)


def native_commit(url: str, token: str, name: str) -> Measured:
    connection = connection_of(url, token, name)
    own = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(
        consumer_config(connection.kafka) | {"enable.partition.eof": False} | own
    )
    consumer.subscribe([connection.topic_name])
    return commit_each(consumer)


def facade_commit(url: str, token: str, name: str) -> Measured:
    own = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    config = facade_config(url, token, **{"enable.auto.commit": False})
    consumer = Consumer({**config, **own})
    consumer.subscribe([name])
    return commit_each(consumer)


def produce_all(producer: Any, topic: str, counter: DeliveryCounter | None) -> None:
    produce = producer.produce
    for number in range(MESSAGES):
        while True:
            try:
                if counter is None:
                    produce(topic, VALUE, None, number % PARTITIONS)
                else:
                    produce(topic, VALUE, None, number % PARTITIONS, on_delivery=counter)
                break
            except BufferError:
                producer.poll(0.1)
        if not number % 1000:
            producer.poll(0)
    assert producer.flush(120) == 0
    assert counter is None or counter.count == MESSAGES


def native_produce(url: str, token: str, with_reports: bool) -> Measured:
    connection = connection_of(url, token, new_channel(url, token))
    config = producer_config(
        connection.kafka,
        delivery_timeout_ms=120_000,
        max_message_bytes=connection.max_message_bytes,
    )
    config = config | {"delivery.report.only.error": not with_reports}
    started_s = time.perf_counter()
    producer = confluent_kafka.Producer(config)
    produce_all(producer, connection.topic_name, DeliveryCounter() if with_reports else None)
    return Measured(records=MESSAGES, seconds=time.perf_counter() - started_s)


def facade_produce(url: str, token: str, with_reports: bool) -> Measured:
    name = new_channel(url, token)
    started_s = time.perf_counter()
    with Producer(facade_config(url, token)) as producer:
        produce_all(producer, name, DeliveryCounter() if with_reports else None)
    return Measured(records=MESSAGES, seconds=time.perf_counter() - started_s)


def sides(url: str, token: str, _bootstrap_servers: str) -> dict[str, Side]:
    """Return the sides for a running gateway, and fill the channel for the consumers."""
    filled = new_channel(url, token)
    with Producer(facade_config(url, token)) as producer:
        produce_all(producer, filled, None)
    reading: dict[str, Side] = {}
    for kind, one_by_one in (("consume", False), ("poll", True)):
        for who, function in (("native", native_consume), ("confluent", facade_consume)):
            reading[f"{who}_{kind}"] = in_own_process(function, url, token, filled, one_by_one)
    for who, committing in (("native", native_commit), ("confluent", facade_commit)):
        reading[f"{who}_commit"] = in_own_process(committing, url, token, filled)
    for kind, with_reports in (("produce", True), ("unreported", False)):
        for who, writing in (("native", native_produce), ("confluent", facade_produce)):
            reading[f"{who}_{kind}"] = in_own_process(writing, url, token, with_reports)
    return reading


def settings() -> dict[str, Any]:
    """Return the settings of the measurement."""
    return {
        "messages": MESSAGES,
        "message_bytes": len(VALUE),
        "partitions": PARTITIONS,
        "at_once": AT_ONCE,
        "cpus": os.cpu_count(),
    }
