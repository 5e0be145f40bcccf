"""Commits of readers without membership, for partitions that they choose."""

from typing import Any

import httpx
import pytest

from endpoints import Site, fresh_id, site
from gateways import TOPIC_ID, Rig, code

Place = tuple[int, int, int]


@pytest.fixture
def flights(shared_rig: Rig) -> Site:
    return site(shared_rig, f"flights-{fresh_id()}", partitions=4)


def listed(*places: Place) -> list[dict[str, int]]:
    return [{"partition": p, "offset": offset, "record": record} for p, offset, record in places]


def advance(
    flights: Site,
    *places: Place,
    before: tuple[Place, ...] = (),
    group: str = "g",
    body: dict[str, Any] | None = None,
) -> httpx.Response:
    content = {"uid": flights.uid, "topic_id": TOPIC_ID, "positions": listed(*places)}
    content |= {"before": listed(*before)} | (body or {})
    return flights.rig.http.post(f"{flights.offsets_path(group)}/advance", json=content)


def test_advancing_continues_at_the_committed_positions(flights: Site) -> None:
    first = advance(flights, (0, 5, 0), (2, 7, 3))
    assert first.status_code == 200, first.text
    assert [position["offset"] for position in first.json()["positions"]] == [5, 7]
    assert advance(flights, (0, 9, 0), before=((0, 5, 0),)).status_code == 200
    assert flights.committed() == [(0, 9, 0), (2, 7, 3)]


def test_repeated_and_late_advances_change_nothing(flights: Site) -> None:
    advance(flights, (0, 5, 0))
    assert advance(flights, (0, 5, 0)).status_code == 200
    advance(flights, (0, 9, 0), before=((0, 5, 0),))
    assert code(advance(flights, (0, 5, 0))) == "position_moved"
    assert flights.committed() == [(0, 9, 0)]


def test_of_two_readers_of_one_partition_the_second_is_refused(flights: Site) -> None:
    advance(flights, (0, 5, 0), (1, 5, 0))
    assert advance(flights, (0, 8, 0), before=((0, 5, 0),)).status_code == 200
    both = advance(flights, (0, 9, 0), (1, 9, 0), before=((0, 5, 0), (1, 5, 0)))
    assert (both.status_code, code(both)) == (409, "position_moved")
    assert flights.committed() == [(0, 8, 0), (1, 5, 0)]


@pytest.mark.sample
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"uid": "0" * 32}, "uid_mismatch"),
        ({"topic_id": "another"}, "topic_changed"),
        ({"positions": listed((4, 1, 0))}, "not_assigned"),
        ({"positions": listed((0, 4, 0)), "before": listed((0, 5, 0))}, "goes_back"),
        ({"positions": []}, "invalid_request"),
        ({"before": listed((0, 5, 0), (0, 6, 0))}, "invalid_request"),
        ({"positions": listed((0, -1, 0))}, "invalid_request"),
    ],
    ids=str,
)
def test_invalid_advances_change_nothing(flights: Site, body: dict[str, Any], problem: str) -> None:
    advance(flights, (0, 5, 0))
    assert code(advance(flights, (0, 6, 0), before=((0, 5, 0),), body=body)) == problem
    assert flights.committed() == [(0, 5, 0)]


def test_only_members_commit_for_a_live_group(flights: Site) -> None:
    advance(flights, (0, 5, 0), group="d")
    member = flights.join("d")
    assert code(advance(flights, (0, 6, 0), before=((0, 5, 0),), group="d")) == "members_open"
    shared = flights.sync(member, take=flights.sync(member).json()["generation"]).json()
    assert [position["offset"] for position in shared["positions"]] == [5]
    flights.detach(member)
    assert advance(flights, (0, 6, 0), before=((0, 5, 0),), group="d").status_code == 200


def test_positions_of_a_broadcast_group_belong_to_its_members(flights: Site) -> None:
    flights.detach(flights.member(0, 1, mode="broadcast"))
    assert code(advance(flights, (0, 5, 0))) == "group_mode"


def test_advancing_needs_the_read_scope(rig: Rig) -> None:
    mine = site(rig)
    content = {"uid": mine.uid, "topic_id": TOPIC_ID, "positions": listed((0, 5, 0)), "before": []}
    path = f"{mine.offsets_path('g')}/advance"
    for scope, status in (("write", 403), ("read:other", 403), ("read", 200)):
        response = rig.http.post(path, json=content, headers=rig.token(scope))
        assert response.status_code == status, response.text
