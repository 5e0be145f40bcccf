"""The heartbeat route."""

import json
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Response
from pydantic import AfterValidator, BaseModel, Field

from sluiceway_gateway.auth.service import Asker
from sluiceway_gateway.channels.wire import Asked, Uid, time_json
from sluiceway_gateway.endpoints.heartbeats import (
    EndpointReply,
    EndpointReport,
    HeartbeatResult,
    HeartbeatService,
    TaskReply,
    TaskReport,
)
from sluiceway_gateway.endpoints.model import ANONYMOUS, Attempt, State, TaskState
from sluiceway_gateway.endpoints.session_store import EndpointContext
from sluiceway_gateway.endpoints.wire import (
    CLIENT_LENGTH,
    Counters,
    EndpointChannel,
    HealthWord,
    Positions,
    RoleWord,
    StateWord,
    positions_of,
    standing_json,
)
from sluiceway_gateway.http.auth import Anybody
from sluiceway_gateway.http.deps import Gateway
from sluiceway_gateway.http.params import INT64_MAX
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute

MAX_TASKS = 1000


class TaskReportBody(Asked):
    """How an attempt at a part of an endpoint's work stands."""

    endpoint: Uid
    epoch: int | None = Field(
        default=None, ge=1, le=INT64_MAX, description="Of the endpoint; another one is fenced"
    )
    task: Annotated[str, Field(min_length=1, max_length=64)]
    attempt: int = Field(ge=0, le=INT64_MAX, description="A later one has a higher number")
    state: Literal["running", "done", "failed"]
    counters: Counters = Field(default_factory=dict)
    positions: Positions | None = None
    parts: int | None = Field(
        default=None,
        ge=1,
        le=INT64_MAX,
        description="Of how many tasks it is one; a reader of which so many are done is closed",
    )


def _each_task_once(tasks: list[TaskReportBody]) -> list[TaskReportBody]:
    if len({(each.endpoint, each.task, each.attempt) for each in tasks}) != len(tasks):
        raise ValueError("an attempt at a task is in a beat once")
    return tasks


Tasks = Annotated[
    list[TaskReportBody],
    Field(max_length=MAX_TASKS, description="Parts of the work of endpoints, of any session"),
    AfterValidator(_each_task_once),
]


class KeptEndpoint(BaseModel):
    """An endpoint at work that its session keeps alive."""

    id: str
    channel: EndpointChannel
    role: RoleWord
    group: str | None
    epoch: int
    state: StateWord
    health: HealthWord
    heartbeat_timeout_ms: int
    reported_at: datetime | None = Field(description="When a task of it was last heard of")


def report_of(task: TaskReportBody) -> TaskReport:
    """Return the report as it was sent."""
    return TaskReport(
        attempt=Attempt(
            endpoint=task.endpoint,
            task=task.task,
            number=task.attempt,
            state=TaskState(task.state),
            counters=task.counters,
            reached=positions_of(task.positions),
        ),
        parts=task.parts,
        epoch=task.epoch,
    )


def kept_json(kept: EndpointContext) -> dict[str, Any]:
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


class EndpointReportBody(Asked):
    """How an endpoint stands."""

    id: Uid
    epoch: int = Field(ge=1, le=INT64_MAX)
    state: StateWord
    counters: Counters = Field(default_factory=dict)
    payload: Annotated[dict[str, Any], AfterValidator(_small)] | None = Field(
        default=None, description="At most 4096 bytes of JSON, for the counterparts"
    )
    positions: Positions | None = Field(
        default=None, description="How far it has come, committed or not; null: as before"
    )
    seen: int | None = Field(
        default=None,
        ge=0,
        le=INT64_MAX,
        description="The revision at which it has seen its counterparts; null for never. Left "
        "out, it does not want to",
    )


def _each_once(beats: list[EndpointReportBody]) -> list[EndpointReportBody]:
    if len({each.id for each in beats}) != len(beats):
        raise ValueError("an endpoint is in a beat once")
    return beats


class HeartbeatPost(Asked):
    """The body of `POST /v1/heartbeats`."""

    session: Uid
    beat: int = Field(ge=1, le=INT64_MAX, description="Counts up; an old one changes nothing")
    endpoints: Annotated[
        list[EndpointReportBody], Field(max_length=MAX_ENDPOINTS), AfterValidator(_each_once)
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


class EndpointReplyBody(BaseModel):
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
    endpoints: list[EndpointReplyBody]
    tasks: list[TaskReply] | None = Field(
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


def heard(beats: HeartbeatService, body: HeartbeatPost, *, by: Asker, client: str) -> Response:
    """Take a beat and answer it."""
    reports = [
        EndpointReport(
            id=each.id,
            epoch=each.epoch,
            state=State(each.state),
            counters=each.counters,
            payload=each.payload,
            listens="seen" in each.model_fields_set,
            seen=each.seen,
            reached=positions_of(each.positions),
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
        told["tasks"] = [asdict(each) for each in answer.tasks]
    if body.keeps:
        told["kept"] = [kept_json(each) for each in answer.kept]
    return Response(json.dumps(told, separators=(",", ":")), media_type="application/json")


def _answer_json(answer: HeartbeatResult) -> dict[str, Any]:
    sides = {side: [standing_json(each) for each in found] for side, found in answer.sides.items()}

    def told(reply: EndpointReply) -> dict[str, Any]:
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
