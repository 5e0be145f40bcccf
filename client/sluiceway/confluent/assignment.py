"""Subscription and assignment of a consumer: its channels by name, its partitions and endpoints."""

import contextlib
import functools
import math
import re
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    Message,
)

from sluiceway import Position
from sluiceway.confluent.config import ConsumerSettings
from sluiceway.confluent.errors import AUTO_OFFSET_RESET, INVALID_ARG, STATE, error_event, refused
from sluiceway.confluent.fetcher import MessageFetcher
from sluiceway.confluent.members import ChannelMember
from sluiceway.confluent.partition_offsets import Partition, by_channel
from sluiceway.confluent.statistics import PartitionProgress, channel_statistics
from sluiceway.confluent.waiting import WakeupEvent, left_s
from sluiceway.errors import ChannelNotFound, EndpointClosed, GatewayUnavailable, SluicewayError
from sluiceway.spi import Control, Steps, visibility_of

__all__ = ["Assignment", "leave_all"]

_RESET = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}
_RETRY_S = 2.0
"""Time between attempts to find or to join a channel."""
_LOOKUP_TIMEOUT_S = 5.0


class Subscription:
    """Names of channels, and regexes of names, which begin with `^`."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._names: tuple[str, ...] = ()
        self._regexes: dict[str, re.Pattern[str]] = {}
        self._retry_s: dict[str, float] = {}
        self._reported: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def replace(self, names: Sequence[str]) -> None:
        """Subscribe to these names only. Raises KafkaException _INVALID_ARG."""
        try:
            regexes = {name: re.compile(name) for name in names if name.startswith("^")}
        except re.error as error:
            raise refused(INVALID_ARG, f"{error.pattern!r} is not a regex: {error}") from error
        self._names, self._regexes = tuple(names), regexes
        self._retry_s, self._reported = {}, {}

    def includes(self, channel: str) -> bool:
        """Return whether the subscription names or matches a channel."""
        matches = (regex.match(channel) for regex in self._regexes.values())
        return channel in self._names or any(matches)

    def exclude(self, channel: str) -> None:
        """Do not join a channel again before the next `replace`."""
        self._retry_s[channel] = math.inf

    def due(self, joined: Collection[str]) -> list[str]:
        """Return the names and regexes to look up now, and schedule their next lookup."""
        now_s = time.monotonic()
        names = [n for n in self._names if n not in joined and now_s >= self._retry_s.get(n, 0.0)]
        self._retry_s |= dict.fromkeys(names, now_s + _RETRY_S)
        return names

    def look_up(self, name: str) -> list[str]:
        """Request the channel of this name, or those of this regex. Raises GatewayError."""
        regex = self._regexes.get(name)
        if regex is None:
            self._control.channel(name, timeout_s=_LOOKUP_TIMEOUT_S)
            return [name]
        channels = list(self._control.channels(timeout_s=_LOOKUP_TIMEOUT_S))
        return [channel.name for channel in channels if regex.match(channel.name)]

    def excludes(self, channel: str) -> bool:
        """Return whether a channel was excluded."""
        return self._retry_s.get(channel) == math.inf

    def is_new(self, name: str, error: SluicewayError | None) -> bool:
        """Record the outcome for a name; return whether it is a new error."""
        if error is None:
            self._reported.pop(name, None)
            return False
        previous_code, self._reported[name] = self._reported.get(name), error.code
        return previous_code != error.code


class Assignment:
    """The channels and partitions of one consumer.

    `members` are its endpoints, by channel. During a callback `in_callback` is set; `assigning`
    has the partitions that are being assigned, `started` those of them that the callback has chosen
    to read, None before it has chosen any or none.
    """

    def __init__(self, settings: ConsumerSettings, *, wakeup: WakeupEvent) -> None:
        self._settings = settings
        self._control = settings.control
        self._wakeup = wakeup
        self.subscription = Subscription(settings.control)
        self.fetcher = MessageFetcher(
            settings.kafka,
            self._with_statistics(settings.callbacks),
            arrived=wakeup.arrived,
            notify=wakeup.set,
            reset=settings.reset,
            eof=settings.eof,
        )
        self.members: dict[str, ChannelMember] = {}
        self.outage: SluicewayError | None = None
        self.removals = 0
        """Number of partitions that were removed after messages of them were returned, and before
        these were committed, so other members may return them as well."""
        self._closed = False
        self.in_callback = False
        self.assigning: frozenset[Partition] = frozenset()
        self.started: set[Partition] | None = None

    def _with_statistics(self, callbacks: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return callbacks whose `stats_cb` gets statistics of channels."""
        stats_cb = callbacks.get("stats_cb")
        if stats_cb is None:
            return callbacks
        # Kafka's client has the callback: a strong reference would keep an abandoned consumer.
        reference = weakref.ref(self)

        def report(text: str) -> None:
            assignment = reference()
            stats_cb(text if assignment is None else assignment.statistics(text))

        return {**callbacks, "stats_cb": report}

    def statistics(self, text: str) -> str:
        """Return librdkafka's statistics with channels, and the group's offsets and lag."""
        fetcher, members = self.fetcher, self.members
        positions = fetcher.positions(self.partitions)

        def progress_of(channel: str, number: int) -> PartitionProgress | None:
            member, next_offset = members.get(channel), positions.get((channel, number))
            if member is None or next_offset is None:
                return None
            return PartitionProgress(
                committed=member.committed(number),
                next_offset=next_offset,
                end=fetcher.known_end((channel, number)),
            )

        return channel_statistics(text, fetcher.channel_names, progress_of)

    @property
    def partitions(self) -> list[Partition]:
        """The assigned partitions."""
        return list(self.fetcher.starts)

    @property
    def manual_partitions(self) -> list[Partition]:
        """The partitions that the caller assigned."""
        manual = {name for name, member in self.members.items() if member.share is None}
        return [partition for partition in self.fetcher.starts if partition[0] in manual]

    @property
    def group_members(self) -> list[ChannelMember]:
        """The memberships of groups."""
        return [member for member in self.members.values() if member.share is not None]

    def join(self) -> Steps[list[tuple[str, SluicewayError]]]:
        """Join subscribed channels; return new failures. `outage` is None if the gateway answers.

        Other exceptions are raised, and the channel is tried again later.
        """
        failures: list[tuple[str, SluicewayError]] = []

        def note(name: str, error: SluicewayError | None) -> None:
            self.outage = error if isinstance(error, GatewayUnavailable) else None
            if self.subscription.is_new(name, error) and error is not None and not self.outage:
                failures.append((name, error))

        for name in self.subscription.due(self.members):
            try:
                channels = yield functools.partial(self.subscription.look_up, name)
            except SluicewayError as error:
                note(name, error)
                continue
            note(name, None)
            for channel in channels:
                if channel in self.members or self.subscription.excludes(channel):
                    continue
                try:
                    self._add_member((yield functools.partial(self._join, channel)))
                except SluicewayError as error:
                    note(channel, error)
                else:
                    note(channel, None)
        return failures

    def starts(
        self, offsets: Mapping[Partition, int]
    ) -> tuple[dict[Partition, int], list[Message]]:
        """Return the start offsets of partitions, and events for those without one.

        In this order: the given offset, the group's committed offset, auto.offset.reset.
        """
        starts: dict[Partition, int] = {}
        events: list[Message] = []
        for partition, offset in offsets.items():
            channel, number = partition
            member = self.members[channel]
            committed = member.committed(number)
            if offset >= 0 or offset in (OFFSET_BEGINNING, OFFSET_END):
                starts[partition] = offset
            elif offset not in (OFFSET_INVALID, OFFSET_STORED):
                raise refused(INVALID_ARG, f"{offset} is not a start offset")
            elif committed is not None:
                starts[partition] = committed
            elif member.share is not None and number >= member.initial_total:
                # The partition was added after the member joined, so all of it is new.
                starts[partition] = OFFSET_BEGINNING
            elif self._settings.reset in _RESET:
                starts[partition] = _RESET[self._settings.reset]
            else:
                reason = "the group has no committed offset, and auto.offset.reset is error"
                error = KafkaError(AUTO_OFFSET_RESET, reason)
                events.append(error_event(channel, error, partition=number))
        return starts, events

    def assign_manually(
        self, offsets: Mapping[Partition, int], keep: Collection[Partition] = ()
    ) -> list[Message]:
        """Read these partitions and those to keep, and no others; return events as `starts` does.

        If it raises, nothing has changed.
        """
        for channel, number in offsets:
            if not channel or number < 0:
                raise refused(INVALID_ARG, f"{channel!r} [{number}] is not a partition")
        try:
            for channel, places in by_channel(offsets).items():
                self._require_manual_consumer(channel, places)
            for partition in offsets:
                self.fetcher.check(partition)
            starts, events = self.starts(offsets)
            starts = self.resolve(starts)
        except BaseException:
            leave_all({member.channel: self.members.pop(member.channel) for member in self.idle()})
            raise
        self.remove([partition for partition in self.manual_partitions if partition not in keep])
        self.add(starts)
        return events

    def start_assigning(self, offsets: Mapping[Partition, int]) -> list[Message]:
        """Start partitions that are being assigned; return events as `starts` does.

        Those that the callback does not start are not read.
        """
        chosen = {partition: at for partition, at in offsets.items() if partition in self.assigning}
        starts, events = self.starts(chosen)
        self.fetcher.unassign(starts)
        self.add(self.resolve(starts))
        self.started = {*(self.started or ()), *chosen}
        return events

    def leave_out(self, partitions: Collection[Partition]) -> None:
        """Do not read these partitions of those that are being assigned."""
        started = self.started or set()
        self.remove(started.intersection(partitions))
        self.started = started.difference(partitions)

    def resolve(self, starts: Mapping[Partition, int]) -> dict[Partition, int]:
        """Request start offsets as numbers from Kafka. Raises KafkaException."""
        for partition in starts:
            self.fetcher.check(partition)
        return self.fetcher.resolve(starts)

    def add(self, starts: Mapping[Partition, int]) -> None:
        """Read these partitions as well; `starts` are numbers."""
        self.fetcher.assign(starts)
        start_offsets = {partition: self.fetcher.starts[partition] for partition in starts}
        for channel, offsets in by_channel(start_offsets).items():
            self.members[channel].add(offsets)

    def suspend(self, partitions: Collection[Partition]) -> None:
        """Return no messages of these partitions until they are removed."""
        self.fetcher.pause(
            [partition for partition in partitions if partition in self.fetcher.starts]
        )

    def remove(self, partitions: Collection[Partition]) -> None:
        """Stop reading these partitions."""
        for (channel, number), at in self.fetcher.consumed(partitions).items():
            committed = self.members[channel].committed(number)
            self.removals += committed is None or committed < at
        for channel, offsets in by_channel(self.fetcher.positions(partitions)).items():
            self.members[channel].record_positions(offsets)
            self.members[channel].remove(offsets)
        self.fetcher.unassign(partitions)

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue a partition at another offset."""
        if offset < 0 and offset not in (OFFSET_BEGINNING, OFFSET_END):
            raise refused(INVALID_ARG, f"{offset} is not an offset to seek to")
        self.record_positions()
        self.fetcher.seek(partition, offset)

    def record_positions(self) -> None:
        """Record the position of each partition, for commits and heartbeats."""
        for channel, offsets in by_channel(self.fetcher.positions(self.partitions)).items():
            self.members[channel].record_positions(offsets)

    def committed(
        self, partitions: Collection[Partition], timeout_s: float
    ) -> dict[Partition, Position]:
        """Request the group's committed positions; none for unknown channels.

        Raises GatewayError.
        """
        group, deadline_s = self._settings.group, time.monotonic() + timeout_s
        positions: dict[Partition, Position] = {}
        for channel in dict.fromkeys(channel for channel, _ in partitions):
            with contextlib.suppress(ChannelNotFound):
                stored = self._control.endpoints.committed(
                    channel, group, index=None, timeout_s=left_s(deadline_s)
                )
                positions |= {(channel, number): at for number, at in stored.items()}
        return {
            partition: positions[partition] for partition in partitions if partition in positions
        }

    def commit(self, channel: str, positions: Mapping[int, Position]) -> None:
        """Commit positions of one channel, all or none. Raises SluicewayError."""
        member = self.members.get(channel)
        if member is None:
            raise EndpointClosed(f"this consumer has already left the channel {channel!r}")
        member.commit(positions)

    def require(self, partitions: Collection[Partition], code: int = STATE) -> None:
        """Raise KafkaException with this code for a partition that is not assigned."""
        for channel, number in partitions:
            member = self.members.get(channel)
            if member is None or number not in member.held:
                raise refused(
                    code,
                    f"partition {number} of {channel!r} is not assigned to this consumer, which "
                    "commits only its own partitions",
                )

    def check(self, partition: Partition, deadline_s: float) -> None:
        """Raise GatewayError or KafkaException unless the partition exists."""
        if partition[0] not in self.fetcher:
            connection = self._control.connection(
                partition[0], "read", timeout_s=left_s(deadline_s)
            )
            control = self._control
            self.fetcher.add_channel(
                connection, visibility_of(control.ledger, connection, grace_s=control.grace_s)
            )
        self.fetcher.check(partition, left_s(deadline_s))

    def forget(self, member: ChannelMember) -> None:
        """Drop a channel and its partitions; the caller detaches the endpoint."""
        self.remove([at for at in self.partitions if at[0] == member.channel])
        del self.members[member.channel]
        # A later detach by garbage collection is no failure.
        member.handle.mark_complete()

    def close(self) -> None:
        """Disconnect from Kafka and from the gateway."""
        self._closed = True
        self.fetcher.close()
        self._control.close()

    def idle(self) -> list[ChannelMember]:
        """Return the endpoints without partitions."""
        busy = {channel for channel, _ in self.fetcher.starts}
        return [member for name, member in self.members.items() if name not in busy]

    def _require_manual_consumer(self, channel: str, offsets: Mapping[int, int]) -> None:
        """Ensure a manual consumer of a channel with the group's committed offsets."""
        member = self.members.get(channel)
        stored = [p for p, offset in offsets.items() if offset in (OFFSET_INVALID, OFFSET_STORED)]
        if member is None or member.share is not None:
            self._add_member(ChannelMember(self._settings, channel, continues=bool(stored)))
        elif stored:
            member.learn(stored)

    def _join(self, channel: str) -> ChannelMember:
        member = ChannelMember(self._settings, channel, wakeup=self._wakeup)
        if self._closed:
            # `close` did not wait for it.
            member.handle.detach()
        return member

    def _add_member(self, member: ChannelMember) -> None:
        with member.handle.reporting_failure():
            self.fetcher.add_channel(member.connection, member.visibility)
        self.members[member.channel] = member


def leave_all(members: dict[str, ChannelMember], control: Control | None = None) -> None:
    """Leave every channel, and ignore failures."""
    for member in list(members.values()):
        with contextlib.suppress(SluicewayError):
            member.handle.detach()
    members.clear()
    if control is not None:
        control.close()
