"""Batch reads: planning in the driver, fetching in tasks."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NoReturn

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sluiceway.codecs import Corrupt
from sluiceway.codecs.decoder import decoder_for, refusal
from sluiceway.errors import GatewayUnavailable, KafkaUnavailable, OffsetOutOfRange
from sluiceway.kafka.config import MaskedProperties
from sluiceway.kafka.consumer import FetchedMessages, MessageStream, OwnStream
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema
from sluiceway.spark.connections import Known, Link
from sluiceway.spark.endpoints import Job, JobEndpoint, TaskSlice
from sluiceway.spark.metadata_columns import MessageColumns
from sluiceway.spark.offsets import (
    DEFAULT_MAX_MESSAGES,
    AtTime,
    Bound,
    OffsetRange,
    OnLoss,
    refuse_loss,
    resolve,
    split,
)
from sluiceway.spark.options import ReadOptions, SourceOptions
from sluiceway.spark.shipping import Shipped
from sluiceway.spark.task_heartbeats import reporting
from sluiceway.spark.types import chosen, held
from sluiceway.spark.worker import ClientPool, prepare_worker

_ASK_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class InputSplit:
    """What one task reads, and what is known of the channel.

    Where that is current, it is younger than the offsets' end, so it has the schema of every
    message in them. Where it is not, a message of another schema is no stranger's for sure.
    """

    known: Known
    offsets: OffsetRange
    part: TaskSlice | None = None
    """Of a read that others see."""


def plan(link: Link, options: ReadOptions) -> list[InputSplit]:
    """Return the pieces to read, one a task; none where there is nothing to read.

    The end is fixed here: messages that arrive later are not read. Raises TopicGone,
    KafkaUnavailable, OffsetOutOfRange, OptionError.
    """
    connection = link.last
    timeout_s = min(_ASK_TIMEOUT_S, options.poll_timeout_ms / 1000)
    stream = OwnStream(connection, options.kafka, timeout_s=timeout_s)
    try:
        stream.verify()
        partitions = range(connection.partitions)
        ranges = resolve(
            starting=options.starting,
            ending=options.ending,
            watermarks=stream.watermarks(partitions),
            starting_at_time=at_time(stream, options.starting, partitions),
            ending_at_time=at_time(stream, options.ending, partitions),
            on_loss=loss_handler(options),
        )
    finally:
        stream.close()
    try:
        return shares(link.known(), ranges, options)
    finally:
        link.close()


def seen(shares: list[InputSplit], job: Job | None, gateway_url: str | None) -> list[InputSplit]:
    """Return the pieces as parts of a read that others see; as they are where nobody does."""
    if not shares or gateway_url is None:
        return shares
    work = JobEndpoint.attach(job, gateway_url, shares[0].known.connection, "reader")
    if work is None:
        return shares
    return [
        replace(share, part=TaskSlice(work=work, number=number, parts=len(shares)))
        for number, share in enumerate(shares)
    ]


def shares(
    known: Known, ranges: tuple[OffsetRange, ...], options: SourceOptions
) -> list[InputSplit]:
    """Cut ranges into what tasks read; `known` was asked for when their ends were there."""
    max_messages = options.max_messages or DEFAULT_MAX_MESSAGES[known.connection.format]
    return [
        InputSplit(known=known, offsets=piece)
        for piece in split(ranges, max_messages=max_messages, min_splits=options.min_splits)
    ]


def loss_handler(options: SourceOptions) -> OnLoss:
    """Return what meets offsets that Kafka does not hold: an error, or a line in the log."""
    return _log_loss if not options.fail_on_data_loss else _refuse_loss


def at_time(stream: MessageStream, bound: Bound, partitions: range) -> Mapping[int, int]:
    """Return the offsets of a bound that is a time, nothing for the others."""
    return stream.offsets_at(bound.timestamp_ms, partitions) if isinstance(bound, AtTime) else {}


def _refuse_loss(error: OffsetOutOfRange) -> None:
    error.add_note(
        "To read on without what is lost, from the earliest offset that is kept, set "
        '.option("failOnDataLoss", "false").'
    )
    refuse_loss(error)


def _log_loss(error: OffsetOutOfRange) -> None:
    LOGGER.warning("failOnDataLoss is false, so the read goes on with what there is: %s", error)


_CHUNK_BYTES: Final = 8 * 1024 * 1024
_CHUNK_MESSAGES: Final = 10_000
_GROWTH: Final = 8
_WAIT_S: Final = 0.5
_VERIFY_EVERY_S: Final = 5.0


class Chunks:
    """The messages of a piece in chunks whose bytes are bounded, whatever their size.

    Offsets without a message (compacted away, or taken by Kafka itself) are passed over. Fails
    when nothing came for `timeout_s`, and earlier when the topic is found to be gone. Offsets
    that Kafka no longer keeps raise OffsetOutOfRange, or are passed over and logged where
    `fail_on_data_loss` is false.
    """

    def __init__(
        self,
        stream: MessageStream,
        piece: OffsetRange,
        connection: Connection,
        *,
        timeout_s: float,
        fail_on_data_loss: bool,
    ) -> None:
        self._stream = stream
        self._piece = piece
        self._topic = connection.topic_name
        self._timeout_s = timeout_s
        self._fail_on_data_loss = fail_on_data_loss
        self._next = piece.start
        self._size = max(1, min(_CHUNK_MESSAGES, _CHUNK_BYTES // connection.max_message_bytes))

    def __iter__(self) -> Iterator[list[Message]]:
        piece, stream = self._piece, self._stream
        stream.assign({piece.partition: piece.start})
        last_s = time.monotonic()
        while self._next < piece.end:
            taken = stream.poll(min(self._size, piece.end - self._next), _WAIT_S)
            if self._advance(taken):
                if taken.messages:
                    yield self._within(taken.messages)
                last_s = time.monotonic()
            else:
                self._look_for_the_cause(time.monotonic() - last_s)

    def _advance(self, taken: FetchedMessages) -> bool:
        """Move on to what comes after `taken`; tell whether there was anything."""
        before = self._next
        if taken.messages:
            self._next = taken.messages[-1].offset() + 1
            self._resize(taken.messages)
        self._next = max(self._next, taken.ends.get(self._piece.partition, 0))
        if taken.out_of_range is not None:
            self._pass_over_what_is_lost()
        return self._next > before

    def _pass_over_what_is_lost(self) -> None:
        partition = self._piece.partition
        marks = self._stream.watermarks([partition])[partition]
        if marks.begin <= self._next <= marks.end:
            # Said of a place that was left since: a late word, but fetching stopped over it.
            self._stream.assign({partition: self._next})
            return
        if self._fail_on_data_loss or self._next > marks.end:
            raise OffsetOutOfRange(
                partition=partition, offset=self._next, begin=marks.begin, end=marks.end
            )
        LOGGER.warning(
            "topic %s, partition %d: the messages from offset %d up to %d are no longer kept; "
            "failOnDataLoss is false, so they are passed over",
            self._topic,
            partition,
            self._next,
            min(marks.begin, self._piece.end),
        )
        self._next = marks.begin
        self._stream.assign({partition: marks.begin})

    def _within(self, messages: list[Message]) -> list[Message]:
        """Leave out what lies behind the piece's end, which gaps let through."""
        if self._next <= self._piece.end:
            return messages
        return [message for message in messages if message.offset() < self._piece.end]

    def _resize(self, messages: list[Message]) -> None:
        """Ask for as many messages as the largest of a sample lets into a chunk."""
        sample = messages[:: max(1, len(messages) // 16)]
        largest = max(len(message) for message in sample)
        fitting = _CHUNK_BYTES // max(1, largest)
        self._size = max(1, min(_CHUNK_MESSAGES, self._size * _GROWTH, fitting))

    def _look_for_the_cause(self, idle_s: float) -> None:
        try:
            self._stream.verify(max_age_s=_VERIFY_EVERY_S)
        except KafkaUnavailable:
            if idle_s >= self._timeout_s:
                raise
        if idle_s >= self._timeout_s:
            raise KafkaUnavailable(
                f"Kafka sent nothing of partition {self._piece.partition} of topic {self._topic} "
                f"from offset {self._next} for {self._timeout_s:g} s, though messages up to "
                f"{self._piece.end} are to be there. Run the job again; if it stays so, look at "
                "the brokers' logs"
            )


LOGGER = logging.getLogger(__name__)
STREAMS: ClientPool[OwnStream] = ClientPool(close=OwnStream.close)

_TUNING: Final[dict[str, object]] = {
    # What is fetched ahead of a task; together with a chunk, this is a task's memory.
    "queued.max.messages.kbytes": 32 * 1024,
    # At a partition's end a fetch waits for more at the broker, and the next task's behind it.
    "fetch.wait.max.ms": 10,
}


class ChannelDataReader(Shipped, DataSourceReader):
    """Plans in the driver, reads in tasks; what tasks need is pickled with it.

    `columns` are the columns to give, in that order.
    """

    def __init__(
        self, link: Link, options: ReadOptions, columns: StructType, job: Job | None = None
    ) -> None:
        self._link = link
        self._options = options
        self._columns = columns
        self._job = job

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition a task."""
        shares = plan(self._link, self._options)
        return [InputPartition(share) for share in seen(shares, self._job, self._link.gateway_url)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Give the records of one piece, in order; what `records` raises fails the task."""
        if partition is not None:  # Spark's word for a plan without pieces
            share: InputSplit = partition.value
            with reporting(share.part) as report:
                yield from report.counted(records(share, self._options, self._columns))


def records(
    share: InputSplit, options: SourceOptions, columns: StructType
) -> Iterator[pa.RecordBatch]:
    """Give the records of a task's share, in order, with `columns`.

    Raises KafkaFailure, CorruptMessage, SchemaMismatch and, for messages of a schema that may have
    come while the gateway was away, GatewayUnavailable. Runs in a Python worker, whose Kafka
    clients it uses.
    """
    prepare_worker()
    connection = share.known.connection
    # Tasks never ask the gateway: the driver did, after it took the watermarks, or could not.
    known = share.known
    refresh = (lambda: connection) if known.current else partial(_refuse_unknown, known.connection)
    decoding = decoder_for(connection, refresh=refresh)
    as_held = held(Schema.parse(connection.schema_definition))
    beside = MessageColumns(options)
    config = {**_TUNING, **options.kafka}
    properties = MaskedProperties(connection.kafka).over(config)
    key = (connection.topic_name, connection.topic_id, properties)
    timeout_s = options.poll_timeout_ms / 1000
    with STREAMS.borrow(
        key, lambda: OwnStream(connection, config, timeout_s=min(30.0, timeout_s))
    ) as stream:
        chunks = Chunks(
            stream,
            share.offsets,
            connection,
            timeout_s=timeout_s,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for messages in chunks:
            decoded = decoding.decode([message.value() for message in messages])
            if decoded.corrupt:
                _judge(decoded.corrupt, messages, connection.channel_name, options)
            batches = [as_held(batch) for batch in decoded.batches]
            for batch in beside.attached(batches, messages, decoded.counts):
                yield chosen(batch, columns)
        stream.drop([share.offsets.partition])


def _refuse_unknown(connection: Connection) -> NoReturn:
    raise GatewayUnavailable(
        f"channel {connection.channel_name!r}: there are messages of a schema that was not known "
        "when this batch was planned, since the gateway did not answer then. None was passed over: "
        "run the job again, or start the query again, when the gateway answers"
    )


def _judge(
    corrupt: Sequence[Corrupt], messages: list[Message], channel: str, options: SourceOptions
) -> None:
    skip = options.on_corrupt == "skip"
    first = next((each for each in corrupt if not (skip and each.skippable)), corrupt[0])
    where = messages[first.index]
    if not (skip and first.skippable):
        raise refusal(channel, where, first)
    LOGGER.warning(
        "channel %r, partition %d: %d corrupt messages skipped, the first at offset %d: %s",
        channel,
        where.partition(),
        len(corrupt),
        where.offset(),
        first.reason,
    )
