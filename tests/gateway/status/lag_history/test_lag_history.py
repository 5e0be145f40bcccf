"""`GET /v1/channels/{name}/history` over HTTP."""

from datetime import timedelta
from typing import Any

import httpx
import pytest

from endpoints import Site, site
from gateways import Rig, code
from sluiceway_gateway.status.lag_history import store
from sluiceway_gateway.status.lag_history.model import FINEST, GroupPoint, HistoryPoint
from sluiceway_gateway.status.lag_history.store import PointWrite

PATH = "/v1/channels/flights/history"


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig)


def record(flights: Site, write_rate: float | None = None, **lags: int | None) -> None:
    """Write a point at the current time, ten seconds after the previous one."""
    at_s = FINEST.start(flights.rig.clock().timestamp())
    groups = {
        name.removeprefix("_"): GroupPoint(
            lag_messages=lag,
            lag_seconds=None if lag is None else 2.5,
            lag_seconds_at_least=lag is not None,
            read_rate=None,
        )
        for name, lag in lags.items()
    }
    point = HistoryPoint(at_s=at_s, write_rate=write_rate, groups=groups)
    with flights.rig.database.write() as tx:
        store.write(tx, [PointWrite(channel_uid=flights.uid, point=point, previous_s=None)])
    flights.rig.clock.advance(timedelta(seconds=10))


def get(rig: Rig, **query: Any) -> httpx.Response:
    return rig.http.get(PATH, params=query)


def test_the_history_has_the_rates_and_lags_of_each_group(flights: Site) -> None:
    record(flights, 1.5, a=4, _=7)
    record(flights, None, a=None)
    response = get(flights.rig, since="2029-12-31T23:50:00Z").json()
    assert response == {
        "channel": {"name": "flights", "uid": flights.uid},
        "since": "2029-12-31T23:50:00.000Z",
        "until": "2030-01-01T00:00:20.000Z",
        "step_s": 10,
        "times": ["2030-01-01T00:00:00.000Z", "2030-01-01T00:00:10.000Z"],
        "write_rate": [1.5, None],
        "groups": [
            {
                "group": None,
                "lag_messages": [7, None],
                "lag_seconds": [2.5, None],
                "lag_seconds_at_least": [True, False],
                "read_rate": [None, None],
            },
            {
                "group": "a",
                "lag_messages": [4, None],
                "lag_seconds": [2.5, None],
                "lag_seconds_at_least": [True, False],
                "read_rate": [None, None],
            },
        ],
    }


def test_a_channel_without_samples_has_an_empty_history_of_the_last_hour(flights: Site) -> None:
    response = get(flights.rig).json()
    assert (response["times"], response["write_rate"], response["groups"]) == ([], [], [])
    assert response["since"] == "2029-12-31T23:00:00.000Z"
    assert response["step_s"] == 60


def test_times_have_any_zone(flights: Site) -> None:
    for lag in range(6):
        record(flights, a=lag)
    response = get(flights.rig, since="2030-01-01T01:00:20+01:00", until="2030-01-01T00:00:40Z")
    assert response.json()["groups"][0]["lag_messages"] == [2, 3, 4]


def test_a_group_is_selected_by_name(flights: Site) -> None:
    record(flights, a=1, b=2)
    groups = get(flights.rig, group="b").json()["groups"]
    assert [(group["group"], group["lag_messages"]) for group in groups] == [("b", [2])]
    assert get(flights.rig, group="c").json()["groups"] == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"since": "2030-01-01T00:00:00"}, "a time without a time zone; add one, such as Z"),
        ({"since": "1893456020"}, "not a time in ISO 8601"),
        ({"since": "yesterday"}, "query:since"),
        ({"since": "2031-01-01T00:00:00Z"}, "it is after the end, 2030-01-01"),
        ({"until": "2029-01-01T00:00:00Z", "since": "2029-01-02T00:00:00Z"}, "after the end"),
        ({"group": ""}, "query:group"),
        ({"step": "5"}, "step"),
    ],
)
def test_invalid_parameters_are_refused_with_a_reason(
    flights: Site, query: dict[str, str], message: str
) -> None:
    response = get(flights.rig, **query)
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert message in response.text


@pytest.mark.sample
@pytest.mark.parametrize(
    "until",
    [
        *("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00"),
        *("9999-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00"),
    ],
)
def test_every_valid_time_gets_a_response(flights: Site, until: str) -> None:
    record(flights, a=1)
    assert get(flights.rig, until=until).status_code == 200


def test_the_history_needs_the_view_scope(flights: Site) -> None:
    other, own = flights.rig.token("read:weather"), flights.rig.token("read:flights")
    assert get(flights.rig).status_code == 401
    assert code(flights.rig.http.get(PATH, headers=other)) == "forbidden"
    assert flights.rig.http.get(PATH, headers=own).status_code == 200
    absent = flights.rig.http.get("/v1/channels/flights-2/history", headers=own)
    assert code(absent) == "channel_not_found"
