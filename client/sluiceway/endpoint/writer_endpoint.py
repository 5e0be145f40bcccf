"""Writer endpoint for encoded messages, which the caller produces by a client of its own."""

from collections.abc import Mapping

from sluiceway.codecs.wire import WireFormatValidator
from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.errors import DeliveryFailed, KafkaFailure
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.rest.channels import Control

__all__ = ["WriterEndpoint"]


class WriterEndpoint:
    """A channel's writer whose messages are encoded and produced by the caller's own client.

    Attaches when it is created. Raises GatewayError, KafkaFailure. `records` counts the messages
    handed to Kafka's client, `failures` those that it did not deliver.
    """

    def __init__(
        self,
        control: Control,
        channel: str,
        *,
        uid: str,
        timeout_s: float,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.records = 0
        self.failures = 0
        self._reason = ""
        self.handle = EndpointHandle(
            control,
            channel=channel,
            uid=uid,
            role="writer",
            membership=None,
            timeout_s=timeout_s,
            close_timeout_s=0,
        )
        self.handle.pristine = True
        try:
            self.connection = self.handle.attached.connection
            # One more than the highest partition that may hold a message of this writer.
            self.partitions_used = self.connection.partitions
            self.identity = TopicIdentity(self.connection, config)
            self.identity.verify(timeout_s=timeout_s)
            self.validator = WireFormatValidator(
                self.connection, refresh=lambda: control.connection(channel, "write")
            )
        except BaseException as error:
            self.handle.fail(error)
            raise
        self.handle.pristine = False

    def add_failure(self, reason: str) -> None:
        """Count a message that was not delivered."""
        self._reason = self._reason or reason
        self.failures += 1

    def report(self) -> None:
        """Let heartbeats report the count of messages."""
        self.handle.record_cycle(self.records)

    def close(
        self,
        error: BaseException | None = None,
        *,
        timeout_s: float,
        detach_timeout_s: float | None = None,
    ) -> None:
        """Report where the channel's messages end, or that the writer failed.

        `detach_timeout_s` replaces the grace period as the limit of the report. It failed if there
        is an `error` or if messages were lost. Raises GatewayError, after which it may be repeated,
        and KafkaFailure where the ends are unknown.
        """
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
        ends = self._ends(timeout_s) if self.records else None
        self.handle.detach(ends=ends, timeout_s=detach_timeout_s)

    def _ends(self, timeout_s: float) -> dict[int, int]:
        """Return where each partition ends. Raises KafkaFailure, TopicGone if it was deleted."""
        try:
            # The channel may have grown, and messages without a key go to any partition.
            found = self.identity.all_ends(timeout_s=timeout_s, least=self.partitions_used)
        except KafkaFailure:
            self.identity.verify(timeout_s=timeout_s)
            raise
        return {partition: end for partition, end in found.items() if end}
