"""Waiting for a condition."""

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 180) -> Any:
    """Call `condition` until it returns a true value, and return it; fail after `seconds`."""
    deadline_s = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline_s, "the condition was not true in time"
        time.sleep(0.005)
    return result
