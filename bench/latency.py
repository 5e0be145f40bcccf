"""Time from the write of a record until a waiting reader of another process has it.

The writer writes 50 records a second, one by one, and the reader waits for each. The side
`confluent` is confluent-kafka's producer with `linger.ms=0` and its consumer, without a gateway,
schemas and positions. A turn's first records are not counted. One broker and one gateway serve both
sides, which alternate.
"""

import multiprocessing
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

from bench.measure import Measured, Ratio, Reached, measure, report
from bench.service import Service, running
from confluent_kafka import Consumer, Producer, TopicPartition

from sluiceway import Gateway
from sluiceway_gateway.dev.embedded import KafkaServer

RECORDS = 500
_UNCOUNTED = 50
_INTERVAL_S = 0.02
ROUNDS = 5
_TIMEOUT_S = 60
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "sent_ns", "type": "long"}]}
RATIOS = {"latency_to_confluent": Ratio(side="confluent", to="channel", goal=None, at_most=True)}


def main() -> None:
    """Run all sides in alternating turns, and report the latencies."""
    latencies_s: list[float] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        KafkaServer.start(Path(directory) / "kafka") as kafka,
        running(f"sqlite:///{directory}/gateway.db", kafka.bootstrap_servers) as service,
    ):
        sides = {
            "channel": _counted(latencies_s, partial(channel_turn, service)),
            "confluent": _counted([], partial(confluent_turn, service)),
        }
        measured = measure(sides, rounds=ROUNDS)
    report(
        "latency",
        measured,
        RATIOS,
        title="One record from a writer to a waiting reader",
        settings={"records_per_s": round(1 / _INTERVAL_S)},
        others={
            "median_ms": Reached(value=1000 * statistics.median(latencies_s), at_most=3),
            "p99_ms": Reached(
                value=1000 * statistics.quantiles(latencies_s, n=100)[98], at_most=15
            ),
        },
    )


def channel_turn(service: Service) -> list[float]:
    """Return the latencies in seconds through a channel."""
    name = _new_name()
    with (
        Gateway(service.url, token=service.token) as gateway,
        gateway.channel(name, SCHEMA, partitions=1).writer() as writer,
    ):
        return _turn(
            partial(_read_channel, service, name),
            lambda: writer.write({"sent_ns": time.time_ns()}),
        )


def confluent_turn(service: Service) -> list[float]:
    """Return the latencies in seconds through a topic."""
    with Gateway(service.url, token=service.token) as gateway:
        channel = gateway.channel(_new_name(), SCHEMA, partitions=1)
        connection = channel.connection("write")
    producer = Producer({**connection.kafka, "linger.ms": 0, "acks": "all"})

    def send() -> None:
        producer.produce(connection.topic_name, str(time.time_ns()))
        producer.poll(0)

    latencies_s = _turn(partial(_read_topic, connection.kafka, connection.topic_name), send)
    producer.flush(_TIMEOUT_S)
    return latencies_s


def _read_channel(service: Service, name: str, received: "Queue[float]") -> None:
    with (
        Gateway(service.url, token=service.token) as gateway,
        gateway.channel(name).reader(until=None) as reader,
    ):
        for record in reader:
            received.put((time.time_ns() - record["sent_ns"]) / 1e9)


def _read_topic(kafka: dict[str, Any], topic: str, received: "Queue[float]") -> None:
    consumer = Consumer({**kafka, "group.id": "bench"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    while True:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            received.put((time.time_ns() - int(message.value())) / 1e9)


def _turn(read: Callable[..., None], send: Callable[[], object]) -> list[float]:
    """Send records at a fixed rate to a reader in a process of its own."""
    context = multiprocessing.get_context("spawn")
    received: Queue[float] = context.Queue()
    reader = context.Process(target=read, args=(received,))
    reader.start()
    try:
        send()
        received.get(timeout=_TIMEOUT_S)
        due_s = time.monotonic()
        for _ in range(_UNCOUNTED + RECORDS):
            due_s += _INTERVAL_S
            time.sleep(max(0.0, due_s - time.monotonic()))
            send()
        latencies_s = [received.get(timeout=_TIMEOUT_S) for _ in range(_UNCOUNTED + RECORDS)]
        return latencies_s[_UNCOUNTED:]
    finally:
        reader.terminate()
        reader.join(_TIMEOUT_S)


def _counted(latencies_s: list[float], turn: Callable[[], list[float]]) -> Callable[[], Measured]:
    def side() -> Measured:
        of_turn = turn()
        latencies_s.extend(of_turn)
        return Measured(records=len(of_turn), seconds=sum(of_turn))

    return side


def _new_name() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


if __name__ == "__main__":
    main()
