"""Invalid requests to ledgers are refused with advice, and change nothing."""

from typing import Any

import pytest

from gateways import SCHEMA, Rig, code
from ledger_sites import LedgerSite
from sluiceway.api.ledger import manifest_digest
from sluiceway_gateway.channels.model import Phase


@pytest.mark.parametrize(
    ("manifest", "status", "expected", "words"),
    [
        ({0: [(5, 5)]}, 422, "invalid_manifest", "holds no offsets"),
        ({0: [(9, 5)]}, 422, "invalid_manifest", "holds no offsets"),
        ({0: [(0, 10), (5, 12)]}, 422, "invalid_manifest", "overlap"),
        ({0: [(10, 12), (0, 5)]}, 422, "invalid_manifest", "not sorted"),
        ({0: [(8, 12)]}, 409, "manifest_conflict", "begins at 10"),
        ({0: [(990, 1001)]}, 409, "beyond_watermark", "watermark is 1000"),
        ({4: [(0, 5)]}, 409, "unknown_partition", "opened without partition 4"),
        ({0: [(at, at + 1) for at in range(0, 20_002, 2)]}, 422, "invalid_manifest", "slices"),
    ],
)
def test_a_bad_manifest_is_refused_with_a_reason(
    ledger: LedgerSite, manifest: Any, status: int, expected: str, words: str
) -> None:
    ledger.commit(ledger.open("before"), {0: [(0, 10)]})
    batch = ledger.open()
    before = ledger.committed()
    response = ledger.post_commit(batch, manifest)
    assert (response.status_code, code(response)) == (status, expected)
    assert words in response.json()["detail"]
    assert ledger.committed() == before
    ledger.commit(batch, {0: [(10, 20)]})


def test_offsets_of_another_batch_are_refused(ledger: LedgerSite) -> None:
    slow, quick = ledger.open("slow", "one"), ledger.open("quick", "two")
    ledger.commit(quick, {0: [(5, 10)]})
    response = ledger.post_commit(slow, {0: [(0, 6)]})
    assert (response.status_code, code(response)) == (409, "manifest_conflict")
    assert not response.json()["retriable"]
    assert ledger.commit(slow, {0: [(0, 5)]})["stable"]["0"] == 10


@pytest.mark.sample
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": "0" * 64}, "digest"),
        ({"records": 4}, "counts"),
        ({"counts": {"1": 5}}, "counts"),
        ({"counts": {}}, "counts"),
    ],
)
def test_a_commit_that_contradicts_itself_is_refused(
    ledger: LedgerSite, change: dict[str, Any], words: str
) -> None:
    response = ledger.post_commit(ledger.open(), {0: [(0, 5)]}, **change)
    assert (response.status_code, code(response)) == (422, "invalid_manifest")
    assert words in response.json()["detail"]


def test_a_key_belongs_to_its_owner(ledger: LedgerSite) -> None:
    ledger.commit(ledger.open("k1", "one"), {0: [(0, 10)]})
    response = ledger.post_open("k1", "two")
    assert (response.status_code, code(response)) == (409, "batch_key_taken")


def test_only_the_instance_that_opened_a_batch_ends_it(ledger: LedgerSite) -> None:
    batch = ledger.open()
    assert code(ledger.post_commit(batch, {0: [(0, 5)]}, instance="run-2")) == "batch_fenced"
    assert code(ledger.post_abort(batch, "run-2")) == "batch_fenced"
    path = f"{ledger.path}/batches/{batch['id']}/manifest/0"
    body = {"uid": ledger.uid, "instance": "run-2", "manifest": {"0": [[0, 5]]}}
    assert code(ledger.rig.http.put(path, json=body)) == "batch_fenced"


@pytest.mark.long
def test_a_batch_below_the_highest_committed_one_is_refused(ledger: LedgerSite) -> None:
    ledger.commit(ledger.open("8", "query", ordinal=8, takeover=True), {0: [(0, 5)]})
    response = ledger.post_open("7", "query", "run-2", ordinal=7, takeover=True)
    assert (response.status_code, code(response)) == (409, "stale_batch")
    assert "checkpoint" in response.json()["detail"]
    again = ledger.open("8", "query", "run-2", ordinal=8, takeover=True)
    assert again["state"] == "committed"


