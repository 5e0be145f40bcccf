"""Asynchronous commits of a consumer, and their reports for `on_commit`."""

import collections
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import KafkaError, TopicPartition

from sluiceway.confluent.assignment import by_channel
from sluiceway.confluent.errors import FAIL, kafka_error
from sluiceway.confluent.fetcher import Partition, topic_partitions
from sluiceway.errors import GatewayUnavailable, SluicewayError

__all__ = ["AsyncCommitter"]

LOGGER = logging.getLogger("sluiceway.confluent")

Report = tuple[KafkaError | None, list[TopicPartition]]


class AsyncCommitter:
    """Commits by `commit`, which takes offsets of one channel; calls of it never overlap.

    A thread runs while there are requests. Those that wait for it are committed together, the
    highest offset of each partition. Every request gets its own report; `reports` are handed out
    by polls, which `wakeup` wakes.
    """

    def __init__(
        self, commit: Callable[[str, Mapping[int, int]], None], *, wakeup: threading.Event
    ) -> None:
        self._commit_channel = commit
        self._wakeup = wakeup
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._waiting: list[dict[Partition, int]] = []
        self.idle = True
        """Whether no commit waits or is under way."""
        self.reports: collections.deque[Report] = collections.deque()

    def commit(self, offsets: Mapping[Partition, int]) -> dict[str, SluicewayError]:
        """Commit, and return the failures by channel."""
        failures: dict[str, SluicewayError] = {}
        with self._lock:
            for channel, own in by_channel(offsets).items():
                try:
                    self._commit_channel(channel, own)
                except SluicewayError as error:
                    failures[channel] = error
        return failures

    def submit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit in the background, and report."""
        with self._changed:
            self._waiting.append(dict(offsets))
            if self.idle:
                # Ends with its work: a thread that waits would keep an abandoned consumer alive.
                threading.Thread(target=self._run, name="sluiceway-commit", daemon=True).start()
                self.idle = False

    def report(
        self, offsets: Mapping[Partition, int], failures: Mapping[str, SluicewayError]
    ) -> None:
        """Report a commit."""
        first = next((failures[channel] for channel, _ in offsets if channel in failures), None)
        self._add_report(first and kafka_error(first), offsets)

    def flush(self) -> None:
        """Wait until no commit waits or is under way."""
        with self._changed:
            self._changed.wait_for(lambda: self.idle)

    def _run(self) -> None:
        while True:
            with self._changed:
                requests, self._waiting = self._waiting, []
                if not requests:
                    self.idle = True
                    self._changed.notify_all()
                    return
            try:
                self._commit_together(requests)
            except Exception as error:
                # Without this thread, `flush` would wait forever.
                LOGGER.exception("commits failed")
                for each in requests:
                    self._add_report(KafkaError(FAIL, repr(error)), each)

    def _commit_together(self, requests: Sequence[dict[Partition, int]]) -> None:
        together: dict[Partition, int] = {}
        for each in requests:
            together |= {key: max(at, together.get(key, at)) for key, at in each.items()}
        failures = self.commit(together)
        # Commit one by one to find the request that failed, unless the gateway is unavailable.
        away = all(isinstance(each, GatewayUnavailable) for each in failures.values())
        for each in requests:
            self.report(each, failures if away or len(requests) == 1 else self.commit(each))

    def _add_report(self, error: KafkaError | None, offsets: Mapping[Partition, int]) -> None:
        self.reports.append((error, topic_partitions(offsets)))
        self._wakeup.set()
