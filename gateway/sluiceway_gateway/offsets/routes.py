"""Routes of committed positions."""

import asyncio
from collections.abc import Iterable
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field

from sluiceway_gateway.api.auth import Permission, Reader, Viewer, authenticate_again
from sluiceway_gateway.api.deps import Service
from sluiceway_gateway.api.json import body_of, json_response, text_of, time_json
from sluiceway_gateway.api.middleware import unless_disconnected
from sluiceway_gateway.api.models import Count, Ends, Number, RequestModel, Uid, each_once
from sluiceway_gateway.api.params import IdempotencyKey, InGroup, Name, Wait, request_of
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute, body_of_model, read_model
from sluiceway_gateway.core.auth.model import Action, Principal
from sluiceway_gateway.core.db.idempotency import StoredResponse
from sluiceway_gateway.core.names import MAX_GROUP_SIZE, MAX_PARTITIONS
from sluiceway_gateway.core.preconditions import Precondition
from sluiceway_gateway.endpoints.groups.model import Group
from sluiceway_gateway.endpoints.positions import Committed, Position
from sluiceway_gateway.endpoints.wire import ModeWord, PositionBody
from sluiceway_gateway.offsets.importing import ImportPlan, ImportResult, OffsetImports
from sluiceway_gateway.offsets.model import AckResult, Bounds, Commit
from sluiceway_gateway.offsets.service import Acknowledgements, Advance, GroupReport, Offsets, Reset

router = APIRouter(
    prefix="/v1/channels/{name}/groups/{group:path}/offsets",
    tags=["endpoints"],
    route_class=StrictRoute,
)

AcknowledgementsDep = Annotated[Acknowledgements, Depends(Service("acknowledgements"))]
ImportsDep = Annotated[OffsetImports, Depends(Service("offset_imports"))]
OffsetsDep = Annotated[Offsets, Depends(Service("offsets"))]

Committer = Annotated[
    Principal, Depends(Permission(Action.READ, channel="name", authorized_in_transaction=True))
]

INT32_MAX = 2**31 - 1
MAX_METADATA = 4096
Index = Annotated[int, Field(ge=0, lt=MAX_GROUP_SIZE)]
TopicId = Annotated[str, Field(min_length=1, max_length=100)]
KafkaGroupName = Annotated[str, Field(min_length=1, max_length=1000)]


class PositionPut(RequestModel):
    """A position: the next record to read."""

    partition: int = Field(ge=0, le=INT32_MAX)
    offset: Count
    record: int = Field(ge=0, le=INT32_MAX, description="Records of that message that are done")
    metadata: str | None = Field(
        default=None,
        max_length=MAX_METADATA,
        description="A text that is stored with it and replaces the last one",
    )


_EACH_ONCE = each_once(attrgetter("partition"), "each partition may be given once")
Positions = Annotated[list[PositionPut], Field(min_length=1, max_length=MAX_PARTITIONS), _EACH_ONCE]


class CommitPut(RequestModel):
    """The body of `PUT …/offsets`."""

    uid: Uid = Field(description="Of the channel")
    id: Uid = Field(description="Of the endpoint")
    epoch: Number
    generation: Number
    topic_id: TopicId
    number: Number = Field(description="Counts the endpoint's commits, from 1")
    positions: Positions


class ResetPost(RequestModel):
    """The body of `POST …/offsets/reset`."""

    uid: Uid = Field(description="Of the channel")
    positions: Positions | None = Field(description="null deletes all positions")
    topic_id: TopicId | None = Field(default=None, description="Required with positions")
    index: Index | None = Field(default=None, description="Index of a member of a broadcast group")
    generation: Number | None = Field(default=None, description="Of the group, to be reset")
    reason: str = Field(min_length=1, max_length=1000, description="For the history")
    force: bool = Field(default=False, description="Reset despite live members, and fence them")


