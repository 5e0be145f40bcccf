"""Routes of status: reads and long polls."""

import gzip
import hashlib
import time
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.channels.change import Precondition, status_etag
from sluiceway_gateway.http.auth import Anybody, Viewer, access
from sluiceway_gateway.http.json import json_response, time_json
from sluiceway_gateway.http.middleware import unless_disconnected
from sluiceway_gateway.http.params import Conditions, Name, Wait, cursor_after, name_before
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import Gateway, GatewayRoute, Services
from sluiceway_gateway.status.service import StatusPage
from sluiceway_gateway.status.store import StatusVersion
from sluiceway_gateway.status.wire import (
    StatusBody,
    StatusList,
    status_body,
    status_rest,
    summary_json,
)

router = APIRouter(prefix="/v1", tags=["status"], route_class=GatewayRoute)


class HeartbeatsBody(BaseModel):
    """The last heartbeats of a channel's endpoints."""

    heartbeats: dict[str, datetime] = Field(
        description="By the endpoint's id; those that have sent none are left out"
    )


class ChannelView:
    """The status of one channel, with the state of the last read."""

    def __init__(self, gateway: Services, name: str, *, by: Principal) -> None:
        self._gateway = gateway
        self._name = name
        self._by = by
        self._version: StatusVersion

    async def read_tag(self) -> str:
        """Read the state and return its tag, quoted.

        Raises ChannelNotFound, and Unauthenticated for a token that is not valid any more.
        """
        self._version = await run_in_threadpool(
            self._gateway.statuses.version, self._name, by=self._by
        )
        return _tag(self._version)

    async def changed(self, timeout_s: float) -> bool:
        """Wait until the state may differ from the last read; return False after the timeout."""
        return await self._gateway.watch.status_changed(
            self._name, self._version.tag, timeout_s=timeout_s
        )

    async def body(self) -> tuple[str, bytes]:
        """Return the tag and the JSON of the last state read, or of a later one.

        The JSON is rendered once for all requests. Raises ChannelNotFound.
        """
        found = self._gateway.rendered.get(self._version.channel.uid, _tag(self._version))
        rest = await run_in_threadpool(self._rendered) if found is None else found
        return _tag(self._version), status_body(self._version.sampled_at, rest)

    def _rendered(self) -> bytes:
        status = self._gateway.statuses.status(self._name)
        self._version = status.version
        text = status_rest(status, self._gateway.fragments)
        self._gateway.rendered.put(status.version.channel.uid, _tag(status.version), text)
        return text


class ListView:
    """A page of the channels that a token may see; the same methods as `ChannelView`."""

    def __init__(
        self, gateway: Services, principal: Principal, *, limit: int, cursor: str | None
    ) -> None:
        self._gateway = gateway
        self._limit, self._after = limit, name_before(cursor)
        self._by = principal
        self._page: StatusPage

    async def read_tag(self) -> str:
        """Read the state and return its tag, quoted.

        Raises Unauthenticated for a token that is not valid any more.
        """
        self._page = await run_in_threadpool(
            self._gateway.statuses.page,
            limit=self._limit,
            after=self._after,
            by=self._by,
        )
        tags = "".join(map(_tag, (each.version for each in self._page.channels)))
        digest = hashlib.sha256(f"{tags}/{self._page.next_after}".encode()).hexdigest()
        self._tag = f'"s{digest[:24]}"'
        return self._tag

    async def changed(self, timeout_s: float) -> bool:
        """Wait for a change of any channel; return False after the timeout."""
        return await self._gateway.watch.anything_changed(self._page.overall, timeout_s=timeout_s)

    async def body(self) -> tuple[str, bytes]:
        """Return the tag and the JSON of the last state read."""
        following = self._page.next_after and cursor_after(self._page.next_after)
        items = [summary_json(each) for each in self._page.channels]
        return self._tag, to_json({"items": items, "next_cursor": following})


StatusView = ChannelView | ListView

_LEVEL = 4
"""The level of gzip: a higher one takes longer, and saves little."""


def _tag(version: StatusVersion) -> str:
    return status_etag(**vars(version.tag))


@router.get(
    "/channels/{name}/status",
    operation_id="get_channel_status",
    summary="Read the status of a channel",
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
    viewer: Annotated[Principal, access(Action.VIEW, rechecked=True)],
    gateway: Gateway,
    precondition: Conditions,
    wait: Wait = 0,
) -> Response:
    """Return the channel's writers and readers, and each group's lag and progress.

    The figures are of the last sample, at `sampled_at`; unknown ones are null.
    """
    return await _response(ChannelView(gateway, name, by=viewer), request, precondition, wait)


@router.get(
    "/channels/{name}/heartbeats",
    operation_id="list_channel_heartbeats",
    summary="List the last heartbeats of a channel",
    response_model=HeartbeatsBody,
    responses=problems(404),
)
def list_heartbeats(name: Name, _viewer: Viewer, gateway: Gateway) -> Response:
    """Return when each endpoint's process has last sent a heartbeat."""
    found = gateway.statuses.heartbeats(name)
    return json_response({"heartbeats": {id_: time_json(at) for id_, at in found.items()}})


@router.get(
    "/status",
    summary="List the status of channels",
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
    """Return a summary of each channel that the token may see; `cursor` continues a page."""
    view = ListView(gateway, principal, limit=limit, cursor=cursor)
    response = await _response(view, request, precondition, wait)
    response.headers["Vary"] = "Accept-Encoding"
    if response.body and "gzip" in request.headers.get("accept-encoding", ""):
        # Lines repeat most of their text: a page shrinks to a tenth.
        body = await run_in_threadpool(gzip.compress, bytes(response.body), _LEVEL)
        headers = {**response.headers, "content-encoding": "gzip", "content-length": str(len(body))}
        return Response(body, headers=headers)
    return response


async def _response(
    view: StatusView, request: Request, precondition: Precondition, wait_s: float
) -> Response:
    """Return the status, or 304 if it has not changed within `wait_s`."""
    deadline_s = time.monotonic() + wait_s
    tag = await view.read_tag()
    # What changed may be on another page, or not this token's to see.
    while precondition.names(tag):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not await unless_disconnected(request, view.changed(left_s)):
            return Response(status_code=304, headers={"ETag": f"W/{tag}"})
        tag = await view.read_tag()
    tag, body = await view.body()
    return Response(body, headers={"ETag": f"W/{tag}"}, media_type="application/json")
