"""What has a short way: commits, beats, attaching, and looking at how a channel stands."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.domain.etag import Precondition
from sluiceway_gateway.domain.group import check_group
from sluiceway_gateway.domain.name import check_name
from sluiceway_gateway.domain.position import Commit
from sluiceway_gateway.http import endpoints, heartbeats, offsets, statuses
from sluiceway_gateway.http.endpoint_wire import CLIENT_LENGTH, AttachPost
from sluiceway_gateway.http.heartbeats import HeartbeatPost
from sluiceway_gateway.http.offsets import CommitPut
from sluiceway_gateway.http.parts import Parts
from sluiceway_gateway.http.shortcut import Request, ShortWay
from sluiceway_gateway.http.status_views import ChannelView
from sluiceway_gateway.services.arriving import Coming
from sluiceway_gateway.services.places import Asked
from sluiceway_gateway.services.tokens import Credentials


def short_ways(parts: Parts) -> Sequence[ShortWay]:
    """Return the short ways of a gateway."""
    return (_commits(parts), _beats(parts), _attaching(parts), _statuses(parts))


def _commits(parts: Parts) -> ShortWay:
    def read(request: Request) -> Commit:
        name, group = check_name(request.path["name"]), check_group(request.path["group"])
        return offsets.commit_of(name, group, CommitPut.model_validate(request.body))

    async def answer(commit: Commit, by: Credentials) -> Response:
        done = parts.offsets.commit_soon(commit, by=by)
        return offsets.committed(await asyncio.wrap_future(done))

    return ShortWay(route=_route(offsets.router, "commit"), read=read, answer=answer)


def _beats(parts: Parts) -> ShortWay:
    def read(request: Request) -> tuple[HeartbeatPost, str]:
        return HeartbeatPost.model_validate(request.body), _client(request)

    async def answer(asked: tuple[HeartbeatPost, str], by: Credentials) -> Response:
        body, client = asked
        return await run_in_threadpool(heartbeats.heard, parts.beats, body, by=by, client=client)

    return ShortWay(route=_route(heartbeats.router, "beat"), read=read, answer=answer)


def _attaching(parts: Parts) -> ShortWay:
    def read(request: Request) -> tuple[str, str, Asked]:
        # There may be several to reach Kafka by, and none for those who name none.
        parts.settings.listeners.reached_by(None)
        name, body = check_name(request.path["name"]), AttachPost.model_validate(request.body)
        return name, body.uid, endpoints.asked_of(body, client=_client(request))

    async def answer(given: tuple[str, str, Asked], by: Credentials) -> Response:
        name, uid, asked = given
        coming = Coming(channel=name, uid=uid, asked=asked, by=by)
        done = parts.attachment.attach_soon(coming)
        return endpoints.attached(parts, await asyncio.wrap_future(done), listener=None)

    return ShortWay(route=_route(endpoints.router, "attach"), read=read, answer=answer)


def _statuses(parts: Parts) -> ShortWay:
    def read(request: Request) -> tuple[str, Precondition]:
        seen = request.headers.get("if-none-match")
        precondition = Precondition.of(if_match=None, if_none_match=seen)
        return check_name(request.path["name"]), precondition

    async def answer(asked: tuple[str, Precondition], by: Credentials) -> Response:
        name, precondition = asked
        view = ChannelView(parts, name, by=by)
        return await statuses.told(view, await view.look(), precondition)

    return ShortWay(route=_route(statuses.router, "get_status"), read=read, answer=answer)


def _client(request: Request) -> str:
    return request.headers.get("user-agent", "")[:CLIENT_LENGTH]


def _route(router: APIRouter, name: str) -> APIRoute:
    route: Any = next(each for each in router.routes if getattr(each, "name", None) == name)
    assert isinstance(route, APIRoute)  # noqa: S101
    return route
