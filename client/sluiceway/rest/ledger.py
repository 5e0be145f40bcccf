"""Requests about a channel's ledger: batches, their commits, and the visible runs."""

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sluiceway.errors import CommitUnknown, Conflict, GatewayError, InvalidRequest
from sluiceway.rest.arguments import channel_path
from sluiceway.rest.ledger_models import (
    SLICE_INTERVALS,
    Batch,
    BatchLease,
    BatchRequest,
    CommitPage,
    CommitResult,
    Committed,
    Manifest,
    PositionAdvance,
    Repair,
    RepairPlan,
    manifest_digest,
    manifest_json,
    manifest_slices,
)
from sluiceway.rest.parsing import parse
from sluiceway.rest.transport import Backoff, Transport

__all__ = ["LedgerCalls"]

_LIMIT = 10_000
_MAX_INTERVALS = 1_000 * SLICE_INTERVALS
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
        named = ("uid", "key", "owner", "instance", "takeover", "ordinal", "own_key", "lease_ms")
        body: dict[str, Any] = {name: getattr(request, name) for name in named}
        if request.previous is not None:
            at = request.previous.committed_at.isoformat()
            body["previous"] = {"number": request.previous.number, "at": at}
        path = _batches(request.channel)
        response = self._transport.request_json("POST", path, body=body, timeout_s=timeout_s)
        return parse(Batch, response)

    def upload(
        self, request: BatchRequest, batch_id: str, *, index: int, manifest: Manifest
    ) -> None:
        """Upload one slice of a manifest to the open batch, at most 10,000 intervals."""
        path = f"{_batches(request.channel)}/{batch_id}/manifest/{index}"
        body = {**_writer(request), "manifest": manifest_json(manifest)}
        self._transport.request("PUT", path, body=body)

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
        and while the partitions' watermarks are below its records. Raises Conflict and
        InvalidRequest if nothing was committed, and CommitUnknown if the state is unknown.
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
            for index, each in enumerate(slices):
                self.upload(request, batch.id, index=index, manifest=each)
        inline = len(slices) <= 1
        body: dict[str, Any] = {
            **_writer(request),
            "digest": manifest_digest(manifest),
            "manifest": manifest_json(manifest) if inline else {},
            "slices": 0 if inline else len(slices),
            "records": records,
            "counts": {str(partition): count for partition, count in sorted(counts.items())},
            "positions": None if positions is None else positions.to_json(),
        }
        return self._send_commit(request.channel, batch, body, timeout_s=timeout_s)

    def abort(
        self, request: BatchRequest, batch_id: str, *, cause: str, timeout_s: float | None = None
    ) -> None:
        """Abort a batch. Raises Conflict `batch_committed` if it was committed."""
        path = f"{_batches(request.channel)}/{batch_id}/abort"
        body = {**_writer(request), "cause": cause}
        self._transport.request("POST", path, body=body, timeout_s=timeout_s)

    def renew(
        self,
        channel: str,
        batches: Mapping[str, str],
        *,
        uid: str,
        lease_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, BatchLease]:
        """Renew the leases of batches, given as instances by batch id; return them by id.

        With `lease_ms` 0, the leases stay as they are.
        """
        named = [{"id": batch, "instance": instance} for batch, instance in batches.items()]
        body = {"uid": uid, "batches": named, "lease_ms": lease_ms}
        path = f"{_batches(channel)}/renew"
        response = self._transport.request_json("POST", path, body=body, timeout_s=timeout_s)
        leases = (each.read(BatchLease) for each in response.items("batches"))
        return {lease.id: lease for lease in leases}

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
        known: int | None = None,
    ) -> Committed | None:
        """Return the committed part of a channel, with the first runs from `starts` on.

        With the ETag `seen`, wait up to `wait_s` for a change and return None without one. The
        `number` of a truncated response requests the rest of its runs. `snapshot` is the number or
        the time of a commit: the response is the state as of that commit. The response has the time
        of the number `known`.
        """
        params = {"uid": uid, "limit": str(_LIMIT)}
        if starts:
            params["from"] = ",".join(f"{p}:{offset}" for p, offset in sorted(starts.items()))
        if number is not None:
            params["number"] = str(number)
        if known is not None:
            params["known"] = str(known)
        if isinstance(snapshot, datetime):
            params["snapshot_at"] = snapshot.astimezone(UTC).isoformat()
        elif snapshot is not None:
            params["snapshot"] = str(snapshot)
        response = self._transport.poll(
            f"{channel_path(channel)}/committed", params=params, seen=seen, wait_s=wait_s
        )
        if response is None:
            return None
        etag = response.headers.get("ETag")
        return parse(Committed, self._transport.json(response), etag=etag)

    def all_committed(
        self,
        channel: str,
        *,
        uid: str,
        starts: Mapping[int, int],
        seen: str | None = None,
        wait_s: float = 0.0,
        snapshot: int | datetime | None = None,
        known: int | None = None,
    ) -> Committed | None:
        """Like `committed`, but with all runs, from several requests for one state."""
        request = partial(self.committed, channel, uid=uid, snapshot=snapshot)
        named, left = _cut(starts)
        first = request(starts=named, seen=seen, wait_s=wait_s, known=known)
        if first is None or not (first.truncated or left):
            return first
        runs = {partition: list(found) for partition, found in first.runs.items()}
        removed = set(first.removed)
        left = {**first.truncated, **left}
        while left:
            named, left = _cut(left)
            more = request(starts=named, number=first.number)
            assert more is not None  # noqa: S101 - a request without an ETag has a response
            if more.repaired != first.repaired:
                # A repair in between has removed runs.
                return self.all_committed(
                    channel, uid=uid, starts=starts, snapshot=snapshot, known=known
                )
            removed.update(more.removed)
            for partition, found in more.runs.items():
                if partition in named:
                    runs.setdefault(partition, []).extend(found)
            left = {**more.truncated, **left}
        merged = {partition: tuple(found) for partition, found in runs.items()}
        return replace(first, runs=merged, truncated={}, removed=tuple(sorted(removed)))

    def commits(
        self, channel: str, *, uid: str | None = None, limit: int = 100, before: int | None = None
    ) -> CommitPage:
        """Return the last ended batches with numbers below `before`, and the open ones."""
        params = {"limit": str(limit)} | ({} if uid is None else {"uid": uid})
        params |= {} if before is None else {"before": str(before)}
        path = f"{channel_path(channel)}/commits"
        return parse(CommitPage, self._transport.request_json("GET", path, params=params))

    def repair_plan(self, channel: str, *, uid: str) -> RepairPlan:
        """Return the records that a repair would remove. Raises Conflict `ledger_intact`."""
        response = self._transport.request_json("GET", _repair(channel), params={"uid": uid})
        return parse(RepairPlan, response)

    def repair(self, channel: str, plan: RepairPlan, *, uid: str, reason: str) -> Repair:
        """Repair a halted channel: remove the lost records of the plan.

        May be repeated. Raises Conflict `repair_changed` if other records are lost.
        """
        lost_from = {str(each.partition): each.first for each in plan.lost}
        body = {"uid": uid, "lost_from": lost_from, "reason": reason}
        return parse(Repair, self._transport.request_json("POST", _repair(channel), body=body))

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
                response = self._transport.request_json(
                    "POST", path, body=body, timeout_s=timeout_s
                )
                return parse(CommitResult, response)
            except GatewayError as error:
                # An earlier request may still arrive, so only these errors are final.
                if error.code == _BEYOND_WATERMARK and backoff.wait():
                    continue
                if isinstance(error, Conflict | InvalidRequest) and not error.retriable:
                    raise
                raise CommitUnknown(channel=channel, key=batch.key) from error


def _cut(starts: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Split partitions into those that fit into one URL, and the rest."""
    each = sorted(starts.items())
    return dict(each[:_PARTITIONS]), dict(each[_PARTITIONS:])


def _repair(channel: str) -> str:
    return f"{channel_path(channel)}/ledger/repair"


def _writer(request: BatchRequest) -> dict[str, str]:
    """Return the fields that name the instance of a batch."""
    return {"uid": request.uid, "instance": request.instance}


def _batches(channel: str) -> str:
    return f"{channel_path(channel)}/batches"
