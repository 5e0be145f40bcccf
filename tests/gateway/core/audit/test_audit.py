"""The audit trail: actor, time, old and new values of each change of a channel."""

from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import func, insert, select

from endpoints import site
from faults import at_statements
from gateways import SCHEMA, Rig, code
from ledger_sites import LedgerSite
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.audit.model import MAX_FIELDS
from sluiceway_gateway.core.audit.store import MAX_ENTRIES
from sluiceway_gateway.core.audit.tables import audit_entries
from sluiceway_gateway.endpoints.pruning import Pruner
from sluiceway_gateway.provisioning.store import remove


@pytest.fixture
def ops(rig: Rig) -> Rig:
    """A gateway, with a client that uses the token `ops`."""
    rig.http.headers.update(rig.token("admin", label="ops"))
    return rig


def changes(rig: Rig, name: str = "flights", **query: Any) -> list[Any]:
    response = rig.http.get(f"/v1/channels/{name}/changes", params=query)
    assert response.status_code == 200, response.text
    return list(response.json()["items"])


def fields(entry: Any) -> dict[str, tuple[Any, Any]]:
    return {field["field"]: (field["old"], field["new"]) for field in entry["fields"]}


def delete(rig: Rig, uid: str, name: str = "flights", **query: Any) -> int:
    params = {"uid": uid, "force": True, **query}
    return rig.http.delete(f"/v1/channels/{name}", params=params).status_code


def test_a_creation_records_values_that_differ_from_defaults(ops: Rig) -> None:
    made = ops.put(partitions=3, retention={"ms": 5000}, metadata={"labels": {"team": "data"}})
    (entry,) = changes(ops)
    assert (entry["action"], entry["by"]) == ("create", "ops")
    assert entry["token_id"] == ops.http.headers["Authorization"].split("_")[1]
    assert entry["uid"] == made.json()["metadata"]["uid"]
    assert entry["at"] == "2030-01-01T00:00:00.000Z"
    assert (entry["target"], entry["reason"], entry["omitted"]) == (None, None, 0)
    assert fields(entry) == {
        "labels.team": (None, "data"),
        "schema_version": (None, 1),
        "format": (None, "avro"),
        "partitions": (None, 3),
        "retention.ms": (None, 5000),
    }


def test_a_creation_records_a_retention_of_zero(ops: Rig) -> None:
    ops.put(retention={"ms": 0, "bytes": 0})
    (entry,) = changes(ops)
    assert fields(entry).items() >= {
        ("retention.ms", (None, 0)),
        ("retention.bytes", (None, 0)),
    }


@pytest.mark.long
def test_a_change_names_old_and_new_values(ops: Rig) -> None:
    ops.put(metadata={"labels": {"team": "data", "stage": "test"}})
    ops.clock.advance(60)
    wider = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "b", "type": "long", "default": 7}]}
    config = {"max.message.bytes": "2000000"}
    ops.put(schema=wider, config=config, metadata={"labels": {"team": "ops"}})
    entry, _ = changes(ops)
    assert (entry["action"], entry["at"]) == ("update", "2030-01-01T00:01:00.000Z")
    assert fields(entry) == {
        "labels.team": ("data", "ops"),
        "labels.stage": ("test", None),
        "schema_version": (1, 2),
        "config.max.message.bytes": (None, "2000000"),
    }


def test_a_request_without_changes_is_not_recorded(ops: Rig) -> None:
    key = {"Idempotency-Key": "once"}
    body = {"spec": {"schema": SCHEMA}}
    path = "/v1/channels/flights"
    for _ in range(2):
        assert ops.http.put(path, json=body, headers=key).status_code == 201
    ops.put()
    assert ops.http.put(f"{path}?dry_run=true", json={"spec": {"partitions": 5}}).is_success
    assert ops.put(partitions=0).status_code == 422
    (entry,) = changes(ops)
    assert delete(ops, entry["uid"], dry_run=True) == 202
    assert [change["action"] for change in changes(ops)] == ["create"]


def test_a_close_and_a_deletion_are_recorded_and_outlive_the_channel(ops: Rig) -> None:
    flights = site(ops)
    close = {"uid": flights.uid, "force": True}
    assert ops.http.post(f"{flights.path}/close", json=close).status_code == 200
    assert delete(ops, flights.uid, topic="keep") == 202
    with ops.database.write() as tx:
        remove(tx, flights.uid, from_phases=list(Phase))
    assert ops.http.get(flights.path).status_code == 404
    deleted, closed, _ = changes(ops)
    assert (closed["action"], fields(closed)) == ("close", {"phase": ("ready", "closed")})
    assert deleted["action"] == "delete"
    assert fields(deleted) == {"phase": ("closed", "deleting"), "keep_topic": (False, True)}
    # The next channel of that name has another uid.
    again = site(ops)
    assert [change["uid"] for change in changes(ops)] == [again.uid, *[flights.uid] * 3]


def test_a_reset_names_positions_and_reason(ops: Rig) -> None:
    flights = site(ops, partitions=2)
    reader = flights.member()
    assert flights.commit(reader, 1, (0, 7, 0), (1, 5, 3)).is_success
    assert flights.reset((0, 0, 0), reason="wrong rates", force=True).is_success
    entry, _ = changes(ops)
    assert (entry["action"], entry["target"]) == ("reset_offsets", "g")
    assert entry["reason"] == "wrong rates"
    assert fields(entry) == {"partition 0": (7, 0)}
    assert flights.reset(reason="anew", force=True).is_success
    assert fields(changes(ops)[0]) == {
        "partition 0": (0, None),
        "partition 1": ("5, record 3", None),
    }


