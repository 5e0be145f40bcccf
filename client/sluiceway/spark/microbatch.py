"""Micro-batch planning: latest offsets, admission control, the stream reader.

The only module that depends on the version of Spark's streaming API.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyspark import __version__ as spark_version
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sluiceway.errors import OffsetOutOfRange, OptionError, SchemaMismatch, SluicewayTimeout
from sluiceway.spark.batch_reader import (
    InputSplit,
    input_splits,
    loss_handler,
    read_reported,
)
from sluiceway.spark.offsets import StreamOffset, ranges_between, resolve_bound
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.readable_offsets import ReadableOffsets
from sluiceway.spark.worker import RefreshableConnection, Shipped, traced
from sluiceway.spi import tracing

__all__ = ["ChannelStreamReader", "limit_batch", "require_supported", "stream_reader"]

LOGGER = logging.getLogger(__name__)

_REFRESH_EVERY_S: Final = 5.0
_VERIFY_EVERY_S: Final = 5.0
_GATEWAY_TIMEOUT_S: Final = 3.0
_TUNING: Final[dict[str, object]] = {
    # librdkafka's default of 10 s delays a query after a broker's restart.
    "reconnect.backoff.max.ms": 1000,
}


def held_back(reason: str) -> NoReturn:
    """Raise SluicewayTimeout for committed records that an open batch holds back."""
    raise SluicewayTimeout(
        f"{reason}. Nothing was read. Start the query again when that batch has ended, or wait "
        'longer with .option("kafkaConsumer.pollTimeoutMs", ...). `sluiceway channels commits` '
        "lists open batches; a batch read waits for none"
    )


class MicroBatchPlanner:
    """Plans the micro-batches of one query.

    An idle query requests the end offsets every few milliseconds, with one request to the brokers
    for all partitions. New partitions and the topic's identity are checked every 5 s. While Kafka
    does not answer, a call waits for up to `poll_timeout_ms`, then raises KafkaUnavailable. An
    exactly-once channel ends at `stable`, which never goes back and below which runs are final, so
    a replayed micro-batch has the same records.
    """

    def __init__(
        self,
        source: RefreshableConnection,
        options: ReadOptions,
        *,
        refresh_every_s: float = _REFRESH_EVERY_S,
        verify_every_s: float = _VERIFY_EVERY_S,
    ) -> None:
        self._source = source
        self._options = options
        self._refresh_every_s, self._verify_every_s = refresh_every_s, verify_every_s
        self._timeout_s = options.poll_timeout_ms / 1000
        self._readable = ReadableOffsets(
            source,
            options,
            {**_TUNING, **options.kafka},
            timeout_s=self._timeout_s,
            gateway_timeout_s=_GATEWAY_TIMEOUT_S,
        )
        self._stream = self._readable.stream
        self._discovered = source.connection.partitions
        # Whether the commits of the query's checkpoint are compared with those of the gateway.
        self._checked = False

    def start(self) -> StreamOffset:
        """Return the start offset of a query without a checkpoint.

        Raises OptionError, OffsetOutOfRange, TopicGone, KafkaUnavailable.
        """
        connection, options, stream = self._source.connection, self._options, self._stream
        # The topic may have grown outside Sluiceway.
        in_kafka = stream.count_partitions(timeout_s=self._timeout_s, max_age_s=0.0)
        partitions = range(max(connection.partitions, in_kafka))
        self._readable.refresh()
        marks = self._readable.watermarks(partitions)
        starts = resolve_bound(
            "startingOffsets",
            options.starting,
            marks,
            lambda timestamp_ms: stream.offsets_at(timestamp_ms, partitions),
        )
        # Reports offsets out of range before the first batch.
        ends = {partition: mark.end for partition, mark in marks.items()}
        ranges_between(starts, ends, marks, loss_handler(options))
        return StreamOffset.of(connection, starts, options.group).as_query_start()

    def end(self) -> StreamOffset:
        """Return the end of every partition. Raises TopicGone, KafkaUnavailable, Conflict."""
        partitions = self._current_partitions()
        self._readable.follow()
        return self._offset(self._readable.ends(partitions))

    def final_end(self, on_timeout: Callable[[str], None]) -> StreamOffset:
        """Wait until all records committed now are readable, and return their end.

        It is a prefix by offsets, so a batch that is open now may be divided between this query and
        the next one.

        After `poll_timeout_ms`, `on_timeout` is called with the reason of the delay; if it returns,
        the result is the end of the readable records. Raises the errors of `end`, and GatewayError.
        """
        partitions = self._current_partitions()
        ends = self._readable.final_ends(partitions)
        self._readable.await_stable(ends, timeout_s=self._timeout_s, on_timeout=on_timeout)
        readable = self._readable.ends(partitions)
        marks = self._readable.watermarks(partitions, ends)
        return self._offset({p: min(end, marks[p].end) for p, end in readable.items()})

    def _offset(self, ends: Mapping[int, int]) -> StreamOffset:
        return StreamOffset.of(
            self._source.connection, ends, self._options.group, commit=self._readable.last_commit
        )

    def _current_partitions(self) -> range:
        """Return the partitions of the topic, also if it has grown outside Sluiceway."""
        self._source.refresh(max_age_s=self._refresh_every_s)
        in_kafka = self._stream.count_partitions(
            timeout_s=self._timeout_s, max_age_s=self._verify_every_s
        )
        if max(in_kafka, self._source.connection.partitions) > self._discovered:
            self._discovered = self._stream.discover_partitions()
        return range(self._discovered)

    def splits(self, start: StreamOffset, end: StreamOffset) -> list[InputSplit]:
        """Return the splits of the batch from `start` to `end`; new partitions begin at 0.

        Raises CheckpointMismatch for offsets of another topic, past the committed records or of
        commits that the gateway does not have, and OffsetOutOfRange.
        """
        for offset in (start, end):
            offset.require_topic_of(self._source.connection)
        commit = end.commit or start.commit
        if not self._checked and commit not in (None, self._readable.last_commit):
            self._readable.require(commit)
        self._checked = True
        starts = start.starts_until(end)
        ends = {p: offset for p, offset in end.next_offsets.items() if offset != starts.get(p, 0)}
        if not ends:
            return []
        marks = self._readable.checkpoint_watermarks(ends)
        ranges = ranges_between(starts, ends, marks, loss_handler(self._options))
        return input_splits(self._source, ranges, self._options, self._readable)

    def close(self) -> None:
        """Close the connections to Kafka and to the gateway."""
        self._readable.close()


class ChannelStreamReader(Shipped, DataSourceStreamReader):
    """Plans micro-batches in a worker process of the query and reads them in tasks.

    `columns` are the columns to return, in order. The checkpoint holds `StreamOffset.to_json`.
    Subclasses return the end of a batch, which depends on the version of Spark.
    """

    def __init__(
        self, source: RefreshableConnection, options: ReadOptions, columns: StructType
    ) -> None:
        self._source = source
        self._options = options
        self._columns = columns
        self._planner: MicroBatchPlanner | None = None

    @property
    def planner(self) -> MicroBatchPlanner:
        """The query's planner, created on first use. Tasks never use it."""
        if self._planner is None:
            self._planner = MicroBatchPlanner(self._source, self._options)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start offset of a query without a checkpoint."""
        return self.planner.start().to_json()

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Return one partition per task. Spark also calls it with equal offsets on a restart."""
        with traced("read", self._source.connection.channel_name, {}):
            splits = self.planner.splits(StreamOffset.parse(start), StreamOffset.parse(end))
            trace = tracing.carrier()
        return [InputPartition(replace(split, trace=trace)) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return a split's records in order. Raises the errors of `read_split`."""
        try:
            yield from read_reported(partition.value, self._options, self._columns)
        except SchemaMismatch as error:
            error.add_note(
                "A query keeps the schema with which its channel was loaded. Load the channel "
                "again and restart the query: it continues at its checkpoint, with the newest "
                "schema."
            )
            raise

    def stop(self) -> None:
        """Close the connections."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None


try:
    limits: Any = import_module("pyspark.sql.streaming.datasource")
except ModuleNotFoundError:  # before Spark 4.2
    limits = None


def stream_reader(
    source: RefreshableConnection, options: ReadOptions, columns: StructType
) -> DataSourceStreamReader:
    """Return the stream reader for this version of Spark.

    Raises OptionError for an option that needs a later version.
    """
    require_supported(options)
    if limits is not None:
        return LimitedStreamReader(source, options, columns)
    return UnlimitedStreamReader(source, options, columns)


def require_supported(options: ReadOptions) -> None:
    """Raise OptionError for an option that needs a later version of Spark."""
    if limits is None and options.max_offsets_per_trigger is not None:
        raise OptionError(
            "maxOffsetsPerTrigger, an option of streaming reads, needs Spark 4.2 or later, but "
            f"this is Spark {spark_version}: remove it, or upgrade Spark on driver and executors"
        )


def limit_batch(start: Mapping[int, int], end: Mapping[int, int], limit: int) -> dict[int, int]:
    """Return the end of a batch of at most `limit` messages between `start` and `end`.

    Partitions contribute in proportion to their backlog. The remainder of the division goes to
    the shortest backlogs first, so no partition starves. Partitions without a start begin
    at 0.
    """
    backlog = {p: max(0, end[p] - start.get(p, 0)) for p in end}
    total = sum(backlog.values())
    if total <= limit:
        return dict(end)
    admitted = {p: limit * count // total for p, count in backlog.items()}
    remainder = limit - sum(admitted.values())
    for partition in sorted(backlog, key=lambda p: (backlog[p], p)):
        if remainder and admitted[partition] < backlog[partition]:
            admitted[partition] += 1
            remainder -= 1
    return {p: start.get(p, 0) + admitted[p] if backlog[p] else end[p] for p in end}


class UnlimitedStreamReader(ChannelStreamReader):
    """Reads everything available in each micro-batch, for Spark 4.1.

    The trigger is unknown, so the first batch of any run waits for all committed records. The start
    of a batch is the last planned end: in a restarted query, Spark plans the checkpoint's end
    first, except with its wrapper for `availableNow`.
    """

    _settled = False
    _start: StreamOffset | None = None

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Return one partition per task."""
        self._start = StreamOffset.parse(end)
        return super().partitions(start, end)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the available messages."""
        if self._start is None and not self._settled:
            # Spark requests the start of a new query after its first end.
            with suppress(OptionError, OffsetOutOfRange):
                self._start = self.planner.start()
        end = self.planner.end() if self._settled else self.planner.final_end(_read_later)
        self._settled = True
        return (end if self._start is None else end.as_end_after(self._start)).to_json()


def _read_later(reason: str) -> None:
    LOGGER.warning("%s. They are read by a later batch, or by the next run of the query", reason)


if limits is not None:

    class LimitedStreamReader(
        ChannelStreamReader,
        limits.SupportsTriggerAvailableNow,  # type: ignore[misc]
    ):
        """Limits each micro-batch by the trigger and `maxOffsetsPerTrigger`."""

        _last: StreamOffset | None = None

        def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
            """Return the limit of a batch if the trigger sets none."""
            limit = self._options.max_offsets_per_trigger
            return limits.ReadAllAvailable() if limit is None else limits.ReadMaxRows(limit)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            """Fix the end of the query at the messages available now."""
            self._last = self.planner.final_end(held_back)

        def latestOffset(  # type: ignore[override]  # noqa: N802 - Spark's name
            self, start: Mapping[str, Any], limit: Any
        ) -> dict[str, Any]:
            """Return the end of the batch that begins at `start`."""
            begin = StreamOffset.parse(start)
            end = self._last or self.planner.end()
            if isinstance(limit, limits.ReadMaxRows):
                offsets = limit_batch(begin.next_offsets, end.next_offsets, limit.max_rows)
                end = replace(end, next_offsets=offsets)
            return end.as_end_after(begin).to_json()

        def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            """Return the end of the available messages, for the query's progress."""
            return self.planner.end().to_json()
