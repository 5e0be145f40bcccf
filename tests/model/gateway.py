"""An in-memory gateway: stores the decisions of the real rules in `sluiceway_gateway.ledger`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from tests.model.world import START, Violation, World, offsets

from sluiceway.api.ledger import DEFAULT_LEASE_MS
from sluiceway_gateway.core.errors import (
    BatchNotFound,
    BeyondWatermark,
    ManifestConflict,
    NotFound,
    PositionMoved,
)
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger import batches, model, repairing
from sluiceway_gateway.ledger.batches import CommitRequest, OpenRequest
from sluiceway_gateway.ledger.model import (
    AbortDecision,
    Batch,
    BatchState,
    Ledger,
    Manifest,
    Owner,
    Runs,
)
from sluiceway_gateway.ledger.repairing import RepairRequest

MAX_AGE = timedelta(seconds=400)
LEASE = timedelta(milliseconds=DEFAULT_LEASE_MS)
CONFIRM_S = 30
"""Time after which a low watermark means lost records."""
TOLERANCE_S = 2
"""Time by which the clocks of brokers and of the gateway may differ."""


@dataclass(frozen=True, kw_only=True)
class Response:
    """The response to a reader: one snapshot."""

    number: int
    stable: Mapping[int, int]
    visible_end: Mapping[int, int]
    runs: Mapping[int, tuple[Interval, ...]]
    truncated: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The ends of the runs after one number, and its time."""

    stable: Mapping[int, int]
    visible_end: Mapping[int, int]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Move:
    """The move of a reader's position by a commit, from one offset to another."""

    reader: str
    start: int
    end: int


