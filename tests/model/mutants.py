"""Mutants: defects in the rules and the protocol, which the model must notice.

A mutant replaces functions of the real code, or of the model's writers and readers, while its
patches are applied.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast
from unittest import mock

from tests.model import jobs, readers
from tests.model.client import GroupReader, Transport, Writer
from tests.model.gateway import Gateway, Move, Snapshot
from tests.model.jobs import BatchJob, Work
from tests.model.readers import StreamReader
from tests.model.runs import JobRuns
from tests.model.schedule import Outcome, run_schedules
from tests.model.world import Record, Steps, World

from sluiceway.api.endpoints import Endpoint
from sluiceway.api.ledger import LedgerCalls
from sluiceway.endpoint.stop_condition import LostWriterPolicy
from sluiceway.errors import CommitUnknown, Conflict, GatewayError
from sluiceway.kafka.messages import DeliveryReport
from sluiceway.ledger import write_batch
from sluiceway.ledger.intervals import DeliveredIntervals, WrittenRecords, _PartitionOffsets
from sluiceway.ledger.write_batch import BATCH_TRANSITIONS, WriteBatch
from sluiceway.ledger.write_batch import BatchState as ClientBatchState
from sluiceway.ledger.writer_batches import WriterBatches
from sluiceway_gateway.core.errors import PositionMoved
from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.endpoints.groups import model as groups
from sluiceway_gateway.ledger import batches, model, repairing
from sluiceway_gateway.ledger.batches import commit_batch, open_batch
from sluiceway_gateway.ledger.model import (
    AbortDecision,
    Batch,
    BatchState,
    Ending,
    Ledger,
    Runs,
    slice_runs,
    stable_of,
)
from sluiceway_gateway.ledger.model import halt as model_halt
from sluiceway_gateway.ledger.repairing import RepairDecision, repair_ledger

Patch = tuple[Any, str, Any]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A defect, and the patches that introduce it."""

    name: str
    patches: Callable[[], list[Patch]]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the patches while the block runs."""
        with ExitStack() as stack:
            for target, name, broken in self.patches():
                stack.enter_context(mock.patch.object(target, name, broken))
            yield


MUTANTS: list[Mutant] = []


def mutant(name: str) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    """Register the patches of a mutant."""

    def register(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        MUTANTS.append(Mutant(name=name, patches=patches))
        return patches

    return register


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing. Replaces a check."""


# --- opening


@mutant("a committed key is opened again")
def _() -> list[Patch]:
    def reopen(ledger: Ledger, owner: Any, latest: Batch | None, *rest: Any, **more: Any) -> Any:
        if latest is not None and latest.state is BatchState.COMMITTED:
            return open_batch(ledger, replace(owner, ordinal=None), None, *rest, **more)
        return open_batch(ledger, owner, latest, *rest, **more)

    return [(batches, "open_batch", reopen), (Gateway, "_check_opened", nothing)]


@mutant("a takeover leaves old batches open, and commits ignore the epoch")
def _() -> list[Patch]:
    return [
        (batches, "_displaced", lambda *_, **__: []),
        (Gateway, "_check_opened", nothing),
        (batches, "commit_batch", _unfenced_commit),
    ]


def _unfenced_commit(ledger: Ledger, owner: Any, *rest: Any) -> Any:
    decision = commit_batch(ledger, replace(owner, fence=0), *rest)
    return replace(decision, owner=replace(decision.owner, fence=owner.fence))


@mutant("a takeover leaves the previous instance's batches open")
def _() -> list[Patch]:
    return [(batches, "_displaced", lambda *_, **__: [])]


@mutant("a replaced instance takes over again")
def _() -> list[Patch]:
    def forget(*args: Any, **more: Any) -> Any:
        return open_batch(*args, **{**more, "instance_epoch": None})

    return [(batches, "open_batch", forget)]