class CommittedBody(PositionBody):
    """A committed position, and the commit that stored it."""

    index: int | None = Field(description="Of the member, in broadcast groups")
    epoch: int = Field(description="Of the endpoint; 0 after a reset")
    number: int
    committed_at: datetime


class ResetBody(BaseModel):
    """A reset."""

    at: datetime
    by: str
    reason: str | None


class GroupBody(BaseModel):
    """A group of readers."""

    group: str
    mode: ModeWord
    size: int | None
    dynamic: bool = Field(description="Members join and leave; size counts the live ones")
    generation: int
    epoch: int
    positions: list[CommittedBody]


class GroupOffsets(GroupBody):
    """A group of readers, with its last resets, the oldest first."""

    owner: str | None = Field(
        description="Label of the token that it belongs to; `*` for every label, null for nobody"
    )
    resets: list[ResetBody]


class CommitResponse(GroupBody):
    """The committed positions of a commit's partitions."""

    number: int = Field(description="The number of the endpoint's last accepted commit")


@router.put(
    "",
    summary="Commit positions",
    response_model=CommitResponse,
    response_description="The committed positions",
    responses=problems(404, 409, 413),
    openapi_extra=body_of_model(CommitPut),
)
async def commit_offsets(
    name: Name, group: InGroup, request: Request, principal: Committer
) -> Response:
    """Commit all of the positions, or none of them.

    Only the live instance of a place, in the group's current generation, can commit, and only
    forward. A number that is not above the last one changes nothing.
    """
    body = await read_model(request, CommitPut)
    offsets: Offsets = request.app.state.parts.offsets
    commit = Commit(
        channel=name,
        channel_uid=body.uid,
        group=group,
        endpoint=body.id,
        epoch=body.epoch,
        generation=body.generation,
        topic_id=body.topic_id,
        number=body.number,
        positions=_positions_of(body.positions),
    )
    result = await asyncio.wrap_future(offsets.submit(commit, principal=principal))
    positions = [(result.member, position) for position in result.positions]
    return json_response(_group_json(result.group, positions) | {"number": result.number})


@router.get(
    "",
    summary="Read a group's positions",
    response_model=GroupOffsets,
    response_description="The group",
    responses=problems(404),
)
def get_offsets(
    name: Name,
    group: InGroup,
    _viewer: Viewer,
    offsets: OffsetsDep,
    index: Annotated[Index | None, Query(description="Of a member of a broadcast group")] = None,
) -> Response:
    """Return the group's committed positions; partitions without one are left out."""
    return json_response(_report_json(offsets.fetch(name, group, index=index)))


