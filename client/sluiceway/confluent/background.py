"""Background requests: steps in the polling thread, requests in other threads."""

import logging
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

from sluiceway.errors import GatewayUnavailable
from sluiceway.runtime.threads import Signal

__all__ = ["Request", "StepRunner", "Steps", "WakeupEvent", "left_s"]

R = TypeVar("R")
Request: TypeAlias = Callable[[], object]
"""A call that waits for the gateway or for Kafka."""
Steps: TypeAlias = Generator[Request, Any, R]
"""Steps of the polling thread: a generator that yields requests and gets results or errors."""

LOGGER = logging.getLogger("sluiceway.confluent")

_FRESH_S: Final = 0.05
"""The longest wait of a poll for a request that it has started."""


def left_s(deadline_s: float) -> float:
    """Return the time until a deadline (monotonic), for a request: never 0."""
    return max(0.01, deadline_s - time.monotonic())


class WakeupEvent(Signal):
    """Makes the next poll serve. `due_s` (monotonic) is the time of that without an event.

    A poll compares one number per message: `due_s` is 0 while the event is set. Polls wait for
    `arrived`, which messages set as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.arrived = Signal()
        self.due_s = 0.0

    def set(self) -> None:
        """Make the next poll serve."""
        with self._lock:
            self.due_s = 0.0
            super().set()
        self.arrived.set()

    def postpone(self, due_s: float) -> None:
        """Serve at `due_s`, or earlier if the event is set."""
        with self._lock:
            self.clear()
            self.due_s = due_s


class _Pending:
    """A request in its own thread, which ends with it."""

    def __init__(self, request: Request, done: Callable[[], None]) -> None:
        self._request = request
        self._done = done
        self._finished = Signal()
        self._result: object = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="sluiceway-request", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has finished, after `timeout_s` at most."""
        return self._finished.wait(max(0.0, timeout_s))

    def resume(self, steps: Steps[Any], deadline_s: float) -> Request:
        """Send the result or the error into the steps; return their next request.

        Without a response by `deadline_s` (monotonic), the steps get GatewayUnavailable.
        """
        if not self.wait(deadline_s - time.monotonic()):
            return steps.throw(
                GatewayUnavailable("the gateway has not answered in time. Check that it is running")
            )
        if self._error is not None:
            return steps.throw(self._error)
        return steps.send(self._result)

    def _run(self) -> None:
        try:
            self._result = self._request()
        except BaseException as error:
            self._error = error
        self._finished.set()
        self._done()


class StepRunner:
    """Runs steps in order in the calling thread, and their requests in other threads.

    So polls never wait for a response. `wakeup` is set when one arrives. Not thread-safe.
    """

    def __init__(self, *, wakeup: Signal) -> None:
        self._wakeup = wakeup
        self._steps: Steps[Any] | None = None
        self._pending: _Pending | None = None

    @property
    def active(self) -> bool:
        """Whether steps wait for a request."""
        return self._steps is not None

    def advance(self, make: Callable[[], Steps[Any]], wait_s: float) -> None:
        """Continue waiting steps, or else start new ones, until a response is missing.

        Waits up to `wait_s`, and only briefly, for a request started here: mostly, the response
        arrives at once.
        """
        if self._steps is None:
            self._steps = make()
        elif self._pending is not None and not self._pending.wait(0):
            return
        until_s = time.monotonic() + min(wait_s, _FRESH_S)
        while self._continue() and self._pending is not None:
            if not self._pending.wait(until_s - time.monotonic()):
                return

    def finish(self, steps: Steps[R], deadline_s: float) -> R:
        """Run waiting steps, then these steps to their end; return the result.

        Requests without a response by `deadline_s` (monotonic) raise GatewayUnavailable in them.
        """
        try:
            while self._continue(deadline_s):
                pass
        except GatewayUnavailable as error:
            LOGGER.warning("a rebalance was abandoned: %s", error)
        finally:
            result = _finish(steps, deadline_s)
        return result

    def _continue(self, deadline_s: float = 0.0) -> bool:
        """Run the steps up to their next request; return False at their end."""
        steps, pending, self._pending = self._steps, self._pending, None
        if steps is None:
            return False
        try:
            request = next(steps) if pending is None else pending.resume(steps, deadline_s)
            # Steps whose request an interrupt prevents would get None as its result.
            self._pending = _Pending(request, self._wakeup.set)
        except StopIteration:
            self._steps = None
            return False
        except BaseException:
            self._steps = None
            raise
        return True


def _finish(steps: Steps[R], deadline_s: float) -> R:
    try:
        request = next(steps)
        while True:
            request = _Pending(request, lambda: None).resume(steps, deadline_s)
    except StopIteration as end:
        result: R = end.value
        return result