@mutant("a batch job aborts the batch of a live one")
def _() -> list[Patch]:
    return [(batches, "expired", lambda *_: True)]


@mutant("the same instance reopens an aborted batch")
def _() -> list[Patch]:
    def reopen(ledger: Ledger, owner: Any, latest: Batch | None, *rest: Any, **more: Any) -> Any:
        if latest is not None and latest.state is BatchState.ABORTED:
            latest = None
        return open_batch(ledger, owner, latest, *rest, **more)

    return [(batches, "open_batch", reopen)]


@mutant("another owner uses the same key")
def _() -> list[Patch]:
    return [(batches, "_require_key", nothing)]


@mutant("an old batch is opened after its key was pruned")
def _() -> list[Patch]:
    return [(batches, "_require_order", nothing)]


@mutant("committed keys are pruned")
def _() -> list[Patch]:
    return [(Gateway, "needed", lambda *_: False), (batches, "_require_order", nothing)]


@mutant("begin is above offsets that the batch may get")
def _() -> list[Patch]:
    real = batches._begin

    def above(*args: Any) -> Mapping[int, int]:
        return {at: begin + 2 for at, begin in real(*args).items()}

    return [(batches, "_begin", above), (Transport, "_bogus", _no_bogus), *_unchecked_begin()]


@mutant("begin changes with each open")
def _() -> list[Patch]:
    def refreshed(ledger: Ledger, *rest: Any, **more: Any) -> Any:
        decision = open_batch(ledger, *rest, **more)
        begin = {at: ledger.visible_end.get(at, 0) for at in decision.batch.begin}
        return replace(decision, batch=replace(decision.batch, begin=begin), replayed=False)

    others = [
        (Gateway, "_check_opened", nothing),
        (Transport, "_bogus", _no_bogus),
        *_unchecked_begin(),
    ]
    return [(batches, "open_batch", refreshed), *others]


@mutant("there is no begin")
def _() -> list[Patch]:
    real = batches._begin
    return [(batches, "_begin", lambda *args: dict.fromkeys(real(*args), 0))]


@mutant("decisions use a ledger that was read before the lock")
def _() -> list[Patch]:
    ledgers: dict[Gateway, Ledger] = {}

    def read(gateway: Gateway) -> Ledger:
        earlier = ledgers.get(gateway, gateway.ledger)
        ledgers[gateway] = gateway.ledger
        return earlier

    return [(Gateway, "locked_ledger", read)]


# --- commits


@mutant("abort after commit")
def _() -> list[Patch]:
    real = model.abort_batch

    def abort(ledger: Ledger, batch: Batch, *rest: Any) -> AbortDecision:
        if batch.state is BatchState.COMMITTED:
            batch = replace(batch, state=BatchState.OPEN)
        return real(ledger, batch, *rest)

    return [(model, "abort_batch", abort)]


@mutant("an aborted batch is committed")
def _() -> list[Patch]:
    def commit(ledger: Ledger, owner: Any, batch: Batch, *rest: Any) -> Any:
        if batch.state is BatchState.ABORTED:
            batch = replace(batch, state=BatchState.OPEN)
        return _unfenced_commit(ledger, owner, batch, *rest)

    return [(batches, "commit_batch", commit)]


@mutant("both attempts of a task are listed")
def _() -> list[Patch]:
    return [(Work, "chosen", lambda work: list(work.parts))]


@mutant("a task writes before it opens its batch")
def _() -> list[Patch]:
    return [(Work, "begin", _early), (Transport, "_bogus", _no_bogus), *_unchecked_begin()]


def _early(work: Work, batch: WriteBatch, task: int, intervals: DeliveredIntervals) -> int:
    """Write a record before opening the batch, and list it later."""
    offset = work.world.log.append(0, Record(work.tasks[task][0], ""))
    batch.open()
    if batch.replayed or 0 not in batch.opened.begin:
        return 0
    intervals.add_message(0, offset)
    return 1


