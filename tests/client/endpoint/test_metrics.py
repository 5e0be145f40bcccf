"""Metrics of endpoints in heartbeats."""

import weakref

import pytest

from sluiceway import Position
from sluiceway.endpoint.attached import EndpointMetrics


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_counters_have_pypzs_names_and_averages_over_the_last_ten_cycles() -> None:
    clock = Clock()
    metrics = EndpointMetrics("reader", monotonic=clock)
    metrics.record_cycle(0)
    assert metrics.counters() == {"records": 0, "receivedRecordCount": 0}
    # Slow cycles first, which no longer count after ten quick ones.
    for records, seconds in ((1, 60.0), *((4 * cycle, 0.5) for cycle in range(1, 11))):
        clock.now_s += seconds
        metrics.record_cycle(records)
    assert metrics.counters() == {
        "records": 40,
        "receivedRecordCount": 40,
        "averageTimePerReadCycleMs": 500.0,
        "averageRecordPerReadCycle": 3.9,
        "averageTimePerReadRecordMs": pytest.approx(5000 / 39, abs=1e-6),
    }


def test_counters_of_a_writer_count_its_output() -> None:
    clock = Clock()
    metrics = EndpointMetrics("writer", monotonic=clock)
    metrics.record_cycle(5)
    clock.now_s += 0.25
    metrics.record_cycle(5)
    # Nothing was written in the cycle: there is no time per record.
    assert metrics.counters() == {
        "records": 5,
        "sentRecordCount": 5,
        "averageTimePerOutputCycleMs": 250.0,
        "averageRecordPerOutputCycle": 0.0,
    }


class Place:
    """A reader's progress."""

    def __init__(self) -> None:
        self.positions = {0: Position(offset=5, records=2), 2: Position(offset=7)}

    def look(self) -> tuple[int, dict[int, Position]]:
        return 12, dict(self.positions)


def test_positions_are_reported_until_acknowledged_and_on_change() -> None:
    metrics, place = EndpointMetrics("reader"), Place()
    takes = {"positions"}
    assert metrics.heartbeat_fields(takes)[1] is None
    metrics.observe(place.look)
    reported = {0: (5, 2), 2: (7, 0)}
    assert metrics.heartbeat_fields(takes)[1] == reported
    # Without a response it is sent again.
    assert metrics.heartbeat_fields(takes)[1] == reported
    metrics.mark_delivered()
    assert metrics.heartbeat_fields(takes) == ({"records": 12, "receivedRecordCount": 12}, None)
    place.positions = {0: Position(offset=5, records=3)}
    assert metrics.heartbeat_fields(takes)[1] == {0: (5, 3)}
    metrics.mark_delivered()
    place.positions = {0: Position(offset=6)}
    assert metrics.heartbeat_fields(takes, final=True)[1] == {0: (6, 0)}


def test_metrics_keep_no_endpoint_alive_and_have_its_last_position() -> None:
    metrics, place = EndpointMetrics("reader"), Place()
    metrics.observe(place.look)
    metrics.mark_delivered()
    assert metrics.heartbeat_fields(())[0]["records"] == 12
    gone = weakref.ref(place)
    del place
    assert gone() is None
    assert metrics.heartbeat_fields({"positions"})[1] == {0: (5, 2), 2: (7, 0)}


def test_an_older_gateway_gets_no_unknown_fields() -> None:
    metrics, place = EndpointMetrics("reader"), Place()
    metrics.observe(place.look)
    last = metrics.heartbeat_fields((), final=True)
    assert metrics.heartbeat_fields(()) == last == (metrics.counters(), None)
