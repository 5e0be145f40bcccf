"""The routes of status."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sluiceway_gateway.auth.model import Action
from sluiceway_gateway.channels.etag import Precondition
from sluiceway_gateway.http.auth import Anybody, Viewer
from sluiceway_gateway.http.deps import Gateway
from sluiceway_gateway.http.params import Conditions, Name, Wait, name_before
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute
from sluiceway_gateway.http.status_bodies import StatusBody, StatusList
from sluiceway_gateway.status.views import ChannelView, ListView, StatusView, awaited

router = APIRouter(prefix="/v1", tags=["status"], route_class=GatewayRoute)


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
    viewer: Viewer,
    gateway: Gateway,
    precondition: Conditions,
    wait: Wait = 0,
) -> Response:
    """Give who writes and reads the channel, how far each group is, and how it gets on.

    The figures are those of the last look at Kafka, at `sampled_at`; null is what is not known.
    """
    return await _answer(ChannelView(gateway, name, by=viewer), request, precondition, wait)


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
    view = ListView(gateway, limit=limit, after=after, prefixes=prefixes)
    return await _answer(view, request, precondition, wait)


async def _answer(
    view: StatusView, request: Request, precondition: Precondition, wait_s: float
) -> Response:
    tag = await awaited(view, request, precondition, wait_s=wait_s)
    return await told(view, tag, precondition)


async def told(view: StatusView, tag: str, precondition: Precondition) -> Response:
    """Return the status that was looked at and has this tag, or that it has not changed."""
    if precondition.names(tag):
        return Response(status_code=304, headers={"ETag": f"W/{tag}"})
    tag, body = await view.body()
    return Response(body, headers={"ETag": f"W/{tag}"}, media_type="application/json")
