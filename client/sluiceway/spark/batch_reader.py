"""Batch reads: planning in the driver, fetching in tasks."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sluiceway import Connection, Schema
from sluiceway.errors import GatewayUnavailable, KafkaUnavailable, OffsetOutOfRange
from sluiceway.spark.endpoints import Job, JobEndpoint, TaskSlice, reporting
from sluiceway.spark.metadata_columns import DeletedRows, MetadataColumns
from sluiceway.spark.offsets import (
    DEFAULT_MAX_MESSAGES,
    LossHandler,
    OffsetRange,
    resolve_ranges,
    split_ranges,
)
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.readable_offsets import ReadableOffsets
from sluiceway.spark.types import ColumnSelection, selected_schema, spark_transform
from sluiceway.spark.worker import (
    ClientPool,
    RefreshableConnection,
    Shipped,
    prepare_worker,
    traced,
)
from sluiceway.spi import (
    CommittedStream,
    Corrupt,
    FetchedMessages,
    IdleTimeout,
    Interval,
    KeyField,
    MaskedProperties,
    PartitionStream,
    corrupt_error,
    decoder_for,
    deletes_of,
    fixed_visibility,
    open_stream,
    tracing,
)

LOGGER = logging.getLogger(__name__)

_GATEWAY_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class InputSplit:
    """The offsets that one task reads, and the channel's Connection.

    A `current` Connection was requested after the end offsets, so it has the schema of each
    message. Otherwise a message with an unknown schema may still belong to the channel.
    """

    connection: Connection
    current: bool
    offsets: OffsetRange
    visible: tuple[Interval, ...] | None = None
    """The committed intervals of an exactly-once channel; None: everything is visible."""
    task: TaskSlice | None = None
    """The task's slice of the read's endpoint, if it has one."""
    trace: Mapping[str, str] = field(default_factory=dict)
    """The trace of the job or micro-batch."""


def plan_splits(source: RefreshableConnection, options: ReadOptions) -> list[InputSplit]:
    """Plan a batch read, one split per task; messages that arrive later are not read.

    From an exactly-once channel, the batches committed now are read, each wholly.

    Raises TopicGone, KafkaUnavailable, OffsetOutOfRange, OptionError.
    """
    connection = source.connection
    readable = ReadableOffsets(
        source,
        options,
        options.kafka,
        timeout_s=_request_timeout_s(options),
        gateway_timeout_s=_GATEWAY_TIMEOUT_S,
        bounded=True,
    )
    with closing(readable):
        stream = readable.stream
        # The topic may have grown outside Sluiceway.
        in_kafka = stream.count_partitions(timeout_s=_request_timeout_s(options), max_age_s=0.0)
        partitions = range(max(connection.partitions, readable.partitions, in_kafka))
        ends = readable.final_ends(partitions)
        marks = readable.watermarks(partitions, ends)
        ranges = resolve_ranges(
            options.starting,
            options.ending,
            marks,
            lambda timestamp_ms: stream.offsets_at(timestamp_ms, partitions),
            loss_handler(options),
            removed=readable.removed_records(marks),
        )
        return input_splits(source, ranges, options, readable)


def input_splits(
    source: RefreshableConnection,
    ranges: tuple[OffsetRange, ...],
    options: ReadOptions,
    readable: ReadableOffsets,
) -> list[InputSplit]:
    """Split ranges for tasks, with a Connection that is requested after their ends.

    Each split of an exactly-once channel has the committed intervals of its offsets; splits without
    any are dropped.
    """
    current = source.refresh()
    connection = source.connection
    max_messages = options.max_messages or DEFAULT_MAX_MESSAGES[connection.format]
    splits = []
    for offsets in split_ranges(ranges, max_messages=max_messages, min_splits=options.min_splits):
        visible = readable.visible(offsets)
        if visible:
            offsets = replace(offsets, start=visible[0].first, end=visible[-1].end)
        if visible is None or visible:
            splits.append(
                InputSplit(connection=connection, current=current, offsets=offsets, visible=visible)
            )
    return splits


def _request_timeout_s(options: ReadOptions) -> float:
    return min(30.0, options.poll_timeout_ms / 1000)


def loss_handler(options: ReadOptions) -> LossHandler:
    """Return the handler of offsets that Kafka does not hold, by `fail_on_data_loss`."""

    def handle(error: OffsetOutOfRange) -> None:
        past_end = error.offset > error.end
        if not options.fail_on_data_loss:
            effect = "is cut at the end" if past_end else "continues without lost data"
            LOGGER.warning("failOnDataLoss is false, so the read %s: %s", effect, error)
            return
        error.add_note(
            "No message has this offset yet: correct startingOffsets or endingOffsets. A "
            "checkpoint with such an offset belongs to another topic, or Kafka's log was truncated."
            if past_end
            else "To skip the lost messages and read from the earliest retained offset, set "
            '.option("failOnDataLoss", "false").'
        )
        raise error

    return handle


_CHUNK_MESSAGES: Final = 10_000
_WAIT_S: Final = 0.5


class RangeFetcher:
    """Fetches the messages of an offset range in chunks.

    Skips offsets without a message, such as compacted messages and transaction markers. Raises
    TopicGone, and KafkaUnavailable when nothing arrives for `poll_timeout_ms`; before that, a Kafka
    client that does not connect again is replaced. Offsets that Kafka no longer holds raise
    OffsetOutOfRange; without `fail_on_data_loss` they are skipped and logged. A committed record
    that is missing in Kafka, although the log begins before it, always raises RecordsLost.
    """

    def __init__(self, stream: PartitionStream, split: InputSplit, options: ReadOptions) -> None:
        self._stream = stream
        self._offsets = split.offsets
        self._topic = split.connection.topic_name
        self._timeout_s = options.poll_timeout_ms / 1000
        self._fail_on_data_loss = options.fail_on_data_loss
        self._next = split.offsets.start

    def __iter__(self) -> Iterator[FetchedMessages]:
        offsets, stream = self._offsets, self._stream
        stream.assign({offsets.partition: offsets.start})
        idle_timeout = IdleTimeout(timeout_s=self._timeout_s)
        while self._next < offsets.end:
            before = self._next
            taken = stream.poll(_CHUNK_MESSAGES, _WAIT_S)
            self._advance(taken)
            if self._next > before:
                chunks = taken.chunks
                if self._next > offsets.end:
                    chunks = [chunk.part(offsets.start, offsets.end) for chunk in chunks]
                if any(chunk.offsets for chunk in chunks):
                    yield replace(taken, chunks=chunks)
                idle_timeout.reset()
            elif self._probe(idle_timeout):
                stream.assign({offsets.partition: self._next})

    def _advance(self, taken: FetchedMessages) -> None:
        self._next = max(self._next, taken.next.get(self._offsets.partition, 0))
        if taken.refused:
            offsets = dict.fromkeys(taken.refused, self._next)
            for error in self._stream.reassign_refused(offsets).values():
                self._skip_lost(error)

    def _skip_lost(self, error: OffsetOutOfRange) -> None:
        if self._fail_on_data_loss or error.offset > error.end:
            raise error
        LOGGER.warning(
            "topic %s, partition %d: Kafka no longer holds the messages from offset %d to %d; "
            "failOnDataLoss is false, so they are skipped",
            self._topic,
            error.partition,
            error.offset,
            min(error.begin, self._offsets.end),
        )
        self._next = error.begin
        self._stream.assign({error.partition: error.begin})

    def _probe(self, idle_timeout: IdleTimeout) -> bool:
        """Return whether the stream must be assigned again."""
        try:
            return idle_timeout.probe(self._stream, awaited=True)
        except KafkaUnavailable as error:
            error.add_note(
                f"The task waits for offset {self._next} of partition {self._offsets.partition}, "
                f"whose end is {self._offsets.end}. Run the job again; if it fails again, check "
                "the brokers' logs"
            )
            raise


STREAMS: ClientPool[PartitionStream] = ClientPool(close=lambda stream: stream.close())

_TUNING: Final[dict[str, object]] = {
    # Limits the fetch queue, which together with a chunk is a task's memory.
    "queued.max.messages.kbytes": 32 * 1024,
    # At the end of a partition, the broker delays a fetch, and the next task's fetch after it.
    "fetch.wait.max.ms": 10,
}


@dataclass(eq=False, repr=False)
class ChannelDataReader(Shipped, DataSourceReader):
    """Plans a batch read in the driver and reads it in tasks.

    `columns` are the columns to return, in order. Filters are never pushed: Spark keeps the plan
    of a dataframe's last query with a filter, and reads by it in all of its queries.
    """

    _source: RefreshableConnection
    _options: ReadOptions
    _columns: StructType
    _job: Job | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Plan one partition per task, and attach the read as an endpoint of the channel."""
        source, job = self._source, self._job
        connection = source.connection
        with traced("read", connection.channel_name, {} if job is None else job.trace):
            splits = plan_splits(source, self._options)
            if not splits:
                return []
            endpoint = JobEndpoint.attach(job, source.gateway_url, source.connection, "reader")
            if endpoint is not None:
                splits = [
                    replace(split, task=TaskSlice(endpoint=endpoint, number=number, of=len(splits)))
                    for number, split in enumerate(splits)
                ]
            trace = tracing.carrier()
            return [InputPartition(replace(split, trace=trace)) for split in splits]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Return a split's records in order. Raises the errors of `read_split`."""
        # For a plan without partitions, Spark passes None, from 4.3 on as a partition's value.
        if partition is not None and partition.value is not None:
            yield from read_reported(partition.value, self._options, self._columns)


