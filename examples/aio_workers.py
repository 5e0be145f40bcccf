"""A pool of workers in one process shares a channel, and ends in order on SIGTERM.

Each worker is a task and a member of a dynamic group. SIGTERM lets each of them finish and commit
the records it has; a TaskGroup waits for all. What is left is read by the next run.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/aio_workers.py
"""

import asyncio
import signal
from dataclasses import dataclass

from sluiceway import aio

WORKERS = 4
JOBS = 400


@dataclass
class Job:
    """A record of the channel."""

    number: int


async def work(channel: aio.Channel, stopping: asyncio.Event) -> int:
    """Do jobs until the process has to stop; return their number."""
    done = 0

    async def commit(_partitions: tuple[int, ...]) -> None:
        await reader.commit()

    async with channel.reader(
        group="workers", dynamic=True, until=None, on_revoke=commit, share_connection=True
    ) as reader:
        while not stopping.is_set():
            for _job in await reader.read(10, timeout=0.5):
                await asyncio.sleep(0)  # the job itself
                done += 1
            await reader.commit()
    return done


async def main() -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with aio.Gateway() as gateway:
        channel = await gateway.channel("jobs", schema=Job, partitions=WORKERS)
        async with channel.writer() as writer:
            await writer.write([Job(number) for number in range(JOBS)])
        async with asyncio.TaskGroup() as tasks:
            workers = [tasks.create_task(work(channel, stopping)) for _ in range(WORKERS)]
            print(f"{WORKERS} workers share {channel.partitions} partitions", flush=True)
            while sum(at.offset for at in (await channel.committed("workers")).values()) < JOBS:
                await asyncio.sleep(0.1)
            # As a supervisor, such as Kubernetes, does it.
            signal.raise_signal(signal.SIGTERM)
        print(f"{sum(worker.result() for worker in workers)} jobs are done")


if __name__ == "__main__":
    asyncio.run(main())
