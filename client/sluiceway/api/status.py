"""Status of channels and of their groups. An unknown number is None, never 0."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from sluiceway.api.endpoints import Endpoint
from sluiceway.api.parsing import LOCAL, JsonPath

__all__ = [
    "BatchReport",
    "ChannelSummary",
    "EndpointCounts",
    "GroupPartition",
    "GroupReport",
    "LedgerReport",
    "PartitionReport",
    "ReaderReport",
    "StatusPage",
    "StatusProblem",
    "StatusReport",
]


@dataclass(frozen=True, kw_only=True)
class StatusProblem:
    """A current problem of a channel; `str()` is a sentence. None is unknown or does not apply.

    `code` is channel_failed, channel_not_synced, partitions_unavailable, channel_halted,
    batch_holds_readers, reader_stalled, reader_stopped, not_converging, position_out_of_range,
    partitions_unread, writer_failed, writer_lost, reader_failed, reader_lost, suspect, or one of a
    newer gateway. `severity` is error or warning. `failures` is the number of ended endpoints that
    failed within the last day: they are one problem, that of the last one.
    """

    code: str
    severity: str
    since: datetime | None
    role: str | None
    group: str | None
    index: int | None
    endpoint: str | None
    batch: str | None
    owner: str | None
    held_messages: int | None
    lag_messages: int | None
    reason: str | None
    failures: int | None = None
    advice: str | None = None
    """What to do, with commands in backticks; None from an older gateway."""

    def __str__(self) -> str:
        """Return the problem, its location and its cause in one line."""
        template = _PROBLEMS.get(self.code, "{code}" if self.role is None else "{place}: {code}")
        what = template.format(
            code=self.code,
            place=self._place,
            batch=self.batch,
            owner=self.owner,
            held=_count(self.held_messages),
        )
        if self.lag_messages:
            what += f", {_count(self.lag_messages)} to read"
        if (self.failures or 0) > 1:
            what += f", the last of {self.failures} failures within a day"
        # Reasons may have line breaks.
        return what if not self.reason else f"{what}: {' '.join(self.reason.split())}"

    @property
    def _place(self) -> str:
        if self.group is None:
            name = "without a group" if self.endpoint is None else self.endpoint[:8]
            return f"{self.role} {name}"
        index = "" if self.index is None else f"[{self.index}]"
        return f"{self.role} {self.group}{index}"


_PROBLEMS = {
    "channel_failed": "the channel has failed",
    "channel_not_synced": "the topic does not match the channel's spec",
    "partitions_unavailable": "Kafka gives no offsets",
    "channel_halted": "the channel is halted, it cannot be read or written",
    "batch_holds_readers": (
        "the open batch {batch!r} of {owner!r} holds readers back, {held} committed after it"
    ),
    "reader_stalled": "{place} is stalled, it is alive but does not advance",
    "reader_stopped": "{place} has no live member",
    "not_converging": "{place} is falling behind",
    "position_out_of_range": "{place} cannot go on at its committed positions, reset them",
    "partitions_unread": "{place} does not read all partitions",
    "writer_failed": "{place} has failed",
    "writer_lost": "{place} is lost, its heartbeats do not arrive",
    "reader_failed": "{place} has failed",
    "reader_lost": "{place} is lost, its heartbeats do not arrive",
    "suspect": "{place} is suspect, its heartbeats are late",
}


def _count(messages: int | None) -> str:
    if messages is None:
        return "an unknown number of messages"
    return f"{messages:,} message{'' if messages == 1 else 's'}"


@dataclass(frozen=True, kw_only=True)
class PartitionReport:
    """The first offset of a partition, and the offset after its last message.

    In an exactly-once channel readers read up to `stable`, and committed records end at
    `visible_end`.
    """

    partition: int
    start: int | None
    end: int | None
    stable: int | None = None
    visible_end: int | None = None


@dataclass(frozen=True, kw_only=True)
class BatchReport:
    """An open batch, which holds back `held_messages` committed messages."""

    key: str
    owner: str
    since: datetime
    held_messages: int


@dataclass(frozen=True, kw_only=True)
class LedgerReport:
    """The commits of an exactly-once channel: the last one's `number`, and the open batches.

    `batches` has at most 20 of them, sorted by the number of messages that they hold back.
    `uncommitted_messages` are in Kafka but in no commit: of open batches, of failed attempts, or
    of foreign producers. `halted` is the reason for a halted channel, or None.
    """

    number: int
    halted: str | None
    uncommitted_messages: int | None
    open_batches: int
    batches: tuple[BatchReport, ...]

    @property
    def held_back_by(self) -> BatchReport | None:
        """The open batch that holds back the most committed messages, or None."""
        return next((batch for batch in self.batches if batch.held_messages), None)


@dataclass(frozen=True, kw_only=True)
class GroupPartition:
    """The position and the lag of a group in one partition.

    `position` is the next offset to read: the reader's reported one or the `committed` one,
    whichever is later. `lag_seconds` is the age of the message there, or a lower bound of it if
    `lag_seconds_at_least`. `progress` is ok, held_back (committed messages wait for an open
    batch), falling_behind, stalled (a live reader does not move), stopped (there is no live reader)
    or rewound.
    """

    partition: int
    committed: int | None
    position: int | None
    end: int | None
    lag_messages: int | None
    lag_seconds: float | None
    lag_seconds_at_least: bool = False
    progress: str | None


@dataclass(frozen=True, kw_only=True)
class GroupReport:
    """The lag and the progress of a reading group, or of one member of a broadcast group (`index`).

    `lag_seconds` is the age of the oldest message to read, or a lower bound of it if
    `lag_seconds_at_least`. Rates are in messages per second, over the last 15 seconds or so.
    `trend` is the growth of the lag in messages per second, `drain_s` the time until the lag is 0
    at this trend, None if it does not shrink or there is no reader.
    """

    group: str
    index: int | None
    mode: str
    size: int | None
    generation: int
    members: int
    lag_messages: int | None
    lag_records: int | None
    lag_seconds: float | None
    lag_seconds_at_least: bool = False
    read_rate: float | None
    trend: float | None
    drain_s: float | None
    progress: str | None
    partitions: tuple[GroupPartition, ...]

    @property
    def name(self) -> str:
        """The group's name, with the member's index in a broadcast group."""
        return self.group if self.index is None else f"{self.group}[{self.index}]"


@dataclass(frozen=True, kw_only=True)
class ReaderReport:
    """A reader, with the lag and the progress of its own partitions."""

    endpoint: Annotated[Endpoint, JsonPath()]
    progress: str | None
    lag_messages: int | None


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    """The status of a channel at `sampled_at`; None before the first sample.

    `problems` are its current problems, those that hold up the most first, at most 10.
    `document` is the JSON of the response.
    """

    name: Annotated[str, JsonPath("channel", "name")]
    uid: Annotated[str, JsonPath("channel", "uid")]
    phase: Annotated[str, JsonPath("channel", "phase")]
    sampled_at: datetime | None
    writers: tuple[Endpoint, ...]
    readers: tuple[ReaderReport, ...]
    groups: tuple[GroupReport, ...]
    partitions: tuple[PartitionReport, ...]
    write_rate: float | None
    ledger: LedgerReport | None = None
    problems: tuple[StatusProblem, ...] = ()
    document: Annotated[Mapping[str, Any], JsonPath()] = field(repr=False, compare=False)
    etag: Annotated[str | None, LOCAL] = field(default=None, repr=False, compare=False)

    def group(self, name: str, index: int | None = None) -> GroupReport | None:
        """Return the report of a group, or of one member of a broadcast group, or None."""
        reports = (
            report for report in self.groups if (report.group, report.index) == (name, index)
        )
        return next(reports, None)


@dataclass(frozen=True, kw_only=True)
class EndpointCounts:
    """The numbers of live, lost, failed and finished writers, or readers."""

    live: int
    lost: int
    failed: int
    finished: int


@dataclass(frozen=True, kw_only=True)
class ChannelSummary:
    """A channel's status in one line, with the lag and the progress of its worst group.

    `lag_seconds` is a lower bound if `lag_seconds_at_least`. Rates are in messages per second.
    `problems` are its current problems, those that hold up the most first, at most 10.
    """

    name: Annotated[str, JsonPath("channel", "name")]
    uid: Annotated[str, JsonPath("channel", "uid")]
    phase: Annotated[str, JsonPath("channel", "phase")]
    sampled_at: datetime | None
    writers: EndpointCounts
    readers: EndpointCounts
    lag_messages: int | None
    lag_seconds: float | None
    lag_seconds_at_least: bool = False
    progress: str | None
    write_rate: float | None
    read_rate: float | None = None
    problems: tuple[StatusProblem, ...] = ()
    document: Annotated[Mapping[str, Any], JsonPath()] = field(repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class StatusPage:
    """One page of the list of channels: from `cursor` up to `next_cursor`."""

    cursor: Annotated[str | None, LOCAL]
    lines: Annotated[tuple[ChannelSummary, ...], JsonPath("items")]
    next_cursor: str | None
    etag: Annotated[str | None, LOCAL]
