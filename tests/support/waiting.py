"""Waiting in tests: for what is to happen, and never longer than it takes."""

import time
from collections.abc import Callable


def until(holds: Callable[[], object], seconds: float = 120) -> None:
    """Wait until `holds()`, and fail if it takes too long."""
    deadline_s = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.005)
