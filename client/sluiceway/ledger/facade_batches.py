"""Message batches: the endpoint and batches of a facade's writer with its own Kafka client."""

from collections.abc import Mapping
from functools import partial

from sluiceway.api.channels import Control
from sluiceway.api.endpoints import PositionAdvance
from sluiceway.api.ledger import LedgerCalls
from sluiceway.api.models import Connection
from sluiceway.codecs.wire import WireFormatValidator
from sluiceway.endpoint.attached import AttachedEndpoint
from sluiceway.errors import DeliveryFailed, KafkaFailure
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.ledger.intervals import DeliveredIntervals
from sluiceway.ledger.write_batch import BatchSequence, BatchState, WriteBatch

__all__ = ["MessageBatches", "WriterEndpoint"]


class MessageBatches:
    """Batches of one writer, one after the other; each message is one record.

    The writer's messages are `admitted` while a batch `is_open`, then Kafka's delivery reports are
    added to `intervals`, or as failures. A batch with a failed message is never committed. With an
    `owner`, the first batch aborts those of the owner's other instances.

    Not thread-safe, except for the reports.
    """

    def __init__(
        self, calls: LedgerCalls, connection: Connection, *, writer: str, owner: str | None = None
    ) -> None:
        """Describe a writer by its endpoint's id; `owner` is by default the writer alone."""
        self._sequence = BatchSequence(calls, connection, writer=writer)
        self._owner = owner
        self.current: WriteBatch | None = None
        """The batch to commit or to abort; None without one."""
        self.intervals = DeliveredIntervals()
        self.admitted = 0
        self.failures = 0
        self._reason = ""

    @property
    def is_open(self) -> bool:
        """Whether messages may be produced."""
        return self.current is not None and self.current.state is BatchState.OPEN

    @property
    def is_unknown(self) -> bool:
        """Whether the commit of the batch has no response; `commit` repeats it."""
        return self.current is not None and self.current.is_requested

    @property
    def pending(self) -> int:
        """The number of the batch's messages without a delivery report."""
        return self.admitted - len(self.intervals) - self.failures

    def open(self) -> WriteBatch:
        """Open the next batch, or return the current one. Raises GatewayError, TopicGone."""
        batch = self.current
        if batch is not None and (self.is_open or self.is_unknown):
            return batch
        # An interrupt of its opening or of its abort may have left one.
        self._end()
        return self._sequence.open(
            partial(setattr, self, "current"), owner=self._owner, takeover=self._owner is not None
        )

    def add_failure(self, reason: str) -> None:
        """Record a message that was not delivered."""
        self._reason = self._reason or reason
        self.failures += 1

    def commit(
        self, positions: PositionAdvance | None = None, *, timeout_s: float | None = None
    ) -> None:
        """Commit the batch once every message has a delivery report.

        After CommitUnknown or an interrupt nothing is admitted; the same call repeats the commit.
        After any other error, abort the batch. Raises DeliveryFailed, Conflict, InvalidRequest.
        """
        if self.current is not None:
            written = self.intervals.written()
            written.require(self.admitted, self._reason)
            self.current.commit(written, positions=positions, timeout_s=timeout_s)
            self._end()

    def resolve(self) -> bool | None:
        """Return whether a commit without a response was applied; None without such a commit.

        If not, the batch has ended. Raises CommitUnknown if the gateway does not answer.
        """
        if self.current is None or not self.is_unknown:
            return None
        committed = self.current.resolve()
        self._end()
        return committed

    def abort(self, error: BaseException) -> None:
        """Abort the batch, if any. The caller must not add later reports."""
        try:
            if self.current is not None:
                self.current.abort(error)
        finally:
            self._end()

    def close(self, error: BaseException | None = None) -> None:
        """Abort the uncommitted batch, and stop renewing leases."""
        if error is not None:
            self.abort(error)
            self._sequence.end_stray(None)
        self._sequence.leases.close()

    def _end(self) -> None:
        # An interrupt comes before all of these assignments, or after them: at calls.
        self.intervals = DeliveredIntervals()
        self.current = None
        self.admitted = self.failures = 0
        self._reason = ""


class WriterEndpoint:
    """A channel's writer whose messages are encoded and produced by the caller's own client.

    Attaches when it is created. Raises GatewayError, KafkaFailure. `records` counts the messages
    passed to Kafka's client, `failures` those that it did not deliver.

    On an exactly-once channel, the caller opens, commits and aborts `batches`, and produces only
    within an open one. They belong to the `owner`, by default to this endpoint.
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
        self.batches: MessageBatches | None = None
        if self.connection.delivery == "exactly_once":
            self.batches = MessageBatches(
                control.ledger, self.connection, writer=self.handle.id, owner=owner
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
