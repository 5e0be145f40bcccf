"""Batches, manifests and commits of a channel's ledger: values of the gateway's API."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from sluiceway.rest.endpoints import Position, position_json
from sluiceway.rest.parsing import JsonNode, JsonPath, incompatible

__all__ = [
    "DEFAULT_LEASE_MS",
    "SLICE_INTERVALS",
    "Batch",
    "BatchLease",
    "BatchRequest",
    "CommitPage",
    "CommitResult",
    "Committed",
    "Interval",
    "KnownCommit",
    "LedgerEvent",
    "LostRecords",
    "Manifest",
    "OpenBatch",
    "PositionAdvance",
    "Repair",
    "RepairPlan",
    "manifest_digest",
    "manifest_json",
    "manifest_slices",
]

SLICE_INTERVALS: Final = 10_000
"""The most intervals in one request."""
DEFAULT_LEASE_MS: Final = 30_000
"""The time for which the batch of a killed writer holds readers back; the gateway's default."""


class Interval(NamedTuple):
    """Consecutive offsets from `first` up to, not including, `end`."""

    first: int
    end: int


Manifest: TypeAlias = Mapping[int, Sequence[Interval]]
"""By partition the sorted intervals that a batch's producers wrote."""


def _read_runs(node: JsonNode) -> dict[int, tuple[Interval, ...]]:
    found = node.read(Mapping[int, tuple[JsonNode, ...]])  # type: ignore[type-abstract]
    return {partition: tuple(map(_read_interval, runs)) for partition, runs in found.items()}


def _read_interval(node: JsonNode) -> Interval:
    match node.value:
        case [int(first), int(end)]:
            return Interval(first, end)
    raise incompatible(node.path, "is not an interval of offsets")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch in the view of its writer.

    `state` is open, committed or aborted. `begin` names the partitions that the batch may write
    to, each with a lower bound of its offsets. A committed batch has the `number` of its commit,
    its count of `records` and, for the last batches, the `counts` by partition.
    """

    id: str
    key: str
    owner: str
    epoch: int
    state: str
    begin: Mapping[int, int]
    number: int | None
    records: int | None
    counts: Mapping[int, int] | None
    lease_until: datetime | None
    topic_id: str | None = None

    @property
    def is_committed(self) -> bool:
        """Whether the key was committed before, so nothing may be written for it."""
        return self.state == "committed"


@dataclass(frozen=True, kw_only=True)
class CommitResult:
    """A commit: its number, and `stable` by partition after it."""

    id: str
    state: str
    number: int
    stable: Mapping[int, int]
    committed_at: datetime


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """The request for a batch. Plain data: all processes that send it get the same batch.

    `owner` is the query or job, and its sink, that the key belongs to. `instance` is one run of
    it; with `takeover`, it aborts the batches of the owner's earlier instances at once. `ordinal`
    is the batch's number in a stream. With `own_key`, only this instance ever uses the key, which
    is pruned later. `previous` is the last commit of a writer: without it in the database, the
    batch is refused.
    """

    channel: str
    uid: str
    key: str
    owner: str
    instance: str
    takeover: bool = False
    ordinal: int | None = None
    own_key: bool = False
    lease_ms: int = DEFAULT_LEASE_MS
    topic_id: str | None = None
    previous: CommitResult | None = None


@dataclass(frozen=True, kw_only=True)
class KnownCommit:
    """The last commit that a reader knows: `number` and `at` of a Committed."""

    number: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class BatchLease:
    """A batch's state and lease after a renewal."""

    id: str
    state: str
    lease_until: datetime | None

    @property
    def is_open(self) -> bool:
        """Whether the batch can still be committed."""
        return self.state == "open"


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """An open batch: by partition, it holds readers back at `begin`."""

    key: str
    owner: str
    since: datetime
    begin: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The committed part of a channel, as of commit `number`.

    Records below `stable` are final. Those in `runs` are visible; the list begins at the requested
    offsets. `truncated` has the partitions with more runs, and the offset of the next request.
    `visible_end` is the end of the last run, which may be above `stable`. `halted` is the reason
    why the ledger accepts no more commits, or None. `repaired` is the number of the last repair,
    or None, and `given_up` are the intervals that repairs have removed from the runs. `removed` are
    the partitions of which retention has removed runs of this state since commit `number`. `at` is
    the time of that commit, and `known_at` that of the number `known` of the request.
    """

    uid: str
    topic_id: str | None
    number: int
    stable: Mapping[int, int]
    visible_end: Mapping[int, int]
    runs: Annotated[Mapping[int, tuple[Interval, ...]], JsonPath("runs", read=_read_runs)]
    truncated: Mapping[int, int] = field(default_factory=dict)
    open: tuple[OpenBatch, ...] = ()
    halted: str | None = None
    repaired: int | None = None
    given_up: Annotated[
        Mapping[int, tuple[Interval, ...]], JsonPath("given_up", read=_read_runs)
    ] = field(default_factory=dict)
    removed: tuple[int, ...] = ()
    at: datetime | None = None
    known_at: datetime | None = None
    etag: str | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class LedgerEvent:
    """An end of a batch: `kind` is commit, abort or reap."""

    number: int
    kind: str
    key: str
    owner: str
    records: int | None
    at: datetime
    opened_at: datetime | None
    state: str


@dataclass(frozen=True, kw_only=True)
class LostRecords:
    """Committed messages of a partition, from offset `first` on, that Kafka has lost."""

    partition: int
    first: int
    end: int
    messages: int


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A repair of a halted channel: its principal, its reason and the removed records."""

    number: int
    at: datetime
    by: str
    reason: str
    cause: str
    lost: tuple[LostRecords, ...]


