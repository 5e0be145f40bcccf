"""Batches over HTTP: opening, commits, aborts, renewals, and the visible runs."""

import hashlib
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import make_url

from databases import Postgres
from endpoints import Site
from faults import at_call
from gateways import ManualClock, Rig, code, running
from ledger_sites import FEATURES, LedgerSite, ledger_site, written_topic
from shared_kafka import SharedKafka
from sluiceway.api.ledger import manifest_digest
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.ledger import batch_store, service, store
from sluiceway_gateway.lifecycle.drain import Drainer
from waiting import until


def test_listed_offsets_become_visible_with_the_commit(ledger: LedgerSite) -> None:
    batch = ledger.open()
    assert (batch["state"], batch["epoch"], batch["number"]) == ("open", 1, None)
    assert batch["begin"] == {"0": 0, "1": 0, "2": 0, "3": 0}
    assert batch["topic_id"] == ledger.topic.id
    before = ledger.committed()
    assert (before["number"], before["runs"]["0"]) == (0, [])
    assert [entry["key"] for entry in before["open"]] == ["k1"]
    done = ledger.commit(batch, {0: [(0, 10)], 2: [(3, 4), (6, 9)]})
    assert done["stable"] == {"0": 10, "2": 9}
    assert (done["state"], done["number"]) == ("committed", 1)
    after = ledger.committed()
    assert after["stable"] == after["visible_end"] == {"0": 10, "1": 0, "2": 9, "3": 0}
    assert after["runs"] == {"0": [[0, 10]], "1": [], "2": [[3, 4], [6, 9]], "3": []}
    assert (after["open"], after["halted"], after["truncated"]) == ([], None, {})


def test_opening_again_returns_the_same_batch(ledger: LedgerSite) -> None:
    first = ledger.open()
    ledger.rig.clock.advance(1)
    assert ledger.open() == first


def test_opening_a_committed_key_is_answered_as_committed(ledger: LedgerSite) -> None:
    ledger.commit(ledger.open(), {0: [(0, 10)]})
    again = ledger.open(instance="run-2")
    assert (again["state"], again["number"], again["records"]) == ("committed", 1, 10)
    assert again["counts"] == {"0": 10}


def test_a_repeated_commit_gets_the_same_answer(ledger: LedgerSite) -> None:
    first = ledger.open()
    response = ledger.commit(first, {0: [(0, 10)]})
    second = ledger.open("k2")
    ledger.commit(second, {0: [(10, 20)]})
    assert ledger.commit(first, {0: [(0, 10)]}) == response
    assert code(ledger.post_commit(first, {0: [(0, 11)]})) == "batch_committed"


@pytest.mark.long
def test_a_batch_without_records_is_committed(ledger: LedgerSite) -> None:
    assert ledger.commit(ledger.open(), {})["number"] == 1
    assert ledger.open(instance="run-2")["state"] == "committed"


def test_later_commits_are_held_back_by_an_open_batch(ledger: LedgerSite) -> None:
    slow = ledger.open("slow", "one")
    quick = ledger.open("quick", "two")
    ledger.commit(quick, {0: [(5, 10)]})
    held = ledger.committed()
    assert (held["stable"]["0"], held["visible_end"]["0"], held["runs"]["0"]) == (0, 10, [])
    ledger.commit(slow, {0: [(0, 5)]})
    assert ledger.committed()["runs"]["0"] == [[0, 10]]


def test_a_batch_of_named_partitions_holds_back_those_only(ledger: LedgerSite) -> None:
    slow = ledger.open("slow", "one", partitions=[3, 1])
    assert slow["begin"] == {"1": 0, "3": 0}
    ledger.commit(ledger.open("quick", "two"), {0: [(0, 5)], 1: [(0, 5)]})
    assert ledger.committed()["stable"] == {"0": 5, "1": 0, "2": 0, "3": 0}
    assert code(ledger.post_commit(slow, {0: [(5, 6)]})) == "unknown_partition"


