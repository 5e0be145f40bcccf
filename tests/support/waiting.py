"""Waiting for a condition."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any


def until(
    condition: Callable[[], Any],
    seconds: float = 180,
    *,
    despite: type[Exception] | tuple[type[Exception], ...] = (),
    state: Callable[[], object] = lambda: "the condition was not true in time",
) -> Any:
    """Call `condition` until it returns a true value, and return it.

    Fail after `seconds`, with the `state` then. An exception `despite` is like a false value. The
    pauses grow to 0.1 s, by a tenth of the time so far: many conditions are requests, whose
    processor time other tests lack.
    """
    started_s = time.monotonic()
    while True:
        with suppress(despite):
            if result := condition():
                return result
        waited_s = time.monotonic() - started_s
        assert waited_s < seconds, state()
        time.sleep(min(0.005 + waited_s / 10, 0.1))


def collect(
    read: Callable[[int], Iterable[Any]], count: int, *, despite: type[Exception] | tuple[()] = ()
) -> list[Any]:
    """Call `read` with the number of missing items until there are `count`, and return them."""
    items: list[Any] = []

    def is_complete() -> bool:
        items.extend(read(count - len(items)))
        return len(items) >= count

    until(is_complete, despite=despite)
    return items
