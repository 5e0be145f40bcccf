from typing import Any

import pytest

from endpoints import Site, fresh_id, site
from gateways import TOPIC_ID, code


def test_a_commit_is_stored_and_returned_to_the_next_instance(flights: Site) -> None:
    reader = flights.member(1, 2)
    response = flights.commit(reader, 1, (1, 120, 0), (3, 7, 5))
    assert response.status_code == 200, response.text
    body = response.json()
    at = body["positions"][0]["committed_at"]
    assert body == {
        "group": "g",
        "mode": "shared",
        "size": 2,
        "dynamic": False,
        "generation": 1,
        "epoch": 1,
        "number": 1,
        "positions": [
            {
                "partition": partition,
                "offset": offset,
                "record": record,
                "topic_id": TOPIC_ID,
                "index": None,
                "epoch": 1,
                "number": 1,
                "committed_at": at,
            }
            for partition, offset, record in ((1, 120, 0), (3, 7, 5))
        ],
    }
    fetched = flights.rig.http.get(flights.offsets_path("g")).json()
    assert fetched["resets"] == []
    assert fetched["positions"] == body["positions"]
    again = flights.post_attach(group="g", index=1, size=2).json()
    assert again["positions"] == [
        {"partition": 1, "offset": 120, "record": 0, "topic_id": TOPIC_ID},
        {"partition": 3, "offset": 7, "record": 5, "topic_id": TOPIC_ID},
    ]
    assert flights.post_attach(group="g", index=0, size=2).json()["positions"] == []


def test_metadata_is_stored_until_the_next_commit(flights: Site) -> None:
    reader = flights.member()
    text = "é" * 4096
    described = [{"partition": 0, "offset": 5, "record": 0, "metadata": text}]
    response = flights.commit(reader, 1, positions=described).json()
    assert response["positions"][0]["metadata"] == text
    fetched = flights.rig.http.get(flights.offsets_path("g")).json()
    assert fetched["positions"] == response["positions"]
    assert "metadata" not in flights.commit(reader, 2, (0, 6, 0)).json()["positions"][0]
    described[0]["metadata"] = text + "!"
    assert flights.commit(reader, 3, positions=described).status_code == 422


@pytest.mark.long
def test_a_repeated_and_a_late_commit_change_nothing(flights: Site) -> None:
    reader = flights.member()
    first = flights.commit(reader, 1, (0, 5, 0))
    assert flights.commit(reader, 1, (0, 5, 0)).json() == first.json()
    flights.commit(reader, 7, (0, 9, 2))
    late = flights.commit(reader, 3, (0, 6, 0))
    assert (late.status_code, late.json()["number"]) == (200, 7)
    assert [position["offset"] for position in late.json()["positions"]] == [9]
    assert flights.committed() == [(0, 9, 2)]


def test_a_commit_is_atomic(flights: Site) -> None:
    reader = flights.member(0, 2)
    flights.commit(reader, 1, (2, 5, 3))
    for wrong, problem in (
        ((1, 9, 0), "not_assigned"),
        ((4, 9, 0), "not_assigned"),
        ((2, 5, 2), "goes_back"),
        ((2, 4, 9), "goes_back"),
    ):
        response = flights.commit(reader, 2, (0, 8, 0), wrong)
        assert (response.status_code, code(response)) == (409, problem)
    assert flights.committed() == [(2, 5, 3)]
    # The number can be used again.
    assert flights.commit(reader, 2, (0, 8, 0), (2, 5, 3)).status_code == 200
    assert flights.committed() == [(0, 8, 0), (2, 5, 3)]


def test_a_commit_of_a_superseded_reader_is_refused_even_if_repeated(flights: Site) -> None:
    old = flights.member()
    flights.commit(old, 1, (0, 5, 0))
    new = flights.member()
    for number in (1, 2):
        assert code(flights.commit(old, number, (0, 9, 0))) == "fenced"
    assert flights.commit(new, 1, (0, 6, 0)).status_code == 200
    assert flights.committed() == [(0, 6, 0)]


