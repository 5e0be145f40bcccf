"""The routes of status."""

import hashlib
import json
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.domain.etag import status_etag
from sluiceway_gateway.domain.scope import Action
from sluiceway_gateway.http.departure import while_connected
from sluiceway_gateway.http.guard import Anybody, Viewer
from sluiceway_gateway.http.parameters import (
    Conditions,
    Name,
    Wait,
    cursor_after,
    name_before,
)
from sluiceway_gateway.http.parts import Gateway, Parts
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute
from sluiceway_gateway.http.status_bodies import StatusBody, StatusList
from sluiceway_gateway.http.status_wire import line_json, status_json
from sluiceway_gateway.http.wire import time_json
from sluiceway_gateway.services.statuses import StatusPage
from sluiceway_gateway.store.statuses import Head

router = APIRouter(prefix="/v1", tags=["status"], route_class=GatewayRoute)

_SEPARATORS = (",", ":")


@router.get(
    "/channels/{name}/status",
    summary="Read how a channel stands",
    response_model=StatusBody,
    responses=problems(
        404,
        also={
            200: {"description": "The status", "model": StatusBody},
            304: {"description": "It has not changed"},
        },
    ),
)
async def get_status(
    name: Name,
    request: Request,
    _viewer: Viewer,
    gateway: Gateway,
    precondition: Conditions,
    wait: Wait = 0,
) -> Response:
    """Give who writes and reads the channel, how far each group is, and how it gets on.

    The figures are those of the last look at Kafka, at `sampled_at`; null is what is not known.
    """
    head = await run_in_threadpool(gateway.statuses.head, name)
    if wait and precondition.names(_tag(head)):
        changed = gateway.watch.status_changed(name, head.tag, timeout_s=wait)
        if await while_connected(request, changed):
            head = await run_in_threadpool(gateway.statuses.head, name)
    if precondition.names(_tag(head)):
        return Response(status_code=304, headers=_headers(_tag(head)))
    found = gateway.rendered.get(head.channel.uid, _tag(head))
    if found is not None:
        return _sent(head, found)
    return _sent(*await run_in_threadpool(_rendered, gateway, name))


@router.get(
    "/status",
    summary="List how channels stand",
    response_model=StatusList,
    responses=problems(
        also={
            200: {"description": "A page", "model": StatusList},
            304: {"description": "Nothing on it has changed"},
        },
    ),
)
async def list_status(
    request: Request,
    principal: Anybody,
    gateway: Gateway,
    precondition: Conditions,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    wait: Wait = 0,
) -> Response:
    """Give a line for each channel that the token may see; `cursor` goes on from a page."""
    after, prefixes = name_before(cursor), principal.prefixes(Action.VIEW)
    deadline_s = time.monotonic() + wait

    def look() -> StatusPage:
        return gateway.statuses.page(limit=limit, after=after, prefixes=prefixes)

    while True:
        page = await run_in_threadpool(look)
        tag = _page_tag(page)
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not precondition.names(tag):
            break
        changed = gateway.watch.anything_changed(page.overall, timeout_s=left_s)
        # What changed may be on another page, or not this token's to see.
        if not await while_connected(request, changed):
            break
    if precondition.names(tag):
        return Response(status_code=304, headers=_headers(tag))
    following = None if page.following is None else cursor_after(page.following)
    body = {"items": [line_json(each) for each in page.lines], "next_cursor": following}
    return Response(_text(body), headers=_headers(tag), media_type="application/json")


def _rendered(gateway: Parts, name: str) -> tuple[Head, bytes]:
    status = gateway.statuses.status(name)
    text = _text(status_json(status))[1:].encode()
    gateway.rendered.put(status.head.channel.uid, _tag(status.head), text)
    return status.head, text


def _sent(head: Head, rest: bytes) -> Response:
    sampled_at = None if head.sampled_at is None else time_json(head.sampled_at)
    # The moment of the last look alone makes no new state, and so is put in here.
    body = b'{"sampled_at":' + json.dumps(sampled_at).encode() + b"," + rest
    return Response(body, headers=_headers(_tag(head)), media_type="application/json")


def _tag(head: Head) -> str:
    tag = head.tag
    return status_etag(
        tag.uid,
        generation=tag.generation,
        revision=tag.revision,
        endpoints_revision=tag.endpoints_revision,
        samples_revision=tag.samples_revision,
    )


def _page_tag(page: StatusPage) -> str:
    tags = "".join(_tag(each.head) for each in page.lines) + f"/{page.following}"
    return f'"s{hashlib.sha256(tags.encode()).hexdigest()[:24]}"'


def _headers(tag: str) -> dict[str, str]:
    return {"ETag": f"W/{tag}"}


def _text(body: Any) -> str:
    return json.dumps(body, separators=_SEPARATORS)
