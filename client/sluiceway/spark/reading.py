"""Reading a channel in Spark's tasks: messages of one offset range to record batches."""

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql.datasource import DataSourceReader, InputPartition

from sluiceway.codecs import Codec, Corrupt, codec
from sluiceway.errors import CorruptMessage, KafkaUnavailable, OffsetOutOfRange
from sluiceway.kafka.stream import MessageStream, Taken
from sluiceway.protocol import Connection
from sluiceway.schema import Schema
from sluiceway.spark.bounds import OffsetRange
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.planning import plan
from sluiceway.spark.shipping import Shipped
from sluiceway.spark.worker import ClientPool, settle

LOGGER = logging.getLogger(__name__)
STREAMS: ClientPool[MessageStream] = ClientPool(close=MessageStream.close)

_CHUNK_BYTES: Final = 8 * 1024 * 1024
_CHUNK_MESSAGES: Final = 10_000
_GROWTH: Final = 8
_WAIT_S: Final = 0.5
_VERIFY_EVERY_S: Final = 5.0
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
        self, connection: Connection, options: ReadOptions, columns: Sequence[str]
    ) -> None:
        self._connection = connection
        self._options = options
        self._columns = list(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition a task."""
        return [InputPartition(piece) for piece in plan(self._connection, self._options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Give the records of one piece, in order. Raises KafkaFailure, CorruptMessage."""
        if partition is None:  # Spark's word for a plan without pieces
            return
        settle()
        piece: OffsetRange = partition.value
        connection, options = self._connection, self._options
        schema = Schema.parse(connection.schema_definition)
        decoding = codec(connection.format, schema, connection.schema_id)
        config = {**_TUNING, **options.kafka}
        properties = sorted({**connection.kafka, **config}.items())
        key = (connection.topic_name, connection.topic_id, *properties)
        timeout_s = options.poll_timeout_ms / 1000
        with STREAMS.borrow(
            key, lambda: MessageStream(connection, config, timeout_s=min(30.0, timeout_s))
        ) as stream:
            chunks = _Chunks(stream, piece, connection, timeout_s=timeout_s)
            for messages in chunks:
                for batch in self._decoded(decoding, messages):
                    yield batch.select(self._columns)
            stream.drop([piece.partition])

    def _decoded(self, decoding: Codec, messages: list[Message]) -> list[pa.RecordBatch]:
        decoded = decoding.decode([message.value() for message in messages])
        if decoded.corrupt:
            self._judge(decoded.corrupt, messages)
        return decoded.batches

    def _judge(self, corrupt: Sequence[Corrupt], messages: list[Message]) -> None:
        first = corrupt[0]
        where = messages[first.index]
        if self._options.on_corrupt == "raise":
            raise CorruptMessage(
                channel=self._connection.channel_name,
                partition=where.partition(),
                offset=where.offset(),
                reason=first.reason,
            )
        LOGGER.warning(
            "channel %r, partition %d: %d corrupt messages skipped, the first at offset %d: %s",
            self._connection.channel_name,
            where.partition(),
            len(corrupt),
            where.offset(),
            first.reason,
        )


class _Chunks:
    """The messages of a piece in chunks whose bytes are bounded, whatever their size.

    Offsets without a message (compacted away, or taken by Kafka itself) are passed over. Fails
    when nothing came for `timeout_s`, and earlier when the topic is found to be gone.
    """

    def __init__(
        self,
        stream: MessageStream,
        piece: OffsetRange,
        connection: Connection,
        *,
        timeout_s: float,
    ) -> None:
        self._stream = stream
        self._piece = piece
        self._topic = connection.topic_name
        self._timeout_s = timeout_s
        self._next = piece.start
        self._size = max(1, min(_CHUNK_MESSAGES, _CHUNK_BYTES // connection.max_message_bytes))

    def __iter__(self) -> Iterator[list[Message]]:
        piece, stream = self._piece, self._stream
        stream.assign({piece.partition: piece.start})
        last_s = time.monotonic()
        while self._next < piece.end:
            taken = stream.take(min(self._size, piece.end - self._next), _WAIT_S)
            if self._advance(taken):
                yield self._within(taken.messages)
                last_s = time.monotonic()
            else:
                self._look_for_the_cause(time.monotonic() - last_s)

    def _advance(self, taken: Taken) -> bool:
        """Move on to what comes after `taken`; tell whether there was anything."""
        if taken.refused is not None:
            marks = self._stream.watermarks([self._piece.partition])[self._piece.partition]
            raise OffsetOutOfRange(
                partition=self._piece.partition,
                offset=self._next,
                begin=marks.begin,
                end=marks.end,
            )
        before = self._next
        if taken.messages:
            self._next = taken.messages[-1].offset() + 1
            self._resize(taken.messages)
        self._next = max(self._next, taken.ends.get(self._piece.partition, 0))
        return self._next > before

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