@router.post(
    "/reset",
    summary="Set a group's positions",
    response_model=GroupOffsets,
    response_description="The group with its new positions",
    responses=problems(404, 409, 413),
)
def reset_offsets(
    name: Name,
    group: InGroup,
    body: ResetPost,
    principal: Viewer,
    offsets: OffsetsDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Set positions, forward or back, in a new generation of the group.

    409 `members_open` while a member is alive, unless forced. Needs the scope `manage`, or `read`
    and the label of the group's owner. The principal, the time and the
    reason are in the history.
    """
    content = body.model_dump_json(by_alias=True)
    response = offsets.reset(
        name,
        group,
        Reset(
            **body.model_dump(exclude={"uid", "positions"}),
            positions=None if body.positions is None else _positions_of(body.positions),
        ),
        uid=body.uid,
        principal=principal,
        request=request_of(
            idempotency_key, principal, "RESET", name, group, content, precondition=Precondition()
        ),
        render=lambda report: StoredResponse(
            status=200, headers={}, body=text_of(_report_json(report))
        ),
    )
    return Response(response.body, response.status, media_type="application/json")


def _positions_of(positions: Iterable[PositionPut]) -> tuple[Position, ...]:
    return tuple(Position(**vars(position)) for position in positions)


def _report_json(report: GroupReport) -> dict[str, Any]:
    resets = [body_of(ResetBody, reset, reason=reset.cause) for reset in report.resets]
    return _group_json(report.group, report.positions) | {
        "owner": report.group.owner,
        "resets": resets,
    }


def _group_json(group: Group, positions: Iterable[tuple[int, Committed]]) -> dict[str, Any]:
    return {
        "group": group.name,
        "mode": str(group.mode),
        "size": group.size,
        "dynamic": group.dynamic,
        "generation": group.generation,
        "epoch": group.epoch,
        "positions": [_committed_json(member, committed) for member, committed in positions],
    }


def _committed_json(member: int, committed: Committed) -> dict[str, Any]:
    return committed.to_dict() | {
        "index": None if member < 0 else member,
        "epoch": committed.epoch,
        "number": committed.number,
        "committed_at": time_json(committed.committed_at),
    }


Before = Annotated[list[PositionPut], Field(max_length=MAX_PARTITIONS), _EACH_ONCE]


class AdvancePost(RequestModel):
    """The body of `POST …/offsets/advance`."""

    uid: Uid = Field(description="Of the channel")
    topic_id: TopicId
    positions: Positions
    before: Before = Field(
        description="The group's last known positions in these partitions; a partition left out "
        "has no position yet"
    )


@router.post(
    "/advance",
    summary="Commit positions without membership",
    response_model=GroupOffsets,
    response_description="The positions of the given partitions",
    responses=problems(404, 409, 413),
)
def advance_offsets(
    name: Name, group: InGroup, body: AdvancePost, principal: Viewer, offsets: OffsetsDep
) -> Response:
    """Compare and set all of the positions, or none of them.

    For readers that choose their own partitions. Only while no member of the group is alive (409
    `members_open`), and only forward. 409 `position_moved` if another reader has moved a position.
    A repeat changes nothing.
    """
    change = Advance(
        positions=_positions_of(body.positions),
        before={position.partition: position for position in _positions_of(body.before)},
        topic_id=body.topic_id,
    )
    report = offsets.advance(name, group, change, uid=body.uid, principal=principal)
    return json_response(_report_json(report))


_SHOWN = 100


class PassedPost(RequestModel):
    """The body of `POST …/offsets/passed`."""

    uid: Uid = Field(description="Of the channel")
    topic_id: TopicId
    offsets: Ends = Field(description="By partition, the lowest offset to wait for")


class MissingBody(BaseModel):
    """A partition in which the group has not committed that far."""

    index: int | None = Field(description="Of the member, in broadcast groups")
    partition: int
    committed: int | None = Field(description="null: nothing in this topic")
    wanted: int


class PassedBody(BaseModel):
    """Whether the group has committed that far in all of the partitions."""

    passed: bool
    known: bool = Field(description="Whether the group ever had a member")
    lacking: int = Field(description="Number of missing partitions, or partitions of members")
    missing: list[MissingBody] = Field(description=f"The first {_SHOWN} of them")


@router.post(
    "/passed",
    summary="Wait until a group has committed past offsets",
    response_model=PassedBody,
    response_description="The result, also after the time limit",
    responses=problems(404, 409, 413),
)
async def wait_for_offsets(
    name: Name,
    group: InGroup,
    body: PassedPost,
    request: Request,
    _viewer: Viewer,
    acknowledgements: AcknowledgementsDep,
    wait: Wait = 0,
) -> Response:
    """Wait until the group has committed past the offsets, or until the end of `wait`.

    In a broadcast group, every member has to. Also waits for the first member of a group.
    """
    bounds = Bounds(
        topic_id=body.topic_id,
        offsets={int(partition): end for partition, end in body.offsets.items()},
    )
    acknowledgement = await unless_disconnected(
        request, acknowledgements.wait(name, group, bounds, uid=body.uid, timeout_s=wait)
    )
    if wait:
        await authenticate_again(request)
    # None if the client has disconnected.
    result = acknowledgement or AckResult(known=False, missing=())
    missing = result.missing
    return json_response(
        body_of(PassedBody, result, lacking=len(missing), missing=missing[:_SHOWN])
    )


class KafkaGroupBody(BaseModel):
    """A consumer group of Kafka."""

    name: str
    active: bool = Field(description="Whether it has members")


class ImportPosition(BaseModel):
    """A position: the next record to read."""

    offset: int
    record: int


class PartitionImportBody(BaseModel):
    """The position of a partition before and after the import."""

    partition: int
    result: ImportResult = Field(
        description="`imported`: it becomes Kafka's offset. `kept`: the group has read as far or "
        "further here. `absent`: Kafka's group has no offset"
    )
    kafka_offset: int | None
    before: ImportPosition | None
    after: ImportPosition | None
    begin_offset: int = Field(description="The partition's first available offset")
    end_offset: int = Field(description="The offset after its last message")


class RefusalBody(BaseModel):
    """The error that the import answers."""

    code: str
    detail: str


class ImportBody(BaseModel):
    """What an import does to a group's positions."""

    group: str
    kafka_group: KafkaGroupBody
    topic: str
    members: int = Field(description="Live members of the group at the gateway")
    refusal: RefusalBody | None = Field(description="Why the import is refused; null: it is not")
    partitions: list[PartitionImportBody]


class ImportPost(RequestModel):
    """The body of `POST …/offsets/import`."""

    uid: Uid = Field(description="Of the channel")
    kafka_group: KafkaGroupName | None = Field(
        default=None, description="The name in Kafka, by default the same"
    )


@router.get(
    "/import",
    summary="Plan the import of offsets from Kafka",
    response_model=ImportBody,
    response_description="The plan",
    responses=problems(404, 409),
)
def plan_import(
    name: Name,
    group: InGroup,
    _reader: Reader,
    imports: ImportsDep,
    kafka_group: Annotated[
        KafkaGroupName | None, Query(description="The name in Kafka, by default the same")
    ] = None,
) -> Response:
    """Return what an import of the offsets of Kafka's own consumer group would do, or its refusal.

    Changes nothing.
    """
    return json_response(_import_json(imports.plan(name, group, kafka_group=kafka_group or group)))


@router.post(
    "/import",
    summary="Import offsets from Kafka",
    response_model=ImportBody,
    response_description="What was done",
    responses=problems(404, 409, 413),
)
def import_offsets(
    name: Name, group: InGroup, body: ImportPost, principal: Reader, imports: ImportsDep
) -> Response:
    """Store the committed offsets of Kafka's own consumer group as the group's positions.

    Positions never move back. 409 `members_open` while the group has members, in Kafka or here, and
    `topic_changed` if the offsets are not of the channel's topic. A repeat changes nothing. The
    principal and the time are in the history, with those of resets.
    """
    plan = imports.run(
        name,
        group,
        kafka_group=body.kafka_group or group,
        uid=body.uid,
        principal=principal,
    )
    return json_response(_import_json(plan))


def _import_json(plan: ImportPlan) -> dict[str, Any]:
    refusal = plan.refusal()
    return {
        "group": plan.group,
        "kafka_group": {"name": plan.kafka_group.name, "active": plan.kafka_group.active},
        "topic": plan.topic,
        "members": plan.members,
        "refusal": None if refusal is None else {"code": refusal.code, "detail": str(refusal)},
        "partitions": [
            {
                "partition": partition.partition,
                "result": partition.result,
                "kafka_offset": partition.kafka_offset,
                "before": _import_position(partition.before),
                "after": _import_position(partition.after),
                "begin_offset": partition.watermarks.begin_offset,
                "end_offset": partition.watermarks.end_offset,
            }
            for partition in plan.partitions
        ],
    }


def _import_position(position: Position | None) -> dict[str, int] | None:
    return None if position is None else {"offset": position.offset, "record": position.record}
