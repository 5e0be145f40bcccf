"""Routes of endpoints."""

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.channels.connection import Listener, connection_text
from sluiceway_gateway.channels.etag import endpoints_etag
from sluiceway_gateway.channels.wire import Uid
from sluiceway_gateway.endpoints.attach_batch import AttachRequest
from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode, Role, State
from sluiceway_gateway.endpoints.placement import Attached, AttachSpec
from sluiceway_gateway.endpoints.service import Departure
from sluiceway_gateway.endpoints.store import EndpointFilter
from sluiceway_gateway.endpoints.wire import (
    CLIENT_LENGTH,
    TAKES,
    AttachedBody,
    AttachPost,
    DetachPost,
    EndpointBody,
    EndpointList,
    EndpointReport,
    GroupName,
    RoleWord,
    endpoint_json,
    ends_of,
    event_json,
    places_of,
    position_json,
)
from sluiceway_gateway.http.auth import Manager, Viewer
from sluiceway_gateway.http.deps import Gateway, Services
from sluiceway_gateway.http.middleware import unless_disconnected
from sluiceway_gateway.http.params import Conditions, Name, Wait, cursor_after_place, place_before
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute

router = APIRouter(
    prefix="/v1/channels/{name}/endpoints", tags=["endpoints"], route_class=GatewayRoute
)

EndpointId = Annotated[Uid, Path(description="The endpoint's id")]


def _when(text: str) -> dict[str, Any]:
    return {"description": text, "model": AttachedBody}


