"""Steps of a thread that must not wait: their requests run in other threads."""

import functools
import logging
import time
from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

from sluiceway.errors import GatewayUnavailable
from sluiceway.runtime.threads import PendingCall

__all__ = ["Request", "StepRunner", "Steps", "run_steps"]

R = TypeVar("R")
Request: TypeAlias = Callable[[], object]
"""A call that waits for the gateway or for Kafka."""
Steps: TypeAlias = Generator[Request, Any, R]
"""Steps of one thread: a generator that yields requests and gets results or errors."""

LOGGER = logging.getLogger("sluiceway.runtime.steps")

_FRESH_S: Final = 0.05
"""The longest wait for a request that was started by this call."""


def run_steps(
    steps: Steps[R], respond: Callable[[Request], object] = lambda request: request()
) -> R:
    """Run steps in the calling thread, by default with their requests; return the result."""
    try:
        request = next(steps)
        while True:
            request = _resume(steps, functools.partial(respond, request))
    except StopIteration as end:
        result: R = end.value
        return result


class StepRunner:
    """Runs steps in order in the calling thread, and their requests in other threads.

    So `advance` never waits for a response for long. `notify` is called when one arrives. Not
    thread-safe.
    """

    def __init__(self, *, notify: Callable[[], object]) -> None:
        self._notify = notify
        self._steps: Steps[Any] | None = None
        self._pending: PendingCall[object] | None = None

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
            result = run_steps(steps, lambda request: _response(_started(request), deadline_s))
        return result

    def _continue(self, deadline_s: float = 0.0) -> bool:
        """Run the steps up to their next request; return False at their end."""
        steps, pending, self._pending = self._steps, self._pending, None
        if steps is None:
            return False
        try:
            if pending is None:
                request = next(steps)
            else:
                request = _resume(steps, functools.partial(_response, pending, deadline_s))
            # Steps whose request an interrupt prevents would get None as its result.
            self._pending = _started(request, self._notify)
        except StopIteration:
            self._steps = None
            return False
        except BaseException:
            self._steps = None
            raise
        return True


def _resume(steps: Steps[Any], respond: Request) -> Request:
    """Send the response to a request, or its error, into the steps; return their next request."""
    try:
        response = respond()
    except BaseException as error:
        return steps.throw(error)
    return steps.send(response)


def _started(request: Request, notify: Callable[[], object] | None = None) -> PendingCall[object]:
    pending = PendingCall(request, notify)
    pending.start()
    return pending


def _response(pending: PendingCall[object], deadline_s: float) -> object:
    """Return the response to a request. Raises GatewayUnavailable without one by the deadline."""
    if pending.wait(deadline_s - time.monotonic()):
        return pending.result()
    raise GatewayUnavailable("the gateway has not answered in time. Check that it is running")
