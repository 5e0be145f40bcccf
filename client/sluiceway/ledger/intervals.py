"""Delivered intervals: offsets from delivery reports, an attempt's part of a manifest."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, Message

from sluiceway.errors import DeliveryFailed
from sluiceway.kafka.producer import OnDelivery
from sluiceway.rest.ledger_models import Interval, Manifest
from sluiceway.rest.models import Connection

__all__ = ["DeliveredIntervals", "WrittenRecords"]

_UNKNOWN: Final = -1_000_000
"""A number below every offset that librdkafka reports."""


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

    A report with the expected offset costs one comparison. Offsets must increase in the order of
    the reports, which is the order of sending: after a duplicate sequence number librdkafka may
    report no offset, or count up from -1. Such a report counts as a failed delivery.

    Reports are served by one thread at a time, of partitions below `partitions`. With
    `records_in`, each message may hold several records; without, it holds one.
    """

    def __init__(
        self, partitions: int, records_in: Callable[[bytes | None], int] | None = None
    ) -> None:
        self._records_in = records_in
        # By partition, the begin of the current interval and the next expected offset. Lists are
        # fast for a lookup per report.
        self._first = [_UNKNOWN] * partitions
        self._next = [_UNKNOWN] * partitions
        self._closed: dict[int, list[Interval]] = {}
        self._records: dict[int, int] = {}

    @classmethod
    def of(
        cls, connection: Connection, records_in: Callable[[bytes | None], int]
    ) -> "DeliveredIntervals | None":
        """Return the intervals of a writer of an exactly-once channel; None for other channels."""
        if connection.delivery != "exactly_once":
            return None
        return cls(connection.partitions, records_in if connection.format == "arrow" else None)

    def reporting(self, on_failure: OnDelivery) -> OnDelivery:
        """Return the delivery callback of a producer; `on_failure` gets the failed deliveries."""
        following = self._next
        start = self._start
        records_in, records = self._records_in, self._records

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                on_failure(error, message)
                return
            partition = message.partition()
            offset = message.offset()
            if following[partition] == offset:
                following[partition] = offset + 1
            elif not start(partition, offset):
                on_failure(_disordered(offset, following[partition]), message)

        if records_in is None:
            return on_delivery
        count = records_in

        def on_delivery_of_several(error: KafkaError | None, message: Message) -> None:
            on_delivery(error, message)
            if error is None:
                partition = message.partition()
                records[partition] = records.get(partition, 0) + count(message.value())

        return on_delivery_of_several

    def grow(self, partitions: int) -> None:
        """Accept reports of partitions below this number."""
        added = [_UNKNOWN] * (partitions - len(self._next))
        # In place: the delivery callback has the list.
        self._first.extend(added)
        self._next.extend(added)

    def take(self) -> WrittenRecords:
        """Return and forget the records delivered since the last call."""
        for partition, end in enumerate(self._next):
            self._close(partition)
            self._first[partition] = end
        manifest = {p: tuple(each) for p, each in sorted(self._closed.items())}
        if self._records_in is None:
            counts = {
                partition: sum(end - first for first, end in intervals)
                for partition, intervals in manifest.items()
            }
        else:
            counts = dict(sorted(self._records.items()))
        self._closed.clear()
        self._records.clear()
        return WrittenRecords(manifest=manifest, counts=counts)

    def _start(self, partition: int, offset: int) -> bool:
        """Begin an interval with an unexpected offset; False if the offset is invalid."""
        if offset < 0 or offset < self._next[partition]:
            return False
        self._close(partition)
        self._first[partition] = offset
        self._next[partition] = offset + 1
        return True

    def _close(self, partition: int) -> None:
        first, end = self._first[partition], self._next[partition]
        if first < end:
            self._closed.setdefault(partition, []).append(Interval(first, end))


def _disordered(offset: int, expected: int) -> KafkaError:
    problem = (
        "the delivery report has no offset"
        if offset < 0
        else f"the delivery report has the offset {offset} after {expected - 1}"
    )
    return KafkaError(KafkaError._FAIL, problem)