def read_reported(
    split: InputSplit, options: ReadOptions, columns: StructType
) -> Iterator[pa.RecordBatch]:
    """Like `read_split`, with a span, and with the reports of the split's task, if it has one."""
    with (
        traced("receive", split.connection.channel_name, split.trace, kind="receive") as span,
        reporting(split.task) as report,
    ):
        yield from report.counted(read_split(split, options, columns))
        span.set("sluiceway.records", report.records)


def read_split(
    split: InputSplit, options: ReadOptions, columns: StructType
) -> Iterator[pa.RecordBatch]:
    """Return a split's records in order, with `columns`; others are not decoded if possible.

    From an exactly-once channel, only committed records are returned.

    Raises KafkaFailure, CorruptMessage, SchemaMismatch and, for a message with an unknown schema
    if the split's Connection is not current, GatewayUnavailable.
    """
    prepare_worker()
    connection = split.connection

    def refresh() -> Connection:
        # Planning requested the schemas after the watermarks, so tasks need no gateway.
        if split.current:
            return connection
        raise GatewayUnavailable(
            f"channel {connection.channel_name!r}: a message has a schema that was unknown when "
            "this batch was planned, because the gateway did not answer. No message was skipped: "
            "run the job or restart the query when the gateway answers"
        )

    schema = Schema.parse(connection.schema_definition)
    target = selected_schema(schema, columns)
    deletes = options.include_deletes
    decoder = decoder_for(
        connection, target=target, refresh=refresh, registry=options.registry, deletes=deletes
    )
    transform = spark_transform(target)
    key = None if options.key is None else KeyField(options.key, schema)
    deleted_rows = DeletedRows(transform(pa.RecordBatch.from_pylist([], target.arrow)), key)
    selection = ColumnSelection(columns)
    metadata = MetadataColumns(options)
    config = MaskedProperties(_TUNING).over(options.kafka)
    properties = MaskedProperties(connection.kafka).over(config)
    # Without metadata columns, the values of messages are enough.
    whole = bool(metadata)
    pooled = (connection.topic_name, connection.topic_id, connection.delivery, properties, whole)
    timeout_s = _request_timeout_s(options)

    def new_stream() -> PartitionStream:
        return open_stream(connection, config, timeout_s=timeout_s, whole_messages=whole)

    with STREAMS.borrow(pooled, new_stream) as stream:
        if split.visible is not None:
            ends = {split.offsets.partition: split.offsets.end}
            runs = {split.offsets.partition: split.visible}
            stream = CommittedStream(stream, fixed_visibility(connection, ends, runs))
        for fetched in RangeFetcher(stream, split, options):
            items = fetched.items
            decoded = decoder.decode([*map(Message.value, items)] if whole else items)
            keys: Mapping[int, object] = {}
            if deletes:
                keys, decoded = deletes_of(items, decoded, key)
            if decoded.corrupt:
                _handle_corrupt(decoded.corrupt, fetched, connection.channel_name, options)
            batches = [transform(batch) for batch in decoded.batches]
            rows, counts = deleted_rows.insert(batches, decoded.counts, keys)
            for batch in metadata.append_to(rows, items, counts):
                yield selection.apply(batch)
        stream.drop([split.offsets.partition])


def _handle_corrupt(
    corrupt: Sequence[Corrupt], fetched: FetchedMessages, channel: str, options: ReadOptions
) -> None:
    skip = options.on_corrupt == "skip"
    first = next((message for message in corrupt if not (skip and message.skippable)), corrupt[0])
    places = [(chunk.partition, offset) for chunk in fetched.chunks for offset in chunk.offsets]
    partition, offset = places[first.index]
    if not (skip and first.skippable):
        raise corrupt_error(channel, partition, offset, first)
    LOGGER.warning(
        "channel %r, partition %d: %d corrupt messages skipped, the first at offset %d: %s",
        channel,
        partition,
        len(corrupt),
        offset,
        first.reason,
    )
