"""Routes of groups: sync and resize."""

import json
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from sluiceway_gateway.channels.wire import Asked, Uid
from sluiceway_gateway.endpoints.model import MAX_GROUP_SIZE
from sluiceway_gateway.endpoints.routes import EndpointId
from sluiceway_gateway.endpoints.wire import PositionBody, position_json
from sluiceway_gateway.groups.service import MemberAssignment, SyncRequest
from sluiceway_gateway.http.auth import Viewer
from sluiceway_gateway.http.deps import Gateway
from sluiceway_gateway.http.params import Name
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute
from sluiceway_gateway.offsets.routes import Count, InGroup

router = APIRouter(prefix="/v1/channels/{name}", tags=["endpoints"], route_class=GatewayRoute)


class SyncPost(Asked):
    """The body of `POST …/endpoints/{id}/sync`."""

    uid: Uid = Field(description="Of the channel")
    epoch: Count
    take: Count | None = Field(
        default=None, description="The generation whose share it takes; left out, it only asks"
    )
    has: Count | None = Field(
        default=None, description="The generation of the share that it has; null for none"
    )


class SharingBody(BaseModel):
    """How a member stands in its dynamic group."""

    generation: int = Field(description="Of the group")
    taken: bool = Field(description="Whether it has its share of that")
    has: int | None = Field(description="The generation of the share that it has; null for none")
    index: int = Field(description="Its rank among the members: partition p is its own if")
    size: int = Field(description="p modulo this is the index")
    partitions: list[int] = Field(description="Those of its share that are nobody else's")
    pending: list[int] = Field(description="Those that another has not let go of yet")
    held: list[int] = Field(description="What it has now, and may commit")
    positions: list[PositionBody] = Field(description="What is committed, of `partitions`")
    total: int = Field(description="How many partitions the channel has")


class ResizePost(Asked):
    """The body of `POST …/groups/{group}/resize`."""

    uid: Uid = Field(description="Of the channel")
    size: int = Field(ge=1, le=MAX_GROUP_SIZE)
    generation: Count = Field(description="That of the group, as it is now")


class ResizedBody(BaseModel):
    """A group of readers with a fixed size."""

    group: str
    size: int
    generation: int


@router.post(
    "/endpoints/{id}/sync",
    summary="Take a share of a dynamic group's partitions",
    response_model=SharingBody,
    responses=problems(
        404, 409, 413, also={200: {"description": "How it stands", "model": SharingBody}}
    ),
)
def sync(
    name: Name,
    id: EndpointId,  # noqa: A002
    body: SyncPost,
    principal: Viewer,
    gateway: Gateway,
) -> Response:
    """Say what a member's share of the partitions is, and, with `take`, let it have that.

    With that it lets go of what it had. If the group is at another generation meanwhile, or the
    share of the generation `has` is not the member's any more, nothing changes, and `taken` says
    so. Partitions that are pending become its own when the other takes its share, leaves, or is not
    waited for any longer: ask again.
    """
    wish = SyncRequest(epoch=body.epoch, take=body.take, has=body.has)
    found = gateway.groups.sync(name, id, wish, uid=body.uid, principal=principal)
    return _sent(_sharing_json(found))


@router.post(
    "/groups/{group}/resize",
    summary="Change a group's size",
    response_model=ResizedBody,
    responses=problems(
        404, 409, 413, also={200: {"description": "It has the size", "model": ResizedBody}}
    ),
)
def resize(
    name: Name, group: InGroup, body: ResizePost, principal: Viewer, gateway: Gateway
) -> Response:
    """Give a group of readers another size, in a new generation; its positions stay.

    Its members are fenced, as when new ones take their places, and so it takes the scope `read`,
    which attaching takes. Whoever is to read on attaches with the new size.
    """
    found = gateway.groups.resize(
        name,
        group,
        size=body.size,
        generation=body.generation,
        uid=body.uid,
        principal=principal,
    )
    return _sent({"group": found.name, "size": found.size, "generation": found.generation})


def _sharing_json(found: MemberAssignment) -> dict[str, Any]:
    return {
        "generation": found.generation,
        "taken": found.taken,
        "has": found.has,
        "index": found.share.index,
        "size": found.share.size,
        "partitions": list(found.partitions),
        "pending": list(found.pending),
        "held": list(found.held),
        "positions": [position_json(each) for each in found.positions],
        "total": found.total,
    }


def _sent(body: Any) -> Response:
    return Response(json.dumps(body, separators=(",", ":")), media_type="application/json")
