"""Channel producer: a Producer's endpoint, validation, callbacks and batches for one channel."""

import collections
import logging
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from sluiceway.confluent.config import ProducerSettings
from sluiceway.confluent.errors import INVALID_ARG, kafka_error, kafka_exceptions, refused
from sluiceway.confluent.local_queue import (
    SHORT_WAIT_S,
    Deliveries,
    OnDelivery,
    PendingMessage,
    encoded,
)
from sluiceway.errors import (
    ChannelNotFound,
    CommitUnknown,
    EndpointClosed,
    Fenced,
    KafkaFailure,
    SluicewayError,
    SluicewayTimeout,
    TopicGone,
)
from sluiceway.spi import (
    Background,
    BatchSequence,
    PositionAdvance,
    Timer,
    WriterEndpoint,
    run_callbacks,
)

__all__ = ["BatchCommits", "ChannelProducer", "reason_of"]

T = TypeVar("T")

_TIMEOUT_S: Final = 30.0
_METADATA_TIMEOUT_S: Final = 5.0


class ChannelProducer(WriterEndpoint):
    """One channel of a Producer. Its fields are for `Producer.produce`, the hot path.

    `probe_s` limits the first request, which detects an outage of the gateway. For an exactly-once
    channel, any thread may serve delivery reports, so callbacks are added to `calls`.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        channel: str,
        *,
        probe_s: float,
        calls: collections.deque[Callable[[], object]],
    ) -> None:
        self._control = settings.control
        super().__init__(
            settings.control,
            channel,
            uid=settings.control.channel(channel, timeout_s=probe_s).uid,
            timeout_s=_TIMEOUT_S,
            config=settings.kafka,
            owner=settings.transactional_id,
        )
        # Readers ignore a writer that fails before its first message.
        self.handle.pristine = True
        self.topic = self.connection.topic_name
        # While a call has the turn, other threads neither open nor end batches, nor produce.
        self.turn: object | None = None
        self.failure: SluicewayError | None = None
        # Whether the channel is certain to exist, or not to.
        self._existence_checked = False
        self._checking, self._discovering = Background(), Background()
        self.timer: Timer | None = None
        """The timed commit of its batches."""
        self._calls = calls
        self._only_errors = settings.only_errors
        self.validates = not self.validator.accepts_any
        self.partition_of_key = settings.partitions_of_keys(
            channel, self.connection.partitioner, self.connection.partitions
        )
        self._discovered = self.connection.partitions
        # `_send` is used for queued messages even after the producer refuses further ones.
        self.produce: Callable[..., None]
        self._send: Callable[..., None]
        # The latest wrapper of a delivery callback, as a weak reference. librdkafka holds the
        # wrapper while messages are in flight; a strong one would keep the callback's objects.
        self.latest: Callable[[], Any] = lambda: None

    def may_refresh(self, value: Any) -> bool:
        """Whether validation of a value needs a request to the gateway."""
        return self.validates and self.validator.may_refresh(encoded(value))

    def require_valid(self, value: Any) -> None:
        """Raise KafkaException for a value that is invalid in the channel, TypeError."""
        with kafka_exceptions():
            reason = self.validator.error(encoded(value))
        if reason is not None:
            raise refused(INVALID_ARG, reason)

    def wrapped(self, on_delivery: OnDelivery) -> OnDelivery:
        """Return a delivery callback that counts failures and sets the channel's name.

        While messages are in flight, equal consecutive callbacks share one wrapper.
        """
        latest = self.latest()
        if latest is not None and latest.__wrapped__ == on_delivery:
            return latest  # type: ignore[no-any-return]
        if not callable(on_delivery):
            raise TypeError("on_delivery must be callable")
        name = self.handle.channel

        batches, calls, only_errors = self.batches, self._calls, self._only_errors

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None or batches is not None:
                error = self.record_delivery(error, message)
            if error is not None:
                message.set_error(error)
            elif only_errors:
                return
            message.set_topic(name)
            if batches is None:
                on_delivery(error, message)
            else:
                calls.append(partial(on_delivery, error, message))

        delivered.__wrapped__ = on_delivery  # type: ignore[attr-defined]
        self.latest = weakref.ref(delivered)
        return delivered

    def discover_partitions(self, producer: Any, total: int) -> None:
        """Let librdkafka send messages without a key to all `total` partitions, in a moment.

        Its own refresh of metadata takes minutes. Without a response, the next call tries again.
        """

        def discover() -> None:
            if total <= self._discovered:
                return
            try:
                producer.list_topics(self.topic, timeout=_METADATA_TIMEOUT_S)
                self._discovered = total
            except KafkaException as error:
                LOGGER.info("added partitions are used later: %s", error)

        if total > self._discovered:
            self._discovering.run(discover)

    def check_existence(self, on_deletion: Callable[[TopicGone], None]) -> None:
        """Call `on_deletion` in another thread if the channel was deleted.

        Then the gateway has no record of the endpoint. Without a response, the next call requests
        the channel again.
        """

        def check() -> None:
            if self._existence_checked:
                return
            try:
                error = self._deletion()
                self._existence_checked = True
                if error is not None:
                    on_deletion(error)
            except SluicewayError as failure:
                self._existence_checked = failure.is_final

        if not self._existence_checked and self._is_unknown():
            self._checking.run(check)

    def _is_unknown(self) -> bool:
        """Return True if the gateway did not know the endpoint at the last heartbeat."""
        try:
            self.handle.check()
        except EndpointClosed:
            return True
        except Fenced:
            pass
        return False

    def _deletion(self) -> TopicGone | None:
        """Return the error if the channel was deleted, else None. Raises GatewayError."""
        name = self.handle.channel
        try:
            connection = self._control.connection(name, "write", timeout_s=_TIMEOUT_S)
        except ChannelNotFound:
            pass
        else:
            if connection.channel_uid == self.connection.channel_uid:
                return None
        return TopicGone(
            f"the channel {name!r} was deleted: create another producer to write to a new channel "
            "of this name"
        )

    def record_delivery(self, error: KafkaError | None, message: Message) -> KafkaError | None:
        """Count a failed message, or record the offset of a batch's message.

        Returns the error to report: librdkafka does not know that a channel was deleted.
        """
        if error is not None and isinstance(self.failure, TopicGone):
            error = kafka_error(self.failure, fatal=True)
        if error is not None:
            (self.batches or self).add_failure(reason_of(error))
        elif self.batches is not None:
            self.batches.intervals.add_message(message.partition(), message.offset())
        return error

    def optional(
        self, on_delivery: OnDelivery | None, timestamp: int, headers: Any
    ) -> dict[str, Any]:
        """Return the optional arguments of `produce` that are given."""
        named: dict[str, Any] = {}
        if on_delivery is not None:
            named["on_delivery"] = self.wrapped(on_delivery)
        if timestamp:
            named["timestamp"] = timestamp
        if headers is not None:
            named["headers"] = headers
        return named

    def connect(self, produce: Callable[..., None]) -> None:
        """Pass messages to this function of librdkafka's producer from now on."""
        self.produce = self._send = produce

    def send(self, message: PendingMessage) -> None:
        """Pass a message of the local queue to librdkafka. Raises BufferError, KafkaException."""
        partition = message.partition
        if message.key is not None and partition == -1:
            partition = self.partition_of_key(message.key)
        named = self.optional(message.on_delivery, message.timestamp, message.headers)
        if self.handle.pristine:
            self.handle.pristine = False
        self._send(self.topic, message.value, message.key, partition, **named)
        if self.batches is not None:
            self.batches.block.admitted += 1
        self.records += 1
        self.partitions_used = max(self.partitions_used, partition + 1)


