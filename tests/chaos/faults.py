"""Faults, each on one target and of bounded length, and the seeded schedule that picks them."""

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
from tests.chaos.jobs import Job, executors_of, send
from tests.chaos.journal import Journal, force
from tests.chaos.watching import Watch
from tests.chaos.world import Broker, GatewayProcess, World
from tests.support.relay import Relay

from sluiceway.ledger.write_batch import DEFAULT_LEASE_MS

LEASE_S = DEFAULT_LEASE_MS / 1000
_BEYOND_S = 3.0
_LONG_S = 60.0
_CONFIRM_S = 30.0
"""How long watermarks have to be behind before the gateway halts a ledger."""
_AT_ONCE = 4
_OVERRUN_S = 45.0
"""How much longer than the schedule the last faults may take."""


@dataclass(kw_only=True)
class Scene:
    """What faults happen to."""

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


class Unavailable(Exception):
    """The fault found no occasion, and did nothing."""


Act = Callable[[Scene, str, random.Random], None]
Targets = Callable[[Scene], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A kind of fault: what it may happen to, how long it takes at most, and what it does."""

    name: str
    targets: Targets
    at_most_s: float
    act: Act
    ledger: bool = False
    """Whether it needs batches."""


FAULTS: dict[str, Fault] = {}


def fault(targets: Targets, *, at_most_s: float, ledger: bool = False) -> Callable[[Act], Act]:
    """Register a function as a fault, by its name."""

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
    return [f"gateway-{each.number}" for each in scene.world.gateways]


def _brokers(scene: Scene) -> list[str]:
    return [f"kafka-{each.number}" for each in scene.world.brokers]


def _replicated(scene: Scene) -> list[str]:
    """Brokers whose partitions others lead meanwhile."""
    return _brokers(scene) if len(scene.world.brokers) > 1 else []


def _cluster(scene: Scene) -> list[str]:
    return scene.on_cluster()


@fault(_jobs("write", "flush", "copy", "read"), at_most_s=2)
def kill_jobs(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill a job in Python: it is started again."""
    time.sleep(generator.random())
    scene.jobs[target].kill()


@fault(_jobs("spark-write", "spark-copy"), at_most_s=25)
def kill_driver(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill Spark's driver: all of its processes, or its Java alone."""
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
    """Kill an executor, which Spark replaces."""
    executors = executors_of(target)
    if not executors:
        raise Unavailable
    send(signal.SIGKILL, [generator.choice(executors)])


@fault(_jobs("write", "flush", "copy"), at_most_s=LEASE_S + 20)
def pause_job(scene: Scene, target: str, generator: random.Random) -> None:
    """Stop a job for longer than its lease; where it has a place, another one takes that."""
    job = scene.jobs[target]
    run = job.run
    if run is None:
        raise Unavailable
    run.stop()
    if job.task.kind == "flush":
        # Another process would give the same numbers to other records.
        time.sleep(LEASE_S + _BEYOND_S)
        run.go_on()
        return
    job.detach()
    try:
        time.sleep(LEASE_S + _BEYOND_S)
        run.go_on()
        time.sleep(10)
    finally:
        run.kill()


@fault(_jobs("spark-write", "spark-copy"), at_most_s=50)
def pause_driver(scene: Scene, target: str, generator: random.Random) -> None:
    """Stop a driver until another one has taken its place, then let it go on."""
    job = scene.jobs[target]
    run = job.run
    if run is None:
        raise Unavailable
    run.stop()
    job.detach()
    try:
        time.sleep(generator.uniform(15, 30))
        run.go_on()
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
    """End PostgreSQL, at once or cutting its connections, and start it again."""
    scene.world.disturbed()
    scene.world.restart_database(generator.choice([signal.SIGQUIT, signal.SIGINT]))
    scene.world.disturbed()


@fault(_brokers, at_most_s=30)
def restart_broker(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill a broker, or stop it in order, and start it again."""
    broker = scene.broker(target)
    if generator.random() < 0.7:
        broker.kill()
    else:
        broker.stop()
    time.sleep(generator.uniform(0, 3))
    broker.start()


@fault(_replicated, at_most_s=LEASE_S + 45)
def lose_broker(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill a broker, or let it stand still, for longer than a silent leader may halt ledgers."""
    broker = scene.broker(target)
    stands_still = generator.random() < 0.5
    if stands_still:
        broker.pause()
    else:
        broker.kill()
    time.sleep(_CONFIRM_S + generator.uniform(5, 10))
    if stands_still:
        broker.go_on()
    else:
        broker.start()


@fault(_brokers, at_most_s=45)
def full_disk(scene: Scene, target: str, generator: random.Random) -> None:
    """Leave a broker no room, at which it ends by itself; then free its disk, and start it."""
    broker = scene.broker(target)
    if broker.no_disk is not None:
        raise Unavailable
    with broker.disk_full():
        deadline_s = time.monotonic() + generator.uniform(5, 12)
        while broker.running() and time.monotonic() < deadline_s:
            time.sleep(0.1)
    if not broker.running():
        broker.start()


@fault(_gateways, at_most_s=8)
def cut_gateway(scene: Scene, target: str, generator: random.Random) -> None:
    """Cut the connections of jobs to a gateway, or let them hang."""
    _cut(scene.gateway(target).relay, generator)


@fault(_brokers, at_most_s=8)
def cut_kafka(scene: Scene, target: str, generator: random.Random) -> None:
    """Cut the connections of jobs to a broker, or let them hang."""
    _cut(scene.broker(target).relay, generator)


@fault(_gateways, at_most_s=20, ledger=True)
def lose_commit(scene: Scene, target: str, generator: random.Random) -> None:
    """Lose the response to a commit, or the commit itself, and later the connection."""
    relay = scene.gateway(target).relay
    relay.lose_at(b"/commit HTTP", arrives=generator.random() < 0.7)
    try:
        if not _happens(lambda: not relay.waits_to_lose, 10):
            raise Unavailable
        time.sleep(generator.uniform(0, 6))
    finally:
        relay.lose_nothing()
        relay.cut()
        relay.mend()


@fault(_jobs("spark-write", "spark-copy"), at_most_s=30)
def retry_task(scene: Scene, target: str, generator: random.Random) -> None:
    """Fail an attempt of a task of Spark after its records are in Kafka."""
    _force(scene, "retry", target)


@fault(_cluster, at_most_s=40)
def speculate(scene: Scene, target: str, generator: random.Random) -> None:
    """Slow an attempt down, so that Spark runs another one, with its rows in another order."""
    _force(scene, "slow", target)
    time.sleep(8)


@fault(_jobs("spark-copy"), at_most_s=25, ledger=True)
def forget_commit(scene: Scene, target: str, generator: random.Random) -> None:
    """Delete the newest entry of a query's commit log before the query is started again."""
    job = scene.jobs[target]
    with job.held():
        job.kill()
        commits = scene.directory / "checkpoint" / "commits"
        numbers = [int(each.name) for each in commits.glob("[0-9]*") if each.name.isdigit()]
        if not numbers:
            raise Unavailable
        (commits / str(max(numbers))).unlink()
        (commits / f".{max(numbers)}.crc").unlink(missing_ok=True)


@fault(_jobs("flush"), at_most_s=LEASE_S + 45, ledger=True)
def lose_writer(scene: Scene, target: str, generator: random.Random) -> None:
    """Kill a writer that nobody replaces, and measure how long its batch holds readers back."""
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
        found = scene.watch.open_batches(channel)
        return None if found is None else {each.key for each in found if each.owner == owner}

    if not _happens(open_keys, 15):
        raise Unavailable
    with job.held():
        began_s = time.monotonic()
        job.kill()
        keys = open_keys()
        if not keys:
            raise Unavailable
        # What is held back for longer is a violation.
        _happens(lambda: (now := open_keys()) is not None and not keys & now, LEASE_S + 40)
        held_s = time.monotonic() - began_s
    disturbed = any(began_s - 10 <= each for each in scene.world.disturbances)
    scene.holds.append(Hold(driver=target, lease_s=LEASE_S, held_s=held_s, disturbed=disturbed))


def _cut(relay: Relay, generator: random.Random) -> None:
    seconds = generator.uniform(0.5, 5)
    if generator.random() < 0.3:
        with relay.still():
            time.sleep(seconds)
        return
    relay.cut()
    time.sleep(seconds)
    relay.mend()


def _force(scene: Scene, kind: str, target: str) -> None:
    path = force(scene.directory, kind, target)
    try:
        if not _happens(lambda: not path.exists(), 25):
            raise Unavailable
    finally:
        path.unlink(missing_ok=True)


def _happens(holds: Callable[[], object], seconds: float) -> bool:
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        if holds():
            return True
        time.sleep(0.1)
    return False


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


class Schedule:
    """Runs faults until its time is over, up to four at a time, each on a target of its own.

    A seed gives the order of the faults; each kind comes once before any comes again. Those that
    take longest come first, so that short schedules have them too.
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
        """Run faults for so long; the last of them have ended when it returns."""
        deadline_s = time.monotonic() + seconds
        threads: list[threading.Thread] = []
        deck = self._deck()
        waiting: list[Fault] = []
        while (left_s := deadline_s - time.monotonic()) > 0:
            threads = [each for each in threads if each.is_alive()]
            chosen = None
            if len(threads) < _AT_ONCE:
                if not waiting:
                    waiting = [next(deck)]
                chosen = self._choose(waiting, left_s)
                if chosen is None and len(waiting) < len(self._names):
                    waiting.append(next(deck))
            if chosen is not None:
                one, target, generator = chosen
                thread = threading.Thread(target=self._act, args=(one, target, generator))
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
                faults.sort(key=lambda each: each.at_most_s <= _LONG_S)
            yield from faults
            first = False

    def _choose(
        self, waiting: list[Fault], left_s: float
    ) -> tuple[Fault, str, random.Random] | None:
        """Take the first fault that has a free target, and time enough."""
        for one in waiting:
            targets = [each for each in one.targets(self._scene) if not self._taken(each)]
            if not targets or one.at_most_s > left_s + _OVERRUN_S:
                continue
            waiting.remove(one)
            target = self._generator.choice(sorted(targets))
            with self._lock:
                self._busy.add(_resource(target))
            return one, target, random.Random(self._generator.random())  # noqa: S311
        return None

    def _taken(self, target: str) -> bool:
        return _resource(target) in self._busy

    def _act(self, one: Fault, target: str, generator: random.Random) -> None:
        journal, what = Journal(self._scene.directory, "faults"), f"{one.name} on {target}"
        journal.note("fault", what)
        try:
            one.act(self._scene, target, generator)
        except Unavailable:
            self.missed[one.name] += 1
        except Exception as error:
            self.errors.append(f"{one.name} on {target}: {type(error).__name__}: {error}")
        else:
            self.counts[one.name] += 1
        finally:
            journal.note("fault-ended", what)
            with self._lock:
                self._busy.discard(_resource(target))


def _resource(target: str) -> str:
    """Return what is exclusive: one broker at a time, so that a cluster of three has a quorum."""
    return "kafka" if target.startswith("kafka-") else target