def test_a_commit_for_another_channel_than_its_path_is_refused(flights: Site) -> None:
    other = site(flights.rig, "departures", partitions=4)
    reader = flights.member()
    other.uid, uid = flights.uid, other.uid
    assert code(other.commit(reader, 1, (0, 5, 0))) == "uid_mismatch"
    other.uid = uid
    assert code(other.commit(reader, 1, (0, 5, 0))) == "endpoint_not_found"


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"epoch": None}, "/epoch"),
        ({"generation": 0}, "/generation"),
        ({"number": 0}, "/number"),
        ({"number": 2**63}, "/number"),
        ({"topic_id": ""}, "/topic_id"),
        ({"positions": []}, "/positions"),
        ({"positions": None}, "/positions"),
        ({"positions": [{"partition": 0, "offset": -1, "record": 0}]}, "/positions/0/offset"),
        ({"positions": [{"partition": 0, "offset": 2**63, "record": 0}]}, "/positions/0/offset"),
        ({"positions": [{"partition": -1, "offset": 1, "record": 0}]}, "/positions/0/partition"),
        ({"positions": [{"partition": 2**31, "offset": 1, "record": 0}]}, "/positions/0/partition"),
        ({"positions": [{"partition": 0, "offset": 1, "record": 2**31}]}, "/positions/0/record"),
        ({"positions": [{"partition": 0, "offset": 1}]}, "/positions/0/record"),
        ({"positions": [{"partition": 0, "offset": 1, "record": 0}] * 2}, "/positions"),
        ({"force": True}, "/force"),
    ],
    ids=lambda parameter: str(parameter)[:60],
)
def test_an_invalid_field_of_a_commit_is_named(
    flights: Site, body: dict[str, Any], pointer: str
) -> None:
    reader = flights.member()
    sound = {"number": 1, "positions": [{"partition": 0, "offset": 1, "record": 0}]}
    response = flights.commit(reader, **(sound | body))
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    assert flights.committed() == []


def test_members_of_a_broadcast_group_have_positions_of_their_own_each(flights: Site) -> None:
    first, second = (flights.member(index, 2, mode="broadcast") for index in (0, 1))
    flights.commit(first, 1, (0, 5, 0), (1, 6, 0))
    flights.commit(second, 1, (0, 1, 0))
    assert flights.committed(index=0) == [(0, 5, 0), (1, 6, 0)]
    assert flights.committed(index=1) == [(0, 1, 0)]
    every = flights.rig.http.get(flights.offsets_path("g")).json()["positions"]
    assert [position["index"] for position in every] == [0, 0, 1]
    again = flights.post_attach(group="g", index=1, size=2, mode="broadcast").json()
    assert [position["offset"] for position in again["positions"]] == [1]
    for wrong in ({"index": 2}, {"index": -1}):
        refused = flights.rig.http.get(flights.offsets_path("g"), params=wrong)
        assert refused.status_code == 422
        assert [error["pointer"] for error in refused.json()["errors"]] == ["query:index"]


def test_an_unknown_group_has_no_offsets(flights: Site) -> None:
    flights.member(group="h", role="writer")
    for group in ("g", "h"):
        response = flights.rig.http.get(flights.offsets_path(group))
        assert (response.status_code, code(response)) == (404, "group_not_found")
        assert code(flights.reset(group=group)) == "group_not_found"
    flights.member(group="s")
    assert flights.rig.http.get(flights.offsets_path("s"), params={"index": 0}).status_code == 422


def test_a_reset_moves_an_inactive_group_and_is_recorded(flights: Site) -> None:
    reader = flights.member(0, 2)
    flights.commit(reader, 1, (0, 50, 0), (2, 60, 0))
    refused = flights.reset((0, 1, 0))
    assert (refused.status_code, code(refused)) == (409, "members_open")
    flights.detach(reader)
    body = flights.reset((0, 1, 0), reason="the delays were wrong").json()
    assert (body["generation"], body["epoch"]) == (2, 1)
    assert flights.committed() == [(0, 1, 0), (2, 60, 0)]
    (done,) = body["resets"]
    assert (done["by"], done["reason"]) == ("loopback", "the delays were wrong")
    flights.reset()
    assert flights.committed() == []
    assert len(flights.rig.http.get(flights.offsets_path("g")).json()["resets"]) == 2
    assert flights.member(0, 2)["generation"] == 3


