"""Requests to a ledger, and its responses as values."""

import hashlib
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from scripted_gateway import Script, scripted
from sluiceway.api.endpoints import Position, PositionAdvance
from sluiceway.api.ledger import (
    Batch,
    BatchRequest,
    Committed,
    Interval,
    LedgerCalls,
    manifest_digest,
    manifest_slices,
)
from sluiceway.errors import CommitUnknown, GatewayError, IncompatibleGateway, InvalidRequest

UID = "0" * 32
REQUEST = BatchRequest(channel="c", uid=UID, key="day-1", owner="job", instance="i")
OPEN: dict[str, Any] = {
    "id": "b1",
    "key": "day-1",
    "owner": "job",
    "epoch": 3,
    "state": "open",
    "begin": {"0": 12, "1": 0},
    "number": None,
    "records": None,
    "counts": None,
    "lease_until": "2026-01-02T03:04:05Z",
    "topic_id": "t",
}
COMMITTED: dict[str, Any] = {
    "id": "b1",
    "state": "committed",
    "number": 7,
    "stable": {"0": 20},
    "committed_at": "2026-01-02T03:04:05Z",
}
RUNS: dict[str, Any] = {
    "uid": UID,
    "topic_id": "t",
    "number": 7,
    "stable": {"0": 20, "1": 4},
    "visible_end": {"0": 30, "1": 4},
    "runs": {"0": [[2, 5], [9, 20]], "1": [[0, 4]]},
    "truncated": {},
    "open": [
        {
            "id": "b1",
            "key": "k",
            "owner": "o",
            "since": "2026-01-02T03:04:05Z",
            "begin": {"0": 20},
        },
    ],
    "halted": None,
}


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted() as started:
        yield started


@pytest.fixture
def calls(script: Script) -> LedgerCalls:
    transport = script.transport(timeout_s=5.0)
    return LedgerCalls(transport, sleep=script.pauses_s.append)


@pytest.fixture
def batch(script: Script, calls: LedgerCalls) -> Batch:
    script.response(200, OPEN)
    opened = calls.open(REQUEST)
    script.requests.clear()
    script.bodies.clear()
    return opened


def commit(calls: LedgerCalls, batch: Batch, **options: Any) -> Any:
    manifest = options.pop("manifest", {0: [Interval(12, 20)]})
    return calls.commit(REQUEST, batch, manifest=manifest, records=8, counts={0: 8}, **options)


def test_a_batch_is_opened_with_its_key_and_its_begin_is_read(
    script: Script, calls: LedgerCalls
) -> None:
    script.response(200, OPEN)
    batch = calls.open(REQUEST)
    assert (batch.id, batch.epoch, batch.begin) == ("b1", 3, {0: 12, 1: 0})
    assert not batch.is_committed
    assert script.bodies == [
        {
            "uid": UID,
            "key": "day-1",
            "owner": "job",
            "instance": "i",
            "takeover": False,
            "ordinal": None,
            "own_key": False,
            "lease_ms": 30_000,
        }
    ]
    assert script.requests[0][:2] == ("POST", "/v1/channels/c/batches")


def test_a_batch_can_be_pickled(batch: Batch) -> None:
    assert pickle.loads(pickle.dumps(batch)) == batch  # noqa: S301


def test_a_committed_key_answers_with_its_records_and_counts(
    script: Script, calls: LedgerCalls
) -> None:
    script.response(
        200, {**OPEN, "state": "committed", "number": 4, "records": 9, "counts": {"0": 9}}
    )
    batch = calls.open(REQUEST)
    assert batch.is_committed
    assert (batch.number, batch.records, batch.counts) == (4, 9, {0: 9})


@pytest.mark.parametrize("wrong", [{"begin": {"x": 1}}, {"begin": None}, {"epoch": "3"}])
def test_a_malformed_batch_is_rejected(
    script: Script, calls: LedgerCalls, wrong: dict[str, Any]
) -> None:
    script.response(200, {**OPEN, **wrong})
    with pytest.raises(IncompatibleGateway):
        calls.open(REQUEST)


