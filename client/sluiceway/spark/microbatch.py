"""Micro-batch planning: latest offsets, admission control, the stream reader.

The one place that knows which Spark can do what in a stream.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
from pyspark import __version__ as spark_version
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sluiceway.errors import OptionError
from sluiceway.kafka.consumer import OwnStream
from sluiceway.spark.batch_reader import InputSplit, at_time, loss_handler, records, shares
from sluiceway.spark.connections import Link
from sluiceway.spark.offsets import StreamOffset, offsets_at, ranges_between
from sluiceway.spark.options import StreamOptions
from sluiceway.spark.shipping import Shipped

_REFRESH_EVERY_S: Final = 5.0
_VERIFY_EVERY_S: Final = 5.0
_TUNING: Final[dict[str, object]] = {
    # Brokers that come back are met again so soon; librdkafka's own ten seconds are lost time.
    "reconnect.backoff.max.ms": 1000,
}


class MicroBatchPlanner:
    """The offsets of a channel as a streaming query plans by them; one for each query.

    Spark asks for the end every few milliseconds while a query is idle: one request to the brokers,
    for all partitions. Whether the channel has grown, and whether the topic is still the same, is
    asked every five seconds. While Kafka does not answer, a call waits, up to the options'
    `poll_timeout_ms`, and then raises KafkaUnavailable.
    """

    def __init__(self, link: Link, options: StreamOptions) -> None:
        self._link = link
        self._options = options
        self._stream = OwnStream(
            link.last, {**_TUNING, **options.kafka}, timeout_s=options.poll_timeout_ms / 1000
        )

    def start(self) -> StreamOffset:
        """Return where a query without a checkpoint starts.

        Raises OptionError, OffsetOutOfRange, TopicGone, KafkaUnavailable.
        """
        connection, options, stream = self._link.last, self._options, self._stream
        stream.verify()
        partitions = range(connection.partitions)
        marks = stream.watermarks(partitions)
        starts = offsets_at(
            "startingOffsets",
            options.starting,
            marks,
            at_time(stream, options.starting, partitions),
        )
        # Says what is wrong with offsets that were given, before the first batch.
        ranges_between(
            starts, {p: mark.end for p, mark in marks.items()}, marks, loss_handler(options)
        )
        return StreamOffset.at(connection, starts, options.group)

    def end(self) -> StreamOffset:
        """Return the offsets after what every partition holds now.

        Raises TopicGone, KafkaUnavailable, Conflict.
        """
        known = self._link.last.partitions
        connection = self._link.connection(max_age_s=_REFRESH_EVERY_S)
        if connection.partitions > known:
            self._stream.discover_partitions()
        self._stream.verify(max_age_s=_VERIFY_EVERY_S)
        ends = self._stream.ends(range(connection.partitions))
        return StreamOffset.at(connection, ends, self._options.group)

    def shares(self, start: StreamOffset, end: StreamOffset) -> list[InputSplit]:
        """Return what the tasks of a batch read, from `start` up to `end`.

        Partitions that `start` does not know are new, and begin at 0. Raises CheckpointMismatch
        for offsets of another topic and OffsetOutOfRange for what Kafka no longer keeps.
        """
        for offset in (start, end):
            offset.require_of(self._link.last)
        moved = _moved(start.next_offsets, end.next_offsets)
        if not moved:
            return []
        ranges = ranges_between(
            start.next_offsets,
            moved,
            self._stream.watermarks(moved),
            loss_handler(self._options),
        )
        return shares(self._link.known(), ranges, self._options)

    def close(self) -> None:
        """Let go of the connections to Kafka and to the gateway."""
        self._stream.close()
        self._link.close()


def _moved(start: Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
    return {p: offset for p, offset in end.items() if offset != start.get(p, 0)}


class ChannelStreamReader(Shipped, DataSourceStreamReader):
    """Plans micro-batches in a process of the query's own, reads them in tasks.

    `columns` are the columns to give, in that order. What Spark puts into the checkpoint is
    `StreamOffset`'s JSON. How Spark asks for the end of the next batch depends on its version: see
    `admission`.
    """

    def __init__(self, link: Link, options: StreamOptions, columns: StructType) -> None:
        self._link = link
        self._options = options
        self._columns = columns
        self._frontier: MicroBatchPlanner | None = None

    @property
    def frontier(self) -> MicroBatchPlanner:
        """What plans the batches; made when it is first used, which is never in a task."""
        if self._frontier is None:
            self._frontier = MicroBatchPlanner(self._link, self._options)
        return self._frontier

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint starts."""
        return self.frontier.start().to_json()

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Return one partition a task; Spark also asks, with `start` twice, on a restart."""
        shares = self.frontier.shares(StreamOffset.parse(start), StreamOffset.parse(end))
        return [InputPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Give the records of one piece, in order; what `records` raises fails the task."""
        return records(partition.value, self._options, self._columns)

    def stop(self) -> None:
        """Let go of Kafka."""
        if self._frontier is not None:
            self._frontier.close()
            self._frontier = None


