"""Delivered intervals: offsets from delivery reports, an attempt's part of a manifest."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaError

from sluiceway.errors import DeliveryFailed
from sluiceway.kafka.messages import DeliveryReport
from sluiceway.rest.ledger_models import Interval, Manifest
from sluiceway.rest.models import Connection

__all__ = ["DeliveredIntervals", "WrittenRecords"]


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

    def require(self, records: int) -> None:
        """Raise DeliveryFailed unless these are all of the `records` that were sent."""
        if self.records != records:
            raise DeliveryFailed(
                partition=None,
                reason="not every message has a delivery report with its offset",
                written_records=self.records,
                failed_records=records - self.records,
            )

    @classmethod
    def merged(cls, parts: "Iterable[WrittenRecords]") -> "WrittenRecords":
        """Return the union of the parts of several attempts, with adjacent intervals joined."""
        found: dict[int, list[Interval]] = {}
        counts: dict[int, int] = {}
        for part in parts:
            for partition, intervals in part.manifest.items():
                found.setdefault(partition, []).extend(intervals)
            for partition, count in part.counts.items():
                counts[partition] = counts.get(partition, 0) + count
        return cls(
            manifest={p: tuple(_joined(sorted(found[p]))) for p in sorted(found)},
            counts=dict(sorted(counts.items())),
        )


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Join adjacent sorted intervals; overlapping ones stay, and the gateway refuses them."""
    joined: list[Interval] = []
    for each in intervals:
        if joined and joined[-1].end == each.first:
            joined[-1] = Interval(joined[-1].first, each.end)
        else:
            joined.append(each)
    return joined


class DeliveredIntervals:
    """Collects the offsets of delivered messages, by partition, from delivery reports.

    Offsets must increase in the order of the reports, which is the order of sending: after a
    duplicate sequence number librdkafka may report no offset, or count up from -1. Such a report
    counts as a failed delivery.

    One thread adds reports; another one may `take` once no report is missing.
    """

    def __init__(self) -> None:
        self._intervals: dict[int, list[Interval]] = {}
        self._records: dict[int, int] = {}
        # By partition, the lowest offset that the next report may have.
        self._next: dict[int, int] = {}

    @classmethod
    def of(cls, connection: Connection) -> "DeliveredIntervals | None":
        """Return the intervals of a writer of an exactly-once channel; None for other channels."""
        return cls() if connection.delivery == "exactly_once" else None

    def add(self, report: DeliveryReport) -> KafkaError | None:
        """Add the offsets of delivered messages; return an error if these cannot be right."""
        partition, first = report.partition, report.first
        end = first + report.messages
        least = self._next.get(partition, 0)
        if first < least:
            return _disordered(first, least)
        intervals = self._intervals.setdefault(partition, [])
        if intervals and intervals[-1].end == first:
            intervals[-1] = Interval(intervals[-1].first, end)
        else:
            intervals.append(Interval(first, end))
        self._next[partition] = end
        self._records[partition] = self._records.get(partition, 0) + report.records
        return None

    def take(self) -> WrittenRecords:
        """Return and forget the records delivered since the last call."""
        intervals, self._intervals = self._intervals, {}
        records, self._records = self._records, {}
        return WrittenRecords(
            manifest={p: tuple(intervals[p]) for p in sorted(intervals)},
            counts=dict(sorted(records.items())),
        )


def _disordered(offset: int, expected: int) -> KafkaError:
    problem = (
        "the delivery report has no offset"
        if offset < 0
        else f"the delivery report has the offset {offset} after {expected - 1}"
    )
    return KafkaError(KafkaError._FAIL, problem)