def test_an_aborted_batch_shows_nothing_and_frees_readers(ledger: LedgerSite) -> None:
    slow = ledger.open("slow", "one")
    ledger.commit(ledger.open("quick", "two"), {0: [(5, 10)]})
    assert ledger.post_abort(slow).json()["state"] == "aborted"
    assert ledger.committed()["runs"]["0"] == [[5, 10]]
    assert ledger.post_abort(slow).json()["number"] == 2
    assert code(ledger.post_commit(slow, {0: [(0, 5)]})) == "batch_aborted"
    assert code(ledger.post_open("slow", "one")) == "batch_aborted"
    assert ledger.open("slow", "one", "run-2")["begin"]["0"] == 10


def test_an_abort_after_the_commit_changes_nothing(ledger: LedgerSite) -> None:
    batch = ledger.open()
    ledger.commit(batch, {0: [(0, 10)]})
    response = ledger.post_abort(batch)
    assert (response.status_code, code(response)) == (409, "batch_committed")
    assert ledger.committed()["runs"]["0"] == [[0, 10]]


def test_a_takeover_aborts_the_previous_run(ledger: LedgerSite) -> None:
    before = ledger.open("7", "query", ordinal=7, takeover=True)
    after = ledger.open("7", "query", "run-2", ordinal=7, takeover=True)
    assert (after["epoch"], after["id"] != before["id"]) == (2, True)
    assert code(ledger.post_commit(before, {0: [(0, 5)]})) == "batch_aborted"
    assert code(ledger.post_open("7", "query", ordinal=7, takeover=True)) == "batch_fenced"
    ledger.commit(after, {0: [(5, 10)]}, instance="run-2")
    assert ledger.committed()["runs"]["0"] == [[5, 10]]


def test_the_state_at_the_time_of_an_end_includes_it(ledger: LedgerSite) -> None:
    with at_call(ManualClock, "__call__", lambda clock: clock.advance(1)):
        ledger.post_abort(ledger.open())
        ledger.open(instance="run-2")
        ledger.open(instance="run-3", takeover=True)
    ended = ledger.rig.http.get(f"{ledger.path}/commits").json()["commits"]
    assert [(batch["number"], batch["state"]) for batch in ended] == [
        (2, "aborted"),
        (1, "aborted"),
    ]
    for batch in ended:
        assert ledger.committed(snapshot_at=batch["at"])["number"] == batch["number"]


def test_a_job_waits_for_the_lease_of_another(ledger: LedgerSite) -> None:
    ledger.open(lease_ms=10_000)
    response = ledger.post_open(instance="run-2")
    assert (response.status_code, code(response)) == (409, "batch_open")
    assert response.json()["retriable"]
    ledger.rig.clock.advance(11)
    assert ledger.open(instance="run-2")["state"] == "open"


def test_a_large_manifest_is_uploaded_in_slices(ledger: LedgerSite) -> None:
    batch = ledger.open()
    parts = [{0: [(0, 1), (2, 3)]}, {0: [(4, 5)], 1: [(0, 9)]}]
    whole = {0: [(0, 1), (2, 3), (4, 5)], 1: [(0, 9)]}
    for number, part in enumerate(parts):
        body = {"uid": ledger.uid, "instance": "run-1"}
        body["manifest"] = {str(partition): runs for partition, runs in part.items()}  # type: ignore[assignment]
        path = f"{ledger.path}/batches/{batch['id']}/manifest/{number}"
        assert ledger.rig.http.put(path, json=body).status_code == 200
    named = {"records": 12, "counts": {"0": 3, "1": 9}, "digest": manifest_digest(whole)}
    missing = ledger.post_commit(batch, {}, slices=3, **named)
    assert (missing.status_code, code(missing)) == (422, "invalid_manifest")
    assert "Slice 2 of 3" in missing.json()["detail"]
    done = ledger.commit(batch, {}, slices=2, **named)
    assert ledger.commit(batch, {}, slices=2, **named) == done
    assert ledger.committed()["runs"]["0"] == [[0, 1], [2, 3], [4, 5]]


