"""The endpoint of a facade's writer, which has its own Kafka client."""

from collections.abc import Mapping

from sluiceway.api.channels import Control
from sluiceway.codecs.wire import WireFormatValidator
from sluiceway.endpoint.attached import AttachedEndpoint
from sluiceway.errors import DeliveryFailed, KafkaFailure
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.ledger.intervals import DeliveredIntervals
from sluiceway.ledger.write_batch import BatchSequence

__all__ = ["WriterEndpoint"]


class WriterEndpoint:
    """A channel's writer whose messages are encoded and produced by the caller's own client.

    Attaches when it is created. Raises GatewayError, KafkaFailure. `records` counts the messages
    passed to Kafka's client, `failures` those that it did not deliver.

    On an exactly-once channel, the caller opens, commits and aborts `batches`, and produces only
    within an open one; each message is one record. They belong to the `owner`, by default to this
    endpoint.
    """

    def __init__(
        self,
        control: Control,
        channel: str,
        *,
        uid: str,
        timeout_s: float,
        config: Mapping[str, object] | None = None,
        owner: str | None = None,
    ) -> None:
        self.records = 0
        self.failures = 0
        self._reason = ""
        self.handle = AttachedEndpoint(
            control, channel=channel, uid=uid, role="writer", membership=None
        ).attach(timeout_s)
        with self.handle.reporting_failure():
            self.connection = self.handle.attached.connection
            # One more than the highest partition with a message of this writer.
            self.partitions_used = self.connection.partitions
            self.identity = TopicIdentity(self.connection, config)
            self.identity.verify(timeout_s=timeout_s)
            self.validator = WireFormatValidator(
                self.connection, refresh=lambda: control.connection(channel, "write")
            )
        self.handle.pristine = False
        self.batches: BatchSequence | None = None
        intervals = DeliveredIntervals.of(self.connection)
        if intervals is not None:
            self.batches = BatchSequence(
                control.ledger, self.connection, intervals, writer=self.handle.id, owner=owner
            )

    def add_failure(self, reason: str) -> None:
        """Count a message that was not delivered."""
        self._reason = self._reason or reason
        self.failures += 1

    def confirm_delivery(self, *, timeout_s: float) -> None:
        """Raise TopicGone if delivered messages may be in a topic that was created again.

        Call it after the delivery reports. Without new messages there is no request.
        """
        self.identity.confirm_delivery(self.records, timeout_s=timeout_s)

    def report(self) -> None:
        """Include the number of messages in heartbeats."""
        self.handle.record_cycle(self.records)

    def close(
        self,
        error: BaseException | None = None,
        *,
        timeout_s: float,
        detach_timeout_s: float | None = None,
    ) -> None:
        """Report the end offsets, or that the writer failed.

        After an `error`, aborts the uncommitted batch. The writer failed if there is an `error` or
        if messages were lost. `detach_timeout_s` replaces the grace period as the limit of the
        report. Raises GatewayError, after which it may be repeated, and KafkaFailure if the end
        offsets are unavailable.
        """
        if self.batches is not None:
            self.batches.close(error)
        if error is None and self.failures:
            error = DeliveryFailed(
                partition=None,
                reason=self._reason,
                written_records=self.records - self.failures,
                failed_records=self.failures,
            )
        if error is not None:
            self.handle.fail(error)
            return
        if not self.handle.is_open:
            return
        ends = self._ends(timeout_s) if self.records else None
        self.handle.detach(ends=ends, timeout_s=detach_timeout_s)

    def _ends(self, timeout_s: float) -> dict[int, int]:
        """Return the end offsets. Raises KafkaFailure, TopicGone if the topic was deleted."""
        try:
            # The channel may have grown, and messages without a key go to any partition.
            ends = self.identity.all_ends(timeout_s=timeout_s, least=self.partitions_used)
        except KafkaFailure:
            self.identity.verify(timeout_s=timeout_s)
            raise
        return {partition: end for partition, end in ends.items() if end}
