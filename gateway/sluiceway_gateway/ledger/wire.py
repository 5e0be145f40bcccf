"""JSON of ledgers: request models and responses."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from sluiceway_gateway.api.json import body_of, fields_json
from sluiceway_gateway.api.models import (
    INT64_MAX,
    Count,
    GroupName,
    PartitionText,
    RequestModel,
    Uid,
    each_once,
)
from sluiceway_gateway.core.errors import InvalidManifest, InvalidRequest, Violation
from sluiceway_gateway.core.names import MAX_PARTITIONS
from sluiceway_gateway.endpoints.positions import Position
from sluiceway_gateway.ledger.batches import LEASE_MS, MAX_LEASE_MS, ONCE, BatchText, OpenRequest
from sluiceway_gateway.ledger.model import Batch, Manifest, manifest_of
from sluiceway_gateway.ledger.reading import CommitList, VisibleOffsets
from sluiceway_gateway.ledger.repairing import Repair
from sluiceway_gateway.ledger.service import (
    BatchInTopic,
    CommittedBatch,
    MemberCommit,
    PositionChange,
)

MAX_INTERVALS = 10_000
"""Intervals in one request; larger manifests are uploaded in slices."""
MAX_SLICES = 50
"""Slices of one commit: with more intervals it would take longer than clients wait for it."""

Slices = Annotated[int, Field(ge=0, le=MAX_SLICES)]
_Offset = Annotated[int, Field(ge=0, le=INT64_MAX)]
Intervals = Annotated[
    dict[PartitionText, list[Annotated[list[_Offset], Field(min_length=2, max_length=2)]]],
    Field(
        max_length=MAX_PARTITIONS,
        description=f"By partition, [first, end] of offsets written; at most {MAX_INTERVALS:,}",
    ),
]
Numbers = dict[PartitionText, Count]
StateName = Literal["open", "committed", "aborted"]


class BatchPost(OpenRequest):
    """The body of `POST …/batches`."""

    uid: Uid = Field(description="Of the channel")


class SlicePut(RequestModel):
    """The body of `PUT …/batches/{id}/manifest/{slice}`."""

    uid: Uid = Field(description="Of the channel")
    instance: BatchText
    manifest: Intervals


class PlacePut(RequestModel):
    """A position: the next record to read."""

    offset: _Offset
    record: int = Field(default=0, ge=0, le=2**31 - 1)
    metadata: str | None = Field(default=None, max_length=4096)


class PositionMove(RequestModel):
    """A reader's old and new position in a partition."""

    partition: int = Field(ge=0, lt=MAX_PARTITIONS)
    from_: PlacePut | None = Field(alias="from", description="null: none was committed before")
    to: PlacePut


class PositionsPost(RequestModel):
    """Positions of a reader that are committed with a batch."""

    channel: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="The channel of the positions; null: the batch's own"
    )
    uid: Uid | None = Field(default=None, description="Of that channel")
    topic_id: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    group: GroupName
    id: Uid | None = Field(
        default=None,
        description="Of the endpoint, with the three numbers; null without membership, while no "
        "member of the group is alive",
    )
    epoch: int | None = Field(default=None, ge=1, le=INT64_MAX)
    generation: int | None = Field(default=None, ge=1, le=INT64_MAX)
    number: int | None = Field(
        default=None, ge=1, le=INT64_MAX, description="Counts the endpoint's commits, from 1"
    )
    positions: Annotated[
        list[PositionMove],
        Field(min_length=1, max_length=MAX_PARTITIONS),
        each_once(attrgetter("partition"), ONCE),
    ]


class CommitPost(RequestModel):
    """The body of `POST …/batches/{id}/commit`."""

    uid: Uid = Field(description="Of the channel")
    instance: BatchText
    digest: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description='SHA-256 of the whole manifest as JSON: {"0":[[1,2]]}, by partition number, '
        "without spaces",
    )
    manifest: Intervals = Field(default_factory=dict)
    slices: Slices = Field(default=0, description="Number of uploaded slices, instead of manifest")
    records: Count
    counts: Numbers = Field(max_length=MAX_PARTITIONS, description="Records by partition")
    positions: PositionsPost | None = None


class AbortPost(RequestModel):
    """The body of `POST …/batches/{id}/abort`."""

    uid: Uid = Field(description="Of the channel")
    instance: BatchText | None = Field(description="null: any, with the scope manage or its label")
    cause: str = Field(min_length=1, max_length=1000)


class BatchInstance(RequestModel):
    """A batch, and the instance that has opened it."""

    id: Uid
    instance: BatchText


class RenewPost(RequestModel):
    """The body of `POST …/batches/renew`."""

    uid: Uid = Field(description="Of the channel")
    batches: list[BatchInstance] = Field(min_length=1, max_length=1000)
    lease_ms: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LEASE_MS,
        description=f"From now on; 0: the leases are unchanged; null: {LEASE_MS}",
    )


class BatchBody(BaseModel):
    """A batch."""

    id: str
    key: str
    owner: str
    epoch: int = Field(description="Number of the instance")
    state: StateName
    begin: dict[str, int] = Field(description="By partition, lower bound of its offsets")
    number: int | None = Field(description="Of its end in the channel")
    records: int | None
    counts: dict[str, int] | None
    lease_until: datetime
    cause: str | None
    topic_id: str


class CommitBody(BaseModel):
    """A committed batch."""

    id: str
    state: Literal["committed"]
    number: int
    stable: dict[str, int] = Field(description="By partition, the end of what readers read")
    committed_at: datetime