class Gateway:
    """The ledger's tables, and one method per request; each is one transaction."""

    def __init__(self, world: World, partitions: int) -> None:
        self.world = world
        self.ledger = Ledger(channel_uid="c", topic_id="t", partitions=partitions)
        self.owners: dict[str, Owner] = {}
        self.batches: dict[str, Batch] = {}
        self.runs: dict[int, tuple[Interval, ...]] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.above: dict[int, Runs] = {}
        """By number, the runs of a batch that were above `stable` at its commit."""
        self.manifests: dict[int, Manifest] = {}
        """By number, what a batch committed; the truth, which no gateway keeps."""
        self.given_up: dict[int, Mapping[int, int]] = {}
        """By number of a repair, the first lost offsets by partition."""
        self.positions: dict[str, int] = {}
        self.slices: dict[str, dict[int, Manifest]] = {}
        self.fenced: set[tuple[str, str]] = set()
        self.behind_since: dict[int, float] = {}
        """By partition, the first pass of those in which its watermark was low."""
        self.lost: dict[int, range] = {}
        """By partition, offsets that Kafka has lost without a halt so far: the truth."""
        self.suspicious = False
        """Whether a loss has shown: by a low watermark in a pass or a commit, or by a conflict."""
        self.committed_keys: dict[int, str] = {}
        self.committed_ids: dict[int, str] = {}
        self.refused: set[tuple[str, str]] = set()
        """Instances and keys for which an opening was refused."""
        self.kept_snapshots = world.random.choice([3, 50])
        self.over: set[str] = set()
        """Instances whose drivers have ended."""

    # --- requests

    def open(self, request: OpenRequest) -> Batch:
        """Open the key's batch."""
        ledger = self.locked_ledger()
        latest = self.latest(request.key)
        if request.previous is not None:
            snapshot = self.snapshots.get(request.previous.number)
            at = None if snapshot is None else START + timedelta(seconds=snapshot.seconds)
            batches.require_previous(ledger, request.previous, at)
        epochs = [
            batch.epoch
            for batch in self.batches.values()
            if (batch.owner, batch.instance) == (request.owner, request.instance)
        ]
        decision = batches.open_batch(
            ledger,
            self.owners.get(request.owner),
            latest,
            self.open_batches(),
            request,
            self.world.now,
            new_id=self.world.new_id("b"),
            max_age=MAX_AGE,
            instance_epoch=max(epochs, default=None),
        )
        if not decision.replayed:
            self._check_opened(decision, request)
            for batch in decision.aborted:
                self.batches[batch.id] = batch
            self.write_ledger(decision.ledger, number_moved=bool(decision.aborted))
            self.owners[request.owner] = decision.owner
            self.batches[decision.batch.id] = decision.batch
        return decision.batch

    def upload(self, batch: str, number: int, manifest: Manifest) -> None:
        """Store a slice of a manifest."""
        self.slices.setdefault(batch, {})[number] = manifest

    def commit(
        self, request: CommitRequest, slices: bool = False, move: Move | None = None
    ) -> Batch:
        """Commit a batch, and optionally the move of a reader's position."""
        ledger = self.locked_ledger()
        batch = self._batch(request.batch)
        if slices:
            request = replace(request, manifest=self._assembled(request))
        try:
            if batch.state is BatchState.OPEN:
                batches.require_written(request.manifest, self.world.log.watermarks())
            decision = batches.commit_batch(
                ledger,
                self.owners[batch.owner],
                batch,
                self.open_batches(),
                {
                    at: [run for run in runs if run.end >= batch.begin.get(at, 0)]
                    for at, runs in self.runs.items()
                },
                request,
                self.world.now,
            )
        except BeyondWatermark:
            self.note_low_ends()
            raise
        except ManifestConflict as conflict:
            self.judge_conflict(conflict.disputed)
            self._check_judged(conflict.disputed)
            raise
        if decision.repeated:
            return decision.batch
        if move is not None:
            self._move(move)
        self._check_final(decision.runs_added)
        for at, runs in decision.runs_added.items():
            remaining = set(self.runs.get(at, ())) - set(decision.runs_removed.get(at, ()))
            self.runs[at] = tuple(sorted(remaining | set(runs)))
        self.batches[batch.id] = decision.batch
        self.owners[batch.owner] = decision.owner
        self.above[decision.ledger.number] = decision.runs_above
        self.manifests[decision.ledger.number] = request.manifest
        self.committed_keys[decision.ledger.number] = batch.key
        self.committed_ids[decision.ledger.number] = batch.id
        self.write_ledger(decision.ledger, number_moved=True)
        return decision.batch

    def abort(self, batch: str, instance: str) -> None:
        """Abort a batch on behalf of its writer."""
        self._store_aborts(
            model.abort_batch(
                self.locked_ledger(),
                self._batch(batch),
                self.open_batches(),
                "The writer failed.",
                self.world.now,
                instance,
            )
        )

    def end(self, instance: str) -> None:
        """Abort the batches of an instance that has ended."""
        decision = model.abort_instances(
            self.locked_ledger(), self.open_batches(), {instance}, self.world.now
        )
        for batch in decision.aborted:
            if batch.instance not in self.over:
                raise Violation("fenced", f"{batch.key} of the live {batch.instance} was aborted")
        self._store_aborts(decision)

    def renew(self, batch: str, lease: timedelta = LEASE) -> Batch:
        """Renew a lease, and return its batch."""
        renewed = model.renew(self._batch(batch), self.world.now, lease)
        self.batches[batch] = renewed
        return renewed

    def committed(
        self, starts: Mapping[int, int], limit: int, known_number: int | None
    ) -> Response | None:
        """Return the response to a reader; None if nothing has changed since `known_number`."""
        if known_number == self.ledger.number:
            return None
        positions = {at: starts.get(at, 0) for at in range(self.ledger.partitions)}
        return self.response(positions, limit, self.ledger.stable)

    def more(self, starts: Mapping[int, int], limit: int, first: Response) -> Response:
        """Return the next slice after a first response."""
        return self.response(starts, limit, first.stable)

    def whole(self, number: int | None, starts: Mapping[int, int], limit: int) -> Response:
        """Return runs of the batches up to a number, by default the present one."""
        model.require_intact(self.ledger)
        number = self.ledger.number if number is None else number
        if number and number not in self.snapshots:
            raise NotFound("The snapshot was pruned.")
        none = Snapshot(stable={}, visible_end={}, seconds=0)
        ends = self.snapshots.get(number, none)
        above: dict[int, list[Interval]] = {}
        for at_number, runs in self.above.items():
            for at, intervals in runs.items():
                above.setdefault(at, []).extend(intervals if at_number <= number else ())
        runs = model.snapshot_runs(self.runs, above, ends.stable)
        part = model.slice_runs(runs, ends.visible_end, starts, limit)
        return Response(
            number=number,
            stable=ends.stable,
            visible_end=ends.visible_end,
            runs=part.runs,
            truncated=part.truncated,
        )

    def committed_up_to(self, number: int) -> set[tuple[int, int]]:
        """Return what the batches up to a number committed, by partition and offset."""
        return {
            (at, offset)
            for commit, manifest in self.manifests.items()
            if commit <= number
            for at, intervals in manifest.items()
            for offset in offsets(intervals)
            if not any(
                commit < repair <= number and offset >= lost_from.get(at, offset + 1)
                for repair, lost_from in self.given_up.items()
            )
        }

    def is_given_up(self, number: int) -> bool:
        """Return whether a later repair gave up records of a snapshot, which is refused then."""
        ends = {} if number not in self.snapshots else self.snapshots[number].visible_end
        return any(
            repair > number and first < ends.get(at, 0)
            for repair, lost_from in self.given_up.items()
            for at, first in lost_from.items()
        )

    def response(
        self, starts: Mapping[int, int], limit: int, stable: Mapping[int, int]
    ) -> Response:
        model.require_intact(self.ledger)
        part = model.slice_runs(self.runs, stable, starts, limit)
        return Response(
            number=self.ledger.number,
            stable=stable,
            visible_end=self.ledger.visible_end,
            runs=part.runs,
            truncated=part.truncated,
        )

    # --- background work of the gateway

    def reap(self) -> None:
        """Abort the batches whose leases have ended."""
        decision = model.reap(self.locked_ledger(), self.open_batches(), self.world.now)
        for batch in decision.aborted:
            if batch.lease_until > self.world.now:
                raise Violation("fenced", f"{batch.key} of the live {batch.instance} was reaped")
        self._store_aborts(decision)

    def grow(self) -> None:
        """Add a partition."""
        self.world.log.add_partition()
        self.ledger = model.grow(self.ledger, len(self.world.log.records))

    def clip(self) -> None:
        """Remove the runs below the log's start."""
        for at, start in enumerate(self.world.log.starts):
            self.runs[at] = model.clip(self.runs.get(at, ()), start)

    def compare(self) -> None:
        """Compare the ledger with Kafka's watermarks, which are low after a loss."""
        if self.ledger.halted is not None:
            return
        behind = self.note_low_ends()
        now = self.world.seconds
        self.behind_since = {at: self.behind_since.get(at, now) for at in behind}
        low = self.ledger.low_end
        lasting = {at: low[at] for at in behind if now - self.behind_since[at] >= CONFIRM_S}
        suspected = {at: end for at, end in low.items() if at not in behind}
        lost = lasting | self.reused_before(lasting) | self.reused(suspected)
        self.ledger = model.clear_low_ends(self.ledger, suspected.keys() - lost.keys())
        self.halt(lost)

    def note_low_ends(self) -> Mapping[int, int]:
        """Store low watermarks, and return them."""
        ends = self.world.log.watermarks()
        behind = model.reused_offsets(self.ledger, ends)
        self.suspicious |= bool(behind)
        self.ledger = model.note_low_ends(self.ledger, ends)
        return behind

    def judge_conflict(self, disputed: Mapping[int, int]) -> None:
        """Halt the channel after a conflict if Kafka uses the offsets again."""
        self.halt(self.reused(disputed))
        model.require_intact(self.ledger)

    def halt(self, lost_from: Mapping[int, int]) -> None:
        """Halt the channel if committed offsets are lost."""
        lost = model.reused_offsets(self.ledger, lost_from)
        if lost:
            self.ledger = model.halt(self.ledger, lost)

    def reused_before(self, low_ends: Mapping[int, int]) -> dict[int, int]:
        """Return the same for low ends: others may have written before the first pass."""
        return self.reused({at: end - 1 for at, end in low_ends.items() if end})

    def reused(self, disputed: Mapping[int, int]) -> dict[int, int]:
        """Return the first offset up to a committed one that was appended after its commit."""
        log, lost = self.world.log, dict[int, int]()
        for at, offset in disputed.items():
            after = self._committed_until(at, offset) + TOLERANCE_S
            later = (
                candidate
                for candidate in range(log.starts[at], min(offset + 1, len(log.records[at])))
                if log.appended[at][candidate] > after
            )
            first = next(later, None)
            if first is not None:
                lost[at] = first
        return lost

    def _committed_until(self, at: int, offset: int) -> float:
        numbers = [number for number in self.snapshots if number >= (self.ledger.repaired or 0)]
        covering = (
            number for number in numbers if offset < self.snapshots[number].visible_end.get(at, 0)
        )
        number = next(covering, self.ledger.number)
        return self.snapshots[number].seconds if number in self.snapshots else self.world.seconds

    def repair(self) -> None:
        """Repair the halted channel, as an operator does."""
        ledger = self.locked_ledger()
        log = self.world.log
        for at, count in repairing.unfilled(ledger, log.watermarks()).items():
            for _ in range(count):
                log.append(at, None)
        open_batches = self.open_batches()
        decision = repairing.repair_ledger(
            ledger,
            [self.owners[owner] for owner in sorted({batch.owner for batch in open_batches})],
            open_batches,
            self.runs,
            log.watermarks(),
            RepairRequest(lost_from=ledger.lost_from, reason="a test", by="operator"),
            self.world.now,
        )
        for batch in decision.aborted:
            self.batches[batch.id] = batch
            self.fenced.add((batch.owner, batch.instance))
        for owner in decision.owners:
            self.owners[owner.name] = owner
        for at, runs in decision.runs_removed.items():
            remaining = {*self.runs.get(at, ())} - {*runs}
            self.runs[at] = tuple(sorted(remaining | {*decision.runs_added[at]}))
        self.given_up[decision.ledger.number] = dict(ledger.lost_from)
        self.write_ledger(decision.ledger, number_moved=True)

    def prune(self) -> None:
        """Delete committed batches that no replay needs; their keys stay refused."""
        for batch in [*self.batches.values()]:
            if batch.state is BatchState.COMMITTED and not self.needed(batch):
                del self.batches[batch.id]
        for number in [*self.snapshots][: -self.kept_snapshots]:
            del self.snapshots[number]
        self.prune_above()

    def prune_above(self) -> None:
        """Delete runs of batches that are below `stable` of each snapshot that is kept."""
        if self.snapshots:
            oldest = self.snapshots[min(self.snapshots)]
            for number, runs in self.above.items():
                self.above[number] = {
                    at: [
                        interval
                        for interval in intervals
                        if interval.end > oldest.stable.get(at, 0)
                    ]
                    for at, intervals in runs.items()
                }

    def needed(self, batch: Batch) -> bool:
        """Return whether a replay may still need a committed batch."""
        return batch.ordinal is None or batch.ordinal == self.owners[batch.owner].ordinal

    # --- tables

    def _batch(self, batch: str) -> Batch:
        if batch not in self.batches:
            raise BatchNotFound("No such batch.")
        return self.batches[batch]

    def locked_ledger(self) -> Ledger:
        """Return the ledger's row, as read after locking it."""
        return self.ledger

    def latest(self, key: str) -> Batch | None:
        """Return the key's latest batch."""
        batches = [batch for batch in self.batches.values() if batch.key == key]
        return max(batches, key=lambda batch: batch.epoch, default=None)

    def open_batches(self) -> list[Batch]:
        """Return all open batches."""
        return [batch for batch in self.batches.values() if batch.state is BatchState.OPEN]

    def _assembled(self, request: CommitRequest) -> Manifest:
        parts = self.slices.get(request.batch, {})
        manifest: dict[int, tuple[Interval, ...]] = {}
        for _, part in sorted(parts.items()):
            for at, intervals in part.items():
                manifest[at] = (*manifest.get(at, ()), *intervals)
        return manifest

    def _move(self, move: Move) -> None:
        if self.positions.get(move.reader, 0) != move.start:
            raise PositionMoved("Another instance has moved the position.")
        self.positions[move.reader] = move.end

    def _store_aborts(self, decision: AbortDecision) -> None:
        for batch in decision.aborted:
            self.batches[batch.id] = batch
        if decision.aborted:
            self.write_ledger(decision.ledger, number_moved=True)

    def write_ledger(self, ledger: Ledger, *, number_moved: bool) -> None:
        for name in ("stable", "visible_end"):
            before, after = getattr(self.ledger, name), getattr(ledger, name)
            for at, value in before.items():
                if after.get(at, 0) < value:
                    raise Violation(
                        "stable back", f"{name} of {at} from {value} to {after.get(at, 0)}"
                    )
        self.ledger = ledger
        if number_moved:
            self.snapshots[ledger.number] = self.snapshot_of(ledger)

    def snapshot_of(self, ledger: Ledger) -> Snapshot:
        """Return what is stored of a number."""
        return Snapshot(
            stable=ledger.stable, visible_end=ledger.visible_end, seconds=self.world.seconds
        )

    # --- properties of single transactions

    def _check_opened(self, decision: batches.OpenDecision, request: OpenRequest) -> None:
        if (request.owner, request.instance) in self.fenced:
            raise Violation("fenced", f"{request.instance} writes again for {request.owner}")
        for batch in decision.aborted:
            self.fenced.add((batch.owner, batch.instance))
            if not request.takeover and not batch.lease_until <= self.world.now:
                raise Violation("fenced", f"{batch.key} of the live {batch.instance} was ended")
        aborted = {batch.id for batch in decision.aborted}
        if [
            batch
            for batch in self.open_batches()
            if batch.key == request.key and batch.id not in aborted
        ]:
            raise Violation("fenced", f"{request.key} is open twice")

    def _check_judged(self, disputed: Mapping[int, int]) -> None:
        """Raise if a conflict at an offset that Kafka uses again has not halted the channel."""
        for at, offset in disputed.items():
            if offset in self.lost.get(at, ()):
                raise Violation("lost", f"a conflict at the lost {offset} of {at} changed nothing")

    def _check_final(self, added: Mapping[int, Sequence[Interval]]) -> None:
        """Raise if any added run starts below `stable`."""
        for at, runs in added.items():
            present = set(offsets(self.runs.get(at, ())))
            early = [offset for offset in offsets(runs) if offset not in present]
            if early and early[0] < self.ledger.stable.get(at, 0):
                raise Violation(
                    "lost", f"{early[0]} of {at} is committed below stable, after readers passed it"
                )
