"""Consumer coordinator: joins, rebalances, commits and callbacks between polls."""

import collections
import contextlib
import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_INVALID, KafkaError, Message, TopicPartition

from sluiceway import Position
from sluiceway.confluent.assignment import Assignment, leave_all
from sluiceway.confluent.committer import AsyncCommitter
from sluiceway.confluent.config import ConsumerSettings
from sluiceway.confluent.errors import (
    CONFLICT,
    STATE,
    error_event,
    kafka_error,
    kafka_exceptions,
    refused,
    require_same_process,
)
from sluiceway.confluent.members import ChannelMember
from sluiceway.confluent.partition_offsets import Partition, topic_partitions
from sluiceway.confluent.waiting import WakeupEvent
from sluiceway.errors import Fenced, GatewayError, GatewayUnavailable, SluicewayError
from sluiceway.spi import FairLock, PartitionAssignment, Signal, StepRunner, Steps, this_process

__all__ = ["ConsumerCoordinator", "OnPartitions"]

LOGGER = logging.getLogger("sluiceway.confluent")

OnPartitions = Callable[[Any, list[TopicPartition]], object]

_SERVE_INTERVAL_S = 0.5
_LEAVE_TIMEOUT_S = 10.0
"""The time limit of closing and of leaving a group."""


class ConsumerCoordinator:
    """Maintains one consumer's membership and commits; callbacks get `consumer`.

    Threads that share a consumer may poll at the same time. For everything else a thread holds
    `lock`, but not while callbacks run: these may call the consumer from other threads. Polls call
    `serve`, which takes the next steps; requests to the gateway run in other threads.
    """

    def __init__(self, settings: ConsumerSettings, consumer: object) -> None:
        self._settings = settings
        # A weak reference, so an abandoned consumer is collected at once and leaves its group.
        self._consumer = weakref.ref(consumer)
        self._process = this_process()
        self.lock = FairLock()
        self.wakeup = WakeupEvent()
        self.assignment = Assignment(settings, wakeup=self.wakeup)
        members = self.assignment.members
        # Calls of `on_commit` that are due.
        self._reports: collections.deque[Callable[[], object]] = collections.deque()
        self.committer = AsyncCommitter(self.assignment.commit, report=self._report_commit)
        self._steps = StepRunner(notify=self.wakeup.set)
        self._outage = False
        self._calling = 0
        self._called = Signal()
        self.events: collections.deque[Message] = collections.deque()
        self.stored: dict[Partition, Position] = {}
        self.callbacks: dict[str, OnPartitions | None] = {}
        self.closed = False
        self._commit_due_s = time.monotonic() + settings.auto_commit_s
        self.finalizer = self._process.finalize_in_thread(
            consumer, leave_all, members, settings.control
        )

    @property
    def rebalancing(self) -> bool:
        """True during a rebalance, before which polled messages must be returned."""
        if self._steps.active:
            return True
        shares = [member.share for member in self.assignment.members.values()]
        return any(share is not None and share.rebalance_due for share in shares)

    def serve(self, wait_s: float) -> None:
        """Commit, run callbacks and rebalance as due; wait `wait_s` at most, and briefly."""
        self.require_open()
        with self.lock:
            self.require_open()
            self.wakeup.postpone(time.monotonic() + _SERVE_INTERVAL_S)
            if self.assignment.in_callback:
                # A poll within a callback; the outer `serve` continues afterwards.
                return
            if self._settings.auto_commit and time.monotonic() >= self._commit_due_s:
                self._commit_due_s = time.monotonic() + self._settings.auto_commit_s
                uncommitted = self._uncommitted(self.assignment.partitions)
                if self.committer.idle and uncommitted:
                    self.assignment.record_positions()
                    # In the background: polls do not wait for the gateway.
                    self.committer.submit(uncommitted)
            self._run_callbacks(self._reports)
            self._report_outage()
            self._run_callbacks(self.assignment.fetcher.callbacks)
            if self.closed or self.assignment.in_callback:
                return
            self.assignment.record_positions()
            if self.assignment.subscription or self.assignment.members or self._steps.active:
                with kafka_exceptions():
                    self._steps.advance(self._rebalance, wait_s)

    def next_event(self) -> Message | None:
        """Return and remove the next event."""
        try:
            return self.events.popleft()
        except IndexError:
            return None

    def put_back(self, messages: Sequence[Message]) -> None:
        """Put back messages and events that an interrupted call has taken."""
        with self.lock:
            if self.closed:
                return
            self.events.extendleft(
                message for message in reversed(messages) if message.error() is not None
            )
            taken = [message for message in messages if message.error() is None]
            # In reverse, so that the first message of each partition remains.
            first = {
                (message.topic(), message.partition()): message.offset()
                for message in reversed(taken)
            }
            self.assignment.fetcher.go_back(first)

    def unsubscribe(self, deadline_s: float | None = None) -> None:
        """Leave the group at all channels; wait until the deadline at most."""
        self._require_no_callback()
        deadline_s = _leave_deadline_s() if deadline_s is None else deadline_s
        self.assignment.subscription.replace(())
        with contextlib.ExitStack() as stack:
            stack.callback(self.callbacks.clear)
            # Also channels that the steps in progress add.
            stack.callback(self._leave_all, deadline_s)
            stack.callback(self._finish, self._flush(), deadline_s)

    def assign_manually(
        self, offsets: Mapping[Partition, int], keep: Collection[Partition] = ()
    ) -> None:
        """Read the caller's partitions and those to keep, and no others."""
        if self.assignment.subscription:
            raise refused(CONFLICT, "channels are subscribed: call unsubscribe() first")
        self._finish(self._assign(offsets, keep), _leave_deadline_s())

    def unassign_manually(self, deadline_s: float | None = None) -> None:
        """Stop reading the partitions that the caller assigned."""
        if any(member.share is None for member in self.assignment.members.values()):
            self._finish(self._assign({}), deadline_s or _leave_deadline_s())

    def consumed(self, partitions: Collection[Partition]) -> dict[Partition, Position]:
        """Return the positions that a commit without arguments would commit."""
        if self._settings.auto_store:
            offsets = self.assignment.fetcher.consumed(partitions)
            return {partition: Position(offset=at) for partition, at in offsets.items()}
        chosen = self.assignment.fetcher.starts.keys() & set(partitions)
        return {partition: at for partition, at in self.stored.items() if partition in chosen}

    def close(self) -> None:
        """Commit if automatic, leave the group, and disconnect, in `_LEAVE_TIMEOUT_S` at most.

        Every step is tried; the exception of a callback or of the gateway is raised afterwards. An
        unreachable gateway is only logged, and gets the rest when it answers again.
        """
        if self.closed:
            return
        if self._process.forked:
            # A forked process lacks librdkafka's threads, so closing would wait forever.
            self.closed = True
            return
        self._require_no_callback()
        deadline_s = _leave_deadline_s()
        # The stack runs in reverse order.
        with contextlib.ExitStack() as stack:
            stack.callback(self.assignment.close)
            stack.callback(self._end)
            stack.callback(self._run_callbacks, self._reports)
            stack.callback(self._finish, self._flush(), deadline_s)
            stack.callback(self.unassign_manually, deadline_s)
            stack.callback(self.unsubscribe, deadline_s)

    def wait_for_callback(self) -> None:
        """Wait for a callback in another thread, without holding the lock that it needs."""
        if self.assignment.in_callback and self._calling != threading.get_ident():
            self._called.wait(_LEAVE_TIMEOUT_S)

    def require_open(self) -> None:
        """Raise RuntimeError if closed, and KafkaException _STATE in a forked child."""
        if self.closed:
            raise RuntimeError("Consumer closed")
        require_same_process(self._process, "consumer")

    def _finish(self, steps: Steps[None], deadline_s: float) -> None:
        with kafka_exceptions():
            self._steps.finish(steps, deadline_s)

    def _rebalance(self) -> Steps[None]:
        """Join new channels, release revoked partitions, and take assigned ones.

        Channels whose topic was created again are lost, also those that the caller assigned.
        """
        assignment = self.assignment
        for group_member in assignment.group_members:
            if not assignment.subscription.includes(group_member.channel):
                yield from self._leave(group_member)
        for name, error in (yield from assignment.join()):
            self.events.append(error_event(name, kafka_error(error)))
        for member in list(assignment.members.values()):
            share = member.share
            try:
                if share is not None:
                    member.handle.check()
                member.require_topic(self._settings.kafka)
            except SluicewayError as error:
                yield from self._lose(member, error)
                continue
            if share is not None:
                release = functools.partial(self._release, member, share)
                take = functools.partial(self._take, member)
                try:
                    yield from share.follow(member.held, release, take)
                except Fenced as error:
                    # Before a heartbeat has noticed it.
                    yield from self._lose(member, error)

    def _release(
        self, member: ChannelMember, share: PartitionAssignment, revoked: Collection[int]
    ) -> Steps[BaseException | None]:
        """Release partitions that the gateway has revoked; return the callback's exception."""
        held = [p for p in revoked if p in member.held]
        failure = yield from self._revoke(member, held, "lost" if share.forfeited else "revoke")
        share.drop(revoked)
        return failure

    def _take(self, member: ChannelMember, added: Collection[int]) -> Steps[None]:
        """Read partitions that the gateway has assigned, those and from where `on_assign` says."""
        assignment = self.assignment
        member.learn(added)
        partitions = dict.fromkeys(((member.channel, p) for p in added), OFFSET_INVALID)
        starts, events = assignment.starts(partitions)
        # Before the callback, so that all partitions are assigned when it returns.
        starts = yield functools.partial(assignment.resolve, starts)
        try:
            self._call("assign", partitions, assigning=True)
        finally:
            # Also if `on_assign` raises, as in librdkafka.
            if assignment.started is None:
                assignment.add(starts)
                self.events.extend(events)
            # Those that the callback left out stay this member's, and are not read.
            member.held = tuple(sorted({*member.held, *added}))

    def _revoke(
        self, member: ChannelMember, lost: Collection[int], callback: str
    ) -> Steps[BaseException | None]:
        """Release partitions after commits and callback; return the callback's exception."""
        partitions = dict.fromkeys(((member.channel, p) for p in lost), OFFSET_INVALID)
        if not partitions:
            return None
        # From here on, no message is returned that the commit would not cover.
        self.assignment.suspend(partitions)
        yield from self._commit_uncommitted(partitions)
        failure: BaseException | None = None
        try:
            self._call("revoke" if self.callbacks.get(callback) is None else callback, partitions)
        except BaseException as error:
            failure = error
        yield from self._flush()
        for partition in partitions:
            self.stored.pop(partition, None)
        self.assignment.remove(partitions)
        member.held = tuple(p for p in member.held if p not in lost)
        return failure

    def _lose(self, member: ChannelMember, error: SluicewayError) -> Steps[None]:
        """Close an endpoint that cannot go on, and do not join its channel again."""
        static = self._settings.instance is not None
        event = error_event(member.channel, kafka_error(error, fatal=True, static=static))
        failure = yield from self._revoke(member, member.held, "lost")
        self.events.append(event)
        self.assignment.subscription.exclude(member.channel)
        self.assignment.forget(member)
        with contextlib.suppress(SluicewayError):
            yield member.handle.detach
        if failure is not None:
            raise failure

    def _leave(self, member: ChannelMember) -> Steps[None]:
        """Leave a group after commits and callback."""
        failure = yield from self._revoke(member, member.held, "revoke")
        yield from self._detach(member)
        if failure is not None:
            raise failure

    def _leave_all(self, deadline_s: float) -> None:
        """Leave all groups, also after an exception or an interrupt of one of them."""
        with contextlib.ExitStack() as stack:
            for member in reversed(self.assignment.group_members):
                stack.callback(self._finish, self._leave(member), deadline_s)

    def _detach(self, member: ChannelMember) -> Steps[None]:
        self.assignment.forget(member)

        def end() -> None:
            # A commit after the end would be refused.
            self.committer.flush()
            member.handle.detach()

        try:
            yield end
        except GatewayError as error:
            if error.is_final:
                raise
            LOGGER.warning(
                "%s leaves when the gateway accepts that, or when it is lost: %s",
                member.handle.name,
                error,
            )

    def _assign(
        self, offsets: Mapping[Partition, int], keep: Collection[Partition] = ()
    ) -> Steps[None]:
        """Assign partitions after commits of removed ones; close endpoints without partitions."""
        removed = [p for p in self.assignment.manual_partitions if p not in keep]
        yield from self._commit_uncommitted(removed)
        self.events.extend(self.assignment.assign_manually(offsets, keep))
        for partition in removed:
            self.stored.pop(partition, None)
        for member in self.assignment.idle():
            if member.share is None:
                yield from self._detach(member)
        self.wakeup.set()

    def _flush(self) -> Steps[None]:
        """Wait for pending commits."""
        if self.committer.idle:
            return
        try:
            yield self.committer.flush
        except GatewayUnavailable as error:
            LOGGER.warning("commits have no response yet, and may not be stored: %s", error)

    def _commit_uncommitted(self, partitions: Collection[Partition]) -> Steps[None]:
        """Commit released partitions if commits are automatic, and report the commit."""
        yield from self._flush()
        offsets = self._uncommitted(partitions) if self._settings.auto_commit else {}
        if offsets:
            self.assignment.record_positions()
            self.committer.submit(offsets)
            yield from self._flush()

    def _report_outage(self) -> None:
        """Call `error_cb` once when the gateway stops answering, or refuses heartbeats."""
        sessions = (member.handle.session for member in self.assignment.members.values())
        errors = (self.assignment.outage, *(session.interruption for session in sessions))
        error = next(filter(None, errors), None)
        before, self._outage = self._outage, error is not None
        if error is None or before:
            return
        callback = self._settings.callbacks.get("error_cb")
        if callback is not None:
            self.assignment.fetcher.callbacks.append(
                functools.partial(callback, kafka_error(error))
            )
        else:
            LOGGER.warning("requests to the gateway fail, and there is no error_cb: %s", error)

    def _report_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Let a poll call `on_commit`; called in the thread that has committed."""
        callback = self._settings.on_commit
        if callback is not None:
            self._reports.append(functools.partial(callback, error, partitions))
            self.wakeup.set()
        elif error is not None:
            LOGGER.warning("a commit failed, and there is no on_commit: %s", error.str())

    def _uncommitted(self, partitions: Collection[Partition]) -> dict[Partition, Position]:
        """Return the uncommitted offsets of these partitions."""
        wanted = {}
        for (channel, number), at in self.consumed(partitions).items():
            committed = self.assignment.members[channel].committed(number)
            # After a seek back, nothing is committed until reading passes the committed offset.
            if committed is None or committed < at.offset:
                wanted[channel, number] = at
        return wanted

    def _call(
        self, name: str, partitions: Mapping[Partition, int], *, assigning: bool = False
    ) -> None:
        """Call `on_assign`, `on_revoke` or `on_lost`; `assign()` in it starts `assigning`."""
        assignment, callback = self.assignment, self.callbacks.get(name)
        assignment.in_callback, assignment.started = True, None
        assignment.assigning = frozenset(partitions if assigning else ())
        self._calling, self._called = threading.get_ident(), Signal()
        try:
            if callback is not None:
                # AIOConsumer's callbacks call the consumer from other threads.
                with self.lock.released():
                    callback(self._consumer(), topic_partitions(partitions))
        finally:
            assignment.in_callback, assignment.assigning = False, frozenset()
            self._called.set()

    def _run_callbacks(self, calls: "collections.deque[Callable[[], object]]") -> None:
        while calls:
            call = calls.popleft()
            with self.lock.released():
                call()

    def _end(self) -> None:
        """Leave the remaining channels, and close."""
        self.closed = True
        self.wakeup.set()
        self.finalizer.detach()
        leave_all(self.assignment.members)

    def _require_no_callback(self) -> None:
        if self.assignment.in_callback:
            raise refused(STATE, "a callback of this consumer runs: call this after poll returns")


def _leave_deadline_s() -> float:
    return time.monotonic() + _LEAVE_TIMEOUT_S
