"""A thread that does one kind of work again and again, on the replica that leads."""

import threading
from collections.abc import Callable

import structlog

from sluiceway_gateway.domain.errors import SluicewayGatewayError
from sluiceway_gateway.loops.leader import Leader

_log = structlog.get_logger(__name__)


class Loop:
    """Calls `run_once` while `leader` leads.

    `run_once` returns how many seconds to wait before it is called again; 0 is at once. An
    error is logged and does not end the loop: the next turn comes after `retry_s`.
    """

    def __init__(
        self,
        *,
        name: str,
        leader: Leader,
        run_once: Callable[[], float],
        stopping: threading.Event,
        retry_s: float = 1.0,
    ) -> None:
        self._leader = leader
        self._run_once = run_once
        self._stopping = stopping
        self._retry_s = retry_s
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

    def turn(self) -> float:
        """Do one turn and return how many seconds to wait before the next."""
        try:
            if not self._leader.leads():
                return self._leader.patience_s
            return self._run_once()
        except SluicewayGatewayError as error:
            _log.warning("the turn is repeated", loop=self._thread.name, reason=str(error))
        except Exception:
            _log.exception("the turn failed", loop=self._thread.name)
        return self._retry_s

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                pause_s = self.turn()
                self._woken.wait(pause_s)
                self._woken.clear()
        finally:
            self._leader.resign()
