"""The heartbeat route."""

import json
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Response
from pydantic import AfterValidator, BaseModel, Field

from sluiceway_gateway.auth.service import Asker
from sluiceway_gateway.channels.wire import Asked, Uid, time_json
from sluiceway_gateway.endpoints.heartbeats import BeatAnswer, Beats, Reply, Report
from sluiceway_gateway.endpoints.model import ANONYMOUS, Attempt, State, TaskState
from sluiceway_gateway.endpoints.task_store import Kept
from sluiceway_gateway.endpoints.tasks import TaskReply, TaskReport
from sluiceway_gateway.endpoints.wire import (
    CLIENT_LENGTH,
    Count,
    Counters,
    HealthWord,
    Places,
    RoleWord,
    StateWord,
    places_of,
    standing_json,
)
from sluiceway_gateway.http.auth import Anybody
from sluiceway_gateway.http.deps import Gateway
from sluiceway_gateway.http.params import INT64_MAX
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute

MAX_TASKS = 1000


class TaskBeat(Asked):
    """How an attempt at a part of an endpoint's work stands."""

    endpoint: Uid
    epoch: int | None = Field(
        default=None, ge=1, le=INT64_MAX, description="Of the endpoint; another one is fenced"
    )
    task: Annotated[str, Field(min_length=1, max_length=64)]
    attempt: int = Field(ge=0, le=INT64_MAX, description="A later one has a higher number")
    state: Literal["running", "done", "failed"]
    counters: Counters = Field(default_factory=dict)
    positions: (
        Annotated[
            dict[
                Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,5})$")],
                Annotated[list[Count], Field(min_length=2, max_length=2)],
            ],
            Field(max_length=10_000),
        ]
        | None
    ) = Field(
        default=None,
        description="By partition, the next offset to read and how many of its records are done",
    )
    parts: int | None = Field(
        default=None,
        ge=1,
        le=INT64_MAX,
        description="Of how many tasks it is one; a reader of which so many are done is closed",
    )


def _each_task_once(tasks: list[TaskBeat]) -> list[TaskBeat]:
    if len({(each.endpoint, each.task, each.attempt) for each in tasks}) != len(tasks):
        raise ValueError("an attempt at a task is in a beat once")
    return tasks


Tasks = Annotated[
    list[TaskBeat],
    Field(max_length=MAX_TASKS, description="Parts of the work of endpoints, of any session"),
    AfterValidator(_each_task_once),
]


class TaskStatus(BaseModel):
    """What tasks are told of their endpoint; unless it is `ok`, it wants no more reports."""

    endpoint: str
    status: Literal["ok", "closed", "fenced", "gone", "refused"]
    reason: str | None


class KeptChannel(BaseModel):
    """Which channel it is."""

    name: str
    uid: str


class KeptEndpoint(BaseModel):
    """An endpoint at work that its session keeps alive."""

    id: str
    channel: KeptChannel
    role: RoleWord
    group: str | None
    epoch: int
    state: StateWord
    health: HealthWord
    heartbeat_timeout_ms: int
    reported_at: datetime | None = Field(description="When a task of it was last heard of")


def report_of(task: TaskBeat) -> TaskReport:
    """Return the report as it was sent."""
    positions = task.positions
    return TaskReport(
        attempt=Attempt(
            endpoint=task.endpoint,
            task=task.task,
            number=task.attempt,
            state=TaskState(task.state),
            counters=task.counters,
            reached=None
            if positions is None
            else {int(p): (offset, records) for p, (offset, records) in positions.items()},
        ),
        parts=task.parts,
        epoch=task.epoch,
    )


def status_json(reply: TaskReply) -> dict[str, Any]:
    """Return what tasks are told, as it is sent."""
    return {"endpoint": reply.endpoint, "status": reply.status, "reason": reply.reason}


def kept_json(kept: Kept) -> dict[str, Any]:
    """Return an endpoint as its session is told of it."""
    endpoint = kept.endpoint
    group = endpoint.place.group
    return {
        "id": endpoint.id,
        "channel": {"name": kept.channel, "uid": endpoint.channel_uid},
        "role": str(endpoint.place.role),
        "group": None if group == ANONYMOUS else group,
        "epoch": endpoint.epoch,
        "state": str(endpoint.state),
        "health": str(endpoint.health),
        "heartbeat_timeout_ms": kept.timeout_ms,
        "reported_at": kept.reported_at and time_json(kept.reported_at),
    }


router = APIRouter(prefix="/v1", tags=["endpoints"], route_class=GatewayRoute)

MAX_PAYLOAD_BYTES = 4096
MAX_ENDPOINTS = 1000


def _small(payload: dict[str, Any]) -> dict[str, Any]:
    size = len(json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode())
    if size > MAX_PAYLOAD_BYTES:
        raise ValueError(
            f"a payload has at most {MAX_PAYLOAD_BYTES} bytes as JSON, this one has {size}"
        )
    return payload


