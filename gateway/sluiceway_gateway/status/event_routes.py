"""Routes of status that send server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sluiceway_gateway.auth.model import Principal
from sluiceway_gateway.http.auth import Anybody, Viewer
from sluiceway_gateway.http.params import Name
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import Gateway, GatewayRoute, Services
from sluiceway_gateway.longpoll import Watch

router = APIRouter(prefix="/v1", tags=["status"], route_class=GatewayRoute)

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

    def __init__(self, events: AsyncIterator[bytes], watch: Watch, *, compress: bool) -> None:
        # Proxies must not buffer events.
        headers = {
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            "Vary": "Accept-Encoding",
        }
        if compress:
            headers["Content-Encoding"] = "gzip"
        super().__init__(events, headers=headers)
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the stream ends. Raises TooManyWaiters before the first.

        A HEAD has no body to wait for, so its response ends with the headers.
        """
        if scope["method"] == "HEAD":
            head = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **head})
            await send({"type": "http.response.body"})
            return
        with self._watch.slot():
            await super().__call__(scope, receive, send)


def _stream(
    request: Request,
    gateway: Services,
    *,
    by: Principal,
    channel: str | None,
    last_id: str | None,
) -> Response:
    compress = "gzip" in request.headers.get("accept-encoding", "")
    events = gateway.feed.events(by, channel=channel, last_id=last_id, compress=compress)
    return _Stream(events, gateway.watch, compress=compress)


@router.get(
    "/channels/{name}/status/events",
    operation_id="watch_channel_status",
    summary="Watch the status of a channel",
    response_class=Response,
    responses=problems(404, also={200: _OF_CHANNEL}),
)
async def watch_status(
    name: Name,
    request: Request,
    viewer: Viewer,
    gateway: Gateway,
    last_event_id: LastEvent = None,
) -> Response:
    """Send the status now and after each change, at most once a second.

    Ends when the channel is deleted, the token is no longer valid, or the gateway stops.
    """
    # Respond with 404 instead of an empty stream.
    await run_in_threadpool(gateway.statuses.version, name, by=viewer)
    return _stream(request, gateway, by=viewer, channel=name, last_id=last_event_id)


@router.get(
    "/status/events",
    operation_id="watch_status",
    summary="Watch the status of all channels",
    response_class=Response,
    responses=problems(also={200: _OF_LIST}),
)
async def watch_statuses(
    request: Request,
    principal: Anybody,
    gateway: Gateway,
    last_event_id: LastEvent = None,
) -> Response:
    """Send all channels that the token may see, then the changes, at most once a second.

    Ends when the token is no longer valid, or the gateway stops.
    """
    return _stream(request, gateway, by=principal, channel=None, last_id=last_event_id)
