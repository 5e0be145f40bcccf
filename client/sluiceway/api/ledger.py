"""A channel's ledger: batches, manifests, commits and visible runs as values, and requests."""

import hashlib
import json
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from sluiceway.api.arguments import channel_path
from sluiceway.api.endpoints import PositionAdvance, position_json
from sluiceway.api.parsing import LOCAL, JsonPath, to_json
from sluiceway.api.transport import Backoff, Params, Transport
from sluiceway.errors import CommitUnknown, GatewayError, InvalidRequest

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
    "LedgerCalls",
    "LedgerEvent",
    "LostRecords",
    "Manifest",
    "OpenBatch",
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

    def in_next_batch(self) -> dict[str, object]:
        """Return it as the `previous` commit of a batch."""
        return {"number": self.number, "at": self.committed_at.isoformat()}


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """The request for a batch. Plain data: all processes that send it get the same batch.

    `owner` is the query or job, and its sink, that the key belongs to. `instance` is one run of
    it; with `takeover`, it aborts the batches of the owner's earlier instances at once. `ordinal`
    is the batch's number in a stream. With `own_key`, only this instance ever uses the key, which
    is pruned later. `previous` is the last commit of a writer: without it in the database, the
    batch is refused.
    """

    channel: Annotated[str, LOCAL]
    uid: str
    key: str
    owner: str
    instance: str
    takeover: Annotated[bool, JsonPath("takeover", required=True)] = False
    ordinal: Annotated[int | None, JsonPath("ordinal", required=True)] = None
    own_key: Annotated[bool, JsonPath("own_key", required=True)] = False
    lease_ms: Annotated[int, JsonPath("lease_ms", required=True)] = DEFAULT_LEASE_MS
    topic_id: Annotated[str | None, LOCAL] = None
    previous: Annotated[
        CommitResult | None, JsonPath("previous", write=CommitResult.in_next_batch)
    ] = None


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
class _Leases:
    batches: Annotated[Mapping[str, BatchLease], JsonPath("batches", by="id")]


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """An open batch: by partition, it holds readers back at `begin`."""

    id: str
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
    the time of that commit, and `known_at` that of the request's `expected_number`.
    """

    uid: str
    topic_id: str | None
    number: int
    stable: Mapping[int, int]
    visible_end: Mapping[int, int]
    runs: Mapping[int, tuple[Interval, ...]]
    truncated: Mapping[int, int] = field(default_factory=dict)
    open: tuple[OpenBatch, ...] = ()
    halted: str | None = None
    repaired: int | None = None
    given_up: Mapping[int, tuple[Interval, ...]] = field(default_factory=dict)
    removed: tuple[int, ...] = ()
    at: datetime | None = None
    known_at: datetime | None = None
    etag: Annotated[str | None, LOCAL] = field(default=None, compare=False)


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


_LIMIT = 10_000
_MAX_INTERVALS = 50 * SLICE_INTERVALS
#: With this number of partitions, even the largest offsets need fewer than 5,000 characters.
_PARTITIONS = 150
_WATERMARK_TIMEOUT_S = 10.0
_BEYOND_WATERMARK = "beyond_watermark"


class LedgerCalls:
    """Requests to the ledgers of a gateway's channels.

    Every request can be repeated: a batch is found by its key and instance, a commit by its
    digest. Each call raises GatewayError and its subclasses.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._sleep, self._monotonic = sleep, monotonic

    @property
    def identity(self) -> Hashable:
        """A key that is equal for calls to one gateway, as one principal."""
        return self._transport.identity

    def clone(self) -> "LedgerCalls":
        """Return a copy with its own connections."""
        return LedgerCalls(self._transport.clone(), sleep=self._sleep, monotonic=self._monotonic)

    def open(self, request: BatchRequest, *, timeout_s: float | None = None) -> Batch:
        """Open the batch of a key, or return its committed batch.

        Raises Conflict `ledger_restored` if the gateway does not have the `previous` commit.
        """
        path = _batches(request.channel)
        return self._transport.fetch(
            Batch, "POST", path, body=request, timeout_s=timeout_s, in_job=True
        )

    def upload(
        self, request: BatchRequest, batch_id: str, *, index: int, manifest: Manifest
    ) -> None:
        """Upload one slice of a manifest to the open batch, at most 10,000 intervals."""
        path = f"{_batches(request.channel)}/{batch_id}/manifest/{index}"
        body = {**_writer(request), "manifest": manifest_json(manifest)}
        self._transport.request("PUT", path, body=body, in_job=True)

    def commit(
        self,
        request: BatchRequest,
        batch: Batch,
        *,
        manifest: Manifest,
        records: int,
        counts: Mapping[int, int],
        positions: PositionAdvance | None = None,
        timeout_s: float | None = None,
    ) -> CommitResult:
        """Commit the records in a batch's manifest, together with positions of a reader.

        A large manifest is uploaded in slices. The request is retried until there is a response,
        and while the partitions' watermarks are below its records. Raises a GatewayError that is
        final if nothing was committed, and CommitUnknown if the state is unknown.
        """
        intervals = sum(map(len, manifest.values()))
        if intervals > _MAX_INTERVALS:
            raise InvalidRequest(
                f"the batch {batch.key!r} has {intervals:,} intervals of offsets; the limit of a "
                f"commit is {_MAX_INTERVALS:,}. Nothing was committed: write less in a batch, or "
                "write without a key, so each task writes to one partition",
                code="invalid_manifest",
            )
        slices = list(manifest_slices(manifest))
        if len(slices) > 1:
            for index, manifest_slice in enumerate(slices):
                self.upload(request, batch.id, index=index, manifest=manifest_slice)
        inline = len(slices) <= 1
        body: dict[str, Any] = {
            **_writer(request),
            "digest": manifest_digest(manifest),
            "manifest": manifest_json(manifest) if inline else {},
            "slices": 0 if inline else len(slices),
            "records": records,
            "counts": {str(partition): count for partition, count in sorted(counts.items())},
            "positions": None if positions is None else _moves_json(positions),
        }
        return self._send_commit(request.channel, batch, body, timeout_s=timeout_s)

    def abort(
        self, request: BatchRequest, batch_id: str, *, cause: str, timeout_s: float | None = None
    ) -> None:
        """Abort a batch. Raises Conflict `batch_committed` if it was committed."""
        path = f"{_batches(request.channel)}/{batch_id}/abort"
        body = {**_writer(request), "cause": cause}
        self._transport.request("POST", path, body=body, timeout_s=timeout_s)

    def abort_open(self, channel: str, batch_id: str, *, uid: str, cause: str) -> None:
        """Abort any instance's open batch. Raises Forbidden without the scope manage or its label.

        May be repeated. Raises Conflict `batch_committed` if it was committed meanwhile.
        """
        body = {"uid": uid, "instance": None, "cause": cause}
        self._transport.request("POST", f"{_batches(channel)}/{batch_id}/abort", body=body)

    def renew(
        self,
        channel: str,
        batches: Mapping[str, str],
        *,
        uid: str,
        lease_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Mapping[str, BatchLease]:
        """Renew the leases of batches, given as instances by batch id; return them by id.

        With `lease_ms` 0, the leases stay as they are.
        """
        named = [{"id": batch, "instance": instance} for batch, instance in batches.items()]
        body = {"uid": uid, "batches": named, "lease_ms": lease_ms}
        path = f"{_batches(channel)}/renew"
        return self._transport.fetch(_Leases, "POST", path, body=body, timeout_s=timeout_s).batches

    def committed(
        self,
        channel: str,
        *,
        uid: str,
        starts: Mapping[int, int],
        seen: str | None = None,
        wait_s: float = 0.0,
        number: int | None = None,
        snapshot: int | datetime | None = None,
        expected_number: int | None = None,
    ) -> Committed | None:
        """Return the committed part of a channel, with the first runs from `starts` on.

        With the ETag `seen`, wait up to `wait_s` for a change and return None without one. The
        `number` of a truncated response requests the rest of its runs. `snapshot` is the number or
        the time of a commit: the response is the state as of that commit. The response has the time
        of the commit `expected_number`.
        """
        at = snapshot.astimezone(UTC).isoformat() if isinstance(snapshot, datetime) else None
        ranges = ",".join(f"{p}:{offset}" for p, offset in sorted(starts.items()))
        params: Params = {
            "uid": uid,
            "limit": _LIMIT,
            "from": ranges or None,
            "number": number,
            "known": expected_number,
            "snapshot_at": at,
            "snapshot": None if isinstance(snapshot, datetime) else snapshot,
        }
        path = f"{channel_path(channel)}/committed"
        return self._transport.poll(Committed, path, params=params, seen=seen, wait_s=wait_s)

    def all_committed(
        self,
        channel: str,
        *,
        uid: str,
        starts: Mapping[int, int],
        seen: str | None = None,
        wait_s: float = 0.0,
        snapshot: int | datetime | None = None,
        expected_number: int | None = None,
    ) -> Committed | None:
        """Like `committed`, but with all runs, from several requests for one state."""
        request = partial(self.committed, channel, uid=uid, snapshot=snapshot)
        named, left = _cut(starts)
        first = request(starts=named, seen=seen, wait_s=wait_s, expected_number=expected_number)
        if first is None or not (first.truncated or left):
            return first
        runs = {partition: list(intervals) for partition, intervals in first.runs.items()}
        removed = set(first.removed)
        left = {**first.truncated, **left}
        while left:
            named, left = _cut(left)
            more = request(starts=named, number=first.number)
            assert more is not None  # noqa: S101 - a request without an ETag has a response
            if more.repaired != first.repaired:
                # A repair in between has removed runs.
                return self.all_committed(
                    channel,
                    uid=uid,
                    starts=starts,
                    snapshot=snapshot,
                    expected_number=expected_number,
                )
            removed.update(more.removed)
            for partition, added in more.runs.items():
                if partition in named:
                    runs.setdefault(partition, []).extend(added)
            left = {**more.truncated, **left}
        merged = {partition: tuple(intervals) for partition, intervals in runs.items()}
        return replace(first, runs=merged, truncated={}, removed=tuple(sorted(removed)))

    def commits(
        self,
        channel: str,
        *,
        uid: str | None = None,
        limit: int = 100,
        before: int | None = None,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> CommitPage:
        """Return the last ended batches with numbers below `before`, and the open ones.

        With a `key`, only its batches.
        """
        params = {"limit": limit, "uid": uid, "before": before, "key": key}
        path = f"{channel_path(channel)}/commits"
        return self._transport.fetch(CommitPage, "GET", path, params=params, timeout_s=timeout_s)

    def repair_plan(self, channel: str, *, uid: str) -> RepairPlan:
        """Return the records that a repair would remove. Raises Conflict `ledger_intact`."""
        return self._transport.fetch(RepairPlan, "GET", _repair(channel), params={"uid": uid})

    def repair(self, channel: str, plan: RepairPlan, *, uid: str, reason: str) -> Repair:
        """Repair a halted channel: remove the lost records of the plan.

        May be repeated. Raises Conflict `repair_changed` if other records are lost.
        """
        lost_from = {str(loss.partition): loss.first for loss in plan.lost}
        body = {"uid": uid, "lost_from": lost_from, "reason": reason}
        return self._transport.fetch(Repair, "POST", _repair(channel), body=body)

    def transfer(
        self,
        channel: str,
        *,
        uid: str,
        owner: str,
        writer: str | None = None,
        key: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Give the batches and keys of a writer to the tokens of a label; `*` is every label.

        The writer is named, or one of its keys is.
        """
        body = {"uid": uid, "owner": owner, "writer": writer, "key": key, "reason": reason}
        self._transport.request("POST", f"{_batches(channel)}/owner", body=body)

    def close(self) -> None:
        """Close the connections to the gateway."""
        self._transport.close()

    def _send_commit(
        self, channel: str, batch: Batch, body: Mapping[str, Any], *, timeout_s: float | None
    ) -> CommitResult:
        path = f"{_batches(channel)}/{batch.id}/commit"
        wait_s = _WATERMARK_TIMEOUT_S if timeout_s is None else timeout_s
        backoff = Backoff(wait_s, sleep=self._sleep, monotonic=self._monotonic)
        while True:
            try:
                return self._transport.fetch(
                    CommitResult, "POST", path, body=body, timeout_s=timeout_s, in_job=True
                )
            except GatewayError as error:
                # An earlier request may still arrive, so only these errors are final.
                if error.code == _BEYOND_WATERMARK and backoff.wait():
                    continue
                if error.is_final:
                    raise
                raise CommitUnknown(channel=channel, key=batch.key) from error


def _cut(starts: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Split partitions into those that fit into one URL, and the rest."""
    ordered = sorted(starts.items())
    return dict(ordered[:_PARTITIONS]), dict(ordered[_PARTITIONS:])


def _repair(channel: str) -> str:
    return f"{channel_path(channel)}/ledger/repair"


def _writer(request: BatchRequest) -> dict[str, str]:
    """Return the fields that name the instance of a batch."""
    return {"uid": request.uid, "instance": request.instance}


def _moves_json(advance: PositionAdvance) -> dict[str, Any]:
    """Return a reader's positions as a part of a batch's commit."""
    document = to_json(advance)
    moves = []
    for position in document["positions"]:
        partition = position.pop("partition")
        before = advance.before.get(partition)
        start = None if before is None else position_json(before)
        moves.append({"partition": partition, "from": start, "to": position})
    if advance.endpoint is None:
        document = {name: document[name] for name in ("uid", "topic_id")}
    return {**document, "channel": advance.channel, "group": advance.group, "positions": moves}


def _batches(channel: str) -> str:
    return f"{channel_path(channel)}/batches"
