"""Transactions of a Producer, as batches of an exactly-once channel."""

import enum
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sluiceway.confluent.channel_producer import ChannelProducer
from sluiceway.confluent.config import ProducerSettings
from sluiceway.confluent.errors import FENCED, INVALID_ARG, STATE, TIMED_OUT, kafka_error, refused
from sluiceway.confluent.local_queue import PendingMessage
from sluiceway.confluent.partition_offsets import partitions_of
from sluiceway.confluent.sender import MessageSender
from sluiceway.confluent.waiting import left_s
from sluiceway.errors import CommitUnknown, Conflict, SluicewayError, SluicewayTimeout
from sluiceway.spi import PositionAdvance

__all__ = ["GroupMetadata", "Transactions"]

_TIMEOUT_S: Final = 60.0
"""The default timeout of calls; all of them may be repeated."""
_FENCED_CODES: Final = ("batch_fenced", "fenced")

CommitWith = Callable[
    [Sequence[TopicPartition], Callable[[PositionAdvance | None], None] | None], None
]


@dataclass(frozen=True, kw_only=True)
class GroupMetadata:
    """The part of a consumer in this process that a transaction needs to commit its offsets.

    `removals` returns the number of partitions that the consumer lost with uncommitted messages.
    """

    gateway: Hashable
    commit_with: CommitWith
    removals: Callable[[], int]


class _State(enum.Enum):
    NEW = "init_transactions()"
    READY = "begin_transaction()"
    OPEN = "commit_transaction() or abort_transaction()"


