"""Dynamic groups over HTTP: joining, syncing, committing, leaving."""

from datetime import timedelta
from typing import Any

import pytest

from endpoints import Site, fresh_id, report, site
from gateways import Rig, code
from sluiceway_gateway.channels.model import Phase


@pytest.fixture
def flights(shared_rig: Rig) -> Site:
    return site(shared_rig, f"flights-{fresh_id()}", partitions=4)


def shares(flights: Site, *members: Any) -> list[list[int]]:
    """Sync all members in turn, and return their partitions."""
    for member in members:
        asked = flights.sync(member).json()
        has = member.get("has")
        taken = flights.sync(member, take=asked["generation"], has=has).json()
        assert taken["taken"], taken
        member["has"] = member["generation"] = taken["generation"]
    return [flights.sync(member).json()["partitions"] for member in members]


def test_members_share_partitions_and_keep_their_indexes(flights: Site) -> None:
    first = flights.join()
    assert (first["group"], first["index"], first["size"], first["partitions"]) == (
        "d",
        0,
        None,
        [],
    )
    assert shares(flights, first) == [[0, 1, 2, 3]]
    second = flights.join()
    assert second["index"] == 1
    assert shares(flights, first, second) == [[0, 2], [1, 3]]
    assert flights.detach(first).status_code == 200
    assert shares(flights, second) == [[0, 1, 2, 3]]
    third = flights.join()
    assert third["index"] == 2
    assert flights.get(second)["partitions"] == [0, 1, 2, 3]


def test_heartbeats_return_the_generation_raised_by_each_join_and_leave(
    flights: Site,
) -> None:
    def heard() -> int:
        (reply,) = flights.beat(report(first))
        return int(reply["generation"])

    first = flights.join()
    began = heard()
    second, third = flights.join(), flights.join()
    assert heard() == began + 2
    flights.detach(second)
    flights.detach(second)
    assert heard() == began + 3
    http = flights.rig.http
    for _ in range(2):
        http.delete(f"{flights.path}/endpoints/{third['id']}", params={"uid": flights.uid})
    assert heard() == began + 4
    offsets = http.get(flights.offsets_path("d")).json()
    assert (offsets["dynamic"], offsets["size"], offsets["generation"]) == (True, 1, began + 4)


def test_added_partitions_start_a_generation_and_are_in_the_replies_to_heartbeats(
    flights: Site,
) -> None:
    def heard(member: Any) -> tuple[int, int]:
        (reply,) = flights.beat(report(member))
        return reply["generation"], reply["partitions"]

    first, second = flights.join(), flights.join()
    fixed, writer = flights.attach(group="fixed", index=0, size=1), flights.attach("writer")
    assert shares(flights, first, second) == [[0, 2], [1, 3]]
    began, _ = heard(first)
    fixed_began, _ = heard(fixed)
    assert flights.rig.put(flights.name, partitions=6).status_code == 200
    flights.rig.observe(flights.name, Phase.READY)
    assert heard(first) == heard(second) == (began + 1, 6)
    assert heard(fixed) == (fixed_began, 6)
    assert heard(writer)[1] == 6
    assert shares(flights, first, second) == [[0, 2, 4], [1, 3, 5]]
    # Only added partitions start a generation.
    flights.rig.observe(flights.name, Phase.READY)
    assert heard(first) == (began + 1, 6)


def test_a_failed_member_holds_no_partitions_until_it_opens_again(flights: Site) -> None:
    first, second = flights.join(), flights.join()
    assert shares(flights, first, second) == [[0, 2], [1, 3]]
    flights.detach(second, "error", cause="out of memory")
    assert shares(flights, first) == [[0, 1, 2, 3]]
    refused = flights.sync(second)
    assert (refused.status_code, code(refused)) == (409, "illegal_transition")
    flights.beat(report(second, "started"))
    assert flights.sync(second).json()["held"] == []
    second["has"] = None
    assert shares(flights, first, second) == [[0, 2], [1, 3]]


def test_a_partition_is_pending_until_its_holder_releases_it(
    flights: Site,
) -> None:
    slow = flights.join()
    shares(flights, slow)
    new = flights.join()
    (waiting,) = shares(flights, new)
    assert waiting == []
    asked = flights.sync(new).json()
    assert (asked["index"], asked["size"], asked["total"]) == (1, 2, 4)
    assert (asked["pending"], asked["positions"]) == ([1, 3], [])
    # The member knows the generation, and commits its records.
    ahead = flights.sync(slow).json()
    assert (ahead["taken"], ahead["partitions"], ahead["held"]) == (False, [0, 2], [0, 1, 2, 3])
    refused = flights.commit(new, 1, (1, 5, 0))
    assert (refused.status_code, code(refused)) == (409, "not_assigned")
    assert flights.commit(slow, 1, (1, 7, 0), (0, 3, 0)).status_code == 200
    old = dict(slow)
    shares(flights, slow)
    for refused in (flights.commit(old, 2, (1, 8, 0)), flights.commit(old, 2, (0, 8, 0))):
        assert (refused.status_code, code(refused)) == (409, "stale_generation")
    assert code(flights.commit(slow, 2, (1, 8, 0))) == "not_assigned"
    assignment = flights.sync(new).json()
    assert (assignment["partitions"], assignment["pending"]) == ([1, 3], [])
    assert [(e["partition"], e["offset"]) for e in assignment["positions"]] == [(1, 7)]
    assert flights.commit(new, 1, (1, 9, 0)).status_code == 200
    assert flights.committed("d") == [(0, 3, 0), (1, 9, 0)]


