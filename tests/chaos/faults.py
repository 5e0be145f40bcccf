"""Faults, each on one target and of limited duration, and the seeded schedule that runs them."""

import contextlib
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.checker import Hold
from tests.chaos.jobs import Job, Run, executors_of, send
from tests.chaos.journal import Journal, force
from tests.chaos.watching import Watch
from tests.chaos.world import Broker, GatewayProcess, World
from tests.support.relay import Relay

from sluiceway.api.ledger import DEFAULT_LEASE_MS
from sluiceway.errors import SluicewayError

LEASE_S = DEFAULT_LEASE_MS / 1000
_BEYOND_S = 3.0
_LONG_S = 60.0
_CONFIRM_S = 30.0
"""Time for which watermarks must be behind before the gateway halts a ledger."""
_EXIT_S = 200.0
"""Time in which a run must exit: Kafka's acknowledgements, and what is reported after them."""
_AT_ONCE = 4
_MOST_PARTITIONS = 6
_OVERRUN_S = 45.0
"""Time after the end of the schedule that the last faults may take."""


@dataclass(kw_only=True)
class Scene:
    """The processes that faults act on."""

    world: World
    jobs: dict[str, Job]
    watch: Watch
    directory: Path
    holds: list[Hold] = field(default_factory=list)

    def of_kind(self, *kinds: str) -> list[str]:
        return [name for name, job in self.jobs.items() if job.task.kind in kinds]

    def on_cluster(self) -> list[str]:
        return [name for name, job in self.jobs.items() if job.task.master.startswith("spark")]

    def broker(self, target: str) -> Broker:
        return self.world.brokers[int(target.removeprefix("kafka-")) - 1]

    def gateway(self, target: str) -> GatewayProcess:
        return self.world.gateways[int(target.removeprefix("gateway-"))]

    def relay(self, url: str) -> Relay:
        """Return the proxy between jobs and a gateway by its URL."""
        return next(gateway.relay for gateway in self.world.gateways if gateway.relay.url == url)


class Unavailable(Exception):
    """The fault had nothing to act on, and did nothing."""


