"""The asynchronous interface beside the synchronous one, and many waiting readers of one process.

Both interfaces read the records of one channel, record by record and in lists, in a new process for
each turn. Then one process opens 10,000 readers that share Kafka clients, and each waits for a
record: the figures are the time to open them, their memory and threads, the share of a processor
that they take while they wait, and the time from the write of one record until all have it.

`--readers 100` measures another number, and writes no results.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import tempfile
import threading
import time
import uuid
from pathlib import Path

import psutil
from bench.measure import Measured, Ratio, Reached, in_own_process, measure, report
from bench.service import Service, running

from sluiceway import Gateway, aio
from sluiceway_gateway.dev.embedded import KafkaServer

RECORDS = 300_000
READERS = 10_000
CHANNELS = 10
READERS_PER_PARTITION = 4
ROUNDS = 5
_PER_READ = 1000
_AT_ONCE = 200
"""The openings that are awaited together."""
_IDLE_S = 20.0
_PATIENCE_S = 120.0
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
RATIOS = {
    "aio_iterate_to_sync": Ratio(side="aio_iterate", to="iterate", goal=0.9),
    "aio_read_to_sync": Ratio(side="aio_read", to="read", goal=0.9),
}


def main() -> None:
    """Run all sides in alternating turns, then the waiting readers, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=READERS)
    readers: int = parser.parse_args().readers
    with (
        tempfile.TemporaryDirectory() as directory,
        KafkaServer.start(Path(directory) / "kafka") as kafka,
        running(f"sqlite:///{directory}/gateway.db", kafka.bootstrap_servers) as service,
    ):
        name = _written(service)
        sides = {
            "iterate": in_own_process(read, service, name, 0),
            "read": in_own_process(read, service, name, _PER_READ),
            "aio_iterate": in_own_process(read_awaited, service, name, 0),
            "aio_read": in_own_process(read_awaited, service, name, _PER_READ),
        }
        measured = measure(sides, rounds=ROUNDS)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            waiting = pool.apply(wait, (service, readers))
    report(
        "aio" if readers == READERS else None,
        measured,
        RATIOS,
        title="Reading by sluiceway.aio",
        settings={"records": RECORDS, "per_read": _PER_READ, "waiting_readers": readers},
        others=waiting,
    )


def read(service: Service, name: str, per_read: int) -> Measured:
    """Read a channel's records by lists of `per_read`, or one by one (0)."""
    with (
        Gateway(service.url, token=service.token) as gateway,
        gateway.channel(name).reader(until="now") as reader,
    ):
        started_s, worked_s, count = time.monotonic(), time.process_time(), 0
        if per_read:
            while records := reader.read(per_read, timeout=None):
                count += len(records)
        else:
            for _ in reader:
                count += 1
        return _measured(count, started_s, worked_s)


def read_awaited(service: Service, name: str, per_read: int) -> Measured:
    """Do the same by the asynchronous interface."""

    async def awaited() -> Measured:
        async with aio.Gateway(service.url, token=service.token) as gateway:
            channel = await gateway.channel(name)
            async with channel.reader(until="now") as reader:
                started_s, worked_s, count = time.monotonic(), time.process_time(), 0
                if per_read:
                    while records := await reader.read(per_read, timeout=None):
                        count += len(records)
                else:
                    async for _ in reader:
                        count += 1
                return _measured(count, started_s, worked_s)

    return asyncio.run(awaited())


def wait(service: Service, count: int) -> dict[str, Reached]:
    """Open readers that wait for a record, and write one."""

    async def waiting() -> dict[str, Reached]:
        process = psutil.Process()
        partitions = range(count // (CHANNELS * READERS_PER_PARTITION))
        async with aio.Gateway(service.url, token=service.token, timeout_s=_PATIENCE_S) as gateway:
            channels = [
                await gateway.channel(
                    _new_name(), SCHEMA, partitions=len(partitions), wait_s=_PATIENCE_S
                )
                for _ in range(CHANNELS)
            ]
            await (await _opened(channels[0], 0)).close()
            before_bytes = process.memory_info().rss
            started_s = time.monotonic()
            readers: list[aio.Reader] = []
            places = itertools.product(channels, [*partitions] * READERS_PER_PARTITION)
            while some := [*itertools.islice(places, _AT_ONCE)]:
                readers += await asyncio.gather(*itertools.starmap(_opened, some))
            opened_s = time.monotonic() - started_s
            reads = [asyncio.create_task(reader.read(1, timeout=None)) for reader in readers]
            await asyncio.sleep(_IDLE_S)
            worked_s = time.process_time()
            await asyncio.sleep(_IDLE_S)
            idle_share = (time.process_time() - worked_s) / _IDLE_S
            grown_bytes = process.memory_info().rss - before_bytes
            threads = threading.active_count()
            writers = [await channel.writer() for channel in channels]
            written_s = time.monotonic()
            await asyncio.gather(
                *(writer.write([{"a": 1}] * len(partitions)) for writer in writers)
            )
            await asyncio.gather(*(writer.flush() for writer in writers), *reads)
            received_s = time.monotonic() - written_s
            await asyncio.gather(*(writer.close() for writer in writers))
            await asyncio.gather(*(reader.close() for reader in readers))
        return {
            "open_s": Reached(value=opened_s, at_most=120),
            "memory_kb_per_reader": Reached(value=grown_bytes / 1024 / count, at_most=100),
            "threads": Reached(value=threads, at_most=100),
            "idle_processor_share": Reached(value=idle_share, at_most=1),
            "all_have_a_record_s": Reached(value=received_s, at_most=10),
        }

    return asyncio.run(waiting())


async def _opened(channel: aio.Channel, partition: int) -> aio.Reader:
    return await channel.reader(
        until=None, partitions=[partition], share_connection=True, timeout_s=_PATIENCE_S
    )


def _measured(count: int, started_s: float, worked_s: float) -> Measured:
    assert count == RECORDS
    return Measured(
        records=count,
        seconds=time.monotonic() - started_s,
        cpu_seconds=time.process_time() - worked_s,
    )


def _written(service: Service) -> str:
    """Create a channel with records, and return its name."""
    with Gateway(service.url, token=service.token) as gateway:
        channel = gateway.channel(_new_name(), SCHEMA)
        with channel.writer() as writer:
            writer.write({"a": number} for number in range(RECORDS))
        return channel.name


def _new_name() -> str:
    return f"bench-{uuid.uuid4().hex[:12]}"


if __name__ == "__main__":
    main()
