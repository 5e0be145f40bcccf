"""Readers that watch exactly-once channels during faults, and read them again at the end."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence

from tests.chaos.checker import Record, Seen
from tests.chaos.journal import record_of

from sluiceway import ChannelReader, Gateway
from sluiceway.api.endpoints import Position
from sluiceway.api.ledger import OpenBatch
from sluiceway.errors import SluicewayError

_READ = 200
_POLL_S = 0.2
_PAUSE_S = 0.5
_EVENTS = 1000


class Watcher:
    """Reads a channel once from its beginning, across failures of gateways and brokers.

    With a `partition`, it reads this one only; without, also those that are added.
    """

    def __init__(self, urls: Sequence[str], channel: str, partition: int | None) -> None:
        self.channel, self.partition = channel, partition
        self.seen: list[Seen] = []
        self.failures = 0
        self.failure: SluicewayError | None = None
        self._reader: ChannelReader | None = None
        self._urls = urls
        self._positions: dict[int, Position] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def describe(self) -> str:
        """Return what it has read, and what its reader knows."""
        reader = self._reader
        lag: object = None
        try:
            lag = None if reader is None else reader.lag()
        except SluicewayError as error:
            lag = error
        return (
            f"{self.channel} partition {self.partition}: {len(self.seen)} records, "
            f"{self.failures} failures, the last one {self.failure!r}; positions "
            f"{self._positions}, reader {reader!r}, lag {lag}"
        )

    def _run(self) -> None:
        while not self._ended.is_set():
            url = self._urls[self.failures % len(self._urls)]
            try:
                with Gateway(url, timeout_s=5, control_grace_s=10) as gateway:
                    self._read(gateway)
            except SluicewayError as error:
                self.failures += 1
                self.failure = error
                self._ended.wait(_PAUSE_S)

    def _read(self, gateway: Gateway) -> None:
        channel = gateway.channel(self.channel)
        partitions = None if self.partition is None else [self.partition]
        start = self._positions or "earliest"
        with channel.reader(until=None, partitions=partitions, start=start) as reader:
            self._reader = reader
            while not self._ended.is_set():
                rows = reader.read(_READ, timeout=_POLL_S)
                now_s = time.monotonic()
                self.seen += [Seen(record_of(row), now_s) for row in rows]
                self._positions = dict(reader.position())


class Watch:
    """Watchers of some channels and of each of their partitions, and requests for batches."""

    def __init__(self, urls: Sequence[str], channels: Sequence[str], partitions: int) -> None:
        self._urls = urls
        self._followers = {channel: Watcher(urls, channel, None) for channel in channels}
        self._watchers: dict[str, list[Watcher]] = defaultdict(list)
        for channel in channels:
            self.watch(channel, partitions)

    @property
    def channels(self) -> list[str]:
        """The names of the channels."""
        return [*self._followers]

    def watch(self, channel: str, partitions: int) -> None:
        """Watch each of the first `partitions` partitions of a channel."""
        watchers = self._watchers[channel]
        watchers += [Watcher(self._urls, channel, p) for p in range(len(watchers), partitions)]

    def watch_added(self, channel: str) -> None:
        """Watch the partitions that were added after `grow` had failed."""
        with Gateway(self._urls[0]) as gateway:
            self.watch(channel, gateway.channel(channel).partitions)

    def count(self, channel: str) -> int:
        """Return the number of records that every kind of watcher has read so far."""
        of_partitions = sum(len(watcher.seen) for watcher in self._watchers[channel])
        return min(of_partitions, len(self._followers[channel].seen))

    def describe(self, channel: str) -> list[str]:
        """Return what each watcher of a channel has read."""
        return [
            watcher.describe() for watcher in (*self._watchers[channel], self._followers[channel])
        ]

    def seen(self, channel: str) -> dict[int, list[Seen]]:
        """Return by partition the records that its own watcher has read."""
        return {watcher.partition or 0: watcher.seen for watcher in self._watchers[channel]}

    def followed(self, channel: str) -> list[Seen]:
        """Return the records that the watcher of the whole channel has read."""
        return self._followers[channel].seen

    def failures(self) -> int:
        """Return the number of times that watchers were opened again."""
        return sum(watcher.failures for watcher in self._all())

    def final(self, channel: str) -> dict[int, list[Record]]:
        """Return by partition the records that a new reader returns."""
        records = {}
        with Gateway(self._urls[0]) as gateway:
            opened = gateway.channel(channel)
            self.watch(channel, opened.partitions)
            for partition in range(opened.partitions):
                with opened.reader(until="now", partitions=[partition]) as reader:
                    records[partition] = [record_of(row) for row in reader]
        return records

    def grow(self, channel: str, most: int) -> bool:
        """Add a partition to a channel; return False if it has `most` partitions."""
        with Gateway(self._urls[0], timeout_s=5) as gateway:
            opened = gateway.channel(channel)
            if opened.partitions >= most:
                return False
            opened.update(partitions=opened.partitions + 1, wait_s=20)
            self.watch(channel, opened.partitions)
        return True

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
        for watcher in self._all():
            watcher.close()

    def _all(self) -> list[Watcher]:
        return [
            *self._followers.values(),
            *(watcher for watchers in self._watchers.values() for watcher in watchers),
        ]
