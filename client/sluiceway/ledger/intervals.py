"""Delivered intervals: offsets from delivery reports, an attempt's part of a manifest."""

import threading
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from confluent_kafka import KafkaError

from sluiceway.api.ledger import Interval, Manifest
from sluiceway.api.models import Connection
from sluiceway.errors import DeliveryFailed
from sluiceway.kafka.messages import DeliveryReport

__all__ = ["DeliveredIntervals", "WrittenRecords"]

_MAX_LOOSE: Final = 4096


@dataclass(frozen=True, kw_only=True)
class WrittenRecords:
    """Acknowledged records: by partition their intervals, and their number.

    Plain data that an attempt sends to the committing process.
    """

    manifest: Manifest = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """The number of records in all partitions."""
        return sum(self.counts.values())

    @property
    def ends(self) -> Mapping[int, int]:
        """By partition, the offset after the last record."""
        return {p: intervals[-1].end for p, intervals in self.manifest.items() if intervals}

    def require(self, records: int, reason: str = "") -> None:
        """Raise DeliveryFailed, with a reason, unless these are all `records` that were sent."""
        if self.records != records:
            raise DeliveryFailed(
                partition=None,
                reason=reason or "not every message has a delivery report with its offset",
                written_records=self.records,
                failed_records=records - self.records,
            )

    @classmethod
    def merged(cls, parts: "Iterable[WrittenRecords]") -> "WrittenRecords":
        """Return the union of the parts of several attempts, with adjacent intervals joined."""
        intervals: dict[int, list[Interval]] = defaultdict(list)
        counts: Counter[int] = Counter()
        for part in parts:
            for partition, own in part.manifest.items():
                intervals[partition] += own
            counts.update(part.counts)
        return cls(
            manifest={p: tuple(_joined(sorted(own))) for p, own in sorted(intervals.items())},
            counts=dict(sorted(counts.items())),
        )


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Join adjacent sorted intervals; overlapping ones stay, and the gateway refuses them."""
    joined: list[Interval] = []
    for interval in intervals:
        if joined and joined[-1].end == interval.first:
            joined[-1] = Interval(joined[-1].first, interval.end)
        else:
            joined.append(interval)
    return joined


@dataclass(slots=True)
class _PartitionOffsets:
    """The offsets of a partition: in sorted intervals, or loose."""

    firsts: "array[int]" = field(default_factory=partial(array, "q"))
    ends: "array[int]" = field(default_factory=partial(array, "q"))
    loose: "array[int]" = field(default_factory=partial(array, "q"))
    records: int = 0
    """The number of records in the intervals."""
    usable: bool = True
    """False once an offset was negative, or was reported twice."""

    def join(self) -> None:
        """Move the loose offsets into intervals."""
        offsets = self.loose[:]
        if not offsets:
            return
        # Other threads only append.
        del self.loose[: len(offsets)]
        # Messages that are reported at about the same time are in the last intervals.
        place = max(0, bisect_left(self.firsts, min(offsets)) - 1)
        firsts = np.append(self.firsts[place:], offsets)
        ends = np.append(self.ends[place:], firsts[-len(offsets) :] + 1)
        order = np.argsort(firsts, kind="stable")
        firsts, ends = firsts[order], ends[order]
        if firsts[0] < 0 or (firsts[1:] < ends[:-1]).any():
            self.usable = False
        gaps = np.flatnonzero(firsts[1:] != ends[:-1])
        self.firsts[place:] = array("q", firsts[np.append(0, gaps + 1)].tobytes())
        self.ends[place:] = array("q", ends[np.append(gaps, -1)].tobytes())
        # At last: after an interrupt, records are missing.
        self.records += len(offsets)


class DeliveredIntervals:
    """Collects the offsets of delivered messages, by partition, from delivery reports.

    After a duplicate sequence number librdkafka may report no offset, or count up from -1. Such
    messages count as not delivered, and so do those of an offset that was reported before.

    One thread adds reports of several messages; another one may `take` once no report is missing.
    Any thread may add single messages.
    """

    def __init__(self, *, max_loose: int = _MAX_LOOSE) -> None:
        """Hold at most this number of a partition's offsets one by one."""
        self._max_loose = max_loose
        self._partitions: dict[int, _PartitionOffsets] = {}
        # By partition, the lowest offset that the next report of several messages may have.
        self._next: dict[int, int] = {}
        # For changes of intervals. Reentrant, as a signal's handler may flush in between.
        self._lock = threading.RLock()

    @classmethod
    def of(cls, connection: Connection) -> "DeliveredIntervals | None":
        """Return the intervals of a writer of an exactly-once channel; None for other channels."""
        return cls() if connection.delivery == "exactly_once" else None

    def __len__(self) -> int:
        """Return the number of records."""
        with self._lock:
            partitions = list(self._partitions.values())
            return sum(offsets.records + len(offsets.loose) for offsets in partitions)

    def add(self, report: DeliveryReport) -> KafkaError | None:
        """Add the offsets of delivered messages; return an error if these cannot be right.

        Offsets must increase in the order of these reports, which is the order of sending.
        """
        partition, first = report.partition, report.first
        least = self._next.get(partition, 0)
        if first < least:
            problem = "no offset" if first < 0 else f"the offset {first} after {least - 1}"
            return KafkaError(KafkaError._FAIL, f"the delivery report has {problem}")
        offsets = self._partitions.get(partition) or self._of(partition)
        end = self._next[partition] = first + report.messages
        if offsets.ends and offsets.ends[-1] == first:
            offsets.ends[-1] = end
        else:
            offsets.firsts.append(first)
            offsets.ends.append(end)
        offsets.records += report.records
        return None

    def add_message(self, partition: int, offset: int) -> None:
        """Add the offset of a delivered message of one record, in any order."""
        offsets = self._partitions.get(partition) or self._of(partition)
        # Atomic: no thread loses the offset of another one.
        offsets.loose.append(offset)
        if len(offsets.loose) >= self._max_loose:
            with self._lock:
                offsets.join()

    def written(self) -> WrittenRecords:
        """Return the delivered records, without those of a partition with a wrong offset.

        Records that are missing fail `WrittenRecords.require`.
        """
        with self._lock:
            partitions = sorted(self._partitions.items())
            for _, offsets in partitions:
                offsets.join()
        manifest: dict[int, tuple[Interval, ...]] = {}
        counts: dict[int, int] = {}
        for partition, offsets in partitions:
            if offsets.usable:
                # They differ in number only after an interrupt, which loses records.
                pairs = zip(offsets.firsts, offsets.ends, strict=False)
                manifest[partition] = tuple(map(Interval._make, pairs))
                counts[partition] = offsets.records
        return WrittenRecords(manifest=manifest, counts=counts)

    def take(self) -> WrittenRecords:
        """Return the records delivered since the last call, and forget them."""
        written, self._partitions = self.written(), {}
        return written

    def _of(self, partition: int) -> _PartitionOffsets:
        # Atomic: two threads with the first offset of a partition get the same object.
        return self._partitions.setdefault(partition, _PartitionOffsets())
