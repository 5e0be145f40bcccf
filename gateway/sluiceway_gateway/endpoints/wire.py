"""JSON of endpoints: request models and responses."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from sluiceway_gateway.channels.model import (
    MAX_HEARTBEAT_MS,
    MAX_HEARTBEAT_TIMEOUT_MS,
    MAX_PARTITIONS,
    MIN_HEARTBEAT_MS,
    Channel,
    Heartbeat,
)
from sluiceway_gateway.channels.wire import Connection, RequestModel, Uid
from sluiceway_gateway.endpoints.model import ANONYMOUS, MAX_GROUP_SIZE, Endpoint, Event
from sluiceway_gateway.groups.model import GROUP_LENGTH, check_group, check_static_id
from sluiceway_gateway.http.json import time_json
from sluiceway_gateway.http.params import INT64_MAX

GroupName = Annotated[
    str, AfterValidator(check_group), Field(min_length=1, max_length=GROUP_LENGTH)
]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
Counters = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Count | Annotated[float, Field(ge=0)]],
    Field(max_length=32, description="Counters by name"),
]
PartitionText = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,5})$")]
Ends = Annotated[
    dict[PartitionText, Count],
    Field(max_length=100_000, description="By partition, the offset after the last record"),
]
Title = Annotated[str, Field(min_length=1, max_length=200)]
StaticId = Annotated[str, AfterValidator(check_static_id)]
Positions = Annotated[
    dict[PartitionText, Annotated[list[Count], Field(min_length=2, max_length=2)]],
    Field(
        max_length=MAX_PARTITIONS,
        description="By partition, the next offset to read and how many of its records are done",
    ),
]
StateWord = Literal["opened", "started", "stopped", "closed", "error"]
HealthWord = Literal["healthy", "suspect", "lost"]
RoleWord = Literal["reader", "writer"]
ModeWord = Literal["shared", "broadcast"]

CLIENT_LENGTH = 200
"""Most characters of a client's name that are stored."""
TAKES = ("positions",)
"""Optional fields of heartbeats that this gateway takes."""


class AttachHeartbeat(RequestModel):
    """Times of an endpoint's own, within the channel's."""

    timeout_ms: int | None = Field(
        default=None,
        ge=3 * MIN_HEARTBEAT_MS,
        le=MAX_HEARTBEAT_TIMEOUT_MS,
        description="Silence after which it is lost, at most the channel's; null: the channel's",
    )
    interval_ms: int | None = Field(
        default=None,
        ge=MIN_HEARTBEAT_MS,
        le=MAX_HEARTBEAT_MS,
        description="At most a third of the timeout; null: a sixth of it, at most the channel's",
    )


class SparkPost(RequestModel):
    """The Spark job of an endpoint."""

    application: str | None = Field(default=None, max_length=200, description="The name")
    query: str | None = Field(
        default=None, max_length=200, description="Name of a streaming query, or its id"
    )
    ui: str | None = Field(
        default=None,
        max_length=500,
        description="Address of the application's UI, as its driver reports it: not checked",
    )


class AttachPost(RequestModel):
    """The body of `POST /v1/channels/{name}/endpoints`."""

    uid: Uid = Field(description="Of the channel")
    id: Uid = Field(description="Of this instance, made by the client")
    session: Uid = Field(description="Of the client's process, made by it; its heartbeats carry it")
    role: RoleWord
    group: GroupName | None = Field(
        default=None, description="With index and size, or with dynamic, or without"
    )
    index: int | None = Field(default=None, ge=0, lt=MAX_GROUP_SIZE)
    size: int | None = Field(default=None, ge=1, le=MAX_GROUP_SIZE)
    mode: ModeWord = Field(
        default="shared", description="Distribution of records in a group of readers"
    )
    dynamic: bool = Field(default=False, description="Of a reader: join a dynamic group")
    state: Literal["opened"] = "opened"
    title: Title | None = Field(default=None, description="A description for people")
    heartbeat: AttachHeartbeat | None = Field(default=None, description="null: the channel's")
    static_id: StaticId | None = Field(
        default=None,
        description="Of a member of a dynamic group: its name over restarts. The previous "
        "instance with it is fenced, and its index taken",
    )
    spark: SparkPost | None = Field(default=None, description="The Spark job that it belongs to")

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if self.dynamic:
            return self._check_member()
        if self.static_id is not None:
            raise ValueError("static_id is for members of dynamic groups; an index is static")
        given = [each is not None for each in (self.group, self.index, self.size)]
        if any(given) and not all(given):
            raise ValueError("group, index and size are given together, or none of them")
        if self.index is not None and self.size is not None and self.index >= self.size:
            raise ValueError(
                f"index {self.index} is outside a group of the size {self.size}: it is "
                f"0 to {self.size - 1}"
            )
        if self.mode == "broadcast" and (self.role == "writer" or self.group is None):
            raise ValueError("broadcast is for readers of a group; leave mode out")
        return self

    def _check_member(self) -> Self:
        if self.group is None or self.index is not None or self.size is not None:
            raise ValueError("a member of a dynamic group names the group, no index and no size")
        if self.role == "writer" or self.mode == "broadcast":
            raise ValueError("dynamic groups are of readers that share; leave dynamic out")
        return self


