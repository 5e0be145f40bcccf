"""The background loops of one replica."""

import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Protocol, TypeVar

from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.endpoints.liveness import EndCounts, LostEnds, ReapCounts, Reaper
from sluiceway_gateway.endpoints.pruning import Pruner
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.lifecycle.drain import DrainCounts, Drainer
from sluiceway_gateway.lifecycle.idle import IdleCounts, TtlReaper
from sluiceway_gateway.loops.leader import Leader, holder_name
from sluiceway_gateway.loops.loop import Loop
from sluiceway_gateway.offsets.mirror import Mirror
from sluiceway_gateway.provisioning.reconciler import Counts, Reconciler
from sluiceway_gateway.settings import Settings
from sluiceway_gateway.status.sampler import SampleCounts, Sampler

#: How often the leader looks for work that another replica took in.
_POLL_S = 0.5
_STOP_TIMEOUT_S = 30.0


class _Pausing(Protocol):
    @property
    def pause_s(self) -> float: ...


Paced = TypeVar("Paced", bound=_Pausing)


class Loops:
    """The loops of one replica: start, wake, stop.

    `on_pass`, `on_reap`, `on_ends`, `on_sample`, `on_drain` and `on_idle` hear the counts of every
    pass, `on_turn` after each turn of a loop its name and how many failed in a row by now.
    """

    def __init__(
        self,
        *,
        database: Database,
        kafka: KafkaAdmin,
        settings: Settings,
        clock: Callable[[], datetime],
        on_pass: Callable[[Counts], None] | None = None,
        on_reap: Callable[[ReapCounts], None] | None = None,
        on_ends: Callable[[EndCounts], None] | None = None,
        on_drain: Callable[[DrainCounts], None] | None = None,
        on_idle: Callable[[IdleCounts], None] | None = None,
        on_sample: Callable[[SampleCounts], None] | None = None,
        on_turn: Callable[[str, int], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        stopping = threading.Event()
        self._on_pass = on_pass
        self._on_reap = on_reap
        self._on_sample = on_sample
        self._sample_s = settings.sample_s
        self._reconciler = Reconciler(
            database=database,
            kafka=kafka,
            clock=clock,
            resync_s=settings.resync_s,
            wait=stopping.wait,
        )
        self._reaper = Reaper(database=database, clock=clock, monotonic=monotonic)
        ends = LostEnds(database=database, topics=kafka, monotonic=monotonic)
        mirror = Mirror(
            database=database,
            kafka=kafka,
            prefix=settings.mirror_prefix,
            clock=clock,
            monotonic=monotonic,
        )
        pruner = Pruner(database=database, days=settings.history_days, clock=clock)
        drainer = Drainer(database=database, topics=kafka, clock=clock)
        idler = TtlReaper(database=database, logs=kafka, clock=clock, monotonic=monotonic)
        self._sampler = Sampler(database=database, topics=kafka, clock=clock, monotonic=monotonic)
        leader = Leader(
            database=database,
            name="reconcile",
            holder=holder_name(),
            lease_ms=settings.lease_ms,
            monotonic=monotonic,
        )

        def loop(name: str, run_once: Callable[[], float]) -> Loop:
            return Loop(
                name=name,
                leader=leader,
                run_once=run_once,
                stopping=stopping,
                on_turn=on_turn,
            )

        self._loop = loop("reconcile", self._reconcile)
        self._draining = loop("drain", _paced(drainer.run_once, on_drain))
        self._idling = loop("idle", _paced(idler.run_once, on_idle))
        self._ends = loop("ends", _paced(ends.run_once, on_ends))
        self._all = (
            self._loop,
            loop("reap", self._reap),
            self._ends,
            self._draining,
            self._idling,
            loop("sample", self._sample),
            loop("mirror", _paced(mirror.run_once)),
            loop("prune", _paced(pruner.run_once)),
        )

    def start(self) -> None:
        """Begin in the background."""
        for each in self._all:
            each.start()

    def wake(self) -> None:
        """Say that a channel was changed; cheap, never blocks, from any thread."""
        self._loop.wake()
        self._draining.wake()
        self._idling.wake()

    def failing(self) -> dict[str, str]:
        """Return the loops that keep failing, each with the kind of error."""
        return {each.name: reason for each in self._all if (reason := each.failing) is not None}

    def stop(self) -> bool:
        """End, and let another replica take over at once; False if a call hangs for 30 s."""
        stopped = [each.stop(_STOP_TIMEOUT_S) for each in self._all]
        return all(stopped)

    def _reconcile(self) -> float:
        counts = self._reconciler.run_once()
        if self._on_pass is not None:
            self._on_pass(counts)
        if counts.changed:
            self._idling.wake()
        return 0.0 if counts.more else _POLL_S

    def _reap(self) -> float:
        counts = self._reaper.run_once()
        if self._on_reap is not None:
            self._on_reap(counts)
        if counts.lost:
            self._ends.wake()
        return counts.pause_s

    def _sample(self) -> float:
        counts = self._sampler.run_once()
        if self._on_sample is not None:
            self._on_sample(counts)
        return self._sample_s


def _paced(
    run_once: Callable[[], Paced], hear: Callable[[Paced], None] | None = None
) -> Callable[[], float]:
    """Return a pass whose counts `hear` is given, and which says how long to pause."""

    def run() -> float:
        counts = run_once()
        if hear is not None:
            hear(counts)
        return counts.pause_s

    return run
