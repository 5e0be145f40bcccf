"""Watches the endpoints of a channel, without becoming one.

The writer sends its harbour to the channel's readers, as the payload of its heartbeats. A watcher
gets the payload, state, health and counters of each endpoint.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/watch_status.py
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

from sluiceway import Channel, Gateway, Heartbeat, StatusReport

TIDES = 12


@dataclass
class Tide:
    """A record of the channel."""

    hour: int
    metres: float


def first(channel: Channel, holds: Callable[[StatusReport], bool]) -> StatusReport:
    """Return the first report that satisfies a condition."""
    return next(report for report in channel.watch(every_s=0.1) if holds(report))


def is_complete(report: StatusReport) -> bool:
    """Whether both endpoints are healthy and have moved all tides."""
    found = [*report.writers, *(each.endpoint for each in report.readers)]
    moved = [each.counters.get("records") for each in found if each.health == "healthy"]
    return moved == [TIDES, TIDES]


def is_closed(report: StatusReport) -> bool:
    """Whether all endpoints are closed."""
    found = [*report.writers, *(each.endpoint for each in report.readers)]
    return all(each.state == "closed" for each in found)


def watch(channel: Channel, seen: Event) -> list[str]:
    """Describe the endpoints when all tides are moved, set `seen`, and describe their end."""
    report = first(channel, is_complete)
    (writer,), (reader,) = report.writers, (each.endpoint for each in report.readers)
    lines = [
        f"{writer.place} is {writer.state} and {writer.health}, with the payload {writer.payload}",
        f"{reader.place} is {reader.state} and {reader.health}",
    ]
    seen.set()
    report = first(channel, is_closed)
    lines += [
        f"{each.place} is {each.state} after {each.counters['records']:g} tides"
        for each in (*report.writers, *(each.endpoint for each in report.readers))
    ]
    return lines


def main() -> None:
    with Gateway() as gateway, ThreadPoolExecutor() as pool:
        heartbeat = Heartbeat(interval_ms=200, timeout_ms=10_000)
        channel = gateway.channel("tides", schema=Tide, heartbeat=heartbeat)
        seen, received = Event(), Event()
        with (
            channel.writer(group="gauge") as gauge,
            channel.reader(group="model", until=None) as model,
        ):
            gauge.payload = {"harbour": "Brest"}
            # Called in the heartbeat thread, at once and after each change of a writer.
            model.on_status(lambda writers: received.set() if writers[0].payload else None)
            watching = pool.submit(watch, channel, seen)
            gauge.write(Tide(hour=hour, metres=hour % 6) for hour in range(TIDES))
            model.read(TIDES, timeout=None)
            seen.wait(60)
            print(f"the reader received its writer's payload: {received.wait(60)}")
        for line in watching.result(60):
            print(line)
        print(f"the channel had {len(channel.endpoints())} endpoints")


if __name__ == "__main__":
    main()
