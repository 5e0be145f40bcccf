"""Status of exactly-once channels: lag of committed messages, batches that hold readers back."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from endpoints import fresh_id
from ledger_sites import FEATURES, LedgerSite
from shared_kafka import SharedKafka
from sluiceway_gateway.api.json import time_json
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.status.reader_progress import WINDOW
from sluiceway_gateway.status.sampler import Sampler

Status = Callable[[], Any]


@pytest.fixture
def session(ledger: LedgerSite) -> str:
    """The session of a reader of the group g, whose positions are 100 in each partition."""
    session = fresh_id()
    request_body = {"uid": ledger.uid, "id": fresh_id(), "session": session, "role": "reader"}
    attached = ledger.rig.http.post(
        f"{ledger.path}/endpoints",
        json=request_body | {"group": "g", "index": 0, "size": 1},
        headers=FEATURES,
    )
    assert attached.status_code == 201, attached.text
    endpoint = attached.json()["endpoint"]
    report = {
        "id": endpoint["id"],
        "epoch": endpoint["epoch"],
        "state": "started",
        "positions": {str(p): [100, 0] for p in range(ledger.topic.partitions)},
    }
    beat = {"session": session, "beat": 1, "endpoints": [report]}
    assert ledger.rig.http.post("/v1/heartbeats", json=beat).status_code == 200
    return session


@pytest.fixture
def sampled(ledger: LedgerSite, kafka: SharedKafka, session: str) -> Status:
    """Take a sample, and return the status."""
    now_s = 0.0
    sampler = Sampler(
        database=ledger.rig.database,
        kafka=KafkaAdmin(kafka.bootstrap_servers),
        clock=ledger.rig.clock,
        monotonic=lambda: now_s,
    )

    def sampled() -> Any:
        nonlocal now_s
        now_s += 5
        ledger.rig.clock.advance(timedelta(seconds=5))
        sampler.run_once()
        response = ledger.rig.http.get(f"{ledger.path}/status")
        assert response.status_code == 200, response.text
        return response.json()

    return sampled


def lags(status: Any) -> list[int | None]:
    (group,) = status["groups"]
    return [partition["lag_messages"] for partition in group["partitions"]]


@pytest.mark.sample
def test_lag_is_measured_against_what_is_committed(ledger: LedgerSite, sampled: Status) -> None:
    assert lags(sampled()) == [0, 0, 0, 0]
    ledger.commit(ledger.open("k1"), {0: [(0, 130)], 1: [(0, 90)]})
    status = sampled()
    assert lags(status) == [30, 0, 0, 0]
    assert status["groups"][0]["lag_messages"] == 30
    assert status["partitions"][:2] == [
        {"partition": 0, "start": 0, "end": 1000, "stable": 130, "visible_end": 130},
        {"partition": 1, "start": 0, "end": 1000, "stable": 90, "visible_end": 90},
    ]


@pytest.mark.long
def test_lag_in_records_is_unknown_with_uncommitted_messages(
    ledger: LedgerSite, sampled: Status
) -> None:
    ledger.commit(ledger.open("k1"), {0: [(0, 130)], 1: [(0, 90)]})
    assert sampled()["groups"][0]["lag_records"] == 30
    ledger.commit(ledger.open("k2"), {0: [(140, 150)]})
    (group,) = sampled()["groups"]
    assert (group["lag_messages"], group["lag_records"]) == (50, None)


@pytest.mark.long
def test_a_status_names_the_batch_that_holds_readers_back(
    ledger: LedgerSite, sampled: Status
) -> None:
    opened_at = time_json(ledger.rig.clock())
    slow = ledger.open("slow", "nightly", partitions=[0])
    ledger.rig.clock.advance(timedelta(seconds=1))
    ledger.open("idle", "other", partitions=[3])
    ledger.commit(ledger.open("k1"), {0: [(0, 130)], 1: [(0, 200)]})
    status = sampled()

    assert lags(status) == [30, 100, 0, 0]
    assert status["ledger"]["open_batches"] == 2
    assert status["ledger"]["batches"][0] == {
        "key": "slow",
        "owner": "nightly",
        "since": opened_at,
        "held_messages": 130,
    }
    assert status["ledger"]["batches"][1]["held_messages"] == 0
    assert [partition["stable"] for partition in status["partitions"]] == [0, 200, 0, 0]

    ledger.post_abort(slow)
    status = sampled()
    assert lags(status) == [30, 100, 0, 0]
    assert [batch["key"] for batch in status["ledger"]["batches"]] == ["idle"]


@pytest.mark.long
def test_messages_that_wait_for_an_open_batch_are_lag_of_a_group_that_is_held_back(
    ledger: LedgerSite, sampled: Status
) -> None:
    sampled()
    slow = ledger.open("slow", "nightly", partitions=[0])
    ledger.commit(ledger.open("k1"), {0: [(0, 130)]})
    for _ in range(WINDOW + 2):
        status = sampled()
    (group,) = status["groups"]
    assert (group["lag_messages"], group["progress"]) == (30, "held_back")
    assert group["lag_seconds"] >= 5 * WINDOW
    (first, *others) = group["partitions"]
    assert (first["end"], first["lag_messages"], first["progress"]) == (130, 30, "held_back")
    assert {partition["progress"] for partition in others} == {"ok"}
    assert [problem["code"] for problem in status["problems"]] == ["batch_holds_readers"]
    (line,) = ledger.rig.http.get("/v1/status").json()["items"]
    assert (line["lag_messages"], line["progress"]) == (30, "held_back")

    ledger.post_abort(slow)
    status = sampled()
    assert status["groups"][0]["progress"] != "held_back"
    assert lags(status)[0] == 30


def test_uncommitted_messages_are_counted(ledger: LedgerSite, sampled: Status) -> None:
    assert sampled()["ledger"]["uncommitted_messages"] == 4000
    ledger.commit(ledger.open("k1"), {0: [(0, 130), (140, 150)], 1: [(0, 200)]})
    status = sampled()
    assert status["ledger"]["uncommitted_messages"] == 4000 - 340
    assert status["ledger"]["number"] == 1


@pytest.mark.long
def test_a_batch_changes_the_tag_of_the_status(ledger: LedgerSite, sampled: Status) -> None:
    def etag() -> str:
        return ledger.rig.http.get(f"{ledger.path}/status").headers["etag"]

    sampled()
    before = etag()
    ledger.open("slow", partitions=[0])
    sampled()
    assert etag() != before


def test_metrics_name_the_owner_of_the_batch_that_holds_readers_back(
    ledger: LedgerSite, sampled: Status
) -> None:
    def metrics() -> dict[str, float]:
        lines = ledger.rig.http.get("/metrics").text.splitlines()
        series = (line.rsplit(" ", 1) for line in lines if line.startswith("sluiceway_channel_"))
        return {name: float(number) for name, number in series}

    opened_at = ledger.rig.clock().timestamp()
    ledger.open("slow", "nightly", partitions=[0])
    sampled()
    before = metrics()
    ledger.commit(ledger.open("k1"), {0: [(0, 130)]})
    sampled()
    after = metrics()

    batch = '{channel="flights",owner="nightly"}'
    assert before['sluiceway_channel_open_batches{channel="flights"}'] == 1
    assert before['sluiceway_channel_halted{channel="flights"}'] == 0
    assert not any("held_back" in name for name in before)
    assert after[f"sluiceway_channel_held_back_messages{batch}"] == 130
    assert after[f"sluiceway_channel_held_back_since_timestamp_seconds{batch}"] == opened_at
