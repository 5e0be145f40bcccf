"""Circuit breaker of a database that does not answer."""

import threading
import time
from collections.abc import Callable

import structlog

from sluiceway_gateway.errors import DatabaseUnavailable

_log = structlog.get_logger(__name__)

#: How long calls wait for the first trial. A database that answers passes it within milliseconds.
_GRACE_S = 0.5
_PAUSE_S = 0.1


class CircuitBreaker:
    """Closed while the database answers; opened by a call that waited for it in vain.

    Without it each call waits for itself, on one of few threads, and those behind it wait for the
    sum. While it is open, a thread of its own tries the database and closes it again.
    """

    def __init__(self, trial: Callable[[], None]) -> None:
        """`trial` raises an error if the database does not answer within a limit."""
        self._trial = trial
        self._lock = threading.Lock()
        self._tripped_s = 0.0
        self._answers = threading.Event()
        self._answers.set()
        self._ending = threading.Event()

    def check(self) -> None:
        """Raise DatabaseUnavailable while it is open."""
        if self._answers.is_set():
            return
        left_s = self._tripped_s + _GRACE_S - time.monotonic()
        if not self._answers.wait(max(0.0, left_s)):
            raise DatabaseUnavailable(
                "The database does not answer, or another process has it locked; "
                "send the request again in a moment."
            )

    def trip(self) -> None:
        """Open it: a call was not answered in time."""
        with self._lock:
            if self._answers.is_set() and not self._ending.is_set():
                self._tripped_s = time.monotonic()
                self._answers.clear()
                _log.warning("the database does not answer")
                threading.Thread(target=self._try, name="database-trial", daemon=True).start()

    def close(self) -> None:
        """End trying; it stays as if the database answered."""
        self._ending.set()

    def _try(self) -> None:
        while not self._ending.is_set():
            try:
                self._trial()
            except Exception as error:
                _log.debug("the database still does not answer", reason=str(error))
                self._ending.wait(_PAUSE_S)
            else:
                _log.info("the database answers again")
                break
        with self._lock:
            self._answers.set()
