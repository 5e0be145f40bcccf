"""Routes of batches, visible runs, commits, and the repair of a halted channel."""

import re
from operator import attrgetter
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BaseModel, Field

from sluiceway_gateway.api.auth import Manager, Viewer, Writer
from sluiceway_gateway.api.deps import ChangesDep, Service
from sluiceway_gateway.api.json import body_of, fields_json, json_response
from sluiceway_gateway.api.middleware import long_poll
from sluiceway_gateway.api.models import INT64_MAX, Count, PartitionText, RequestModel, Time, Uid
from sluiceway_gateway.api.params import LABEL_TEXT, Conditions, Label, Name, Reason, Wait
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.core.changes import of_channel
from sluiceway_gateway.core.db.engine import ChangeKind
from sluiceway_gateway.core.errors import InvalidRequest
from sluiceway_gateway.core.names import MAX_PARTITIONS
from sluiceway_gateway.core.preconditions import Precondition
from sluiceway_gateway.ledger.batches import BatchText, CommitRequest, lease_of
from sluiceway_gateway.ledger.reading import CommittedQuery, LedgerReads
from sluiceway_gateway.ledger.repair_service import Repairs
from sluiceway_gateway.ledger.repairing import LostRecords, Repair, RepairRequest
from sluiceway_gateway.ledger.service import Ledgers
from sluiceway_gateway.ledger.wire import (
    MAX_INTERVALS,
    MAX_SLICES,
    AbortPost,
    BatchBody,
    BatchPost,
    CommitBody,
    CommitPost,
    CommitsBody,
    LeaseBody,
    LeasesBody,
    OpenBatchBody,
    RenewPost,
    SlicePut,
    VisibleOffsetsBody,
    batch_json,
    checked_manifest,
    commit_json,
    commits_json,
    committed_json,
    open_json,
    position_change,
)

#: Maximum characters of `from`, because URLs are limited.
MAX_STARTS = 5_000

router = APIRouter(prefix="/v1/channels/{name}", tags=["ledger"], route_class=StrictRoute)

CommitThreadsDep = Annotated[CapacityLimiter, Depends(Service("commit_threads"))]
LedgerReadsDep = Annotated[LedgerReads, Depends(Service("ledger_reads"))]
LedgersDep = Annotated[Ledgers, Depends(Service("ledgers"))]
RepairsDep = Annotated[Repairs, Depends(Service("repairs"))]

BatchId = Annotated[Uid, Path(description="The batch's id")]
SliceNumber = Annotated[int, Path(ge=0, lt=MAX_SLICES, description="From 0")]
OfChannel = Annotated[Uid, Query(description="Of the channel")]


_START = re.compile(r"(0|[1-9][0-9]{0,5}):(0|[1-9][0-9]{0,18})")


def _starts_of(text: str | None) -> dict[int, int] | None:
    """Return the offsets of `0:120,1:7` by partition. Raises InvalidRequest."""
    if text is None:
        return None
    starts: dict[int, int] = {}
    for item in text.split(","):
        match = _START.fullmatch(item)
        if match is None or int(match[2]) > INT64_MAX - 1 or int(match[1]) >= MAX_PARTITIONS:
            raise InvalidRequest.at("query:from", "expected PARTITION:OFFSET, joined by commas")
        if int(match[1]) in starts:
            raise InvalidRequest.at("query:from", f"partition {match[1]} is given twice")
        starts[int(match[1])] = int(match[2])
    return starts


@router.post(
    "/batches",
    summary="Open a batch",
    response_model=BatchBody,
    response_description="It is open, or its key is committed",
    responses=problems(404, 409, 413),
)
def open_batch(name: Name, body: BatchPost, writer: Writer, ledgers: LedgersDep) -> Response:
    """Return the batch of a key; repeats of an instance get the same batch.

    If the state is `committed`, write nothing. Write nothing before the response, and only to the
    partitions in `begin`.
    """
    batch = ledgers.open(name, body, uid=body.uid, principal=writer)
    return json_response(batch_json(batch))


@router.put(
    "/batches/{id}/manifest/{slice}",
    summary="Upload a slice of a large manifest",
    response_model=BatchBody,
    response_description="It is stored",
    responses=problems(404, 409, 413),
)
def upload_slice(
    name: Name, id: BatchId, slice: SliceNumber, body: SlicePut, writer: Writer, ledgers: LedgersDep
) -> Response:
    """Store a part of an open batch's manifest, until the commit with the digest of the whole."""
    manifest = checked_manifest(body.manifest)
    batch = ledgers.upload(
        name, id, slice, manifest, uid=body.uid, instance=body.instance, principal=writer
    )
    return json_response(batch_json(batch))


