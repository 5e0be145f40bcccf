"""One schedule: a seeded world, run with faults, then without, then checked."""

import gc
import hashlib
import math
import random
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any

from tests.model.client import client_threads, end_threads
from tests.model.gateway import CONFIRM_S, TOLERANCE_S, Gateway
from tests.model.jobs import BatchJob, Identity, Job, Stream, Transaction, WriterJob
from tests.model.readers import (
    StreamReader,
    bounded_read,
    present_read,
    read_whole,
    repeated_snapshot,
    require_whole,
)
from tests.model.runs import JobRuns
from tests.model.world import Log, Record, Steps, Violation, World, offsets, pause

from sluiceway_gateway.core.kafka.model import Interval
from sluiceway_gateway.ledger.batches import CommitRequest, OpenRequest
from sluiceway_gateway.ledger.model import Batch, Manifest, digest_of

CALM_STEPS = 30_000
"""Steps within which everything must finish after the faults have ended."""
CALM_INTERRUPTS = 300
"""Steps after the faults in which drivers are still interrupted."""
READING = ("reader", "bounded", "snapshot")
"""Prefixes of the names of reading processes."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a schedule; `violation` is the kind of the first violated property."""

    seed: int
    violation: str | None
    text: str = ""
    steps: int
    faults: Counter[str]
    ended_batches: int
    digest: str
    """SHA-256 of the trace."""
    trace: tuple[str, ...] = ()


