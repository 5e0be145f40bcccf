"""Consumer: confluent-kafka's interface on channels."""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast

from confluent_kafka import OFFSET_INVALID, KafkaException, Message, TopicPartition

from sluiceway import Position
from sluiceway.confluent.committer import committed_partitions
from sluiceway.confluent.config import configuration_of, consumer_settings
from sluiceway.confluent.coordinator import ConsumerCoordinator, OnPartitions
from sluiceway.confluent.errors import (
    CONFLICT,
    INVALID_ARG,
    NO_OFFSET,
    STATE,
    UNKNOWN_PARTITION,
    kafka_error,
    kafka_exceptions,
    refused,
)
from sluiceway.confluent.metadata import cluster_metadata
from sluiceway.confluent.partition_offsets import (
    Partition,
    by_channel,
    partitions_of,
    topic_partitions,
)
from sluiceway.confluent.transactions import GroupMetadata
from sluiceway.confluent.waiting import left_s
from sluiceway.spi import PositionAdvance

__all__ = ["Consumer"]

_SLICE_S = 0.1
_TIMEOUT_S = 30.0
"""The default timeout of requests to the gateway."""

Method = TypeVar("Method", bound=Callable[..., Any])


def _exclusive(method: Method) -> Method:
    """Run a method of an open consumer in one thread at a time."""

    @functools.wraps(method)
    def locked(self: "Consumer", *args: Any, **named: Any) -> Any:
        with self._coordinator.lock:
            self._coordinator.require_open()
            return method(self, *args, **named)

    return cast("Method", locked)