@router.post(
    "/batches/{id}/commit",
    summary="Commit a batch",
    response_model=CommitBody,
    response_description="It is committed",
    responses=problems(404, 409, 413),
)
async def commit_batch(
    name: Name,
    id: BatchId,
    body: CommitPost,
    writer: Writer,
    ledgers: LedgersDep,
    commit_threads: CommitThreadsDep,
) -> Response:
    """Make the manifest's offsets visible, and commit a reader's positions with them, or neither.

    A repeat with the same digest gets the same response, so repeat a commit without a response.
    """

    def commit() -> Response:
        change = None
        if body.positions is not None:
            topic_id = body.positions.topic_id or ledgers.topic_id(name, uid=body.uid)
            change = position_change(name, body.uid, topic_id, body.positions)
        request = CommitRequest(
            batch=id,
            instance=body.instance,
            digest=body.digest,
            manifest=checked_manifest(body.manifest),
            records=body.records,
            counts={int(partition): count for partition, count in body.counts.items()},
        )
        committed = ledgers.commit(
            name, request, uid=body.uid, slices=body.slices, positions=change, principal=writer
        )
        return json_response(commit_json(committed))

    return await to_thread.run_sync(commit, limiter=commit_threads)


@router.post(
    "/batches/{id}/abort",
    summary="Abort a batch",
    response_model=BatchBody,
    response_description="It is aborted",
    responses=problems(404, 409, 413),
)
def abort_batch(
    name: Name, id: BatchId, body: AbortPost, writer: Writer, ledgers: LedgersDep
) -> Response:
    """End a batch; none of its records become visible. 409 `batch_committed` after its commit."""
    batch = ledgers.abort(
        name, id, uid=body.uid, instance=body.instance, cause=body.cause, principal=writer
    )
    return json_response(batch_json(batch))


@router.post(
    "/batches/renew",
    summary="Renew leases of batches",
    response_model=LeasesBody,
    response_description="The leases, with the ends of batches that are not open",
    responses=problems(404, 409, 413),
)
def renew_batches(name: Name, body: RenewPost, writer: Writer, ledgers: LedgersDep) -> Response:
    """Renew the leases of open batches. The response has the state of batches that have ended."""
    instances = {batch.id: batch.instance for batch in body.batches}
    batches = ledgers.renew(
        name, instances, uid=body.uid, lease=lease_of(body.lease_ms), principal=writer
    )
    return json_response({"batches": [body_of(LeaseBody, batch) for batch in batches]})


class BatchOwnerPost(RequestModel):
    """The body of `POST …/batches/owner`: either `writer` or `key`."""

    uid: Uid = Field(description="Of the channel")
    writer: BatchText | None = Field(
        default=None, description="`owner` of its batches, as `GET …/commits` shows it"
    )
    key: BatchText | None = Field(default=None, description="A key of its batches")
    owner: Label = Field(description=LABEL_TEXT)
    reason: Reason = None


class BatchOwnerBody(BaseModel):
    """A writer of batches, and the label that they and their keys belong to."""

    writer: str
    owner: str


@router.post(
    "/batches/owner",
    summary="Transfer batches and keys to another label",
    response_model=BatchOwnerBody,
    response_description="The new owner",
    responses=problems(404, 409, 413),
)
def transfer_batches(
    name: Name, body: BatchOwnerPost, principal: Manager, ledgers: LedgersDep
) -> Response:
    """Give all batches and keys of a writer to the tokens of a label, or to every label."""
    if (body.writer is None) == (body.key is None):
        raise InvalidRequest.at("/writer", "give either the writer or one of its keys")
    owner = ledgers.transfer(
        name,
        **body.model_dump(include={"uid", "writer", "key", "owner", "reason"}),
        principal=principal,
    )
    return json_response({"writer": owner.name, "owner": owner.label})


