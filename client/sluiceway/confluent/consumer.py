"""Consumer: confluent-kafka's interface on channels."""

import contextlib
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from confluent_kafka import (
    OFFSET_INVALID,
    KafkaException,
    Message,
    TopicPartition,
)

from sluiceway.confluent.coordinator import ConsumerCoordinator, OnPartitions, in_turn
from sluiceway.confluent.errors import (
    CONFLICT,
    INVALID_ARG,
    NO_OFFSET,
    kafka_error,
    kafkas_names,
    refused,
)
from sluiceway.confluent.fetcher import listed, parts_of


class Asking(ConsumerCoordinator):
    """The questions of Consumer, which change nothing."""

    def committed(
        self, partitions: Sequence[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """Return what the group has committed; OFFSET_INVALID where it is nothing."""
        del timeout  # the gateway's own applies
        self._require_open()
        with kafkas_names():
            return listed(self._assignment.committed(parts_of(partitions)))

    @in_turn
    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the offset after the last message handed out.

        Before the first it is OFFSET_INVALID; as HPE has it, 0.
        """
        self._require_open()
        asked = parts_of(partitions)
        found = self._assignment.fetcher.consumed(asked)
        nothing = 0 if self._settings.hpe else OFFSET_INVALID
        return listed({part: found.get(part, nothing) for part in asked})

    def get_watermark_offsets(
        self,
        partition: TopicPartition,
        timeout: float = -1,
        cached: bool = False,
    ) -> tuple[int, int] | None:
        """Return the first offset of the partition and the one after its last."""
        self._require_open()
        ((part, _),) = parts_of([partition]).items()
        with kafkas_names():
            self._assignment.look_at(part)
        return self._assignment.fetcher.watermarks(part, timeout, cached=cached)

    def offsets_for_times(
        self, partitions: Sequence[TopicPartition], timeout: float = 30
    ) -> list[TopicPartition]:
        """Return the first offset not older than each `offset`, which is a time in ms."""
        self._require_open()
        asked = parts_of(partitions)
        with kafkas_names():
            for part in asked:
                self._assignment.look_at(part)
        return self._assignment.fetcher.at_times(asked, timeout)

    def memberid(self) -> str | None:
        """Return the id of its endpoint at the first channel, if it has one."""
        self._require_open()
        return next((each.attachment.id for each in self._assignment.readers.values()), None)


_SLICE_S = 0.1


class Consumer(Asking):
    """Reads messages of channels as confluent-kafka's Consumer reads topics.

    The configuration is librdkafka's, but `bootstrap.servers` is the gateway's address (without
    it SLUICEWAY_URL), and `sluiceway.token`, `sluiceway.ca`, `sluiceway.listener` say how it is
    reached. Channels' names are topics' names. The group, its members and its offsets are the
    gateway's. `sluiceway.behaves.like` is "confluent" or "hpe": whose ways are followed where the
    two differ. docs/coming-from.md lists them, and every method.

    Raises KafkaException with librdkafka's codes, TypeError for arguments of another type, and
    RuntimeError once it is closed. Thread-safe: of threads that poll, each message goes to one.
    """

    @in_turn
    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Join the group at these channels, in place of those before; `^…` is a regex of names.

        `poll` and `consume` call the callbacks with the partitions that come and go.
        """
        self._require_open()
        if not isinstance(topics, list | tuple):
            raise TypeError("expected list of topic unicode strings")
        if not all(isinstance(each, str) for each in topics):
            raise TypeError("expected list of topic unicode strings")
        callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        if not all(each is None or callable(each) for each in callbacks.values()):
            raise TypeError("a callback is to be callable")
        if self._lone_parts():
            if self._settings.hpe:
                raise refused(CONFLICT, "partitions are assigned: unassign() them, then subscribe")
            self._give_up_lone()
        self._assignment.subscription.choose(topics)
        self._callbacks = callbacks
        self._news.set()

    @in_turn
    def unsubscribe(self) -> None:
        """Leave the group at all channels."""
        self._require_open()
        self._depart()

    @in_turn
    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions alone, from their offsets, or from where the group stands.

        In `on_assign`, it says where the partitions that have come begin.
        """
        self._require_open()
        wanted = parts_of(partitions)
        if self._assignment.coming is not None:
            with kafkas_names():
                self._events.extend(self._assignment.choose(wanted))
            return
        self._begin_with(wanted)

    @in_turn
    def unassign(self) -> None:
        """Read no partition any more; in a callback of a subscription there is nothing to do."""
        self._require_open()
        if self._assignment.coming is None and not self._assignment.subscription:
            self._give_up_lone()

    @in_turn
    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions besides."""
        self._require_open()
        if self._assignment.coming is not None:
            self.assign(partitions)
            return
        wanted, present = parts_of(partitions), self._lone_parts()
        for channel, partition in wanted.keys() & set(present):
            raise refused(CONFLICT, f"partition {partition} of {channel!r} is assigned already")
        self._begin_with(wanted, keep=present)

    @in_turn
    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions no more."""
        self._require_open()
        if self._assignment.coming is None and not self._assignment.subscription:
            gone, present = parts_of(partitions), self._lone_parts()
            for channel, partition in gone.keys() - set(present):
                raise refused(INVALID_ARG, f"partition {partition} of {channel!r} is not assigned")
            self._begin_with({}, keep=[part for part in present if part not in gone])

    @in_turn
    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are read."""
        self._require_open()
        return listed(dict.fromkeys(sorted(self._assignment.fetcher.begun), OFFSET_INVALID))

    def poll(self, timeout: float | None = -1) -> Message | None:
        """Return a message or an event, or None after `timeout` seconds; negative: never.

        `Message.error()` tells events from messages.
        """
        fetcher = self._assignment.fetcher
        if time.monotonic() < self._news.turn_s and not self._events:
            # The hot path: what lies ready is handed out before anything else is looked at.
            message = fetcher.poll(0)
            if message is not None:
                return message
        deadline_s = self._deadline(timeout)
        while True:
            now_s = time.monotonic()
            if self._events or now_s >= self._news.turn_s:
                self._serve()
                event = self._event()
                if event is not None:
                    return event
            wait_s = max(0.0, min(_SLICE_S, deadline_s - now_s))
            if fetcher.ready:
                message = fetcher.poll(wait_s)
                if message is not None:
                    return message
            else:
                self._news.wait(wait_s)
            if time.monotonic() >= deadline_s and not self._news.is_set():
                return None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to `num_messages` messages and events, fewer after `timeout` seconds."""
        if not isinstance(num_messages, int) or not 0 <= num_messages <= 1_000_000:
            raise ValueError("num_messages must be between 0 and 1000000 (1M)")
        deadline_s = self._deadline(timeout)
        found: list[Message] = []
        while True:
            # What is taken already is handed out before anybody commits it, or gives it away.
            if found and self._pressing():
                return found
            if not found and time.monotonic() >= self._news.turn_s:
                self._serve()
            while len(found) < num_messages and (event := self._event()) is not None:
                found.append(event)
            wait_s = max(0.0, min(_SLICE_S, deadline_s - time.monotonic()))
            if self._assignment.fetcher.ready:
                found += self._assignment.fetcher.consume(num_messages - len(found), wait_s)
            else:
                self._news.wait(wait_s)
            if len(found) >= num_messages or time.monotonic() >= deadline_s:
                return found

    @in_turn
    def commit(
        self,
        message: Message | None = None,
        offsets: Sequence[TopicPartition] | None = None,
        asynchronous: bool = True,
        **named: Any,
    ) -> list[TopicPartition] | None:
        """Commit past `message`, or `offsets`, or past all that was handed out.

        `asynchronous` (also `**{"async": True}`) returns at once, and `poll` calls `on_commit`;
        else it returns what is committed. Raises KafkaException _NO_OFFSET where there is nothing,
        OFFSET_OUT_OF_RANGE beyond what was read, ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID.
        """
        self._require_open()
        asynchronous = named.pop("async", asynchronous)
        if named:
            raise TypeError(f"commit() has no argument {next(iter(named))!r}")
        wanted = self._named(message, offsets)
        if wanted is None:
            wanted = self._consumed()
        if not wanted:
            raise refused(NO_OFFSET, "nothing was read yet of what is assigned: nothing to commit")
        self._assignment.require(wanted)
        self._assignment.note()
        if asynchronous:
            self._committer.soon(wanted)
            return None
        self._committer.settle()
        failures = self._committer.now(wanted)
        if failures:
            raise KafkaException(kafka_error(next(iter(failures.values()))))
        return listed(wanted)

    @in_turn
    def store_offsets(
        self, message: Message | None = None, offsets: Sequence[TopicPartition] | None = None
    ) -> None:
        """Note what the next commit is to keep, where `enable.auto.offset.store` is false."""
        self._require_open()
        if self._settings.auto_store:
            raise refused(INVALID_ARG, "enable.auto.offset.store is true: it is stored already")
        wanted = self._named(message, offsets)
        if wanted is None:
            raise TypeError("expected either message or offsets")
        self._assignment.require(wanted)
        self._stored |= wanted

    @in_turn
    def seek(self, partition: TopicPartition) -> None:
        """Go on reading at its offset; KafkaException _UNKNOWN_PARTITION if it is not assigned."""
        self._require_open()
        ((part, offset),) = parts_of([partition]).items()
        self._assignment.seek(part, offset)
        self._stored.pop(part, None)

    @in_turn
    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Hand out nothing of these until they are resumed."""
        self._require_open()
        self._assignment.fetcher.pause(list(parts_of(partitions)))

    @in_turn
    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Go on with partitions that were paused."""
        self._require_open()
        self._assignment.fetcher.resume(list(parts_of(partitions)))

    @in_turn
    def close(self) -> None:
        """Commit, if that is automatic, leave the group and let go of Kafka.

        All of it is tried, whatever a callback or the gateway raises, and then that comes out.
        """
        if self._closed:
            return
        if os.getpid() != self._process:
            # librdkafka's threads are the other process's: it would wait for them.
            self._closed = True
            return
        self._require_no_callback()
        with contextlib.ExitStack() as last:
            last.callback(self._assignment.close)
            last.callback(self._end)
            last.callback(self._tell)
            last.callback(self._committer.end)
            last.callback(self._give_up_lone)
            last.callback(self._depart)

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


__all__ = ["Asking", "Consumer"]
