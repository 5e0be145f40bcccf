"""Timers: one thread waits for all of them, and worker threads run their methods."""

import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from faults import at_call, interrupted_at_call, no_threads
from sluiceway.runtime import timers
from sluiceway.runtime.timers import Timer
from waiting import until

InChild = Callable[[Callable[[], object]], None]


class Alarm:
    """Records when it rings."""

    def __init__(self) -> None:
        self.rung = threading.Event()
        self.threads: list[threading.Thread] = []
        self.timer = Timer(self.ring)

    def ring(self, *_: object) -> None:
        self.threads.append(threading.current_thread())
        self.rung.set()

    def rings(self) -> bool:
        return self.rung.wait(60)


class Sleeper(Alarm):
    """Is busy for a long time once it rings."""

    def __init__(self) -> None:
        super().__init__()
        self.woken = threading.Event()

    def ring(self, *_: object) -> None:
        super().ring()
        assert self.woken.wait(60)


def later_alarm_rings() -> bool:
    """Wait until all that was due has been started."""
    alarm = Alarm()
    alarm.timer.set(0)
    return alarm.rings()


@contextmanager
def paused() -> Iterator[None]:
    """Let no timer run during the block, whose steps may take any time.

    The thread that waits for timers runs a method itself, as it does without a further thread.
    """
    sleeper = Sleeper()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with at_call(timers, "start", refuse):
        sleeper.timer.set(0)
        assert sleeper.rings()
    try:
        yield
    finally:
        sleeper.woken.set()


def test_a_timer_runs_its_method_once_in_another_thread_after_its_time() -> None:
    alarm, started_s = Alarm(), time.monotonic()
    alarm.timer.set(0.02)
    assert alarm.timer.is_set
    assert alarm.rings()
    assert time.monotonic() - started_s >= 0.02
    assert not alarm.timer.is_set
    assert later_alarm_rings()
    assert len(alarm.threads) == 1
    assert alarm.threads != [threading.current_thread()]


def test_arguments_are_passed_to_the_method() -> None:
    numbers: list[int] = []

    class Adder:
        def add(self, number: int) -> None:
            numbers.append(number)

    adder = Adder()
    Timer(adder.add, 7).set(0)
    assert later_alarm_rings()
    until(lambda: numbers == [7])


def test_a_timer_that_is_set_again_keeps_the_new_time_only() -> None:
    earlier, later = Alarm(), Alarm()
    with paused():
        earlier.timer.set(600)
        earlier.timer.set(0)
        later.timer.set(0)
        later.timer.set(600)
    assert earlier.rings()
    assert later_alarm_rings()
    assert later.threads == []
    assert later.timer.is_set
    later.timer.set(0)
    assert later.rings()


def test_a_cancelled_timer_does_not_run_until_it_is_set_again() -> None:
    alarm = Alarm()
    with paused():
        alarm.timer.set(0)
        alarm.timer.cancel()
    assert not alarm.timer.is_set
    assert later_alarm_rings()
    assert alarm.threads == []
    alarm.timer.set(0)
    assert alarm.rings()


def test_a_timer_does_not_keep_its_object_alive() -> None:
    alarm, rung = Alarm(), []
    alarm.threads = rung
    with paused():
        alarm.timer.set(0)
        del alarm
        gc.collect()
    assert later_alarm_rings()
    assert rung == []


def test_many_timers_wait_in_one_thread(in_forked_child: InChild) -> None:
    def work() -> None:
        alarms = [Alarm() for _ in range(1000)]
        for alarm in alarms:
            alarm.timer.set(600)
        # The main thread, that of the timers, and four that are kept for other work.
        until(lambda: threading.active_count() <= 6)
        assert all(alarm.timer.is_set for alarm in alarms)

    in_forked_child(work)


def test_a_method_that_waits_delays_no_other_timer() -> None:
    sleepers = [Sleeper() for _ in range(8)]
    for sleeper in sleepers:
        sleeper.timer.set(0)
    for sleeper in sleepers:
        assert sleeper.rings()
    assert later_alarm_rings()
    for sleeper in sleepers:
        sleeper.woken.set()


def test_a_method_may_set_its_timer_again() -> None:
    class Clock(Alarm):
        def ring(self, *_: object) -> None:
            super().ring()
            if len(self.threads) < 3:
                self.timer.set(0.001)

    clock = Clock()
    clock.timer.set(0)
    until(lambda: len(clock.threads) == 3)


def test_an_exception_of_a_method_is_logged_and_timers_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        def fail(self) -> None:
            raise ZeroDivisionError("here")

    broken = Broken()
    Timer(broken.fail).set(0)
    assert later_alarm_rings()
    until(lambda: "ZeroDivisionError: here" in caplog.text)


def test_an_interrupt_at_any_step_leaves_a_timer_that_rings_if_it_is_set() -> None:
    def is_usable_after(step: int) -> bool:
        """Check it; return whether the method has so many steps."""
        alarm = Alarm()
        interrupted = interrupted_at_call(step, lambda: alarm.timer.set(0.001))
        if alarm.timer.is_set:
            assert alarm.rings()
        alarm.timer.set(0.001)
        assert alarm.rings()
        return interrupted

    assert next(step for step in itertools.count(1) if not is_usable_after(step)) > 10


def test_timers_of_a_forked_child_run_there_and_those_of_its_parent_do_not(
    in_forked_child: InChild,
) -> None:
    alarm = Alarm()
    alarm.timer.set(600)

    def work() -> None:
        alarm.timer.set(0)
        assert alarm.rings()
        assert later_alarm_rings()

    in_forked_child(work)
    assert alarm.threads == []
    alarm.timer.cancel()


def test_without_a_thread_a_timer_is_not_set(in_forked_child: InChild) -> None:
    def work() -> None:
        alarm = Alarm()
        with no_threads("sluiceway-worker"), pytest.raises(RuntimeError, match="new thread"):
            alarm.timer.set(0)
        assert not alarm.timer.is_set
        alarm.timer.set(0)
        assert alarm.rings()

    in_forked_child(work)


def test_without_a_further_thread_a_method_runs_where_timers_wait(
    in_forked_child: InChild,
) -> None:
    def work() -> None:
        alarm, other = Alarm(), Alarm()
        other.timer.set(600)
        assert later_alarm_rings()
        with no_threads("sluiceway-worker"):
            alarm.timer.set(0)
            assert alarm.rings()

    in_forked_child(work)
