"""Interrupts, as by Ctrl-C: at each call or step, in callbacks of librdkafka, by a signal."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

Profile = Callable[[FrameType, str, Any], object]


@contextmanager
def _profiled(profile: Profile) -> Iterator[None]:
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def acting_at_call(
    number: int,
    action: Callable[[], object],
    work: Callable[[], object],
    events: tuple[str, ...] = ("call", "return", "c_return"),
) -> bool:
    """Run `work` with an action where its n-th call begins or ends; False if it has fewer."""
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
    finally:
        sys.setprofile(None)
    return calls > number


def interrupted_at_call(number: int, work: Callable[[], object], *, returns: bool = True) -> bool:
    """Run `work` with an interrupt where its n-th call begins or ends; False if it has fewer.

    A signal's handler runs when a function begins, and after a call. Without `returns` it runs
    after calls of C functions only, as in CPython, where a function returns to a function.
    """
    events = ("call", "return", "c_return") if returns else ("call", "c_return")
    came = []

    def interrupt() -> None:
        came.append(number)
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        acting_at_call(number, interrupt, work, events)
    return bool(came)


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

    with pytest.raises(KeyboardInterrupt), _profiled(profile):
        yield


def count_c_calls(work: Callable[[], object]) -> Counter[str]:
    """Run `work`, and return how often this thread called each C function, by name."""
    counts: Counter[str] = Counter()

    def profile(_frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            counts[called.__name__] += 1

    with _profiled(profile):
        work()
    return counts


def raising_at_step(step: int, work: Callable[[], object], *, instructions: bool = True) -> bool:
    """Run `work` with an interrupt at its n-th step; return whether it had so many.

    A step is an instruction, or else a call or a return: a signal interrupts no lock's `with`
    between its instructions, but a trace function would.
    """
    steps = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = frame.f_trace_lines = instructions
        if event != "exception" and frame.f_code.co_name != "raising_at_step":
            steps += 1
            if steps == step:
                raise KeyboardInterrupt(event)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
