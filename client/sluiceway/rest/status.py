"""Status reports of channels. An unknown value is None, never 0.

Each class has a `parse` that takes an answer's JSON; fields that this version does not know are
ignored, a missing or mistyped one raises IncompatibleGateway.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sluiceway.rest.endpoint_models import Endpoint
from sluiceway.rest.models import Answer

__all__ = [
    "CrewReport",
    "GroupPartition",
    "GroupReport",
    "PartitionReport",
    "ReaderReport",
    "StatusLine",
    "StatusPage",
    "StatusReport",
]


@dataclass(frozen=True, kw_only=True)
class PartitionReport:
    """A partition: its first offset, and the one after its last."""

    partition: int
    start: int | None
    end: int | None


@dataclass(frozen=True, kw_only=True)
class GroupPartition:
    """How far a group is in a partition.

    `position` is the next offset to be read, as a reader says, else as it was `committed`.
    `lag_seconds` is the age of the message there. `progress` is ok, falling_behind, stalled (it
    lives and does not move), stopped (nobody reads) or rewound.
    """

    partition: int
    committed: int | None
    position: int | None
    end: int | None
    lag_messages: int | None
    lag_seconds: float | None
    progress: str | None


@dataclass(frozen=True, kw_only=True)
class GroupReport:
    """How a group of readers gets on, or (`index`) one member of a broadcast group.

    Rates are messages a second over the last samples; `trend` is by how many messages the lag
    grows in a second; `drain_s` when nothing is left if it goes on like this.
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
    read_rate: float | None
    trend: float | None
    drain_s: float | None
    progress: str | None
    partitions: tuple[GroupPartition, ...]

    @property
    def name(self) -> str:
        """Its name, with the member's index in a broadcast group."""
        return self.group if self.index is None else f"{self.group}[{self.index}]"

    @classmethod
    def parse(cls, read: Answer) -> "GroupReport":
        """Read the JSON of a group."""
        return cls(
            group=read.text("group"),
            index=read.optional(read.number, "index"),
            mode=read.text("mode"),
            size=read.optional(read.number, "size"),
            generation=read.number("generation"),
            members=read.number("members"),
            lag_messages=read.optional(read.number, "lag_messages"),
            lag_records=read.optional(read.number, "lag_records"),
            lag_seconds=read.optional(read.amount, "lag_seconds"),
            read_rate=read.optional(read.amount, "read_rate"),
            trend=read.optional(read.amount, "trend"),
            drain_s=read.optional(read.amount, "drain_s"),
            progress=read.optional(read.text, "progress"),
            partitions=tuple(
                GroupPartition(
                    partition=each.number("partition"),
                    committed=each.optional(each.number, "committed"),
                    position=each.optional(each.number, "position"),
                    end=each.optional(each.number, "end"),
                    lag_messages=each.optional(each.number, "lag_messages"),
                    lag_seconds=each.optional(each.amount, "lag_seconds"),
                    progress=each.optional(each.text, "progress"),
                )
                for each in read.items("partitions")
            ),
        )


@dataclass(frozen=True, kw_only=True)
class ReaderReport:
    """A reader, and how it gets on with what is its own."""

    endpoint: Endpoint
    progress: str | None
    lag_messages: int | None


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    """All that is known of a channel, as it was at `sampled_at` (None: not looked at yet).

    `document` is the answer itself.
    """

    name: str
    uid: str
    phase: str
    sampled_at: datetime | None
    writers: tuple[Endpoint, ...]
    readers: tuple[ReaderReport, ...]
    groups: tuple[GroupReport, ...]
    partitions: tuple[PartitionReport, ...]
    write_rate: float | None
    document: Mapping[str, Any] = field(repr=False, compare=False)
    etag: str | None = field(default=None, repr=False, compare=False)

    def group(self, name: str, index: int | None = None) -> GroupReport | None:
        """Return a group's line, in a broadcast group that of one member; None without one."""
        found = (each for each in self.groups if (each.group, each.index) == (name, index))
        return next(found, None)

    @classmethod
    def parse(cls, answer: object, *, etag: str | None = None) -> "StatusReport":
        """Read the JSON of a channel's status."""
        read = Answer(answer, "status")
        return cls(
            name=read.text("channel", "name"),
            uid=read.text("channel", "uid"),
            phase=read.text("channel", "phase"),
            sampled_at=read.optional(read.time, "sampled_at"),
            writers=tuple(map(Endpoint.parse, read.items("writers"))),
            readers=tuple(
                ReaderReport(
                    endpoint=Endpoint.parse(each),
                    progress=each.optional(each.text, "progress"),
                    lag_messages=each.optional(each.number, "lag_messages"),
                )
                for each in read.items("readers")
            ),
            groups=tuple(map(GroupReport.parse, read.items("groups"))),
            partitions=tuple(
                PartitionReport(
                    partition=each.number("partition"),
                    start=each.optional(each.number, "start"),
                    end=each.optional(each.number, "end"),
                )
                for each in read.items("partitions")
            ),
            write_rate=read.optional(read.amount, "write_rate"),
            document=read.mapping(),
            etag=etag,
        )


@dataclass(frozen=True, kw_only=True)
class CrewReport:
    """How many writers, or readers, live, are lost, have failed, and have finished."""

    living: int
    lost: int
    failed: int
    finished: int


@dataclass(frozen=True, kw_only=True)
class StatusLine:
    """A channel in one line, by those of its readers that get on worst."""

    name: str
    uid: str
    phase: str
    sampled_at: datetime | None
    writers: CrewReport
    readers: CrewReport
    lag_messages: int | None
    lag_seconds: float | None
    progress: str | None
    write_rate: float | None
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, read: Answer) -> "StatusLine":
        """Read the JSON of a line."""

        def crew(role: str) -> CrewReport:
            found = read.at(role)
            return CrewReport(
                living=found.number("living"),
                lost=found.number("lost"),
                failed=found.number("failed"),
                finished=found.number("finished"),
            )

        return cls(
            name=read.text("channel", "name"),
            uid=read.text("channel", "uid"),
            phase=read.text("channel", "phase"),
            sampled_at=read.optional(read.time, "sampled_at"),
            writers=crew("writers"),
            readers=crew("readers"),
            lag_messages=read.optional(read.number, "lag_messages"),
            lag_seconds=read.optional(read.amount, "lag_seconds"),
            progress=read.optional(read.text, "progress"),
            write_rate=read.optional(read.amount, "write_rate"),
            document=read.mapping(),
        )


@dataclass(frozen=True, kw_only=True)
class StatusPage:
    """A part of the list of all channels, by name: from `cursor` to that of the `following`."""

    cursor: str | None
    lines: tuple[StatusLine, ...]
    following: str | None
    etag: str | None

    @classmethod
    def parse(cls, answer: object, *, cursor: str | None, etag: str | None) -> "StatusPage":
        """Read the JSON of a page."""
        read = Answer(answer, "status")
        return cls(
            cursor=cursor,
            lines=tuple(map(StatusLine.parse, read.items("items"))),
            following=read.optional(read.text, "next_cursor"),
            etag=etag,
        )