def test_a_large_commit_may_pause_for_longer_than_other_transactions(
    postgres: Postgres, kafka: SharedKafka
) -> None:
    servers = kafka.bootstrap_servers
    topic = written_topic(servers, partitions=1, records=20_002)
    url = make_url(postgres.migrated())
    idle = {"options": "-c idle_in_transaction_session_timeout=2000"}
    gateway_url = url.update_query_dict(idle).render_as_string(False)
    observer_url = url.set(drivername="postgresql").render_as_string(False)
    recent = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = "
        "'idle in transaction' AND state_change > clock_timestamp() - interval '2.5 s'"
    )
    with (
        closing(Database(gateway_url)) as database,
        running(database, gateway_url, kafka_bootstrap_servers=servers) as rig,
        psycopg.connect(observer_url, autocommit=True) as observer,
    ):
        site = ledger_site(rig, topic)
        batch = site.open()
        whole = [(offset, offset + 1) for offset in range(0, 20_002, 2)]
        for number, part in enumerate((whole[:10_000], whole[10_000:])):
            body = {"uid": site.uid, "instance": "run-1", "manifest": {"0": part}}
            path = f"{site.path}/batches/{batch['id']}/manifest/{number}"
            assert rig.http.put(path, json=body).status_code == 200

        def pause(*_: object) -> None:
            """Wait until the server has ended a session that may not idle for so long."""
            until(lambda: observer.execute(recent).fetchone() is None)

        named = {"records": 10_001, "counts": {"0": 10_001}, "digest": manifest_digest({0: whole})}
        with (
            at_call(batch_store, "slices", pause, arrives=True),
            at_call(service, "commit_batch", pause),
        ):
            assert site.commit(batch, {}, slices=2, **named)["state"] == "committed"


def test_leases_are_renewed_and_ended_batches_named(ledger: LedgerSite) -> None:
    first, second = ledger.open("k1", lease_ms=10_000), ledger.open("k2", lease_ms=10_000)
    ledger.post_abort(second)
    ledger.rig.clock.advance(5)
    named = [{"id": batch["id"], "instance": "run-1"} for batch in (first, second)]
    strange = {"id": first["id"], "instance": "run-2"}
    unknown = {"id": "0" * 32, "instance": "run-1"}
    response = ledger.post("batches/renew", batches=[*named, unknown], lease_ms=10_000).json()
    assert {batch["id"]: batch["state"] for batch in response["batches"]} == {
        first["id"]: "open",
        second["id"]: "aborted",
    }
    renewed = next(batch for batch in response["batches"] if batch["id"] == first["id"])
    assert renewed["lease_until"] == "2030-01-01T00:00:15.000Z"
    assert ledger.post("batches/renew", batches=[strange]).json() == {"batches": []}


@pytest.mark.long
def test_a_lease_of_0_renews_nothing(ledger: LedgerSite) -> None:
    batch = ledger.open()
    named = [{"id": batch["id"], "instance": "run-1"}]
    ledger.rig.clock.advance(10)
    (unrenewed,) = ledger.post("batches/renew", batches=named, lease_ms=0).json()["batches"]
    assert (unrenewed["state"], unrenewed["lease_until"]) == ("open", "2030-01-01T00:00:30.000Z")
    (renewed,) = ledger.post("batches/renew", batches=named).json()["batches"]
    assert renewed["lease_until"] == "2030-01-01T00:00:40.000Z"
    ledger.rig.clock.advance(60)
    (over,) = ledger.post("batches/renew", batches=named, lease_ms=0).json()["batches"]
    assert over == renewed


def beat(ledger: LedgerSite, *renews: str, number: int) -> None:
    """Send a heartbeat of a process with these running instances."""
    body = {"session": "5" * 32, "beat": number, "endpoints": [], "renews": renews}
    assert ledger.rig.http.post("/v1/heartbeats", json=body).status_code == 200


def ended(ledger: LedgerSite, *instances: str, number: int) -> None:
    """Send a heartbeat of a process whose instances have ended."""
    body = {"session": "6" * 32, "beat": number, "endpoints": [], "ended": instances}
    assert ledger.rig.http.post("/v1/heartbeats", json=body).status_code == 200


def lease_of(ledger: LedgerSite, batch: Any) -> str:
    named = [{"id": batch["id"], "instance": "run-1"}]
    (entry,) = ledger.post("batches/renew", batches=named, lease_ms=0).json()["batches"]
    lease: str = entry["lease_until"]
    return lease