class LeaseBody(BaseModel):
    """The lease of a batch, or its end."""

    id: str
    state: StateName
    lease_until: datetime


class LeasesBody(BaseModel):
    """The requested batches, without unknown ones."""

    batches: list[LeaseBody]


class OpenBatchBody(BaseModel):
    """An open batch, which holds readers back at its begin."""

    id: str
    key: str
    owner: str
    since: datetime
    begin: dict[str, int]


class VisibleOffsetsBody(BaseModel):
    """Visible runs of a channel."""

    uid: str
    topic_id: str
    number: int = Field(description="Of the last end of a batch")
    at: datetime | None = Field(description="The time of that end")
    known_at: datetime | None = Field(description="The time of `known`; null: it is unknown")
    stable: dict[str, int] = Field(description="By partition, the end of what readers read")
    visible_end: dict[str, int] = Field(description="By partition, the end of the last run")
    runs: dict[str, list[list[int]]] = Field(
        description="By partition, [first, end]; below stable, or of a snapshot below visible_end"
    )
    truncated: dict[str, int] = Field(description="By partition, `from` of the next part")
    open: list[OpenBatchBody]
    halted: str | None = Field(description="The reason of the halt")
    repaired: int | None = Field(description="Number of the last repair, which removed runs")
    given_up: dict[str, list[list[int]]] = Field(
        description="By partition, offsets that repairs removed"
    )
    removed: list[int] = Field(
        description="Partitions of which retention removed records of this state after `number`"
    )


class EndBody(BaseModel):
    """The end of a batch."""

    number: int
    kind: Literal["commit", "abort", "reap"]
    id: str
    key: str
    owner: str
    state: StateName
    records: int | None
    cause: str | None
    at: datetime
    opened_at: datetime


class CommitsBody(BaseModel):
    """Ends of batches and repairs, newest first, and open batches."""

    commits: list[EndBody]
    repairs: list[Repair]
    open: list[OpenBatchBody]


def checked_manifest(intervals: Mapping[str, list[list[int]]]) -> Manifest:
    """Return a request's manifest. Raises InvalidManifest."""
    count = sum(map(len, intervals.values()))
    if count > MAX_INTERVALS:
        raise InvalidManifest(
            f"The request has {count:,} intervals, and takes {MAX_INTERVALS:,}: upload the "
            "manifest in slices with PUT …/manifest/{slice}, and commit with their number.",
            (Violation(pointer="/manifest", message=f"at most {MAX_INTERVALS:,} intervals"),),
        )
    return manifest_of({int(partition): pairs for partition, pairs in intervals.items()})


def position_change(name: str, uid: str, topic_id: str, body: PositionsPost) -> PositionChange:
    """Return the change of positions, by default in the batch's own channel."""
    if body.channel is not None and (body.uid is None or body.topic_id is None):
        raise InvalidRequest.at("/positions", "a channel is given with its uid and topic_id")
    return PositionChange(
        channel=body.channel or name,
        channel_uid=body.uid or uid,
        group=body.group,
        topic_id=topic_id,
        positions=tuple(_position(position.partition, position.to) for position in body.positions),
        member=_member_commit(body),
        before={
            position.partition: None
            if position.from_ is None
            else _position(position.partition, position.from_)
            for position in body.positions
        },
    )


def _member_commit(body: PositionsPost) -> MemberCommit | None:
    """Return the member's endpoint and numbers, or None. Raises InvalidRequest for some of them."""
    numbers = (body.epoch, body.generation, body.number)
    if body.id is None and numbers == (None, None, None):
        return None
    if body.id is None or None in numbers:
        raise InvalidRequest.at("/positions", "id, epoch, generation and number belong together")
    epoch, generation, number = (value for value in numbers if value is not None)
    return MemberCommit(endpoint=body.id, epoch=epoch, generation=generation, number=number)


def _position(partition: int, place: PlacePut) -> Position:
    return Position(partition=partition, **vars(place))


def batch_json(batch_in_topic: BatchInTopic) -> dict[str, Any]:
    """Return the JSON of a batch."""
    return body_of(BatchBody, batch_in_topic.batch, topic_id=batch_in_topic.topic_id)


def commit_json(committed: CommittedBatch) -> dict[str, Any]:
    """Return the JSON of a commit."""
    batch = committed.batch
    return body_of(CommitBody, batch, stable=committed.stable, committed_at=batch.ended_at)


def committed_json(offsets: VisibleOffsets) -> dict[str, Any]:
    """Return the JSON of visible runs, with each partition of the channel."""
    nothing = dict.fromkeys(range(offsets.partitions), 0)
    return body_of(
        VisibleOffsetsBody,
        offsets,
        stable={**nothing, **offsets.stable},
        visible_end={**nothing, **offsets.visible_end},
        open=open_json(offsets.open),
    )


def commits_json(commits: CommitList) -> dict[str, Any]:
    """Return the JSON of ended and open batches."""
    return {
        "commits": [
            body_of(EndBody, batch, kind=batch.ending, at=batch.ended_at) for batch in commits.ended
        ],
        "repairs": [fields_json(repair) for repair in commits.repairs],
        "open": open_json(commits.open),
    }


def open_json(batches: Iterable[Batch]) -> list[dict[str, Any]]:
    """Return the JSON of open batches."""
    return [body_of(OpenBatchBody, batch, since=batch.opened_at) for batch in batches]
