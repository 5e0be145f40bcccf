"""Background loops: they run on the replica that holds the lease in the database."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from sluiceway_gateway.core.clock import Clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.leases import Leader, holder_name
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.passes import OnPass, PassRecord, unobserved
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.endpoints.liveness import LostEnds, ReapCounts, Reaper
from sluiceway_gateway.endpoints.pruning import Pruner
from sluiceway_gateway.ledger.halting import LedgerComparer
from sluiceway_gateway.ledger.leases import LeaseReaper
from sluiceway_gateway.ledger.pruning import LedgerPruner, delete_history
from sluiceway_gateway.lifecycle.drain import Drainer
from sluiceway_gateway.lifecycle.idle import TtlReaper
from sluiceway_gateway.offsets.mirror import Mirror
from sluiceway_gateway.provisioning.reconciler import ReconcileCounts, Reconciler
from sluiceway_gateway.status.sampler import Sampler


class Loop:
    """Calls `run_once` while `leader` leads.

    `run_once` returns the seconds until the next pass. An error is recorded (`PassRecord`), and the
    next pass is `retry_s` later.
    """

    def __init__(
        self,
        *,
        name: str,
        leader: Leader,
        run_once: Callable[[], float],
        stopping: threading.Event,
        retry_s: float = 1.0,
        on_pass: OnPass = unobserved,
    ) -> None:
        self._leader = leader
        self._run_once = run_once
        self._stopping = stopping
        self._retry_s = retry_s
        self._passes = PassRecord(name, on_pass=on_pass)
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Call once."""
        self._thread.start()

    def wake(self) -> None:
        """Run the next pass at once."""
        self._woken.set()

    def request_stop(self) -> None:
        """End after the running pass. Never blocks."""
        self._stopping.set()
        self._woken.set()

    def stop(self, timeout_s: float) -> bool:
        """Stop after the running pass and release the lease. False if that takes longer."""
        self.request_stop()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def name(self) -> str:
        """The loop's name in logs and metrics."""
        return self._thread.name

    @property
    def failing(self) -> str | None:
        """The type of the last error of a failing loop, or `ENDED`; None for others."""
        return self._passes.failing

    def run_pass(self) -> float:
        """Run one pass, if the replica leads, and return the seconds until the next."""
        try:
            pause_s = self._run_once() if self._leader.leads() else self._leader.poll_s
        except Exception as error:
            self._passes.fail(error)
            return self._retry_s
        self._passes.succeed()
        return pause_s

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                pause_s = self.run_pass()
                self._woken.wait(pause_s)
                self._woken.clear()
        except BaseException as error:
            self._passes.end(error)
        finally:
            self._leader.resign()


_STOP_TIMEOUT_S = 30.0


class _PassCounts(Protocol):
    @property
    def pause_s(self) -> float: ...


class Loops:
    """Starts, wakes and stops the loops.

    `on_reconciled` is called with the counts of each pass of the reconcile loop, and `on_pass`
    after each pass of any loop with its name and the number of passes that have failed in a row.
    """

    def __init__(
        self,
        *,
        database: Database,
        kafka: KafkaAdmin,
        settings: Settings,
        clock: Clock,
        on_reconciled: Callable[[ReconcileCounts], None] = lambda _counts: None,
        on_pass: OnPass = unobserved,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        stopping = threading.Event()
        self._leader = leader = Leader(
            database=database,
            name="reconcile",
            holder=holder_name(),
            lease_ms=settings.lease_ms,
            monotonic=monotonic,
        )

        def loop(name: str, run_once: Callable[[], _PassCounts]) -> Loop:
            return Loop(
                name=name,
                leader=leader,
                run_once=lambda: run_once().pause_s,
                stopping=stopping,
                on_pass=on_pass,
            )

        reconciler = Reconciler(
            database=database,
            kafka=kafka,
            clock=clock,
            resync_s=settings.resync_s,
            delete_history=delete_history,
            wait=stopping.wait,
        )
        reaper = Reaper(database=database, clock=clock, monotonic=monotonic)
        lost_ends = LostEnds(database=database, kafka=kafka, monotonic=monotonic)
        drainer = Drainer(database=database, kafka=kafka, clock=clock)
        ttl_reaper = TtlReaper(database=database, kafka=kafka, clock=clock, monotonic=monotonic)
        sampler = Sampler(
            database=database,
            kafka=kafka,
            clock=clock,
            monotonic=monotonic,
            interval_s=settings.sample_s,
        )
        mirror = Mirror(
            database=database,
            kafka=kafka,
            prefix=settings.mirror_prefix,
            leads=leader.leads,
            clock=clock,
            monotonic=monotonic,
        )
        leases = LeaseReaper(database=database, clock=clock, monotonic=monotonic)
        comparer = LedgerComparer(database=database, kafka=kafka, clock=clock, monotonic=monotonic)
        days = settings.history_days
        pruner = Pruner(database=database, days=days, clock=clock)
        ledger_pruner = LedgerPruner(database=database, days=days, clock=clock)

        def reconcile() -> ReconcileCounts:
            counts = reconciler.run_once()
            on_reconciled(counts)
            if counts.changed:
                self._idle.wake()
            return counts

        def reap() -> ReapCounts:
            counts = reaper.run_once()
            if counts.lost:
                ends.wake()
            return counts

        self._reconcile = loop("reconcile", reconcile)
        self._drain = loop("drain", drainer.run_once)
        self._idle = loop("idle", ttl_reaper.run_once)
        ends = loop("ends", lost_ends.run_once)
        self._all = (
            self._reconcile,
            loop("reap", reap),
            ends,
            self._drain,
            self._idle,
            loop("sample", sampler.run_once),
            loop("mirror", mirror.run_once),
            loop("batches", leases.run_once),
            loop("ledger", comparer.run_once),
            loop("prune", pruner.run_once),
            loop("prune-ledgers", ledger_pruner.run_once),
        )

    def start(self) -> None:
        """Start all loops."""
        for loop in self._all:
            loop.start()

    def wake(self) -> None:
        """Run the loops that process changes of channels at once. Never blocks; thread-safe."""
        self._reconcile.wake()
        self._drain.wake()
        self._idle.wake()

    @property
    def has_lease(self) -> bool:
        """Whether this replica runs the loops, by its last renewal."""
        return self._leader.has_lease

    def failing(self) -> dict[str, str]:
        """Return the loops that keep failing, with the type of their errors."""
        return {loop.name: reason for loop in self._all if (reason := loop.failing) is not None}

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> bool:
        """Stop all loops and release the lease. False if a pass still runs after `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        # Request all stops first, so that running passes end in parallel.
        for loop in self._all:
            loop.request_stop()
        stopped = [loop.stop(max(0.0, deadline_s - time.monotonic())) for loop in self._all]
        return all(stopped)
