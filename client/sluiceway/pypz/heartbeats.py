"""Heartbeats of a pypz channel: the status loop, and the exchange of payloads."""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

from sluiceway.endpoint.handle import EndpointHandle
from sluiceway.endpoint.metrics import EndpointMetrics
from sluiceway.rest.endpoint_models import Endpoint, HeartbeatResult

__all__ = ["HeartbeatLink", "StatusLoop", "cycle_figures"]

LOGGER = logging.getLogger("sluiceway.pypz")
_END_TIMEOUT_S = 5.0


class StatusLoop:
    """Calls a method every `interval_s` until it ends, or the method's object is collected.

    It runs in `executor`, or in a daemon thread. Exceptions are logged, and the loop continues.
    """

    def __init__(
        self, turn: Callable[[], None], *, name: str, interval_s: float, executor: Executor | None
    ) -> None:
        self._turn = weakref.WeakMethod(turn)
        self._name = name
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._future: Future[None] | None = None
        if executor is not None:
            self._future = executor.submit(self._run)
            return
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the loop, and wait for the call under way."""
        self._ended.set()
        if self._future is not None and not self._future.cancel():
            self._future.exception(_END_TIMEOUT_S)
        elif self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_TIMEOUT_S)

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            turn = self._turn()
            if turn is None:
                return
            try:
                turn()
            except Exception:
                LOGGER.exception("a status of %s was not sent; the next one is", self._name)
            del turn


class HeartbeatLink:
    """Payloads of one endpoint, sent and received by its heartbeats in their order."""

    def __init__(self, handle: EndpointHandle) -> None:
        self._handle = handle
        self._answered = threading.Condition()
        self._answers = 0
        self.counterparts: tuple[Endpoint, ...] = ()
        """The endpoints of the other side, by the last heartbeat."""
        handle.on_result = self._on_heartbeat
        handle.subscribe()

    def send(self, payload: Mapping[str, Any]) -> None:
        """Send a payload at once. Raises OptionError, Fenced, EndpointClosed."""
        self._handle.payload = payload
        self._handle.session.wake()

    def refresh(self, timeout_s: float) -> None:
        """Wait for the answer to a heartbeat that began after this call, or for the timeout."""
        deadline_s = time.monotonic() + timeout_s
        with self._answered:
            # The first answer may be to a heartbeat that was under way.
            for _ in range(2):
                self._wait_for_answer(deadline_s)

    def _wait_for_answer(self, deadline_s: float) -> None:
        before = self._answers
        self._handle.session.wake()
        left_s = max(0.0, deadline_s - time.monotonic())
        self._answered.wait_for(lambda: self._answers > before, left_s)

    def _on_heartbeat(self, result: HeartbeatResult) -> None:
        with self._answered:
            self._answers += 1
            if result.counterparts is not None:
                self.counterparts = result.counterparts
            self._answered.notify_all()


def cycle_figures(metrics: EndpointMetrics, kind: str) -> dict[str, float]:
    """Return a channel's figures by pypz's names, 0 before the second call; `kind` is of these."""
    counters = metrics.counters()
    names = (
        f"averageTimePer{kind}CycleMs",
        f"averageTimePer{kind}RecordMs",
        f"averageRecordPer{kind}Cycle",
    )
    elapsed = {f"elapsedTimeSinceLast{kind}CycleMs": round(1000 * metrics.cycles.elapsed_s)}
    return elapsed | {name: counters.get(name, 0) for name in names}
