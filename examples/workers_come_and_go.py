"""Workers join while readings are counted, and leave; each reading is counted once.

Nobody tells a worker which part is its own. When another comes, a worker commits what it has
counted of the partitions that it is about to lose, and the other goes on behind that.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/workers_come_and_go.py
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
    """What one record of the channel looks like."""

    station: str
    celsius: float


class Worker:
    """Counts what is its share of the channel, until there is no more, or it is to leave."""

    def __init__(self, channel: Channel, name: str) -> None:
        self.name = name
        self.counted: Counter[str] = Counter()
        self.works = Event()
        self.leave = Event()
        self._channel = channel

    def run(self) -> Counter[str]:
        """Count; leaving commits as well, as closing the reader lets go of all it has."""
        with self._channel.reader(
            group="counts", dynamic=True, on_assign=self._begin, on_revoke=self._let_go
        ) as self._reader:
            while not self._reader.finished and not self.leave.is_set():
                records = self._reader.read(50, timeout=0.1)
                self.counted.update(record["station"] for record in records)
        return self.counted

    def _begin(self, partitions: tuple[int, ...]) -> None:
        print(f"{self.name} has {partitions}", flush=True)
        self.works.set()

    def _let_go(self, _partitions: tuple[int, ...]) -> None:
        self._reader.commit()


def main() -> None:
    with Gateway() as gateway, ThreadPoolExecutor() as threads:
        channel = gateway.channel(
            "shared-readings", schema=Reading, partitions=4, heartbeat=Heartbeat(interval_ms=200)
        )
        first, second, third = (Worker(channel, name) for name in ("Ada", "Ben", "Cid"))
        with channel.writer() as writer:
            counts = [threads.submit(first.run)]
            for worker in (second, third):
                writer.write(
                    Reading(station=f"station-{n % STATIONS}", celsius=20.0)
                    for n in range(READINGS // 2)
                )
                writer.flush()
                counts.append(threads.submit(worker.run))
                worker.works.wait(60)
            first.leave.set()
        counted = sum((each.result() for each in counts), Counter())
    for station, of_it in sorted(counted.items()):
        print(station, of_it)
    print(f"{counted.total()} readings counted")


if __name__ == "__main__":
    main()
