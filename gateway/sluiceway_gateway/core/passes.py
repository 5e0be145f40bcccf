"""Passes of repeated work: the record of their failures, and steps of which one may fail."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

from sluiceway_gateway.core.db.failures import reason_of
from sluiceway_gateway.core.errors import SluicewayGatewayError

_log = structlog.get_logger(__name__)

#: Consecutive failed passes after which a loop counts as failing.
_FAILING = 3
#: Failures of a lasting outage per entry in the log, which are about a minute apart.
_FAILURES_PER_ENTRY = 60
#: Failed steps in a row after which the rest of a pass is left out: they have one cause.
_FAILED_STEPS = 3

ENDED = "ThreadEnded"
"""The reason of a loop whose thread has ended, for good."""
Result = TypeVar("Result")
OnPass = Callable[[str, int], None]
"""Gets the name of a loop and the number of its consecutive failures."""


def unobserved(_name: str, _failures: int) -> None:
    """Ignore the passes of a loop."""


class PassRecord:
    """The consecutive failures of one loop, in the log and in a metric.

    After three errors in a row the loop is failing, until a pass succeeds; only each 60th is
    logged then, and those of another type. `on_pass` is called after each pass.
    """

    def __init__(self, name: str, *, on_pass: OnPass = unobserved) -> None:
        self.name = name
        self._on_pass = on_pass
        self._failures = 0
        self._reason: str | None = None

    @property
    def failing(self) -> str | None:
        """The type of the last error of a failing loop, or `ENDED`; None for others."""
        return self._reason if self._failures >= _FAILING else None

    def succeed(self) -> None:
        """Record a pass without an error."""
        if self.failing is not None:
            _log.info("loop recovered", loop=self.name, failures=self._failures)
        self.reset()

    def reset(self) -> None:
        """Forget the failures: the loop succeeded, or has nothing left to do."""
        self._failures, self._reason = 0, None
        self._on_pass(self.name, 0)

    def fail(self, error: Exception) -> None:
        """Record a failed pass."""
        before, self._reason = self._reason, type(error).__name__
        self._failures += 1
        self._on_pass(self.name, self._failures)
        lasts = self._failures > _FAILING and self._reason == before
        if lasts and self._failures % _FAILURES_PER_ENTRY:
            return
        fields = {"loop": self.name, "failures": self._failures, **reason_of(error)}
        if not isinstance(error, SluicewayGatewayError):
            _log.error("pass failed", **fields, exc_info=error)
        elif self._failures >= _FAILING:
            _log.error("loop keeps failing", **fields)
        else:
            _log.warning("pass failed, retrying", **fields)

    def end(self, error: BaseException) -> None:
        """Record that the loop's thread ends by an error, so that it counts as failing for good."""
        self._failures, self._reason = max(self._failures, _FAILING), ENDED
        _log.error("thread ended", loop=self.name, exc_info=error)
        self._on_pass(self.name, self._failures)


def run_steps(steps: Iterable[Callable[[], Result]]) -> list[Result]:
    """Run the steps of a pass, also those after one that failed, and return their results.

    Raises the first error at the end; logs the others. After three retriable failures in a row, as
    in an outage, the remaining steps are left out.
    """
    results: list[Result] = []
    first: Exception | None = None
    in_a_row = 0
    for step in steps:
        try:
            results.append(step())
        except Exception as error:
            retriable = isinstance(error, SluicewayGatewayError) and error.retriable
            in_a_row = in_a_row + 1 if retriable else 0
            if first is None:
                first = error
            else:
                _log.warning("a further step of the pass failed", **reason_of(error))
            if in_a_row == _FAILED_STEPS:
                break
        else:
            in_a_row = 0
    if first is not None:
        raise first
    return results
