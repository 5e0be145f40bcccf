"""Routes of status: reads, long polls, and server-sent events."""

import gzip
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import BaseModel, Field
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sluiceway_gateway.api.auth import Anybody, Permission, Viewer
from sluiceway_gateway.api.deps import ChangesDep, RenderedDep, Service
from sluiceway_gateway.api.json import JsonCache, json_response, time_json
from sluiceway_gateway.api.middleware import long_poll
from sluiceway_gateway.api.params import Conditions, Name, Wait, cursor_after, name_before
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.changes import Changes, of_status
from sluiceway_gateway.status.deps import StatusesDep
from sluiceway_gateway.status.event_feed import StatusFeed
from sluiceway_gateway.status.service import Statuses
from sluiceway_gateway.status.store import StatusVersion
from sluiceway_gateway.status.wire import (
    StatusBody,
    StatusList,
    status_body,
    status_rest,
    summary_json,
)

router = APIRouter(prefix="/v1", tags=["status"], route_class=StrictRoute)

FeedDep = Annotated[StatusFeed, Depends(Service("feed"))]
FragmentsDep = Annotated[JsonCache, Depends(Service("fragments"))]


class HeartbeatsBody(BaseModel):
    """The last heartbeats of a channel's endpoints."""

    heartbeats: dict[str, datetime] = Field(
        description="By the endpoint's id; those that have sent none are left out"
    )


_LEVEL = 4
"""The level of gzip: a higher one takes longer, and saves little."""


@router.get(
    "/channels/{name}/status",
    summary="Read the status of a channel",
    response_model=StatusBody,
    response_description="The status",
    responses=problems(404, also={304: {"description": "It has not changed"}}),
)
async def get_channel_status(
    name: Name,
    request: Request,
    viewer: Annotated[
        Principal, Depends(Permission(Action.VIEW, channel="name", authorized_in_transaction=True))
    ],
    statuses: StatusesDep,
    changes: ChangesDep,
    rendered: RenderedDep,
    fragments: FragmentsDep,
    precondition: Conditions,
    wait: Wait = 0,
) -> Response:
    """Return the channel's writers and readers, and each group's lag and progress.

    The figures are of the last sample, at `sampled_at`; unknown ones are null.
    """
    version, unchanged = await long_poll(
        request,
        precondition,
        wait,
        changes=changes,
        awaited=lambda: of_status(statuses.version(name, by=viewer).channel.uid),
        read=lambda: statuses.version(name, by=viewer),
        tag=attrgetter("etag"),
        authenticates=True,
    )
    if unchanged:
        return unchanged
    # Rendered once for all requests, from the present state, which may be a later one.
    cached = rendered.get(version.channel.uid, version.etag)
    if cached is None:
        version, rest = await run_in_threadpool(_render, statuses, name, fragments)
        rendered.put(version.channel.uid, version.etag, rest)
    else:
        rest = cached
    body = status_body(version.sampled_at, rest)
    return Response(body, headers={"ETag": version.etag}, media_type="application/json")


def _render(statuses: Statuses, name: str, fragments: JsonCache) -> tuple[StatusVersion, bytes]:
    status = statuses.status(name)
    return status.version, status_rest(status, fragments)


@router.get(
    "/channels/{name}/heartbeats",
    summary="List the last heartbeats of a channel",
    response_model=HeartbeatsBody,
    responses=problems(404),
)
def list_channel_heartbeats(name: Name, _viewer: Viewer, statuses: StatusesDep) -> Response:
    """Return when each endpoint's process has last sent a heartbeat."""
    heartbeats = statuses.heartbeats(name)
    return json_response({"heartbeats": {id_: time_json(at) for id_, at in heartbeats.items()}})


