"""A background thread that repeats one pass while its replica leads."""

import threading
from collections.abc import Callable

import structlog

from sluiceway_gateway.errors import SluicewayGatewayError
from sluiceway_gateway.loops.leader import Leader

_log = structlog.get_logger(__name__)

#: Turns that fail in a row before the loop counts as failing.
_FAILING = 3


class Loop:
    """Calls `run_once` while `leader` leads.

    `run_once` returns how many seconds to wait before it is called again; 0 is at once. An
    error is logged and does not end the loop: the next turn comes after `retry_s`. Three in a row
    make it a failing loop, until a turn ends well.
    """

    def __init__(
        self,
        *,
        name: str,
        leader: Leader,
        run_once: Callable[[], float],
        stopping: threading.Event,
        retry_s: float = 1.0,
        on_turn: Callable[[str, int], None] | None = None,
    ) -> None:
        """`on_turn` hears after each turn the loop's name and how many failed in a row by now."""
        self._leader = leader
        self._run_once = run_once
        self._stopping = stopping
        self._retry_s = retry_s
        self._on_turn = on_turn
        self._failures = 0
        self._reason: str | None = None
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; may be called once."""
        self._thread.start()

    def wake(self) -> None:
        """Have the next turn come at once, for there is something to do."""
        self._woken.set()

    def stop(self, timeout_s: float) -> bool:
        """End after the turn that is running and give the lease back; False if it takes longer."""
        self._stopping.set()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def name(self) -> str:
        """What it does, in a word."""
        return self._thread.name

    @property
    def failing(self) -> str | None:
        """The kind of error that the last turns ended with, three or more; None if it works."""
        return self._reason if self._failures >= _FAILING else None

    def turn(self) -> float:
        """Do one turn and return how many seconds to wait before the next."""
        error: Exception | None = None
        try:
            pause_s = self._run_once() if self._leader.leads() else self._leader.patience_s
        except Exception as raised:
            error, pause_s = raised, self._retry_s
        self._note(error)
        if self._on_turn is not None:
            self._on_turn(self.name, self._failures)
        return pause_s

    def _note(self, error: Exception | None) -> None:
        if error is None:
            if self.failing is not None:
                _log.info("the loop works again", loop=self.name, failures=self._failures)
            self._failures, self._reason = 0, None
            return
        self._failures += 1
        self._reason = type(error).__name__
        about = {"loop": self.name, "failures": self._failures, "reason": str(error)}
        if not isinstance(error, SluicewayGatewayError):
            _log.error("the turn failed", **about, exc_info=error)
        elif self._failures >= _FAILING:
            _log.error("the loop keeps failing: its work is not done", **about)
        else:
            _log.warning("the turn is repeated", **about)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                pause_s = self.turn()
                self._woken.wait(pause_s)
                self._woken.clear()
        finally:
            self._leader.resign()
