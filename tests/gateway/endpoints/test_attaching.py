import threading
from typing import Any

import pytest
from sqlalchemy import event

from endpoints import Site, fresh_id, report, site
from gateways import TOPIC_ID, UNREACHABLE, Rig, code
from sluiceway_gateway.channels.model import Phase


def test_attaching_returns_place_partitions_and_connection(flights: Site) -> None:
    response = flights.post_attach(group="delays", index=1, size=2)
    assert response.status_code == 201
    assert response.headers["cache-control"] == "no-store"
    body = response.json()
    attached_at = body["endpoint"].pop("attached_at")
    assert body["endpoint"] == {
        "id": body["endpoint"]["id"],
        "channel": {"name": "flights", "uid": flights.uid},
        "role": "reader",
        "group": "delays",
        "title": None,
        "index": 1,
        "size": 2,
        "mode": "shared",
        "epoch": 1,
        "generation": 1,
        "state": "opened",
        "health": "healthy",
        "superseded": False,
        "heartbeat": {"interval_ms": 2000, "timeout_ms": 120_000},
        "static_id": None,
        "spark": None,
        "cause": None,
        "changed_at": attached_at,
        "counters": {},
        "payload": None,
        "ends": None,
        "lost_at": None,
        "number": 1,
        "settled": None,
        "partitions": [1, 3],
        "took_over": False,
    }
    assert body["heartbeat"] == {"interval_ms": 2000, "timeout_ms": 120_000}
    assert body["channel_heartbeat"] == body["heartbeat"]
    assert body["positions"] == []
    assert "positions" in body["takes"]
    connection = flights.rig.http.get(f"{flights.path}/connection", params={"access": "read"})
    assert body["connection"] == connection.json()
    assert body["connection"]["kafka"] == {"bootstrap.servers": UNREACHABLE}


def test_broadcast_members_and_writers_and_ungrouped_readers_have_all_partitions(
    flights: Site,
) -> None:
    everything = [0, 1, 2, 3]
    assert flights.member(1, 3, mode="broadcast")["partitions"] == everything
    assert flights.member(1, 3, role="writer")["partitions"] == everything
    for index in (0, 1):
        alone = flights.attach()
        assert (alone["partitions"], alone["index"], alone["group"]) == (everything, index, None)


def test_a_repeated_attach_changes_nothing_however_late(flights: Site) -> None:
    request_body: dict[str, Any] = {"group": "g", "index": 0, "size": 2, "id": fresh_id()}
    first = flights.post_attach(**request_body)
    flights.member(1, 2)
    again = flights.post_attach(**request_body)
    assert (again.status_code, again.json()) == (200, first.json())
    endpoint = first.json()["endpoint"]
    flights.detach(endpoint, "error", cause="out of memory")
    late = flights.post_attach(**request_body).json()["endpoint"]
    assert (late["state"], late["epoch"]) == ("error", 1)
    alone = flights.post_attach(id=endpoint["id"][::-1])
    assert flights.post_attach(id=endpoint["id"][::-1]).json() == alone.json()
    assert len(flights.listed()) == 3


def test_a_new_instance_fences_the_old_one(flights: Site) -> None:
    old = flights.member(0, 2)
    new = flights.member(0, 2)
    assert (old["epoch"], new["epoch"]) == (1, 2)
    assert [endpoint["id"] for endpoint in flights.listed()] == [new["id"]]
    for refused in (
        flights.post_attach(id=old["id"], group="g", index=0, size=2),
        flights.detach(old),
    ):
        assert (refused.status_code, code(refused)) == (409, "fenced")
        assert not refused.json()["retriable"]
    report = flights.get(old)
    assert report["superseded"]
    assert [entry["cause"] for entry in report["events"]] == [None, f"superseded by {new['id']}"]
    assert report["events"][0]["by"] == "loopback"


@pytest.mark.long
def test_ungrouped_endpoints_fence_no_other(flights: Site) -> None:
    first, second = flights.attach("writer"), flights.attach("writer")
    assert (first["index"], second["index"]) == (0, 1)
    assert {endpoint["superseded"] for endpoint in flights.listed()} == {False}


