"""Routes of groups: sync and resize."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, Field

from sluiceway_gateway.api.auth import Manager, Viewer
from sluiceway_gateway.api.deps import Service
from sluiceway_gateway.api.json import json_response
from sluiceway_gateway.api.models import Number, RequestModel, Uid
from sluiceway_gateway.api.params import LABEL_TEXT, InGroup, Label, Name, Reason
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.core.names import MAX_GROUP_SIZE
from sluiceway_gateway.endpoints.groups.service import GroupService, SyncRequest
from sluiceway_gateway.endpoints.model import Role
from sluiceway_gateway.endpoints.routes import EndpointId
from sluiceway_gateway.endpoints.wire import PositionBody, RoleWord

router = APIRouter(prefix="/v1/channels/{name}", tags=["endpoints"], route_class=StrictRoute)

GroupsDep = Annotated[GroupService, Depends(Service("groups"))]


class SyncPost(SyncRequest):
    """The body of `POST …/endpoints/{id}/sync`."""

    uid: Uid = Field(description="Of the channel")


class AssignmentBody(BaseModel):
    """The partitions of a member of a dynamic group."""

    generation: int = Field(description="Of the group")
    taken: bool = Field(description="Whether the member has its assignment of it")
    has: int | None = Field(description="The generation of its assignment; null without one")
    index: int = Field(description="Rank among the members, from 0")
    size: int = Field(
        description="Number of members; each partition p with p modulo size equal to the index is "
        "assigned"
    )
    partitions: list[int] = Field(description="Assigned partitions that no other member holds")
    pending: list[int] = Field(description="Assigned partitions that another member still holds")
    held: list[int] = Field(description="The partitions that it holds now, and can commit")
    positions: list[PositionBody] = Field(description="The committed positions of `partitions`")
    total: int = Field(description="Number of partitions of the channel")


class ResizePost(RequestModel):
    """The body of `POST …/groups/{group}/resize`."""

    uid: Uid = Field(description="Of the channel")
    size: int = Field(ge=1, le=MAX_GROUP_SIZE)
    generation: Number = Field(description="The current generation of the group")


class ResizedBody(BaseModel):
    """A group of readers with a fixed size."""

    group: str
    size: int
    generation: int


@router.post(
    "/endpoints/{id}/sync",
    summary="Take an assignment in a dynamic group",
    response_model=AssignmentBody,
    response_description="The assignment",
    responses=problems(404, 409, 413),
)
def sync_endpoint(
    name: Name, id: EndpointId, body: SyncPost, principal: Viewer, groups: GroupsDep
) -> Response:
    """Return a member's assignment and, with `take`, assign it.

    The member releases its previous assignment. If the group has reached another generation, or the
    member no longer has the assignment of the generation `has`, nothing changes and `taken` is
    false. Pending partitions become available when their holder takes its own assignment, leaves or
    times out: sync again.
    """
    assignment = groups.sync(name, id, body, uid=body.uid, principal=principal)
    return json_response(
        vars(assignment) | {"positions": [position.to_dict() for position in assignment.positions]}
    )


class GroupOwnerPost(RequestModel):
    """The body of `POST …/groups/{group}/owner`."""

    uid: Uid = Field(description="Of the channel")
    role: RoleWord = "reader"
    owner: Label = Field(description=LABEL_TEXT)
    reason: Reason = None


class GroupOwnerBody(BaseModel):
    """A group, and the label that it belongs to."""

    group: str
    role: RoleWord
    owner: str


@router.post(
    "/groups/{group:path}/owner",
    summary="Transfer a group to another label",
    response_model=GroupOwnerBody,
    response_description="The new owner",
    responses=problems(404, 409, 413),
)
def transfer_group(
    name: Name, group: InGroup, body: GroupOwnerPost, principal: Manager, groups: GroupsDep
) -> Response:
    """Give a group of readers or writers to the tokens of a label, or to every label.

    Members of the previous owner keep their places, and their next commit is refused.
    """
    transferred = groups.transfer(
        name,
        group,
        role=Role(body.role),
        owner=body.owner,
        reason=body.reason,
        uid=body.uid,
        principal=principal,
    )
    return json_response(
        {"group": transferred.name, "role": str(transferred.role), "owner": transferred.owner}
    )


@router.post(
    "/groups/{group:path}/resize",
    summary="Change a group's size",
    response_model=ResizedBody,
    response_description="The group with its size",
    responses=problems(404, 409, 413),
)
def resize_group(
    name: Name, group: InGroup, body: ResizePost, principal: Viewer, groups: GroupsDep
) -> Response:
    """Change the size of a group of readers, in a new generation; its positions stay.

    Its members are fenced, and new instances attach with the new size. Needs the scope `read`, like
    attaching, which can fence members too.
    """
    resized = groups.resize(
        name, group, size=body.size, generation=body.generation, uid=body.uid, principal=principal
    )
    return json_response(
        {"group": resized.name, "size": resized.size, "generation": resized.generation}
    )
