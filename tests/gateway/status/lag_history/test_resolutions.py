"""The lag history in the database, with a manual clock: resolutions, restarts and replicas."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from endpoints import Site, site
from gateways import Rig
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.provisioning.store import remove
from sluiceway_gateway.status.lag_history import store
from sluiceway_gateway.status.lag_history.model import FINEST, RESOLUTIONS, GroupPoint, HistoryPoint
from sluiceway_gateway.status.lag_history.store import PointWrite
from sluiceway_gateway.status.tables import lag_history


class Recorder:
    """Writes points of channels as one replica's sampler does."""

    def __init__(self, *sites: Site) -> None:
        self.sites = sites
        self.rig = sites[0].rig
        self.previous_s: int | None = None

    def record(self, lag: int, *, after_s: float = 0) -> None:
        self.rig.clock.advance(after_s)
        at_s = FINEST.start(self.rig.clock().timestamp())
        group = GroupPoint(
            lag_messages=lag, lag_seconds=lag / 2, lag_seconds_at_least=False, read_rate=1.0
        )
        point = HistoryPoint(at_s=at_s, write_rate=float(lag), groups={"g": group})
        with self.rig.database.write() as tx:
            store.write(
                tx,
                [
                    PointWrite(channel_uid=channel.uid, point=point, previous_s=self.previous_s)
                    for channel in self.sites
                ],
            )
        self.previous_s = at_s


def history(flights: Site, **ago_s: float) -> Any:
    now = flights.rig.clock()
    query = {
        name: (now - timedelta(seconds=seconds)).isoformat() for name, seconds in ago_s.items()
    }
    response = flights.rig.http.get(f"{flights.path}/history", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def lags(response: Any) -> Any:
    (group,) = response["groups"]
    return group["lag_messages"]


def rows(flights: Site) -> dict[int, int]:
    """Return the number of the channel's rows by step."""
    table = lag_history.c
    counted = select(table.step_s, func.count().label("number")).group_by(table.step_s)
    with flights.rig.database.read() as tx:
        counts = tx.execute(counted.where(table.channel_uid == flights.uid))
        return {row.step_s: row.number for row in counts}


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig)


@pytest.mark.long
def test_a_day_is_kept_at_decreasing_resolution_in_a_bounded_number_of_rows(flights: Site) -> None:
    recorder = Recorder(flights)
    for step_s, kept_s in ((300, 26 * 3600), (60, 2 * 3600 + 600), (10, 1300)):
        for number in range(kept_s // step_s):
            recorder.record(number % 7, after_s=step_s)
    assert rows(flights) == {resolution.step_s: resolution.slots for resolution in RESOLUTIONS}
    for ago_s, step_s, count in ((900, 10, 90), (7200, 60, 120), (86_400, 300, 288)):
        body = history(flights, since=ago_s)
        assert body["step_s"] == step_s
        assert count <= len(body["times"]) <= count + 1
        assert body["times"] == sorted(set(body["times"]))
    assert len(history(flights, since=10**8)["times"]) == RESOLUTIONS[-1].slots + 1
    assert set(lags(history(flights, since=86_400))[:250]) <= set(range(7))


def test_peaks_survive_at_every_resolution(flights: Site) -> None:
    recorder = Recorder(flights)
    for number in range(60):
        recorder.record(9 if number == 25 else 1, after_s=10)
    for ago_s in (900, 3600, 86_400):
        assert max(lags(history(flights, since=ago_s))) == 9
    (group,) = history(flights, since=86_400)["groups"]
    assert max(group["lag_seconds"]) == 4.5
    assert set(group["read_rate"]) == {1.0}


def test_after_a_restart_intervals_that_ended_meanwhile_are_completed(flights: Site) -> None:
    before = Recorder(flights)
    for number in range(9):
        before.record(number, after_s=10)
    assert rows(flights) == {10: 9, 60: 1}
    after = Recorder(flights)
    after.record(50, after_s=600)
    with flights.rig.database.read() as tx:
        points = store.points(tx, flights.uid, RESOLUTIONS[1], since_s=0, until_s=2**40)
    start_s = points[60][0].at_s
    assert [(point.at_s - start_s, point.groups["g"].lag_messages) for point in points[60]] == [
        (0, 4),
        (60, 8),
    ]
    assert lags(history(flights, since=3600)) == [4, 8, 50]


def test_of_two_leaders_the_first_writes_an_interval(flights: Site) -> None:
    one, other = Recorder(flights), Recorder(flights)
    one.record(1, after_s=10)
    other.record(2, after_s=1)
    assert lags(history(flights, since=60)) == [1]


def test_a_later_interval_replaces_only_an_expired_row(flights: Site) -> None:
    recorder = Recorder(flights)
    recorder.record(1, after_s=10)
    recorder.record(2, after_s=FINEST.kept_s)
    assert rows(flights)[10] == 1
    assert lags(history(flights, since=1200)) == [2]
    # Back in time, as after the clock was set.
    recorder.record(3, after_s=-FINEST.kept_s)
    assert lags(history(flights, since=60)) == [3]


@pytest.mark.long
def test_a_channels_history_is_separate_and_deleted_with_it(rig: Rig) -> None:
    flights, weather = site(rig, "flights"), site(rig, "weather")
    Recorder(flights, weather).record(1, after_s=10)
    Recorder(weather).record(2, after_s=10)
    assert lags(history(flights, since=60)) == [1]
    assert lags(history(weather, since=60)) == [1, 2]
    with rig.database.write() as tx:
        remove(tx, weather.uid, from_phases=tuple(Phase))
    assert rows(weather) == {}
    assert rows(flights) == {10: 1}
