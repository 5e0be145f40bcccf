"""A round of a chaos run: starts a world and jobs, runs faults, and checks the outcome."""

import faulthandler
import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.chaos.checker import (
    RUNS,
    ChannelHistory,
    Finding,
    History,
    Hold,
    Record,
    accounts,
    check,
)
from tests.chaos.faults import FAULTS, LEASE_S, Scene, Schedule
from tests.chaos.jobs import Job, Tender, spark_cluster
from tests.chaos.journal import SCHEMA, Task, entries, reads, run_reads, runs, scans
from tests.chaos.watching import Watch
from tests.chaos.world import World, wait_for, world
from tests.support.processes import spark_environment

from sluiceway import Gateway
from sluiceway.errors import SluicewayError

PARTITIONS = 2
SOURCES = {"direct": None, "jobs": None, RUNS: None, "piped": "direct", "streamed": "direct"}
"""Channels, each with the channel from which jobs copy its records."""
_LOCAL = "local[2,4]"
_START_S = 120.0
_SETTLE_S = LEASE_S + 240
"""Time after the last fault in which everything must end, also on a slow machine."""
_SEVERAL_MINUTES = 4
_WRITING = ("write", "flush", "run", "spark-write")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parameters of a round."""

    brokers: int
    seed: int
    seconds: float
    delivery: str
    faults: Sequence[str]
    spark: bool
    directory: Path

    @property
    def exactly_once(self) -> bool:
        return self.delivery == "exactly_once"

    def channels(self) -> dict[str, str | None]:
        excluded = () if self.spark else ("jobs", "streamed")
        return {name: source for name, source in SOURCES.items() if name not in excluded}

    def delivery_of(self, channel: str) -> str:
        return "at_least_once" if channel == RUNS else self.delivery


@dataclass(kw_only=True)
class Outcome:
    """The outcome of a round."""

    brokers: int
    seconds: float
    findings: list[Finding]
    faults: dict[str, int]
    missed: dict[str, int]
    skipped: dict[str, str]
    holds: list[Hold]
    errors: list[str]
    starts: dict[str, int]
    watcher_failures: int
    records: dict[str, int]
    reads: dict[str, int] = field(default_factory=dict)
    """Number of reads of runs by their end."""
    committed: dict[str, int] = field(default_factory=dict)
    accounts: dict[str, list[str]] = field(default_factory=dict)
    """By unit with a finding, its events and records."""


def tasks_of(plan: Plan, environment: World, cluster: str) -> list[tuple[str, Task]]:
    """Return the tasks of a round, each with its module."""
    urls = [gateway.relay.url for gateway in environment.gateways]
    python, spark = "tests.chaos.python_jobs", "tests.chaos.spark_jobs"
    write = Task(
        kind="write",
        name="write",
        url=urls[0],
        directory=str(plan.directory),
        delivery=plan.delivery,
        channel="direct",
    )
    run = replace(write, kind="run", name="run", channel=RUNS, delivery="at_least_once")
    copy = replace(write, kind="copy", channel="piped", source="direct", size=2)
    tasks = [
        (python, write),
        (python, replace(write, kind="flush", name="flush", url=urls[1])),
        (python, replace(write, kind="read", name="read")),
        (python, replace(run, url=urls[1])),
        (python, replace(run, kind="read-runs", name="read-runs")),
        (python, replace(copy, name="copy-0")),
        (python, replace(copy, name="copy-1", url=urls[1], index=1)),
    ]
    if plan.spark:
        masters = [cluster, _LOCAL]
        if plan.seed % 2:
            masters.reverse()
        job = replace(write, kind="spark-write", name="spark-write", url=urls[1], channel="jobs")
        query = replace(write, kind="spark-copy", name="spark-copy", source="direct")
        tasks += [
            (spark, replace(job, master=masters[0])),
            (spark, replace(query, channel="streamed", master=masters[1])),
        ]
    return tasks


def run(plan: Plan) -> Outcome:
    """Run a round."""
    shutil.rmtree(plan.directory, ignore_errors=True)
    for name in ("journal", "stop"):
        (plan.directory / name).mkdir(parents=True)
    began_s = time.monotonic()
    with ExitStack() as stack:
        environment = stack.enter_context(world(plan.directory, brokers=plan.brokers))
        variables = dict(environment.variables)
        cluster = ""
        if plan.spark:
            variables |= spark_environment(plan.directory)
            cluster = stack.enter_context(spark_cluster(plan.directory, variables))
        with Gateway(environment.gateways[0].url) as gateway:
            for name in plan.channels():
                gateway.channel(
                    name, SCHEMA, partitions=PARTITIONS, delivery=plan.delivery_of(name)
                )
        urls = [process.url for process in environment.gateways]
        watch = stack.enter_context(closing(Watch(urls, [*plan.channels()], PARTITIONS)))
        jobs = [
            Job(module, task, variables) for module, task in tasks_of(plan, environment, cluster)
        ]
        stack.enter_context(closing(Tender(jobs)))
        scene = Scene(
            world=environment,
            jobs={job.name: job for job in jobs},
            watch=watch,
            directory=plan.directory,
        )
        # Faults start when all jobs have written. A slow machine may take longer.
        with suppress(TimeoutError):
            wait_for(
                lambda: all(watch.count(name) for name in plan.channels()),
                "not all channels have records",
                seconds=_START_S,
            )
        names, skipped = _possible(plan, scene)
        schedule = Schedule(scene, names, plan.seed)
        schedule.run(plan.seconds)
        # A fault that failed, which the report names, may have left a broker stopped.
        for broker in environment.brokers:
            broker.ensure_running()
        history = _settle(plan, scene)
        findings = check(history)
        if findings and plan.exactly_once:
            _write_ledgers(plan, scene)
        idle = [channel.name for channel in history.channels if not any(channel.final.values())]
        return Outcome(
            brokers=plan.brokers,
            seconds=round(time.monotonic() - began_s, 1),
            findings=findings,
            accounts=accounts(history, findings),
            faults=dict(schedule.counts),
            missed=dict(schedule.missed),
            skipped=skipped,
            holds=scene.holds,
            errors=schedule.errors + [f"the channel {name} has no records" for name in idle],
            starts={job.name: job.starts for job in jobs},
            watcher_failures=watch.failures(),
            reads=dict(Counter(read.end or "killed" for read in history.run_reads)),
            records={
                channel.name: sum(len(records) for records in channel.final.values())
                for channel in history.channels
            },
            committed={
                channel.name: len(
                    {one.unit for records in channel.final.values() for one in records}
                )
                for channel in history.channels
            },
        )


def _write_ledgers(plan: Plan, scene: Scene) -> None:
    """Save the gateway's list of all batches, to explain violations."""
    for name in plan.channels():
        with suppress(SluicewayError):
            lines = [f"{line}\n" for line in scene.watch.ledger(name)]
            (plan.directory / f"ledger-{name}.txt").write_text("".join(lines))


