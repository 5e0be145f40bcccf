"""Two replicas of a reader count readings during the write; one of them is restarted.

The restarted replica continues after the last commit of its predecessor, and both end when the
writer has finished. No reading is counted twice.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/two_replicas.py
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sluiceway import Channel, Gateway

READINGS = 2_000
STATIONS = 10


@dataclass
class Reading:
    """A record of the channel."""

    station: str
    celsius: float


def readings() -> Iterator[Reading]:
    """Yield the same number of readings for each station."""
    for number in range(READINGS):
        yield Reading(station=f"station-{number % STATIONS}", celsius=20.0 + number % 7)


def count(channel: Channel, index: int, enough: int = READINGS) -> Counter[str]:
    """Count as member `index` of two, to the end or until `enough` were counted."""
    counted: Counter[str] = Counter()
    with channel.reader(group="counts", index=index, size=2) as reader:
        while not reader.finished and counted.total() < enough:
            records = reader.read(min(50, enough - counted.total()), timeout=1.0)
            counted.update(record["station"] for record in records)
            # The next instance in this place continues after these records.
            reader.commit()
    return counted


def main() -> None:
    with Gateway() as gateway, ThreadPoolExecutor() as replicas:
        channel = gateway.channel("counted-readings", schema=Reading, partitions=4)
        first = replicas.submit(count, channel, 0)
        second = replicas.submit(count, channel, 1, enough=100)
        channel.wait_for(readers=2, timeout_s=60)
        with channel.writer() as writer:
            writer.write(readings())
            writer.flush()
            before = second.result()
            second = replicas.submit(count, channel, 1)
        counted = first.result() + before + second.result()
    print(f"{before.total()} readings counted before the restart")
    for station, readings_of_it in sorted(counted.items()):
        print(station, readings_of_it)
    print(f"{counted.total()} readings counted")


if __name__ == "__main__":
    main()
