"""Of two groups that read one channel, find the one that is behind, and see it catch up.

The gateway tells how far each group is, by what its readers were handed out and by the ends of the
channel; whoever asks leaves no trace.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/who_holds_up_whom.py
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from sluiceway import Channel, ChannelReader, Gateway, Heartbeat, StatusReport

PARCELS = 1_000


@dataclass
class Parcel:
    """What one record of the channel looks like."""

    number: int
    kilograms: float


def awaited(channel: Channel, holds: Callable[[dict[str, int | None]], bool]) -> StatusReport:
    """Return the first report in which the groups' lags are so."""
    deadline_s = time.monotonic() + 60
    while True:
        report = channel.report()
        if holds({group.name: group.lag_messages for group in report.groups}):
            return report
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the gateway shows {report.groups}")
        time.sleep(0.2)


def take(reader: ChannelReader, parcels: int) -> None:
    """Take so many parcels and keep the place."""
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
                print(f"{group.name}: {group.lag_messages} parcels left")
            slowest = max(report.groups, key=lambda group: group.lag_messages or 0)
            print(f"{slowest.name} holds up whoever needs both")
            take(scales, 600)
            report = awaited(channel, lambda lags: set(lags.values()) == {0})
            # By how they move: stalled, stopped, falling behind or gone back they are not.
            print(f"both have all parcels: {[group.progress for group in report.groups]}")


if __name__ == "__main__":
    main()
