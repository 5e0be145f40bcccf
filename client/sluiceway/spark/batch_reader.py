"""Reading a channel in Spark's tasks: messages of one offset range to record batches."""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NoReturn

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sluiceway.codecs import Corrupt
from sluiceway.decoding import decoder_for, refusal
from sluiceway.errors import GatewayUnavailable
from sluiceway.kafka.masked import MaskedProperties
from sluiceway.kafka.own import OwnStream
from sluiceway.rest.models import Connection
from sluiceway.schema import Schema
from sluiceway.spark.arrow import held
from sluiceway.spark.chunks import Chunks
from sluiceway.spark.columns import chosen
from sluiceway.spark.connections import Link
from sluiceway.spark.endpoints import Job
from sluiceway.spark.metadata_columns import MessageColumns
from sluiceway.spark.options import ReadOptions, SourceOptions
from sluiceway.spark.planning import Share, plan, seen
from sluiceway.spark.shipping import Shipped
from sluiceway.spark.task_heartbeats import reporting
from sluiceway.spark.worker import ClientPool, settle

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
            share: Share = partition.value
            with reporting(share.part) as report:
                yield from report.counted(records(share, self._options, self._columns))


def records(share: Share, options: SourceOptions, columns: StructType) -> Iterator[pa.RecordBatch]:
    """Give the records of a task's share, in order, with `columns`.

    Raises KafkaFailure, CorruptMessage, SchemaMismatch and, for messages of a schema that may have
    come while the gateway was away, GatewayUnavailable. Runs in a Python worker, whose Kafka
    clients it uses.
    """
    settle()
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
