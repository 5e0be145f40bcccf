"""Asynchronous commits of a consumer, and their reports for `on_commit`."""

import collections
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import KafkaError, TopicPartition

from sluiceway.confluent.errors import FAIL, kafka_error
from sluiceway.confluent.partition_offsets import Partition, by_channel
from sluiceway.errors import GatewayUnavailable, SluicewayError
from sluiceway.rest.endpoints import Position
from sluiceway.runtime.threads import Signal

__all__ = ["AsyncCommitter", "committed_partitions"]

LOGGER = logging.getLogger("sluiceway.confluent")

_SLICE_S = 0.2
"""A signal right before a thread blocks does not wake it."""

Report = tuple[KafkaError | None, list[TopicPartition]]


class AsyncCommitter:
    """Commits with `commit`, for the offsets of one channel; its calls never overlap.

    A thread runs while there are requests. Waiting requests are committed together, with the
    highest offset of each partition. Every request gets its own report; polls, which `wakeup`
    wakes, deliver `reports`.
    """

    def __init__(
        self, commit: Callable[[str, Mapping[int, Position]], None], *, wakeup: Signal
    ) -> None:
        self._commit_channel = commit
        self._wakeup = wakeup
        self._lock = threading.Lock()
        self._queue_lock = threading.Lock()
        self._waiting: list[dict[Partition, Position]] = []
        self._flushes: list[Signal] = []
        self.idle = True
        """True while no commit waits or runs."""
        self.reports: collections.deque[Report] = collections.deque()

    def commit(self, offsets: Mapping[Partition, Position]) -> dict[str, SluicewayError]:
        """Commit, and return the failures by channel."""
        failures: dict[str, SluicewayError] = {}
        with self._lock:
            for channel, own in by_channel(offsets).items():
                try:
                    self._commit_channel(channel, own)
                except SluicewayError as error:
                    failures[channel] = error
        return failures

    def submit(self, offsets: Mapping[Partition, Position]) -> None:
        """Commit in the background, and report."""
        with self._queue_lock:
            self._waiting.append(dict(offsets))
            if self.idle:
                # The thread ends with its work: a waiting one would keep an abandoned consumer
                # alive.
                threading.Thread(target=self._run, name="sluiceway-commit", daemon=True).start()
                self.idle = False

    def flush(self) -> None:
        """Wait until no commit is waiting or running."""
        idle = Signal()
        with self._queue_lock:
            if self.idle:
                return
            self._flushes.append(idle)
        while not idle.wait(_SLICE_S):
            pass

    def _run(self) -> None:
        while True:
            with self._queue_lock:
                requests, self._waiting = self._waiting, []
                if not requests:
                    self.idle = True
                    while self._flushes:
                        self._flushes.pop().set()
                    return
            try:
                self._commit_together(requests)
            except Exception as error:
                # Without this thread, `flush` would wait forever.
                LOGGER.exception("commits failed")
                failure = KafkaError(FAIL, repr(error))
                for each in requests:
                    self._report(each, dict.fromkeys((channel for channel, _ in each), failure))

    def _commit_together(self, requests: Sequence[dict[Partition, Position]]) -> None:
        together: dict[Partition, Position] = {}
        for each in requests:
            together |= {key: max(at, together.get(key, at)) for key, at in each.items()}
        failures = self.commit(together)
        # Commit one by one to find the request that failed, unless the gateway is unavailable.
        unavailable = all(isinstance(each, GatewayUnavailable) for each in failures.values())
        for each in requests:
            own = failures if unavailable or len(requests) == 1 else self.commit(each)
            self._report(each, {channel: kafka_error(error) for channel, error in own.items()})

    def _report(
        self, offsets: Mapping[Partition, Position], errors: Mapping[str, KafkaError]
    ) -> None:
        first = next((errors[channel] for channel, _ in offsets if channel in errors), None)
        self.reports.append((first, committed_partitions(offsets, errors)))
        self._wakeup.set()


class CommittedPartition(TopicPartition):  # type: ignore[misc]
    """A partition of a commit. confluent-kafka's own class cannot hold an error."""

    error: KafkaError | None = None


def committed_partitions(
    offsets: Mapping[Partition, Position], errors: Mapping[str, KafkaError]
) -> list[TopicPartition]:
    """Return positions in confluent-kafka's class, with the error of their channel's commit."""
    found: list[TopicPartition] = []
    for (channel, number), at in offsets.items():
        described = () if at.metadata is None else (at.metadata,)
        partition = CommittedPartition(channel, number, at.offset, *described)
        partition.error = errors.get(channel)
        found.append(partition)
    return found
