"""Waiting for a condition."""

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 180) -> Any:
    """Call `condition` until it returns a true value, and return it; fail after `seconds`.

    The pauses grow to 0.1 s, by a tenth of the time so far: many conditions are requests, whose
    processor time other tests lack.
    """
    started_s = time.monotonic()
    while not (result := condition()):
        waited_s = time.monotonic() - started_s
        assert waited_s < seconds, "the condition was not true in time"
        time.sleep(min(0.005 + waited_s / 10, 0.1))
    return result