def test_a_late_sync_changes_nothing(flights: Site) -> None:
    first, second = flights.join(), flights.join()
    shares(flights, first, second)
    generation = first["generation"]
    third = flights.join()
    for late in (
        {"take": generation, "has": None},
        {"take": generation, "has": generation},
        {"take": generation + 1, "has": generation - 1},
        {"take": generation + 2, "has": generation},
    ):
        response = flights.sync(first, **late).json()
        assert (response["taken"], response["held"]) == (False, [0, 2]), late
    assert flights.commit(first, 1, (0, 1, 0)).status_code == 200
    shares(flights, first, second, third)
    again = flights.sync(first, take=generation + 1, has=generation).json()
    assert (again["taken"], again["held"]) == (True, [0, 3])
    assert flights.sync(first, epoch=99).json()["code"] == "fenced"


def test_more_members_than_partitions_do_not_grow_the_channel(flights: Site) -> None:
    members = [flights.join() for _ in range(6)]
    assert shares(flights, *members) == [[0], [1], [2], [3], [], []]
    assert flights.rig.http.get(flights.path).json()["spec"]["partitions"] == 4


def test_member_0_of_a_dynamic_group_may_leave_first(flights: Site) -> None:
    first = flights.join()
    flights.join()
    assert flights.detach(first).status_code == 200


def test_a_forced_reset_refuses_commits_until_the_next_sync(
    flights: Site,
) -> None:
    member = flights.join()
    shares(flights, member)
    flights.commit(member, 1, (0, 9, 0))
    assert code(flights.reset((0, 2, 0), group="d")) == "members_open"
    assert flights.reset((0, 2, 0), group="d", force=True).status_code == 200
    assert code(flights.commit(member, 2, (0, 10, 0))) == "stale_generation"
    asked = flights.sync(member).json()
    assert (asked["taken"], asked["held"]) == (False, [])
    # The member does not know yet that it has no partitions.
    assert not flights.sync(member, take=asked["generation"], has=member["has"]).json()["taken"]
    member["has"] = None
    shares(flights, member)
    assert flights.commit(member, 2, (0, 10, 0)).status_code == 200


def test_a_repeated_join_is_idempotent(flights: Site) -> None:
    id_ = fresh_id()
    first = flights.join(id=id_)
    assert flights.join(id=id_) == first
    response = flights.post_attach(id=id_, group="d", index=0, size=1)
    assert (response.status_code, code(response)) == (409, "endpoint_id_reused")
    assert len(flights.listed()) == 1


def test_a_group_is_dynamic_or_of_a_fixed_size_while_a_member_lives(flights: Site) -> None:
    member, fixed = flights.join(), flights.member(0, 2)
    for asked in ({"group": "d", "index": 0, "size": 2}, {"group": "g", "dynamic": True}):
        response = flights.post_attach(**asked)
        assert (response.status_code, code(response)) == (409, "group_size")
    flights.detach(member)
    flights.detach(fixed)
    assert flights.member(1, 2, group="d")["partitions"] == [1, 3]
    joined = flights.join("g")
    assert shares(flights, joined) == [[0, 1, 2, 3]]
    assert flights.commit(joined, 1, (3, 1, 0), group="g").json().get("code") != "no_group"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"dynamic": True}, ""),
        ({"dynamic": True, "group": "d", "index": 0}, ""),
        ({"dynamic": True, "group": "d", "index": 0, "size": 1}, ""),
        ({"dynamic": True, "group": "d", "mode": "broadcast"}, ""),
        ({"dynamic": True, "group": "d", "role": "writer"}, ""),
        ({"dynamic": "yes", "group": "d"}, "/dynamic"),
    ],
    ids=str,
)
def test_invalid_dynamic_members_are_refused(
    flights: Site, body: dict[str, Any], pointer: str
) -> None:
    response = flights.post_attach(**body)
    assert (response.status_code, code(response)) == (422, "invalid_request"), response.text
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


def test_only_members_sync(flights: Site) -> None:
    assert code(flights.sync(flights.member(0, 2))) == "no_group"
    assert code(flights.sync(flights.attach())) == "no_group"
    assert code(flights.sync({"id": fresh_id(), "epoch": 1})) == "endpoint_not_found"
    member = flights.join()
    assert code(flights.sync(member, uid="0" * 32)) == "uid_mismatch"


@pytest.mark.long
def test_syncing_needs_the_scope_of_attaching(rig: Rig) -> None:
    flights = site(rig, partitions=4)
    member = flights.join()
    for scope, allowed in (("write", False), ("read", True)):
        rig.http.headers.update(rig.token(scope))
        assert (flights.sync(member).status_code == 200) == allowed
        assert (flights.resize(3, 1, group="none").status_code == 404) == allowed


def test_a_step_of_the_wall_clock_revokes_no_partitions(flights: Site) -> None:
    slow, new = flights.join(), flights.join()
    shares(flights, slow, new)
    flights.join()
    flights.rig.clock.advance(timedelta(hours=1))
    assert shares(flights, new) == [[1]]
    assert flights.commit(slow, 1, (2, 5, 0)).status_code == 200
