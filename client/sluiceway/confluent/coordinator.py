"""Consumer coordinator: joins, revocations, commits and callbacks between polls."""

import collections
import contextlib
import functools
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from confluent_kafka import OFFSET_INVALID, Message, TopicPartition

from sluiceway.confluent.assignment import Assignment, leave_all
from sluiceway.confluent.committer import Committer
from sluiceway.confluent.config import consumer_settings
from sluiceway.confluent.errors import (
    CONFLICT,
    INVALID_ARG,
    STATE,
    kafka_error,
    kafkas_names,
    refused,
)
from sluiceway.confluent.fetcher import Part, WakeupEvent, listed, parts_of, when_forgotten
from sluiceway.confluent.members import GroupMember, ManualConsumer
from sluiceway.errors import SluicewayError
from sluiceway.fair_lock import FairLock

__all__ = ["ConsumerCoordinator", "OnPartitions", "in_turn"]

LOGGER = logging.getLogger("sluiceway.confluent")

OnPartitions = Callable[[Any, list[TopicPartition]], object]

_TURN_S = 0.5

Method = TypeVar("Method", bound=Callable[..., Any])


def in_turn(method: Method) -> Method:
    """Let one thread at a time call this method of a consumer."""

    @functools.wraps(method)
    def called(self: Any, *given: Any, **named: Any) -> Any:
        with self._turn:
            return method(self, *given, **named)

    return cast("Method", called)


