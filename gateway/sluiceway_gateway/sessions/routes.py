"""The heartbeat route and its JSON."""

from datetime import datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.api.auth import Permission
from sluiceway_gateway.api.json import body_of, json_response
from sluiceway_gateway.api.models import Number, RequestModel, Uid, each_once
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute, body_of_model, read_model
from sluiceway_gateway.core.auth.model import Principal
from sluiceway_gateway.endpoints.heartbeats import (
    EndpointReport,
    HeartbeatResult,
    HeartbeatService,
    TaskReply,
    TaskReport,
)
from sluiceway_gateway.endpoints.session_store import EndpointContext
from sluiceway_gateway.endpoints.wire import (
    CLIENT_LENGTH,
    Counterpart,
    EndpointChannel,
    HealthWord,
    RoleWord,
    StateWord,
    counterpart_json,
)
from sluiceway_gateway.ledger.batches import BatchText
from sluiceway_gateway.ledger.model import LEASE
from sluiceway_gateway.ledger.service import Ledgers

MAX_ENDPOINTS = 1000
MAX_TASKS = 1000
_RENEWAL_MS = LEASE // timedelta(milliseconds=3)

router = APIRouter(prefix="/v1", tags=["endpoints"], route_class=StrictRoute)


class HeartbeatPost(RequestModel):
    """The body of `POST /v1/heartbeats`."""

    session: Uid
    beat: Number = Field(description="Ascending; an old number changes nothing")
    endpoints: Annotated[
        list[EndpointReport],
        Field(max_length=MAX_ENDPOINTS),
        each_once(attrgetter("id"), "an endpoint is in a beat once"),
    ]
    tasks: Annotated[
        list[TaskReport],
        Field(max_length=MAX_TASKS, description="Tasks of endpoints of any session"),
        each_once(
            attrgetter("endpoint", "task", "attempt"), "an attempt at a task is in a beat once"
        ),
    ] = Field(default_factory=list)
    keeps: bool = Field(
        default=False,
        description="The heartbeat counts for all endpoints that this session attached, and the "
        "response's `kept` lists the open ones",
    )
    renews: list[BatchText] = Field(
        default_factory=list,
        max_length=MAX_ENDPOINTS,
        description="Instances of batches, the running jobs of this process: their open batches "
        "are renewed",
    )
    ended: list[BatchText] = Field(
        default_factory=list,
        max_length=MAX_ENDPOINTS,
        description="Instances of batches, the ended jobs of this process: their open batches are "
        "aborted",
    )


class EndpointReplyBody(BaseModel):
    """The response to an endpoint's report."""

    id: str
    status: Literal["ok", "fenced", "gone", "refused"]
    reason: str | None
    health: HealthWord | None
    asked: Literal["finish"] | None = Field(
        description="finish: the channel is closing or being deleted; writers should finish, and "
        "no new ones attach"
    )
    endpoints_revision: int | None
    generation: int | None = Field(description="Of its group; members of dynamic groups then sync")
    partitions: int | None = Field(
        description="Number of partitions of the channel: added ones are to be read and written too"
    )
    counterparts: list[Counterpart] | None = Field(description="null if unchanged")


class KeptEndpoint(BaseModel):
    """An open endpoint that its session keeps alive."""

    id: str
    channel: EndpointChannel
    role: RoleWord
    group: str | None
    epoch: int
    state: StateWord
    health: HealthWord
    heartbeat_timeout_ms: int
    reported_at: datetime | None = Field(description="The time of its tasks' last report")


class HeartbeatResponse(BaseModel):
    """The response to a heartbeat."""

    next_ms: int
    beat: int = Field(description="The newest number that counted; the next one has to be higher")
    endpoints: list[EndpointReplyBody]
    tasks: list[TaskReply] | None = Field(
        default=None, description="One for each endpoint with task reports"
    )
    kept: list[KeptEndpoint] | None = Field(default=None, description="With `keeps`")


@router.post(
    "/heartbeats",
    summary="Report the state of a session's endpoints",
    response_model=HeartbeatResponse,
    response_description="The replies",
    responses=problems(413),
    openapi_extra=body_of_model(HeartbeatPost),
)
async def send_heartbeat(
    request: Request,
    principal: Annotated[Principal, Depends(Permission(authorized_in_transaction=True))],
) -> Response:
    """Save the reports of all endpoints of a client's process, and return their counterparts.

    An error of one endpoint is in its reply, and does not affect the others.
    """
    body, services = await read_model(request, HeartbeatPost), request.app.state.parts
    client = request.headers.get("user-agent", "")[:CLIENT_LENGTH]
    return await run_in_threadpool(
        _reply, services.heartbeats, services.ledgers, body, principal, client
    )


def _reply(
    heartbeats: HeartbeatService,
    ledgers: Ledgers,
    body: HeartbeatPost,
    principal: Principal,
    client: str,
) -> Response:
    result = heartbeats.beat(
        body.session,
        body.beat,
        body.endpoints,
        principal=principal,
        tasks=body.tasks,
        keeps=body.keeps,
        client=client,
    )
    # In separate transactions, because they lock ledgers.
    if body.ended:
        ledgers.abort_ended(body.ended, principal)
    if body.renews:
        ledgers.renew_running(body.renews, principal)
    response = _result_json(result)
    if body.tasks:
        response["tasks"] = result.tasks
    if body.keeps:
        # Jobs may have opened batches that the process does not know yet.
        response["next_ms"] = min(response["next_ms"], _RENEWAL_MS)
        response["kept"] = [_kept_json(context) for context in result.kept]
    return json_response(response)


def _result_json(result: HeartbeatResult) -> dict[str, Any]:
    sides = {
        side: [counterpart_json(endpoint) for endpoint in endpoints]
        for side, endpoints in result.sides.items()
    }
    return {
        "next_ms": result.next_ms,
        "beat": result.beat,
        "endpoints": [
            {**vars(reply), "counterparts": reply.counterparts and sides[reply.counterparts]}
            for reply in result.replies
        ],
    }


def _kept_json(kept: EndpointContext) -> dict[str, Any]:
    endpoint = kept.endpoint
    return body_of(
        KeptEndpoint,
        endpoint,
        channel={"name": kept.channel, "uid": endpoint.channel_uid},
        role=endpoint.place.role,
        group=endpoint.place.group or None,
        heartbeat_timeout_ms=kept.timeout_ms,
        reported_at=kept.reported_at,
    )