def _possible(plan: Plan, scene: Scene) -> tuple[list[str], dict[str, str]]:
    """Return the possible faults, and by name the reason why others are skipped."""
    possible, skipped = [], {}
    for name in plan.faults:
        fault = FAULTS[name]
        if fault.ledger and not plan.exactly_once:
            skipped[name] = "the channels have no batches"
        elif not fault.targets(scene):
            skipped[name] = "it has no possible target"
        elif name == "full_disk" and scene.world.no_disk is not None:
            skipped[name] = f"a small disk could not be mounted: {scene.world.no_disk}"
        else:
            possible.append(name)
    return possible, skipped


def _settle(plan: Plan, scene: Scene) -> History:
    """Wait until all jobs have ended, and return the history of the round."""
    unfinished: list[str] = []
    _await_end(scene, _WRITING, unfinished)
    finals = {
        name: _final(plan, scene, name, unfinished)
        for name, source in plan.channels().items()
        if source is None
    }
    for name, source in plan.channels().items():
        if source is not None:
            total = sum(len(records) for records in finals[source].values())
            _await_records(scene, name, total, unfinished)
    _await_end(scene, ("copy", "spark-copy", "read", "read-runs"), unfinished)
    for name, source in plan.channels().items():
        if source is not None:
            finals[name] = _final(plan, scene, name, unfinished)
    for name, final in finals.items():
        _await_records(scene, name, sum(len(records) for records in final.values()), unfinished)
    return History(
        entries=entries(plan.directory),
        channels=[
            ChannelHistory(
                name=name,
                source=source,
                final=finals[name],
                seen=scene.watch.seen(name),
                reads={"a follower": scene.watch.followed(name)}
                | ({"read": reads(plan.directory, "read")} if name == "direct" else {}),
            )
            for name, source in plan.channels().items()
        ],
        scans=[scan for job in ("read", "spark-write") for scan in scans(plan.directory, job)],
        holds=scene.holds,
        unfinished=unfinished,
        runs=runs(plan.directory, "run"),
        run_reads=run_reads(plan.directory, "read-runs"),
    )