def test_a_commit_names_the_digest_of_its_manifest(
    script: Script, calls: LedgerCalls, batch: Batch
) -> None:
    script.response(200, COMMITTED)
    done = commit(calls, batch, manifest={1: [Interval(0, 2)], 0: [Interval(12, 20)], 2: []})
    assert (done.number, done.stable) == (7, {0: 20})
    (body,) = script.bodies
    assert body["manifest"] == {"0": [[12, 20]], "1": [[0, 2]]}
    assert body["digest"] == hashlib.sha256(b'{"0":[[12,20]],"1":[[0,2]]}').hexdigest()
    assert (body["slices"], body["records"], body["counts"]) == (0, 8, {"0": 8})
    assert body["positions"] is None


def test_the_digest_sorts_partitions_by_number() -> None:
    manifest = {10: [Interval(0, 1)], 9: [Interval(0, 1)]}
    assert manifest_digest(manifest) == hashlib.sha256(b'{"9":[[0,1]],"10":[[0,1]]}').hexdigest()


def test_a_large_manifest_is_uploaded_in_slices(
    script: Script, calls: LedgerCalls, batch: Batch
) -> None:
    manifest = {
        partition: [Interval(2 * n, 2 * n + 1) for n in range(7_000)] for partition in (0, 1, 2)
    }
    for response in ({}, {}, {}, COMMITTED):
        script.response(200, response)
    commit(calls, batch, manifest=manifest)
    paths = [(method, path.rsplit("/", 2)[-2:]) for method, path, _ in script.requests]
    assert paths == [
        *[("PUT", ["manifest", str(index)]) for index in range(3)],
        ("POST", ["b1", "commit"]),
    ]
    sizes = [sum(map(len, body["manifest"].values())) for body in script.bodies]
    assert sizes == [10_000, 10_000, 1_000, 0]
    assert script.bodies[-1]["slices"] == 3
    assert script.bodies[-1]["digest"] == manifest_digest(manifest)
    joined: dict[int, list[Interval]] = {}
    for part in manifest_slices(manifest):
        for partition, intervals in part.items():
            joined.setdefault(partition, []).extend(intervals)
    assert joined == manifest


def test_a_manifest_over_the_limit_is_refused_before_anything_is_sent(
    script: Script, calls: LedgerCalls, batch: Batch
) -> None:
    class Endless(list[Interval]):
        def __len__(self) -> int:
            return 500_001

    with pytest.raises(InvalidRequest, match=r"500,001 intervals .* is 500,000") as raised:
        calls.commit(REQUEST, batch, manifest={0: Endless()}, records=1, counts={0: 1})
    assert raised.value.code == "invalid_manifest"
    assert script.requests == []


def test_a_commit_without_an_answer_is_repeated(
    script: Script, calls: LedgerCalls, batch: Batch
) -> None:
    script.problem(503, "database_unavailable", retriable=True)
    script.response(200, COMMITTED)
    assert commit(calls, batch).number == 7
    assert script.bodies[0] == script.bodies[1]


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_commit_that_is_never_answered_names_the_key(
    script: Script, calls: LedgerCalls, batch: Batch, status: int
) -> None:
    for _ in range(20):
        script.response(status, b"<html>")
    with pytest.raises(CommitUnknown, match="'day-1'") as raised:
        commit(calls, batch)
    assert raised.value.key == "day-1"
    assert raised.value.retriable


def test_a_commit_is_retried_until_the_watermarks_cover_its_records(
    script: Script, calls: LedgerCalls, batch: Batch
) -> None:
    script.problem(409, "beyond_watermark", retriable=True)
    script.response(200, COMMITTED)
    assert commit(calls, batch).number == 7


@pytest.mark.parametrize(
    ("status", "code"),
    [(409, "batch_aborted"), (422, "invalid_manifest"), (404, "channel_not_found")],
)
def test_a_refused_commit_is_not_repeated(
    script: Script, calls: LedgerCalls, batch: Batch, status: int, code: str
) -> None:
    script.problem(status, code)
    with pytest.raises(GatewayError) as raised:
        commit(calls, batch)
    assert raised.value.code == code
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("status", "code"), [(401, "unauthenticated"), (500, "internal_error"), (404, "not_found")]
)
def test_a_commit_that_is_refused_for_a_time_is_repeated(
    script: Script, calls: LedgerCalls, batch: Batch, status: int, code: str
) -> None:
    script.problem(status, code)
    script.response(200, COMMITTED)
    assert commit(calls, batch).number == 7
    script.refuse(status, code)
    with pytest.raises(CommitUnknown):
        commit(calls, batch)


