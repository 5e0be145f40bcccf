"""What a batch read will read: asked of Kafka once, by the driver's planning."""

from sluiceway.kafka.stream import MessageStream
from sluiceway.protocol import Connection
from sluiceway.spark.bounds import AtTime, Bound, OffsetRange, resolve
from sluiceway.spark.options import ReadOptions
from sluiceway.spark.splits import DEFAULT_MAX_MESSAGES, split

_ASK_TIMEOUT_S = 30.0


def plan(connection: Connection, options: ReadOptions) -> tuple[OffsetRange, ...]:
    """Return the pieces to read, one a task; none where there is nothing to read.

    The end is fixed here: messages that arrive later are not read. Raises TopicGone,
    KafkaUnavailable, OffsetOutOfRange, OptionError.
    """
    timeout_s = min(_ASK_TIMEOUT_S, options.poll_timeout_ms / 1000)
    stream = MessageStream(connection, options.kafka, timeout_s=timeout_s)
    try:
        stream.verify()
        partitions = range(connection.partitions)
        ranges = resolve(
            starting=options.starting,
            ending=options.ending,
            watermarks=stream.watermarks(partitions),
            starting_at_time=_at_time(stream, options.starting, partitions),
            ending_at_time=_at_time(stream, options.ending, partitions),
        )
    finally:
        stream.close()
    max_messages = options.max_messages or DEFAULT_MAX_MESSAGES[connection.format]
    return split(ranges, max_messages=max_messages, min_splits=options.min_splits)


def _at_time(stream: MessageStream, bound: Bound, partitions: range) -> dict[int, int]:
    return stream.offsets_at(bound.timestamp_ms, partitions) if isinstance(bound, AtTime) else {}