class ConsumerCoordinator:
    """The part of Consumer that nobody calls: it is done by the calls that read.

    Threads that share a consumer take messages side by side. All else is done by one at a time,
    which has `_turn`; callbacks are called with it.
    """

    def __init__(self, config: object = None, /, **named: Any) -> None:
        settings = self._settings = consumer_settings(config, named)
        self._process = os.getpid()
        self._turn = FairLock()
        self._news = WakeupEvent()
        self._assignment = Assignment(settings, news=self._news)
        self._committer = Committer(self._assignment.keep, news=self._news)
        self._events: collections.deque[Message] = collections.deque()
        self._stored: dict[Part, int] = {}
        self._callbacks: dict[str, OnPartitions | None] = {}
        self._closed = False
        self._commit_s = time.monotonic() + settings.auto_commit_s
        # What is forgotten without being closed leaves its group all the same.
        self._leave = when_forgotten(self, leave_all, self._assignment.readers, settings.control)

    def _serve(self) -> None:
        """Do what is due."""
        self._require_open()
        with self._turn:
            self._serve_in_turn()

    def _serve_in_turn(self) -> None:
        self._require_open()
        self._news.put_off(time.monotonic() + _TURN_S)
        if self._assignment.coming is not None:
            # A callback reads: the turn that it is called in goes on afterwards.
            return
        if self._settings.auto_commit and time.monotonic() >= self._commit_s:
            self._commit_s = time.monotonic() + self._settings.auto_commit_s
            if self._committer.idle and (wanted := self._uncommitted(self._parts())):
                self._assignment.note()
                # By the other thread: a gateway that is away keeps nobody from reading.
                self._committer.soon(wanted)
        self._tell()
        self._assignment.note()
        if self._assignment.subscription:
            self._share_anew()

    def _event(self) -> Message | None:
        """Take an event that is to be handed out."""
        try:
            return self._events.popleft()
        except IndexError:
            return None

    def _pressing(self) -> bool:
        """Whether others wait for partitions, so that what was read is to be handed out first."""
        return any(each.share.rebalance_due for each in self._assignment.sharers())

    def _share_anew(self) -> None:
        """Join where it is no member yet, let go of what is another's, begin with what has come."""
        assignment = self._assignment
        for each in assignment.unwanted():
            self._part(each)
        for name, error in assignment.join():
            self._events.append(Message(topic=name, error=kafka_error(error)))
        for reader in assignment.sharers():
            try:
                reader.attachment.check()
            except SluicewayError as error:
                self._lose(reader, error)
                continue
            with kafkas_names():
                self._follow(reader)

    def _follow(self, reader: GroupMember) -> None:
        share = reader.share
        if share.rebalance_due:
            lost = share.find_revoked()
            try:
                how = "lost" if share.forfeited else "revoke"
                self._revoke(reader, [p for p in lost if p in reader.held], how)
            finally:
                share.drop(lost)
                share.accept()
        came = [(reader.channel, p) for p in share.partitions if p not in reader.held]
        if came:
            self._receive(reader, came)

    def _receive(self, reader: GroupMember, came: Sequence[Part]) -> None:
        """Begin with partitions that have come, also where `on_assign` raises, as with Kafka's."""
        known = {p: at for p, at in reader.share.positions.items() if (reader.channel, p) in came}
        reader.learn(known)
        try:
            with self._in_callback(came):
                self._call("assign", dict.fromkeys(came, OFFSET_INVALID))
        finally:
            self._begin_rest(reader, came)

    def _begin_rest(self, reader: GroupMember, came: Sequence[Part]) -> None:
        """Begin with what `on_assign` has said nothing of."""
        assignment = self._assignment
        rest = [part for part in came if part not in assignment.chosen]
        begins, events = assignment.starts(reader, dict.fromkeys(rest, OFFSET_INVALID))
        assignment.add(begins)
        reader.held = tuple(sorted({*reader.held, *(p for _, p in came)}))
        self._events.extend(events)

    def _revoke(self, reader: GroupMember, lost: Collection[int], how: str) -> None:
        """Let go of partitions, committed and announced before; also where a callback raises."""
        parts = [(reader.channel, p) for p in lost]
        if not parts:
            return
        if how != "lost" or self._callbacks.get("lost") is None:
            how = "revoke"
        if self._settings.auto_commit:
            self._commit_automatically(parts)
        try:
            with self._in_callback(()):
                self._call(how, dict.fromkeys(parts, OFFSET_INVALID))
        finally:
            self._committer.settle()
            for part in parts:
                self._stored.pop(part, None)
            self._assignment.drop(parts)
            reader.held = tuple(p for p in reader.held if p not in lost)

    def _lose(self, reader: GroupMember, error: SluicewayError) -> None:
        """End a membership that the gateway does not know any more."""
        event = Message(topic=reader.channel, error=kafka_error(error, fatal=True))
        try:
            self._revoke(reader, reader.held, "lost")
        finally:
            self._events.append(event)
            self._assignment.lose(reader)

    def _part(self, reader: GroupMember) -> None:
        """Leave a group in good order."""
        try:
            self._revoke(reader, reader.held, "revoke")
        finally:
            with kafkas_names():
                self._assignment.leave([reader])

    def _depart(self) -> None:
        """Leave the group at all channels."""
        self._require_no_callback()
        self._assignment.subscription.choose(())
        with contextlib.ExitStack() as all_of_them:
            all_of_them.callback(self._callbacks.clear)
            for each in reversed(self._assignment.sharers()):
                all_of_them.callback(self._part, each)

    def _begin_with(self, wanted: Mapping[Part, int], keep: Collection[Part] = ()) -> None:
        """Read partitions that the caller names, and no others but those to keep."""
        if self._assignment.subscription:
            raise refused(CONFLICT, "channels are subscribed to: unsubscribe(), then assign")
        gone = [part for part in self._lone_parts() if part not in keep]
        if self._settings.auto_commit:
            self._commit_automatically(gone)
        self._committer.settle()
        with kafkas_names():
            self._events.extend(self._assignment.assign(wanted, keep))
        for part in gone:
            self._stored.pop(part, None)
        self._news.set()

    def _lone_parts(self) -> list[Part]:
        return self._assignment.lone_parts()

    def _give_up_lone(self) -> None:
        if any(isinstance(each, ManualConsumer) for each in self._assignment.readers.values()):
            self._begin_with({})

    def _commit_automatically(self, parts: Collection[Part]) -> None:
        """Commit what was handed out of partitions that go; who wants to hear of it does."""
        self._committer.settle()
        wanted = self._uncommitted(parts)
        if wanted:
            self._assignment.note()
            self._committer.report(wanted, self._committer.now(wanted))

    def _uncommitted(self, parts: Collection[Part]) -> dict[Part, int]:
        """Return what was handed out of these partitions, where that is not committed yet."""
        wanted = {}
        for part, at in self._consumed(parts).items():
            known = self._assignment.readers[part[0]].known(part[1])
            # After a seek back, what is kept stays until reading has come past it again.
            if known is None or known.offset < at:
                wanted[part] = at
        return wanted

    def _parts(self) -> list[Part]:
        return list(self._assignment.fetcher.begun)

    def _consumed(self, parts: Collection[Part] | None = None) -> dict[Part, int]:
        """Return what a commit without arguments keeps, of these partitions or all."""
        begun = self._parts()
        chosen = set(begun if parts is None else parts)
        asked = [part for part in begun if part in chosen]
        if not self._settings.auto_store:
            return {part: at for part, at in self._stored.items() if part in asked}
        return self._assignment.fetcher.consumed(asked)

    def _named(
        self, message: Message | None, offsets: Sequence[TopicPartition] | None
    ) -> dict[Part, int] | None:
        """Return what a caller names to be committed; None: nothing."""
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None:
            if not isinstance(message, Message):
                raise TypeError(f"expected Message, not {type(message).__name__}")
            if message.error() is not None:
                raise refused(INVALID_ARG, "an event is not committed, only messages are")
            return {(message.topic(), message.partition()): message.offset() + 1}
        if offsets is None:
            return None
        wanted = parts_of(offsets)
        return {part: at for part, at in wanted.items() if at >= 0}

    @contextlib.contextmanager
    def _in_callback(self, came: Sequence[Part]) -> Iterator[None]:
        """Let `assign` say, in the block, where partitions that have come begin."""
        assignment = self._assignment
        assignment.coming, assignment.chosen = tuple(came), set()
        try:
            yield
        finally:
            assignment.coming = None

    def _call(self, which: str, parts: Mapping[Part, int]) -> None:
        callback = self._callbacks.get(which)
        if callback is not None:
            callback(self, listed(parts))

    def _tell(self) -> None:
        """Call `on_commit` for what was committed since."""
        reports, callback = self._committer.reports, self._settings.on_commit
        while reports:
            error, partitions = reports.popleft()
            if callback is not None:
                callback(error, partitions)
            elif error is not None:
                LOGGER.warning("a commit failed, and nobody asked to hear of it: %s", error.str())

    def _deadline(self, timeout: float | None) -> float:
        self._require_open()
        if timeout is None or timeout < 0:
            return math.inf
        return time.monotonic() + timeout

    def _end(self) -> None:
        """Leave what could not be left in good order, in silence; nothing is done after that."""
        self._closed = True
        self._news.set()
        self._leave.detach()
        leave_all(self._assignment.readers)

    def _require_no_callback(self) -> None:
        if self._assignment.coming is not None:
            raise refused(
                STATE, "a callback of this consumer's is at work: do it when poll returns"
            )

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")
        if os.getpid() != self._process:
            raise refused(
                STATE,
                f"this consumer was made by the process {self._process}, and cannot be used in one "
                "that was forked from it: make one here",
            )