def _no_bogus(*_: Any) -> Steps:
    """Send no bogus manifest: the mutant must be noticed by its effect on valid ones."""
    yield


def _unchecked_begin() -> list[Patch]:
    real = batches._require_own

    def own(batch: Batch, *rest: Any) -> None:
        real(replace(batch, begin=dict.fromkeys(batch.begin, 0)), *rest)

    return [(batches, "_require_own", own)]


@mutant("manifests below the batch's begin are accepted")
def _() -> list[Patch]:
    return _unchecked_begin()


@mutant("manifests over visible runs are accepted")
def _() -> list[Patch]:
    return [(batches, "first_overlap", nothing)]


@mutant("manifests in partitions that the batch did not open are accepted")
def _() -> list[Patch]:
    real = batches._require_own

    def own(batch: Batch, manifest: model.Manifest, runs: Any) -> None:
        begin = dict.fromkeys(manifest, 0) | dict(batch.begin)
        real(replace(batch, begin=begin), manifest, runs)

    return [(batches, "_require_own", own)]


@mutant("manifests beyond the watermark are accepted")
def _() -> list[Patch]:
    return [(batches, "require_written", nothing)]


@mutant("a manifest that lacks slices is accepted")
def _() -> list[Patch]:
    real = batches._require_sound

    def sound(request: Any) -> None:
        if request.digest == model.digest_of(request.manifest):
            real(request)

    return [(batches, "_require_sound", sound)]


@mutant("batches write to partitions that they did not open")
def _() -> list[Patch]:
    real = batches._begin

    def hidden(ledger: Ledger, request: Any) -> Mapping[int, int]:
        return real(ledger, request.model_copy(update={"partitions": None}))

    def narrow(visible_end: Mapping[int, int], begins: Any) -> Mapping[int, int]:
        lowest = [
            {at: begin for at, begin in batch_begin.items() if at == 0} for batch_begin in begins
        ]
        return stable_of(visible_end, lowest)

    return [
        (batches, "_begin", hidden),
        (model, "stable_of", narrow),
        (batches, "stable_of", narrow),
    ]


@mutant("merged runs include the gaps between them")
def _() -> list[Patch]:
    def merge(runs: Any, added: Any = ()) -> tuple[Interval, ...]:
        intervals = sorted((*runs, *added))
        return (model.Interval(intervals[0].first, intervals[-1].end),) if intervals else ()

    return [(batches, "merge_runs", merge)]


@mutant("a job without a response to its commit writes with another key")
def _() -> list[Patch]:
    real = BatchJob.work

    def fresh(job: BatchJob, key: str, instance: str, *rest: Any, **more: Any) -> Work:
        return real(job, f"{key}/{instance}", instance, *rest, **more)

    return [(BatchJob, "work", fresh)]


@mutant("a flush without a response is written again")
def _() -> list[Patch]:
    def resolve(writer: Writer) -> bool:
        writer.batches.resolve()
        return False

    return [(jobs, "resolve", resolve)]


@mutant("a replay with a different number of records is accepted")
def _() -> list[Patch]:
    return [(WriteBatch, "verify_replay", nothing)]


@mutant("a reader's position is stored before the commit")
def _() -> list[Patch]:
    real = Gateway.commit

    def commit(gateway: Gateway, request: Any, slices: bool = False, move: Any = None) -> Batch:
        if move is not None and gateway.positions.get(move.reader, 0) == move.start:
            gateway.positions[move.reader] = move.end
        return real(gateway, request, slices)

    return [(Gateway, "commit", commit)]


@mutant("a reader's position is stored after the commit")
def _() -> list[Patch]:
    def move(gateway: Gateway, request: Move) -> None:
        if gateway.positions.get(request.reader, 0) != request.start:
            raise PositionMoved("Another instance has moved the position.")
        if gateway.world.fault("crash before the position is stored", 0.1):
            return
        gateway.positions[request.reader] = request.end

    return [(Gateway, "_move", move)]


