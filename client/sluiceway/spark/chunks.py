"""The messages of an offset range, fetched in chunks whose memory is bounded."""

import logging
import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Message

from sluiceway.errors import KafkaUnavailable, OffsetOutOfRange
from sluiceway.kafka.consumer import MessageStream, Taken
from sluiceway.rest.models import Connection
from sluiceway.spark.offsets import OffsetRange

LOGGER = logging.getLogger(__name__)

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
            taken = stream.take(min(self._size, piece.end - self._next), _WAIT_S)
            if self._advance(taken):
                if taken.messages:
                    yield self._within(taken.messages)
                last_s = time.monotonic()
            else:
                self._look_for_the_cause(time.monotonic() - last_s)

    def _advance(self, taken: Taken) -> bool:
        """Move on to what comes after `taken`; tell whether there was anything."""
        before = self._next
        if taken.messages:
            self._next = taken.messages[-1].offset() + 1
            self._resize(taken.messages)
        self._next = max(self._next, taken.ends.get(self._piece.partition, 0))
        if taken.refused is not None:
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
