"""Cost of delivery exactly_once compared with at_least_once, and latency of commits.

Both sides are channels of one gateway on PostgreSQL and one broker, with the same client, Arrow
batches and partitions; only `delivery` differs. Writing ends with a flush, which commits on one
side; reading ends at the end offsets of its start. Opening the channel and attaching the endpoint
are not measured. A turn takes two or three seconds and has one commit. Each side has one warm-up
turn, in which the new broker's code is compiled.

`commit_to_visible`: from the call of `commit` until a waiting reader in another process has the
record. `commit_10000_attempts`: the driver's part of a job of 10,000 tasks, from the tasks'
messages to the response of the commit. Records of failed attempts lie between those of each task,
so no intervals can be merged.

`--parts arrow_read avro_write --part 0.2` measures some parts with fewer records, and writes no
results.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pyarrow as pa
from bench.measure import Measured, Ratio, Reached, Side, in_own_process, measure, report
from bench.python import PORTION, SCHEMA, portion
from bench.service import Service, databases, running
from confluent_kafka import Producer

from sluiceway import Channel, Gateway
from sluiceway.api.ledger import Interval, LedgerCalls
from sluiceway.api.transport import Transport
from sluiceway.ledger.intervals import WrittenRecords
from sluiceway.ledger.write_batch import BatchRequest, WriteBatch
from sluiceway.records import to_batches
from sluiceway.schema import Schema
from sluiceway_gateway.dev.embedded import KafkaServer

RECORDS = {"arrow": 24_000_000, "avro": 3_000_000}
PARTITIONS = 4
ROUNDS = 7
COMMITS = 500
TASKS = 10_000
TASK_PARTITIONS = 16
INTERVALS_OF_A_TASK = 4
PLAIN, EXACT = "at_least_once", "exactly_once"
RATIOS = {
    f"{format_}_{work}_to_plain": Ratio(
        side=f"{format_}_{work}", to=f"{format_}_{work}_plain", goal=goal
    )
    for format_, goal in (("arrow", 0.95), ("avro", 0.9))
    for work in ("write", "read")
}
VISIBLE, ATTEMPTS = "commit_to_visible", "commit_10000_attempts"
VISIBLE_P99_MS = 50
ATTEMPTS_S = 5


@dataclass(frozen=True, kw_only=True)
class Site:
    """A gateway and the broker of its channels."""

    service: Service
    bootstrap_servers: str

    def gateway(self) -> Gateway:
        """Open a client of the gateway."""
        return Gateway(self.service.url, token=self.service.token)


def batches() -> list[pa.RecordBatch]:
    """Return the records that are written repeatedly."""
    return to_batches(portion(), Schema.parse(SCHEMA))


def new_channel(
    gateway: Gateway, *, format_: str, delivery: str, partitions: int = PARTITIONS
) -> Channel:
    """Create an empty channel."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    return gateway.channel(name, SCHEMA, format=format_, delivery=delivery, partitions=partitions)


