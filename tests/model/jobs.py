"""Writers: drivers and their task attempts, streams, batch jobs, transactions."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from tests.model.client import (
    UID,
    GroupReader,
    Writer,
    connection_of,
    in_thread,
    ledger_calls,
    produce,
    wait,
)
from tests.model.gateway import Gateway
from tests.model.world import (
    Interrupted,
    JobFailed,
    Process,
    Record,
    Steps,
    Violation,
    World,
    pause,
)

from sluiceway.api.ledger import Batch, BatchRequest, LedgerCalls
from sluiceway.errors import (
    CommitUnknown,
    Conflict,
    DeliveryFailed,
    GatewayUnavailable,
    KafkaUnavailable,
    ReplayMismatch,
    SluicewayError,
)
from sluiceway.ledger.intervals import DeliveredIntervals, WrittenRecords
from sluiceway.ledger.write_batch import BatchSequence, WriteBatch
from sluiceway.ledger.writer_batches import WriterBatches
from sluiceway.transaction import Transaction as ClientTransaction

Identity = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """The message of a finished attempt to its driver."""

    task: int
    batch: Batch
    written: WrittenRecords


@dataclass
class Work:
    """A driver's work on one batch: the attempts of its tasks, then the commit, as Spark's."""

    world: World
    gateway: Gateway
    calls: LedgerCalls
    request: BatchRequest
    tasks: Sequence[Sequence[Identity]]
    parts: list[Part] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    def perform(self) -> Steps:
        """Write all tasks and commit; raise the error that ends this instance."""
        running: dict[int, list[Process]] = {task: [] for task in range(len(self.tasks))}
        while {part.task for part in self.parts} != running.keys():
            yield
            if self.failures:
                yield from in_thread(self._abort)
                raise self.failures[0]
            done = {part.task for part in self.parts}
            for task, attempts in running.items():
                live = [attempt for attempt in attempts if not attempt.over]
                speculate = task not in done and self.world.fault("speculation", 0.02)
                if (not live and task not in done) or speculate:
                    name = f"{self.request.instance}/{task}.{len(attempts)}"
                    attempts.append(self.world.spawn(name, self._attempt(task)))
        yield
        yield from in_thread(self._commit)

    def _attempt(self, task: int) -> Steps:
        try:
            yield from in_thread(partial(self._write, task))
        except (DeliveryFailed, GatewayUnavailable):
            self.world.note(f"an attempt of {self.request.key} failed")
        except SluicewayError as error:
            if error.code == "batch_open":
                yield from pause(self.world, 30)
            else:
                self.failures.append(error)

    def _write(self, task: int) -> None:
        batch, intervals = WriteBatch(self.calls, self.request), DeliveredIntervals()
        try:
            done = self.begin(batch, task, intervals)
            if not batch.replayed:
                records = [Record(identity, batch.opened.id) for identity in self.tasks[task]]
                partitions = [*batch.opened.begin]
                wait(produce(self.world, records[done:], partitions, intervals))
            wait(pause(self.world, 3))
            written = intervals.written()
            if not batch.replayed:
                written.require(len(self.tasks[task]))
            self.parts.append(Part(task=task, batch=batch.opened, written=written))
        finally:
            batch.release()

    def begin(self, batch: WriteBatch, _task: int, _intervals: DeliveredIntervals) -> int:
        """Open the batch; return the number of records already written (0)."""
        batch.open()
        return 0

    def chosen(self) -> list[Part]:
        """Return the first message of each task."""
        first: dict[int, Part] = {}
        for part in self.parts:
            first.setdefault(part.task, part)
        return [*first.values()]

    def _commit(self) -> None:
        chosen = self.chosen()
        if len({(part.batch.id, part.batch.state) for part in chosen}) > 1:
            self._abort()
            raise JobFailed("messages of other batches")
        batch = WriteBatch(self.calls, self.request)
        if chosen:
            batch.adopt(chosen[0].batch)
        else:
            batch.open()
        try:
            if batch.replayed:
                batch.verify_replay(sum(map(len, self.tasks)))
            else:
                batch.commit(WrittenRecords.merged(part.written for part in chosen))
        except SluicewayError:
            self._abort()
            raise
        finally:
            batch.release()
        if self.world.fault("late abort", 0.1):
            batch_id, instance = batch.opened.id, self.request.instance
            self.world.send("abort", lambda: self.gateway.abort(batch_id, instance))

    def _abort(self) -> None:
        """Abort the batches of all messages, as Spark does after any failure."""
        for batch in {part.batch.id: part.batch for part in self.parts}.values():
            WriteBatch(self.calls, self.request).adopt(batch).abort("the write failed")


@dataclass
class Job:
    """A job that runs until it succeeds; a run that is declared dead may continue as a zombie."""

    world: World
    gateway: Gateway
    owner: str
    runs: int = 0
    current: Process | None = None
    done: bool = False
    refused: bool = False

    def supervise(self) -> None:
        """Start the next run, as there is none, or it is declared dead."""
        run = self.current
        if self.done or self.refused:
            return
        if run and run.over:
            self._report_end(run.name)
        if run and (
            isinstance(run.error, ReplayMismatch)
            or getattr(run.error, "code", "") in {"batch_key_taken", "stale_batch"}
        ):
            self.refused = True
            return
        if run and run.over and run.error is None and not run.declared_dead:
            self.done = True
            return
        self.runs += 1
        instance = f"{self.owner}#{self.runs}"
        self.before_restart()
        self.current = self.world.spawn(instance, self.drive(instance))

    def _report_end(self, instance: str) -> None:
        """Report the end of a run, sometimes late or not at all; its tasks may continue."""
        if instance not in self.gateway.over:
            self.gateway.over.add(instance)
            if self.world.random.random() < 0.5:
                self.world.send("end", lambda: self.gateway.end(instance))

    def before_restart(self) -> None:
        """Damage the state that is kept between runs."""

    def drive(self, instance: str) -> Steps:
        """Perform one run."""
        raise NotImplementedError

    def work(
        self, key: str, instance: str, tasks: Sequence[Sequence[Identity]], **options: Any
    ) -> Work:
        """Return the work on a batch."""
        request = BatchRequest(
            channel="c", uid=UID, key=key, owner=self.owner, instance=instance, **options
        )
        return Work(self.world, self.gateway, self.calls(), request, tasks)

    def calls(self) -> LedgerCalls:
        """Return the calls of a run, some of which name partitions to write to."""
        partitions = None
        if self.world.random.random() < 0.3:
            count = self.gateway.ledger.partitions
            partitions = tuple(sorted(self.world.random.sample(range(count), k=max(1, count // 2))))
        return ledger_calls(self.world, self.gateway, partitions)


@dataclass
class Stream(Job):
    """A streaming query: micro-batches by ordinal, and logs of planned and committed ones."""

    batches: list[list[list[Identity]]] = field(default_factory=list)
    planned: int = -1
    committed: set[int] = field(default_factory=set)
    rolled_back: bool = False

    def before_restart(self) -> None:
        if self.committed and self.world.fault("commit log entry deleted", 0.2):
            self.committed.discard(max(self.committed))
        if len(self.committed) > 2 and self.world.fault("checkpoint rolled back", 0.3):
            last = max(self.committed)
            self.planned = last - 2
            self.committed = {ordinal for ordinal in self.committed if ordinal < self.planned}
            self.rolled_back = True

    def drive(self, instance: str) -> Steps:
        while True:
            ordinal = self.planned
            if ordinal in self.committed or ordinal < 0:
                ordinal += 1
            if ordinal >= len(self.batches):
                return
            self.planned = max(self.planned, ordinal)
            yield
            tasks = [task for task in self.batches[ordinal] if task]
            if tasks:
                key = f"{self.owner}:{ordinal}"
                yield from self.work(key, instance, tasks, takeover=True, ordinal=ordinal).perform()
                yield
            self.committed.add(ordinal)

    def keys(self) -> dict[str, list[Identity]]:
        """Return the expected records by key."""
        return {
            f"{self.owner}:{at}": [identity for task in tasks for identity in task]
            for at, tasks in enumerate(self.batches)
        }


@dataclass
class BatchJob(Job):
    """A batch job: one batch, with the same key in each run."""

    key: str = ""
    tasks: list[list[Identity]] = field(default_factory=list)

    def drive(self, instance: str) -> Steps:
        while True:
            try:
                yield from self.work(self.key, instance, self.tasks).perform()
            except Conflict as error:
                if error.code != "batch_open":
                    raise
                yield from pause(self.world, 30)
            else:
                return

    def keys(self) -> dict[str, list[Identity]]:
        """Return the expected records of the key."""
        return {self.key: [identity for task in self.tasks for identity in task]}


class BlockFailed(Exception):
    """An error of the program in a block, which it handles."""


@dataclass
class Transaction(Job):
    """A job that reads, processes and writes; each commit also moves the read position."""

    inputs: list[Identity] = field(default_factory=list)

    def drive(self, instance: str) -> Steps:
        return (yield from in_thread(partial(self._write, instance)))

    def _write(self, instance: str) -> None:
        world, writer = self.world, Writer(self.world, self.gateway, instance)
        reader = GroupReader(world, self.owner, wait(world.call("position", self._position)))
        transaction = ClientTransaction(cast("Any", reader), cast("Any", writer))
        while True:
            try:
                with transaction:
                    start = reader.position
                    if start == len(self.inputs):
                        return
                    reader.position = min(start + world.random.randint(1, 4), len(self.inputs))
                    writer.write(self.inputs[start : reader.position])
                    wait(pause(world, 3))
                    self._may_fail()
            except (BlockFailed, Interrupted):
                world.note(f"{instance} goes on")
            except KafkaUnavailable:
                wait(pause(world, 10))
            except CommitUnknown:
                resolve(writer)

    def _may_fail(self) -> None:
        if self.world.fault("block failed", 0.5 if self.world.kafka_away else 0.05):
            raise BlockFailed

    def _position(self) -> int:
        return self.gateway.positions.get(self.owner, 0)


@dataclass
class WriterJob(Job):
    """A writer that commits its records by flushes, and in blocks with keys.

    A run without blocks may use a facade. What was certainly not committed is written again, and so
    is every block, by its key.
    """

    units: list[tuple[str, list[Identity]]] = field(default_factory=list)
    """The kind and the records of each flush or block."""
    acknowledged: set[int] = field(default_factory=set)
    left: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.left = [*range(len(self.units))]

    def drive(self, instance: str) -> Steps:
        return (yield from in_thread(partial(self._write_units, instance)))

    def _write_units(self, instance: str) -> None:
        has_blocks = any(kind == "block" for kind, _ in self.units)
        batches: WriterBatches | BatchSequence
        if has_blocks or self.world.random.random() < 0.5:
            writer = Writer(self.world, self.gateway, instance)
            write, batches = partial(self._write, writer), writer.batches
        else:
            calls = ledger_calls(self.world, self.gateway)
            connection = connection_of(self.gateway)
            batches = BatchSequence(calls, connection, DeliveredIntervals(), writer=instance)
            write = partial(self._write_messages, batches)
        run = self.runs
        try:
            while run == self.runs and self.left:
                self._write_unit(self.left.pop(0), write)
        except (SluicewayError, JobFailed, Interrupted) as error:
            batches.close(error)
            self._require_ended(instance)
            raise
        batches.close()

    def _write_unit(self, unit: int, write: Callable[[int], bool]) -> None:
        is_uncommitted = self.units[unit][0] == "block"
        try:
            is_uncommitted = not write(unit)
        except SluicewayError as error:
            is_uncommitted = is_uncommitted or not isinstance(error, CommitUnknown)
            raise
        else:
            if not is_uncommitted:
                self.acknowledged.add(unit)
        finally:
            if is_uncommitted:
                # After a flush, which an interrupted block must not disturb.
                self.left.insert(1, unit)

    def _write(self, writer: Writer, unit: int) -> bool:
        """Write a unit; return whether it is committed, or never will be."""
        kind, records = self.units[unit]
        key = f"{self.owner}:{unit}"
        try:
            if kind == "block":
                return self._write_block(writer, key, records)
            writer.write(records)
            wait(pause(self.world, 10))
            writer.flush()
        except CommitUnknown as error:
            is_of_other_block = error.key.startswith(f"{self.owner}:") and error.key != key
            return resolve(writer) and not is_of_other_block
        except Interrupted:
            if kind == "block":
                return False
            if writer.batch is None or not writer.batch.is_requested:
                raise
            self._write_further(writer)
            writer.flush()
        return True

    def _write_further(self, writer: Writer) -> None:
        """Sometimes write the next flush, before which an interrupted commit is repeated."""
        if not self.left or self.units[self.left[0]][0] == "block":
            return
        if self.world.random.random() < 0.5:
            unit = self.left.pop(0)
            try:
                writer.write(self.units[unit][1])
                writer.flush()
            except SluicewayError as error:
                raise JobFailed("whether either flush is committed is unknown") from error
            self.acknowledged.add(unit)

    def _require_ended(self, instance: str) -> None:
        """Raise if a closed writer has left a batch open, though every request is answered.

        A second interrupt may end what the first one has begun. A repeated opening that was refused
        tells nothing about the first request, if that one arrives after it.
        """
        world = self.world
        if world.calm_since is None or (world.running and world.running.interrupts > 1):
            return
        for batch in self.gateway.open_batches():
            late = (batch.instance, batch.key) in self.gateway.refused
            mine = batch.instance.split("-")[0] == instance and batch.opened_at >= world.calm_since
            if mine and not late:
                raise Violation("stuck", f"{batch.key} of a closed writer is open")

    def _write_block(self, writer: Writer, key: str, records: Sequence[Identity]) -> bool:
        block = writer.batches.block(key)
        if self.world.fault("block abandoned", 0.05):
            # Only the statement holds what leaves the block, until an interrupt ends it.
            if self.world.running:
                self.world.running.interrupts += 1
            leave = block.__exit__
            block.__enter__()
            writer.write(records)
            del leave
            return False
        try:
            with block:
                writer.write(records)
                wait(pause(self.world, 3))
        except CommitUnknown:
            if self.world.random.random() < 0.5:
                raise
            return self._write_block(writer, key, records)
        return True

    def _write_messages(self, batches: BatchSequence, unit: int) -> bool:
        """Write a unit by a facade; return whether it is committed, or never will be."""
        batch = batches.open()
        records = [Record(identity, batch.opened.id) for identity in self.units[unit][1]]
        batches.block.admitted += len(records)
        wait(produce(self.world, records, [*batch.opened.begin], batches.intervals))
        return self._commit_messages(batches)

    def _commit_messages(self, batches: BatchSequence) -> bool:
        """Commit until the outcome is certain."""
        is_unknown = False
        while True:
            try:
                if is_unknown and self.world.random.random() < 0.5:
                    return bool(batches.resolve())
                batches.commit()
            except (CommitUnknown, Interrupted):
                is_unknown = True
            else:
                return True


def resolve(writer: Writer) -> bool:
    """Return whether the batch of the last CommitUnknown was committed."""
    while True:
        with suppress(CommitUnknown, Interrupted):
            return bool(writer.batches.resolve())
