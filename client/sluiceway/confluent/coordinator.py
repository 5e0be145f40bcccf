"""Consumer coordinator: joins, rebalances, commits and callbacks between polls."""

import collections
import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import OFFSET_INVALID, Message, TopicPartition

from sluiceway.confluent.assignment import Assignment, leave_all
from sluiceway.confluent.committer import AsyncCommitter
from sluiceway.confluent.config import ConsumerSettings
from sluiceway.confluent.errors import CONFLICT, STATE, kafka_error, kafka_exceptions, refused
from sluiceway.confluent.fetcher import Partition, topic_partitions
from sluiceway.confluent.members import GroupMember, ManualConsumer
from sluiceway.errors import SluicewayError
from sluiceway.fair_lock import FairLock
from sluiceway.fork_guard import ForkGuard

__all__ = ["ConsumerCoordinator", "OnPartitions", "WakeupEvent"]

LOGGER = logging.getLogger("sluiceway.confluent")

OnPartitions = Callable[[Any, list[TopicPartition]], object]

_SERVE_INTERVAL_S = 0.5


class WakeupEvent(threading.Event):
    """Wakes a poll that waits. `due_s` (monotonic) is when a poll serves in any case.

    A poll compares one number per message: `due_s` is 0 while the event is set.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.due_s = 0.0

    def set(self) -> None:
        """Make the next poll serve."""
        with self._lock:
            self.due_s = 0.0
            super().set()

    def postpone(self, due_s: float) -> None:
        """Serve at `due_s`, or earlier if the event is set."""
        with self._lock:
            self.clear()
            self.due_s = due_s


class ConsumerCoordinator:
    """Keeps one consumer's membership and commits up to date; `consumer` goes to its callbacks.

    Threads that share a consumer poll side by side. For everything else a thread holds `lock`,
    also while callbacks run. There is no thread for it: `serve` is called by polls.
    """

    def __init__(self, settings: ConsumerSettings, consumer: object) -> None:
        self._settings = settings
        # Held weakly: an abandoned consumer is collected at once, and leaves its group.
        self._consumer = weakref.ref(consumer)
        self._fork_guard = ForkGuard()
        self.lock = FairLock()
        self.wakeup = WakeupEvent()
        self.assignment = Assignment(settings, wakeup=self.wakeup)
        members = self.assignment.members
        self.committer = AsyncCommitter(
            lambda channel, offsets: members[channel].commit(offsets), wakeup=self.wakeup
        )
        self.events: collections.deque[Message] = collections.deque()
        self.stored: dict[Partition, int] = {}
        self.callbacks: dict[str, OnPartitions | None] = {}
        self.closed = False
        self._commit_due_s = time.monotonic() + settings.auto_commit_s
        self.finalizer = self._fork_guard.finalize_in_thread(
            consumer, leave_all, members, settings.control
        )

    @property
    def rebalancing(self) -> bool:
        """Whether others may wait for partitions, so that messages are to be handed out first."""
        return any(each.share.rebalance_due for each in self.assignment.group_members)

    def serve(self) -> None:
        """Commit, call back and rebalance as far as due."""
        self.require_open()
        with self.lock:
            self.require_open()
            self.wakeup.postpone(time.monotonic() + _SERVE_INTERVAL_S)
            if self.assignment.in_callback:
                # A poll within a callback; the serve that called it continues afterwards.
                return
            if self._settings.auto_commit and time.monotonic() >= self._commit_due_s:
                self._commit_due_s = time.monotonic() + self._settings.auto_commit_s
                uncommitted = self._uncommitted(self.assignment.partitions)
                if self.committer.idle and uncommitted:
                    self.assignment.note()
                    # In the background: polls do not wait for the gateway.
                    self.committer.submit(uncommitted)
            self._deliver_reports()
            self.assignment.note()
            if self.assignment.subscription:
                self._rebalance()

    def next_event(self) -> Message | None:
        """Take the next event to hand out."""
        try:
            return self.events.popleft()
        except IndexError:
            return None

    def unsubscribe(self) -> None:
        """Leave the group at all channels."""
        self._require_no_callback()
        self.assignment.subscription.replace(())
        with contextlib.ExitStack() as stack:
            stack.callback(self.callbacks.clear)
            for each in reversed(self.assignment.group_members):
                stack.callback(self._leave, each)

    def assign_manually(
        self, offsets: Mapping[Partition, int], keep: Collection[Partition] = ()
    ) -> None:
        """Read the caller's partitions and those to keep, and no others."""
        if self.assignment.subscription:
            raise refused(CONFLICT, "channels are subscribed: call unsubscribe() first")
        removed = [each for each in self.assignment.manual_partitions if each not in keep]
        if self._settings.auto_commit:
            self._commit_automatically(removed)
        self.committer.flush()
        with kafka_exceptions():
            self.events.extend(self.assignment.assign_manually(offsets, keep))
        for partition in removed:
            self.stored.pop(partition, None)
        self.wakeup.set()

    def unassign_manually(self) -> None:
        """Stop reading the partitions that the caller assigned."""
        members = self.assignment.members.values()
        if any(isinstance(each, ManualConsumer) for each in members):
            self.assign_manually({})

    def consumed(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return what a commit without arguments commits of these partitions."""
        if self._settings.auto_store:
            return self.assignment.fetcher.consumed(partitions)
        chosen = self.assignment.fetcher.starts.keys() & set(partitions)
        return {each: at for each, at in self.stored.items() if each in chosen}

    def close(self) -> None:
        """Commit if automatic, leave the group, and disconnect.

        Every step is tried; the exception of a callback or of the gateway is raised afterwards.
        """
        if self.closed:
            return
        if self._fork_guard.forked:
            # librdkafka's threads do not exist here: closing would wait forever.
            self.closed = True
            return
        self._require_no_callback()
        # Callbacks run in reverse order.
        with contextlib.ExitStack() as stack:
            stack.callback(self.assignment.close)
            stack.callback(self._end)
            stack.callback(self._deliver_reports)
            stack.callback(self.committer.flush)
            stack.callback(self.unassign_manually)
            stack.callback(self.unsubscribe)

    def require_open(self) -> None:
        """Raise RuntimeError if closed, and KafkaException _STATE in a forked child."""
        if self.closed:
            raise RuntimeError("Consumer closed")
        if self._fork_guard.forked:
            raise refused(
                STATE,
                f"this consumer was created by the process {self._fork_guard.pid} and cannot be "
                "used in a process forked from it: create one here",
            )

    def _rebalance(self) -> None:
        """Join new channels, give up revoked partitions, and take assigned ones."""
        assignment = self.assignment
        for each in assignment.group_members:
            if not assignment.subscription.includes(each.channel):
                self._leave(each)
        for name, error in assignment.join():
            self.events.append(Message(topic=name, error=kafka_error(error)))
        for member in assignment.group_members:
            try:
                member.handle.check()
            except SluicewayError as error:
                self._lose(member, error)
                continue
            with kafka_exceptions():
                self._follow(member)

    def _follow(self, member: GroupMember) -> None:
        """Follow the gateway's assignment."""
        share = member.share
        if share.rebalance_due:
            lost = share.find_revoked()
            try:
                callback = "lost" if share.forfeited else "revoke"
                self._revoke(member, [p for p in lost if p in member.held], callback)
            finally:
                share.drop(lost)
                share.accept()
        new = [p for p in share.partitions if p not in member.held]
        if new:
            member.learn(new)
            partitions = dict.fromkeys(((member.channel, p) for p in new), OFFSET_INVALID)
            try:
                self._call("assign", partitions, assigning=True)
            finally:
                # Also where `on_assign` raises, as in librdkafka.
                started = self.assignment.started
                rest = {each: at for each, at in partitions.items() if each not in started}
                starts, events = self.assignment.starts(rest)
                self.assignment.add(starts)
                member.held = tuple(sorted({*member.held, *new}))
                self.events.extend(events)

    def _revoke(self, member: GroupMember, lost: Collection[int], callback: str) -> None:
        """Give up partitions after commits and callback, also if the callback raises."""
        partitions = dict.fromkeys(((member.channel, p) for p in lost), OFFSET_INVALID)
        if not partitions:
            return
        if self._settings.auto_commit:
            self._commit_automatically(partitions)
        try:
            self._call("revoke" if self.callbacks.get(callback) is None else callback, partitions)
        finally:
            self.committer.flush()
            for each in partitions:
                self.stored.pop(each, None)
            self.assignment.remove(partitions)
            member.held = tuple(p for p in member.held if p not in lost)

    def _lose(self, member: GroupMember, error: SluicewayError) -> None:
        """End a membership that the gateway has ended."""
        static = self._settings.instance is not None
        event = Message(topic=member.channel, error=kafka_error(error, fatal=True, static=static))
        try:
            self._revoke(member, member.held, "lost")
        finally:
            self.events.append(event)
            self.assignment.exclude(member)

    def _leave(self, member: GroupMember) -> None:
        """Leave a group after commits and callback."""
        try:
            self._revoke(member, member.held, "revoke")
        finally:
            with kafka_exceptions():
                self.assignment.leave([member])

    def _commit_automatically(self, partitions: Collection[Partition]) -> None:
        """Commit partitions that are given up, and report it."""
        self.committer.flush()
        offsets = self._uncommitted(partitions)
        if offsets:
            self.assignment.note()
            self.committer.report(offsets, self.committer.commit(offsets))

    def _uncommitted(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return the offsets handed out of these partitions and not committed yet."""
        wanted = {}
        for (channel, number), at in self.consumed(partitions).items():
            committed = self.assignment.members[channel].committed(number)
            # After a seek back, nothing is committed until reading has passed the committed offset.
            if committed is None or committed < at:
                wanted[channel, number] = at
        return wanted

    def _call(
        self, name: str, partitions: Mapping[Partition, int], *, assigning: bool = False
    ) -> None:
        """Call `on_assign`, `on_revoke` or `on_lost`; `assign()` in it starts `assigning`."""
        assignment, callback = self.assignment, self.callbacks.get(name)
        assignment.in_callback, assignment.started = True, set()
        assignment.assigning = frozenset(partitions if assigning else ())
        try:
            if callback is not None:
                callback(self._consumer(), topic_partitions(partitions))
        finally:
            assignment.in_callback, assignment.assigning = False, frozenset()

    def _deliver_reports(self) -> None:
        """Call `on_commit` for finished commits."""
        reports, callback = self.committer.reports, self._settings.on_commit
        while reports:
            error, partitions = reports.popleft()
            if callback is not None:
                callback(error, partitions)
            elif error is not None:
                LOGGER.warning("a commit failed, and there is no on_commit: %s", error.str())

    def _end(self) -> None:
        """Leave the channels that could not be left in order, and close."""
        self.closed = True
        self.wakeup.set()
        self.finalizer.detach()
        leave_all(self.assignment.members)

    def _require_no_callback(self) -> None:
        if self.assignment.in_callback:
            raise refused(STATE, "a callback of this consumer runs: do this when poll returns")
