"""What Kafka refused."""

from sluiceway.errors.root import SluicewayError


class KafkaFailure(SluicewayError):
    """Kafka refused something; the subclasses say what, where it is known."""

    code = "kafka_failure"
    tells_no_values = True


class KafkaUnavailable(KafkaFailure):
    """No broker answered in time. Positions are kept: the same call may be made again."""

    code = "kafka_unavailable"
    retriable = True


class KafkaAccessFailed(KafkaUnavailable):
    """Brokers answer, but no connection comes about: credentials, certificates or protocol.

    The message says which of them and what to do. It will not heal by itself.
    """

    code = "kafka_access_failed"
    retriable = False


class DeliveryFailed(KafkaFailure):
    """A message was not acknowledged by Kafka.

    `partition` is that of the first failure (None where there was none yet) and `reason` Kafka's
    cause. `written_records` counts what is known to be written, in all partitions since the
    writer was opened, `failed_records` the rest of what it took. After a timeout a failed
    message may still be in the topic.
    """

    code = "delivery_failed"

    def __init__(
        self, *, partition: int | None, reason: str, written_records: int, failed_records: int
    ) -> None:
        where = "the topic" if partition is None else f"partition {partition}"
        super().__init__(
            f"{where}: {reason}; {written_records:,} records of this writer are "
            f"known to be written, {failed_records:,} are not. Open a new writer to go on"
        )
        self.partition, self.reason = partition, reason
        self.written_records, self.failed_records = written_records, failed_records


class OffsetOutOfRange(KafkaFailure):
    """The offset to read from is not in the partition, whose range is `begin` to `end`.

    Below `begin` the records were removed by retention or by hand; above `end` they were never
    written. Positions did not move.
    """

    code = "offset_out_of_range"

    def __init__(
        self,
        *,
        partition: int,
        offset: int,
        begin: int,
        end: int,
        advice: str = "Seek to a position within the range",
    ) -> None:
        cause = "nothing was written there yet"
        if offset < begin:
            cause = "the records before the beginning are no longer kept"
        super().__init__(
            f"partition {partition} has no offset {offset}: its range is {begin} to {end}, "
            f"{cause}. {advice}"
        )
        self.partition, self.offset, self.begin, self.end = partition, offset, begin, end


class TopicGone(KafkaFailure):
    """The channel's topic was deleted, or another topic has its name now."""

    code = "topic_gone"
