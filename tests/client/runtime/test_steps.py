"""Steps: requests of a thread that must not wait, in other threads or at once."""

import time

import pytest

from faults import failing_call
from sluiceway.errors import GatewayUnavailable
from sluiceway.runtime import threads
from sluiceway.runtime.steps import StepRunner, Steps, run_steps
from sluiceway.runtime.threads import Signal
from waiting import until


def test_steps_whose_request_an_interrupt_prevented_begin_again() -> None:
    runner, results = StepRunner(notify=lambda: None), []

    def steps() -> Steps[None]:
        results.append((yield lambda: "response"))

    with failing_call(threads, "start", KeyboardInterrupt(), arrives=False):
        runner.advance(steps, 1.0)
    assert not runner.active
    until(lambda: results or runner.advance(steps, 1.0))
    assert results == ["response"]


def test_steps_wait_for_a_response_without_holding_up_their_thread() -> None:
    answered, notified = Signal(), Signal()
    runner, results = StepRunner(notify=notified.set), []

    def steps() -> Steps[None]:
        results.append((yield lambda: answered.wait(60)))

    runner.advance(steps, 0.0)
    assert runner.active
    assert results == []
    answered.set()
    assert notified.wait(60)
    runner.advance(steps, 0.0)
    assert results == [True]
    assert not runner.active


def test_finishing_gives_steps_without_a_response_an_error_at_the_deadline() -> None:
    answered = Signal()
    runner, causes = StepRunner(notify=lambda: None), []

    def steps() -> Steps[str]:
        try:
            yield lambda: answered.wait(60)
        except GatewayUnavailable as error:
            causes.append(str(error))
        return "ended"

    runner.advance(steps, 0.0)
    assert runner.finish(steps(), time.monotonic()) == "ended"
    assert causes == ["the gateway has not answered in time. Check that it is running"] * 2
    answered.set()


def test_steps_run_in_their_own_thread_get_results_and_errors() -> None:
    def steps() -> Steps[list[object]]:
        results: list[object] = [(yield lambda: 1)]
        try:
            yield lambda: 1 // 0
        except ZeroDivisionError as error:
            results.append(type(error))
        return results

    assert run_steps(steps()) == [1, ZeroDivisionError]

    def failing() -> Steps[None]:
        yield lambda: 1 // 0

    with pytest.raises(ZeroDivisionError):
        run_steps(failing())
