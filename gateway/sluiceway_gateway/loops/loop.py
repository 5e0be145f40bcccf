"""Background loop: a thread that repeats a pass while its replica leads."""

import threading
from collections.abc import Callable

import structlog

from sluiceway_gateway.errors import SluicewayGatewayError
from sluiceway_gateway.loops.leader import Leader

_log = structlog.get_logger(__name__)

#: Consecutive failed passes that make a failing loop.
_FAILING = 3


class Loop:
    """Calls `run_once` while `leader` leads.

    `run_once` returns the seconds until the next pass. An error is logged, and the next pass is
    `retry_s` later. Three errors in a row make it a failing loop, until a pass succeeds. `on_pass`
    is called after each pass with the loop's name and the number of consecutive failures.
    """

    def __init__(
        self,
        *,
        name: str,
        leader: Leader,
        run_once: Callable[[], float],
        stopping: threading.Event,
        retry_s: float = 1.0,
        on_pass: Callable[[str, int], None] = lambda _name, _failures: None,
    ) -> None:
        self._leader = leader
        self._run_once = run_once
        self._stopping = stopping
        self._retry_s = retry_s
        self._on_pass = on_pass
        self._failures = 0
        self._reason: str | None = None
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Call once."""
        self._thread.start()

    def wake(self) -> None:
        """Run the next pass at once."""
        self._woken.set()

    def stop(self, timeout_s: float) -> bool:
        """Stop after the running pass and release the lease. False if that takes longer."""
        self._stopping.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def name(self) -> str:
        """The loop's name in logs and metrics."""
        return self._thread.name

    @property
    def failing(self) -> str | None:
        """The type of the last error of a failing loop; None for others."""
        return self._reason if self._failures >= _FAILING else None

    def run_pass(self) -> float:
        """Run one pass, if the replica leads, and return the seconds until the next."""
        error: Exception | None = None
        try:
            pause_s = self._run_once() if self._leader.leads() else self._leader.poll_s
        except Exception as raised:
            error, pause_s = raised, self._retry_s
        self._record(error)
        self._on_pass(self.name, self._failures)
        return pause_s

    def _record(self, error: Exception | None) -> None:
        if error is None:
            if self.failing is not None:
                _log.info("loop recovered", loop=self.name, failures=self._failures)
            self._failures, self._reason = 0, None
            return
        self._failures += 1
        self._reason = type(error).__name__
        fields = {"loop": self.name, "failures": self._failures, "reason": str(error)}
        if not isinstance(error, SluicewayGatewayError):
            _log.error("pass failed", **fields, exc_info=error)
        elif self._failures >= _FAILING:
            _log.error("loop keeps failing", **fields)
        else:
            _log.warning("pass failed, retrying", **fields)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                pause_s = self.run_pass()
                self._woken.wait(pause_s)
                self._woken.clear()
        finally:
            self._leader.resign()
