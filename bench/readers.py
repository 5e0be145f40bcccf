"""Time until every reader of a group has its first record: Sluiceway's groups and Kafka's.

The topic has a partition and a record for each reader. All sides use the same number of processes,
and a Kafka client per reader, except for the side `shared`, whose readers share one client per
process. The measurement starts when all processes have imported everything, and includes attaching
or joining. On the sides `classic` and `new`, confluent-kafka subscribes in a Kafka group, by the
classic protocol and by `group.protocol=consumer`, with Kafka's default settings for groups. On the
side `assigned`, each consumer gets its partition without a group: the cost of the clients alone.

`--readers 20` measures another number, and writes no results.
"""

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import Measured, Ratio, Side, measure, report
from bench.service import Service, running

from sluiceway import Gateway
from sluiceway_gateway.dev.embedded import KafkaServer

NUMBERS = (200, 1000)
PROCESSES = 4
THREADS = 8
"""Threads per process that open readers or poll consumers."""
ROUNDS = 3
GIVE_UP_S = 300.0
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
GROUPS = {"group.initial.rebalance.delay.ms": "3000"}
"""Kafka's own default; the embedded broker's is 0."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The location of the records, and the number of readers."""

    service: Service
    bootstrap_servers: str
    channel: str
    topic: str
    readers: int


def read(shared: bool, place: Place, group: str, indexes: Sequence[int], first: Any) -> None:
    """Open readers of a channel, and record the time of each first record."""
    service = place.service
    gateway = Gateway(service.url, token=service.token, timeout_s=GIVE_UP_S)
    channel = gateway.channel(place.channel)

    def begin(index: int) -> None:
        reader = channel.reader(
            group=group,
            index=index,
            size=place.readers,
            until=None,
            timeout_s=GIVE_UP_S,
            share_connection=shared,
        )
        if reader.read(1, timeout=GIVE_UP_S):
            first(index, reader)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(begin, indexes))


def consume(protocol: str, place: Place, group: str, indexes: Sequence[int], first: Any) -> None:
    """Subscribe consumers of a topic, or assign them; record the time of each first record.

    Never ends.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    def begin(indexes: Sequence[int]) -> None:
        consumers = {}
        for index in indexes:
            consumer = Consumer(
                {
                    "bootstrap.servers": place.bootstrap_servers,
                    "group.id": group,
                    "group.protocol": "consumer" if protocol == "consumer" else "classic",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "log_level": 0,
                }
            )
            if protocol == "assigned":
                consumer.assign([TopicPartition(place.topic, index, OFFSET_BEGINNING)])
            else:
                consumer.subscribe([place.topic])
            consumers[index] = consumer
        # Poll for ever: a consumer that is not polled releases no partitions.
        while consumers:
            for index, consumer in consumers.items():
                message = consumer.poll(0.001)
                if message is not None and message.error() is None:
                    first(index, consumer)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(begin, [indexes[number::THREADS] for number in range(THREADS)]))


def work(side: str, place: Place, group: str, indexes: Sequence[int], ready: Any, out: Any) -> None:
    """Run in a separate process: report readiness, start on request, and return the times."""
    lock = threading.Lock()
    complete = threading.Event()
    times: dict[int, float] = {}
    kept: list[Any] = []

    def first(index: int, client: Any) -> None:
        with lock:
            if index not in times:
                times[index] = time.monotonic()
                kept.append(client)
            if len(times) == len(indexes):
                complete.set()

    # Initialization that programs do earlier.
    import confluent_kafka  # noqa: F401
    import pyarrow  # noqa: F401

    ready.wait()
    worked_s = time.process_time()
    ours = side in ("sluiceway", "shared")
    begin, how = (read, side == "shared") if ours else (consume, side)
    threading.Thread(target=begin, args=(how, place, group, indexes, first), daemon=True).start()
    complete.wait(GIVE_UP_S)
    with lock:
        out.put((dict(times), rss_mb(), time.process_time() - worked_s))
    ready.wait()
    # Leaving is not measured.
    os._exit(0)


def rss_mb() -> int:
    """Return the resident memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


