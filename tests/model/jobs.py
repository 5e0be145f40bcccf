"""Writers: drivers and their task attempts, streams, batch jobs, transactions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.model.gateway import LEASE, Gateway, Move
from tests.model.world import (
    Interrupted,
    JobFailed,
    JobRefused,
    Process,
    Record,
    Steps,
    Violation,
    World,
    pause,
)

from sluiceway.errors import DeliveryFailed
from sluiceway.kafka.messages import DeliveryReport
from sluiceway.ledger.intervals import DeliveredIntervals, WrittenRecords
from sluiceway_gateway.errors import (
    BatchKeyTaken,
    BatchOpen,
    BeyondWatermark,
    Conflict,
    InvalidManifest,
    ManifestConflict,
    StaleBatch,
    UnknownPartition,
)
from sluiceway_gateway.ledger.batches import CommitRequest, OpenRequest
from sluiceway_gateway.ledger.model import (
    Batch,
    BatchState,
    Interval,
    Manifest,
    digest_of,
    manifest_of,
)

Identity = tuple[Any, ...]


def produce(
    world: World,
    records: Sequence[Record],
    partitions: Sequence[int],
    intervals: DeliveredIntervals,
) -> Steps:
    """Produce records, and add their delivery reports in columns or, as a facade, one by one.

    A wrong offset leaves records missing from `written`.
    """
    one_by_one = world.random.random() < 0.5
    unkeyed_partition = world.random.choice(partitions)
    counts_from_zero = world.fault("report counts up from -1", 0.03)
    counts: Counter[int] = Counter()
    reports: list[tuple[int, int]] = []
    late: list[tuple[int, int]] = []
    for record in records:
        keyed = world.random.random() < 0.2
        partition = world.random.choice(partitions) if keyed else unkeyed_partition
        yield
        while world.kafka_away:
            yield
        if world.fault("record not written", 0.02):
            continue
        offset = world.log.append(partition, record)
        counts[partition] += 1
        if world.fault("record not acknowledged", 0.02):
            continue
        if counts_from_zero:
            offset = counts[partition] - 2
        elif reports and world.fault("report repeated", 0.01):
            partition, offset = reports[-1]
        is_late = world.fault("report late", 0.02)
        (late if is_late else reports).append((partition, offset))
    for partition, offset in (*reports, *late):
        if one_by_one:
            intervals.add_message(partition, offset)
        else:
            report = DeliveryReport(partition=partition, first=offset, messages=1, records=1)
            intervals.add(report)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The message of a finished attempt to its driver."""

    task: int
    batch: Batch
    written: WrittenRecords