try:
    limits: Any = import_module("pyspark.sql.streaming.datasource")
except ModuleNotFoundError:  # before Spark 4.2
    limits = None


def stream_reader(
    link: Link, options: StreamOptions, columns: StructType
) -> DataSourceStreamReader:
    """Return the reader for this Spark. Raises OptionError for an option that needs a later one."""
    if limits is not None:
        return LimitedStreamReader(link, options, columns)
    if options.max_offsets_per_trigger is not None:
        raise OptionError(
            f"maxOffsetsPerTrigger needs Spark 4.2 or later, this is Spark {spark_version}: leave "
            "it out, or upgrade Spark on driver and executors"
        )
    return WholeStreamReader(link, options, columns)


def admitted(start: Mapping[int, int], end: Mapping[int, int], limit: int) -> dict[int, int]:
    """Return the end of a batch of at most `limit` messages between `start` and `end`.

    Each partition gives by its share of what there is; what is left over by rounding goes to the
    shortest first, so that none waits for ever. Partitions that `start` lacks begin at 0.
    """
    waiting = {p: max(0, end[p] - start.get(p, 0)) for p in end}
    total = sum(waiting.values())
    if total <= limit:
        return dict(end)
    given = {p: limit * count // total for p, count in waiting.items()}
    left = limit - sum(given.values())
    for partition in sorted(waiting, key=lambda p: (waiting[p], p)):
        if left and given[partition] < waiting[partition]:
            given[partition] += 1
            left -= 1
    return {p: start.get(p, 0) + given[p] if waiting[p] else end[p] for p in end}


class WholeStreamReader(ChannelStreamReader):
    """A micro-batch takes all there is: Spark 4.1."""

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of what there is."""
        return self.frontier.end().to_json()


if limits is not None:

    class LimitedStreamReader(
        ChannelStreamReader,
        limits.SupportsTriggerAvailableNow,  # type: ignore[misc]
    ):
        """A micro-batch takes what the trigger and `maxOffsetsPerTrigger` let in."""

        _last: StreamOffset | None = None

        def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
            """Return what a batch takes unless the trigger says otherwise."""
            limit = self._options.max_offsets_per_trigger
            return limits.ReadAllAvailable() if limit is None else limits.ReadMaxRows(limit)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            """Read up to what there is now, in as many batches as it takes, and no further."""
            self._last = self.frontier.end()

        def latestOffset(  # type: ignore[override]  # noqa: N802 - Spark's name
            self, start: Mapping[str, Any], limit: Any
        ) -> dict[str, Any]:
            """Return the end of the batch that begins at `start`."""
            begin = StreamOffset.parse(start)
            end = self._last or self.frontier.end()
            if isinstance(limit, limits.ReadMaxRows):
                offsets = admitted(begin.next_offsets, end.next_offsets, limit.max_rows)
                end = replace(end, next_offsets=offsets)
            return end.to_json()

        def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            """Return the end of what there is, for the query's progress."""
            return self.frontier.end().to_json()


__all__ = ["ChannelStreamReader", "admitted", "stream_reader"]