Act = Callable[[Scene, str, random.Random], None]
Targets = Callable[[Scene], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A kind of fault: its possible targets, its longest duration, and its action."""

    name: str
    targets: Targets
    at_most_s: float
    act: Act
    ledger: bool = False
    """Whether the fault needs exactly-once channels."""


FAULTS: dict[str, Fault] = {}


def fault(targets: Targets, *, at_most_s: float, ledger: bool = False) -> Callable[[Act], Act]:
    """Register a function as a fault under its name."""

    def register(act: Act) -> Act:
        name = act.__name__
        FAULTS[name] = Fault(
            name=name, targets=targets, at_most_s=at_most_s, act=act, ledger=ledger
        )
        return act

    return register


def _jobs(*kinds: str) -> Targets:
    return lambda scene: scene.of_kind(*kinds)


def _gateways(scene: Scene) -> list[str]:
    return [f"gateway-{gateway.number}" for gateway in scene.world.gateways]


def _brokers(scene: Scene) -> list[str]:
    return [f"kafka-{broker.number}" for broker in scene.world.brokers]


def _replicated(scene: Scene) -> list[str]:
    """Return the brokers whose partitions another broker can lead."""
    return _brokers(scene) if len(scene.world.brokers) > 1 else []


def _cluster(scene: Scene) -> list[str]:
    return scene.on_cluster()


def _channels(scene: Scene) -> list[str]:
    return [f"channel-{name}" for name in scene.watch.channels]


@fault(_jobs("write", "flush", "copy", "read", "read-runs"), at_most_s=2)
def kill_jobs(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill a job in Python; it is started again."""
    time.sleep(generator.random())
    scene.jobs[target].kill()


@fault(_jobs("write", "flush", "copy", "read"), at_most_s=6)
def interrupt_jobs(scene: Scene, target: str, generator: random.Random) -> None:
    """Interrupt a job in Python several times, as Ctrl-C does; it goes on in the same process."""
    run = scene.jobs[target].run
    if run is None:
        raise Unavailable
    for _ in range(generator.randint(5, 30)):
        send(signal.SIGINT, run.pids[:1])
        time.sleep(generator.random() * 0.2)


@fault(_jobs("run"), at_most_s=60)
def end_run(scene: Scene, target: str, generator: random.Random) -> None:
    """End a run by SIGTERM, half of them while the gateway is silent; the next one begins."""
    job = scene.jobs[target]
    run = job.run
    if run is None or not _eventually(lambda: _state_of(job, run) == "run-began", 20):
        raise Unavailable
    time.sleep(generator.uniform(0, 3))
    with job.held():
        if run.status() is not None:
            raise Unavailable
        send(signal.SIGTERM, [run.leader])
        if generator.random() < 0.5:
            _cut(scene.relay(job.task.url), generator)
        ended = _eventually(lambda: run.status() is not None, _EXIT_S)
        job.kill()
    if not ended or run.status() != 0:
        if _state_of(job, run) == "run-failed":
            raise Unavailable
        status = f"exited with {run.status()}" if ended else f"did not exit in {_EXIT_S:.0f} s"
        raise RuntimeError(f"a run {status} after SIGTERM")


def _state_of(job: Job, run: Run) -> str | None:
    """Return the last entry in the journal about the run of a process."""
    state = None
    for line in job.task.journal.lines():
        if line["kind"].startswith("run-") and line["unit"].startswith(f"{run.leader}-"):
            state = line["kind"]
    return state


@fault(_channels, at_most_s=45)
def add_partition(scene: Scene, target: str, generator: random.Random) -> None:
    """Add a partition to a channel while jobs write and read it."""
    try:
        grown = scene.watch.grow(target.removeprefix("channel-"), _MOST_PARTITIONS)
    except SluicewayError as error:
        # Another fault lasts. The partition may be added later.
        raise Unavailable from error
    if not grown:
        raise Unavailable


@fault(_jobs("spark-write", "spark-copy"), at_most_s=25)
def kill_driver(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill Spark's driver: all of its processes, or only its JVM."""
    run = scene.jobs[target].run
    if run is None:
        raise Unavailable
    whole = generator.random() < 0.5
    java = [pid for pid in run.pids if b"SparkSubmit" in _command(pid)]
    if not java and not whole:
        raise Unavailable
    if whole:
        scene.jobs[target].kill()
    else:
        send(signal.SIGKILL, java)


@fault(_cluster, at_most_s=20)
def kill_executor(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill an executor; Spark replaces it."""
    executors = executors_of(target)
    if not executors:
        raise Unavailable
    send(signal.SIGKILL, [generator.choice(executors)])


@fault(_jobs("write", "flush", "copy"), at_most_s=LEASE_S + 20)
def pause_job(scene: Scene, target: str, generator: random.Random) -> None:
    """Pause a job for longer than its lease; another process takes its place if it has one."""
    job = scene.jobs[target]
    run = job.run
    if run is None:
        raise Unavailable
    run.stop()
    if job.task.kind == "flush":
        # Another process would use the same numbers for different records.
        time.sleep(LEASE_S + _BEYOND_S)
        run.resume()
        return
    job.detach()
    try:
        time.sleep(LEASE_S + _BEYOND_S)
        run.resume()
        time.sleep(10)
    finally:
        run.kill()


@fault(_jobs("spark-write", "spark-copy"), at_most_s=50)
def pause_driver(scene: Scene, target: str, generator: random.Random) -> None:
    """Pause a driver until another one has taken its place, then resume it."""
    job = scene.jobs[target]
    run = job.run
    if run is None:
        raise Unavailable
    run.stop()
    job.detach()
    try:
        time.sleep(generator.uniform(15, 30))
        run.resume()
        time.sleep(12)
    finally:
        run.kill()


@fault(_gateways, at_most_s=20)
def kill_gateway(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill a replica of the gateway, and start it again."""
    scene.world.disturbed()
    scene.gateway(target).kill()
    time.sleep(generator.uniform(0.5, 5))
    scene.gateway(target).start()
    scene.world.disturbed()


@fault(lambda _: ["database"], at_most_s=20)
def restart_database(scene: Scene, target: str, generator: random.Random) -> None:
    """Stop PostgreSQL, immediately or by closing its connections, and start it again."""
    scene.world.disturbed()
    scene.world.restart_database(generator.choice([signal.SIGQUIT, signal.SIGINT]))
    scene.world.disturbed()


@fault(_brokers, at_most_s=30)
def restart_broker(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill a broker, or shut it down, and start it again."""
    broker = scene.broker(target)
    if generator.random() < 0.7:
        broker.kill()
    else:
        broker.stop()
    time.sleep(generator.uniform(0, 3))
    broker.start()


@fault(_replicated, at_most_s=LEASE_S + 45)
def lose_broker(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill or pause a broker for longer than the gateway waits before it halts a ledger."""
    broker = scene.broker(target)
    paused = generator.random() < 0.5
    if paused:
        broker.pause()
    else:
        broker.kill()
    time.sleep(_CONFIRM_S + generator.uniform(5, 10))
    if paused:
        broker.resume()
    else:
        broker.start()


@fault(_brokers, at_most_s=45)
def full_disk(scene: Scene, target: str, generator: random.Random) -> None:
    """Fill a broker's disk until the broker ends by itself; then free it, and start the broker."""
    broker = scene.broker(target)
    if broker.no_disk is not None:
        raise Unavailable
    with broker.disk_full():
        deadline_s = time.monotonic() + generator.uniform(5, 12)
        while broker.running() and time.monotonic() < deadline_s:
            time.sleep(0.1)
    broker.ensure_running()


@fault(_gateways, at_most_s=8)
def cut_gateway(scene: Scene, target: str, generator: random.Random) -> None:
    """Close the connections of jobs to a gateway, or make them hang."""
    _cut(scene.gateway(target).relay, generator)


@fault(_brokers, at_most_s=8)
def cut_kafka(scene: Scene, target: str, generator: random.Random) -> None:
    """Close the connections of jobs to a broker, or make them hang."""
    _cut(scene.broker(target).relay, generator)


@fault(_gateways, at_most_s=20, ledger=True)
def lose_commit(scene: Scene, target: str, generator: random.Random) -> None:
    """Lose a commit or its response, and close the connection later."""
    relay = scene.gateway(target).relay
    relay.drop_at(b"/commit HTTP", forward=generator.random() < 0.7)
    try:
        if not _eventually(lambda: not relay.drop_pending, 10):
            raise Unavailable
        time.sleep(generator.uniform(0, 6))
    finally:
        relay.drop_at(None)
        relay.cut()
        relay.restore()


@fault(_jobs("spark-write", "spark-copy"), at_most_s=30)
def retry_task(scene: Scene, target: str, generator: random.Random) -> None:
    """Fail an attempt of a Spark task after its records are in Kafka."""
    _force(scene, "retry", target)


@fault(_cluster, at_most_s=40)
def speculate(scene: Scene, target: str, generator: random.Random) -> None:
    """Slow down an attempt, so that Spark runs another one with the rows in another order."""
    _force(scene, "slow", target)
    time.sleep(8)


@fault(_jobs("spark-copy"), at_most_s=25, ledger=True)
def forget_commit(scene: Scene, target: str, generator: random.Random) -> None:
    """Delete the newest entry of a query's commit log before the query is started again."""
    job = scene.jobs[target]
    with job.held():
        job.kill()
        commits = scene.directory / "checkpoint" / "commits"
        numbers = [int(entry.name) for entry in commits.glob("[0-9]*") if entry.name.isdigit()]
        if not numbers:
            raise Unavailable
        (commits / str(max(numbers))).unlink()
        (commits / f".{max(numbers)}.crc").unlink(missing_ok=True)


@fault(_jobs("flush"), at_most_s=LEASE_S + 45, ledger=True)
def lose_writer(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill a writer without a successor, and measure how long its batch holds readers back."""
    owners = [
        line["owner"] for line in scene.jobs[target].task.journal.lines() if line["kind"] == "owner"
    ]
    if not owners:
        raise Unavailable
    _vanish(scene, target, owners[-1])


@fault(_jobs("spark-write"), at_most_s=LEASE_S + 45, ledger=True)
def lose_driver(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill a driver, and measure how long its batch holds readers back."""
    _vanish(scene, target, f"Spark job {target}")


def _vanish(scene: Scene, target: str, owner: str) -> None:
    job = scene.jobs[target]
    channel = job.task.channel

    def open_keys() -> set[str] | None:
        batches = scene.watch.open_batches(channel)
        return None if batches is None else {batch.key for batch in batches if batch.owner == owner}

    if not _eventually(open_keys, 15):
        raise Unavailable
    with job.held():
        term = scene.world.leaders_term()
        job.kill()
        # The process may have renewed its lease until here.
        began_s = held_until_s = time.monotonic()
        keys = open_keys()
        if not keys:
            raise Unavailable

        def ended() -> bool:
            nonlocal held_until_s
            asked_s = time.monotonic()
            now = open_keys()
            if now is not None and keys & now:
                held_until_s = asked_s
            return now is not None and not keys & now

        # A longer hold is a violation.
        if not _eventually(ended, LEASE_S + 40):
            held_until_s = time.monotonic()
        held_s = held_until_s - began_s
    disturbed = (
        any(began_s - 10 <= disturbed_s for disturbed_s in scene.world.disturbances)
        or scene.world.leaders_term() != term
    )
    scene.holds.append(Hold(driver=target, lease_s=LEASE_S, held_s=held_s, disturbed=disturbed))


def _cut(relay: Relay, generator: random.Random) -> None:
    seconds = generator.uniform(0.5, 5)
    if generator.random() < 0.3:
        with relay.stalled():
            time.sleep(seconds)
        return
    relay.cut()
    time.sleep(seconds)
    relay.restore()


def _force(scene: Scene, kind: str, target: str) -> None:
    path = force(scene.directory, kind, target)
    try:
        if not _eventually(lambda: not path.exists(), 25):
            raise Unavailable
    finally:
        path.unlink(missing_ok=True)


def _eventually(condition: Callable[[], object], seconds: float) -> bool:
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.1)
    return False


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


class Schedule:
    """Runs faults for a given time, up to four at once, each on its own target.

    The seed determines the order. Each kind of fault runs once before any is repeated. Faults that
    take longest come first, so that short schedules include them.
    """

    def __init__(self, scene: Scene, names: Sequence[str], seed: int) -> None:
        self._scene = scene
        self._names = names
        self._generator = random.Random(seed)  # noqa: S311 - a schedule
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.errors: list[str] = []

    def run(self, seconds: float) -> None:
        """Run faults for `seconds`, and return when the last of them has ended."""
        deadline_s = time.monotonic() + seconds
        threads: list[threading.Thread] = []
        deck = self._deck()
        waiting: list[Fault] = []
        while (left_s := deadline_s - time.monotonic()) > 0:
            threads = [thread for thread in threads if thread.is_alive()]
            chosen = None
            if len(threads) < _AT_ONCE:
                if not waiting:
                    waiting = [next(deck)]
                chosen = self._choose(waiting, left_s)
                if chosen is None and len(waiting) < len(self._names):
                    waiting.append(next(deck))
            if chosen is not None:
                picked, target, generator = chosen
                thread = threading.Thread(target=self._act, args=(picked, target, generator))
                thread.start()
                threads.append(thread)
                time.sleep(min(self._generator.uniform(0.5, 3), max(0.0, left_s)))
            else:
                time.sleep(0.1)
        for thread in threads:
            thread.join()

    def _deck(self) -> Iterator[Fault]:
        first = True
        while True:
            faults = [FAULTS[name] for name in sorted(self._names)]
            self._generator.shuffle(faults)
            if first:
                faults.sort(key=lambda candidate: candidate.at_most_s <= _LONG_S)
            yield from faults
            first = False

    def _choose(
        self, waiting: list[Fault], left_s: float
    ) -> tuple[Fault, str, random.Random] | None:
        """Take the first fault that has a free target and enough time."""
        for candidate in waiting:
            targets = [
                target for target in candidate.targets(self._scene) if not self._taken(target)
            ]
            if not targets or candidate.at_most_s > left_s + _OVERRUN_S:
                continue
            waiting.remove(candidate)
            target = self._generator.choice(sorted(targets))
            with self._lock:
                self._busy.add(_resource(target))
            return candidate, target, random.Random(self._generator.random())  # noqa: S311
        return None

    def _taken(self, target: str) -> bool:
        return _resource(target) in self._busy

    def _act(self, picked: Fault, target: str, generator: random.Random) -> None:
        journal, title = Journal(self._scene.directory, "faults"), f"{picked.name} on {target}"
        journal.note("fault", title)
        try:
            picked.act(self._scene, target, generator)
        except Unavailable:
            self.missed[picked.name] += 1
        except Exception as error:
            self.errors.append(f"{title}: {type(error).__name__}: {error}")
        else:
            self.counts[picked.name] += 1
        finally:
            journal.note("fault-ended", title)
            with self._lock:
                self._busy.discard(_resource(target))


def _resource(target: str) -> str:
    """Return the resource to lock: one for all brokers, so that a cluster of three has a quorum."""
    return "kafka" if target.startswith("kafka-") else target