@router.post(
    "",
    summary="Attach a reader or a writer",
    response_model=AttachedBody,
    responses=problems(
        404,
        409,
        413,
        also={200: _when("It was attached before"), 201: _when("It is attached")},
    ),
)
async def attach(
    name: Name,
    body: AttachPost,
    principal: Viewer,
    gateway: Gateway,
    listener: Listener = None,
    user_agent: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Give an instance its place in the channel, and all that it needs to begin.

    Who had the place is fenced. A shared group that is larger than the channel grows it: 409
    `channel_not_ready` until the partitions are there. Members of a dynamic group are numbered, and
    have no partitions until they sync.
    """
    gateway.settings.listeners.reached_by(listener)
    asked = asked_of(body, client=user_agent[:CLIENT_LENGTH])
    coming = AttachRequest(channel=name, uid=body.uid, asked=asked, by=principal)
    done = await asyncio.wrap_future(gateway.attachment.attach_soon(coming))
    return attached(gateway, done, listener=listener)


@router.get(
    "",
    summary="List a channel's endpoints",
    response_model=EndpointList,
    responses=problems(
        404,
        also={
            200: {"description": "A page", "model": EndpointList},
            304: {"description": "None of them has changed"},
        },
    ),
)
async def list_endpoints(
    name: Name,
    request: Request,
    _viewer: Viewer,
    gateway: Gateway,
    precondition: Conditions,
    role: RoleWord | None = None,
    group: GroupName | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    wait: Wait = 0,
) -> Response:
    """Give who has the channel's places, by role, group and index; `cursor` goes on from a page.

    Beats alone change nothing here that ends a wait.
    """
    after = place_before(cursor)
    service = gateway.endpoints
    channel, revision = await run_in_threadpool(service.state, name)
    if wait and precondition.names(endpoints_etag(channel, revision)):
        changed = gateway.watch.endpoints_changed(channel, revision, timeout_s=wait)
        if await unless_disconnected(request, changed):
            channel, revision = await run_in_threadpool(service.state, name)
    tag = {"ETag": endpoints_etag(channel, revision)}
    if precondition.names(tag["ETag"]):
        return Response(status_code=304, headers=tag)
    slots = EndpointFilter(role=None if role is None else Role(role), group=group)
    page = await run_in_threadpool(service.page, name, slots, after=after, limit=limit)
    following = None if page.following is None else cursor_after_place(page.following)
    items = [endpoint_json(page.channel, each) for each in page.endpoints]
    answer = _sent({"items": items, "next_cursor": following}, 200)
    answer.headers["ETag"] = endpoints_etag(page.channel, page.revision)
    return answer


@router.get(
    "/{id}",
    summary="Read an endpoint",
    response_model=EndpointReport,
    responses=problems(404, also={200: {"description": "It", "model": EndpointReport}}),
)
def get_endpoint(name: Name, id: EndpointId, _viewer: Viewer, gateway: Gateway) -> Response:  # noqa: A002
    """Give an endpoint with its partitions and its last events, superseded or not."""
    report = gateway.endpoints.get(name, id)
    body = endpoint_json(report.channel, report.endpoint) | {
        "partitions": list(report.partitions),
        "events": [event_json(each) for each in report.events],
    }
    return _sent(body, 200)


@router.post(
    "/{id}/detach",
    summary="Detach an endpoint",
    response_model=EndpointBody,
    responses=problems(
        404, 409, 413, also={200: {"description": "It is detached", "model": EndpointBody}}
    ),
)
def detach(
    name: Name,
    id: EndpointId,  # noqa: A002
    body: DetachPost,
    principal: Viewer,
    gateway: Gateway,
) -> Response:
    """Have an endpoint be closed for good, or failed.

    The first of a group closes last: 409 `members_open` as long as another is open.
    """
    departure = Departure(
        epoch=body.epoch,
        state=State(body.state),
        cause=body.cause,
        ends=ends_of(body.ends),
        counters=body.counters,
        reached=places_of(body.positions),
    )
    channel, endpoint = gateway.endpoints.detach(
        name, id, departure, uid=body.uid, principal=principal
    )
    return _sent(endpoint_json(channel, endpoint), 200)


@router.delete(
    "/{id}",
    summary="Take an endpoint's place away",
    response_model=EndpointBody,
    responses=problems(404, 409, also={200: {"description": "It is gone", "model": EndpointBody}}),
)
def remove_endpoint(
    name: Name,
    id: EndpointId,  # noqa: A002
    uid: Annotated[Uid, Query(description="Of the channel")],
    principal: Manager,
    gateway: Gateway,
) -> Response:
    """Have an endpoint count no more; whatever it asks from now on is refused as fenced.

    For those that failed, or were lost, and that nobody will take the place of. What a writer wrote
    stays readable: readers take it for one that finished, with all that is in the channel now.
    """
    channel, endpoint = gateway.endpoints.remove(name, id, uid=uid, principal=principal)
    return _sent(endpoint_json(channel, endpoint), 200)


def asked_of(body: AttachPost, *, client: str) -> AttachSpec:
    """Return what a request asks for."""
    return AttachSpec(
        id=body.id,
        session=body.session,
        client=client,
        role=Role(body.role),
        group=body.group or ANONYMOUS,
        index=body.index,
        size=body.size,
        mode=Mode(body.mode),
        title=body.title,
    )


def attached(gateway: Services, done: Attached, *, listener: str | None) -> Response:
    """Return the answer to whoever is attached; it may hold credentials."""
    connection = connection_text(gateway, done.channel, done.versions, listener=listener)
    # What all members are told alike is put in as it is.
    text = f'{_text(_attached_json(done))[:-1]},"connection":{connection}}}'
    return Response(
        text,
        201 if done.created else 200,
        headers={"Cache-Control": "no-store"},
        media_type="application/json",
    )


def _attached_json(attached: Attached) -> dict[str, Any]:
    channel = attached.channel
    return {
        "endpoint": endpoint_json(channel, attached.endpoint)
        | {"partitions": list(attached.partitions), "took_over": attached.took_over},
        "takes": list(TAKES),
        "heartbeat": {
            "interval_ms": channel.spec.heartbeat.interval_ms,
            "timeout_ms": channel.spec.heartbeat.timeout_ms,
        },
        "positions": [position_json(each) for each in attached.positions],
    }


def _text(body: Any) -> str:
    return json.dumps(body, separators=(",", ":"))


def _sent(body: Any, status: int) -> Response:
    return Response(_text(body), status, media_type="application/json")