def test_a_heartbeat_renews_the_open_batches_of_running_jobs(ledger: LedgerSite) -> None:
    batch = ledger.open()
    ledger.rig.clock.advance(9)
    beat(ledger, "run-1", number=1)
    # Enough of it is left.
    assert lease_of(ledger, batch) == "2030-01-01T00:00:30.000Z"
    ledger.rig.clock.advance(2)
    beat(ledger, "run-2", number=2)
    assert lease_of(ledger, batch) == "2030-01-01T00:00:30.000Z"
    beat(ledger, "run-2", "run-1", number=3)
    assert lease_of(ledger, batch) == "2030-01-01T00:00:41.000Z"


def test_heartbeats_and_renewals_go_on_while_commits_wait_for_kafka(ledger: LedgerSite) -> None:
    batches = [ledger.open(f"k{number}", f"job {number}") for number in range(60)]
    answers, waiting = threading.Event(), itertools.count(1)
    present = 0

    def wait(*_: object) -> None:
        nonlocal present
        present = next(waiting)
        assert answers.wait(60)

    with at_call(KafkaAdmin, "end_offsets", wait), ThreadPoolExecutor(60) as pool:
        commits = [
            pool.submit(ledger.post_commit, batch, {0: [(number, number + 1)]})
            for number, batch in enumerate(batches)
        ]
        try:
            threads = ledger.rig.app.state.parts.commit_threads
            until(lambda: threads.statistics().tasks_waiting == 40)
            named = [{"id": batch["id"], "instance": "run-1"} for batch in batches]
            ledger.rig.clock.advance(15)
            with httpx.Client(base_url=ledger.rig.url, timeout=30) as http:
                body = {"session": "5" * 32, "beat": 1, "endpoints": [], "renews": ["run-1"]}
                assert http.post("/v1/heartbeats", json=body).status_code == 200
                renewal = {"uid": ledger.uid, "batches": named, "lease_ms": 0}
                renewed = http.post(f"{ledger.path}/batches/renew", json=renewal).json()["batches"]
            assert {batch["lease_until"] for batch in renewed} == {"2030-01-01T00:00:45.000Z"}
            assert present == 20
        finally:
            answers.set()
        assert [commit.result(60).status_code for commit in commits] == [200] * 60


@pytest.mark.long
def test_a_heartbeat_aborts_the_open_batches_of_ended_jobs(ledger: LedgerSite) -> None:
    done, left = ledger.open("k1"), ledger.open("k2")
    ledger.commit(done, {0: [(0, 10)]})
    other = ledger.open("k3", "other", "run-2")
    assert ledger.committed()["stable"]["0"] == 0
    ended(ledger, "run-1", "unknown", number=1)
    (entry,) = ledger.post(
        "batches/renew", batches=[{"id": left["id"], "instance": "run-1"}], lease_ms=0
    ).json()["batches"]
    assert entry["state"] == "aborted"
    listed = ledger.rig.http.get(f"{ledger.path}/commits").json()["commits"]
    causes = {batch["key"]: batch["cause"] for batch in listed}
    assert causes["k2"] == "Its job or query ended before the commit."
    assert code(ledger.post_open("k2")) == "batch_aborted"
    ended(ledger, "run-2", number=2)
    assert ledger.committed()["stable"]["0"] == 10
    assert code(ledger.post_commit(other, {0: [(10, 20)]}, instance="run-2")) == "batch_aborted"


def test_waiting_readers_continue_at_the_end_of_the_job_that_held_them_back(
    ledger: LedgerSite,
) -> None:
    ledger.open("slow", "other", "run-2")
    ledger.commit(ledger.open("k1"), {0: [(0, 10)]})
    before = ledger.get_committed()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ledger.get_committed, etag=before.headers["etag"], wait=60)
        until(lambda: ledger.rig.app.state.parts.changes.waiting)
        ended(ledger, "run-2", number=1)
        after = waiting.result(timeout=60)
    assert before.json()["stable"]["0"] == 0
    assert after.json()["stable"]["0"] == 10


def test_a_heartbeat_aborts_only_batches_of_channels_that_may_be_written(
    ledger: LedgerSite,
) -> None:
    batch = ledger.open()
    for number, scope in enumerate(("write:other", "read:flights", "write:flights"), 1):
        ledger.rig.http.headers.update(ledger.rig.token(scope))
        ended(ledger, "run-1", number=number)
        ledger.rig.http.headers.update(ledger.rig.token("write:flights"))
        named = [{"id": batch["id"], "instance": "run-1"}]
        (entry,) = ledger.post("batches/renew", batches=named, lease_ms=0).json()["batches"]
        assert entry["state"] == ("aborted" if scope == "write:flights" else "open")


