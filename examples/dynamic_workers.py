"""Workers join and leave a dynamic group; each reading is counted once.

The gateway assigns the partitions. When a worker joins, others commit their positions in the
partitions that they lose, and the new worker continues there.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/dynamic_workers.py
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

from sluiceway import Channel, Gateway, Heartbeat

READINGS = 3_000
STATIONS = 10


@dataclass
class Reading:
    """A record of the channel."""

    station: str
    celsius: float


class Worker:
    """Counts the readings of its partitions, to the end or until it has to leave."""

    def __init__(self, channel: Channel, name: str) -> None:
        self.name = name
        self.counted: Counter[str] = Counter()
        self.assigned = Event()
        self.leave = Event()
        self._channel = channel

    def run(self) -> Counter[str]:
        """Count; closing the reader also calls `on_revoke`, so it commits."""
        with self._channel.reader(
            group="counts", dynamic=True, on_assign=self._on_assign, on_revoke=self._on_revoke
        ) as self._reader:
            while not self._reader.finished and not self.leave.is_set():
                records = self._reader.read(50, timeout=0.1)
                self.counted.update(record["station"] for record in records)
        return self.counted

    def _on_assign(self, partitions: tuple[int, ...]) -> None:
        print(f"{self.name} has {partitions}", flush=True)
        self.assigned.set()

    def _on_revoke(self, _partitions: tuple[int, ...]) -> None:
        self._reader.commit()


def main() -> None:
    with Gateway() as gateway, ThreadPoolExecutor() as threads:
        channel = gateway.channel(
            "shared-readings", schema=Reading, partitions=4, heartbeat=Heartbeat(interval_ms=200)
        )
        first, second, third = (Worker(channel, name) for name in ("Ada", "Ben", "Cid"))
        with channel.writer() as writer:
            counts = [threads.submit(first.run)]
            first.assigned.wait(60)
            for worker in (second, third):
                writer.write(
                    Reading(station=f"station-{n % STATIONS}", celsius=20.0)
                    for n in range(READINGS // 2)
                )
                writer.flush()
                counts.append(threads.submit(worker.run))
                worker.assigned.wait(60)
            first.leave.set()
        counted = sum((each.result() for each in counts), Counter())
    for station, of_it in sorted(counted.items()):
        print(station, of_it)
    print(f"{counted.total()} readings counted")


if __name__ == "__main__":
    main()
