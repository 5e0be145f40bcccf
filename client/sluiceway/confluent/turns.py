"""What a consumer does in between: joining, letting go, committing, telling."""

import collections
import logging
import math
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_INVALID, Message, TopicPartition

from sluiceway.confluent.assignment import Assignment, leave_all
from sluiceway.confluent.committer import Committer
from sluiceway.confluent.failures import CONFLICT, INVALID_ARG, kafka_error, kafkas_names, refused
from sluiceway.confluent.fetching import Part, listed, parts_of
from sluiceway.confluent.news import News
from sluiceway.confluent.readers import Lone, Sharer
from sluiceway.confluent.settings import consumer_settings
from sluiceway.errors import SluicewayError

__all__ = ["OnPartitions", "Turns"]

LOGGER = logging.getLogger("sluiceway.confluent")

OnPartitions = Callable[[Any, list[TopicPartition]], object]

_TURN_S = 0.5


class Turns:
    """The part of Consumer that nobody calls: it is done by the calls that read."""

    def __init__(self, config: object = None, /, **named: Any) -> None:
        settings = self._settings = consumer_settings(config, named)
        self._news = News()
        self._assignment = Assignment(settings, news=self._news)
        self._fetcher = self._assignment.fetcher
        self._committer = Committer(self._assignment.keep, news=self._news)
        self._events: collections.deque[Message] = collections.deque()
        self._stored: dict[Part, int] = {}
        self._callbacks: dict[str, OnPartitions | None] = {}
        self._closed = False
        self._commit_s = time.monotonic() + settings.auto_commit_s
        # What is forgotten without being closed leaves its group all the same.
        self._leave = weakref.finalize(self, leave_all, self._assignment.readers, settings.control)

    def _serve(self) -> None:
        """Do what is due."""
        self._require_open()
        self._news.put_off(time.monotonic() + _TURN_S)
        if self._settings.auto_commit and time.monotonic() >= self._commit_s:
            self._commit_s = time.monotonic() + self._settings.auto_commit_s
            self._commit_automatically(self._assignment.fetcher.begun)
        self._tell()
        self._assignment.note()
        if self._assignment.subscribed:
            self._share_anew()

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

    def _follow(self, reader: Sharer) -> None:
        share = reader.share
        if share.due:
            lost = share.look()
            try:
                self._revoke(reader, [p for p in lost if p in reader.held], "revoke")
            except BaseException:
                # It was told; next time they go.
                share.hurry()
                raise
            share.drop(lost)
            share.take()
        came = {(reader.channel, p): OFFSET_INVALID for p in share.partitions}
        came = {part: at for part, at in came.items() if part[1] not in reader.held}
        if came:
            self._receive(reader, came)

    def _receive(self, reader: Sharer, came: Mapping[Part, int]) -> None:
        assignment = self._assignment
        assignment.coming = dict(came)
        try:
            self._call("assign", came)
            chosen = assignment.coming
        finally:
            assignment.coming = None
        known = {p: at for p, at in reader.share.positions.items() if (reader.channel, p) in came}
        reader.learn(known)
        begins, events = assignment.starts(reader, chosen)
        assignment.add(begins)
        reader.held = tuple(sorted({*reader.held, *(p for _, p in came)}))
        self._events.extend(events)

    def _revoke(self, reader: Sharer, lost: Collection[int], how: str) -> None:
        """Let go of partitions, committed and announced before."""
        parts = [(reader.channel, p) for p in lost]
        if not parts:
            return
        if how != "lost" or self._callbacks.get("lost") is None:
            how = "revoke"
        if self._settings.auto_commit:
            self._commit_automatically(parts)
        self._assignment.coming = {}
        try:
            self._call(how, dict.fromkeys(parts, OFFSET_INVALID))
        finally:
            self._assignment.coming = None
        self._committer.settle()
        for part in parts:
            self._stored.pop(part, None)
        self._assignment.drop(parts)
        reader.held = tuple(p for p in reader.held if p not in lost)

    def _lose(self, reader: Sharer, error: SluicewayError) -> None:
        """End a membership that the gateway does not know any more."""
        self._revoke(reader, reader.held, "lost")
        event = Message(topic=reader.channel, error=kafka_error(error, fatal=True))
        self._events.append(event)
        self._assignment.lose(reader)

    def _part(self, reader: Sharer) -> None:
        """Leave a group in good order."""
        self._revoke(reader, reader.held, "revoke")
        with kafkas_names():
            self._assignment.leave([reader])

    def _depart(self) -> None:
        """Leave the group at all channels."""
        self._assignment.subscribe(())
        for each in self._assignment.sharers():
            self._part(each)
        self._callbacks = {}

    def _begin_with(self, wanted: Mapping[Part, int], keep: Collection[Part] = ()) -> None:
        """Read partitions that the caller names, and no others but those to keep."""
        if self._assignment.subscribed:
            raise refused(CONFLICT, "channels are subscribed to: unsubscribe(), then assign")
        gone = [part for part in self._lone_parts() if part not in keep]
        if self._settings.auto_commit:
            self._commit_automatically(gone)
        self._committer.settle()
        for part in gone:
            self._stored.pop(part, None)
        with kafkas_names():
            self._events.extend(self._assignment.assign(wanted, keep))
        self._news.set()

    def _lone_parts(self) -> list[Part]:
        return self._assignment.lone_parts()

    def _give_up_lone(self) -> None:
        if any(isinstance(each, Lone) for each in self._assignment.readers.values()):
            self._begin_with({})

    def _commit_automatically(self, parts: Collection[Part]) -> None:
        """Commit what was handed out of these partitions, where that is not committed yet."""
        wanted = {}
        for part, at in self._consumed(parts).items():
            known = self._assignment.readers[part[0]].known(part[1])
            # After a seek back, what is kept stays until reading has come past it again.
            if known is None or known.offset < at:
                wanted[part] = at
        if not wanted:
            return
        self._assignment.note()
        # What fails now is made up for by the next one; who wants to hear of it does.
        self._committer.report(wanted, self._committer.now(wanted))

    def _consumed(self, parts: Collection[Part] | None = None) -> dict[Part, int]:
        """Return what a commit without arguments keeps, of these partitions or all."""
        begun = list(self._assignment.fetcher.begun)
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

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")
