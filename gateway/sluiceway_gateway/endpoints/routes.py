"""Routes of endpoints."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.api.auth import Manager, Permission, Viewer
from sluiceway_gateway.api.deps import ChangesDep, RenderedDep, Service, SettingsDep
from sluiceway_gateway.api.json import body_of, json_response, text_of
from sluiceway_gateway.api.middleware import long_poll
from sluiceway_gateway.api.models import GroupName, Uid
from sluiceway_gateway.api.params import Conditions, Features, Name, Wait
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.channels.change import endpoints_etag
from sluiceway_gateway.channels.routes import Listener, connection_text
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.changes import of_channel
from sluiceway_gateway.core.db.engine import ChangeKind
from sluiceway_gateway.endpoints.attach_request import Attached, AttachRequest, AttachSpec
from sluiceway_gateway.endpoints.model import (
    ANONYMOUS,
    Mode,
    Role,
    SparkJob,
    State,
    offsets_of,
    reached_of,
)
from sluiceway_gateway.endpoints.service import AttachService, DetachSpec, Endpoints
from sluiceway_gateway.endpoints.wire import (
    CLIENT_LENGTH,
    TAKES,
    AttachedBody,
    AttachHeartbeat,
    AttachPost,
    DetachPost,
    EndpointBody,
    EndpointDetailsBody,
    EndpointList,
    EventBody,
    RoleWord,
    cursor_after_place,
    endpoint_json,
    place_before,
)

router = APIRouter(
    prefix="/v1/channels/{name}/endpoints", tags=["endpoints"], route_class=StrictRoute
)

AttachDep = Annotated[AttachService, Depends(Service("attach"))]
EndpointsDep = Annotated[Endpoints, Depends(Service("endpoints"))]

EndpointId = Annotated[Uid, Path(description="The endpoint's id")]


@router.post(
    "",
    summary="Attach a reader or a writer",
    response_model=AttachedBody,
    response_description="It was attached before",
    responses=problems(
        404, 409, 413, also={201: {"description": "It is attached", "model": AttachedBody}}
    ),
)
async def attach_endpoint(
    name: Name,
    body: AttachPost,
    principal: Annotated[
        Principal, Depends(Permission(Action.VIEW, channel="name", authorized_in_transaction=True))
    ],
    attach: AttachDep,
    settings: SettingsDep,
    rendered: RenderedDep,
    features: Features,
    listener: Listener = None,
    user_agent: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Attach an instance, and return its place, partitions, positions and connection.

    The previous instance in its place is fenced. A shared group that is larger than the channel
    adds partitions: 409 `channel_not_ready` until they exist. Members of a dynamic group get an
    index, and have no partitions until they sync.
    """
    settings.listeners.reached_by(listener)
    heartbeat = body.heartbeat or AttachHeartbeat()
    spec = AttachSpec(
        id=body.id,
        session=body.session,
        client=user_agent[:CLIENT_LENGTH],
        features=features,
        role=Role(body.role),
        group=body.group or ANONYMOUS,
        index=body.index,
        size=body.size,
        mode=Mode(body.mode),
        title=body.title,
        interval_ms=heartbeat.interval_ms,
        timeout_ms=heartbeat.timeout_ms,
        static_id=body.static_id,
        spark=None if body.spark is None else SparkJob(**body.spark.model_dump()),
    )
    request = AttachRequest(channel=name, channel_uid=body.uid, spec=spec, principal=principal)
    attached = await asyncio.wrap_future(attach.submit(request))
    channel = attached.channel
    connection = connection_text(settings, rendered, channel, attached.versions, listener=listener)
    # The connection is the same for all members, and inserted as text.
    return Response(
        f'{text_of(_attached_json(attached))[:-1]},"connection":{connection}}}',
        201 if attached.created else 200,
        headers={"Cache-Control": "no-store"},
        media_type="application/json",
    )