@dataclass(frozen=True, kw_only=True)
class RepairPlan:
    """The records that a repair would remove, and the open batches that it would abort."""

    cause: str
    lost: tuple[LostRecords, ...]
    open: tuple[OpenBatch, ...]


@dataclass(frozen=True, kw_only=True)
class CommitPage:
    """Ended batches and repairs of a channel, the newest first, and batches that are open."""

    events: Annotated[tuple[LedgerEvent, ...], JsonPath("commits")]
    open: tuple[OpenBatch, ...] = ()
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PositionAdvance:
    """A reader's positions to commit, alone or with a batch: from `before` to `after`.

    `channel`, `uid` and `topic_id` are those of the reader's channel. `endpoint`, `epoch` and
    `generation` are those of the member that commits, and `number` counts its commits. Without
    membership, `endpoint` is None.
    """

    channel: str
    uid: str
    topic_id: str | None
    group: str
    endpoint: str | None
    epoch: int
    generation: int
    number: int
    before: Mapping[int, Position | None]
    after: Mapping[int, Position]

    def to_json(self) -> dict[str, Any]:
        """Return the positions in the form of a commit's body."""
        return {
            "channel": self.channel,
            "uid": self.uid,
            "topic_id": self.topic_id,
            "group": self.group,
            "id": self.endpoint,
            "epoch": self.epoch,
            "generation": self.generation,
            "number": self.number,
            "positions": [
                {
                    "partition": partition,
                    "from": (before := self.before.get(partition)) and position_json(before),
                    "to": position_json(position),
                }
                for partition, position in sorted(self.after.items())
            ],
        }


def manifest_json(manifest: Manifest) -> dict[str, list[list[int]]]:
    """Return a manifest in the form of requests, sorted by partition."""
    return {
        str(partition): [[first, end] for first, end in intervals]
        for partition, intervals in sorted(manifest.items())
        if intervals
    }


def manifest_digest(manifest: Manifest) -> str:
    """Return the hexadecimal SHA-256 of a manifest's canonical JSON."""
    text = json.dumps(manifest_json(manifest), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def manifest_slices(manifest: Manifest) -> Iterator[dict[int, list[Interval]]]:
    """Cut a manifest into parts of at most 10,000 intervals."""
    part: dict[int, list[Interval]] = {}
    room = SLICE_INTERVALS
    for partition, intervals in sorted(manifest.items()):
        taken = 0
        while taken < len(intervals):
            if not room:
                yield part
                part, room = {}, SLICE_INTERVALS
            cut = intervals[taken : taken + room]
            part[partition] = list(cut)
            taken += len(cut)
            room -= len(cut)
    if part:
        yield part