def test_a_forced_reset_refuses_commits_of_running_members(
    flights: Site,
) -> None:
    reader = flights.member()
    flights.commit(reader, 1, (0, 50, 0))
    assert flights.reset((0, 10, 0), force=True).status_code == 200
    for number in (1, 2):
        assert code(flights.commit(reader, number, (0, 51, 0))) == "stale_generation"
    assert not flights.get(reader)["superseded"]
    new = flights.member()
    assert flights.commit(new, 1, (0, 11, 0)).status_code == 200


def test_a_reset_that_is_repeated_late_changes_nothing(flights: Site) -> None:
    flights.detach(flights.member())
    headers = {"Idempotency-Key": "once"}
    first = flights.reset((0, 10, 0), headers=headers)
    reader = flights.member()
    flights.commit(reader, 1, (0, 99, 0))
    flights.detach(reader)
    again = flights.reset((0, 10, 0), headers=headers)
    assert (again.status_code, again.json()) == (200, first.json())
    assert flights.committed() == [(0, 99, 0)]
    assert code(flights.reset((0, 10, 0), generation=1)) == "stale_generation"
    assert flights.committed() == [(0, 99, 0)]


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"topic_id": "another"}, 409, "topic_changed"),
        ({"topic_id": None}, 422, "invalid_request"),
        ({"index": 0}, 422, "invalid_request"),
        ({"reason": ""}, 422, "invalid_request"),
        ({"uid": "0" * 32}, 409, "uid_mismatch"),
        ({"positions": [{"partition": 4, "offset": 1, "record": 0}]}, 409, "not_assigned"),
        ({"positions": [{"partition": 0, "offset": -1, "record": 0}]}, 422, "invalid_request"),
    ],
    ids=str,
)
def test_an_invalid_reset_changes_nothing(
    flights: Site, body: dict[str, Any], status: int, problem: str
) -> None:
    reader = flights.member()
    flights.commit(reader, 1, (0, 50, 0))
    flights.detach(reader)
    response = flights.reset((0, 1, 0), **body)
    assert (response.status_code, code(response)) == (status, problem)
    assert flights.committed() == [(0, 50, 0)]
    assert flights.member()["generation"] == 1


def test_a_reset_of_a_broadcast_group_moves_one_member_or_clears_all(flights: Site) -> None:
    for index in (0, 1):
        member = flights.member(index, 2, mode="broadcast")
        flights.commit(member, 1, (0, 50, 0))
        flights.detach(member, "error")
    assert flights.reset((0, 1, 0)).status_code == 422
    assert flights.reset((0, 1, 0), index=1).status_code == 200
    assert (flights.committed(index=0), flights.committed(index=1)) == ([(0, 50, 0)], [(0, 1, 0)])
    assert flights.reset().status_code == 200
    assert flights.committed() == []


def test_resetting_needs_the_manage_scope_and_reading_offsets_the_view_scope(flights: Site) -> None:
    reader = flights.member()
    flights.detach(reader)
    flights.rig.http.headers.update(flights.rig.token("write"))
    assert code(flights.commit(reader, 1, (0, 1, 0))) == "forbidden"
    assert flights.committed() == []
    flights.rig.http.headers.update(flights.rig.token("read"))
    assert code(flights.reset((0, 1, 0))) == "forbidden"


def test_positions_are_deleted_with_their_channel(flights: Site) -> None:
    from sluiceway_gateway.channels.model import Phase
    from sluiceway_gateway.provisioning.store import remove

    reader = flights.member()
    flights.commit(reader, 1, (0, 50, 0))
    with flights.rig.database.write() as tx:
        assert remove(tx, flights.uid, from_phases=tuple(Phase))
    assert code(flights.commit(reader, 2, (0, 51, 0))) == "channel_not_found"
    again = site(flights.rig, partitions=4)
    assert code(flights.commit(reader, 2, (0, 51, 0))) == "uid_mismatch"
    again.session = fresh_id()
    assert again.post_attach(group="g", index=0, size=1).json()["positions"] == []
