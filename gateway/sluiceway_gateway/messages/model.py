"""Selection of messages for a request, and limits of their display. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from sluiceway_gateway.core.errors import InvalidRequest
from sluiceway_gateway.core.kafka.model import Interval, ReadMessage

MAX_MESSAGES = 500
"""Maximum of a response."""
MAX_READ_PARTITIONS = 200
"""Maximum partitions of a request; their offsets must fit into a cursor."""
MAX_BYTES = 8 * 1024 * 1024
"""Maximum total size of keys and values in a response with several messages."""
READ_S = 4.0
"""Time after which a response is returned with the messages read so far."""
MAX_RECORDS = 100
"""Maximum shown records of a message."""
MAX_PATTERN = 200
"""Maximum characters of an expression that is searched."""
_ROUND_MESSAGES = 2_000
"""Maximum messages of a round, in all partitions together."""
_GAP = 1_000
"""Maximum gap between runs that are read together instead of separately."""
_MAX_WINDOW = 100_000


@dataclass(frozen=True, kw_only=True)
class StartPoint:
    """The start point of a request.

    `bounds` has the start offset by partition or, for newest first, the offset below which messages
    are read. Without it, all partitions or one are read from `offset` or `since` on.
    """

    newest_first: bool = True
    partition: int | None = None
    offset: int | None = None
    since: datetime | None = None
    bounds: Mapping[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class PartitionView:
    """The visible part of a partition: messages in `runs`, which are sorted and separate.

    `truncated`: there are more runs in the direction of reading.
    """

    partition: int
    begin_offset: int
    end_offset: int
    stable_offset: int | None = None
    """`stable` of exactly-once channels."""
    runs: tuple[Interval, ...]
    truncated: bool = False

    @cached_property
    def spans(self) -> tuple[Interval, ...]:
        """The runs, merged where the gap is small."""
        spans: list[Interval] = []
        for first, end in self.runs:
            if spans and first - spans[-1].end <= _GAP:
                spans[-1] = Interval(spans[-1].first, end)
            else:
                spans.append(Interval(first, end))
        return tuple(spans)

    def shows(self, offset: int) -> bool:
        """Whether a run holds the offset."""
        return holds(self.runs, offset)


def holds(runs: Sequence[Interval], offset: int) -> bool:
    """Whether one of these sorted runs holds the offset."""
    index = bisect_right(runs, offset, key=lambda run: run.first)
    return index > 0 and offset < runs[index - 1].end


def window(view: PartitionView, at: int, size: int, *, newest: bool) -> Interval | None:
    """Return the next offsets to read: up to `size`, below `at` or from `at` on.

    None if there are no more.
    """
    if newest:
        for first, end in reversed(view.spans):
            if first < at:
                return Interval(max(first, min(end, at) - size), min(end, at))
    else:
        for first, end in view.spans:
            if end > at:
                return Interval(max(first, at), min(end, max(first, at) + size))
    return None


class MessageSelection:
    """The newest or the oldest messages among those of several partitions, by their timestamps.

    Each partition's messages arrive in their order. While there are more than `limit` of them, or
    more than `limit_bytes`, the oldest, or newest, are dropped; those of one partition that stay
    follow each other.
    """

    def __init__(
        self, views: Mapping[int, PartitionView], *, newest: bool, limit: int, limit_bytes: int
    ) -> None:
        self._views = views
        self._newest = newest
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._kept: defaultdict[int, deque[ReadMessage]] = defaultdict(deque)
        self.count = 0
        self.size_bytes = 0
        self.dropped: dict[int, int] = {}
        """By partition, the offset of the last message that was dropped."""

    def add(self, message: ReadMessage) -> None:
        """Add a message if it is visible and among the selected ones."""
        partition = message.partition
        if not self._views[partition].shows(message.offset):
            return
        if not self._newest and partition in self.dropped:
            return
        self._kept[partition].append(message)
        self.count += 1
        self.size_bytes += message.size_bytes
        while self.count > self._limit or (self.size_bytes > self._limit_bytes and self.count > 1):
            self._drop()

    @property
    def is_full(self) -> bool:
        """Whether any message was dropped."""
        return bool(self.dropped)

    def of(self, partition: int) -> Sequence[ReadMessage]:
        """Return the messages of a partition, in their order."""
        return self._kept.get(partition, ())

    def _drop(self) -> None:
        present = [messages for messages in self._kept.values() if messages]
        if self._newest:
            message = min(present, key=lambda messages: _order(messages[0], newest=True)).popleft()
        else:
            message = max(present, key=lambda messages: _order(messages[-1], newest=False)).pop()
        self.count -= 1
        self.size_bytes -= message.size_bytes
        self.dropped[message.partition] = message.offset


def _order(message: ReadMessage, *, newest: bool) -> tuple[int, int]:
    """Return the time; of messages of one time, those of lower partitions are shown first."""
    return (message.timestamp_ms or 0, -message.partition if newest else message.partition)


def merged(by_partition: Mapping[int, Sequence[ReadMessage]], *, newest: bool) -> list[ReadMessage]:
    """Return all messages by their times, those of one partition by their offsets."""
    rest = {partition: deque(messages) for partition, messages in by_partition.items() if messages}
    ordered = []
    while rest:
        if newest:
            partition = max(rest, key=lambda candidate: _order(rest[candidate][-1], newest=True))
            ordered.append(rest[partition].pop())
        else:
            partition = min(rest, key=lambda candidate: _order(rest[candidate][0], newest=False))
            ordered.append(rest[partition].popleft())
        if not rest[partition]:
            del rest[partition]
    return ordered


@dataclass(kw_only=True)
class ReadProgress:
    """The reading of one request: rounds, each of a window of every partition that has more.

    `at` is, by partition, where the next round begins, or ends if `newest`. With `round_messages`,
    a round has at most about so many messages, however few of them are selected.
    """

    views: Mapping[int, PartitionView]
    at: dict[int, int]
    newest: bool
    limit: int
    round_messages: int | None = None
    by_partition: defaultdict[int, deque[ReadMessage]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    size_bytes: int = 0
    ended: Literal["time", "bytes"] | None = None
    """The reason why there are fewer messages than requested, although there are more."""
    _grown: int = 1

    @property
    def count(self) -> int:
        """The number of messages so far."""
        return sum(map(len, self.by_partition.values()))

    def windows(self) -> dict[int, Interval]:
        """Return the windows of the next round; empty at the end."""
        if self.ended is not None or self.count >= self.limit:
            return {}
        wanted = self.limit - self.count
        size = max(1, min(wanted, _ROUND_MESSAGES // max(1, len(self.at)))) * self._grown
        if self.round_messages is not None:
            size = max(1, self.round_messages // max(1, len(self.at)))
        windows = {
            partition: window(self.views[partition], at, min(size, _MAX_WINDOW), newest=self.newest)
            for partition, at in self.at.items()
        }
        return {
            partition: interval for partition, interval in windows.items() if interval is not None
        }

    def selection(self) -> MessageSelection:
        """Return an empty selection for the next round's messages."""
        return MessageSelection(
            self.views,
            newest=self.newest,
            limit=self.limit - self.count,
            limit_bytes=max(0, MAX_BYTES - self.size_bytes),
        )

    def record(
        self, windows: Mapping[int, Interval], selected: MessageSelection, read: Mapping[int, int]
    ) -> None:
        """Add a round's messages.

        `read` has, by partition, the offset up to which its window was read; all of it if that is
        the window's end.
        """
        for partition, interval in windows.items():
            messages = selected.of(partition)
            if self.newest and read[partition] < interval.end:
                # The newest ones are missing, so the window is read again.
                continue
            if self.newest:
                self.by_partition[partition].extendleft(reversed(messages))
                if partition not in selected.dropped:
                    self.at[partition] = interval.first
                elif messages:
                    self.at[partition] = messages[0].offset
            else:
                self.by_partition[partition].extend(messages)
                dropped = selected.dropped.get(partition)
                self.at[partition] = read[partition] if dropped is None else dropped
        self.size_bytes += selected.size_bytes
        if self.count < self.limit:
            if any(read[partition] < interval.end for partition, interval in windows.items()):
                self.ended = "time"
            elif selected.is_full or self.size_bytes >= MAX_BYTES:
                self.ended = "bytes"
        # Windows grow if most offsets have no message to show, as in compacted topics.
        self._grown = min(_MAX_WINDOW, self._grown * 4) if selected.count < len(windows) else 1

    def take(self) -> list[ReadMessage]:
        """Return the messages of the last rounds, and forget them and their size."""
        messages = self.messages()
        self.limit -= len(messages)
        self.by_partition.clear()
        self.size_bytes = 0
        if self.ended == "bytes":
            self.ended = None
        return messages

    def messages(self) -> list[ReadMessage]:
        """Return all messages so far, in the order in which they are shown."""
        return merged(self.by_partition, newest=self.newest)

    def following(self) -> StartPoint | None:
        """Return the start point of the next page; None at the end."""
        more = any(
            view.truncated or window(view, self.at[partition], 1, newest=self.newest) is not None
            for partition, view in self.views.items()
        )
        return StartPoint(newest_first=self.newest, bounds=dict(self.at)) if more else None


