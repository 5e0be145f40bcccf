"""The route of commits by readers that are no members of the group."""

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import AfterValidator, Field

from sluiceway_gateway.channels.model import MAX_PARTITIONS
from sluiceway_gateway.channels.wire import Asked, Uid
from sluiceway_gateway.http.auth import Viewer
from sluiceway_gateway.http.deps import Gateway
from sluiceway_gateway.http.params import Name
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute
from sluiceway_gateway.offsets.routes import (
    GroupOffsets,
    InGroup,
    PositionPut,
    Positions,
    TopicId,
    each_once,
    position_of,
    report_response,
)
from sluiceway_gateway.services.advancing import Advance

router = APIRouter(
    prefix="/v1/channels/{name}/groups/{group}/offsets",
    tags=["endpoints"],
    route_class=GatewayRoute,
)

Before = Annotated[list[PositionPut], Field(max_length=MAX_PARTITIONS), AfterValidator(each_once)]


class AdvancePost(Asked):
    """The body of `POST …/offsets/advance`."""

    uid: Uid = Field(description="Of the channel")
    topic_id: TopicId
    positions: Positions
    before: Before = Field(
        description="Where the group stands in these partitions, as far as the reader knows; one "
        "that is left out has no position yet"
    )


@router.post(
    "/advance",
    summary="Commit positions without being a member",
    response_model=GroupOffsets,
    responses=problems(
        404, 409, 413, also={200: {"description": "The partitions named", "model": GroupOffsets}}
    ),
)
def advance(
    name: Name, group: InGroup, body: AdvancePost, principal: Viewer, gateway: Gateway
) -> Response:
    """Move all of the positions from where they are said to be, or none of them.

    For readers that name their partitions themselves. Only while no member of the group lives
    (409 `members_open`), and only forward. 409 `position_moved` where somebody else moved one.
    A repeat finds the positions where it wants them, and changes nothing.
    """
    asked = Advance(
        positions=tuple(map(position_of, body.positions)),
        before={each.partition: position_of(each) for each in body.before},
        topic_id=body.topic_id,
    )
    found = gateway.advancing.advance(name, group, asked, uid=body.uid, principal=principal)
    return report_response(found)
