"""Finds the group that lags behind in a channel, and waits until it has caught up.

The gateway computes the lag from the positions that readers report and the end offsets.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/find_lagging_group.py
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from sluiceway import Channel, ChannelReader, Gateway, Heartbeat, StatusReport

PARCELS = 1_000


@dataclass
class Parcel:
    """A record of the channel."""

    number: int
    kilograms: float


def awaited(channel: Channel, holds: Callable[[dict[str, int | None]], bool]) -> StatusReport:
    """Return the first report whose lags by group satisfy a condition."""
    deadline_s = time.monotonic() + 60
    while True:
        report = channel.report()
        if holds({group.name: group.lag_messages for group in report.groups}):
            return report
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the gateway reports {report.groups}")
        time.sleep(0.2)


def take(reader: ChannelReader, parcels: int) -> None:
    """Read a number of parcels, and commit."""
    reader.read(parcels, timeout=None)
    reader.commit()


def main() -> None:
    with Gateway() as gateway:
        heartbeat = Heartbeat(interval_ms=500, timeout_ms=10_000)
        channel = gateway.channel("parcels", schema=Parcel, partitions=2, heartbeat=heartbeat)
        with channel.writer() as writer:
            writer.write(Parcel(number=n, kilograms=n % 30 / 2) for n in range(PARCELS))
        with (
            channel.reader(group="labels") as labels,
            channel.reader(group="scales") as scales,
        ):
            take(labels, PARCELS)
            take(scales, 400)
            report = awaited(channel, lambda lags: lags == {"labels": 0, "scales": 600})
            for group in report.groups:
                print(f"{group.name}: lag {group.lag_messages}")
            slowest = max(report.groups, key=lambda group: group.lag_messages or 0)
            print(f"{slowest.name} lags behind")
            take(scales, 600)
            report = awaited(channel, lambda lags: set(lags.values()) == {0})
            # Neither stalled, stopped, falling behind nor rewound.
            print(f"progress of both: {[group.progress for group in report.groups]}")


if __name__ == "__main__":
    main()