@dataclass(frozen=True, kw_only=True)
class SearchCondition:
    """What a message must contain; without `text` and `regex`, anything.

    Both are looked for in the key, the values of headers and the records, or only in `field`: a
    path of names in the records, `@key`, or `@header.` with a name.
    """

    text: str | None = None
    """Regardless of case."""
    regex: str | None = None
    field: str | None = None


_TEXT_SHARE = 4
_LEAST_TEXT = 200


def shortened(value: Any, characters: int) -> tuple[Any, list[str]]:
    """Return a JSON value of at most about `characters`, and JSON pointers to cut values.

    Texts are cut to a quarter of `characters` and end with `…`; objects and arrays lose their last
    items.
    """
    cut: list[str] = []
    left = characters
    longest = max(_LEAST_TEXT, characters // _TEXT_SHARE)

    def part(value: Any, pointer: str) -> Any:
        nonlocal left
        match value:
            case str():
                room = min(longest, max(_LEAST_TEXT, left))
                left -= min(len(value), room)
                if len(value) <= room:
                    return value
                cut.append(pointer)
                return f"{value[:room]}…"
            case list():
                items: list[Any] = []
                for item in value:
                    if left <= 0:
                        cut.append(pointer)
                        break
                    items.append(part(item, f"{pointer}/{len(items)}"))
                return items
            case dict():
                fields: dict[str, Any] = {}
                for name, item in value.items():
                    if left <= 0:
                        cut.append(pointer)
                        break
                    left -= len(name)
                    escaped = name.replace("~", "~0").replace("/", "~1")
                    fields[name] = part(item, f"{pointer}/{escaped}")
                return fields
            case _:
                left -= 8
                return value

    return part(value, ""), cut


def no_partition(pointer: str, partition: int, partitions: int) -> InvalidRequest:
    """Return the error for a partition that the channel does not have."""
    message = f"there is no partition {partition}; the channel has {partitions}, from 0 on"
    return InvalidRequest.at(pointer, message)
