"""What beats tell of an endpoint's movement."""

import weakref

import pytest

from sluiceway import Position
from sluiceway.endpoint.handle import EndpointMetrics


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_counters_have_pypzs_names_and_averages_over_the_last_ten_cycles() -> None:
    clock = Clock()
    movement = EndpointMetrics("reader", monotonic=clock)
    movement.turn(0)
    assert movement.counters() == {"records": 0, "receivedRecordCount": 0}
    # Slow ones first, which are not counted any more after ten quick ones.
    for records, seconds in ((1, 60.0), *((4 * each, 0.5) for each in range(1, 11))):
        clock.now_s += seconds
        movement.turn(records)
    assert movement.counters() == {
        "records": 40,
        "receivedRecordCount": 40,
        "averageTimePerReadCycleMs": 500.0,
        "averageRecordPerReadCycle": 3.9,
        "averageTimePerReadRecordMs": pytest.approx(5000 / 39, abs=1e-6),
    }


def test_a_writers_counters_are_of_its_output() -> None:
    clock = Clock()
    movement = EndpointMetrics("writer", monotonic=clock)
    movement.turn(5)
    clock.now_s += 0.25
    movement.turn(5)
    # Nothing was written in the cycle: there is no time per record.
    assert movement.counters() == {
        "records": 5,
        "sentRecordCount": 5,
        "averageTimePerOutputCycleMs": 250.0,
        "averageRecordPerOutputCycle": 0.0,
    }


class Place:
    """Where a reader is."""

    def __init__(self) -> None:
        self.positions = {0: Position(offset=5, records=2), 2: Position(offset=7)}

    def look(self) -> tuple[int, dict[int, Position]]:
        return 12, dict(self.positions)


def test_positions_are_told_until_they_are_heard_and_when_they_change() -> None:
    movement, place = EndpointMetrics("reader"), Place()
    takes = {"positions"}
    assert "positions" not in movement.news(takes)
    movement.follow(place.look)
    told = {"0": [5, 2], "2": [7, 0]}
    assert movement.news(takes)["positions"] == told
    # No answer: once more.
    assert movement.news(takes)["positions"] == told
    movement.heard()
    assert movement.news(takes) == {"counters": {"records": 12, "receivedRecordCount": 12}}
    place.positions = {0: Position(offset=5, records=3)}
    assert movement.news(takes)["positions"] == {"0": [5, 3]}
    movement.heard()
    place.positions = {0: Position(offset=6)}
    assert movement.last_word(takes)["positions"] == {"0": [6, 0]}


def test_what_was_forgotten_is_not_kept_alive_and_its_last_place_is_known() -> None:
    movement, place = EndpointMetrics("reader"), Place()
    movement.follow(place.look)
    movement.heard()
    assert movement.news(())["counters"]["records"] == 12
    gone = weakref.ref(place)
    del place
    assert gone() is None
    assert movement.news({"positions"})["positions"] == {"0": [5, 2], "2": [7, 0]}


def test_an_older_gateway_is_told_nothing_that_it_would_refuse() -> None:
    movement, place = EndpointMetrics("reader"), Place()
    movement.follow(place.look)
    assert movement.news(()) == movement.last_word(()) == {"counters": movement.counters()}