@dataclass
class Group:
    """One side with one number of readers; counts timeouts, and records CPU time and memory."""

    side: str
    place: Place
    missing: int = 0
    memory_mb: int = 0
    clients_cpu_s: float = 0.0

    def __call__(self) -> Measured:
        """Start all readers once; return the time of the last one."""
        context = multiprocessing.get_context("spawn")
        ready = context.Barrier(PROCESSES + 1)
        out = context.Queue()
        group = f"{self.side}-{uuid.uuid4().hex[:8]}"
        parts = [range(number, self.place.readers, PROCESSES) for number in range(PROCESSES)]
        processes = [
            context.Process(target=work, args=(self.side, self.place, group, part, ready, out))
            for part in parts
        ]
        for each in processes:
            each.start()
        ready.wait()
        started_s = time.monotonic()
        found = [out.get(timeout=2 * GIVE_UP_S) for _ in processes]
        ready.wait()
        for each in processes:
            each.join()
        times = [moment for part, _, _ in found for moment in part.values()]
        self.memory_mb = max(self.memory_mb, sum(memory for _, memory, _ in found))
        self.clients_cpu_s = max(self.clients_cpu_s, sum(cpu_s for _, _, cpu_s in found))
        missing = self.place.readers - len(times)
        self.missing = max(self.missing, missing)
        took_s = GIVE_UP_S if missing else max(times) - started_s
        return Measured(records=self.place.readers, seconds=took_s)


def prepared(service: Service, bootstrap_servers: str, readers: int) -> Place:
    """Create a channel with a partition for each reader, and a record in each."""
    with Gateway(service.url, token=service.token) as gateway:
        channel = gateway.channel(f"first-{readers}", SCHEMA, partitions=readers, wait_s=300)
        with channel.writer() as writer:
            # One record per partition.
            writer.write({"a": number} for number in range(readers))
        topic = channel.status.topic.name
        name = channel.name
    return Place(
        service=service,
        bootstrap_servers=bootstrap_servers,
        channel=name,
        topic=topic,
        readers=readers,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--readers", type=int, nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    numbers = asked.readers or NUMBERS
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(KafkaServer.start(directory / "kafka", properties=GROUPS))
        database = f"sqlite:///{directory / 'gateway.db'}"
        service = stack.enter_context(running(database, kafka.bootstrap_servers))
        # The first group creates Kafka's topic for groups.
        warm = prepared(service, kafka.bootstrap_servers, PROCESSES)
        for protocol in ("classic", "consumer"):
            Group(protocol, warm)()
        measured: dict[str, list[Measured]] = {}
        groups: dict[str, Group] = {}
        for number in numbers:
            place = prepared(service, kafka.bootstrap_servers, number)
            sides: dict[str, Side] = {}
            for side in ("sluiceway", "shared", "assigned", "classic", "consumer"):
                sides[f"{side}_{number}"] = groups[f"{side}_{number}"] = Group(side, place)
            measured |= measure(sides, rounds=asked.rounds)
    # A ratio of times is the inverse ratio of speeds.
    ratios = {
        f"{name}_{number}_to_{other}": Ratio(
            side=f"{other}_{number}", to=f"{side}_{number}", goal=0.33, at_most=True
        )
        for side, name in (("sluiceway", "first_record"), ("shared", "shared"))
        for number in numbers
        for other in ("classic", "consumer")
    }
    ratios |= {
        f"first_record_{number}_to_assigned": Ratio(
            side=f"assigned_{number}", to=f"sluiceway_{number}", goal=None
        )
        for number in numbers
    }
    settings = {
        "processes": PROCESSES,
        "threads": THREADS,
        "rounds": asked.rounds,
        "broker": GROUPS,
        "gave_up_after_s": GIVE_UP_S,
        "readers_without_a_record": {name: e.missing for name, e in groups.items() if e.missing},
        "clients_cpu_s": {name: round(each.clients_cpu_s, 1) for name, each in groups.items()},
        "memory_mb": {name: each.memory_mb for name, each in groups.items()},
    }
    title = f"The first record of every reader, {PROCESSES} processes"
    name = None if asked.readers else "readers"
    report(name, measured, ratios, title=title, settings=settings, unit="readers")
    print("CPU time of all clients, s:", settings["clients_cpu_s"])
    print("memory of all processes, MB:", settings["memory_mb"])
    if settings["readers_without_a_record"]:
        print(f"timeouts after {GIVE_UP_S:g} s:", settings["readers_without_a_record"])


if __name__ == "__main__":
    main()