@router.get(
    "/status",
    summary="List the status of channels",
    response_model=StatusList,
    response_description="A page",
    responses=problems(also={304: {"description": "Nothing on it has changed"}}),
)
async def list_status(
    request: Request,
    principal: Anybody,
    statuses: StatusesDep,
    changes: ChangesDep,
    precondition: Conditions,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
    wait: Wait = 0,
) -> Response:
    """Return a summary of each channel that the token may see; `cursor` continues a page."""
    after = name_before(cursor)
    page, unchanged = await long_poll(
        request,
        precondition,
        wait,
        changes=changes,
        awaited=of_status(),
        read=lambda: statuses.page(limit=limit, after=after, by=principal),
        tag=attrgetter("etag"),
        authenticates=True,
    )
    headers = {"ETag": page.etag, "Vary": "Accept-Encoding"}
    if unchanged:
        return Response(status_code=304, headers=headers)
    following = page.next_after and cursor_after(page.next_after)
    items = [summary_json(summary) for summary in page.channels]
    body = to_json({"items": items, "next_cursor": following})
    if "gzip" in request.headers.get("accept-encoding", ""):
        # Lines repeat most of their text: a page shrinks to a tenth.
        body = await run_in_threadpool(gzip.compress, body, _LEVEL)
        headers["Content-Encoding"] = "gzip"
    return Response(body, headers=headers, media_type="application/json")


_EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}
_OF_CHANNEL: dict[str, Any] = {
    "description": "Events; `data` is the response of the read, `id` its ETag",
    "content": _EVENTS,
}
_OF_LIST: dict[str, Any] = {
    "description": (
        "Events: `state`, whose data has `at`, the gateway's time, and `items`, the lines of all "
        "channels as in the list; then `change` with `at`, the `changed` lines, and the names of "
        "`removed` channels. A `state` may follow at any time, and replaces all lines"
    ),
    "content": _EVENTS,
}
LastEvent = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        description="The id of the last event received; its state is not sent again",
        max_length=500,
    ),
]


class _Stream(StreamingResponse):
    """A streamed response, which counts as a waiting request while it lasts."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], changes: Changes, headers: Mapping[str, str]
    ) -> None:
        super().__init__(events, headers=headers)
        self._changes = changes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the stream ends. Raises TooManyWaiters before the first."""
        with self._changes.slot():
            await super().__call__(scope, receive, send)


def _stream(
    request: Request,
    feed: StatusFeed,
    changes: Changes,
    *,
    by: Principal,
    channel: str | None,
    last_id: str | None,
) -> Response:
    # Proxies must not buffer events.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Vary": "Accept-Encoding"}
    compress = "gzip" in request.headers.get("accept-encoding", "")
    if compress:
        headers["Content-Encoding"] = "gzip"
    if request.state.method == "HEAD":
        # There is no body to wait for.
        return StreamingResponse((), headers=headers, media_type=_Stream.media_type)
    events = feed.events(by, channel=channel, last_id=last_id, compress=compress)
    return _Stream(events, changes, headers)


@router.get(
    "/channels/{name}/status/events",
    summary="Watch the status of a channel",
    response_class=Response,
    responses=problems(404, also={200: _OF_CHANNEL}),
)
async def watch_channel_status(
    name: Name,
    request: Request,
    viewer: Viewer,
    statuses: StatusesDep,
    feed: FeedDep,
    changes: ChangesDep,
    last_event_id: LastEvent = None,
) -> Response:
    """Send the status now and after each change, at most once a second.

    Ends when the channel is deleted, the token is no longer valid, or the gateway stops.
    """
    # Respond with 404 instead of an empty stream.
    await run_in_threadpool(statuses.version, name, by=viewer)
    return _stream(request, feed, changes, by=viewer, channel=name, last_id=last_event_id)


@router.get(
    "/status/events",
    summary="Watch the status of all channels",
    response_class=Response,
    responses=problems(also={200: _OF_LIST}),
)
async def watch_status(
    request: Request,
    principal: Anybody,
    feed: FeedDep,
    changes: ChangesDep,
    last_event_id: LastEvent = None,
) -> Response:
    """Send all channels that the token may see, then the changes, at most once a second.

    Ends when the token is no longer valid, or the gateway stops.
    """
    return _stream(request, feed, changes, by=principal, channel=None, last_id=last_event_id)
