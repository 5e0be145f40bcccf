"""Message fetcher: Kafka's own messages, with the names of their channels.

The client's fetcher (`kafka/fetcher.py`) decodes records of one channel. A Consumer returns
messages of any channels as they are. Each channel has a stream; those of one Consumer share its
Kafka client, and the thread that uses it.
"""

import collections
import functools
import operator
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import filterfalse, islice, repeat
from typing import Any, Final, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, Message

from sluiceway import Connection
from sluiceway.confluent.errors import (
    AUTO_OFFSET_RESET,
    PARTITION_EOF,
    UNKNOWN_PARTITION,
    error_event,
    kafka_error,
    kafka_exceptions,
    refused,
)
from sluiceway.confluent.partition_offsets import Partition, by_channel
from sluiceway.confluent.waiting import left_s
from sluiceway.errors import SluicewayError
from sluiceway.spi import (
    Consumers,
    FairLock,
    FetchedMessages,
    MaskedProperties,
    PartitionStream,
    Signal,
    Visibility,
    open_stream,
)

__all__ = ["MessageFetcher"]

V = TypeVar("V")

_MAX_MESSAGES: Final = 10_000
"""As many as the I/O thread gets from Kafka's client at once: dividing them takes time."""
_TIMEOUT_S: Final = 30.0
_IN_POLLS: Final = ("error_cb", "stats_cb", "throttle_cb")
"""Callbacks that confluent-kafka calls in the thread that polls."""


@dataclass(eq=False)
class _Channel:
    """A channel and its stream.

    `in_step`: the stream continues after the buffer. False after an exception in between.
    """

    connection: Connection
    stream: PartitionStream
    in_step: bool = True

    @property
    def name(self) -> str:
        return self.connection.channel_name


@dataclass(eq=False)
class _Buffer:
    """Messages and events; the iterator has those that are not returned yet.

    `settled` is the number of messages from the first one whose offsets were recorded. `last` has
    the last message of each partition, if it is known.
    """

    messages: list[Message] = field(default_factory=list)
    last: Mapping[Partition, Message] | None = None
    settled: int = 0

    def __post_init__(self) -> None:
        self.iterator: Iterator[Message] = iter(self.messages)

    @property
    def returned(self) -> int:
        """The number of messages and events that were returned."""
        return len(self.messages) - operator.length_hint(self.iterator)


