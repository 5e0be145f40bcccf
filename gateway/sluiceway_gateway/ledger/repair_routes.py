"""Routes of the repair of a halted channel: its plan, and the repair itself."""

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from sluiceway_gateway.auth.model import Action, Principal
from sluiceway_gateway.channels.model import MAX_PARTITIONS
from sluiceway_gateway.channels.wire import Asked, Uid
from sluiceway_gateway.endpoints.wire import Count, PartitionText
from sluiceway_gateway.http.auth import Viewer, access
from sluiceway_gateway.http.json import json_response
from sluiceway_gateway.http.params import Name
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import Gateway, GatewayRoute
from sluiceway_gateway.ledger.repairing import RepairRequest
from sluiceway_gateway.ledger.routes import OfChannel
from sluiceway_gateway.ledger.wire import (
    LostBody,
    OpenBatchBody,
    RepairBody,
    open_json,
    repair_json,
)

router = APIRouter(prefix="/v1/channels/{name}/ledger", tags=["ledger"], route_class=GatewayRoute)

Manager = Annotated[Principal, access(Action.MANAGE)]


class RepairPlanBody(BaseModel):
    """What a repair gives up."""

    cause: str = Field(description="Why the channel is halted")
    lost: list[LostBody]
    open: list[OpenBatchBody] = Field(description="Batches that it aborts")


class RepairPost(Asked):
    """The body of `POST …/ledger/repair`."""

    uid: Uid = Field(description="Of the channel")
    lost_from: dict[PartitionText, Count] = Field(
        min_length=1,
        max_length=MAX_PARTITIONS,
        description="By partition, `first` of the plan's `lost`: nothing else is given up",
    )
    reason: str = Field(min_length=1, max_length=1000, description="Kept with the repair")


@router.get(
    "/repair",
    operation_id="plan_repair",
    summary="Show what a repair gives up",
    response_model=RepairPlanBody,
    response_description="The plan",
    responses=problems(404, 409),
)
def plan_repair(name: Name, uid: OfChannel, _viewer: Viewer, gateway: Gateway) -> Response:
    """Return the committed messages of a halted channel that Kafka has lost; changes nothing.

    409 `ledger_intact` for a channel that is not halted.
    """
    plan = gateway.repairs.plan(name, uid=uid)
    return json_response(
        {
            "cause": plan.cause,
            "lost": [vars(each) for each in plan.lost],
            "open": open_json(plan.aborted),
        }
    )


@router.post(
    "/repair",
    operation_id="repair_ledger",
    summary="Repair a halted channel",
    response_model=RepairBody,
    response_description="It is repaired",
    responses=problems(404, 409, 413),
)
def repair_ledger(name: Name, body: RepairPost, principal: Manager, gateway: Gateway) -> Response:
    """Give up what the plan names as lost, abort all open batches, and let the channel go on.

    Partitions are filled up to the end of what was committed, with messages that no reader sees, so
    that no later record gets an offset that readers have passed. Committed keys stay committed.
    """
    request = RepairRequest(
        lost_from={int(partition): first for partition, first in body.lost_from.items()},
        reason=body.reason,
        by=principal.id,
    )
    return json_response(repair_json(gateway.repairs.repair(name, request, uid=body.uid)))
