"""The route that waits for a group to commit past given offsets."""

import json
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from sluiceway_gateway.channels.wire import Asked, Uid
from sluiceway_gateway.endpoints.wire import Ends
from sluiceway_gateway.http.auth import Viewer
from sluiceway_gateway.http.deps import Gateway
from sluiceway_gateway.http.middleware import unless_disconnected
from sluiceway_gateway.http.params import Name, Wait
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute
from sluiceway_gateway.offsets.ack import Bounds, Standing
from sluiceway_gateway.offsets.routes import InGroup, TopicId

router = APIRouter(
    prefix="/v1/channels/{name}/groups/{group}/offsets",
    tags=["endpoints"],
    route_class=GatewayRoute,
)

_SHOWN = 100


class PassedPost(Asked):
    """The body of `POST …/offsets/passed`."""

    uid: Uid = Field(description="Of the channel")
    topic_id: TopicId
    offsets: Ends = Field(description="By partition, the offset to be committed at least")


class MissingBody(BaseModel):
    """A partition in which the group has not come so far."""

    index: int | None = Field(description="Of the member, in broadcast groups")
    partition: int
    committed: int | None = Field(description="null: nothing, of this topic")
    wanted: int


class PassedBody(BaseModel):
    """Whether the group has committed that far in all of the partitions."""

    passed: bool
    known: bool = Field(description="Whether anybody was ever in the group")
    lacking: int = Field(description="How many partitions, or members' partitions, are missing")
    missing: list[MissingBody] = Field(description=f"The first {_SHOWN} of them")


@router.post(
    "/passed",
    summary="Wait until a group has committed past offsets",
    response_model=PassedBody,
    responses=problems(
        404, 409, 413, also={200: {"description": "How it stands", "model": PassedBody}}
    ),
)
async def passed(
    name: Name,
    group: InGroup,
    body: PassedPost,
    request: Request,
    _viewer: Viewer,
    gateway: Gateway,
    wait: Wait = 0,
) -> Response:
    """Answer when the group has come that far, or when `wait` is over, whichever is first.

    In a broadcast group every member has to. A group that nobody was in yet is waited for.
    """
    bounds = Bounds(
        topic_id=body.topic_id, offsets={int(each): end for each, end in body.offsets.items()}
    )
    found = await unless_disconnected(
        request,
        gateway.acknowledgements.passed(name, group, bounds, uid=body.uid, timeout_s=wait),
    )
    # Without one, nobody is there to read the answer.
    standing = found or Standing(known=False, missing=())
    answer: dict[str, Any] = {
        "passed": standing.passed,
        "known": standing.known,
        "lacking": len(standing.missing),
        "missing": [
            {
                "index": None if each.member < 0 else each.member,
                "partition": each.partition,
                "committed": each.committed,
                "wanted": each.wanted,
            }
            for each in standing.missing[:_SHOWN]
        ],
    }
    return Response(json.dumps(answer, separators=(",", ":")), media_type="application/json")