class EndpointBeat(Asked):
    """How an endpoint stands."""

    id: Uid
    epoch: int = Field(ge=1, le=INT64_MAX)
    state: StateWord
    counters: Counters = Field(default_factory=dict)
    payload: Annotated[dict[str, Any], AfterValidator(_small)] | None = Field(
        default=None, description="At most 4096 bytes of JSON, for the counterparts"
    )
    positions: Places | None = Field(
        default=None, description="How far it has come, committed or not; null: as before"
    )
    seen: int | None = Field(
        default=None,
        ge=0,
        le=INT64_MAX,
        description="The revision at which it has seen its counterparts; null for never. Left "
        "out, it does not want to",
    )


def _each_once(beats: list[EndpointBeat]) -> list[EndpointBeat]:
    if len({each.id for each in beats}) != len(beats):
        raise ValueError("an endpoint is in a beat once")
    return beats


class HeartbeatPost(Asked):
    """The body of `POST /v1/heartbeats`."""

    session: Uid
    beat: int = Field(ge=1, le=INT64_MAX, description="Counts up; an old one changes nothing")
    endpoints: Annotated[
        list[EndpointBeat], Field(max_length=MAX_ENDPOINTS), AfterValidator(_each_once)
    ]
    tasks: Tasks = Field(default_factory=list)
    keeps: bool = Field(
        default=False,
        description="It beats for all endpoints that this session attached, named or not, and the "
        "answer's `kept` tells of those that are at work",
    )


class Counterpart(BaseModel):
    """An endpoint on the other side of the channel."""

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
    lost_at: dict[str, int] | None


class EndpointReply(BaseModel):
    """What an endpoint is told."""

    id: str
    status: Literal["ok", "fenced", "gone", "refused"]
    reason: str | None
    health: HealthWord | None
    asked: Literal["finish"] | None = Field(
        description="finish: the channel closes, or is deleted; writers should come to their end, "
        "and no other comes"
    )
    endpoints_revision: int | None
    generation: int | None = Field(description="Of its group; members of dynamic ones then sync")
    counterparts: list[Counterpart] | None = Field(description="null if nothing is new")


class HeartbeatAnswer(BaseModel):
    """What a session is told."""

    next_ms: int
    beat: int = Field(description="The newest beat that counted; the next one has to be higher")
    endpoints: list[EndpointReply]
    tasks: list[TaskStatus] | None = Field(
        default=None, description="One for each endpoint that has some in the beat"
    )
    kept: list[KeptEndpoint] | None = Field(default=None, description="If the beat `keeps`")


@router.post(
    "/heartbeats",
    summary="Say how a session's endpoints stand",
    response_model=HeartbeatAnswer,
    responses=problems(413, also={200: {"description": "Heard", "model": HeartbeatAnswer}}),
)
def beat(
    body: HeartbeatPost,
    principal: Anybody,
    gateway: Gateway,
    user_agent: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Take how all endpoints of a client's process stand, and say how their counterparts do.

    One endpoint's trouble is told in its reply, and keeps nothing from the others.
    """
    return heard(gateway.beats, body, by=principal, client=user_agent[:CLIENT_LENGTH])


def heard(beats: Beats, body: HeartbeatPost, *, by: Asker, client: str) -> Response:
    """Take a beat and answer it."""
    reports = [
        Report(
            id=each.id,
            epoch=each.epoch,
            state=State(each.state),
            counters=each.counters,
            payload=each.payload,
            listens="seen" in each.model_fields_set,
            seen=each.seen,
            reached=places_of(each.positions),
        )
        for each in body.endpoints
    ]
    answer = beats.beat(
        body.session,
        body.beat,
        reports,
        by=by,
        tasks=[report_of(each) for each in body.tasks],
        keeps=body.keeps,
        client=client,
    )
    told = _answer_json(answer)
    if body.tasks:
        told["tasks"] = [status_json(each) for each in answer.tasks]
    if body.keeps:
        told["kept"] = [kept_json(each) for each in answer.kept]
    return Response(json.dumps(told, separators=(",", ":")), media_type="application/json")


def _answer_json(answer: BeatAnswer) -> dict[str, Any]:
    sides = {side: [standing_json(each) for each in found] for side, found in answer.sides.items()}

    def told(reply: Reply) -> dict[str, Any]:
        return {
            "id": reply.id,
            "status": reply.status,
            "reason": reply.reason,
            "health": reply.health and str(reply.health),
            "asked": reply.asked,
            "endpoints_revision": reply.revision,
            "generation": reply.generation,
            "counterparts": reply.counterparts and sides[reply.counterparts],
        }

    return {
        "next_ms": answer.next_ms,
        "beat": answer.beat,
        "endpoints": [told(each) for each in answer.replies],
    }
