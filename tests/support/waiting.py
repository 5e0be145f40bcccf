"""Waiting for a condition."""

import time
from collections.abc import Callable
from typing import Any


def until(holds: Callable[[], Any], seconds: float = 180) -> Any:
    """Call `holds` until it returns a true value, and return it; fail after `seconds`."""
    deadline_s = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.005)
    return found