class MessageFetcher:
    """Fetches partitions of channels from given offsets, without groups and commits.

    `starts` has the start offsets of the assigned partitions, `callbacks` the calls of the
    configuration's callbacks that are due. `arrived` is set when messages may have arrived.

    Thread-safe. A step of the iterator `_available` is one of the interpreter's: no other thread,
    and no interrupt, comes between taking a message and returning it.
    """

    def __init__(
        self,
        config: MaskedProperties,
        callbacks: Mapping[str, Any],
        *,
        arrived: Signal,
        notify: Callable[[], None],
        reset: str,
        eof: bool,
    ) -> None:
        """Take the configuration; `notify` is called when a callback is due."""
        self._config = config
        self._reset, self._eof = reset, eof
        self._arrived = arrived
        self.callbacks: collections.deque[Callable[[], object]] = collections.deque()
        queued = {
            name: functools.partial(_call_later, self.callbacks, notify, callback)
            for name, callback in callbacks.items()
            if name in _IN_POLLS
        }
        self._consumers = Consumers(MaskedProperties(callbacks).over(queued), arrived)
        self._channels: dict[str, _Channel] = {}
        self.starts: dict[Partition, int] = {}
        # Paused partitions are not in their streams.
        self._paused: set[Partition] = set()
        # By partition, the offset after the last returned message, except those of the buffer.
        self._returned: dict[Partition, int] = {}
        self._buffer = _Buffer()
        # That of the buffer, but while the buffer changes an empty one.
        self._available = self._buffer.iterator
        self._turn = 0
        self._closed = False
        self._lock = FairLock()

    def __contains__(self, channel: str) -> bool:
        """Whether a channel of this name was added."""
        return channel in self._channels

    @property
    def channel_names(self) -> dict[str, str]:
        """The channels that were added, by topic."""
        return {channel.connection.topic_name: channel.name for channel in self._channels.values()}

    def known_end(self, partition: Partition) -> int:
        """Return the end of a partition as far as it is known without a request; else -1."""
        return self._channels[partition[0]].stream.known_end(partition[1])

    def add_channel(self, connection: Connection, visibility: Visibility | None) -> None:
        """Add a channel, an exactly-once one with its visibility."""
        with self._lock, kafka_exceptions():
            stream = open_stream(
                connection,
                self._config,
                timeout_s=_TIMEOUT_S,
                visibility=visibility,
                consumers=self._consumers,
                whole_messages=True,
            )
            before = self._channels.get(connection.channel_name)
            # Partitions of the stream before are assigned to this one by its first use.
            channel = _Channel(connection, stream, in_step=before is None)
            # A new mapping, because other threads read this one.
            self._channels = {**self._channels, channel.name: channel}
            if before is not None:
                before.stream.close()

    def poll(self, timeout_s: float) -> Message | None:
        """Return a message or an event, or None after `timeout_s`."""
        for message in self._available:
            return message
        if self._wait(timeout_s):
            for message in self._available:
                return message
        return None

    def consume(self, messages: list[Message], limit: int, timeout_s: float) -> None:
        """Append up to `limit` messages and events, as soon as there are some."""
        before = len(messages)
        self._take(messages, limit)
        if len(messages) == before and self._wait(timeout_s):
            self._take(messages, limit)

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        """Fetch these partitions as well, from these offsets."""
        with self._lock, kafka_exceptions():
            for channel, starts in self._of_channels(offsets):
                with self._stream_change(channel):
                    self._drop(channel, starts)
                    self._move(channel, starts)

    def unassign(self, partitions: Collection[Partition]) -> None:
        """Stop fetching these partitions."""
        with self._lock, kafka_exceptions():
            assigned = [partition for partition in partitions if partition in self.starts]
            for channel, numbers in self._of_channels(dict.fromkeys(assigned)):
                with self._stream_change(channel):
                    self._drop(channel, numbers)
                    for number in numbers:
                        # First: an interrupt right after this leaves it unassigned.
                        self.starts.pop((channel.name, number), None)
                        self._returned.pop((channel.name, number), None)
                        self._paused.discard((channel.name, number))

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue at an offset. Raises KafkaException _UNKNOWN_PARTITION if not assigned."""
        self._require_assigned([partition])
        self.assign(self.resolve({partition: offset}))

    def go_back(self, offsets: Mapping[Partition, int]) -> None:
        """Return messages again, from the offsets of returned ones on."""
        with self._lock, kafka_exceptions():
            assigned = {p: at for p, at in offsets.items() if p in self.starts}
            for channel, starts in self._of_channels(assigned):
                with self._stream_change(channel):
                    self._drop(channel, starts)
                    for number, offset in starts.items():
                        partition = (channel.name, number)
                        self._returned[partition] = offset
                        if offset <= self.starts[partition]:
                            del self._returned[partition]
                    self._read(channel, starts)

    def pause(self, partitions: Collection[Partition]) -> None:
        """Return no messages of these partitions until `resume`."""
        self._require_assigned(partitions)
        with self._lock, kafka_exceptions():
            for channel, numbers in self._of_channels(dict.fromkeys(partitions)):
                with self._stream_change(channel):
                    self._drop(channel, numbers)
                    self._paused.update((channel.name, number) for number in numbers)

    def resume(self, partitions: Collection[Partition]) -> None:
        """Return messages of these partitions again."""
        self._require_assigned(partitions)
        with self._lock, kafka_exceptions():
            resumed = {p: self._position(p) for p in self._paused.intersection(partitions)}
            for channel, offsets in self._of_channels(resumed):
                with self._stream_change(channel):
                    self._paused.difference_update((channel.name, number) for number in offsets)
                    self._read(channel, offsets)

    def consumed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset after the last returned message, for partitions with any."""
        with self._lock:
            self._settle()
            returned = self._returned.keys() & self.starts.keys()
            return {p: self._returned[p] for p in partitions if p in returned}

    def positions(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the next offset of each assigned partition."""
        with self._lock:
            self._settle()
            return {p: self._position(p) for p in partitions if p in self.starts}

    def watermarks(
        self, partition: Partition, timeout_s: float, *, cached: bool
    ) -> tuple[int, int]:
        """Return the first offset of a partition and the one after its last message.

        If `cached`, the first one is OFFSET_INVALID, and the last one as of the last fetch.
        """
        name, number = partition
        stream = self._channels[name].stream
        if cached:
            end = self.known_end(partition)
            return OFFSET_INVALID, end if end >= 0 else OFFSET_INVALID
        deadline_s = time.monotonic() + timeout_s
        with kafka_exceptions():
            begin = stream.offsets({number: OFFSET_BEGINNING}, timeout_s=timeout_s)[number]
            end = stream.offsets({number: OFFSET_END}, timeout_s=left_s(deadline_s))[number]
        return begin, max(begin, end)

    def offsets_at(self, times: Mapping[Partition, int], timeout_s: float) -> dict[Partition, int]:
        """Return the first offset not older than each time (Unix, in ms), or OFFSET_END.

        OFFSET_BEGINNING and OFFSET_END are times as well: those of Kafka's requests.
        """
        offsets: dict[Partition, int] = {}
        with kafka_exceptions():
            for channel, times_of_channel in self._of_channels(times):
                listed = channel.stream.offsets(times_of_channel, timeout_s=timeout_s)
                offsets.update(((channel.name, number), at) for number, at in listed.items())
        return {partition: offsets[partition] for partition in times}

    def resolve(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return offsets as numbers, with the current OFFSET_BEGINNING and OFFSET_END."""
        logical = {p: at for p, at in offsets.items() if at in (OFFSET_BEGINNING, OFFSET_END)}
        return {**offsets, **self.offsets_at(logical, _TIMEOUT_S)}

    def check(self, partition: Partition, timeout_s: float = _TIMEOUT_S) -> None:
        """Raise KafkaException _UNKNOWN_PARTITION if the channel has no such partition."""
        name, number = partition
        channel = self._channels[name]
        partitions = channel.connection.partitions
        if number >= partitions:
            with kafka_exceptions():
                partitions = channel.stream.count_partitions(timeout_s=timeout_s, max_age_s=0.0)
        if not 0 <= number < partitions:
            raise refused(
                UNKNOWN_PARTITION,
                f"the channel {name!r} has {partitions} partitions, but no {number}",
            )

    def close(self) -> None:
        """Disconnect from Kafka. May be repeated."""
        with self._lock:
            self._closed = True
            self._available, self.starts = iter(()), {}
            for channel in self._channels.values():
                channel.stream.close()
        self._arrived.set()

    def _take(self, messages: list[Message], limit: int) -> None:
        # Two steps: with the lock, because the buffer may change between them.
        with self._lock:
            messages += islice(self._available, limit)

    def _wait(self, timeout_s: float) -> bool:
        """Return whether there are messages; wait up to `timeout_s` for some, or for a wakeup."""
        self._arrived.clear()
        return self._fill() or (timeout_s > 0 and self._arrived.wait(timeout_s) and self._fill())

    def _fill(self) -> bool:
        """Fetch messages if none are available; return whether some are."""
        with self._lock:
            if self._closed:
                return False
            # First those of changes that were interrupted. Then one after the other.
            torn = [channel for channel in self._channels.values() if not channel.in_step]
            names = [*dict.fromkeys(place[0] for place in self.starts if place not in self._paused)]
            self._turn += 1
            first = self._turn % max(1, len(names))
            turn = [self._channels[name] for name in names[first:] + names[:first]]
            self._available = self._buffer.iterator
            for channel in torn + turn:
                if not channel.in_step or not operator.length_hint(self._available):
                    self._fetch(channel)
            if not operator.length_hint(self._available):
                return False
            # Other threads may wait for them as well.
            self._arrived.set()
            return True

    def _fetch(self, channel: _Channel) -> None:
        """Append a channel's messages to the buffer, and an event for an error."""
        try:
            with self._stream_change(channel):
                polled = channel.stream.poll(_MAX_MESSAGES, 0.0)
                messages = polled.items
                # One call a message, without bytecode.
                collections.deque(map(Message.set_topic, messages, repeat(channel.name)), maxlen=0)
                last = {chunk.partition: chunk.items[-1] for chunk in polled.chunks}
                if self._eof:
                    messages += [
                        error_event(
                            channel.name,
                            KafkaError(PARTITION_EOF),
                            partition=number,
                            offset=polled.next[number],
                        )
                        for number in polled.at_end
                    ]
                self._append(messages, {(channel.name, n): m for n, m in last.items()})
                if polled.refused:
                    self._append(self._continue(channel, polled), {})
        except SluicewayError as error:
            self._append([error_event(channel.name, kafka_error(error))], {})

    def _continue(self, channel: _Channel, polled: FetchedMessages) -> list[Message]:
        """Continue partitions that Kafka has refused, by the policy if they are out of range."""
        offsets = {n: self._position((channel.name, n)) for n in polled.refused}
        offsets |= {n: offset for n, offset in polled.next.items() if n in offsets}
        errors = channel.stream.reassign_refused(offsets)
        channel.stream.drop(errors)
        if self._reset != "error":
            earliest = self._reset == "earliest"
            self._move(channel, {n: e.begin if earliest else e.end for n, e in errors.items()})
            return []
        reason = "the offset {} is out of range, and auto.offset.reset is error"
        return [
            error_event(
                channel.name,
                KafkaError(AUTO_OFFSET_RESET, reason.format(error.offset)),
                partition=number,
            )
            for number, error in errors.items()
        ]

    def _move(self, channel: _Channel, offsets: Mapping[int, int]) -> None:
        """Read partitions from offsets that are not in the stream."""
        for number, offset in offsets.items():
            # In this order: an interrupt between them leaves its position unchanged.
            self.starts[channel.name, number] = offset
            self._returned.pop((channel.name, number), None)
        self._read(channel, offsets)

    def _read(self, channel: _Channel, offsets: Mapping[int, int]) -> None:
        """Read partitions from offsets unless they are paused."""
        channel.stream.add(
            {n: at for n, at in offsets.items() if (channel.name, n) not in self._paused}
        )

    def _drop(self, channel: _Channel, numbers: Collection[int]) -> None:
        """Remove partitions from the stream and from the buffer."""
        channel.stream.drop(numbers)
        self._keep(lambda m: m.topic() != channel.name or m.partition() not in numbers)

    @contextmanager
    def _stream_change(self, channel: _Channel) -> Iterator[None]:
        """Change a stream and the buffer. After an exception, the next change assigns anew."""
        if not channel.in_step:
            self._keep(lambda message: message.topic() != channel.name)
            assigned = self.starts.keys() - self._paused
            channel.stream.assign(
                {n: self._position((name, n)) for name, n in assigned if name == channel.name}
            )
        channel.in_step = False
        yield
        channel.in_step = True

    def _append(self, messages: list[Message], last: Mapping[Partition, Message]) -> None:
        """Replace the buffer by its rest and these messages, with the last of each partition."""
        self._available = iter(())
        self._settle()
        if rest := self._buffer.messages[self._buffer.settled :]:
            self._buffer = _Buffer(rest + messages)
        else:
            self._buffer = _Buffer(messages, last)
        self._available = self._buffer.iterator

    def _keep(self, condition: Callable[[Message], bool]) -> None:
        """Replace the buffer by those messages of its rest that meet a condition."""
        # First, so that no other thread takes messages meanwhile.
        self._available = iter(())
        self._settle()
        rest = self._buffer.messages[self._buffer.settled :]
        self._buffer = _Buffer([message for message in rest if condition(message)])
        self._available = self._buffer.iterator

    def _settle(self) -> None:
        """Record the offsets after the returned messages of the buffer."""
        buffer, count = self._buffer, self._buffer.returned
        last = buffer.last if count == len(buffer.messages) else None
        if last is None:
            last = _last_messages(buffer.messages[buffer.settled : count])
        self._returned |= {partition: message.offset() + 1 for partition, message in last.items()}
        buffer.settled = count

    def _position(self, partition: Partition) -> int:
        """Return the next offset of an assigned partition, as settled."""
        return self._returned.get(partition, self.starts[partition])

    def _of_channels(self, values: Mapping[Partition, V]) -> list[tuple[_Channel, dict[int, V]]]:
        """Return values by channel and partition."""
        return [(self._channels[name], own) for name, own in by_channel(values).items()]

    def _require_assigned(self, partitions: Collection[Partition]) -> None:
        for name, number in partitions:
            if (name, number) not in self.starts:
                raise refused(
                    UNKNOWN_PARTITION,
                    f"partition {number} of {name!r} is not assigned to this consumer",
                )


def _last_messages(messages: list[Message]) -> dict[Partition, Message]:
    """Return the last message of each partition, without events."""
    received = [*filterfalse(Message.error, messages)]
    places = zip(map(Message.topic, received), map(Message.partition, received), strict=True)
    return dict(zip(places, received, strict=True))


def _call_later(
    calls: "collections.deque[Callable[[], object]]",
    notify: Callable[[], None],
    callback: Callable[..., object],
    *arguments: Any,
) -> None:
    """Let a poll call a callback, which Kafka's client has called in its own thread."""
    calls.append(functools.partial(callback, *arguments))
    notify()