def test_a_commit_that_the_token_does_not_cover_is_not_repeated(
    script: Script, calls: LedgerCalls, batch: Batch
) -> None:
    script.problem(403, "forbidden")
    with pytest.raises(CommitUnknown):
        commit(calls, batch)
    assert len(script.requests) == 1


def test_a_commit_carries_the_positions_of_a_reader(
    script: Script, calls: LedgerCalls, batch: Batch
) -> None:
    script.response(200, COMMITTED)
    advance = PositionAdvance(
        channel="in",
        uid=UID,
        topic_id="t",
        group="g",
        endpoint="e",
        epoch=2,
        generation=5,
        number=9,
        before={0: Position(offset=3)},
        after={0: Position(offset=4, records=1), 1: Position(offset=1)},
    )
    commit(calls, batch, positions=advance)
    assert script.bodies[0]["positions"] == {
        "channel": "in",
        "uid": UID,
        "topic_id": "t",
        "group": "g",
        "id": "e",
        "epoch": 2,
        "generation": 5,
        "number": 9,
        "positions": [
            {
                "partition": 0,
                "from": {"offset": 3, "record": 0},
                "to": {"offset": 4, "record": 1},
            },
            {"partition": 1, "from": None, "to": {"offset": 1, "record": 0}},
        ],
    }


def test_a_renewal_names_the_batches_that_are_not_open(script: Script, calls: LedgerCalls) -> None:
    script.response(
        200,
        {
            "batches": [
                {"id": "b1", "state": "open", "lease_until": "2026-01-02T03:04:05Z"},
                {"id": "b2", "state": "aborted", "lease_until": None},
            ]
        },
    )
    leases = calls.renew("c", {"b1": "i", "b2": "i"}, uid=UID, lease_ms=5000)
    assert [name for name, lease in leases.items() if not lease.is_open] == ["b2"]


def test_the_visible_runs_are_read_with_their_etag(script: Script, calls: LedgerCalls) -> None:
    script.response(200, RUNS, ETag='"7"')
    committed = calls.committed("c", uid=UID, starts={1: 0, 0: 2})
    assert committed is not None
    assert committed.runs == {0: (Interval(2, 5), Interval(9, 20)), 1: (Interval(0, 4),)}
    assert (committed.number, committed.stable, committed.etag) == (7, {0: 20, 1: 4}, '"7"')
    assert [(open_batch.key, open_batch.begin) for open_batch in committed.open] == [("k", {0: 20})]
    assert "from=0%3A2%2C1%3A0" in script.requests[0][1]


def test_an_unchanged_ledger_is_no_answer(script: Script, calls: LedgerCalls) -> None:
    script.response(304)
    assert calls.committed("c", uid=UID, starts={}, seen='"7"', wait_s=2) is None
    _, path, headers = script.requests[0]
    assert headers["If-None-Match"] == '"7"'
    assert "wait=2" in path


@pytest.mark.parametrize("runs", [{"0": [[1]]}, {"0": [[1, 2, 3]]}, {"0": [1, 2]}, {"a": []}])
def test_malformed_runs_are_rejected(
    script: Script, calls: LedgerCalls, runs: dict[str, Any]
) -> None:
    script.response(200, {**RUNS, "runs": runs})
    with pytest.raises(IncompatibleGateway):
        calls.committed("c", uid=UID, starts={})


def test_the_slices_of_one_answer_are_put_together(script: Script, calls: LedgerCalls) -> None:
    script.response(200, {**RUNS, "runs": {"0": [[2, 5]]}, "truncated": {"0": 9, "1": 0}})
    script.response(200, {**RUNS, "runs": {"0": [[9, 20]]}, "truncated": {"1": 0}})
    script.response(200, {**RUNS, "runs": {"1": [[0, 4]]}})
    whole = calls.all_committed("c", uid=UID, starts={0: 2, 1: 0})
    assert whole is not None
    assert whole.runs == {0: (Interval(2, 5), Interval(9, 20)), 1: (Interval(0, 4),)}
    assert whole.truncated == {}
    assert ["number=7" in path for _, path, _ in script.requests] == [False, True, True]


