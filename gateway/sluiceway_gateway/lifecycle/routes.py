"""Routes that close and delete a channel."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from sluiceway_gateway.api.auth import Manager
from sluiceway_gateway.api.deps import Service
from sluiceway_gateway.api.models import RequestModel, Uid
from sluiceway_gateway.api.params import Conditions, IdempotencyKey, Name
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.channels.routes import DryRun, change_context, described, sent
from sluiceway_gateway.channels.wire import ChannelBody
from sluiceway_gateway.lifecycle.service import Lifecycle

router = APIRouter(prefix="/v1/channels", tags=["channels"], route_class=StrictRoute)

LifecycleDep = Annotated[Lifecycle, Depends(Service("lifecycle"))]


class ClosePost(RequestModel):
    """The body of `POST /v1/channels/{name}/close`."""

    uid: Uid = Field(description="Refuse any other channel of this name")
    force: bool = Field(default=False, description="Close at once, even with active endpoints")


@router.post(
    "/{name}/close",
    summary="Close a channel",
    response_model=ChannelBody,
    responses=problems(404, 409, 412, 413, also={200: described("It is closing or closed")}),
)
def close_channel(
    name: Name,
    body: ClosePost,
    principal: Manager,
    lifecycle: LifecycleDep,
    precondition: Conditions,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Close the channel to writers, for good; its records stay readable.

    It is `closing` until every writer has ended or is lost and every group has committed all
    records; the condition `Drained` names the rest. With `force` it is closed at once.
    """
    content = ("CLOSE", name, body.uid, body.force)
    context = change_context(principal, precondition, idempotency_key, content)
    return sent(lifecycle.close(name, context, uid=body.uid, force=body.force))


@router.delete(
    "/{name}",
    status_code=202,
    summary="Delete a channel",
    response_model=ChannelBody,
    responses=problems(404, 409, 412, also={202: described("It is being deleted")}),
)
def delete_channel(
    name: Name,
    uid: Annotated[Uid, Query(description="Refuse any other channel of this name")],
    principal: Manager,
    lifecycle: LifecycleDep,
    precondition: Conditions,
    topic: Annotated[
        Literal["delete", "keep"], Query(description="keep: the topic and its records stay")
    ] = "delete",
    force: Annotated[
        bool, Query(description="Delete even with active endpoints or unread records")
    ] = False,
    if_empty: Annotated[
        bool,
        Query(description="409 `unread_data` if the topic to delete has any message, even read"),
    ] = False,
    dry_run: DryRun = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Delete the channel with its topic. It is deleted once GET returns 404.

    An adopted topic always stays. Without `force`: 409 `endpoints_live` with active endpoints, and,
    if the topic is deleted, 409 `unread_data` until all groups have committed all records, or 503
    while Kafka is unavailable.
    """
    content = ("DELETE", name, uid, topic, force, if_empty)
    context = change_context(
        principal, precondition, idempotency_key, content, 202, dry_run=dry_run
    )
    keeps = topic == "keep"
    return sent(
        lifecycle.delete(name, context, uid=uid, keep_topic=keeps, force=force, if_empty=if_empty)
    )