class Transactions:
    """The transactions of one producer. Each writes to one channel and reads from at most one.

    As in librdkafka, one thread at a time may use it; several threads may add messages.
    """

    def __init__(self, sender: MessageSender, settings: ProducerSettings) -> None:
        self._sender = sender
        self._settings = settings
        self._state = _State.NEW
        self._topic: str | None = None
        self._produced = 0
        # Set by a message to a second channel; after it the transaction can only be aborted.
        self._refusal: KafkaError | None = None
        self._offsets: dict[tuple[str, int], TopicPartition] = {}
        self._group: GroupMetadata | None = None
        # The consumer of the last transaction, and its number of lost partitions at the end of that
        # one. After further losses, its offsets must not be committed.
        self._last_group: GroupMetadata | None = None
        self._removals = 0

    def init(self, timeout_s: float) -> None:
        """Check that the gateway answers. May be repeated before the first transaction."""
        self._require(_State.NEW)
        wait_s = min(timeout_s, _TIMEOUT_S)
        try:
            next(iter(self._settings.control.channels(timeout_s=max(0.1, wait_s))), None)
        except SluicewayError as error:
            raise KafkaException(kafka_error(error)) from error
        self._state = _State.READY

    def begin(self) -> None:
        """Begin a transaction."""
        self._require(_State.READY)
        self._state = _State.OPEN

    def add(self, message: PendingMessage) -> None:
        """Queue a message of the transaction; the caller holds the producer's lock.

        Raises BufferError, and KafkaException outside of a transaction. One for a second channel
        requires an abort: without its messages, the commit would be half of the transaction.
        """
        self._require(_State.OPEN)
        if self._topic not in (None, message.topic):
            self._refusal = self._refusal or KafkaError(
                INVALID_ARG,
                f"this transaction writes to {self._topic!r}, so it cannot write to "
                f"{message.topic!r}: all of its messages go to one channel. Abort it. Write these "
                "messages to the same channel, or by a second producer with its own "
                "transactional.id, whose transactions are committed by themselves",
                txn_requires_abort=True,
            )
        self._require_one_channel()
        # Before the message is queued: after an interrupt, `abort` then removes it.
        topic, self._topic = self._topic, message.topic
        self._produced += 1
        try:
            self._sender.add(message)
        except Exception:
            self._topic = topic
            self._produced -= 1
            raise

    def send_offsets(self, positions: Sequence[TopicPartition], group: Any) -> None:
        """Commit these offsets with the transaction."""
        self._require(_State.OPEN)
        wanted = partitions_of(positions)
        if not isinstance(group, GroupMetadata):
            raise TypeError("expected the result of consumer_group_metadata() of this library")
        if group.gateway != self._settings.control.ledger.identity:
            raise refused(INVALID_ARG, "the consumer has another gateway than this producer")
        if self._group is not None and self._group.commit_with != group.commit_with:
            raise refused(INVALID_ARG, "a transaction commits the offsets of one consumer")
        channels = {channel for channel, _ in (*wanted, *self._offsets)}
        if len(channels) > 1:
            raise refused(
                INVALID_ARG,
                f"offsets of several channels: {', '.join(sorted(channels))}. A transaction "
                "commits the offsets of one; use separate transactions for each channel",
            )
        last = self._last_group
        if last is None or last.commit_with != group.commit_with:
            self._removals = 0
        self._last_group = group
        self._offsets |= {
            (topic_partition.topic, topic_partition.partition): topic_partition
            for topic_partition in positions
        }
        self._group = group

    def commit(self, timeout_s: float) -> None:
        """Commit messages and offsets together."""
        self._require(_State.OPEN)
        self._require_one_channel()
        deadline_s = time.monotonic() + min(timeout_s, _TIMEOUT_S)
        self._deliver(deadline_s)
        channel = self._complete_channel()

        def send(positions: PositionAdvance | None) -> None:
            if channel is not None:
                self._sender.commits.end(channel, left_s(deadline_s), positions)

        try:
            if self._group is None or not self._offsets:
                send(None)
            else:
                self._require_assignment(self._group)
                offsets = list(self._offsets.values())
                self._group.commit_with(offsets, None if channel is None else send)
        except KafkaException as error:
            fault = error.args[0]
            raise KafkaException(
                KafkaError(fault.code(), fault.str(), txn_requires_abort=True)
            ) from error
        except SluicewayError as error:
            raise KafkaException(_failure(error)) from error
        self._end()

    def abort(self, timeout_s: float) -> None:
        """Drop messages and offsets."""
        self._require(_State.OPEN)
        deadline_s = time.monotonic() + min(timeout_s, _TIMEOUT_S)
        committed = False
        if self._topic is not None:
            self._sender.purge()
            channel = self._sender.attached(self._topic)
            if channel is not None:
                try:
                    committed = not self._sender.commits.abort(channel, left_s(deadline_s))
                except SluicewayError as error:
                    raise KafkaException(_failure(error)) from error
        self._end()
        if committed:
            raise refused(
                STATE,
                "the transaction was committed: only the gateway's response was missing. Continue "
                "after it",
            )

    def _require_one_channel(self) -> None:
        if self._refusal is not None:
            raise KafkaException(self._refusal)

    def _require_assignment(self, group: GroupMetadata) -> None:
        if group.removals() != self._removals:
            raise refused(
                KafkaError.REBALANCE_IN_PROGRESS,
                "partitions of the consumer were revoked after messages of them were returned, and "
                "other members read these: abort the transaction, and continue at the committed "
                "offsets",
            )

    def _deliver(self, deadline_s: float) -> None:
        left = self._sender.deliveries.flush(left_s(deadline_s))
        if left:
            text = f"{left} messages are not delivered yet: call commit_transaction() again"
            raise KafkaException(KafkaError(TIMED_OUT, text, retriable=True))

    def _complete_channel(self) -> ChannelProducer | None:
        """Return the transaction's channel. Raises if messages are missing."""
        if self._topic is None:
            return None
        channel = self._sender.attached(self._topic)
        batches = None if channel is None else channel.batches
        taken = 0 if batches is None else batches.admitted
        if taken != self._produced:
            text = (
                f"{self._produced - taken} of {self._produced} messages of this transaction have "
                "failed (see their delivery reports); nothing is committed: abort it"
            )
            raise KafkaException(KafkaError(STATE, text, txn_requires_abort=True))
        return channel

    def _require(self, state: _State) -> None:
        if self._state is not state:
            raise refused(STATE, f"wrong state for this call: call {self._state.value} first")

    def _end(self) -> None:
        self._state = _State.READY
        self._topic, self._produced, self._refusal = None, 0, None
        self._offsets, self._group = {}, None
        if self._last_group is not None:
            self._removals = self._last_group.removals()


def _failure(error: SluicewayError) -> KafkaError:
    """Return the error of a transaction, with the flag for the required reaction."""
    if isinstance(error, CommitUnknown | SluicewayTimeout):
        return KafkaError(TIMED_OUT, str(error), retriable=True)
    if isinstance(error, Conflict) and error.code in _FENCED_CODES:
        return KafkaError(FENCED, str(error), fatal=True)
    return KafkaError(kafka_error(error).code(), str(error), txn_requires_abort=True)