@mutant("a reader's position is stored without checking the old one")
def _() -> list[Patch]:
    def move(gateway: Gateway, request: Move) -> None:
        gateway.positions[request.reader] = request.end

    return [(Gateway, "_move", move)]


@mutant("a transaction's reader that could not go back refuses for ever")
def _() -> list[Patch]:
    def require_continued(reader: GroupReader) -> None:
        if reader._suspended is not None:
            raise reader._suspended

    return [(GroupReader, "require_continued", require_continued)]


@mutant("an interrupted block stays open, so that a flush commits nothing")
def _() -> list[Patch]:
    return [(WriterBatches, "end_abandoned", nothing)]


# --- states of the client's batches


@mutant("a commit without a response is a failure")
def _() -> list[Patch]:
    real = WriteBatch.commit

    def commit(batch: WriteBatch, *rest: Any, **more: Any) -> Any:
        try:
            return real(batch, *rest, **more)
        except CommitUnknown as error:
            raise Conflict(str(error), code="batch_aborted") from error

    return [(WriteBatch, "commit", commit)]


@mutant("a request of a commit that is not answered is final")
def _() -> list[Patch]:
    real = LedgerCalls._send_commit

    def send(calls: LedgerCalls, *rest: Any, **more: Any) -> Any:
        try:
            return real(calls, *rest, **more)
        except CommitUnknown as error:
            raise cast("GatewayError", error.__cause__) from None

    return [(LedgerCalls, "_send_commit", send)]


@mutant("an outage within a repeated commit is a failure")
def _() -> list[Patch]:
    return [(WriteBatch, "is_requested", False)]


@mutant("the refused abort of a committed batch counts as an abort")
def _() -> list[Patch]:
    real = WriteBatch._abort

    def abort(batch: WriteBatch, *rest: Any) -> None:
        try:
            real(batch, *rest)
        except Conflict:
            batch.state = ClientBatchState.ABORTED

    return [(WriteBatch, "_abort", abort)]


@mutant("a batch whose abort is not answered was not committed")
def _() -> list[Patch]:
    real = WriteBatch.resolve

    def resolve(batch: WriteBatch, **more: Any) -> bool:
        try:
            return real(batch, **more)
        except CommitUnknown:
            return False

    return [(WriteBatch, "resolve", resolve)]


def _without(skipped: ClientBatchState) -> list[Patch]:
    real = WriteBatch._become

    def become(batch: WriteBatch, state: ClientBatchState) -> None:
        if state is not skipped:
            real(batch, state)

    return [(WriteBatch, "_become", become)]


@mutant("a requested commit does not change the state")
def _() -> list[Patch]:
    return _without(ClientBatchState.COMMITTING)


@mutant("an interrupted opening is forgotten")
def _() -> list[Patch]:
    transitions = {**BATCH_TRANSITIONS, ClientBatchState.NEW: frozenset(ClientBatchState)}
    return [*_without(ClientBatchState.OPENING), (write_batch, "BATCH_TRANSITIONS", transitions)]


@mutant("a repeated commit has other records")
def _() -> list[Patch]:
    real = DeliveredIntervals.written

    def written(intervals: DeliveredIntervals) -> WrittenRecords:
        records = real(intervals)
        intervals._partitions = {}
        return records

    return [(DeliveredIntervals, "written", written)]


# --- delivery reports


@mutant("an unacknowledged record counts as written")
def _() -> list[Patch]:
    return [(WrittenRecords, "require", nothing)]


@mutant("offsets that do not increase are accepted")
def _() -> list[Patch]:
    def add(intervals: DeliveredIntervals, report: DeliveryReport) -> None:
        offsets, first = intervals._of(report.partition), max(report.first, 0)
        if not offsets.ends or first >= offsets.ends[-1]:
            offsets.firsts.append(first)
            offsets.ends.append(first + 1)
        offsets.records += 1

    return [(DeliveredIntervals, "add", add)]