@router.get(
    "",
    summary="List a channel's endpoints",
    response_model=EndpointList,
    response_description="A page",
    responses=problems(404, also={304: {"description": "The list has not changed"}}),
)
async def list_endpoints(
    name: Name,
    request: Request,
    _viewer: Viewer,
    endpoints: EndpointsDep,
    changes: ChangesDep,
    precondition: Conditions,
    role: RoleWord | None = None,
    group: GroupName | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    wait: Wait = 0,
) -> Response:
    """List endpoints by role, group and index; `cursor` continues after a page.

    Heartbeats that change only counters do not end a wait.
    """
    after = place_before(cursor)
    _, unchanged = await long_poll(
        request,
        precondition,
        wait,
        changes=changes,
        awaited=lambda: of_channel(endpoints.state(name)[0].uid, ChangeKind.ENDPOINTS),
        read=lambda: endpoints.state(name),
        tag=lambda state: endpoints_etag(*state),
    )
    if unchanged:
        return unchanged
    wanted = role and Role(role)
    page = await run_in_threadpool(
        endpoints.page, name, role=wanted, group=group, after=after, limit=limit
    )
    following = None if page.following is None else cursor_after_place(page.following)
    items = [endpoint_json(page.channel, endpoint) for endpoint in page.endpoints]
    tag = endpoints_etag(page.channel, page.revision)
    return json_response({"items": items, "next_cursor": following}, headers={"ETag": tag})


@router.get(
    "/{id}",
    summary="Read an endpoint",
    response_model=EndpointDetailsBody,
    response_description="The endpoint",
    responses=problems(404),
)
def get_endpoint(name: Name, id: EndpointId, _viewer: Viewer, endpoints: EndpointsDep) -> Response:
    """Return an endpoint, superseded or not, with its partitions and last events."""
    details = endpoints.get(name, id)
    body = endpoint_json(details.channel, details.endpoint) | {
        "partitions": list(details.partitions),
        "events": [body_of(EventBody, event) for event in details.events],
    }
    return json_response(body)


@router.post(
    "/{id}/detach",
    summary="Detach an endpoint",
    response_model=EndpointBody,
    response_description="The detached endpoint",
    responses=problems(404, 409, 413),
)
def detach_endpoint(
    name: Name, id: EndpointId, body: DetachPost, principal: Viewer, endpoints: EndpointsDep
) -> Response:
    """Close an endpoint for good, or fail it.

    Member 0 of a group closes last: 409 `members_open` while another member is open.
    """
    spec = DetachSpec(
        epoch=body.epoch,
        state=State(body.state),
        cause=body.cause,
        ends=offsets_of(body.ends),
        counters=body.counters,
        reached=reached_of(body.positions),
        finished_through=body.finished_through,
    )
    channel, endpoint = endpoints.detach(name, id, spec, uid=body.uid, principal=principal)
    return json_response(endpoint_json(channel, endpoint))


@router.delete(
    "/{id}",
    summary="Dismiss an endpoint",
    response_model=EndpointBody,
    response_description="The dismissed endpoint",
    responses=problems(404, 409),
)
def dismiss_endpoint(
    name: Name,
    id: EndpointId,
    uid: Annotated[Uid, Query(description="Of the channel")],
    principal: Manager,
    endpoints: EndpointsDep,
) -> Response:
    """Remove an endpoint from its place, and fence it.

    For failed or lost endpoints without a successor. The records of a writer stay readable: for
    readers, it has finished at the current end of the channel.
    """
    channel, endpoint = endpoints.dismiss(name, id, uid=uid, principal=principal)
    return json_response(endpoint_json(channel, endpoint))


def _attached_json(attached: Attached) -> dict[str, Any]:
    channel = attached.channel
    return {
        "endpoint": endpoint_json(channel, attached.endpoint)
        | {"partitions": list(attached.partitions), "took_over": attached.took_over},
        "takes": list(TAKES),
        "heartbeat": attached.endpoint.heartbeat_in(channel.spec.heartbeat),
        "channel_heartbeat": channel.spec.heartbeat,
        "positions": [position.to_dict() for position in attached.positions],
        "finished_through": attached.finished_through,
        "live_writers": attached.live_writers,
    }
