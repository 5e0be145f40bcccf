"""How far a channel reaches: asked of Kafka again and again, by the driver of a streaming query."""

from collections.abc import Mapping
from typing import Final

from sluiceway.kafka.own import OwnStream
from sluiceway.spark.checkpoint import StreamOffset
from sluiceway.spark.connections import Link
from sluiceway.spark.offsets import offsets_at, ranges_between
from sluiceway.spark.options import StreamOptions
from sluiceway.spark.planning import Share, at_time, loss_handler, shares

_REFRESH_EVERY_S: Final = 5.0
_VERIFY_EVERY_S: Final = 5.0
_TUNING: Final[dict[str, object]] = {
    # Brokers that come back are met again so soon; librdkafka's own ten seconds are lost time.
    "reconnect.backoff.max.ms": 1000,
}


class Frontier:
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
            self._stream.meet_new_partitions()
        self._stream.verify(max_age_s=_VERIFY_EVERY_S)
        ends = self._stream.ends(range(connection.partitions))
        return StreamOffset.at(connection, ends, self._options.group)

    def shares(self, start: StreamOffset, end: StreamOffset) -> list[Share]:
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
