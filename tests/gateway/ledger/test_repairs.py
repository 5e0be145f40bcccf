"""Repairs of halted channels: lost records, and reads and writes afterwards."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaError, Producer

from gateways import code
from ledger_sites import LedgerSite, halt_ledger, ledger_site, lose_records, written_topic
from shared_kafka import SharedKafka
from sluiceway_gateway.core.db.engine import WriteTransaction
from sluiceway_gateway.core.errors import ConcurrentChange
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.ledger import store
from topics import Topics
from waiting import until


@pytest.fixture
def admin(kafka: SharedKafka) -> Iterator[KafkaAdmin]:
    admin = KafkaAdmin(kafka.bootstrap_servers)
    yield admin
    admin.close()


@pytest.fixture
def short(ledger: LedgerSite, kafka: SharedKafka) -> LedgerSite:
    """A channel with 20 messages in each of two partitions, and no batch."""
    topic = written_topic(kafka.bootstrap_servers, partitions=2, records=20)
    return ledger_site(ledger.rig, topic, "halted")


@pytest.fixture
def site(short: LedgerSite) -> LedgerSite:
    """A halted channel: [0, 10) and [11, 30) of partition 0 are committed, and Kafka ends at 20."""
    short.commit(short.open("before"), {0: [(0, 10)], 1: [(0, 5)]})
    lose_records(short, {0: 30})
    halt_ledger(short, {0: 20})
    return short


def ask_plan(site: LedgerSite) -> httpx.Response:
    return site.rig.http.get(f"{site.path}/ledger/repair", params={"uid": site.uid})


def ask_repair(site: LedgerSite, lost_from: Mapping[str, int]) -> httpx.Response:
    return site.post("ledger/repair", lost_from=lost_from, reason="a disk failed")


def repair(site: LedgerSite, lost_from: Mapping[str, int]) -> Any:
    response = ask_repair(site, lost_from)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.long
def test_a_plan_lists_lost_records_and_changes_nothing(site: LedgerSite) -> None:
    before = site.committed()
    plan = ask_plan(site).json()

    assert plan["lost"] == [{"partition": 0, "first": 20, "end": 30, "messages": 10}]
    assert plan["open"] == []
    assert "from offset 20 on, which are committed up to 30" in plan["cause"]
    assert site.committed() == before
    assert before["halted"] == plan["cause"]


@pytest.mark.long
def test_a_repaired_channel_gives_up_lost_records_and_works_again(
    site: LedgerSite, admin: KafkaAdmin
) -> None:
    done = repair(site, {"0": 20})

    assert (done["number"], done["reason"], done["by"]) == (2, "a disk failed", "loopback")
    assert done["lost"] == [{"partition": 0, "first": 20, "end": 30, "messages": 10}]
    entry = site.rig.http.get(f"{site.path}/changes").json()["items"][0]
    assert (entry["action"], entry["by"], entry["reason"]) == (
        *("repair_ledger", "loopback"),
        "a disk failed",
    )
    assert entry["fields"] == [{"field": "partition 0", "old": 30, "new": 20}]
    visible = site.committed()
    assert (visible["halted"], visible["repaired"], visible["number"]) == (None, 2, 2)
    assert visible["runs"] == {"0": [[0, 10], [11, 20]], "1": [[0, 5]]}
    assert visible["stable"] == visible["visible_end"] == {"0": 30, "1": 5}
    assert visible["given_up"] == {"0": [[20, 30]]}
    # No later message gets an offset that readers have passed.
    assert admin.end_offsets(site.topic.name, [0, 1])[0] == 30
    batch = site.open("after")
    assert batch["begin"] == {"0": 30, "1": 5}
    Topics(admin.bootstrap_servers).produce(site.topic.name, 0, [b""] * 2)
    site.commit(batch, {0: [(30, 32)]})
    assert site.committed()["runs"]["0"] == [[0, 10], [11, 20], [30, 32]]


@pytest.mark.long
def test_a_repair_records_its_principal_and_reason(site: LedgerSite) -> None:
    done = repair(site, {"0": 20})
    listed = site.rig.http.get(f"{site.path}/commits").json()
    assert listed["repairs"] == [done]
    assert [batch["number"] for batch in listed["commits"]] == [1]
    page = site.rig.http.get(f"{site.path}/commits", params={"before": 2}).json()
    assert page["repairs"] == []


def test_a_repair_aborts_open_batches_and_fences_their_instances(short: LedgerSite) -> None:
    idle = short.open("idle", "idle", "run-9")
    short.post_abort(idle, "run-9")
    batch = short.open("late", "query", "run-1", takeover=True, ordinal=1)
    lose_records(short, {0: 30})
    halt_ledger(short, {0: 20})
    assert [entry["key"] for entry in ask_plan(short).json()["open"]] == ["late"]
    repair(short, {"0": 20})

    assert short.committed()["open"] == []
    assert code(short.post_commit(batch, {1: [(0, 5)]})) == "batch_aborted"
    again = short.post_open("late", "query", "run-1", takeover=True, ordinal=1)
    assert code(again) == "batch_fenced"
    assert "repaired" in again.json()["detail"]
    assert short.open("late", "query", "run-2", takeover=True, ordinal=1)["state"] == "open"
    assert short.open("more", "idle", "run-9")["state"] == "open"


@pytest.mark.long
@pytest.mark.parametrize("lost_from", [{"0": 19}, {"0": 21}, {"1": 2}, {"0": 20, "1": 5}])
def test_a_repair_gives_up_only_the_requested_records(
    site: LedgerSite, lost_from: dict[str, int]
) -> None:
    before = site.committed()
    response = ask_repair(site, lost_from)
    assert (response.status_code, code(response)) == (409, "repair_changed")
    assert "lost from 20 of partition 0" in response.json()["detail"]
    assert site.committed() == before


@pytest.mark.long
def test_losses_since_the_halt_are_in_the_plan_and_given_up(site: LedgerSite) -> None:
    lose_records(site, {1: 40})
    plan = ask_plan(site).json()
    assert [(records["partition"], records["first"]) for records in plan["lost"]] == [
        (0, 20),
        (1, 20),
    ]
    assert code(ask_repair(site, {"0": 20})) == "repair_changed"
    repair(site, {"0": 20, "1": 20})
    assert site.committed()["runs"]["1"] == [[0, 5], [6, 20]]


@pytest.mark.long
def test_a_loss_is_given_up_despite_later_writes_of_others(
    site: LedgerSite, kafka: SharedKafka
) -> None:
    Topics(kafka.bootstrap_servers).produce(site.topic.name, 0, [b"other"] * 50)
    assert ask_plan(site).json()["lost"][0]["first"] == 20
    repair(site, {"0": 20})
    assert site.committed()["runs"]["0"] == [[0, 10], [11, 20]]


def test_a_repeated_repair_changes_nothing(site: LedgerSite) -> None:
    first = repair(site, {"0": 20})
    assert repair(site, {"0": 20}) == first
    assert site.committed()["number"] == 2


def test_a_repair_of_an_intact_channel_is_refused(ledger: LedgerSite) -> None:
    for _ in range(2):
        for response in (ask_plan(ledger), ask_repair(ledger, {"0": 5})):
            assert (response.status_code, code(response)) == (409, "ledger_intact")
        ledger.commit(ledger.open(), {0: [(0, 10)]})


def test_a_halted_channel_names_the_command_that_repairs_it(site: LedgerSite) -> None:
    response = site.post_open("more")
    assert (response.status_code, code(response)) == (409, "ledger_halted")
    assert "`sluiceway channels repair NAME`" in response.json()["detail"]


@pytest.mark.long
def test_a_waiting_reader_learns_of_a_repair(site: LedgerSite) -> None:
    etag = site.get_committed().headers["etag"]
    assert site.get_committed(etag=etag).status_code == 304
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(site.get_committed, etag=etag, wait=60)
        until(lambda: site.rig.app.state.parts.changes.waiting)
        repair(site, {"0": 20})
        assert waiting.result(60).status_code == 200


@pytest.mark.long
def test_a_repair_needs_the_scope_manage_and_its_plan_any(site: LedgerSite) -> None:
    writer = site.rig.token("write:halted")
    owner = site.rig.token("manage:halted", label="ops")
    body = {"uid": site.uid, "lost_from": {"0": 20}, "reason": "r"}
    path, http = f"{site.path}/ledger/repair", site.rig.http
    assert http.get(path, params={"uid": site.uid}, headers=writer).status_code == 200
    assert code(http.post(path, json=body, headers=writer)) == "forbidden"
    assert http.post(path, json=body, headers=owner).json()["by"] != "loopback"


def test_without_kafka_a_repair_is_refused(site: LedgerSite, kafka: SharedKafka) -> None:
    before = site.committed()
    parts = site.rig.app.state.parts
    away = KafkaAdmin("127.0.0.1:1", timeout_s=0.5)
    real, parts.repairs.kafka = parts.repairs.kafka, away
    response = ask_repair(site, {"0": 20})
    parts.repairs.kafka = real
    assert (response.status_code, code(response)) == (503, "kafka_unavailable")
    assert site.committed() == before


def test_a_topic_that_refuses_the_messages_of_a_repair_is_no_malformed_request(
    site: LedgerSite, kafka: SharedKafka
) -> None:
    before = site.committed()
    topics = Topics(kafka.bootstrap_servers)
    topics.set(site.topic.name, cleanup_policy="compact")
    # Brokers apply it a moment later.
    until(lambda: is_refused(topics, site.topic.name))
    response = ask_repair(site, {"0": 20})
    assert (response.status_code, code(response)) == (409, "conflict")
    assert "the topic may be compacted" in response.json()["detail"]
    assert "errors" not in response.json()
    assert site.committed() == before

    topics.set(site.topic.name, cleanup_policy="delete")
    until(lambda: not is_refused(topics, site.topic.name))
    repair(site, {"0": 20})


def is_refused(topics: Topics, topic: str) -> bool:
    """Whether Kafka refuses messages without a key."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": topics.bootstrap_servers, "log_level": 0})
    producer.produce(topic, b"", partition=1, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    return errors[0] is not None


@pytest.mark.sample
@pytest.mark.parametrize("forgotten", [{"halted": None}, {"lost_from": {}}, {"lost_from": {0: 25}}])
def test_only_a_repair_clears_a_loss(site: LedgerSite, forgotten: dict[str, Any]) -> None:
    def save(tx: WriteTransaction) -> None:
        was = store.hold_existing(tx, site.uid)
        assert was is not None
        store.save(tx, replace(was, **forgotten), was=was, now=site.rig.clock())

    with pytest.raises(ConcurrentChange), site.rig.database.write() as tx:
        save(tx)