def test_a_heartbeat_renews_only_batches_of_channels_that_may_be_written(
    ledger: LedgerSite,
) -> None:
    def become(*scopes: str) -> None:
        ledger.rig.http.headers.update(ledger.rig.token(*scopes))

    batch = ledger.open()
    ledger.rig.clock.advance(20)
    for number, scope in enumerate(("write:other", "read:flights"), 1):
        become(scope)
        beat(ledger, "run-1", number=number)
    become("write:flights")
    assert lease_of(ledger, batch) == "2030-01-01T00:00:30.000Z"
    beat(ledger, "run-1", number=3)
    assert lease_of(ledger, batch) == "2030-01-01T00:00:50.000Z"


def test_a_long_response_is_read_in_slices_of_one_state(ledger: LedgerSite) -> None:
    whole = {partition: [(at, at + 1) for at in range(0, 20, 2)] for partition in range(4)}
    ledger.commit(ledger.open(), whole)
    first = ledger.committed(limit=15)
    assert first["truncated"] == {"1": 10, "2": 0, "3": 0}
    ledger.commit(ledger.open("k2"), {1: [(19, 30)]})
    runs, left, number = {**first["runs"]}, first["truncated"], first["number"]
    while left:
        starts = ",".join(f"{partition}:{start}" for partition, start in left.items())
        part = ledger.committed(**{"from": starts, "limit": 15, "number": number})
        assert (part["number"], part["stable"]) == (number, first["stable"])
        for partition, more in part["runs"].items():
            runs[partition] = runs[partition] + more
        left = part["truncated"]
    assert runs == {
        str(partition): list(map(list, intervals)) for partition, intervals in whole.items()
    }


@pytest.mark.long
def test_runs_above_stable_do_not_count_for_the_limit(ledger: LedgerSite) -> None:
    apart = [(at, at + 1) for at in range(0, 20, 2)]
    ledger.commit(ledger.open("k1"), {0: apart, 1: apart})
    ledger.open("slow", "other", partitions=[0])
    ledger.commit(ledger.open("k2"), {0: [(at, at + 1) for at in range(30, 50, 2)]})
    part = ledger.committed(limit=12)
    assert [len(part["runs"][partition]) for partition in "0123"] == [10, 2, 0, 0]
    assert part["truncated"] == {"1": 4}
    assert ledger.committed(limit=20)["truncated"] == {}


@pytest.mark.long
def test_a_read_starts_at_the_requested_offsets(ledger: LedgerSite) -> None:
    ledger.commit(ledger.open(), {0: [(0, 10), (20, 30)], 1: [(0, 5)]})
    part = ledger.committed(**{"from": "0:25,2:7"})
    assert part["runs"] == {"0": [[25, 30]], "2": []}
    assert part["stable"] == {"0": 30, "1": 5, "2": 0, "3": 0}


@pytest.mark.long
def test_a_snapshot_shows_the_channel_as_it_was(ledger: LedgerSite) -> None:
    ledger.commit(ledger.open("k1"), {0: [(0, 10)]})
    ledger.rig.clock.advance(60)
    ledger.commit(ledger.open("k2"), {0: [(10, 20)], 1: [(0, 5)]})
    first = ledger.committed(snapshot=1)
    assert (first["number"], first["stable"]["0"], first["visible_end"]["0"]) == (1, 10, 10)
    assert first["runs"] == {"0": [[0, 10]], "1": [], "2": [], "3": []}
    assert ledger.committed(snapshot=0)["runs"]["0"] == []
    assert ledger.committed(snapshot=2)["runs"]["0"] == [[0, 20]]
    at = ledger.committed(snapshot_at="2030-01-01T00:00:30Z")
    assert (at["number"], at["runs"]) == (1, first["runs"])
    assert ledger.committed(snapshot_at="2029-01-01T00:00:30+01:00")["number"] == 0
    unknown = ledger.get_committed(snapshot=3)
    assert (unknown.status_code, code(unknown)) == (404, "snapshot_not_found")
    naive = ledger.get_committed(snapshot_at="2030-01-01T00:00:30")
    assert (naive.status_code, code(naive)) == (422, "invalid_request")


