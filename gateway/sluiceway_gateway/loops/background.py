"""Everything that runs in the background of one replica."""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime

from sluiceway_gateway.broker import Kafka
from sluiceway_gateway.loops.leader import Leader
from sluiceway_gateway.loops.loop import Loop
from sluiceway_gateway.services.draining import DrainCounts, Drainer
from sluiceway_gateway.services.idling import IdleCounts, Idler
from sluiceway_gateway.services.mirroring import Mirror
from sluiceway_gateway.services.pruning import Pruner
from sluiceway_gateway.services.reaping import ReapCounts, Reaper
from sluiceway_gateway.services.reconcile import Counts, Reconciler
from sluiceway_gateway.services.sampling import SampleCounts, Sampler
from sluiceway_gateway.settings import Settings
from sluiceway_gateway.store.engine import Database

#: How often the leader looks for work that another replica took in.
_POLL_S = 0.5
_STOP_TIMEOUT_S = 30.0


class Loops:
    """The loops of one replica: start, wake, stop.

    `on_pass`, `on_reap`, `on_sample`, `on_drain` and `on_idle` hear the counts of every pass.
    """

    def __init__(
        self,
        *,
        database: Database,
        kafka: Kafka,
        settings: Settings,
        clock: Callable[[], datetime],
        on_pass: Callable[[Counts], None] | None = None,
        on_reap: Callable[[ReapCounts], None] | None = None,
        on_drain: Callable[[DrainCounts], None] | None = None,
        on_idle: Callable[[IdleCounts], None] | None = None,
        on_sample: Callable[[SampleCounts], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        stopping = threading.Event()
        self._on_pass = on_pass
        self._on_reap = on_reap
        self._on_drain = on_drain
        self._on_idle = on_idle
        self._on_sample = on_sample
        self._sample_s = settings.sample_s
        self._reconciler = Reconciler(
            database=database,
            kafka=kafka,
            clock=clock,
            resync_s=settings.resync_s,
            wait=stopping.wait,
        )
        self._reaper = Reaper(database=database, topics=kafka, clock=clock, monotonic=monotonic)
        self._mirror = Mirror(
            database=database,
            kafka=kafka,
            prefix=settings.mirror_prefix,
            clock=clock,
            monotonic=monotonic,
        )
        self._pruner = Pruner(database=database, days=settings.history_days, clock=clock)
        self._drainer = Drainer(database=database, topics=kafka, clock=clock)
        self._idler = Idler(database=database, logs=kafka, clock=clock, monotonic=monotonic)
        self._sampler = Sampler(database=database, topics=kafka, clock=clock, monotonic=monotonic)
        leader = Leader(
            database=database,
            name="reconcile",
            holder=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
            lease_ms=settings.lease_ms,
            monotonic=monotonic,
        )
        self._loop = Loop(
            name="reconcile", leader=leader, run_once=self._reconcile, stopping=stopping
        )
        self._reaping = Loop(name="reap", leader=leader, run_once=self._reap, stopping=stopping)
        others = [
            Loop(name=name, leader=leader, run_once=run_once, stopping=stopping)
            for name, run_once in (
                ("sample", self._sample),
                ("mirror", lambda: self._mirror.run_once().pause_s),
                ("prune", lambda: self._pruner.run_once().pause_s),
            )
        ]
        self._draining = Loop(name="drain", leader=leader, run_once=self._drain, stopping=stopping)
        self._idling = Loop(name="idle", leader=leader, run_once=self._idle, stopping=stopping)
        self._all = (self._loop, self._reaping, self._draining, self._idling, *others)

    def start(self) -> None:
        """Begin in the background."""
        for each in self._all:
            each.start()

    def wake(self) -> None:
        """Say that a channel was changed; cheap, never blocks, from any thread."""
        self._loop.wake()
        self._draining.wake()
        self._idling.wake()

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

    def _drain(self) -> float:
        counts = self._drainer.run_once()
        if self._on_drain is not None:
            self._on_drain(counts)
        return counts.pause_s

    def _idle(self) -> float:
        counts = self._idler.run_once()
        if self._on_idle is not None:
            self._on_idle(counts)
        return counts.pause_s

    def _reap(self) -> float:
        counts = self._reaper.run_once()
        if self._on_reap is not None:
            self._on_reap(counts)
        return counts.pause_s

    def _sample(self) -> float:
        counts = self._sampler.run_once()
        if self._on_sample is not None:
            self._on_sample(counts)
        return self._sample_s