@mutant("repeated offsets of single messages are accepted")
def _() -> list[Patch]:
    real = _PartitionOffsets.join

    def join(offsets: _PartitionOffsets) -> None:
        distinct = {max(offset, 0) for offset in offsets.loose}
        offsets.records += len(offsets.loose) - len(distinct)
        offsets.loose[:] = array("q", sorted(distinct))
        real(offsets)

    return [(_PartitionOffsets, "join", join)]


# --- stable


@mutant("there is no stable: all committed records are read immediately")
def _() -> list[Patch]:
    def ends(visible_end: Mapping[int, int], begins: Any) -> Mapping[int, int]:
        return dict(visible_end)

    return [(model, "stable_of", ends), (batches, "stable_of", ends)]


@mutant("stable is Kafka's watermark while no batch is open")
def _() -> list[Patch]:
    real = Gateway.write_ledger

    def write(gateway: Gateway, ledger: Ledger, *, number_moved: bool) -> None:
        if not gateway.open_batches():
            ledger = replace(ledger, stable=gateway.world.log.watermarks())
        real(gateway, ledger, number_moved=number_moved)

    return [(Gateway, "write_ledger", write)]


@mutant("a batch holds back partitions that it did not open")
def _() -> list[Patch]:
    def zero(visible_end: Mapping[int, int], begins: Any) -> Mapping[int, int]:
        return stable_of(
            visible_end,
            [{at: batch_begin.get(at, 0) for at in visible_end} for batch_begin in begins],
        )

    return [(model, "stable_of", zero), (batches, "stable_of", zero)]


@mutant("visible_end is the end of the remaining runs")
def _() -> list[Patch]:
    real = Gateway.clip

    def clip(gateway: Gateway) -> None:
        real(gateway)
        ends = {at: runs[-1].end if runs else 0 for at, runs in gateway.runs.items()}
        gateway.ledger = replace(gateway.ledger, visible_end=ends)

    return [(Gateway, "clip", clip)]


@mutant("a snapshot is a prefix by offsets, up to stable")
def _() -> list[Patch]:
    def prefix(runs: Runs, _above: Runs, stable: Mapping[int, int]) -> Runs:
        return slice_runs(runs, stable, dict.fromkeys(runs, 0), 10_000).runs

    return [(model, "snapshot_runs", prefix)]


@mutant("a snapshot is a prefix by offsets, up to the visible ends")
def _() -> list[Patch]:
    return [(model, "snapshot_runs", lambda runs, *_: runs)]


@mutant("runs of a batch above stable are not kept, so they merge with later ones")
def _() -> list[Patch]:
    return [(batches, "runs_above", lambda *_: {})]


@mutant("runs of a batch are kept as long as the batch's own snapshot only")
def _() -> list[Patch]:
    def prune(gateway: Gateway) -> None:
        for number in gateway.above.keys() - gateway.snapshots.keys():
            del gateway.above[number]

    return [(Gateway, "prune_above", prune)]


@mutant("a read until now waits for open batches, and ends at an offset in each partition")
def _() -> list[Patch]:
    def prefix(world: World, gateway: Gateway, *_: Any) -> Steps:
        every = dict.fromkeys(range(gateway.ledger.partitions), 0)
        first = yield from world.call("committed", lambda: gateway.committed(every, 10_000, None))
        while True:
            last = yield from world.call(
                "committed", lambda: gateway.committed(every, 10_000, None)
            )
            if all(last.stable.get(at, 0) >= end for at, end in first.visible_end.items()):
                break
            yield
        part = slice_runs(last.runs, first.visible_end, every, 10_000)
        return first, readers.places_of(part.runs)

    return [(readers, "read_whole", prefix)]


@mutant("a read of whole batches misses partitions that were added meanwhile")
def _() -> list[Patch]:
    return [(readers, "added_partitions", lambda *_: 0)]


