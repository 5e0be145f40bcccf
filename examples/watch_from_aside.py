"""Somebody watches a channel from aside: who works there, what they tell each other, how they end.

A writer tells the readers of its channel, with its beats, which harbour it measures. Whoever
watches sees that, with states, health and counters, and is seen by nobody.

SLUICEWAY_URL=http://127.0.0.1:8900 python examples/watch_from_aside.py
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

from sluiceway import Channel, Gateway, Heartbeat, StatusReport

TIDES = 12


@dataclass
class Tide:
    """What one record of the channel looks like."""

    hour: int
    metres: float


def first(channel: Channel, holds: Callable[[StatusReport], bool]) -> StatusReport:
    """Watch until the channel stands like this."""
    return next(report for report in channel.watch(every_s=0.1) if holds(report))


def at_work(report: StatusReport) -> bool:
    """Whether all tides were written and read by those who are there."""
    found = [*report.writers, *(each.endpoint for each in report.readers)]
    return len(found) == 2 and all(each.counters.get("records") == TIDES for each in found)


def over(report: StatusReport) -> bool:
    """Whether both have come to their end."""
    found = [*report.writers, *(each.endpoint for each in report.readers)]
    return all(each.state == "closed" for each in found)


def watch(channel: Channel, seen: Event) -> list[str]:
    """Return what somebody sees who only watches; `seen`: that they are at work."""
    report = first(channel, at_work)
    (writer,), (reader,) = report.writers, (each.endpoint for each in report.readers)
    lines = [
        f"{writer.place} is {writer.state} and {writer.health}, and tells {writer.payload}",
        f"{reader.place} is {reader.state} and {reader.health}",
    ]
    seen.set()
    report = first(channel, over)
    lines += [
        f"{each.place} is {each.state} after {each.counters['records']:g} tides"
        for each in (*report.writers, *(each.endpoint for each in report.readers))
    ]
    return lines


def main() -> None:
    with Gateway() as gateway, ThreadPoolExecutor() as pool:
        heartbeat = Heartbeat(interval_ms=200, timeout_ms=10_000)
        channel = gateway.channel("tides", schema=Tide, heartbeat=heartbeat)
        seen, told = Event(), Event()
        with (
            channel.writer(group="gauge") as gauge,
            channel.reader(group="model", until=None) as model,
        ):
            gauge.payload = {"harbour": "Brest"}
            # Called in the thread of the beats, now and whenever a writer has changed.
            model.on_status(lambda writers: told.set() if writers[0].payload else None)
            watching = pool.submit(watch, channel, seen)
            gauge.write(Tide(hour=hour, metres=hour % 6) for hour in range(TIDES))
            model.read(TIDES, timeout=None)
            seen.wait(60)
            print(f"the model hears of its writer's harbour: {told.wait(60)}")
        for line in watching.result(60):
            print(line)
        print(f"{len(channel.endpoints())} have been here, as far as anybody knows")


if __name__ == "__main__":
    main()
