"""Circuit breaker for a database that does not answer."""

import threading
import time
from collections.abc import Callable

import structlog

from sluiceway_gateway.errors import DatabaseUnavailable

_log = structlog.get_logger(__name__)

#: How long calls wait for the first probe, which a healthy database answers within milliseconds.
_GRACE_S = 0.5
_PAUSE_S = 0.1


class CircuitBreaker:
    """Opened by a call that timed out; a thread then probes the database until it answers.

    Without a breaker each call would wait for its own timeout on one of few threads, and queued
    calls for the sum of them.
    """

    def __init__(self, probe: Callable[[], None]) -> None:
        """`probe` raises an error if the database does not answer in time."""
        self._probe = probe
        self._lock = threading.Lock()
        self._tripped_s = 0.0
        self._answers = threading.Event()
        self._answers.set()
        self._stopping = threading.Event()

    def check(self) -> None:
        """Raise DatabaseUnavailable while the breaker is open."""
        if self._answers.is_set():
            return
        remaining_s = self._tripped_s + _GRACE_S - time.monotonic()
        if not self._answers.wait(max(0.0, remaining_s)):
            raise DatabaseUnavailable(
                "The database does not answer, or another process has it locked; "
                "send the request again in a moment."
            )

    def trip(self) -> None:
        """Open the breaker after a timeout."""
        with self._lock:
            if self._answers.is_set() and not self._stopping.is_set():
                self._tripped_s = time.monotonic()
                self._answers.clear()
                _log.warning("the database does not answer")
                threading.Thread(target=self._run, name="database-probe", daemon=True).start()

    def close(self) -> None:
        """Stop probing and close the breaker."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._probe()
            except Exception as error:
                _log.debug("the database still does not answer", reason=str(error))
                self._stopping.wait(_PAUSE_S)
            else:
                _log.info("the database answers again")
                break
        with self._lock:
            self._answers.set()
