import gc

import pytest

from faults import AS_SIGNALS, interrupted_at_call
from sluiceway.records.to_python import gc_paused


def test_the_collector_waits_for_the_end_of_the_block() -> None:
    with gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            pass
        assert not gc.isenabled(), "the outer block goes on"
    assert gc.isenabled()


def test_a_failed_block_enables_the_collector_again() -> None:
    with pytest.raises(KeyError), gc_paused():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_interrupt_of_any_call_leaves_the_collector_on() -> None:
    def pause() -> None:
        with gc_paused():
            pass

    number = 1
    while interrupted_at_call(number, pause, AS_SIGNALS):
        assert gc.isenabled(), number
        number += 1
    assert number > 5
