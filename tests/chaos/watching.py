"""Readers that watch exactly-once channels during faults, and read them again at the end."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence

from tests.chaos.checker import Record, Seen
from tests.chaos.journal import record_of

from sluiceway import Gateway
from sluiceway.errors import SluicewayError
from sluiceway.rest.endpoints import Position
from sluiceway.rest.ledger_models import OpenBatch

_READ = 200
_POLL_S = 0.2
_PAUSE_S = 0.5
_EVENTS = 1000


class Watcher:
    """Reads a partition once from its beginning, across failures of gateways and brokers."""

    def __init__(self, urls: Sequence[str], channel: str, partition: int) -> None:
        self.channel, self.partition = channel, partition
        self.seen: list[Seen] = []
        self.failures = 0
        self._urls = urls
        self._position: Position | int = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            url = self._urls[self.failures % len(self._urls)]
            try:
                with Gateway(url, timeout_s=5, control_grace_s=10) as gateway:
                    self._read(gateway)
            except SluicewayError:
                self.failures += 1
                self._ended.wait(_PAUSE_S)

    def _read(self, gateway: Gateway) -> None:
        start = {self.partition: self._position}
        channel = gateway.channel(self.channel)
        with channel.reader(until=None, partitions=[self.partition], start=start) as reader:
            while not self._ended.is_set():
                rows = reader.read(_READ, timeout=_POLL_S)
                now_s = time.monotonic()
                self.seen += [Seen(record_of(row), now_s) for row in rows]
                self._position = reader.position()[self.partition]


class Watch:
    """Watchers of all partitions of some channels, and requests for their batches."""

    def __init__(self, urls: Sequence[str], channels: Sequence[str], partitions: int) -> None:
        self._urls = urls
        self._partitions = partitions
        self._watchers: dict[str, list[Watcher]] = defaultdict(list)
        for channel in channels:
            for partition in range(partitions):
                self._watchers[channel].append(Watcher(urls, channel, partition))

    def count(self, channel: str) -> int:
        """Return the number of records that were read from a channel so far."""
        return sum(len(each.seen) for each in self._watchers[channel])

    def seen(self, channel: str) -> dict[int, list[Seen]]:
        return {each.partition: each.seen for each in self._watchers[channel]}

    def failures(self) -> int:
        """Return the number of times that watchers were opened again."""
        return sum(each.failures for watchers in self._watchers.values() for each in watchers)

    def final(self, channel: str) -> dict[int, list[Record]]:
        """Return by partition the records that a new reader returns."""
        records = {}
        with Gateway(self._urls[0]) as gateway:
            for partition in range(self._partitions):
                opened = gateway.channel(channel)
                with opened.reader(until="now", partitions=[partition]) as reader:
                    records[partition] = [record_of(row) for row in reader]
        return records

    def open_batches(self, channel: str) -> tuple[OpenBatch, ...] | None:
        """Return a channel's open batches, or None while no gateway answers."""
        for url in self._urls:
            try:
                with Gateway(url, timeout_s=1) as gateway:
                    return gateway.channel(channel).commits(limit=1).open
            except SluicewayError:
                continue
        return None

    def ledger(self, channel: str) -> list[str]:
        """Return the ends of all batches of a channel from the gateway, the latest first."""
        lines: list[str] = []
        with Gateway(self._urls[0]) as gateway:
            opened, before = gateway.channel(channel), None
            while events := opened.commits(limit=_EVENTS, before=before).events:
                lines += map(repr, events)
                before = events[-1].number
        return lines

    def close(self) -> None:
        for watchers in self._watchers.values():
            for each in watchers:
                each.close()