def test_many_partitions_are_requested_in_urls_of_bounded_length(
    script: Script, calls: LedgerCalls
) -> None:
    last = 2**63 - 2
    stable = {str(partition): last for partition in range(400)}
    for first, end in ((0, 150), (150, 300), (300, 400)):
        runs = {str(partition): [[partition, last]] for partition in range(first, end)}
        script.response(200, {**RUNS, "stable": stable, "visible_end": stable, "runs": runs})
    starts = dict.fromkeys(range(400), last)
    whole = calls.all_committed("c", uid=UID, starts=starts, seen='"6"', wait_s=5)

    assert whole is not None
    assert whole.runs == {partition: (Interval(partition, last),) for partition in range(400)}
    assert all(len(path) < 5_200 for _, path, _ in script.requests)
    assert ["wait=5" in path for _, path, _ in script.requests] == [True, False, False]
    assert ["number=7" in path for _, path, _ in script.requests] == [False, True, True]


def test_an_answer_in_parts_begins_again_after_a_repair(script: Script, calls: LedgerCalls) -> None:
    cut = {**RUNS, "runs": {"0": [[2, 5]]}, "truncated": {"0": 9}}
    script.response(200, cut)
    script.response(200, {**RUNS, "runs": {"0": []}, "repaired": 8})
    script.response(200, {**RUNS, "runs": {"0": [[2, 5]]}, "repaired": 8})
    whole = calls.all_committed("c", uid=UID, starts={0: 2})
    assert whole is not None
    assert (whole.repaired, whole.runs) == (8, {0: (Interval(2, 5),)})


def test_a_repair_removes_the_records_of_its_plan(script: Script, calls: LedgerCalls) -> None:
    lost = [{"partition": 3, "first": 20, "end": 30, "messages": 4}]
    script.response(200, {"cause": "c", "lost": lost, "open": RUNS["open"]})
    plan = calls.repair_plan("c", uid=UID)
    done = {"number": 9, "at": "2026-01-02T03:04:05Z", "by": "ops", "reason": "r", "cause": "c"}
    script.response(200, {**done, "lost": lost})
    repair = calls.repair("c", plan, uid=UID, reason="r")
    assert (repair.number, repair.lost) == (9, plan.lost)
    assert script.bodies[-1] == {"uid": UID, "lost_from": {"3": 20}, "reason": "r"}


def test_a_snapshot_is_requested_by_number_or_by_time(script: Script, calls: LedgerCalls) -> None:
    script.response(200, RUNS)
    script.response(200, RUNS)
    calls.committed("c", uid=UID, starts={}, snapshot=5)
    calls.committed("c", uid=UID, starts={}, snapshot=datetime(2026, 1, 2, tzinfo=UTC))
    assert "snapshot=5" in script.requests[0][1]
    assert "snapshot_at=2026-01-02T00%3A00%3A00%2B00%3A00" in script.requests[1][1]


def test_ended_batches_are_listed(script: Script, calls: LedgerCalls) -> None:
    event = {
        "number": 7,
        "kind": "commit",
        "key": "k",
        "owner": "o",
        "records": 3,
        "at": "2026-01-02T03:04:05Z",
        "opened_at": "2026-01-02T03:04:04Z",
        "state": "committed",
    }
    script.response(200, {"commits": [event], "open": RUNS["open"]})
    page = calls.commits("c", before=8)
    assert [(entry.number, entry.kind, entry.records) for entry in page.events] == [
        (7, "commit", 3)
    ]
    assert [open_batch.owner for open_batch in page.open] == ["o"]
    assert "before=8" in script.requests[0][1]


def test_parsing_ignores_fields_of_a_newer_gateway(script: Script, calls: LedgerCalls) -> None:
    script.response(200, {**RUNS, "pages": 3})
    assert isinstance(calls.committed("c", uid=UID, starts={}), Committed)