@dataclass
class Work:
    """A driver's work on one batch: the attempts of its tasks, then the commit."""

    world: World
    gateway: Gateway
    request: OpenRequest
    tasks: Sequence[Sequence[Identity]]
    move: Move | None = None
    reports: list[Report] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    batch: Batch | None = None

    def perform(self) -> Steps:
        """Write all tasks and commit; raise the error that ends this instance."""
        running: dict[int, list[Process]] = {at: [] for at in range(len(self.tasks))}
        if not self.tasks:
            self.batch = yield from self.world.call("open", self.open_batch)
            if self.batch.state is BatchState.COMMITTED:
                return
        while {each.task for each in self.reports} != running.keys():
            yield
            if self.failures:
                self._abort_later()
                raise self.failures[0]
            done = {each.task for each in self.reports}
            for task, attempts in running.items():
                live = [each for each in attempts if not each.over]
                speculate = task not in done and self.world.fault("speculation", 0.02)
                if (not live and task not in done) or speculate:
                    name = f"{self.request.instance}/{task}.{len(attempts)}"
                    attempts.append(self.world.spawn(name, self._attempt(task)))
            self._renew()
        yield
        yield from self._commit()

    def open_batch(self) -> Batch:
        return self.gateway.open(self.request)

    def _attempt(self, task: int) -> Steps:
        try:
            yield from self._write(task)
        except BatchOpen:
            yield from pause(self.world, 30)
        except DeliveryFailed as error:
            self.world.note(f"an attempt failed: {error.code}")
        except Exception as error:
            self.failures.append(error)

    def _write(self, task: int) -> Steps:
        intervals = DeliveredIntervals()
        batch, done = yield from self._before_writing(task, intervals)
        self.batch = batch
        if batch.state is BatchState.COMMITTED:
            self.reports.append(Report(task=task, batch=batch, written=WrittenRecords()))
            return
        records = [Record(identity, self.request.key) for identity in self.tasks[task]]
        yield from produce(self.world, records[done:], [*batch.begin], intervals)
        yield from pause(self.world, 3)
        written = intervals.written()
        written.require(len(records))
        self.reports.append(Report(task=task, batch=batch, written=written))

    def _before_writing(self, _task: int, _intervals: DeliveredIntervals) -> Steps:
        """Open the batch; return it, and the number of records already written (0)."""
        return (yield from self.world.call("open", self.open_batch)), 0

    def chosen(self) -> list[Report]:
        """Return the first report of each task."""
        first: dict[int, Report] = {}
        for each in self.reports:
            first.setdefault(each.task, each)
        return [*first.values()]

    def _commit(self) -> Steps:
        chosen = self.chosen()
        batches = {each.batch.id: each.batch for each in chosen}
        if chosen and any(each.state is BatchState.COMMITTED for each in batches.values()):
            yield from self._drained([*batches.values()])
            return
        if len(batches) > 1:
            raise JobFailed("messages of mixed batches")
        batch = self.batch if not chosen else chosen[0].batch
        assert batch is not None
        written = WrittenRecords.merged(report.written for report in chosen)
        manifest = manifest_of(written.manifest)
        counts = dict(written.counts)
        if manifest and self.world.fault("bogus manifest", 0.05):
            yield from self._bogus(batch)
        try:
            yield from self._send_commit(batch, manifest, counts)
        except Exception:
            self._abort_later()
            raise
        if self.world.fault("late abort", 0.1):
            self._abort_later()

    def _send_commit(self, batch: Batch, manifest: Manifest, counts: dict[int, int]) -> Steps:
        """Commit, sometimes with a manifest in slices, which may arrive after the commit."""
        sliced = len(manifest) > 1 and self.world.random.random() < 0.4
        request = self._request(batch, manifest, counts)
        retries = self.world.random.randint(0, 4)
        while True:
            if sliced:
                for number, at in enumerate(sorted(manifest)):
                    part = {at: manifest[at]}
                    self.world.send(
                        "upload", lambda n=number, p=part: self.gateway.upload(batch.id, n, p)
                    )
            try:
                yield from self.world.call(
                    "commit", lambda: self.gateway.commit(request, sliced, self.move), retries
                )
            except (BeyondWatermark, InvalidManifest):
                if not sliced:
                    raise
                yield from pause(self.world, 10)
            else:
                return

    def _request(self, batch: Batch, manifest: Manifest, counts: dict[int, int]) -> CommitRequest:
        return CommitRequest(
            batch=batch.id,
            instance=self.request.instance,
            digest=digest_of(manifest),
            manifest=manifest,
            records=sum(counts.values()),
            counts=counts,
        )

    def _bogus(self, batch: Batch) -> Steps:
        """Send an invalid manifest, as a broken client might; it must be refused."""
        manifest = self.world.random.choice(self._bogus_manifests(batch))
        request = self._request(batch, manifest, dict.fromkeys(manifest, 1))
        try:
            yield from self.world.call("bogus commit", lambda: self.gateway.commit(request))
        except (BeyondWatermark, ManifestConflict, UnknownPartition):
            return
        except Conflict as error:
            raise JobFailed("the batch is no longer open") from error
        raise Violation("lost", f"the manifest {manifest} is accepted")

    def _bogus_manifests(self, batch: Batch) -> list[Manifest]:
        """Return manifests past the watermark, below begin, over a run, or in other partitions."""
        log, runs = self.world.log, self.gateway.runs
        at, begin = self.world.random.choice([*batch.begin.items()])
        manifests: list[Manifest] = [
            {at: (Interval(max(begin, len(log.records[at]) - 1), 10_000),)}
        ]
        if begin and len(log.records[at]) > begin:
            manifests.append({at: (Interval(begin - 1, begin + 1),)})
        manifests += [
            {each: (Interval(run.end - 1, run.end),)}
            for each, first in batch.begin.items()
            for run in runs.get(each, ())
            if run.end > first
        ]
        manifests += [
            {each: (Interval(len(records) - 1, len(records)),)}
            for each, records in enumerate(log.records)
            if records and each not in batch.begin
        ]
        return manifests

    def _drained(self, batches: list[Batch]) -> Steps:
        """Compare the record counts of a replay and its committed batch."""
        yield
        if any(each.state is not BatchState.COMMITTED for each in batches):
            raise JobFailed("messages of mixed batches")
        if not self.same_count(batches[0]):
            raise JobRefused("the key is committed with other records")

    def same_count(self, batch: Batch) -> bool:
        """Return whether the committed batch has the same number of records."""
        return batch.records == sum(len(each) for each in self.tasks)

    def _renew(self) -> None:
        if self.batch is not None and self.world.random.random() < 0.2:
            self.world.send("renew", lambda known=self.batch.id: self.gateway.renew(known))

    def _abort_later(self) -> None:
        if self.batch is not None:
            known, instance = self.batch.id, self.request.instance
            self.world.send("abort", lambda: self.gateway.abort(known, instance))


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
        """Start the next run if there is none."""
        run = self.current
        if run and run.over:
            self._report_end(run.name)
        if self.done or self.refused or (run and not run.over and not run.declared_dead):
            return
        if run and isinstance(run.error, JobRefused | BatchKeyTaken | StaleBatch):
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
        move = options.pop("move", None)
        partitions = None
        if self.world.random.random() < 0.3:
            count = self.gateway.ledger.partitions
            partitions = tuple(sorted(self.world.random.sample(range(count), k=max(1, count // 2))))
        owner = options.pop("owner", self.owner)
        request = OpenRequest(
            key=key, owner=owner, instance=instance, partitions=partitions, lease=LEASE, **options
        )
        return Work(self.world, self.gateway, request, tasks, move)


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
        if len(self.committed) > 2 and self.world.fault("checkpoint rolled back", 0.05):
            last = max(self.committed)
            self.planned = last - 2
            self.committed = {each for each in self.committed if each < self.planned}
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
            tasks = [each for each in self.batches[ordinal] if each]
            if tasks:
                key = f"{self.owner}:{ordinal}"
                yield from self.work(key, instance, tasks, takeover=True, ordinal=ordinal).perform()
                yield
            self.committed.add(ordinal)

    def keys(self) -> dict[str, list[Identity]]:
        """Return the expected records by key."""
        return {
            f"{self.owner}:{at}": [each for task in tasks for each in task]
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
            except BatchOpen:
                yield from pause(self.world, 30)
            else:
                return

    def keys(self) -> dict[str, list[Identity]]:
        """Return the expected records of the key."""
        return {self.key: [each for task in self.tasks for each in task]}


@dataclass
class Transaction(Job):
    """A job that reads, processes and writes; each commit also moves the read position."""

    inputs: list[Identity] = field(default_factory=list)

    def drive(self, instance: str) -> Steps:
        count, suspended = 0, False
        while True:
            if suspended:
                # The reader refuses a call, as retriable, until it could go back.
                yield
                suspended = not self.rewound()
                continue
            start = yield from self.world.call("position", self._position)
            end = min(start + self.world.random.randint(1, 4), len(self.inputs))
            if start == end:
                return
            count += 1
            yield
            if self.world.fault("block failed", 0.5 if self.world.kafka_away else 0.05):
                suspended = not self.rewound()
                continue
            move = Move(reader=self.owner, start=start, end=end)
            tasks = [self.inputs[start:end]]
            key = f"{instance}:{count}"
            yield from self.work(key, instance, tasks, takeover=True, move=move).perform()

    def rewound(self) -> bool:
        """Return whether the reader went back to its position, which needs Kafka."""
        return not self.world.kafka_away

    def _position(self) -> int:
        return self.gateway.positions.get(self.owner, 0)


@dataclass
class PlainWriter(Job):
    """A writer without keys: each flush is a batch, and a failed one is not repeated."""

    flushes: list[list[Identity]] = field(default_factory=list)
    begun: int = 0
    acknowledged: set[int] = field(default_factory=set)

    def drive(self, instance: str) -> Steps:
        run = self.runs
        while run == self.runs and self.begun < len(self.flushes):
            at = self.begun
            self.begun += 1
            key = f"{instance}:{at}"
            yield from self.work(key, instance, [self.flushes[at]], owner=instance).perform()
            self.acknowledged.add(at)


@dataclass
class BlockWriter(Job):
    """A writer whose blocks may be interrupted; it then goes on with a flush.

    In a block, a flush commits nothing: the block does, at its end.
    """

    units: list[tuple[list[Identity], list[Identity]]] = field(default_factory=list)
    """The records of each block, and those of the flush after it."""
    begun: int = 0
    entered: set[str] = field(default_factory=set)
    """Instances that are in a block."""
    acknowledged: set[int] = field(default_factory=set)

    def drive(self, instance: str) -> Steps:
        run = self.runs
        while run == self.runs and self.begun < len(self.units):
            at = self.begun
            self.begun += 1
            in_block, flushed = self.units[at]
            try:
                yield from self._block(f"{instance}:block {at}", instance, in_block)
            except Interrupted:
                self.world.note(f"{instance} goes on")
            self.leave_interrupted(instance)
            if instance not in self.entered:
                key = f"{instance}:{at}"
                yield from self.work(key, instance, [flushed], owner=instance).perform()
            self.acknowledged.add(at)

    def _block(self, key: str, instance: str, records: list[Identity]) -> Steps:
        yield
        self.entered.add(instance)
        yield
        yield from self.work(key, instance, [records], owner=instance).perform()
        yield
        self.entered.discard(instance)

    def leave_interrupted(self, instance: str) -> None:
        """Leave a block whose end was interrupted, as the writer's next call does."""
        self.entered.discard(instance)