@pytest.mark.sample
@pytest.mark.parametrize(
    "other",
    [
        {"index": 1},
        {"size": 3},
        {"group": "h"},
        {"mode": "broadcast"},
        {"role": "writer"},
        {"session": "f" * 32},
        {"group": None, "index": None, "size": None},
    ],
    ids=str,
)
def test_an_id_identifies_one_instance(flights: Site, other: dict[str, Any]) -> None:
    request_body: dict[str, Any] = {"group": "g", "index": 0, "size": 2, "id": fresh_id()}
    flights.post_attach(**request_body)
    response = flights.post_attach(**(request_body | other))
    assert (response.status_code, code(response)) == (409, "endpoint_id_reused")
    other_channel = site(flights.rig, "departures", partitions=4)
    other_channel.session = flights.session
    assert code(other_channel.post_attach(**request_body)) == "endpoint_id_reused"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"group": "g"}, ""),
        ({"index": 0}, ""),
        ({"group": "g", "size": 2}, ""),
        ({"group": "g", "index": 2, "size": 2}, ""),
        ({"group": "g", "index": -1, "size": 2}, "/index"),
        ({"group": "g", "index": 0, "size": 0}, "/size"),
        ({"group": "g", "index": 0, "size": 10_001}, "/size"),
        ({"group": "g", "index": 0.0, "size": 1}, "/index"),
        ({"group": "", "index": 0, "size": 1}, "/group"),
        ({"group": "a\nb", "index": 0, "size": 1}, "/group"),
        ({"mode": "broadcast"}, ""),
        ({"role": "writer", "group": "g", "index": 0, "size": 1, "mode": "broadcast"}, ""),
        ({"state": "started"}, "/state"),
        ({"role": "observer"}, "/role"),
        ({"id": "x"}, "/id"),
        ({"id": "A" * 32}, "/id"),
        ({"session": None}, "/session"),
        ({"uid": None}, "/uid"),
        ({"epoch": 1}, "/epoch"),
    ],
    ids=str,
)
def test_an_invalid_field_of_an_attach_is_named(
    flights: Site, body: dict[str, Any], pointer: str
) -> None:
    response = flights.post_attach(**body)
    assert (response.status_code, code(response)) == (422, "invalid_request"), response.text
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]
    assert flights.listed() == []


def test_a_live_group_keeps_its_size_and_mode(flights: Site) -> None:
    member = flights.member(0, 2)
    refused = flights.post_attach(group="g", index=0, size=3)
    assert (refused.status_code, code(refused)) == (409, "group_size")
    refused = flights.post_attach(group="g", index=0, size=2, mode="broadcast")
    assert (refused.status_code, code(refused)) == (409, "group_mode")
    assert flights.detach(member).status_code == 200
    grown = flights.member(2, 3, mode="broadcast")
    assert (grown["size"], grown["mode"], grown["generation"]) == (3, "broadcast", 2)
    assert [(endpoint["index"], endpoint["size"]) for endpoint in flights.listed()] == [
        (0, 2),
        (2, 3),
    ]


def test_a_failed_member_of_the_old_size_is_fenced_when_it_changes(flights: Site) -> None:
    failed = flights.member(3, 4)
    flights.detach(failed, "error")
    flights.member(0, 2)
    assert [endpoint["index"] for endpoint in flights.listed()] == [0]
    assert flights.get(failed)["superseded"]


@pytest.mark.long
def test_a_larger_group_grows_the_channel_and_gets_retry_after(flights: Site) -> None:
    request_body: dict[str, Any] = {"group": "g", "index": 5, "size": 6, "id": fresh_id()}
    for _ in range(2):
        response = flights.post_attach(**request_body)
        assert (response.status_code, code(response)) == (409, "channel_not_ready")
        assert response.json()["retriable"]
    channel = flights.rig.http.get(flights.path).json()
    assert (channel["spec"]["partitions"], channel["metadata"]["generation"]) == (6, 2)
    assert flights.listed() == []
    flights.rig.observe("flights", Phase.READY)
    assert flights.attach(**request_body)["partitions"] == [5]


def test_a_pinned_channel_does_not_grow(rig: Rig) -> None:
    pinned = site(rig, partitions=2, pinned=True)
    response = pinned.post_attach(group="g", index=0, size=3)
    assert (response.status_code, code(response)) == (409, "group_larger_than_pinned")
    assert pinned.member(2, 3, mode="broadcast")["partitions"] == [0, 1]
    assert rig.http.get(pinned.path).json()["spec"]["partitions"] == 2


def test_growing_up_to_max_partitions_needs_no_manage_scope(rig: Rig) -> None:
    limited = site(rig, partitions=2, max_partitions=4)
    rig.http.headers.update(rig.token("read"))
    response = limited.post_attach(group="g", index=3, size=4)
    assert (response.status_code, code(response)) == (409, "channel_not_ready")
    assert rig.http.get(limited.path).json()["spec"]["partitions"] == 4
    response = limited.post_attach(group="h", index=0, size=5)
    assert (response.status_code, code(response)) == (403, "forbidden")
    assert rig.http.get(limited.path).json()["spec"]["partitions"] == 4
    rig.http.headers.update(rig.token("read", "manage"))
    response = limited.post_attach(group="h", index=0, size=5)
    assert (response.status_code, code(response)) == (409, "channel_not_ready")
    assert rig.http.get(limited.path).json()["spec"]["partitions"] == 5


