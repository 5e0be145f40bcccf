"""Asynchronous commits of a consumer, and their reports for `on_commit`."""

import collections
import logging
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import KafkaError, TopicPartition

from sluiceway import Position
from sluiceway.confluent.errors import FAIL, kafka_error
from sluiceway.confluent.partition_offsets import Partition, by_channel
from sluiceway.errors import SluicewayError
from sluiceway.spi import Background, Signal

__all__ = ["AsyncCommitter", "committed_partitions"]

LOGGER = logging.getLogger("sluiceway.confluent")

_SLICE_S = 0.2
"""A signal right before a thread blocks does not wake it."""

Offsets = dict[Partition, Position]
Report = Callable[[KafkaError | None, list[TopicPartition]], object]


class AsyncCommitter:
    """Commits in the background by `commit`, which commits the offsets of one channel.

    Waiting requests are committed together, with the highest offset of each partition. `report`
    is called for every request, in the thread that commits.
    """

    def __init__(
        self, commit: Callable[[str, Mapping[int, Position]], None], *, report: Report
    ) -> None:
        self._commit_channel = commit
        self._report_request = report
        self._background = Background()
        # Requests, and signals of the threads that wait for those before them.
        self._waiting: collections.deque[Offsets | Signal] = collections.deque()

    @property
    def idle(self) -> bool:
        """True while no commit waits or runs."""
        return not self._waiting

    def commit(self, offsets: Mapping[Partition, Position]) -> dict[str, SluicewayError]:
        """Commit, and return the failures by channel."""
        failures: dict[str, SluicewayError] = {}
        for channel, own in by_channel(offsets).items():
            try:
                self._commit_channel(channel, own)
            except SluicewayError as error:
                failures[channel] = error
        return failures

    def submit(self, offsets: Mapping[Partition, Position]) -> None:
        """Commit in the background, and report."""
        self._waiting.append(dict(offsets))
        self._background.run(self._commit_waiting)

    def flush(self) -> None:
        """Wait until no earlier commit is waiting or running."""
        if self.idle:
            return
        done = Signal()
        self._waiting.append(done)
        while not done.wait(0):
            # Again: an interrupt, or a lack of threads, may have prevented it.
            self._background.run(self._commit_waiting)
            done.wait(_SLICE_S)

    def _commit_waiting(self) -> None:
        entries = list(self._waiting)
        requests = [entry for entry in entries if not isinstance(entry, Signal)]
        try:
            self._commit_together(requests)
        except BaseException as error:
            # Without a report, `flush` would wait forever.
            LOGGER.exception("commits failed")
            failure = KafkaError(FAIL, repr(error))
            for offsets in requests:
                self._report(offsets, {channel: failure for channel, _ in offsets})
        for entry in entries:
            self._waiting.popleft()
            if isinstance(entry, Signal):
                entry.set()

    def _commit_together(self, requests: Sequence[Offsets]) -> None:
        together: Offsets = {}
        for offsets in requests:
            together |= {key: max(at, together.get(key, at)) for key, at in offsets.items()}
        failures = self.commit(together)
        # Commit one by one to find the request that is refused; other errors are those of all.
        refused = any(error.is_final for error in failures.values())
        for offsets in requests:
            own = self.commit(offsets) if refused and len(requests) > 1 else failures
            self._report(offsets, {channel: kafka_error(error) for channel, error in own.items()})

    def _report(
        self, offsets: Mapping[Partition, Position], errors: Mapping[str, KafkaError]
    ) -> None:
        first = next((errors[channel] for channel, _ in offsets if channel in errors), None)
        self._report_request(first, committed_partitions(offsets, errors))


class CommittedPartition(TopicPartition):  # type: ignore[misc]
    """A partition of a commit. confluent-kafka's own class cannot hold an error."""

    error: KafkaError | None = None


def committed_partitions(
    offsets: Mapping[Partition, Position], errors: Mapping[str, KafkaError]
) -> list[TopicPartition]:
    """Return positions in confluent-kafka's class, with the error of their channel's commit."""
    partitions: list[TopicPartition] = []
    for (channel, number), at in offsets.items():
        described = () if at.metadata is None else (at.metadata,)
        partition = CommittedPartition(channel, number, at.offset, *described)
        partition.error = errors.get(channel)
        partitions.append(partition)
    return partitions
