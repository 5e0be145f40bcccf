"""Endpoints, their positions and heartbeats: values, and requests to the gateway."""

import json
import uuid
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

from sluiceway.api.arguments import channel_path, group_path, whole_number
from sluiceway.api.groups import CommitProgress, Membership
from sluiceway.api.models import Connection
from sluiceway.api.parsing import LOCAL, JsonPath, Page, to_json
from sluiceway.api.transport import Transport
from sluiceway.errors import Conflict, OptionError

__all__ = [
    "UNSUBSCRIBED",
    "AttachResult",
    "Endpoint",
    "EndpointCalls",
    "EndpointEnd",
    "EndpointReport",
    "HeartbeatReply",
    "HeartbeatResult",
    "KeptEndpoint",
    "OffsetsImport",
    "PartitionImport",
    "Position",
    "PositionAdvance",
    "Refusal",
    "ReportedPositions",
    "Role",
    "SessionReport",
    "SparkJob",
    "SyncResult",
    "TaskProgress",
    "checked_payload",
    "position_json",
]

_LIMIT: Final = 200
_MAX_PAYLOAD_BYTES: Final = 4096

Role = Literal["reader", "writer"]


@dataclass(frozen=True, kw_only=True, order=True)
class Position:
    """The next record to read: message `offset`, of which `records` records were already read.

    An `arrow` message holds many records, so an offset alone would not be exact. The position
    after a whole message is `Position(offset=its offset + 1)`. Positions of one partition are
    ordered. `metadata` is a text of up to 4096 characters that is stored with a committed
    position; comparisons ignore it.
    """

    offset: int
    records: Annotated[int, JsonPath("record", required=True)] = 0
    metadata: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("offset", "records"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                number = whole_number(value)
                if number is None:
                    raise OptionError(
                        f"{name} of a position is {value!r}; it must be a whole number from 0"
                    )
                object.__setattr__(self, name, number)

    def replaces(self, stored: "Position | None") -> bool:
        """Return whether this position or its metadata differs from the stored one."""
        return self != stored or self.metadata != stored.metadata

    @classmethod
    def of(cls, position: "Position | int") -> "Position":
        """Return `position`, where an int is an offset."""
        return position if isinstance(position, Position) else cls(offset=position)


def position_json(position: Position) -> dict[str, Any]:
    """Return a position as requests have it."""
    document: dict[str, Any] = {"offset": position.offset, "record": position.records}
    return document if position.metadata is None else document | {"metadata": position.metadata}


def positions_json(positions: Mapping[int, Position]) -> list[dict[str, Any]]:
    """Return positions by partition as requests have them."""
    return [
        {"partition": partition, **position_json(position)}
        for partition, position in sorted(positions.items())
    ]


Positions: TypeAlias = Annotated[
    Mapping[int, Position], JsonPath("positions", by="partition", write=positions_json)
]


@dataclass(frozen=True, kw_only=True)
class PartitionImport:
    """What an import of offsets from Kafka does with a partition of a group.

    `result` is `imported`: the position becomes `kafka_offset`; `kept`: the group has read as far
    or further here; or `absent`: Kafka's group has no offset. `before` and `after` are the group's
    positions, None without one. `begin_offset` and `end_offset` are those of the partition.
    """

    partition: int
    result: str
    kafka_offset: int | None
    before: Position | None
    after: Position | None
    begin_offset: int
    end_offset: int

    @property
    def lag_messages(self) -> int | None:
        """The number of messages to read after the import; None without a position."""
        if self.after is None:
            return None
        return self.end_offset - max(self.begin_offset, self.after.offset)

    @property
    def expired_messages(self) -> int:
        """The number of messages that Kafka has deleted before the group has read them."""
        return 0 if self.after is None else max(0, self.begin_offset - self.after.offset)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The error of the gateway with which it refuses a request."""

    code: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class OffsetsImport:
    """An import of the committed offsets of Kafka's group `kafka_group`, or its plan.

    `refusal` tells why the gateway refuses it; None: it does not. `members` counts the group's live
    members at the gateway; `kafka_group_active` is True while it has members in Kafka.
    """

    group: str
    kafka_group: Annotated[str, JsonPath("kafka_group", "name")]
    kafka_group_active: Annotated[bool, JsonPath("kafka_group", "active")]
    topic: str
    members: int
    refusal: Refusal | None
    partitions: tuple[PartitionImport, ...]

    @property
    def changes(self) -> bool:
        """Whether the import changes a position."""
        return any(partition.result == "imported" for partition in self.partitions)


@dataclass(frozen=True, kw_only=True)
class PositionAdvance:
    """A reader's positions to commit, alone or with a batch: from `before` to `after`.

    `channel`, `uid` and `topic_id` are those of the reader's channel. `endpoint`, `epoch` and
    `generation` are those of the member that commits, and `number` counts its commits. Without
    membership, `endpoint` is None. `before` and `after` have the positions by partition.
    """

    channel: Annotated[str, LOCAL]
    uid: str
    topic_id: str | None
    group: Annotated[str, LOCAL]
    endpoint: Annotated[str | None, JsonPath("id")]
    epoch: int
    generation: int
    number: int
    before: Annotated[Mapping[int, Position | None], LOCAL]
    after: Positions


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A writer or reader of a channel, in its state last known to the gateway.

    `state` is reported by the endpoint: opened, started, stopped, closed, or error with `cause`.
    `health` is the gateway's judgement by its heartbeats: healthy, suspect or lost. `group` and
    `size` are None without a group. `title` describes the endpoint to people.

    `ends` are the end offsets of a finished writer by partition; of a failed writer, the end
    offsets of all records written in its place, or None if unknown. `lost_at` are the end offsets
    of the channel at the time the writer became lost. Endpoints that attach later have a higher
    `number`, and a writer that returns after a failure gets a new one; None if unknown.

    `settled` tells what a failed or lost writer of an exactly-once channel has left: "all": each
    key that it opened is committed by now; "none": it committed nothing; "some": it may have left
    work undone. None for others.
    """

    id: str
    role: str
    group: str | None
    index: int
    size: int | None
    state: str
    health: str
    cause: str | None = None
    payload: Mapping[str, Any] | None = None
    ends: Mapping[int, int] | None = None
    lost_at: Mapping[int, int] | None = None
    number: int | None = None
    settled: str | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    changed_at: datetime | None = None
    title: str | None = None
    patience_ms: Annotated[int | None, JsonPath("heartbeat", "timeout_ms")] = None

    @property
    def patience_s(self) -> float | None:
        """The time without a heartbeat after which it is lost; None if unknown."""
        return None if self.patience_ms is None else self.patience_ms / 1000

    @property
    def place(self) -> str:
        """The place in the group, such as `delays[2]`, else the role and the start of the id."""
        return f"{self.group}[{self.index}]" if self.group else f"{self.role} {self.id[:8]}"

    @property
    def lives(self) -> bool:
        """True while the endpoint is open and not lost."""
        return self.state in ("opened", "started", "stopped") and self.health != "lost"

    @property
    def is_accounted_for(self) -> bool:
        """True if the end offsets of a writer are known, because it closed or reported them."""
        return self.state == "closed" or (self.state == "error" and self.ends is not None)

    @property
    def wrote_nothing(self) -> bool:
        """True if the writer failed, and no instance in its place wrote a record."""
        return self.state == "error" and self.ends == {}


@dataclass(frozen=True, kw_only=True)
class AttachResult:
    """The response to an attach.

    `took_over`: the previous writer in this place did not finish. `positions` are the group's
    committed positions in the assigned partitions. An endpoint without a heartbeat for
    `heartbeat_timeout_ms` is lost; `channel_timeout_ms` is the channel's timeout, None if unknown.
    `takes` names the optional fields that heartbeats and detach requests may have.

    A reader of a group has read the writers up to the number `finished_through` to their end; None
    if unknown. `live_writers` are the ids of the channel's live writers, for a reader.
    """

    epoch: Annotated[int, JsonPath("endpoint", "epoch")]
    generation: Annotated[int, JsonPath("endpoint", "generation")]
    partitions: Annotated[tuple[int, ...], JsonPath("endpoint", "partitions")]
    heartbeat_interval_ms: Annotated[int, JsonPath("heartbeat", "interval_ms")]
    heartbeat_timeout_ms: Annotated[int, JsonPath("heartbeat", "timeout_ms")]
    positions: Positions
    connection: Connection
    took_over: Annotated[bool, JsonPath("endpoint", "took_over")] = False
    channel_timeout_ms: Annotated[int | None, JsonPath("channel_heartbeat", "timeout_ms")] = None
    takes: frozenset[str] = frozenset()
    number: Annotated[int | None, JsonPath("endpoint", "number")] = None
    finished_through: int | None = None
    live_writers: frozenset[str] = frozenset()

    @property
    def replacement_timeout_s(self) -> float:
        """The wait for the successor of a failed endpoint: the channel's timeout."""
        return (self.channel_timeout_ms or self.heartbeat_timeout_ms) / 1000


@dataclass(frozen=True, kw_only=True)
class HeartbeatResult:
    """The part of a heartbeat's response for one endpoint, or for its tasks.

    `counterparts` is None if they did not change. `partitions` is the channel's number of them,
    None if the gateway does not report it.
    """

    status: str
    reason: str | None = None
    asked: str | None = None
    revision: Annotated[int | None, JsonPath("endpoints_revision")] = None
    generation: int | None = None
    partitions: int | None = None
    counterparts: tuple[Endpoint, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class KeptEndpoint:
    """An endpoint that a session's heartbeats keep alive."""

    id: str
    channel: Annotated[str, JsonPath("channel", "name")]
    uid: Annotated[str, JsonPath("channel", "uid")]
    role: str
    epoch: int
    heartbeat_timeout_ms: int
    reported_at: str | None


@dataclass(frozen=True, kw_only=True)
class HeartbeatReply:
    """The response to a heartbeat: when to send the next one, and the result of each endpoint.

    `highest_number` is the highest number of the session's heartbeats that the gateway accepted.
    `tasks`, by endpoint, and `kept` respond to a SessionReport.
    """

    next_ms: int
    highest_number: Annotated[int, JsonPath("beat")] = 0
    results: Annotated[Mapping[str, HeartbeatResult], JsonPath("endpoints", by="id")]
    tasks: Annotated[Mapping[str, HeartbeatResult], JsonPath("tasks", by="endpoint")] = field(
        default_factory=dict
    )
    kept: tuple[KeptEndpoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    """The partitions of a dynamic group's member in generation `generation`, if they are `taken`.

    `held` are the partitions that the member holds now, and `has` is their generation (None: it
    holds none). `pending` are assigned to it, but still held by other members.
    """

    generation: int
    taken: bool
    has: int | None
    partitions: tuple[int, ...]
    pending: tuple[int, ...]
    held: tuple[int, ...]
    positions: Positions
    total: int


ReportedPositions: TypeAlias = Mapping[int, tuple[int, int]]
"""By partition the offset to read next, and how many records of that message are done."""

UNSUBSCRIBED: Final = -1
"""Sent by no endpoint: a report without this field asks for no counterparts."""


@dataclass(frozen=True, kw_only=True)
class EndpointReport:
    """The state of an endpoint in a heartbeat; without `positions`, they did not change.

    `seen` is the revision of its counterparts that it has, None for none; an UNSUBSCRIBED endpoint
    gets no counterparts.
    """

    id: str
    epoch: int
    state: str
    counters: Mapping[str, float] = field(default_factory=dict)
    payload: Mapping[str, Any] | None = None
    positions: ReportedPositions | None = None
    seen: int | None = UNSUBSCRIBED


@dataclass(frozen=True, kw_only=True)
class EndpointEnd:
    """The end of an endpoint: `state` is closed, or error with its `cause`.

    `ends` are a writer's end offsets; of a failed one, they are empty if it wrote nothing, and None
    if it may have written. `positions` and `finished_through` are those of a reader.
    """

    uid: str
    epoch: int
    state: str
    cause: str | None = None
    ends: Mapping[int, int] | None = None
    counters: Mapping[str, float] | None = None
    positions: ReportedPositions | None = None
    finished_through: int | None = None


@dataclass(frozen=True, kw_only=True)
class TaskProgress:
    """An attempt at one of the planned `parts` of an endpoint's work; None: an unknown number.

    `cause` is that of a failed attempt, for gateways that take it.
    """

    endpoint: str
    epoch: int
    task: str
    attempt: int
    state: str
    counters: Mapping[str, float]
    parts: int | None
    cause: str | None = None


@dataclass(frozen=True, kw_only=True)
class SessionReport:
    """What a heartbeat reports besides the session's own endpoints.

    With `keeps`, it counts for all endpoints that the session has attached. `renews` and `ended`
    are the instances of running and ended jobs, whose batches are renewed and aborted.
    """

    keeps: bool = False
    renews: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    tasks: tuple[TaskProgress, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SparkJob:
    """The Spark job of an endpoint, as far as it is known."""

    application: str | None = None
    query: str | None = None
    ui: str | None = None


@dataclass(frozen=True, kw_only=True)
class _CommittedPositions:
    positions: Positions


@dataclass(frozen=True, kw_only=True)
class _GroupGeneration:
    generation: int


def checked_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a payload in the form that counterparts receive. Raises OptionError."""
    try:
        text = json.dumps(dict(payload), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        raise OptionError(f"a payload must be a JSON object: {error}") from error
    if size > _MAX_PAYLOAD_BYTES:
        raise OptionError(f"the payload has {size:,} bytes; the limit is {_MAX_PAYLOAD_BYTES:,}")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


class EndpointCalls:
    """Requests to attach, to send heartbeats and to commit.

    Every request can be repeated: an endpoint instance has one id, and heartbeats and commits are
    numbered. Each call raises GatewayError and its subclasses.
    """

    def __init__(self, transport: Transport, *, listener: str | None = None) -> None:
        self.transport = transport
        self._listener = listener

    @property
    def identity(self) -> Hashable:
        """A key that is equal for calls to one gateway, as one principal, through one listener."""
        return (self.transport.identity, self._listener)

    def clone(self) -> "EndpointCalls":
        """Return a copy with its own connections."""
        return EndpointCalls(self.transport.clone(), listener=self._listener)

    def attach(
        self,
        channel: str,
        *,
        uid: str,
        instance: str,
        session: str,
        role: Role,
        membership: Membership | None,
        title: str | None = None,
        timeout_ms: int | None = None,
        interval_ms: int | None = None,
        spark: SparkJob | None = None,
    ) -> AttachResult:
        """Attach an endpoint instance to the channel; `title` describes it to people.

        `timeout_ms` and `interval_ms` are its own heartbeat times; None: the channel's.
        """
        body: dict[str, Any] = {"uid": uid, "id": instance, "session": session, "role": role}
        if membership is not None and membership.dynamic:
            body |= {"group": membership.group, "dynamic": True}
            if membership.static_id is not None:
                body["static_id"] = membership.static_id
        elif membership is not None:
            body |= {"group": membership.group, "index": membership.index, "size": membership.size}
            body |= {"mode": membership.mode} if role == "reader" else {}
        times = {"timeout_ms": timeout_ms, "interval_ms": interval_ms}
        optional = {
            "title": title,
            "heartbeat": {name: time for name, time in times.items() if time is not None},
            "spark": spark and to_json(spark),
        }
        body |= {name: value for name, value in optional.items() if value}
        params = {"listener": self._listener or None}
        path = f"{channel_path(channel)}/endpoints"
        return self.transport.fetch(AttachResult, "POST", path, params=params, body=body)

    def detach(self, channel: str, instance: str, end: EndpointEnd, *, timeout_s: float) -> None:
        """Report the end of an endpoint instance."""
        path = f"{channel_path(channel)}/endpoints/{instance}/detach"
        self.transport.request("POST", path, body=end, timeout_s=timeout_s)

    def sync(
        self,
        channel: str,
        instance: str,
        *,
        uid: str,
        epoch: int,
        take: int | None = None,
        has: int | None = None,
    ) -> SyncResult:
        """Request the partitions of a dynamic group's member, or take them.

        `take` is the generation to take, and `has` that of the member's assignment.
        """
        path = f"{channel_path(channel)}/endpoints/{instance}/sync"
        body = {"uid": uid, "epoch": epoch}
        if take is not None:
            body |= {"take": take, "has": has}
        return self.transport.fetch(SyncResult, "POST", path, body=body)

    def transfer(
        self, channel: str, group: str, *, uid: str, role: Role, owner: str, reason: str | None
    ) -> None:
        """Give a group to the tokens of a label; `*` stands for every label."""
        body = {"uid": uid, "role": role, "owner": owner, "reason": reason}
        self.transport.request("POST", f"{group_path(channel, group)}/owner", body=body)

    def resize(self, channel: str, group: str, *, uid: str, size: int) -> None:
        """Change the size of a group."""
        path = group_path(channel, group)
        current = self.transport.fetch(_GroupGeneration, "GET", f"{path}/offsets")
        body = {"uid": uid, "size": size, "generation": current.generation}
        self.transport.request("POST", f"{path}/resize", body=body)

    def remove(self, channel: str, instance: str, *, uid: str) -> None:
        """Remove an endpoint instance; it is fenced from then on."""
        path = f"{channel_path(channel)}/endpoints/{instance}"
        self.transport.request("DELETE", path, params={"uid": uid})

    def heartbeat(
        self,
        session: str,
        number: int,
        reports: Sequence[EndpointReport],
        *,
        further: Sequence[SessionReport] = (),
        timeout_s: float,
    ) -> HeartbeatReply:
        """Report the state of a session's endpoints, and `further` reports of the session."""
        endpoints = list(map(to_json, reports))
        body: dict[str, Any] = {"session": session, "beat": number, "endpoints": endpoints}
        for report in further:
            body |= to_json(report)
        path = "/v1/heartbeats"
        return self.transport.fetch(HeartbeatReply, "POST", path, body=body, timeout_s=timeout_s)

    def endpoints(
        self,
        channel: str,
        *,
        group: str | None = None,
        seen: str | None = None,
        wait_s: float = 0.0,
    ) -> tuple[tuple[Endpoint, ...] | None, str | None]:
        """Return all endpoints, or those of a group, and the ETag.

        With the ETag `seen`, wait up to `wait_s` for a change; the endpoints are None without one.
        """
        path = f"{channel_path(channel)}/endpoints"
        params = {"limit": _LIMIT, "group": group}
        first = self.transport.poll(Page[Endpoint], path, params=params, seen=seen, wait_s=wait_s)
        if first is None:
            return None, seen
        if first.next_cursor is None:
            return first.items, first.etag
        params["cursor"] = first.next_cursor
        return (*first.items, *self.transport.items(Page[Endpoint], path, params)), first.etag

    def committed(
        self, channel: str, group: str, *, index: int | None, timeout_s: float | None = None
    ) -> dict[int, Position]:
        """Return the committed positions of a group, or of one member of a broadcast group.

        They are empty for a group that does not exist.
        """
        path = f"{group_path(channel, group)}/offsets"
        params = {"index": index}
        try:
            stored = self.transport.fetch(
                _CommittedPositions, "GET", path, params=params, timeout_s=timeout_s
            )
        except Conflict as error:
            if error.code != "group_not_found":
                raise
            return {}
        return dict(stored.positions)

    def commit(self, advance: PositionAdvance) -> None:
        """Commit the positions after an advance, all or none.

        Without membership, the stored positions must be those before it.
        """
        path = f"{group_path(advance.channel, advance.group)}/offsets"
        if advance.endpoint is not None:
            self.transport.request("PUT", path, body=advance, in_job=True)
            return
        body = {
            "uid": advance.uid,
            "topic_id": advance.topic_id,
            "positions": positions_json(advance.after),
            "before": positions_json({p: at for p, at in advance.before.items() if at is not None}),
        }
        self.transport.request("POST", f"{path}/advance", body=body, in_job=True)

    def commit_progress(
        self,
        channel: str,
        group: str,
        *,
        uid: str,
        topic_id: str | None,
        ends: Mapping[int, int],
        wait_s: float,
    ) -> CommitProgress:
        """Return whether a group has committed up to `ends`; wait for it up to `wait_s`."""
        return self.transport.fetch(
            CommitProgress,
            "POST",
            f"{group_path(channel, group)}/offsets/passed",
            params={"wait": f"{wait_s:.3f}"},
            body={"uid": uid, "topic_id": topic_id, "offsets": dict(ends)},
            wait_s=wait_s,
        )

    def plan_import(
        self, channel: str, group: str, *, kafka_group: str | None, timeout_s: float | None = None
    ) -> OffsetsImport:
        """Return what an import of offsets from Kafka would do; changes nothing."""
        path = f"{group_path(channel, group)}/offsets/import"
        params = {"kafka_group": kafka_group}
        return self.transport.fetch(OffsetsImport, "GET", path, params=params, timeout_s=timeout_s)

    def import_offsets(
        self, channel: str, group: str, *, uid: str, kafka_group: str | None
    ) -> OffsetsImport:
        """Store the offsets of Kafka's group as positions of the group."""
        path = f"{group_path(channel, group)}/offsets/import"
        body = {"uid": uid, "kafka_group": kafka_group}
        return self.transport.fetch(OffsetsImport, "POST", path, body=body)

    def reset(
        self,
        channel: str,
        group: str,
        *,
        uid: str,
        topic_id: str | None,
        index: int | None,
        positions: Mapping[int, Position] | None,
        reason: str,
        force: bool,
    ) -> None:
        """Reset a group to other positions; None removes its positions.

        `index` is that of a member of a broadcast group.
        """
        self.transport.request(
            "POST",
            f"{group_path(channel, group)}/offsets/reset",
            headers={"Idempotency-Key": uuid.uuid4().hex},
            body={
                "uid": uid,
                "topic_id": topic_id,
                "index": index,
                "positions": None if positions is None else positions_json(positions),
                "reason": reason,
                "force": force,
            },
        )

    def close(self) -> None:
        """Close the connections to the gateway."""
        self.transport.close()