@mutant("positions of a read of whole batches are not lowered to stable")
def _() -> list[Patch]:
    def ends(first: Any) -> Mapping[int, int]:
        return {at: first.visible_end.get(at, 0) for at in range(10)}

    return [(readers, "resumable", ends)]


@mutant("aborts and reaps have no number, so that readers do not wake")
def _() -> list[Patch]:
    real = model.end_batches

    def silent(ledger: Ledger, *rest: Any) -> AbortDecision:
        decision = real(ledger, *rest)
        return replace(decision, ledger=replace(decision.ledger, number=ledger.number))

    return [(model, "end_batches", silent), (batches, "end_batches", silent)]


@mutant("expired batches are not reaped")
def _() -> list[Patch]:
    return [(model, "expired", lambda *_: False), (batches, "expired", lambda *_: False)]


@mutant("live batches are reaped")
def _() -> list[Patch]:
    return [(model, "expired", lambda batch, _: batch.state is BatchState.OPEN)]


@mutant("the end of an instance aborts the batches of others")
def _() -> list[Patch]:
    def all_of_them(ledger: Ledger, batches: Any, _instances: Any, now: Any) -> AbortDecision:
        return model.end_batches(ledger, batches, [], now, Ending.ABORT, "")

    return [(model, "abort_instances", all_of_them)]


@mutant("the end of an instance aborts committed batches")
def _() -> list[Patch]:
    def also_committed(self: Gateway, instance: str) -> None:
        batches = [batch for batch in self.batches.values() if batch.instance == instance]
        others = [batch for batch in self.open_batches() if batch.instance != instance]
        self._store_aborts(
            model.end_batches(self.ledger, batches, others, self.world.now, Ending.ABORT, "")
        )

    return [(Gateway, "end", also_committed)]


@mutant("a lease is renewed without limit")
def _() -> list[Patch]:
    real = model.renew

    def endless(batch: Batch, now: Any, lease: Any) -> Batch:
        return real(replace(batch, max_until=now + 2 * lease), now, lease)

    return [(model, "renew", endless)]


@mutant("the channel is not halted after Kafka lost committed records")
def _() -> list[Patch]:
    return [(Gateway, "halt", nothing), (Gateway, "repair", nothing)]


def _repaired(change: Callable[[RepairDecision, Ledger], RepairDecision]) -> list[Patch]:
    def repair(ledger: Ledger, *rest: Any) -> RepairDecision:
        return change(repair_ledger(ledger, *rest), ledger)

    return [(repairing, "repair_ledger", repair)]


@mutant("a conflict is refused without a look at Kafka")
def _() -> list[Patch]:
    return [(Gateway, "judge_conflict", nothing)]


@mutant("a low watermark is forgotten once it has caught up")
def _() -> list[Patch]:
    def forget(gateway: Gateway, disputed: Mapping[int, int]) -> Mapping[int, int]:
        return {}

    return [(Gateway, "reused", forget)]


@mutant("the time of a commit is unknown while an open batch holds back stable")
def _() -> list[Patch]:
    def snapshot(gateway: Gateway, ledger: Ledger) -> Snapshot:
        ends = {"stable": ledger.stable, "visible_end": ledger.stable}
        return Snapshot(**ends, seconds=gateway.world.seconds)

    return [(Gateway, "snapshot_of", snapshot), (readers, "require_whole", nothing)]


@mutant("records that others wrote before the first low watermark stay visible")
def _() -> list[Patch]:
    return [(Gateway, "reused_before", lambda *_: {})]


@mutant("a repair leaves batches open")
def _() -> list[Patch]:
    return _repaired(lambda decision, _: replace(decision, aborted=(), owners=()))


@mutant("a repair keeps the lost runs")
def _() -> list[Patch]:
    return _repaired(lambda decision, _: replace(decision, runs_removed={}, runs_added={}))