class DetachPost(RequestModel):
    """The body of `POST /v1/channels/{name}/endpoints/{id}/detach`."""

    uid: Uid = Field(description="Of the channel")
    epoch: int = Field(ge=1, le=INT64_MAX)
    state: Literal["closed", "error"]
    cause: str | None = Field(default=None, max_length=1000)
    ends: Ends | None = Field(
        default=None,
        description="Of a writer; partitions without records are left out. With `error`: {} if it "
        "wrote nothing, null if it may have written",
    )
    counters: Counters | None = None
    positions: Positions | None = Field(
        default=None, description="Of a reader: the offsets it reached"
    )


class EndpointChannel(BaseModel):
    """The channel of an endpoint."""

    name: str
    uid: str


class Counterpart(BaseModel):
    """An endpoint as its counterparts see it."""

    id: str
    role: RoleWord
    group: str | None
    index: int
    size: int | None
    state: StateWord
    health: HealthWord
    cause: str | None
    payload: dict[str, Any] | None
    ends: dict[str, int] | None
    lost_at: dict[str, int] | None = Field(description="The topic's ends when it was found lost")


class EndpointBody(Counterpart):
    """An endpoint."""

    channel: EndpointChannel
    title: str | None
    mode: ModeWord
    epoch: int
    generation: int
    superseded: bool
    heartbeat: Heartbeat = Field(description="The interval and timeout that apply to it")
    static_id: str | None
    spark: SparkPost | None
    attached_at: datetime
    changed_at: datetime
    counters: dict[str, float]


class AttachedEndpoint(EndpointBody):
    """An attached endpoint."""

    partitions: list[int]
    took_over: bool = Field(
        description="Of a writer: the previous instance in its place never finished"
    )


class PositionBody(BaseModel):
    """The next record to read: a message's offset, and how many of its records are done."""

    partition: int
    offset: int
    record: int
    metadata: str | None = Field(default=None, description="Left out if there is none")
    topic_id: str


class AttachedBody(BaseModel):
    """An attached endpoint, and what it needs to begin."""

    endpoint: AttachedEndpoint
    takes: list[str] = Field(description="Optional fields of heartbeats that this gateway takes")
    heartbeat: Heartbeat = Field(description="Of the endpoint")
    channel_heartbeat: Heartbeat
    positions: list[PositionBody]
    connection: Connection


class EventBody(BaseModel):
    """A line of an endpoint's history."""

    at: datetime
    state: StateWord | None
    health: HealthWord | None
    cause: str | None
    by: str


class EndpointDetailsBody(EndpointBody):
    """An endpoint, with its partitions and its last events, the oldest first."""

    partitions: list[int]
    events: list[EventBody]


class EndpointList(BaseModel):
    """A page of endpoints, by role, group and index."""

    items: list[EndpointBody]
    next_cursor: str | None = Field(description="null at the end")


def endpoint_json(channel: Channel, endpoint: Endpoint) -> dict[str, Any]:
    """Return an endpoint as JSON."""
    return {
        "id": endpoint.id,
        "channel": {"name": channel.name, "uid": channel.uid},
        **counterpart_json(endpoint),
        "title": endpoint.title,
        "mode": endpoint.mode,
        "epoch": endpoint.epoch,
        "generation": endpoint.generation,
        "superseded": endpoint.superseded,
        "heartbeat": vars(endpoint.heartbeat_in(channel.spec.heartbeat)),
        "static_id": endpoint.static_id,
        "spark": endpoint.spark and vars(endpoint.spark),
        "attached_at": time_json(endpoint.attached_at),
        "changed_at": time_json(endpoint.changed_at),
        "counters": endpoint.counters,
    }


def counterpart_json(endpoint: Endpoint) -> dict[str, Any]:
    """Return the fields of an endpoint that its counterparts see."""
    place = endpoint.place
    return {
        "id": endpoint.id,
        "role": place.role,
        "group": None if place.group == ANONYMOUS else place.group,
        "index": place.index,
        "size": endpoint.size,
        "state": endpoint.state,
        "health": endpoint.health,
        "cause": endpoint.cause,
        "payload": endpoint.payload,
        "ends": endpoint.ends,
        "lost_at": endpoint.lost_at,
    }


def event_json(event: Event) -> dict[str, Any]:
    """Return a line of history as JSON."""
    return {
        "at": time_json(event.at),
        "state": event.state,
        "health": event.health,
        "cause": event.cause,
        "by": event.by,
    }