@pytest.mark.long
def test_a_snapshot_has_each_batch_wholly_or_not_at_all(ledger: LedgerSite) -> None:
    first = ledger.open("c", "one", partitions=[0, 1])
    ledger.commit(ledger.open("b", "two", partitions=[0]), {0: [(10, 20)]})
    ledger.open("d", "three", partitions=[0, 1])
    ledger.commit(first, {0: [(0, 10)], 1: [(0, 10)]})
    ledger.commit(ledger.open("e", "two", partitions=[0, 1]), {0: [(20, 25)], 1: [(15, 20)]})

    b, c, e = (whole_runs(ledger, number) for number in (1, 2, 3))
    assert b == {0: [*range(10, 20)]}
    assert c == {0: [*range(20)], 1: [*range(10)]}
    assert e == {0: [*range(25)], 1: [*range(10), *range(15, 20)]}
    held = ledger.committed(snapshot=2)
    assert (held["stable"]["1"], held["visible_end"]["1"]) == (0, 10)


@pytest.mark.long
def test_a_snapshot_after_growth_has_whole_batches(ledger: LedgerSite) -> None:
    ledger.open("old", "one", partitions=[0])
    ledger.commit(ledger.open("new", "two", partitions=[0, 1]), {0: [(4, 8)], 1: [(0, 4)]})

    assert whole_runs(ledger, 1) == {0: [4, 5, 6, 7], 1: [0, 1, 2, 3]}
    assert ledger.committed()["runs"] == {"0": [], "1": [[0, 4]], "2": [], "3": []}


@pytest.mark.long
def test_a_snapshot_of_whole_batches_is_returned_in_parts(ledger: LedgerSite) -> None:
    ledger.commit(ledger.open("first"), {0: [(0, 3)], 1: [(0, 1)]})
    ledger.open("slow", "other", partitions=[0, 1])
    apart = [(at, at + 1) for at in range(3, 23, 2)]
    second = ledger.open("k2", "third")
    ledger.commit(ledger.open("k1"), {0: apart, 1: apart})
    ledger.commit(second, {0: [(30, 40)], 1: [(4, 5), (30, 40)]})

    expected = {0: [0, 1, 2, *range(3, 23, 2)], 1: [0, *range(3, 23, 2)]}
    assert whole_runs(ledger, 2) == expected
    assert whole_runs(ledger, 2, limit=1) == expected
    assert whole_runs(ledger, 2, limit=7) == expected
    assert whole_runs(ledger, 3)[1] == sorted([*expected[1], 4, *range(30, 40)])


def whole_runs(ledger: LedgerSite, snapshot: int, *, limit: int = 1000) -> dict[int, list[int]]:
    """Return the offsets of a snapshot by partition, from responses with up to `limit` runs."""
    offsets: dict[int, list[int]] = {}
    left = {str(partition): 0 for partition in range(4)}
    while left:
        starts = ",".join(f"{partition}:{start}" for partition, start in left.items())
        part = ledger.committed(**{"from": starts, "limit": limit, "snapshot": snapshot})
        for partition, runs in part["runs"].items():
            for first, end in runs:
                offsets.setdefault(int(partition), []).extend(range(first, end))
        left = part["truncated"]
    return offsets


@pytest.mark.long
def test_a_batch_is_refused_if_the_previous_commit_of_its_writer_is_missing(
    ledger: LedgerSite,
) -> None:
    ledger.commit(ledger.open("k1"), {0: [(0, 10)]})
    second = ledger.commit(ledger.open("k2"), {0: [(10, 20)]})
    previous = {"number": second["number"], "at": second["committed_at"]}
    assert ledger.open("k3", previous=previous)["state"] == "open"
    for other in ({"at": "2029-12-31T00:00:00.000Z"}, {"number": 3}):
        refused = ledger.post_open("k4", previous=previous | other)
        assert (refused.status_code, code(refused)) == (409, "ledger_restored")
    assert [batch["key"] for batch in ledger.committed()["open"]] == ["k3"]
    naive = ledger.post_open("k4", previous={"number": 1, "at": "2030-01-01T00:00:00"})
    assert (naive.status_code, code(naive)) == (422, "invalid_request")


