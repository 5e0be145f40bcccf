"""Writes readings of ten stations into the channel `readings`, and creates it if it is absent.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/write_readings.py 1000
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sluiceway import Gateway


@dataclass
class Reading:
    """A record of the channel."""

    station: str
    at: datetime
    celsius: float
    note: str | None = None


def readings(count: int) -> Iterator[Reading]:
    """Yield a reading per minute from each of ten stations."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(count):
        minute, station = divmod(number, 10)
        yield Reading(
            station=f"station-{station}",
            at=start + timedelta(minutes=minute),
            celsius=20.0 + station + minute % 10 / 10,
        )


def main(count: int) -> None:
    with Gateway() as gateway:
        channel = gateway.channel("readings", schema=Reading, partitions=4)
        # The key sends readings of one station to one partition, so they stay in order.
        with channel.writer(key="station") as writer:
            writer.write(readings(count))
    print(f"{count} readings written")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