def test_each_role_needs_its_scope(flights: Site) -> None:
    for role, scope in (("reader", "write"), ("writer", "read")):
        flights.rig.http.headers.update(flights.rig.token(scope))
        assert code(flights.post_attach(role)) == "forbidden"
    flights.rig.http.headers.update(flights.rig.token("write"))
    writer = flights.attach("writer")
    flights.rig.http.headers.update(flights.rig.token("read"))
    assert code(flights.detach(writer)) == "forbidden"
    assert flights.rig.http.get(f"{flights.path}/endpoints").status_code == 200
    removed = flights.rig.http.delete(
        f"{flights.path}/endpoints/{writer['id']}", params={"uid": flights.uid}
    )
    assert code(removed) == "forbidden"


def test_an_unusable_channel_refuses_attaches(rig: Rig) -> None:
    uid = rig.put("later").json()["metadata"]["uid"]
    later = Site(rig=rig, name="later", uid=uid)
    assert code(later.post_attach()) == "channel_not_ready"
    assert code(Site(rig=rig, name="absent", uid=uid).post_attach()) == "channel_not_found"
    assert code(Site(rig=rig, name="later", uid="0" * 32).post_attach()) == "uid_mismatch"


def test_a_closed_channel_accepts_readers_and_lets_its_writers_finish(flights: Site) -> None:
    request_body = {"id": fresh_id()}
    writer = flights.attach("writer", **request_body)
    flights.rig.http.post(f"{flights.path}/close", json={"uid": flights.uid})
    assert code(flights.post_attach("writer")) == "channel_closed"
    assert flights.attach("writer", **request_body) == writer
    flights.attach("reader")
    assert flights.detach(writer, ends={"0": 7}).json()["ends"] == {"0": 7}


def test_a_deleted_channel_deletes_its_endpoints(flights: Site) -> None:
    from sluiceway_gateway.provisioning.store import remove

    member = flights.member()
    with flights.rig.database.write() as tx:
        assert remove(tx, flights.uid, from_phases=tuple(Phase))
    again = site(flights.rig)
    assert again.listed() == []
    again.session = flights.session
    old = Site(rig=flights.rig, name="flights", uid=flights.uid)
    assert code(old.post_attach(id=member["id"], group="g", index=0, size=1)) == "uid_mismatch"
    assert code(old.detach(member)) == "uid_mismatch"
    assert code(again.detach(member)) == "endpoint_not_found"
    (reply,) = again.beat(report(member))
    assert reply["status"] == "gone"


@pytest.mark.long
def test_positions_of_another_topic_are_refused(flights: Site) -> None:
    from sqlalchemy import text

    with flights.rig.database.write() as tx:
        tx.execute(
            text(
                "INSERT INTO positions VALUES (:uid, 'g', -1, 1, 5, 0, NULL, 'another', 1, 1, "
                "'2030-01-01 00:00:00+00:00')"
                if tx.dialect == "postgresql"
                else "INSERT INTO positions VALUES (:uid, 'g', -1, 1, 5, 0, NULL, 'another', 1, 1, "
                "'2030-01-01 00:00:00.000000')"
            ).bindparams(uid=flights.uid)
        )
    assert flights.member(0, 2)["partitions"] == [0, 2]
    response = flights.post_attach(group="g", index=1, size=2)
    assert (response.status_code, code(response)) == (409, "topic_changed")
    assert TOPIC_ID in response.json()["detail"]
    assert "offsets/reset" in response.json()["detail"]


def test_a_spark_job_is_shown_with_its_endpoint(flights: Site) -> None:
    job = {"application": "nightly", "query": "sums", "ui": "http://driver:4040"}
    attached = flights.attach("writer", spark=job)
    assert attached["spark"] == job
    assert flights.get(attached)["spark"] == job
    assert flights.rig.http.get(f"{flights.path}/status").json()["writers"][0]["spark"] == job
    assert flights.attach("writer", spark={"application": "nightly"})["spark"] == {
        "application": "nightly",
        "query": None,
        "ui": None,
    }
    assert flights.post_attach("writer", spark={"user": "x"}).status_code == 422
    assert flights.post_attach("writer", spark={"ui": "x" * 501}).status_code == 422


def test_once_the_thread_of_attaches_has_ended_they_are_refused_and_readiness_says_so(
    flights: Site,
) -> None:
    def end(*_: object) -> None:
        if threading.current_thread().name == "attach":
            raise SystemExit

    event.listen(flights.rig.app.state.parts.database.engine, "before_cursor_execute", end)
    for _ in range(2):
        response = flights.post_attach()
        assert (response.status_code, code(response)) == (503, "unavailable")
    ready = flights.rig.http.get("/readyz")
    assert (ready.status_code, ready.json()["loops"]["attach"]) == (503, "ThreadEnded")
    assert ready.json()["reasons"]["threads"] == "ThreadEnded"