@pytest.mark.long
def test_a_read_has_the_times_of_its_number_and_of_a_known_one(ledger: LedgerSite) -> None:
    empty = ledger.committed(known=0)
    assert (empty["at"], empty["known_at"]) == (None, None)
    ledger.commit(ledger.open("k1"), {0: [(0, 10)]})
    first = ledger.committed()
    ledger.rig.clock.advance(60)
    ledger.commit(ledger.open("k2"), {0: [(10, 20)]})
    second = ledger.committed(known=1)
    assert (second["number"], second["known_at"]) == (2, first["at"])
    assert second["at"] > first["at"]
    assert ledger.committed(known=3)["known_at"] is None


@pytest.mark.sample
@pytest.mark.parametrize(
    ("at", "number"),
    [
        *(("0001-01-01T00:00:00+01:00", 0), ("0001-01-01T00:00:00Z", 0)),
        *(("9999-12-31T23:59:59.9999Z", 1), ("9999-12-31T23:59:59-01:00", 1)),
    ],
)
def test_a_snapshot_may_be_of_any_time(ledger: LedgerSite, at: str, number: int) -> None:
    ledger.commit(ledger.open(), {0: [(0, 10)]})
    assert ledger.committed(snapshot_at=at)["number"] == number


def test_commits_are_listed_newest_first(ledger: LedgerSite) -> None:
    ledger.commit(ledger.open("k1"), {0: [(0, 10)]})
    ledger.post_abort(ledger.open("k2"))
    ledger.open("k3", "other")
    listing = ledger.rig.http.get(f"{ledger.path}/commits").json()
    assert [(batch["number"], batch["kind"], batch["key"]) for batch in listing["commits"]] == [
        (2, "abort", "k2"),
        (1, "commit", "k1"),
    ]
    assert (listing["commits"][1]["records"], listing["commits"][0]["cause"]) == (10, "a test")
    assert [(batch["key"], batch["owner"]) for batch in listing["open"]] == [("k3", "other")]
    page = ledger.rig.http.get(f"{ledger.path}/commits", params={"limit": 1, "before": 2}).json()
    assert [batch["number"] for batch in page["commits"]] == [1]


def test_commits_of_a_key_are_listed(ledger: LedgerSite) -> None:
    ledger.post_abort(ledger.open("k1"))
    ledger.commit(ledger.open("k1", instance="run-2"), {0: [(0, 10)]}, instance="run-2")
    ledger.open("k2", "other")

    def ends(key: str) -> tuple[list[int], int]:
        page = ledger.rig.http.get(f"{ledger.path}/commits", params={"key": key}).json()
        return [batch["number"] for batch in page["commits"]], len(page["open"])

    assert ends("k1") == ([2, 1], 0)
    assert ends("k2") == ([], 1)
    assert ends("k3") == ([], 0)


def test_an_unchanged_ledger_is_not_sent_again(ledger: LedgerSite) -> None:
    etag = ledger.get_committed().headers["etag"]
    assert ledger.get_committed(etag=etag).status_code == 304
    assert ledger.get_committed(etag=etag, wait=0.2).status_code == 304
    ledger.open()
    assert ledger.get_committed(etag=etag).status_code == 304


@pytest.mark.long
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_waiting_reader_is_answered_when_a_batch_ends(ledger: LedgerSite, end: str) -> None:
    batch = ledger.open()
    etag = ledger.get_committed().headers["etag"]
    responses: list[tuple[httpx.Response, float]] = []

    def wait() -> None:
        response = ledger.get_committed(etag=etag, wait=60)
        responses.append((response, time.monotonic()))

    waiting = threading.Thread(target=wait)
    waiting.start()
    changes = ledger.rig.app.state.parts.changes
    until(lambda: changes.waiting)
    if end == "commit":
        ledger.commit(batch, {0: [(0, 10)]})
    else:
        ledger.post_abort(batch)
    ended_s = time.monotonic()
    waiting.join(90)
    ((response, answered_s),) = responses
    assert (response.status_code, response.json()["number"]) == (200, 1)
    assert answered_s - ended_s < 30


