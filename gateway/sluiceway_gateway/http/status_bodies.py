"""The status of channels, as answers have it."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from sluiceway_gateway.endpoints.wire import EndpointBody, ModeWord

ProgressWord = Literal["ok", "falling_behind", "stalled", "stopped", "rewound"]
PhaseWord = Literal["provisioning", "ready", "failed", "closed", "deleting"]


class StatusChannel(BaseModel):
    """Which channel it is."""

    name: str
    uid: str
    phase: PhaseWord
    generation: int
    labels: dict[str, str]
    format: Literal["avro", "arrow", "bytes"]
    partitions: int = Field(description="Of the topic; of the spec as long as there is none")


class StatusPartition(BaseModel):
    """A partition's first offset and the one after its last."""

    partition: int
    start: int | None
    end: int | None


class StatusReader(EndpointBody):
    """A reader, and how it gets on with what is its own."""

    progress: ProgressWord | None
    lag_messages: int | None


class StatusGroupPartition(BaseModel):
    """How far a group, or one member, is in a partition."""

    partition: int
    committed: int | None = Field(description="The next offset, as it was committed")
    position: int | None = Field(
        description="The next offset to be read, as a reader says, else as it was committed"
    )
    end: int | None
    lag_messages: int | None = Field(description="How many offsets are left to be read")
    lag_seconds: float | None = Field(description="The age of the next message to be read")
    progress: ProgressWord | None


class StatusGroup(BaseModel):
    """A group of readers, or one member of a broadcast group."""

    group: str
    index: int | None = Field(description="Of the member, in broadcast groups")
    mode: ModeWord
    size: int | None
    generation: int
    dynamic: bool
    members: int = Field(description="How many of the group live")
    lag_messages: int | None
    lag_records: int | None = Field(
        description="null where a message holds many records, or the log may have gaps"
    )
    lag_seconds: float | None = Field(description="The age of the oldest message to be read")
    read_rate: float | None = Field(description="Messages a second, over the last samples")
    trend: float | None = Field(description="By how much the lag grows in a second")
    drain_s: float | None = Field(description="When nothing is left, if it goes on like this")
    progress: ProgressWord | None = Field(description="The worst of its partitions")
    partitions: list[StatusGroupPartition]


class StatusBody(BaseModel):
    """All that is known of a channel; what is not known is null."""

    sampled_at: datetime | None = Field(description="When Kafka was looked at last")
    channel: StatusChannel
    writers: list[EndpointBody]
    readers: list[StatusReader]
    groups: list[StatusGroup]
    partitions: list[StatusPartition]
    write_rate: float | None = Field(description="Messages a second, over the last samples")


class StatusCrew(BaseModel):
    """How many endpoints live, are lost, have failed, and have finished."""

    living: int
    lost: int
    failed: int
    finished: int


class StatusLine(BaseModel):
    """A channel in one line, by those of its readers that get on worst."""

    channel: StatusChannel
    sampled_at: datetime | None
    writers: StatusCrew
    readers: StatusCrew
    lag_messages: int | None
    lag_seconds: float | None
    progress: ProgressWord | None
    write_rate: float | None


class StatusList(BaseModel):
    """A page of channels, by name."""

    items: list[StatusLine]
    next_cursor: str | None = Field(description="null at the end")