def reason_of(error: KafkaError) -> str:
    """Return the text of an error for the cause of a failed writer."""
    return f"{error.name()}, {error.str()}"


LOGGER = logging.getLogger("sluiceway.confluent")

_COMMIT_EVERY_S: Final = 5.0
_LEAST_S: Final = 1.0


class DeliveryLost(KafkaFailure, code="delivery_failed"):
    """Messages of an exactly-once channel were not delivered, so their batch was aborted."""


class TransactionAborted(SluicewayError, code="transaction_aborted", public=True):
    """The cause of a batch that its producer has aborted; it is never raised."""


@dataclass(eq=False)
class BatchCommits:
    """Opens and ends the batches of a producer's exactly-once channels.

    One thread at a time has a channel's turn; meanwhile none of its messages are passed to
    librdkafka. Raises SluicewayTimeout if another thread has it for too long.
    """

    _deliveries: Deliveries
    _attached: Mapping[str, ChannelProducer]
    transactional: bool = field(kw_only=True)
    stopped: bool = False
    """True after the last timed commit."""

    def commit(self, timeout_s: float) -> None:
        """Commit the delivered messages of exactly-once channels. Raises SluicewayError.

        After an error other than CommitUnknown, a channel's batch is aborted, and no more messages
        are sent to it.
        """
        deadline_s = time.monotonic() + timeout_s
        first: SluicewayError | None = None
        # A copy: other threads attach channels meanwhile.
        for channel in [
            attached for attached in list(self._attached.values()) if attached.batches is not None
        ]:
            try:
                self.end(channel, deadline_s - time.monotonic())
            except SluicewayError as error:
                first = first or error
        if first is not None:
            raise first

    def repeat(self, timeout_s: float) -> None:
        """Repeat commits without a response, before which no more messages are sent.

        Raises SluicewayError. A transaction's is repeated by its program.
        """
        for channel in list(self._attached.values()):
            unknown = None if channel.batches is None else channel.batches.unknown
            if unknown is not None and not self.transactional:
                self.end(channel, timeout_s)

    def end(
        self, channel: ChannelProducer, timeout_s: float, positions: PositionAdvance | None = None
    ) -> None:
        """Commit the batch of a channel after all its delivery reports.

        Raises SluicewayTimeout, after which it may be repeated, and the errors of
        `BatchSequence.commit`.
        """

        def commit(batches: BatchSequence) -> None:
            if not self.transactional:
                self._require_whole(channel)
            if not batches.admitted and positions is None:
                return
            self._wait_reported(batches, timeout_s)
            limit_s = min(_TIMEOUT_S, max(_LEAST_S, timeout_s))
            try:
                channel.confirm_delivery(timeout_s=limit_s)
                batches.commit(positions, timeout_s=limit_s)
            except CommitUnknown:
                raise
            except SluicewayError as error:
                # Before the abort, which an interrupt may hit: the next commit has no messages.
                if not self.transactional:
                    channel.failure = error
                batches.abort(error)
                raise

        self._in_turn(channel, commit, timeout_s)

    def open(self, channel: ChannelProducer, wanted: Callable[[], bool]) -> bool:
        """Open a channel's next batch if it is still `wanted`; False if it has to wait.

        Raises GatewayError, TopicGone.
        """

        def needed() -> bool:
            with self._deliveries.lock:
                return wanted()

        def begin(batches: BatchSequence) -> bool:
            if batches.current is not None:
                # The state of the batch is unknown; `flush` resolves it.
                return batches.is_open
            # An abort that drops the messages waits for the turn, so none opens after it.
            if not needed():
                return True
            partitions = len(batches.open().opened.begin)
            if not needed():
                batches.abort(TransactionAborted("its messages were dropped"))
                return True
            if self._deliveries.producers:
                channel.discover_partitions(self._deliveries.producers[-1], partitions)
            if not self.transactional:
                # Later, so that it does not hold readers back.
                channel.timer = channel.timer or Timer(self._commit_if_due, channel)
                channel.timer.set(_COMMIT_EVERY_S)
            return True

        return self._in_turn(channel, begin, _TIMEOUT_S)

    def abort(self, channel: ChannelProducer, timeout_s: float) -> bool:
        """Abort the batch of a transaction; False if it was already committed.

        Raises SluicewayTimeout while messages are in flight, and CommitUnknown.
        """

        def abort(batches: BatchSequence) -> bool:
            if batches.resolve():
                return False
            for producer in self._deliveries.producers:
                producer.purge(in_queue=True, in_flight=False, blocking=False)
            self._wait_reported(batches, timeout_s)
            batches.abort(TransactionAborted("the transaction was aborted by its producer"))
            return True

        return channel.batches is None or self._in_turn(channel, abort, timeout_s)

    def _in_turn(
        self, channel: ChannelProducer, work: Callable[[BatchSequence], T], timeout_s: float
    ) -> T:
        """Do work on a channel's batches, without other threads. Raises SluicewayTimeout.

        A context manager would keep the turn after an interrupt between its lines and the block.
        """
        assert channel.batches is not None  # noqa: S101 - the channel is exactly_once
        deadline_s, turn = time.monotonic() + timeout_s, object()
        try:
            with self._deliveries.lock:
                while channel.turn is not None:
                    if time.monotonic() > deadline_s:
                        text = "another thread opens or commits the batch: try again"
                        raise SluicewayTimeout(text)
                    self._deliveries.changed.wait(SHORT_WAIT_S)
                channel.turn = turn
            return work(channel.batches)
        finally:
            # No call before this, in which a signal's handler could raise.
            if channel.turn is turn:
                channel.turn = None
            with self._deliveries.lock:
                self._deliveries.changed.notify_all()

    def _wait_reported(self, batches: BatchSequence, timeout_s: float) -> None:
        """Wait until Kafka has reported all messages of a batch. Raises SluicewayTimeout."""
        deadline_s = time.monotonic() + timeout_s
        while batches.is_open and batches.pending > 0:
            if time.monotonic() > deadline_s:
                raise SluicewayTimeout(
                    f"Kafka has not acknowledged {batches.pending} messages in time: try again"
                )
            pending, none_left = batches.pending, not self._deliveries.in_librdkafka
            self.poll_reports(SHORT_WAIT_S)
            if none_left and batches.pending == pending:
                for _ in range(pending):
                    batches.add_failure("an interrupt lost the delivery report")

    def poll_reports(self, wait_s: float) -> None:
        """Serve reports in this thread, unless the caller's callbacks would run in it."""
        if all(channel.batches is not None for channel in list(self._attached.values())):
            for producer in self._deliveries.producers:
                run_callbacks(producer.poll, wait_s)
        else:
            with self._deliveries.lock:
                self._deliveries.changed.wait(wait_s)

    def _commit_if_due(self, channel: ChannelProducer) -> None:
        batches = channel.batches
        if batches is None or batches.current is None or self.stopped:
            return
        try:
            self.end(channel, _TIMEOUT_S)
        except SluicewayError as error:
            # The next flush raises it.
            LOGGER.warning("a timed commit in %s failed: %s", channel.handle.channel, error)
            if batches.current is not None and channel.timer is not None:
                channel.timer.set(_COMMIT_EVERY_S)

    def _require_whole(self, channel: ChannelProducer) -> None:
        """Abort the batch and raise if one of its messages never reached Kafka."""
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
        """Return the reason to abort a batch that is open at the end, or None."""
        if channel.batches is None or channel.batches.current is None:
            return None
        if failure is not None:
            return DeliveryLost(failure.str())
        return TransactionAborted("the producer was closed within a transaction")