@router.get(
    "/committed",
    summary="Read visible runs",
    response_model=VisibleOffsetsBody,
    response_description="One consistent state",
    responses=problems(404, 409, also={304: {"description": "No batch has ended since"}}),
)
async def get_committed(
    name: Name,
    uid: OfChannel,
    request: Request,
    _viewer: Viewer,
    ledger_reads: LedgerReadsDep,
    changes: ChangesDep,
    precondition: Conditions,
    from_: Annotated[
        str | None,
        Query(
            alias="from",
            max_length=MAX_STARTS,
            description="0:120,1:7: by partition, the first offset; other partitions are left out. "
            "Request a few hundred at a time, because URLs are limited",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_INTERVALS)] = MAX_INTERVALS,
    number: Annotated[
        int | None, Query(ge=0, le=INT64_MAX, description="Of the truncated response")
    ] = None,
    snapshot: Annotated[
        int | None, Query(ge=0, le=INT64_MAX, description="The state after this commit")
    ] = None,
    snapshot_at: Annotated[Time | None, Query(description="The state at this time")] = None,
    known: Annotated[
        int | None, Query(ge=0, le=INT64_MAX, description="Of an earlier response")
    ] = None,
    wait: Wait = 0,
) -> Response:
    """Return, by partition, the runs below `stable` from the given offsets on.

    A snapshot has the runs of whole batches, which end at its `visible_end`: those of the batches
    up to its number, also above `stable`.

    With `wait` and `If-None-Match`, wait for the end of a batch. If `known_at` is not the `at` that
    you got with the number `known`, the database was restored to an earlier state.
    """
    query = CommittedQuery(
        starts=_starts_of(from_),
        limit=limit,
        number=snapshot if number is None else number,
        at=snapshot_at,
        whole=snapshot is not None or snapshot_at is not None,
        known_number=known,
    )
    committed, unchanged = await long_poll(
        request,
        Precondition() if query.is_past else precondition,
        wait,
        changes=changes,
        awaited=of_channel(uid, ChangeKind.LEDGER),
        read=lambda: ledger_reads.committed(name, query, uid=uid),
        tag=attrgetter("etag"),
    )
    if unchanged:
        return unchanged
    return json_response(committed_json(committed), headers={"ETag": committed.etag})


@router.get(
    "/commits",
    summary="List commits",
    response_model=CommitsBody,
    response_description="Ended batches, newest first, and open ones",
    responses=problems(404, 409),
)
def list_commits(
    name: Name,
    _viewer: Viewer,
    ledger_reads: LedgerReadsDep,
    uid: Annotated[Uid | None, Query(description="Of the channel")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, le=INT64_MAX, description="A number")] = None,
    key: Annotated[BatchText | None, Query(description="Only the batches of this key")] = None,
) -> Response:
    """Return ended batches (commits, aborts, reaped batches), repairs, and open batches."""
    commits = ledger_reads.commits(name, uid=uid, before=before, limit=limit, key=key)
    return json_response(commits_json(commits))


class RepairPlanBody(BaseModel):
    """Records and open batches that a repair gives up."""

    cause: str = Field(description="The reason of the halt")
    lost: list[LostRecords]
    open: list[OpenBatchBody] = Field(description="Batches that it aborts")


class RepairPost(RequestModel):
    """The body of `POST …/ledger/repair`."""

    uid: Uid = Field(description="Of the channel")
    lost_from: dict[PartitionText, Count] = Field(
        min_length=1,
        max_length=MAX_PARTITIONS,
        description="By partition, `first` of the plan's `lost`; the repair gives up nothing else",
    )
    reason: str = Field(min_length=1, max_length=1000, description="Recorded with the repair")


@router.get(
    "/ledger/repair",
    summary="Plan a repair",
    response_model=RepairPlanBody,
    response_description="The plan",
    responses=problems(404, 409),
)
def plan_repair(name: Name, uid: OfChannel, _viewer: Viewer, repairs: RepairsDep) -> Response:
    """Return the committed messages of a halted channel that Kafka has lost; changes nothing.

    409 `ledger_intact` for a channel that is not halted.
    """
    plan = repairs.plan(name, uid=uid)
    return json_response(body_of(RepairPlanBody, plan, open=open_json(plan.aborted)))


@router.post(
    "/ledger/repair",
    summary="Repair a halted channel",
    response_model=Repair,
    response_description="It is repaired",
    responses=problems(404, 409, 413),
)
def repair_ledger(
    name: Name, body: RepairPost, principal: Manager, repairs: RepairsDep
) -> Response:
    """Give up the lost records of the plan, abort all open batches, and end the halt.

    Partitions are filled up to the committed end with messages that no reader sees, so that no
    later record gets an offset that readers have passed. Committed keys stay committed.
    """
    request = RepairRequest(
        lost_from={int(partition): first for partition, first in body.lost_from.items()},
        reason=body.reason,
        by=principal.id,
    )
    repair = repairs.repair(name, request, uid=body.uid, by=principal)
    return json_response(fields_json(repair))
