"""Import of offsets of groups, on a real broker where Kafka decides."""

import uuid
from collections.abc import Iterator, Mapping
from unittest.mock import create_autospec

import httpx
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from endpoints import report, site
from gateways import TOPIC_ID, Rig, code, running
from shared_kafka import SharedKafka
from sluiceway_gateway.channels.model import Phase, TopicRef
from sluiceway_gateway.core.auth.model import OwnershipMode
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import (
    GroupOffset,
    KafkaGroup,
    PartitionLeadership,
    TopicMetadata,
    Watermarks,
)
from sluiceway_gateway.endpoints.liveness import Reaper
from sluiceway_gateway.offsets.importing import OffsetImports
from topics import Topics
from waiting import until

CHANNEL = "/v1/channels/flights"


@pytest.fixture
def near(database: Database, database_url: str, kafka: SharedKafka) -> Iterator[Rig]:
    """A gateway with Kafka and without loops."""
    servers = kafka.bootstrap_servers
    with running(
        database, database_url, kafka_bootstrap_servers=servers, kafka_timeout_ms=20_000
    ) as rig:
        yield rig


@pytest.fixture
def topics(kafka: SharedKafka) -> Topics:
    return Topics(kafka.bootstrap_servers)


@pytest.fixture
def topic(topics: Topics) -> str:
    name = f"theirs-{uuid.uuid4().hex[:8]}"
    topics.create(name, 2)
    topics.produce(name, 0, [b"m"] * 5)
    topics.produce(name, 1, [b"m"] * 3)
    return name


@pytest.fixture
def uid(near: Rig, topic: str) -> str:
    """The uid of a channel that has adopted the topic."""
    made = near.put(topic={"name": topic}).json()
    near.observe("flights", Phase.READY, topic=TopicRef(**made["status"]["topic"]))
    result: str = made["metadata"]["uid"]
    return result


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


def commit_in_kafka(
    topics: Topics, group: str, topic: str, offsets: Mapping[int, int], metadata: str = ""
) -> None:
    places = [TopicPartition(topic, p, offset, metadata) for p, offset in offsets.items()]
    tool = Consumer(
        {"bootstrap.servers": topics.bootstrap_servers, "group.id": group, "log_level": 3}
    )

    def commit() -> bool:
        committed = tool.commit(offsets=places, asynchronous=False)
        return all(partition.error is None for partition in committed)

    # A new broker first creates its topic of group offsets.
    until(commit, despite=KafkaException)
    tool.close()


def import_offsets(rig: Rig, group: str, uid: str, **body: str) -> httpx.Response:
    path = f"{CHANNEL}/groups/{group}/offsets/import"
    return rig.http.post(path, json={"uid": uid, **body})


def test_an_import_is_in_the_history_and_in_the_audit_trail(
    near: Rig, topics: Topics, topic: str, uid: str, group: str
) -> None:
    commit_in_kafka(topics, f"their-{group}", topic, {0: 4}, "checkpoint 7")
    plan = near.http.get(
        f"{CHANNEL}/groups/{group}/offsets/import", params={"kafka_group": f"their-{group}"}
    ).json()
    assert plan["refusal"] is None
    assert plan["kafka_group"] == {"name": f"their-{group}", "active": False}
    lines = [(line["result"], line["after"], line["end_offset"]) for line in plan["partitions"]]
    assert lines == [("imported", {"offset": 4, "record": 0}, 5), ("absent", None, 3)]
    assert code(near.http.get(f"{CHANNEL}/groups/{group}/offsets")) == "group_not_found"

    done = import_offsets(near, group, uid, kafka_group=f"their-{group}")
    assert (done.status_code, done.json()) == (200, plan)
    stored = near.http.get(f"{CHANNEL}/groups/{group}/offsets").json()
    (position,) = stored["positions"]
    assert (position["partition"], position["offset"]) == (0, 4)
    assert position["metadata"] == "checkpoint 7"
    reason = f"imported from Kafka's group 'their-{group}'"
    assert [line["reason"] for line in stored["resets"]] == [reason]
    entry = near.http.get(f"{CHANNEL}/changes").json()["items"][0]
    assert (entry["action"], entry["target"], entry["reason"]) == ("reset_offsets", group, reason)
    assert entry["fields"] == [{"field": "partition 0", "old": None, "new": 4}]
    # A repeat changes nothing.
    assert import_offsets(near, group, uid, kafka_group=f"their-{group}").status_code == 200
    assert len(near.http.get(f"{CHANNEL}/groups/{group}/offsets").json()["resets"]) == 1


def test_a_group_that_kafka_does_not_have_is_not_found(near: Rig, uid: str, group: str) -> None:
    response = import_offsets(near, group, uid)
    assert (response.status_code, code(response)) == (404, "group_not_found")
    assert code(near.http.get(f"{CHANNEL}/groups/{group}/offsets")) == "group_not_found"


def test_offsets_of_a_topic_that_was_created_again_are_refused(
    near: Rig, topics: Topics, topic: str, uid: str, group: str
) -> None:
    topics.create_again(topic, 2)
    topics.produce(topic, 0, [b"m"] * 5)
    commit_in_kafka(topics, group, topic, {0: 4})
    response = import_offsets(near, group, uid)
    assert (response.status_code, code(response)) == (409, "topic_changed")
    assert "deleted and created again" in response.json()["detail"]


def test_an_import_needs_a_token_that_may_read(
    near: Rig, topics: Topics, topic: str, uid: str, group: str
) -> None:
    commit_in_kafka(topics, group, topic, {0: 4})
    near.http.headers.update(near.token("write:flights"))
    assert code(import_offsets(near, group, uid)) == "forbidden"
    near.http.headers.update(near.token("read:flights"))
    assert import_offsets(near, group, uid).status_code == 200


def test_a_lost_member_that_returns_after_an_import_cannot_commit(rig: Rig) -> None:
    leaders = (PartitionLeadership(partition=0, leader=0, replicas=(0,), isr=(0,)),)
    kafka = create_autospec(KafkaAdmin, instance=True)
    kafka.describe_topic.return_value = TopicMetadata(name="t", id=TOPIC_ID, partitions=leaders)
    kafka.consumer_group.return_value = KafkaGroup(
        name="g", active=False, offsets={0: GroupOffset(offset=40, metadata=None)}
    )
    kafka.watermarks.return_value = {0: Watermarks(begin_offset=0, end_offset=100)}
    ownership = Ownership(rig.database, mode=OwnershipMode.ENFORCE)
    rig.replace(
        offset_imports=OffsetImports(
            rig.database, kafka, ownership=ownership, stable_of=lambda *_: {}, clock=rig.clock
        )
    )
    flights = site(rig)
    member = flights.member()
    assert flights.commit(member, 1, (0, 10, 0)).status_code == 200

    now_s = 0.0
    reaper = Reaper(database=rig.database, clock=rig.clock, monotonic=lambda: now_s)
    while flights.get(member)["health"] != "lost":
        now_s += reaper.run_once().pause_s
    assert import_offsets(rig, "g", flights.uid).status_code == 200
    assert flights.beat(report(member, "started"))[0]["status"] == "ok"
    # It goes on at 10, so it has read again what the import has skipped.
    assert code(flights.commit(member, 2, (0, 45, 0))) == "stale_generation"
    assert flights.committed() == [(0, 40, 0)]
