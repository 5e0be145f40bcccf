"""The background loops of one replica, and which loop wakes which."""

import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Protocol, TypeVar

from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.endpoints.liveness import LostEnds, ReapCounts, Reaper
from sluiceway_gateway.endpoints.pruning import Pruner
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.lifecycle.drain import Drainer
from sluiceway_gateway.lifecycle.idle import TtlReaper
from sluiceway_gateway.loops.leader import Leader, holder_name
from sluiceway_gateway.loops.loop import Loop
from sluiceway_gateway.offsets.mirror import Mirror
from sluiceway_gateway.provisioning.reconciler import Counts, Reconciler
from sluiceway_gateway.settings import Settings
from sluiceway_gateway.status.sampler import Sampler

#: How often the leader looks for changes that another replica accepted.
_POLL_S = 0.5
_STOP_TIMEOUT_S = 30.0


class _PassCounts(Protocol):
    @property
    def pause_s(self) -> float: ...


_C = TypeVar("_C", bound=_PassCounts)


class Loops:
    """Starts, wakes and stops the loops.

    `on_change` is called after each pass that changed what requests return, `on_reconciled` with
    the counts of each pass of the reconcile loop, and `on_pass` after each pass of any loop with
    its name and the number of passes that have failed in a row.
    """

    def __init__(
        self,
        *,
        database: Database,
        kafka: KafkaAdmin,
        settings: Settings,
        clock: Callable[[], datetime],
        on_change: Callable[[], None] = lambda: None,
        on_reconciled: Callable[[Counts], None] = lambda _counts: None,
        on_pass: Callable[[str, int], None] = lambda _name, _failures: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        stopping = threading.Event()
        leader = Leader(
            database=database,
            name="reconcile",
            holder=holder_name(),
            lease_ms=settings.lease_ms,
            monotonic=monotonic,
        )

        def loop(name: str, run_once: Callable[[], float]) -> Loop:
            return Loop(
                name=name, leader=leader, run_once=run_once, stopping=stopping, on_pass=on_pass
            )

        def counting(
            run_once: Callable[[], _C], is_change: Callable[[_C], object] = lambda _counts: False
        ) -> Callable[[], float]:
            def run() -> float:
                counts = run_once()
                if is_change(counts):
                    on_change()
                return counts.pause_s

            return run

        reconciler = Reconciler(
            database=database,
            kafka=kafka,
            clock=clock,
            resync_s=settings.resync_s,
            wait=stopping.wait,
        )
        reaper = Reaper(database=database, clock=clock, monotonic=monotonic)
        lost_ends = LostEnds(database=database, topics=kafka, monotonic=monotonic)
        drainer = Drainer(database=database, topics=kafka, clock=clock)
        ttl_reaper = TtlReaper(database=database, logs=kafka, clock=clock, monotonic=monotonic)
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
            clock=clock,
            monotonic=monotonic,
        )
        pruner = Pruner(database=database, days=settings.history_days, clock=clock)

        def reconcile() -> float:
            counts = reconciler.run_once()
            on_reconciled(counts)
            if counts.changed:
                on_change()
                self._idle.wake()
            return 0.0 if counts.more else _POLL_S

        def reap() -> ReapCounts:
            counts = reaper.run_once()
            if counts.lost:
                ends.wake()
            return counts

        self._reconcile = loop("reconcile", reconcile)
        self._drain = loop("drain", counting(drainer.run_once, lambda counts: counts.changed))
        self._idle = loop("idle", counting(ttl_reaper.run_once, lambda counts: counts.changed))
        ends = loop("ends", counting(lost_ends.run_once, lambda counts: counts.noted))
        self._all = (
            self._reconcile,
            loop("reap", counting(reap, lambda each: each.suspect or each.lost or each.overdue)),
            ends,
            self._drain,
            self._idle,
            loop("sample", counting(sampler.run_once, lambda counts: counts.changed)),
            loop("mirror", counting(mirror.run_once)),
            loop("prune", counting(pruner.run_once)),
        )

    def start(self) -> None:
        """Start all loops."""
        for each in self._all:
            each.start()

    def wake(self) -> None:
        """Run the loops that process changes of channels at once. Never blocks; thread-safe."""
        self._reconcile.wake()
        self._drain.wake()
        self._idle.wake()

    def failing(self) -> dict[str, str]:
        """Return the loops that keep failing, with the type of their errors."""
        return {each.name: reason for each in self._all if (reason := each.failing) is not None}

    def stop(self) -> bool:
        """Stop all loops and release the lease. False if a pass still runs after 30 s."""
        stopped = [each.stop(_STOP_TIMEOUT_S) for each in self._all]
        return all(stopped)
