"""Commits of a Producer's batches: at each flush, by time, and of transactions."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from confluent_kafka import KafkaError

from sluiceway.confluent.channel_producer import ChannelProducer
from sluiceway.confluent.deliveries import SHORT_WAIT_S, Deliveries
from sluiceway.errors import CommitUnknown, KafkaFailure, SluicewayError, SluicewayTimeout
from sluiceway.ledger.message_batches import MessageBatches
from sluiceway.rest.ledger_models import PositionAdvance

__all__ = ["BatchCommits"]

LOGGER = logging.getLogger("sluiceway.confluent")

_COMMIT_EVERY_S: Final = 5.0
_TIMEOUT_S: Final = 30.0
_LEAST_S: Final = 1.0


class DeliveryLost(KafkaFailure):
    """Messages of an exactly-once channel were not delivered, so their batch was aborted."""

    code = "delivery_failed"


class TransactionAborted(SluicewayError):
    """The cause of a batch that its producer has aborted; it is never raised."""

    code = "transaction_aborted"
    message_is_public = True


class BatchCommits:
    """Opens and ends the batches of a producer's exactly-once channels.

    One thread at a time holds a channel: then nothing of it is handed to librdkafka. Raises
    SluicewayTimeout if another one holds it for too long.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        attached: Mapping[str, ChannelProducer],
        *,
        transactional: bool,
    ) -> None:
        self._deliveries = deliveries
        self._attached = attached
        self._transactional = transactional
        self.stopped = False
        """Whether nothing is committed by time any more."""

    def commit(self, timeout_s: float) -> None:
        """Commit what was delivered to exactly-once channels. Raises SluicewayError.

        After an error other than CommitUnknown, a channel's batch is aborted, and nothing more is
        sent to it.
        """
        deadline_s = time.monotonic() + timeout_s
        first: SluicewayError | None = None
        for channel in [each for each in self._attached.values() if each.batches is not None]:
            try:
                self.end(channel, deadline_s - time.monotonic())
            except SluicewayError as error:
                first = first or error
        if first is not None:
            raise first

    def end(
        self, channel: ChannelProducer, timeout_s: float, positions: PositionAdvance | None = None
    ) -> None:
        """Commit the batch of a channel once everything in it is reported.

        Raises SluicewayTimeout, after which it may be repeated, and the errors of
        `MessageBatches.commit`.
        """
        batches = channel.batches
        assert batches is not None  # noqa: S101 - the channel is exactly_once
        with self._holding(channel, timeout_s):
            if not self._transactional:
                self._require_whole(channel)
            if not batches.admitted and positions is None:
                return
            self._wait_reported(batches, timeout_s)
            try:
                batches.commit(positions, timeout_s=min(_TIMEOUT_S, max(_LEAST_S, timeout_s)))
            except CommitUnknown:
                raise
            except SluicewayError as error:
                if not self._transactional:
                    channel.failure = error
                raise

    def open(self, channel: ChannelProducer, wanted: Callable[[], bool]) -> bool:
        """Open a channel's next batch, if it is still `wanted` then; False if it has to wait.

        Raises GatewayError, TopicGone.
        """
        batches = channel.batches
        assert batches is not None  # noqa: S101 - the channel is exactly_once
        with self._holding(channel, _TIMEOUT_S):
            if batches.has_batch:
                # It is not known whether it is committed; `flush` asks again.
                return batches.is_open
            batches.open()
            with self._deliveries.lock:
                needed = wanted()
            if not needed:
                batches.abort(TransactionAborted("its messages were dropped"))
                return True
            batch = batches.current
        if not self._transactional:
            self._commit_later(channel, batch)
        return True

    def abort(self, channel: ChannelProducer, timeout_s: float) -> bool:
        """Abort the batch of a transaction; False if it turns out to be committed.

        Raises SluicewayTimeout while messages are on their way, and CommitUnknown.
        """
        batches = channel.batches
        if batches is None:
            return True
        with self._holding(channel, timeout_s):
            if batches.resolve():
                return False
            for each in self._deliveries.producers:
                each.purge(in_queue=True, in_flight=False, blocking=False)
            self._wait_reported(batches, timeout_s)
            batches.abort(TransactionAborted("the transaction was aborted by its producer"))
        return True

    @contextlib.contextmanager
    def _holding(self, channel: ChannelProducer, timeout_s: float) -> Iterator[None]:
        """Keep other threads from the batch of a channel. Raises SluicewayTimeout."""
        deadline_s = time.monotonic() + timeout_s
        with self._deliveries.lock:
            while channel.held:
                if time.monotonic() > deadline_s:
                    raise SluicewayTimeout("another thread opens or commits the batch: try again")
                self._deliveries.changed.wait(SHORT_WAIT_S)
            channel.held = True
        try:
            yield
        finally:
            with self._deliveries.lock:
                channel.held = False
                self._deliveries.changed.notify_all()

    def _wait_reported(self, batches: MessageBatches, timeout_s: float) -> None:
        """Wait until Kafka has reported all messages of a batch. Raises SluicewayTimeout."""
        deadline_s = time.monotonic() + timeout_s
        while batches.is_open and batches.pending:
            if time.monotonic() > deadline_s:
                raise SluicewayTimeout(
                    f"Kafka has not acknowledged {batches.pending} messages in time: try again"
                )
            self.poll_reports(SHORT_WAIT_S)

    def poll_reports(self, wait_s: float) -> None:
        """Serve reports in this thread, unless callbacks of the caller's would run in it."""
        if all(each.batches is not None for each in self._attached.values()):
            for each in self._deliveries.producers:
                each.poll(wait_s)
        else:
            with self._deliveries.lock:
                self._deliveries.changed.wait(wait_s)

    def _commit_later(self, channel: ChannelProducer, batch: object) -> None:
        """Commit a batch after a time, so that it does not hold readers back."""

        def commit() -> None:
            batches = channel.batches
            if batches is None or batches.current is not batch or self.stopped:
                return
            try:
                self.end(channel, _TIMEOUT_S)
            except SluicewayError as error:
                # The next flush raises it.
                LOGGER.warning("a commit by time in %s failed: %s", channel.handle.channel, error)
                if batches.current is batch:
                    self._commit_later(channel, batch)

        timer = threading.Timer(_COMMIT_EVERY_S, commit)
        timer.daemon = True
        timer.start()

    def _require_whole(self, channel: ChannelProducer) -> None:
        """Abort the batch, and raise, if a message of it never reached Kafka."""
        lost = self._deliveries.queue.failures.get(channel.handle.channel)
        if lost is not None and channel.failure is None:
            channel.failure = DeliveryLost(lost.str())
            if channel.batches is not None:
                channel.batches.abort(channel.failure)
        if channel.failure is not None:
            raise channel.failure

    def unended(
        self, channel: ChannelProducer, failure: KafkaError | None
    ) -> SluicewayError | None:
        """Return why a batch that is open at the end is aborted."""
        if channel.batches is None or not channel.batches.has_batch:
            return None
        if failure is not None:
            return DeliveryLost(failure.str())
        return TransactionAborted("the producer was closed within a transaction")