def _await_end(scene: Scene, kinds: Sequence[str], unfinished: list[str]) -> None:
    for kind in kinds:
        (scene.directory / "stop" / kind).touch()
    jobs = [job for job in scene.jobs.values() if job.task.kind in kinds]
    deadline_s = time.monotonic() + _SETTLE_S
    while not all(job.done for job in jobs) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    unfinished += [
        f"the job {job.name} did not end; its last output is: {_last_line(scene, job.name)}"
        for job in jobs
        if not job.done
    ]


def _last_line(scene: Scene, job: str) -> str:
    """Return the last line of a job's log."""
    log = scene.directory / f"{job}.log"
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")[:400]


def _final(
    plan: Plan, scene: Scene, channel: str, unfinished: list[str]
) -> dict[int, list[Record]]:
    """Read a channel to its end after its last batch has ended."""
    deadline_s = time.monotonic() + _SETTLE_S
    exactly_once = plan.delivery_of(channel) == "exactly_once"
    while exactly_once and (batches := scene.watch.open_batches(channel)) != ():
        if time.monotonic() > deadline_s:
            keys = [batch.key for batch in batches or ()]
            unfinished.append(f"batches of the channel {channel} are open: {keys}")
            break
        time.sleep(0.2)
    try:
        return scene.watch.final(channel)
    except SluicewayError as error:
        unfinished.append(f"the channel {channel} could not be read: {error}")
        return {}


def _await_records(scene: Scene, channel: str, records: int, unfinished: list[str]) -> None:
    """Wait until the watchers of a channel have read `records` records."""
    try:
        scene.watch.watch_added(channel)
    except SluicewayError as error:
        unfinished.append(f"the partitions of the channel {channel} are unknown: {error}")
    deadline_s = time.monotonic() + _SETTLE_S
    while scene.watch.count(channel) < records:
        if time.monotonic() > deadline_s:
            count = scene.watch.count(channel)
            with (scene.directory / f"watchers-{channel}.txt").open("a") as file:
                file.writelines(f"{line}\n" for line in scene.watch.describe(channel))
                faulthandler.dump_traceback(file)
            unfinished.append(f"readers of the channel {channel} have {count} of {records} records")
            return
        time.sleep(0.1)


def rounds_of(
    *, minutes: float, seed: int, delivery: str, faults: Sequence[str], spark: bool, directory: Path
) -> list[Plan]:
    """Return the rounds of a run: alternately with one broker and three, at most 8 minutes each.

    A short run has one round, and its seed determines the number of brokers: starting and ending
    a round takes some minutes more.
    """
    count = 1 if minutes < _SEVERAL_MINUTES else max(2, round(minutes / 8))
    generator = random.Random(seed)  # noqa: S311 - a schedule
    first = generator.randrange(2)
    return [
        Plan(
            brokers=(1, 3)[(first + number) % 2],
            seed=generator.randrange(1 << 32) * 2 + (first + number // 2 + number) % 2,
            seconds=minutes * 60 / count,
            delivery=delivery,
            faults=faults,
            spark=spark,
            directory=directory / f"round-{number}",
        )
        for number in range(count)
    ]
