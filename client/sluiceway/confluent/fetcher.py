"""Fetcher of a consumer: librdkafka's messages under channel names."""

import collections
import itertools
import math
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from sluiceway.confluent.errors import CONFLICT, UNKNOWN_PARTITION, kafkas_names, refused
from sluiceway.garbage import gc_paused
from sluiceway.kafka.config import MaskedProperties, consumer_config
from sluiceway.kafka.errors import create_client, with_retries
from sluiceway.rest.models import Connection

Part: TypeAlias = tuple[str, int]
"""A channel and a partition."""

_LOOK_S: Final = 30.0
_MANY: Final = 64


class Fetcher:
    """Fetches from partitions of channels, wherever it is told to begin.

    librdkafka keeps the position of each: it is past what was handed out. Groups and commits are
    not its affair. Each message leaves with the channel's name as its topic's.
    """

    def __init__(
        self,
        tuning: MaskedProperties,
        callbacks: Mapping[str, Any],
        *,
        reset: str,
        eof: bool,
    ) -> None:
        self._tuning = tuning
        self._own = {**callbacks, "auto.offset.reset": reset, "enable.partition.eof": eof}
        self._raw: Any = None
        self._kafka: Mapping[str, str] | None = None
        self._topics: dict[str, Connection] = {}
        self._names: dict[str, str] = {}
        # The channel's name where there is one; and the hottest of the calls.
        self._sole: str | None = None
        self._poll: Callable[[float], Message | None] = _nothing
        self._closed = False
        self.begun: dict[Part, int] = {}

    @property
    def ready(self) -> bool:
        """Whether there is anything to poll."""
        return self._raw is not None

    def meet(self, connection: Connection) -> None:
        """Learn of a channel. Raises KafkaException _CONFLICT where it is reached otherwise."""
        if self._kafka is not None and dict(self._kafka) != dict(connection.kafka):
            raise refused(
                CONFLICT,
                f"the channel {connection.channel_name!r} is reached over Kafka in another way "
                "than those that this client has already: use another one for it",
            )
        if self._raw is None:
            with kafkas_names():
                config = consumer_config(connection.kafka, self._tuning)
                self._raw = create_client(Consumer, config.over(self._own))
            self._poll = self._raw.poll
            self._kafka = connection.kafka
        self._topics[connection.channel_name] = connection
        self._names[connection.topic_name] = connection.channel_name
        self._sole = connection.channel_name if len(self._names) == 1 else None

    def knows(self, channel: str) -> bool:
        """Whether it has learned of the channel."""
        return channel in self._topics

    def poll(self, timeout_s: float) -> Message | None:
        """Return a message or an event, or None after `timeout_s`."""
        message = self._poll(timeout_s)
        if message is not None:
            if self._sole is not None:
                message.set_topic(self._sole)
            elif (topic := message.topic()) is not None:
                message.set_topic(self._names.get(topic, topic))
        return message

    def consume(self, limit: int, timeout_s: float) -> list[Message]:
        """Return up to `limit` messages and events, fewer after `timeout_s`."""
        raw = self._raw
        if raw is None:
            return []
        if limit < _MANY:
            messages = raw.consume(limit, timeout_s)
        else:
            with gc_paused():
                messages = raw.consume(limit, timeout_s)
        if self._sole is not None:
            names: Iterable[str] = itertools.repeat(self._sole)
        else:
            # An event that is of no topic has no name, and takes one without harm.
            topics = [message.topic() or "" for message in messages]
            names = [self._names.get(topic, topic) for topic in topics]
        # The hot loop: one call a message, and none of Python's own.
        collections.deque(map(Message.set_topic, messages, names), maxlen=0)
        return list(messages)

    def add(self, offsets: Mapping[Part, int]) -> None:
        """Begin with these partitions too; offsets may be OFFSET_BEGINNING and OFFSET_END."""
        if not offsets:
            return
        places = self.found(offsets)
        self._raw.incremental_assign([self._at(part, at) for part, at in places.items()])
        self.begun |= places

    def drop(self, parts: Collection[Part]) -> None:
        """Fetch these partitions no more."""
        known = [part for part in parts if part in self.begun]
        if known and not self._closed:
            self._raw.incremental_unassign([self._at(part) for part in known])
        for part in known:
            del self.begun[part]

    def seek(self, part: Part, offset: int) -> None:
        """Go on from there; KafkaException _UNKNOWN_PARTITION for one that is not fetched."""
        self._require(part)
        ((_, at),) = self.found({part: offset}).items()
        self._raw.seek(self._at(part, at))
        self.begun[part] = at

    def pause(self, parts: Collection[Part]) -> None:
        """Fetch nothing from these until they are resumed."""
        for part in parts:
            self._require(part)
        self._raw.pause([self._at(part) for part in parts])

    def resume(self, parts: Collection[Part]) -> None:
        """Fetch from these again."""
        for part in parts:
            self._require(part)
        self._raw.resume([self._at(part) for part in parts])

    def consumed(self, parts: Iterable[Part]) -> dict[Part, int]:
        """Return the offset after the last message handed out, of partitions that gave any."""
        asked = [part for part in parts if part in self.begun]
        if not asked or self._closed:
            return {}
        found = self._raw.position([self._at(part) for part in asked])
        return {
            part: each.offset for part, each in zip(asked, found, strict=True) if each.offset >= 0
        }

    def places(self, parts: Iterable[Part]) -> dict[Part, int]:
        """Return where each partition stands: past what was handed out, or where it began."""
        asked = [part for part in parts if part in self.begun]
        return {p: at for p in asked if (at := self.begun.get(p)) is not None} | self.consumed(
            asked
        )

    def watermarks(self, part: Part, timeout_s: float, *, cached: bool) -> tuple[int, int] | None:
        """Return the first offset of a partition and the one after its last."""
        at = self._at(part)
        found: tuple[int, int] | None = with_retries(
            lambda left_s: self._raw.get_watermark_offsets(
                at, timeout=_given(left_s), cached=cached
            ),
            timeout_s=_taken(timeout_s),
        )
        return found

    def at_times(self, times: Mapping[Part, int], timeout_s: float) -> list[TopicPartition]:
        """Return the first offset not older than each time (Unix, in ms), under channels' names."""
        asked = [self._at(part, at) for part, at in times.items()]
        found = self._listed(asked, timeout_s)
        return [renamed(each, self._names[each.topic]) for each in found]

    def found(self, offsets: Mapping[Part, int]) -> dict[Part, int]:
        """Return offsets as numbers: the beginning and the end as they are now."""
        logical = {part: at for part, at in offsets.items() if at in (OFFSET_BEGINNING, OFFSET_END)}
        if not logical:
            return dict(offsets)
        # These are what Kafka's ListOffsets takes in the place of a time, too.
        asked = [self._at(part, at) for part, at in logical.items()]
        known = self._listed(asked, _LOOK_S)
        return dict(offsets) | {
            part: each.offset for part, each in zip(logical, known, strict=True)
        }

    def _listed(self, asked: list[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        """Return what ListOffsets answers, in the order asked. Raises KafkaException."""

        def ask(left_s: float) -> list[TopicPartition]:
            found: list[TopicPartition] = self._raw.offsets_for_times(asked, timeout=_given(left_s))
            for each in found:
                if each.error is not None:
                    raise KafkaException(each.error)
            return found

        return with_retries(ask, timeout_s=_taken(timeout_s))

    def check(self, part: Part) -> None:
        """Raise KafkaException _UNKNOWN_PARTITION where the channel has no such partition."""
        connection = self._topics[part[0]]
        if 0 <= part[1] < connection.partitions:
            return
        if part[1] >= 0:
            known = self._raw.list_topics(connection.topic_name, timeout=_LOOK_S)
            if part[1] in known.topics[connection.topic_name].partitions:
                return
        raise refused(
            UNKNOWN_PARTITION,
            f"the channel {part[0]!r} has {connection.partitions} partitions, and no {part[1]}",
        )

    def close(self) -> None:
        """Let go of Kafka. May be repeated."""
        if not self._closed:
            self._closed = True
            # Closing it while another thread is in one of its calls would end the process. So the
            # last of these closes it, which lets go of it; in one thread that is this one.
            self._raw, self._poll = None, _nothing

    def _require(self, part: Part) -> None:
        if part not in self.begun:
            raise refused(
                UNKNOWN_PARTITION,
                f"partition {part[1]} of {part[0]!r} is not assigned to this consumer",
            )

    def _at(self, part: Part, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self._topics[part[0]].topic_name, part[1], offset)


def _nothing(timeout_s: float) -> None:
    """Poll where nothing is assigned yet."""
    del timeout_s


def _taken(timeout_s: float) -> float:
    """Return a timeout of confluent-kafka's, where a negative one is none, in seconds."""
    return timeout_s if timeout_s >= 0 else math.inf


def _given(left_s: float) -> float:
    return -1 if left_s == math.inf else left_s


def renamed(at: TopicPartition, channel: str) -> TopicPartition:
    """Return `at` under the name of its channel."""
    return TopicPartition(channel, at.partition, at.offset)


def listed(places: Mapping[Part, int]) -> list[TopicPartition]:
    """Return places as confluent-kafka has them."""
    return [TopicPartition(channel, p, at) for (channel, p), at in places.items()]


def parts_of(given: Sequence[TopicPartition]) -> dict[Part, int]:
    """Return what a caller names, with its offsets. Raises TypeError."""
    if not isinstance(given, list | tuple):
        raise TypeError("expected list of TopicPartition")
    for each in given:
        if not isinstance(each, TopicPartition):
            raise TypeError(f"expected TopicPartition, not {type(each).__name__}")
    return {(each.topic, each.partition): each.offset for each in given}


class WakeupEvent(threading.Event):
    """Set when something has come up, from any thread; `turn_s` is when to look in any case.

    Whoever reads compares one number a message: it is 0 while it is set. In seconds, monotonic.
    """

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Lock()
        self.turn_s = 0.0

    def set(self) -> None:
        """Have the reader look at once."""
        with self._both:
            self.turn_s = 0.0
            super().set()

    def put_off(self, turn_s: float) -> None:
        """Look again at `turn_s`, unless something comes up."""
        with self._both:
            self.clear()
            self.turn_s = turn_s


def run_detached(work: Callable[[], object]) -> None:
    """Do it in a thread of its own, which the process waits for; at its end, at once."""
    # Then no thread is waited for any more, and none holds a lock either.
    if threading.main_thread().is_alive():
        threading.Thread(target=work, name="sluiceway-forgotten").start()
    else:
        work()


def when_forgotten(
    owner: object, work: Callable[..., object], *given: Any
) -> "weakref.finalize[..., Any]":
    """Do `work` when `owner` is collected, or the process ends before; not in forked processes.

    An object is collected in the middle of whatever some thread does, which may hold any lock.
    """
    return weakref.finalize(owner, _begin, os.getpid(), work, given)


def _begin(process: int, work: Callable[..., object], given: tuple[Any, ...]) -> None:
    if os.getpid() == process:
        run_detached(lambda: work(*given))


__all__ = ["WakeupEvent", "run_detached", "when_forgotten"]
