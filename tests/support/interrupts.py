"""Interrupts, as by Ctrl-C: at each call or step, in callbacks of librdkafka."""

import cProfile
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

AS_SIGNALS = ("call", "c_return")
"""Events of a profile where CPython runs a signal's handler: a function begins, C returns."""
OF_FUNCTIONS = ("call", "return")


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted_at_call(
    number: int,
    work: Callable[[], object],
    events: tuple[str, ...] = ("call", "return", "c_return"),
    *,
    action: Callable[[], object] = interrupt,
) -> bool:
    """Run `work` with an interrupt, or another action, at its n-th event; False if it has fewer."""
    calls = 0

    def profile(_frame: FrameType, event: str, _called: object) -> None:
        nonlocal calls
        calls += event in events
        if calls == number:
            calls += 1
            action()

    # Not a context manager, whose own calls would count.
    sys.setprofile(profile)
    try:
        work()
    except KeyboardInterrupt:
        assert calls > number
    finally:
        sys.setprofile(None)
    return calls > number


@contextmanager
def interrupted_in_report() -> Iterator[None]:
    """Interrupt the first Python callback that librdkafka's producer calls in the block.

    The interrupt is expected from the block.
    """
    serving = False

    def profile(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal serving
        if event == "call" and serving:
            sys.setprofile(None)
            raise KeyboardInterrupt
        if event.startswith("c_") and called.__name__ in ("poll", "flush"):
            serving = event == "c_call"

    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        sys.setprofile(None)


def count_calls(work: Callable[[], object]) -> Counter[str]:
    """Run `work`, and return how often this thread called each C function, by its full name."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return Counter({str(entry.code): entry.callcount for entry in profile.getstats()})