def test_a_batch_of_another_channel_or_time_is_not_found(ledger: LedgerSite) -> None:
    strange = {"id": "0" * 32}
    assert code(ledger.post_commit(strange, {})) == "batch_not_found"
    assert code(ledger.post_abort(strange)) == "batch_not_found"
    other = {"key": "k", "owner": "o", "instance": "i", "uid": "0" * 32}
    response = ledger.rig.http.post(f"{ledger.path}/batches", json=other)
    assert (response.status_code, code(response)) == (409, "uid_mismatch")
    assert code(ledger.rig.http.post("/v1/channels/none/batches", json=other)) == (
        "channel_not_found"
    )


@pytest.mark.sample
@pytest.mark.parametrize(
    "change",
    [
        {"key": ""},
        {"key": "k" * 201},
        {"owner": ""},
        {"instance": "i" * 201},
        {"ordinal": -1},
        {"lease_ms": 1},
        {"lease_ms": 3_600_001},
        {"partitions": []},
        {"partitions": [0, 0]},
        {"partitions": [10_000]},
        {"unknown": 1},
    ],
)
def test_a_malformed_opening_is_refused(ledger: LedgerSite, change: dict[str, Any]) -> None:
    request_body = {"key": "k", "owner": "o", "instance": "i"}
    response = ledger.post("batches", **(request_body | change))
    assert (response.status_code, code(response)) == (422, "invalid_request")


def test_unknown_partitions_are_refused(ledger: LedgerSite) -> None:
    assert code(ledger.post_open(partitions=[4])) == "unknown_partition"


@pytest.mark.parametrize("start", ["", "0", "0:", ":1", "0:1,0:2", "0:-1", "a:1", f"0:{2**63}"])
def test_malformed_starts_are_refused(ledger: LedgerSite, start: str) -> None:
    response = ledger.get_committed(**{"from": start})
    assert (response.status_code, code(response)) == (422, "invalid_request")


def test_a_channel_with_at_least_once_delivery_has_no_batches(rig: Rig) -> None:
    uid = rig.put().json()["metadata"]["uid"]
    rig.observe("flights", Phase.READY)
    request_body = {"uid": uid, "key": "k", "owner": "o", "instance": "i"}
    for response in (
        rig.http.post("/v1/channels/flights/batches", json=request_body),
        rig.http.get("/v1/channels/flights/committed", params={"uid": uid}),
        rig.http.get("/v1/channels/flights/commits"),
    ):
        assert (response.status_code, code(response)) == (409, "no_ledger")
        assert "exactly_once" in response.json()["detail"]


def test_a_channel_without_a_topic_has_no_batches_yet(rig: Rig) -> None:
    uid = rig.put(delivery="exactly_once").json()["metadata"]["uid"]
    request_body = {"uid": uid, "key": "k", "owner": "o", "instance": "i"}
    response = rig.http.post("/v1/channels/flights/batches", json=request_body)
    assert (response.status_code, code(response)) == (409, "channel_not_ready")
    body = {"uid": uid, "instance": "i", "digest": manifest_digest({}), "records": 0, "counts": {}}
    response = rig.http.post(f"/v1/channels/flights/batches/{'0' * 32}/commit", json=body)
    assert code(response) in ("batch_not_found", "channel_not_ready")
    assert rig.put("other", schema=SCHEMA).status_code == 201


def test_batches_need_the_scope_write_and_reads_any(ledger: LedgerSite) -> None:
    reader = ledger.rig.token("read:flights")
    writer = ledger.rig.token("write:flights", label="w")
    other = ledger.rig.token("write:others", label="o")
    request_body = {"uid": ledger.uid, "key": "k", "owner": "o", "instance": "i"}
    http, path = ledger.rig.http, ledger.path
    for header in (reader, other):
        assert code(http.post(f"{path}/batches", json=request_body, headers=header)) == "forbidden"
    opened = http.post(f"{path}/batches", json=request_body, headers=writer).json()
    body = {"uid": ledger.uid, "instance": None, "cause": "c"}
    abort = f"{path}/batches/{opened['id']}/abort"
    colleague = ledger.rig.token("write:flights", label="c")
    assert code(http.post(abort, json=body, headers=colleague)) == "forbidden"
    for header in (reader, writer):
        read = http.get(f"{path}/committed", params={"uid": ledger.uid}, headers=header)
        assert read.status_code == 200
    assert code(http.get(f"{path}/commits", headers=other)) == "forbidden"
    owner = ledger.rig.token("manage", label="m")
    assert http.post(abort, json=body, headers=owner).json()["state"] == "aborted"