@mutant("a repair lowers the offsets that readers have passed")
def _() -> list[Patch]:
    def lower(decision: RepairDecision, ledger: Ledger) -> RepairDecision:
        ends = {**ledger.visible_end, **ledger.lost_from}
        return replace(decision, ledger=replace(decision.ledger, visible_end=ends, stable=ends))

    return _repaired(lower)


@mutant("a repair forgets the watermark at which records were lost")
def _() -> list[Patch]:
    def late(ledger: Ledger, lost_from: Mapping[int, int]) -> Ledger:
        return model_halt(ledger, {at: offset + 1 for at, offset in lost_from.items()})

    return [(model, "halt", late)]


# --- reading


@mutant("runs are read before stable")
def _() -> list[Patch]:
    real = StreamReader.response

    def torn(reader: StreamReader, known_number: int | None) -> Steps:
        response = yield from real(reader, known_number)
        if response is None:
            return None
        yield from (None for _ in range(3))
        return replace(response, stable=reader.gateway.ledger.stable)

    return [(StreamReader, "response", torn)]


@mutant("each slice of a response has its own stable")
def _() -> list[Patch]:
    real = Gateway.more

    def more(gateway: Gateway, starts: Mapping[int, int], limit: int, first: Any) -> Any:
        return real(gateway, starts, limit, replace(first, stable=gateway.ledger.stable))

    return [(Gateway, "more", more), (StreamReader, "joined", lambda _, __, further: further)]


@mutant("a bounded read ends at stable")
def _() -> list[Patch]:
    return [(readers, "bounds", lambda first: first.stable)]


@mutant("readers read up to visible_end")
def _() -> list[Patch]:
    def ends(reader: StreamReader, response: Any) -> Mapping[int, int]:
        return response.visible_end

    return [(StreamReader, "ends", ends)]


@mutant("expired records are skipped silently")
def _() -> list[Patch]:
    return [(StreamReader, "report_expired", nothing)]


# --- runs


@mutant("closed writers of earlier runs count again")
def _() -> list[Patch]:
    return [(LostWriterPolicy, "was_read", lambda *_: False)]


@mutant("a failed writer counts for ever")
def _() -> list[Patch]:
    return [(LostWriterPolicy, "is_settled", lambda *_: False)]


@mutant("a failed writer whose keys were committed since counts for ever")
def _() -> list[Patch]:
    def is_settled(policy: LostWriterPolicy, writer: Endpoint) -> bool:
        return writer.settled == "none" and not policy.has_seen_open(writer)

    return [(LostWriterPolicy, "is_settled", is_settled)]


@mutant("a failed writer with uncommitted keys counts as finished")
def _() -> list[Patch]:
    real = LostWriterPolicy.counts

    def counts(policy: LostWriterPolicy, writer: Any) -> bool:
        return writer.state == "error" or real(policy, writer)

    return [
        (LostWriterPolicy, "counts", counts),
        (Endpoint, "is_accounted_for", property(lambda endpoint: not endpoint.lives)),
    ]


@mutant("a reader that crashes or fails stores that it has read all writers")
def _() -> list[Patch]:
    def store(runs: JobRuns, place: int) -> None:
        runs.through = {**runs.through, place: runs.number}

    return [(JobRuns, "after_failure", store)]


@mutant("a group of another size begins anew")
def _() -> list[Patch]:
    return [(groups, "finished_after", lambda *_: {})]


def noticed(mutant: Mutant, schedules: int) -> Outcome | None:
    """Return the first schedule in which the model notices a mutant."""
    with mutant.applied(), closing(run_schedules(range(schedules))) as outcomes:
        return next((outcome for outcome in outcomes if outcome.violation is not None), None)


def noticed_at(index: int, schedules: int) -> Outcome | None:
    """Return the same for a mutant by its index, which can be sent to another process."""
    return noticed(MUTANTS[index], schedules)