def test_a_reset_of_many_partitions_is_shortened(ops: Rig) -> None:
    flights = site(ops, partitions=50)
    flights.detach(flights.member())
    flights.reset(*((number, 9, 0) for number in range(50)))
    entry, *_ = changes(ops)
    assert len(entry["fields"]) == MAX_FIELDS
    assert entry["omitted"] == 50 - MAX_FIELDS


def test_a_dismissal_and_a_resize_are_recorded(ops: Rig) -> None:
    flights = site(ops, partitions=2)
    writer = flights.member(role="writer", group="loader")
    assert flights.detach(writer, "error", cause="full disk", ends={}).is_success
    flights.member()
    for _ in range(2):
        assert flights.resize(2, 1).is_success
        path = f"{flights.path}/endpoints/{writer['id']}?uid={flights.uid}"
        assert ops.http.delete(path).status_code == 200
    dismissed, resized, _ = changes(ops)
    assert (dismissed["action"], dismissed["target"]) == ("dismiss_endpoint", writer["id"])
    assert fields(dismissed) == {"writer loader[0]": ("error, healthy", "dismissed")}
    assert (resized["action"], resized["target"]) == ("resize_group", "g")
    assert fields(resized) == {"size": (1, 2)}


def test_an_abort_of_anothers_batch_is_recorded(ledger: LedgerSite) -> None:
    own, other = ledger.open("own"), ledger.open("other", "two")
    assert ledger.post_abort(own).is_success
    assert ledger.post_abort(other, None).is_success
    assert ledger.post_abort(other, None).is_success
    aborted, *others = changes(ledger.rig, ledger.name)
    assert (aborted["action"], aborted["target"]) == ("abort_batch", "other")
    assert (aborted["by"], aborted["token_id"], aborted["reason"]) == ("loopback", None, "a test")
    assert fields(aborted) == {"batch of two": ("open", "aborted")}
    assert "abort_batch" not in {change["action"] for change in others}


def test_changes_are_paged_from_the_last_one(ops: Rig) -> None:
    for number in range(5):
        ops.put(idle_ms=60_000 + number)
    whole = changes(ops)
    assert [change["action"] for change in whole] == [*["update"] * 4, "create"]
    paged_changes, query = [], {"limit": 2}
    while True:
        page = ops.http.get("/v1/channels/flights/changes", params=query).json()
        paged_changes += page["items"]
        if page["next_before"] is None:
            break
        query["before"] = page["next_before"]
    assert paged_changes == whole


def test_changes_need_the_view_scope(ops: Rig) -> None:
    ops.put("flights")
    path = "/v1/channels/flights/changes"
    assert ops.http.get(path, headers=ops.token("read:fl")).status_code == 200
    refused = ops.http.get(path, headers=ops.token("read:weather"))
    assert (refused.status_code, code(refused)) == (403, "forbidden")
    unknown = ops.http.get("/v1/channels/never/changes")
    assert (unknown.status_code, code(unknown)) == (404, "channel_not_found")


def test_a_change_that_fails_leaves_no_entry(ops: Rig) -> None:
    ops.put()
    fail = Mock(side_effect=RuntimeError("a defect"))
    with at_statements(ops.app.state.parts.database, "INSERT INTO audit_entries", fail):
        assert ops.put(partitions=5).status_code == 500
    assert len(changes(ops)) == 1
    assert ops.http.get("/v1/channels/flights").json()["spec"]["partitions"] == 1


def test_entries_are_bounded_by_number(ops: Rig) -> None:
    ops.put("weather")
    uid = ops.put().json()["metadata"]["uid"]
    entry = {
        "channel": "flights",
        "channel_uid": uid,
        "at": ops.clock(),
        "by": "ops",
        "action": "update",
        "fields": [],
        "omitted": 0,
    }
    with ops.database.write() as tx:
        tx.execute(insert(audit_entries), [entry] * MAX_ENTRIES)
    for number in range(3):
        ops.put(idle_ms=60_000 + number)
    with ops.database.read() as tx:
        of_name = audit_entries.c.channel == "flights"
        count = select(func.count()).select_from(audit_entries).where(of_name)
        assert tx.execute(count).scalar_one() == MAX_ENTRIES
    newest = changes(ops, limit=4)
    assert [fields(change).get("idle_ms", (0, 0))[1] for change in newest] == [
        *(60_002, 60_001, 60_000, 0)
    ]
    assert len(changes(ops, "weather")) == 1


def test_entries_are_bounded_by_age(ops: Rig) -> None:
    for name in ("weather", "flights"):
        ops.put(name)
    pruner = Pruner(database=ops.database, days=30, clock=ops.clock)
    ops.clock.advance(timedelta(days=29))
    ops.put(idle_ms=60_000)
    assert pruner.run_once().audited == 0
    ops.clock.advance(timedelta(days=2))
    assert pruner.run_once().audited == 2
    assert [change["action"] for change in changes(ops)] == ["update"]
    assert changes(ops, "weather") == []


def test_a_group_that_grows_the_channel_is_named(ops: Rig) -> None:
    flights = site(ops, partitions=2)
    assert flights.post_attach(group="loads", index=0, size=5).status_code == 409
    assert flights.post_attach(group="loads", index=1, size=5).status_code == 409
    entry, _creation = changes(ops)
    assert (entry["action"], entry["by"], entry["target"]) == ("update", "ops", "loads")
    assert entry["reason"] == "the group has 5 members"
    assert fields(entry) == {"partitions": (2, 5)}