class Consumer:
    """Reads messages of channels as confluent-kafka's Consumer reads topics.

    The configuration has librdkafka's names. `bootstrap.servers` is the gateway's address (default:
    SLUICEWAY_URL); `sluiceway.token`, `sluiceway.ca` and `sluiceway.listener` belong to it. Topics
    are channels. Groups, their members and offsets are the gateway's. `sluiceway.behaves.like` is
    "confluent" or "hpe", for the few differences between the two clients. docs/coming-from.md
    lists them, and every method.

    Raises KafkaException with librdkafka's codes, TypeError for arguments of another type, and
    RuntimeError once it is closed. Thread-safe: each message goes to one of the polling threads.
    """

    def __init__(self, config: object = None, /, **named: Any) -> None:
        # Masked, because error reporters show the arguments of frames.
        config = named = configuration_of(config, named)
        self._settings = consumer_settings(named)
        self._coordinator = ConsumerCoordinator(self._settings, self)
        # Polls check these before each message.
        self._wakeup = self._coordinator.wakeup
        self._events = self._coordinator.events
        self._assignment = self._coordinator.assignment
        self._fetcher = self._assignment.fetcher

    @_exclusive
    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Join the group at these channels only; `^…` is a regex of names.

        `poll` and `consume` call the callbacks with partitions that are assigned or revoked.
        """
        if not isinstance(topics, list | tuple) or not all(isinstance(t, str) for t in topics):
            raise TypeError("expected list of topic unicode strings")
        if not topics:
            raise refused(INVALID_ARG, "the list of topics is empty: to leave, call unsubscribe()")
        callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        if not all(callback is None or callable(callback) for callback in callbacks.values()):
            raise TypeError("callbacks must be callable")
        if self._assignment.manual_partitions:
            if self._settings.hpe:
                raise refused(CONFLICT, "partitions are assigned: call unassign() first")
            self._coordinator.unassign_manually()
        self._assignment.subscription.replace(topics)
        self._coordinator.callbacks = callbacks
        self._wakeup.set()

    def unsubscribe(self) -> None:
        """Leave the group at all channels."""
        self._coordinator.wait_for_callback()
        self._unsubscribe()

    @_exclusive
    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions only, from their offsets or else the group's committed ones.

        Inside `on_assign`, it reads these of the new partitions only.
        """
        wanted = partitions_of(partitions)
        if self._assignment.in_callback:
            self._assignment.leave_out((self._assignment.started or set()) - wanted.keys())
            self._start_assigning(wanted)
            return
        self._coordinator.assign_manually(wanted)

    @_exclusive
    def unassign(self) -> None:
        """Stop reading assigned partitions; without effect while subscribed.

        Inside `on_assign`, none of the new partitions is read.
        """
        if self._assignment.in_callback:
            self._assignment.leave_out(self._assignment.assigning)
        elif not self._assignment.subscription:
            self._coordinator.unassign_manually()

    @_exclusive
    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions as well; inside `on_assign`, these of the new ones only."""
        wanted, present = partitions_of(partitions), self._assignment.manual_partitions
        if self._assignment.in_callback:
            self._start_assigning(wanted)
            return
        for channel, partition in wanted.keys() & set(present):
            raise refused(CONFLICT, f"partition {partition} of {channel!r} is already assigned")
        self._coordinator.assign_manually(wanted, keep=present)

    @_exclusive
    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these partitions; without effect while subscribed.

        Inside `on_assign`, only new partitions that `assign` or `incremental_assign` named before
        are read.
        """
        gone, present = partitions_of(partitions), set(self._assignment.manual_partitions)
        if self._assignment.in_callback:
            self._assignment.leave_out(gone)
        elif not self._assignment.subscription:
            for channel, partition in gone.keys() - present:
                raise refused(INVALID_ARG, f"partition {partition} of {channel!r} is not assigned")
            self._coordinator.assign_manually({}, keep=present - gone.keys())

    @_exclusive
    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions."""
        return topic_partitions(dict.fromkeys(sorted(self._fetcher.starts), OFFSET_INVALID))

    def poll(self, timeout: float | None = -1) -> Message | None:
        """Return a message or an event, or None after `timeout` seconds; negative: wait forever.

        Events have a `Message.error()`.
        """
        if time.monotonic() < self._wakeup.due_s and not self._events:
            # The hot path: return fetched messages before anything else.
            message = self._fetcher.poll(0)
            if message is not None:
                return message
        deadline_s = self._deadline(timeout)
        while True:
            now_s = time.monotonic()
            if self._events or now_s >= self._wakeup.due_s:
                self._coordinator.serve(deadline_s - now_s)
                if (event := self._coordinator.next_event()) is not None:
                    return event
            message = self._fetcher.poll(max(0.0, min(_SLICE_S, deadline_s - now_s)))
            if message is not None:
                return message
            if time.monotonic() >= deadline_s and not self._wakeup.is_set():
                return None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to `num_messages` messages and events, fewer after `timeout` seconds."""
        if not isinstance(num_messages, int) or not 0 <= num_messages <= 1_000_000:
            raise ValueError("num_messages must be between 0 and 1000000 (1M)")
        deadline_s = self._deadline(timeout)
        messages: list[Message] = []
        try:
            # Return the messages before a rebalance commits them or revokes their partition.
            while not (messages and self._coordinator.rebalancing):
                if not messages and time.monotonic() >= self._wakeup.due_s:
                    self._coordinator.serve(deadline_s - time.monotonic())
                while self._events and len(messages) < num_messages:
                    messages += filter(None, [self._coordinator.next_event()])
                wait_s = max(0.0, min(_SLICE_S, deadline_s - time.monotonic()))
                self._fetcher.consume(messages, num_messages - len(messages), wait_s)
                if len(messages) >= num_messages or time.monotonic() >= deadline_s:
                    break
        except BaseException:
            self._coordinator.put_back(messages)
            raise
        return messages

    def commit(
        self,
        message: Message | None = None,
        offsets: Sequence[TopicPartition] | None = None,
        asynchronous: bool = True,
        **named: Any,
    ) -> list[TopicPartition] | None:
        """Commit past `message`, or `offsets`, or all returned messages.

        `asynchronous` (or `**{"async": True}`) returns None at once, and `poll` calls `on_commit`.
        Otherwise it returns the committed offsets, and raises _NO_OFFSET if nothing was read. Other
        codes of KafkaException: OFFSET_OUT_OF_RANGE past the returned messages, UNKNOWN_MEMBER_ID,
        REBALANCE_IN_PROGRESS for partitions that were taken from the member, and _CONFLICT if
        another consumer has committed an assigned partition.
        """
        asynchronous = named.pop("async", asynchronous)
        if named:
            raise TypeError(f"commit() has no argument {next(iter(named))!r}")
        wanted = self._to_commit(message, offsets)
        committer = self._coordinator.committer
        if asynchronous:
            if wanted:
                committer.submit(wanted)
            return None
        if not wanted:
            raise refused(NO_OFFSET, "nothing to commit: no assigned partition was read yet")
        # Without the lock, so other threads can poll meanwhile.
        committer.flush()
        failures = committer.commit(wanted)
        if failures:
            raise KafkaException(kafka_error(next(iter(failures.values()))))
        return committed_partitions(wanted, {})

    @_exclusive
    def store_offsets(
        self, message: Message | None = None, offsets: Sequence[TopicPartition] | None = None
    ) -> None:
        """Store offsets for the next commit, with `enable.auto.offset.store` false."""
        if self._settings.auto_store:
            raise refused(INVALID_ARG, "enable.auto.offset.store is true: it is already stored")
        wanted = _requested(message, offsets)
        if wanted is None:
            raise TypeError("expected either message or offsets")
        self._assignment.require(wanted, UNKNOWN_PARTITION)
        self._coordinator.stored |= wanted

    @_exclusive
    def seek(self, partition: TopicPartition) -> None:
        """Continue at an offset. Raises KafkaException _UNKNOWN_PARTITION if not assigned."""
        ((key, offset),) = partitions_of([partition]).items()
        self._assignment.seek(key, offset)
        self._coordinator.stored.pop(key, None)

    @_exclusive
    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no messages of these partitions until `resume`."""
        self._fetcher.pause(list(partitions_of(partitions)))

    @_exclusive
    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Return messages of paused partitions again."""
        self._fetcher.resume(list(partitions_of(partitions)))

    def committed(
        self, partitions: Sequence[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """Return the group's committed offsets; OFFSET_INVALID without one.

        Raises KafkaException _TRANSPORT after `timeout` seconds without a response (negative: 30).
        """
        self._coordinator.require_open()
        requested = partitions_of(partitions)
        with kafka_exceptions():
            positions = self._assignment.committed(requested, _seconds(timeout))
        stored = {
            (topic_partition.topic, topic_partition.partition): topic_partition
            for topic_partition in committed_partitions(positions, {})
        }
        return [
            stored.get(partition, TopicPartition(*partition, OFFSET_INVALID))
            for partition in requested
        ]

    @_exclusive
    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the offset after the last returned message.

        Before the first message it is OFFSET_INVALID, or 0 as in HPE's client.
        """
        requested = partitions_of(partitions)
        consumed = self._fetcher.consumed(requested)
        unknown = 0 if self._settings.hpe else OFFSET_INVALID
        return topic_partitions(
            {partition: consumed.get(partition, unknown) for partition in requested}
        )

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int] | None:
        """Return the first offset of the partition and the one after its last message."""
        deadline_s = time.monotonic() + _seconds(timeout)
        (key,) = self._existing([partition], deadline_s)
        return self._fetcher.watermarks(key, left_s(deadline_s), cached=cached)

    def offsets_for_times(
        self, partitions: Sequence[TopicPartition], timeout: float = 30
    ) -> list[TopicPartition]:
        """Return the first offset not older than each `offset`, which is a time in ms."""
        deadline_s = time.monotonic() + _seconds(timeout)
        requested = self._existing(partitions, deadline_s)
        return topic_partitions(self._fetcher.offsets_at(requested, left_s(deadline_s)))

    def consumer_group_metadata(self) -> GroupMetadata:
        """Return the metadata for `Producer.send_offsets_to_transaction`.

        Raises KafkaException _STATE with automatic commits, which would precede transactions.
        """
        self._coordinator.require_open()
        if self._settings.auto_commit:
            raise refused(
                STATE,
                "enable.auto.commit is true: offsets would be committed before the transaction, "
                "and its messages lost if it is aborted. Set it to false",
            )
        return GroupMetadata(
            gateway=self._settings.control.ledger.identity,
            commit_with=self._commit_with,
            removals=lambda: self._assignment.removals,
        )

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return a confluent_kafka.admin.ClusterMetadata with channels as its topics.

        Raises KafkaException.
        """
        self._coordinator.require_open()
        return cluster_metadata(self._settings, topic, timeout)

    def cluster_id(self, timeout: float = -1) -> str | None:
        """Return the id of the Kafka cluster."""
        cluster_id: str | None = self.list_topics(timeout=timeout).cluster_id
        return cluster_id

    def memberid(self) -> str | None:
        """Return the id of its endpoint at the first channel, if it has one."""
        self._coordinator.require_open()
        return next((member.handle.id for member in self._assignment.members.values()), None)

    def close(self) -> None:
        """Commit if commits are automatic, leave the group, and disconnect. May be repeated.

        It takes 10 s at most. Every step is tried; the exception of a callback or of the gateway is
        raised afterwards. An unreachable gateway is logged.
        """
        self._coordinator.wait_for_callback()
        with self._coordinator.lock:
            self._coordinator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @_exclusive
    def _unsubscribe(self) -> None:
        self._coordinator.unsubscribe()

    @_exclusive
    def _to_commit(
        self, message: Message | None, offsets: Sequence[TopicPartition] | None
    ) -> dict[Partition, Position]:
        wanted = _requested(message, offsets)
        if wanted is None:
            wanted = self._coordinator.consumed(self._assignment.partitions)
        self._assignment.require(wanted)
        self._assignment.record_positions()
        return wanted

    def _commit_with(
        self,
        offsets: Sequence[TopicPartition],
        send: Callable[[PositionAdvance | None], None] | None,
    ) -> None:
        """Commit offsets with a transaction's `send`, or alone without it."""
        wanted = self._to_commit(None, offsets)
        self._coordinator.committer.flush()
        if not wanted and send is not None:
            send(None)
        for channel, positions in by_channel(wanted).items():
            member = self._assignment.members.get(channel)
            if member is None:
                raise refused(STATE, f"this consumer has left the channel {channel!r}")
            if send is None:
                member.commit(positions)
            else:
                member.commit_with(positions, send)

    def _existing(
        self, partitions: Sequence[TopicPartition], deadline_s: float
    ) -> dict[Partition, int]:
        """Return partitions after a check that they exist. Raises KafkaException."""
        self._coordinator.require_open()
        requested = partitions_of(partitions)
        with kafka_exceptions():
            for partition in requested:
                self._assignment.check(partition, deadline_s)
        return requested

    def _start_assigning(self, offsets: Mapping[Partition, int]) -> None:
        with kafka_exceptions():
            self._events.extend(self._assignment.start_assigning(offsets))

    def _deadline(self, timeout: float | None) -> float:
        self._coordinator.require_open()
        return math.inf if timeout is None or timeout < 0 else time.monotonic() + timeout


def _seconds(timeout: float) -> float:
    """Return a caller's timeout; a negative one means the default."""
    return _TIMEOUT_S if timeout < 0 else timeout


def _requested(
    message: Message | None, offsets: Sequence[TopicPartition] | None
) -> dict[Partition, Position] | None:
    """Return the offsets that a caller wants to commit; None without any."""
    if message is not None and offsets is not None:
        raise ValueError("message and offsets are mutually exclusive")
    if message is not None:
        if not isinstance(message, Message):
            raise TypeError(f"expected Message, not {type(message).__name__}")
        if message.error() is not None:
            raise refused(INVALID_ARG, "events cannot be committed, only messages")
        offset = message.offset()
        # A message that a program made itself may have none.
        if offset is None:
            return {}
        return {(message.topic(), message.partition()): Position(offset=offset + 1)}
    if offsets is None:
        return None
    partitions_of(offsets)
    return {
        (topic_partition.topic, topic_partition.partition): Position(
            offset=topic_partition.offset, metadata=topic_partition.metadata
        )
        for topic_partition in offsets
        if topic_partition.offset >= 0
    }
