"""What has a short way: commits, beats, attaching, and looking at how a channel stands."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.auth.service import Credentials
from sluiceway_gateway.channels.etag import Precondition
from sluiceway_gateway.domain.name import check_name
from sluiceway_gateway.endpoints import heartbeat_routes
from sluiceway_gateway.endpoints import routes as endpoints_routes
from sluiceway_gateway.endpoints.attach_batch import Coming
from sluiceway_gateway.endpoints.heartbeat_routes import HeartbeatPost
from sluiceway_gateway.endpoints.placement import Asked
from sluiceway_gateway.endpoints.wire import CLIENT_LENGTH, AttachPost
from sluiceway_gateway.groups.model import check_group
from sluiceway_gateway.http.deps import Parts
from sluiceway_gateway.http.shortcut import Request, ShortWay
from sluiceway_gateway.offsets import routes as offsets_routes
from sluiceway_gateway.offsets.model import Commit
from sluiceway_gateway.offsets.routes import CommitPut
from sluiceway_gateway.status import routes as status_routes
from sluiceway_gateway.status.views import ChannelView


def short_ways(parts: Parts) -> Sequence[ShortWay]:
    """Return the short ways of a gateway."""
    return (_commits(parts), _beats(parts), _attaching(parts), _statuses(parts))


def _commits(parts: Parts) -> ShortWay:
    def read(request: Request) -> Commit:
        name, group = check_name(request.path["name"]), check_group(request.path["group"])
        return offsets_routes.commit_of(name, group, CommitPut.model_validate(request.body))

    async def answer(commit: Commit, by: Credentials) -> Response:
        done = parts.offsets.commit_soon(commit, by=by)
        return offsets_routes.committed(await asyncio.wrap_future(done))

    return ShortWay(route=_route(offsets_routes.router, "commit"), read=read, answer=answer)


def _beats(parts: Parts) -> ShortWay:
    def read(request: Request) -> tuple[HeartbeatPost, str]:
        return HeartbeatPost.model_validate(request.body), _client(request)

    async def answer(asked: tuple[HeartbeatPost, str], by: Credentials) -> Response:
        body, client = asked
        return await run_in_threadpool(
            heartbeat_routes.heard, parts.beats, body, by=by, client=client
        )

    return ShortWay(route=_route(heartbeat_routes.router, "beat"), read=read, answer=answer)


def _attaching(parts: Parts) -> ShortWay:
    def read(request: Request) -> tuple[str, str, Asked]:
        # There may be several to reach Kafka by, and none for those who name none.
        parts.settings.listeners.reached_by(None)
        name, body = check_name(request.path["name"]), AttachPost.model_validate(request.body)
        return name, body.uid, endpoints_routes.asked_of(body, client=_client(request))

    async def answer(given: tuple[str, str, Asked], by: Credentials) -> Response:
        name, uid, asked = given
        coming = Coming(channel=name, uid=uid, asked=asked, by=by)
        done = parts.attachment.attach_soon(coming)
        return endpoints_routes.attached(parts, await asyncio.wrap_future(done), listener=None)

    return ShortWay(route=_route(endpoints_routes.router, "attach"), read=read, answer=answer)


def _statuses(parts: Parts) -> ShortWay:
    def read(request: Request) -> tuple[str, Precondition]:
        seen = request.headers.get("if-none-match")
        precondition = Precondition.of(if_match=None, if_none_match=seen)
        return check_name(request.path["name"]), precondition

    async def answer(asked: tuple[str, Precondition], by: Credentials) -> Response:
        name, precondition = asked
        view = ChannelView(parts, name, by=by)
        return await status_routes.told(view, await view.look(), precondition)

    return ShortWay(route=_route(status_routes.router, "get_status"), read=read, answer=answer)


def _client(request: Request) -> str:
    return request.headers.get("user-agent", "")[:CLIENT_LENGTH]


def _route(router: APIRouter, name: str) -> APIRoute:
    route: Any = next(each for each in router.routes if getattr(each, "name", None) == name)
    assert isinstance(route, APIRoute)  # noqa: S101
    return route
