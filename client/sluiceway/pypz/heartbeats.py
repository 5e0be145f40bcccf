"""The thread of a channel that tells and hears statuses again and again."""

import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future

__all__ = ["Loop"]

LOGGER = logging.getLogger("sluiceway.pypz")
_LAST_TURN_S = 5.0


class Loop:
    """Calls a method every `interval_s`, until it is ended or nobody has its object any more.

    It runs in `executor`, or in a thread of its own, which keeps no program from ending. What the
    method raises is written to the log, and the next turn comes in its time.
    """

    def __init__(
        self, turn: Callable[[], None], *, name: str, interval_s: float, executor: Executor | None
    ) -> None:
        self._turn = weakref.WeakMethod(turn)
        self._name = name
        self._interval_s = interval_s
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._future: Future[None] | None = None
        if executor is not None:
            self._future = executor.submit(self._run)
            return
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let it end, and wait for the turn that it is in."""
        self._ending.set()
        if self._future is not None and not self._future.cancel():
            self._future.exception(_LAST_TURN_S)
        elif self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LAST_TURN_S)

    def _run(self) -> None:
        while not self._ending.wait(self._interval_s):
            turn = self._turn()
            if turn is None:
                return
            try:
                turn()
            except Exception:
                LOGGER.exception("a status of %s was not told; the next one is", self._name)
            del turn