def test_a_token_that_is_revoked_during_a_wait_does_not_see_the_commit(rig: Rig) -> None:
    uid = rig.put(delivery="exactly_once").json()["metadata"]["uid"]
    rig.observe("flights", Phase.READY)
    admin, mine = rig.token("admin"), rig.token("read")
    rig.http.headers.update(admin)
    path, query = "/v1/channels/flights/committed", {"uid": uid}
    etag = rig.http.get(path, params=query).headers["etag"]
    with ThreadPoolExecutor() as pool:
        headers = mine | {"If-None-Match": etag}
        waiting = pool.submit(rig.http.get, path, params=query | {"wait": "60"}, headers=headers)
        until(lambda: rig.app.state.parts.changes.waiting)
        rig.tokens.revoke(mine["Authorization"].split("_")[1])
        with rig.database.write() as tx:
            channel = channels_store.hold(tx, "flights")
            assert channel is not None
            was = store.hold(tx, channel)
            store.save(tx, replace(was, number=1), was=was, now=rig.clock())
        response = waiting.result(60)
    assert (response.status_code, code(response)) == (401, "unauthenticated")


def test_batches_are_opened_while_the_channel_closes_but_not_after(ledger: LedgerSite) -> None:
    batch = ledger.open()
    ledger.post("close", force=True)
    assert code(ledger.post_open("k2")) == "channel_closed"
    ledger.commit(batch, {0: [(0, 1)]})
    assert ledger.committed()["runs"]["0"] == [[0, 1]]


def test_a_channel_with_uncommitted_messages_at_its_end_is_drained_and_deleted(
    ledger: LedgerSite, kafka: SharedKafka
) -> None:
    rig = ledger.rig
    rig.http.headers.update(FEATURES)
    site = Site(rig=rig, name=ledger.name, uid=ledger.uid)
    ledger.commit(ledger.open(), {0: [(0, 10), (20, 30)], 1: [(0, 10)]})
    reader = site.member(group="g")

    def commit(number: int, *positions: tuple[int, int, int]) -> None:
        done = site.commit(reader, number, *positions, topic_id=ledger.topic.id)
        assert done.status_code == 200, done.text

    commit(1, (0, 10, 0), (1, 10, 0))
    site.detach(reader)
    refused = rig.http.delete(ledger.path, params={"uid": ledger.uid})
    assert code(refused) == "unread_data"
    assert "has not committed 20 messages of partition 0." in refused.json()["detail"]
    reader = site.member(group="g")
    commit(1, (0, 30, 0))
    site.detach(reader)
    # It may still commit the messages behind.
    batch = ledger.open("k2", "other")
    assert code(rig.http.delete(ledger.path, params={"uid": ledger.uid})) == "unread_data"
    rig.http.post(f"{ledger.path}/close", json={"uid": ledger.uid})
    with closing(KafkaAdmin(kafka.bootstrap_servers)) as admin:
        drainer = Drainer(database=rig.database, kafka=admin, clock=rig.clock)
        assert (drainer.run_once().closed, drainer.run_once().closing) == (0, 1)
        ledger.post_abort(batch)
        assert drainer.run_once().closed == 1
    deleted = rig.http.delete(ledger.path, params={"uid": ledger.uid})
    assert deleted.status_code == 202, deleted.text


@pytest.mark.long
def test_partitions_that_are_added_are_used_by_later_batches(ledger: LedgerSite) -> None:
    narrow = replace(ledger.topic, name=ledger.topic.name[:-1], partitions=2)
    site = ledger_site(ledger.rig, narrow, "narrow")
    before = site.open("k1")
    assert before["begin"] == {"0": 0, "1": 0}
    ledger.rig.observe("narrow", Phase.READY, topic=replace(narrow, partitions=4))
    after = site.open("k2")
    assert after["begin"] == {"0": 0, "1": 0, "2": 0, "3": 0}
    assert site.open("k1") == before
    digest = hashlib.sha256(b'{"2":[]}').hexdigest()
    assert code(site.post_commit(before, {2: []}, digest=digest)) == "unknown_partition"
    assert site.committed()["stable"].keys() == {"0", "1", "2", "3"}
