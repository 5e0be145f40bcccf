from datetime import timedelta

from gateways import Rig, code
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.provisioning.store import remove


def test_deleting_needs_the_uid(rig: Rig) -> None:
    rig.put()
    response = rig.http.delete("/v1/channels/flights")
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert response.json()["errors"] == [
        {"pointer": "query:uid", "message": "needed, and not given"}
    ]


def test_a_deleted_channel_is_deleting_and_repeats_return_the_same(rig: Rig) -> None:
    uid = rig.put().json()["metadata"]["uid"]
    rig.observe("flights", Phase.READY)
    responses = [rig.http.delete("/v1/channels/flights", params={"uid": uid}) for _ in range(2)]
    for response in responses:
        assert response.status_code == 202
        assert response.json()["status"]["phase"] == "deleting"
    assert responses[0].json() == responses[1].json()

    with rig.database.write() as tx:
        assert remove(tx, uid)
    gone = rig.http.delete("/v1/channels/flights", params={"uid": uid})
    assert (gone.status_code, code(gone)) == (404, "channel_not_found")


def test_a_late_delete_never_hits_a_newer_channel(rig: Rig) -> None:
    uid = rig.put().json()["metadata"]["uid"]
    rig.http.delete("/v1/channels/flights", params={"uid": uid})
    with rig.database.write() as tx:
        assert remove(tx, uid)
    younger = rig.put().json()
    assert younger["metadata"]["uid"] != uid
    assert younger["status"]["topic"]["name"] != f"sluiceway.flights-{uid[:8]}"
    late = rig.http.delete("/v1/channels/flights", params={"uid": uid})
    assert (late.status_code, code(late)) == (409, "uid_mismatch")
    assert rig.http.get("/v1/channels/flights").json() == younger


def test_keep_topic_keeps_the_topic_and_is_final(rig: Rig) -> None:
    uid = rig.put().json()["metadata"]["uid"]
    kept = rig.http.delete("/v1/channels/flights", params={"uid": uid, "topic": "keep"})
    (ready, _synced) = kept.json()["status"]["conditions"]
    assert (ready["reason"], "without its topic" in ready["message"]) == ("Deleting", True)
    other = rig.http.delete("/v1/channels/flights", params={"uid": uid})
    assert (other.status_code, code(other)) == (409, "channel_deleting")
    odd = rig.http.delete("/v1/channels/flights", params={"uid": uid, "topic": "kepe"})
    assert odd.status_code == 422


def test_if_match_guards_a_deletion(rig: Rig) -> None:
    made = rig.put()
    rig.put(partitions=2)
    uid = made.json()["metadata"]["uid"]
    path = f"/v1/channels/flights?uid={uid}"
    old = rig.http.delete(path, headers={"If-Match": made.headers["etag"]})
    assert (old.status_code, code(old)) == (412, "precondition_failed")
    now = rig.http.get("/v1/channels/flights").headers["etag"]
    assert rig.http.delete(path, headers={"If-Match": now}).status_code == 202


def test_a_condition_has_its_transition_time(rig: Rig) -> None:
    uid = rig.put().json()["metadata"]["uid"]
    rig.observe("flights", Phase.READY, conditions=())
    rig.clock.advance(timedelta(seconds=90))
    response = rig.http.delete("/v1/channels/flights", params={"uid": uid})
    (ready,) = response.json()["status"]["conditions"]
    assert ready["last_transition_at"] == "2030-01-01T00:01:30.000Z"