class Schedule:
    """The jobs, readers and background work of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = rng = random.Random(seed)  # noqa: S311 - not for secrets
        partitions = rng.randint(1, 3)
        self.world = World(rng, Log(partitions))
        self.gateway = Gateway(self.world, partitions)
        self.steps = rng.randint(200, 1000)
        self.reuse = rng.random() < 0.06
        """Whether Kafka loses committed records and reuses their offsets."""
        if self.reuse:
            # The times of commits are proofs, and kept for days.
            self.gateway.kept_snapshots = 10_000
        self.expires = rng.random() < 0.1
        """Whether records expire before readers have read them."""
        self.expired: set[tuple[int, int]] = set()
        self.archive: Counter[tuple[Any, ...]] = Counter()
        self.given_up: set[tuple[Any, ...]] = set()
        """Committed records that Kafka has lost."""
        self.runs = JobRuns(seed)
        self.jobs = [*self._jobs()]
        self.readers = [
            StreamReader(self.world, self.gateway, limit=rng.choice([1, 2, 1000])) for _ in range(2)
        ]

    def _jobs(self) -> list[Job]:
        rng, world, gateway = self.random, self.world, self.gateway
        stream = Stream(world, gateway, "stream")
        tasks: list[list[Identity]]
        stream.batches = [
            [[("stream", at, task, row) for row in range(rng.randint(0, 3))] for task in range(2)]
            for at in range(rng.randint(3, 6))
        ]
        jobs: list[Job] = [stream]
        for name in ("day-1", "day-2")[: rng.randint(0, 2)]:
            tasks = [
                [(name, task, row) for row in range(rng.randint(1, 4))]
                for task in range(rng.randint(0, 3))
            ]
            jobs.append(BatchJob(world, gateway, f"job-{name}", key=name, tasks=tasks))
        if rng.random() < 0.5:
            inputs = [("transaction", at) for at in range(rng.randint(2, 10))]
            jobs.append(Transaction(world, gateway, "transaction", inputs=inputs))
        if rng.random() < 0.5:
            units = [
                ("flush", [("flush", at, row) for row in range(3)])
                for at in range(rng.randint(1, 6))
            ]
            jobs.append(WriterJob(world, gateway, "plain", units=units))
        if rng.random() < 0.3:
            units = [
                (kind, [(kind, at, row) for row in range(rows)])
                for at in range(rng.randint(1, 3))
                for kind, rows in (("block", 3), ("after", 2))
            ]
            jobs.append(WriterJob(world, gateway, "blocks", units=units))
        if rng.random() < 0.15:
            # One key is used by two owners, or twice by one owner.
            tasks = [[("thief", row) for row in range(2)]]
            owner = rng.choice(["thief", "job-day-1"])
            if owner == "thief" or any(job.owner == owner for job in jobs):
                tasks = tasks if owner == "thief" else [[("thief", row) for row in range(17)]]
                thief = BatchJob(world, gateway, owner, key="day-1", tasks=tasks)
                thief.runs = 1000
                jobs.append(thief)
        return jobs

    def run(self) -> Outcome:
        """Run the schedule."""
        world = self.world
        try:
            steps = self.runs.run()
            with client_threads(world, slice_intervals=self.random.choice([1, 10_000])):
                self._start()
                steps += self._with_faults()
                world.calm, world.calm_since = True, world.now
                steps += self._without_faults()
            self._check_end()
            self._check_visible()
        except Violation as violation:
            return self._outcome(violation.kind, str(violation), len(world.trace))
        return self._outcome(None, "", steps)

    def _outcome(self, kind: str | None, text: str, steps: int) -> Outcome:
        trace = (*self.runs.world.trace, *self.world.trace)
        return Outcome(
            seed=self.seed,
            violation=kind,
            text=text,
            steps=steps,
            faults=self.runs.world.faults + self.world.faults,
            ended_batches=self.gateway.ledger.number,
            digest=hashlib.sha256("\n".join(trace).encode()).hexdigest(),
            trace=trace,
        )

    def _start(self) -> None:
        for number, reader in enumerate(self.readers):
            self.world.spawn(f"reader {number}", reader.read())
        self.world.spawn("bounded", self._later(bounded_read(self.world, self.gateway)))
        self.world.spawn("bounded now", self._later(present_read(self.world, self.gateway)))
        for _ in range(2):
            self.world.spawn("snapshot", self._later(repeated_snapshot(self.world, self.gateway)))
        if self.random.random() < 0.5:
            self.world.spawn("forgotten", self._renew_forever())

    def _later(self, steps: Steps) -> Steps:
        yield from pause(self.world, 60)
        yield from steps

    def _renew_forever(self) -> Steps:
        """Renew a batch forever, like a notebook that outlives its query."""
        while True:
            yield
            for batch in self.gateway.open_batches():
                self.world.send("renew", lambda batch_id=batch.id: self.gateway.renew(batch_id))
                while any(open_.id == batch.id for open_ in self.gateway.open_batches()):
                    self.world.send("renew", lambda batch_id=batch.id: self.gateway.renew(batch_id))
                    yield from (None for _ in range(5))
                return

    def _with_faults(self) -> int:
        for _ in range(self.steps):
            self._background()
            self._faults()
            self.world.step()
        return self.steps

    def _without_faults(self) -> int:
        for step in range(CALM_STEPS):
            if step < CALM_INTERRUPTS and self.random.random() < 0.01:
                self._interrupt()
            self._background()
            self.world.step()
            if step % 20 == 0 and self._finished():
                return step
        raise Violation("stuck", f"after {CALM_STEPS} calm steps: {self._unfinished()}")

    def _background(self) -> None:
        for job in self.jobs:
            if job.current is None or job.current.over or job.current.declared_dead:
                job.supervise()
        chance = self.random.random()
        if chance < 0.02:
            self.gateway.reap()
        elif chance < 0.03:
            self.gateway.prune()
        elif chance < 0.04:
            self.gateway.clip()

    def _faults(self) -> None:
        world, rng = self.world, self.random
        if world.fault("process killed", 0.008):
            self._kill_one(lambda process: world.crash(process))
        if world.fault("driver declared dead", 0.01):
            job = rng.choice(self.jobs)
            if job.current is not None:
                job.current.declared_dead = True
        if world.fault("interrupt", 0.01):
            self._interrupt()
        if world.fault("Kafka unreachable", 0.003):
            world.away_until = world.seconds + rng.randint(5, 40)
        if world.fault("gateway unreachable", 0.002):
            world.lose_gateway()
        if world.fault("foreign record", 0.01):
            world.log.append(rng.randrange(len(world.log.records)), None)
        if len(world.log.records) < 5 and world.fault("growth", 0.003):
            self.gateway.grow()
        if world.fault("truncation", 0.01):
            self._truncate()
        starts = world.log.starts
        ends = [
            place
            for place in self.gateway.ledger.visible_end.items()
            if place[1] > starts[place[0]]
        ]
        if self.reuse and ends and world.fault("offsets reused", 0.01):
            at, end = rng.choice(ends)
            self._lose_records(at, rng.randrange(starts[at], end))

    def _interrupt(self) -> None:
        drivers = [job.current for job in self.jobs if job.current and not job.current.over]
        if drivers:
            self.world.interrupt(self.random.choice(drivers))

    def _lose_records(self, at: int, start: int) -> None:
        """Lose the last records of a partition; writers go on until the channel is halted."""
        world, gateway = self.world, self.gateway
        visible = [offset for offset in offsets_of(gateway, at) if offset >= start]
        number = gateway.ledger.number
        lost = world.log.lose(at, start)
        for offset in visible:
            record = lost[offset]
            if record is not None:
                self.given_up.add(record.identity)
        # Readers find lost records, or others in their place: only the halt ends that.
        for process in [process for process in world.processes if process.name.startswith(READING)]:
            world.crash(process)
        # The restart of a broker takes longer than clocks differ.
        world.seconds += TOLERANCE_S + 1
        gateway.suspicious = False
        gateway.lost = {at: range(start, gateway.ledger.visible_end[at])}
        for _ in range(self.random.randint(0, 600)):
            if gateway.ledger.halted is not None:
                break
            self._background()
            if self.random.random() < 0.02:
                gateway.compare()
            world.step()
        self._require_halted(at, start)
        gateway.lost = {}
        for _ in range(self.random.randint(0, 60)):
            self._background()
            world.step()
        if gateway.ledger.lost_from.get(at, math.inf) > min(visible, default=start):
            raise Violation("lost", f"offsets of {at} that Kafka uses again stay visible")
        self._give_up_since(number, at, lost)
        gateway.repair()
        world.note("repaired")
        for count, reader in enumerate(self.readers):
            reader.restart()
            world.spawn(f"reader {count}", reader.read())
        world.spawn("bounded now", self._later(present_read(world, gateway)))
        world.spawn("snapshot", self._later(repeated_snapshot(world, gateway)))

    def _require_halted(self, at: int, start: int) -> None:
        """Raise unless the channel is halted, or the loss has shown nowhere."""
        gateway = self.gateway
        for _ in range(3):
            gateway.compare()
            self.world.seconds += CONFIRM_S + 1
        if gateway.ledger.halted is not None:
            return
        if gateway.suspicious:
            raise Violation("lost", f"a loss from {start} of {at} on has shown, without a halt")
        # Batches that all failed have filled the offsets between two passes: a stated limit.
        self.world.note("unnoticed loss")
        gateway.halt({at: start})

    def _give_up_since(self, number: int, at: int, lost: dict[int, Record | None]) -> None:
        """Give up what was committed since the loss from the first lost offset on."""
        gateway = self.gateway
        for commit, manifest in gateway.manifests.items():
            for offset in offsets(manifest.get(at, ())) if commit > number else ():
                if offset >= gateway.ledger.lost_from[at]:
                    for record in (lost.get(offset), self.world.log.records[at][offset]):
                        if record is not None and record.batch == gateway.committed_ids[commit]:
                            self.given_up.add(record.identity)

    def _kill_one(self, kill: Any) -> None:
        spared = (*READING, "forgotten", "thread")
        victims = [
            process for process in self.world.processes if not process.name.startswith(spared)
        ]
        if victims:
            kill(self.random.choice(victims))

    def _truncate(self) -> None:
        """Expire records, usually only those that all readers have read."""
        world = self.world
        for at in range(len(world.log.records)):
            read = min(reader.positions.get(at, 0) for reader in self.readers)
            if self.expires and self.random.random() < 0.3:
                read = max(read, self.gateway.ledger.stable.get(at, 0))
            start = self.random.choice([world.log.starts[at], read])
            for offset in range(world.log.starts[at], start):
                if offset in offsets_of(self.gateway, at):
                    record = world.log.records[at][offset]
                    if record is not None:
                        self.archive[record.identity] += 1
            world.log.starts[at] = max(world.log.starts[at], start)

    def _finished(self) -> bool:
        return not self._unfinished()

    def _unfinished(self) -> list[str]:
        left = [job.owner for job in self.jobs if not (job.done or job.refused)]
        left += [f"batch {batch.key}" for batch in self.gateway.open_batches()]
        ends = self.gateway.ledger.visible_end
        left += [f"stable of {at}" for at, end in ends.items() if self._stable(at) < end]
        for reader in self.readers:
            left += [
                f"reader at {at}" for at, end in ends.items() if reader.positions.get(at, 0) < end
            ]
        names = {process.name for process in self.world.processes}
        return left + sorted(name for name in names if name.startswith(READING[1:]))

    def _stable(self, at: int) -> int:
        return self.gateway.ledger.stable.get(at, 0)

    def _visible(self) -> Counter[tuple[Any, ...]]:
        """Count the visible records by identity, including expired ones."""
        visible = Counter(self.archive)
        for at, runs in self.gateway.runs.items():
            for offset in offsets(runs):
                if self.world.log.starts[at] <= offset < len(self.world.log.records[at]):
                    record = self.world.log.records[at][offset]
                    if record is None:
                        raise Violation("duplicated", "a foreign record is visible")
                    visible[record.identity] += 1
        return visible

    def _check_visible(self) -> None:
        """Raise if a record is visible or was read more than once."""
        self._require_once("visible", self._visible())
        for reader in self.readers:
            self._require_once("read", Counter(reader.seen.values()))

    def _require_once(self, state: str, counts: Counter[tuple[Any, ...]]) -> None:
        duplicates = [identity for identity, count in counts.items() if count > 1]
        if duplicates:
            raise Violation("duplicated", f"{state} twice: {duplicates[:3]}")

    def _check_end(self) -> None:
        """Raise unless finished work is visible and read, and no unit is partly visible."""
        visible = self._visible()
        for job in self.jobs:
            if isinstance(job, Transaction):
                self._require_all(job.owner, job.inputs, visible, needed=True)
                continue
            if isinstance(job, WriterJob):
                for at, (kind, records) in enumerate(job.units):
                    needed = at in job.acknowledged
                    self._require_all(
                        f"{kind} {at} of {job.owner}", records, visible, needed=needed
                    )
                continue
            assert isinstance(job, Stream | BatchJob)
            for key, identities in job.keys().items():
                self._require_all(key, identities, visible, needed=not job.refused)
        for reader in self.readers:
            read = Counter(reader.seen.values())
            if not reader.expired_reported and (read.keys() ^ visible.keys()) - self.given_up:
                different = [*((visible.keys() ^ read.keys()) - self.given_up)][:3]
                raise Violation("lost", f"a reader and the ledger differ by {sorted(different)}")

    def _require_all(
        self, key: str, identities: list[Any], visible: Counter[Any], *, needed: bool
    ) -> None:
        present = [
            identity for identity in identities if visible[identity] or identity in self.given_up
        ]
        if len(present) < len(identities) and (needed or present):
            raise Violation("lost", f"{len(identities) - len(present)} records of {key!r}")


def offsets_of(gateway: Gateway, at: int) -> set[int]:
    """Return the visible offsets of a partition."""
    return set(offsets(gateway.runs.get(at, ())))


def interleaved_batches() -> None:
    """Commit C between B and D, and read the snapshot of each commit.

    C begins first, B commits behind it in partition 0, and D opens while C still writes: an offset
    in each partition cannot separate C from D.
    """
    world = World(random.Random(0), Log(2))  # noqa: S311 - not for secrets
    world.calm = True
    gateway = Gateway(world, 2)

    def open_(name: str) -> Batch:
        request = OpenRequest(key=name, owner=name, instance=name)
        return gateway.open(request)

    def commit(batch: Batch, manifest: Manifest) -> None:
        counts = {at: len([*offsets(intervals)]) for at, intervals in manifest.items()}
        request = CommitRequest(
            batch=batch.id,
            instance=batch.instance,
            digest=digest_of(manifest),
            manifest=manifest,
            records=sum(counts.values()),
            counts=counts,
        )
        gateway.commit(request)

    c, b = open_("c"), open_("b")
    for partition, name in ((0, "c"), (0, "b"), (1, "c")):
        for row in range(10):
            world.log.append(partition, Record((name, partition, row), name))
    commit(b, {0: (Interval(10, 20),)})
    open_("d")
    commit(c, {0: (Interval(0, 10),), 1: (Interval(0, 10),)})
    for number in (1, 2):
        process = world.spawn("snapshot", read_whole(world, gateway, number, 3))
        while not process.over:
            world.step()
        require_whole(world, gateway, number, process.result[1])


def run_schedule(seed: int) -> Outcome:
    """Run the schedule with the given seed."""
    (outcome,) = run_schedules([seed])
    return outcome


def run_schedules(seeds: Iterable[int]) -> Generator[Outcome, None, None]:
    """Run the schedules with the given seeds, with the same threads."""
    try:
        for seed in seeds:
            yield Schedule(seed).run()
    finally:
        end_threads()


def outcomes_of(seeds: range) -> list[Outcome]:
    """Return the outcomes of schedules, without their traces."""
    # Each collection would visit what was imported: a sixth of the time. Only once: what earlier
    # schedules left would never be freed.
    if not gc.get_freeze_count():
        gc.freeze()
    return [replace(outcome, trace=()) for outcome in run_schedules(seeds)]