def write_all(channel: Channel, records: int) -> Measured:
    """Write `records` records, and measure until the end of the flush."""
    data = batches()
    with channel.writer() as writer:
        started_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(records // PORTION):
            for batch in data:
                writer.write(batch)
        writer.flush()
        return Measured(
            records=records,
            seconds=time.perf_counter() - started_s,
            cpu_seconds=time.process_time() - cpu_s,
        )


def write(site: Site, format_: str, delivery: str, records: int) -> Measured:
    with site.gateway() as gateway:
        channel = new_channel(gateway, format_=format_, delivery=delivery)
        measured = write_all(channel, records)
        channel.delete(force=True)
    return measured


def fill(site: Site, format_: str, delivery: str, records: int) -> str:
    """Create the channel for all turns of a reading side, and return its name."""
    with site.gateway() as gateway:
        channel = new_channel(gateway, format_=format_, delivery=delivery)
        write_all(channel, records)
        return channel.name


def read(site: Site, name: str, records: int) -> Measured:
    total = 0
    with site.gateway() as gateway, gateway.channel(name).reader(until="now") as reader:
        started_s, cpu_s = time.perf_counter(), time.process_time()
        for batch in reader.batches():
            total += int(batch.column("id").to_numpy().sum())
        measured = Measured(
            records=records,
            seconds=time.perf_counter() - started_s,
            cpu_seconds=time.process_time() - cpu_s,
        )
    expected = records // PORTION * sum(10_000_000 + i for i in range(PORTION))
    assert total == expected, f"the sum of the ids read is {total}, not {expected}"
    return measured


def send_arrivals(site: Site, name: str, pipe: Pipe) -> None:
    """Read records one by one, and send the arrival time of each."""
    with site.gateway() as gateway, gateway.channel(name).reader(until=None) as reader:
        pipe.send(0.0)
        for _ in range(COMMITS):
            while not reader.read(1, timeout=60):
                pass
            pipe.send(time.monotonic())


def commit_latencies(site: Site) -> list[float]:
    """Commit records one by one; return the times until each was read, in ms."""
    took_ms = []
    with site.gateway() as gateway:
        channel = new_channel(gateway, format_="avro", delivery=EXACT, partitions=1)
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        reading = multiprocessing.get_context("spawn").Process(
            target=send_arrivals, args=(site, channel.name, theirs)
        )
        reading.start()
        ours.recv()
        record = portion()[:1]
        with channel.writer() as writer:
            for number in range(COMMITS):
                with writer.batch(f"commit-{number}"):
                    writer.write(record)
                    writer.flush()
                    began_s = time.monotonic()
                assert ours.poll(60), "a committed record was not read"
                took_ms.append((ours.recv() - began_s) * 1000)
        reading.join()
        channel.delete(force=True)
    return took_ms


def attempts() -> list[WrittenRecords]:
    """Return the commit messages of 10,000 tasks; every second offset is a failed attempt's."""
    found = []
    for task in range(TASKS):
        partition, place = task % TASK_PARTITIONS, task // TASK_PARTITIONS
        of_a_partition = TASKS // TASK_PARTITIONS
        offsets = [2 * (place + number * of_a_partition) for number in range(INTERVALS_OF_A_TASK)]
        intervals = tuple(Interval(each, each + 1) for each in offsets)
        found.append(
            WrittenRecords(manifest={partition: intervals}, counts={partition: len(intervals)})
        )
    return found


def commit_attempts(site: Site) -> float:
    """Commit a job of 10,000 tasks; return the seconds from their messages to the response."""
    with site.gateway() as gateway:
        channel = new_channel(gateway, format_="avro", delivery=EXACT, partitions=TASK_PARTITIONS)
        connection = channel.connection("write")
        batch = WriteBatch(
            LedgerCalls(Transport(site.service.url, token=site.service.token)),
            BatchRequest(
                channel=channel.name, uid=channel.uid, key="job", owner="job", instance="run"
            ),
        )
        batch.open()
        producer = Producer({"bootstrap.servers": site.bootstrap_servers, "linger.ms": 20})
        for partition in range(TASK_PARTITIONS):
            for _ in range(2 * TASKS // TASK_PARTITIONS * INTERVALS_OF_A_TASK):
                producer.produce(connection.topic_name, b"", partition=partition)
            assert producer.flush(60) == 0
        messages = attempts()
        started_s = time.perf_counter()
        result = batch.commit(WrittenRecords.merged(messages))
        seconds = time.perf_counter() - started_s
        # The last interval of a partition ends before the last failed record.
        assert sum(result.stable.values()) == 2 * TASKS * INTERVALS_OF_A_TASK - TASK_PARTITIONS
        channel.delete(force=True)
    return seconds


def turns(site: Site, parts: Sequence[str], portions: Mapping[str, int]) -> dict[str, Side]:
    """Return the sides of these parts; compared sides are adjacent."""
    sides: dict[str, Side] = {}
    for part in parts:
        format_, work = part.split("_")
        records = portions[format_] * PORTION
        for delivery, suffix in ((EXACT, ""), (PLAIN, "_plain")):
            if work == "write":
                sides[part + suffix] = in_own_process(write, site, format_, delivery, records)
            else:
                name = fill(site, format_, delivery, records)
                sides[part + suffix] = in_own_process(read, site, name, records)
    return sides


def main() -> None:
    """Measure and report."""
    speeds = [f"{format_}_{work}" for format_ in RECORDS for work in ("write", "read")]
    every = [*speeds, VISIBLE, ATTEMPTS]
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--parts", nargs="+", choices=every, default=every)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    arguments.add_argument("--part", type=float, default=1.0, help="of the records")
    given = arguments.parse_args()
    portions = {name: round(given.part * each / PORTION) for name, each in RECORDS.items()}
    others: dict[str, Reached] = {}
    settings: dict[str, object] = {
        "records": RECORDS,
        "partitions": PARTITIONS,
        "rounds": given.rounds,
        "warm_up_rounds": 1,
        "brokers": 1,
        "database": "PostgreSQL",
    }
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(KafkaServer.start(directory / "kafka"))
        url = stack.enter_context(databases(directory))["postgresql"]
        service = stack.enter_context(running(url, kafka.bootstrap_servers))
        site = Site(service=service, bootstrap_servers=kafka.bootstrap_servers)
        if VISIBLE in given.parts:
            took_ms = commit_latencies(site)
            percentiles = statistics.quantiles(took_ms, n=100)
            others[f"{VISIBLE}_p99_ms"] = Reached(value=percentiles[98], at_most=VISIBLE_P99_MS)
            settings[VISIBLE] = {
                "commits": COMMITS,
                "median_ms": round(percentiles[49], 1),
                "p90_ms": round(percentiles[89], 1),
                "largest_ms": round(max(took_ms), 1),
            }
        if ATTEMPTS in given.parts:
            took_s = [commit_attempts(site) for _ in range(3)]
            others[f"{ATTEMPTS}_s"] = Reached(value=statistics.median(took_s), at_most=ATTEMPTS_S)
            settings[ATTEMPTS] = {
                "tasks": TASKS,
                "partitions": TASK_PARTITIONS,
                "intervals": TASKS * INTERVALS_OF_A_TASK,
                "seconds": [round(each, 2) for each in took_s],
            }
        sides = turns(site, [part for part in speeds if part in given.parts], portions)
        measure(sides, rounds=1)
        measured = measure(sides, rounds=given.rounds)
    whole = (given.rounds, given.part, set(given.parts)) == (ROUNDS, 1.0, set(every))
    report(
        "exactly_once" if whole else None,
        measured,
        {key: ratio for key, ratio in RATIOS.items() if ratio.side in sides},
        title=f"exactly_once beside at_least_once, {PARTITIONS} partitions, one broker",
        settings=settings,
        others=others,
    )
    if not whole:
        print(
            json.dumps({part: settings[part] for part in (VISIBLE, ATTEMPTS) if part in settings})
        )


if __name__ == "__main__":
    main()
