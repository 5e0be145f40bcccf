import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from faults import at_call
from relay import Relay, reserve_port
from shared_kafka import RACK, SharedKafka
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.client import Client
from sluiceway_gateway.core.kafka.model import (
    AlterConfig,
    Cause,
    CreateTopic,
    GrowPartitions,
    NewMessage,
    ObservedTopic,
    Rejection,
    Watermarks,
)
from waiting import until

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def admin(kafka: SharedKafka) -> Iterator[KafkaAdmin]:
    client = KafkaAdmin(kafka.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def name() -> str:
    return f"admin.topic-{next(_numbers)}"


def create(admin: KafkaAdmin, name: str, partitions: int = 1, **config: str) -> None:
    topic = CreateTopic(
        name=name,
        partitions=partitions,
        replication=None,
        config={key.replace("_", "."): value for key, value in config.items()},
    )
    assert admin.create_topics([topic]) == {name: None}


def observed(
    admin: KafkaAdmin, name: str, *, once: Callable[[ObservedTopic], bool]
) -> ObservedTopic:
    """Return the topic once `once` holds: changes show when brokers know of them."""
    deadline = time.monotonic() + 180
    while True:
        topic = admin.observe([name]).topics.get(name)
        if topic is not None and once(topic):
            return topic
        assert time.monotonic() < deadline, topic


def cause(rejection: Rejection | None) -> Cause:
    assert rejection is not None
    assert rejection.message
    return rejection.cause


@pytest.mark.parametrize(
    ("timestamp_ms", "year"), [(1_767_225_600_000, 2026), (2**55, 9999), (2**63 - 1, 9999)]
)
def test_the_newest_timestamp_may_be_any_number(
    admin: KafkaAdmin, kafka: SharedKafka, name: str, timestamp_ms: int, year: int
) -> None:
    create(admin, name, message_timestamp_after_max_ms=str(2**63 - 1))
    observed(admin, name, once=lambda _: True)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(name, b"", timestamp=timestamp_ms)
    assert producer.flush(60) == 0
    newest = admin.newest(name, [0])
    assert newest is not None
    assert newest.year == year


def test_the_cluster_has_one_broker_that_is_its_controller(
    admin: KafkaAdmin, kafka: SharedKafka
) -> None:
    cluster = admin.describe_cluster()
    assert cluster.cluster_id
    assert cluster.controller_id == 1
    (broker,) = cluster.brokers
    assert (broker.id, broker.port, broker.rack) == (1, kafka.port, None)


def test_a_broker_that_does_not_answer_has_no_rack(admin: KafkaAdmin) -> None:
    (broker,) = admin.describe_cluster().brokers
    present, absent = admin.with_racks([broker, replace(broker, id=9)])
    assert (present.rack, absent.rack) == (RACK, None)


def test_a_topic_is_observed_as_created(admin: KafkaAdmin, name: str) -> None:
    create(admin, name, 3, retention_ms="60000", cleanup_policy="compact,delete")
    observed(admin, name, once=lambda topic: bool(topic.config))
    seen = admin.observe([name, name, "absent"])
    assert seen.rejections == {}
    assert seen.topics.keys() == {name}
    topic = seen.topics[name]
    assert (topic.partitions, topic.replication) == (3, 1)
    assert topic.config == {"retention.ms": "60000", "cleanup.policy": "compact,delete"}


def test_a_topic_id_is_unique_and_written_as_by_kafkas_tools(admin: KafkaAdmin, name: str) -> None:
    names = [f"{name}-{number}" for number in range(40)]
    for topic_name in names:
        create(admin, topic_name)
    ids = {observed(admin, topic_name, once=lambda _: True).id for topic_name in names}
    assert len(ids) == len(names)
    assert all(len(id_) == 22 and not set(id_) & set("+/=") for id_ in ids)
    assert set(admin.delete_topics(names).values()) == {None}


def test_a_recreated_topic_has_another_id(admin: KafkaAdmin, name: str) -> None:
    create(admin, name)
    before = observed(admin, name, once=lambda _: True)
    assert admin.delete_topics([name]) == {name: None}
    create(admin, name)
    observed(admin, name, once=lambda topic: topic.id != before.id)


def test_partitions_grow_and_never_shrink(admin: KafkaAdmin, name: str) -> None:
    create(admin, name, 2)
    assert admin.grow_partitions([GrowPartitions(name=name, partitions=4)]) == {name: None}
    observed(admin, name, once=lambda topic: topic.partitions == 4)
    fewer = admin.grow_partitions([GrowPartitions(name=name, partitions=3)])
    assert cause(fewer[name]) is Cause.INVALID_PARTITIONS


def test_overrides_are_set_and_deleted_together(admin: KafkaAdmin, name: str) -> None:
    create(admin, name, retention_ms="60000", segment_ms="1000")
    change = AlterConfig(name=name, set={"segment.ms": "2000"}, delete=frozenset({"retention.ms"}))
    assert admin.alter_configs([change]) == {name: None}
    observed(admin, name, once=lambda topic: topic.config == {"segment.ms": "2000"})


def test_each_topic_has_its_own_outcome(admin: KafkaAdmin, name: str) -> None:
    create(admin, name)

    def topic(suffix: str, **changes: object) -> CreateTopic:
        values = {"partitions": 1, "replication": None, "config": {}} | changes
        return CreateTopic(name=f"{name}{suffix}", **values)  # type: ignore[arg-type]

    done = admin.create_topics(
        [
            topic(""),
            topic(".fine"),
            topic(".replicas", replication=3),
            topic(".config", config={"segment.bytes": "5"}),
            topic(" !"),
        ]
    )
    assert done[f"{name}.fine"] is None
    assert cause(done[name]) is Cause.TOPIC_EXISTS
    assert cause(done[f"{name}.replicas"]) is Cause.INVALID_REPLICATION
    assert "replication factor of 3" in str(done[f"{name}.replicas"])
    assert cause(done[f"{name}.config"]) is Cause.INVALID_CONFIG
    assert "at least 1048576" in str(done[f"{name}.config"])
    assert cause(done[f"{name} !"]) is Cause.INVALID_NAME


def test_changing_an_absent_topic_is_rejected(admin: KafkaAdmin, name: str) -> None:
    change = AlterConfig(name=name, set={"segment.ms": "2000"}, delete=frozenset())
    growth = GrowPartitions(name=name, partitions=3)
    assert cause(admin.grow_partitions([growth])[name]) is Cause.TOPIC_ABSENT
    assert cause(admin.alter_configs([change])[name]) is Cause.TOPIC_ABSENT
    assert cause(admin.delete_topics([name])[name]) is Cause.TOPIC_ABSENT
    assert admin.describe_topic(name) is None
    assert admin.describe_topic("no topic's name!") is None


def test_metadata_and_watermarks_follow_writes(
    admin: KafkaAdmin, kafka: SharedKafka, name: str
) -> None:
    create(admin, name, 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(3):
        producer.produce(name, b"record", partition=1)
    assert producer.flush(30) == 0
    observed(admin, name, once=lambda topic: topic.partitions == 2)
    topic = admin.describe_topic(name)
    assert topic is not None
    assert [partition.partition for partition in topic.partitions] == [0, 1]
    assert all(partition.leader == 1 and partition.isr == (1,) for partition in topic.partitions)
    assert admin.watermarks(name, [1, 0]) == {
        0: Watermarks(begin_offset=0, end_offset=0),
        1: Watermarks(begin_offset=0, end_offset=3),
    }
    assert admin.watermarks(name, []) == {}


def test_offsets_are_requested_of_leaders_that_the_client_has(
    admin: KafkaAdmin, kafka: SharedKafka, name: str
) -> None:
    create(admin, name)
    observed(admin, name, once=lambda _: True)
    calls: list[str] = []
    client = KafkaAdmin(kafka.bootstrap_servers)
    with ExitStack() as stack:
        for call in ("describe_topics", "list_offsets"):
            record = partial(lambda call, *_, **__: calls.append(call), call)
            stack.enter_context(at_call(AdminClient, call, record))
        assert client.end_offsets(name, [0]) == client.end_offsets(name, [0]) == {0: 0}
        assert calls == ["describe_topics", "list_offsets", "list_offsets"]
        assert client.end_offsets(f"{name}-absent", [0]) == {}
        assert calls[3:] == ["describe_topics"]
        admin.grow_partitions([GrowPartitions(name=name, partitions=2)])
        until(lambda: client.end_offsets(name, [0, 1]) == {0: 0, 1: 0})


def test_hundreds_of_topics_are_created_and_deleted_together(admin: KafkaAdmin, name: str) -> None:
    names = [f"{name}-{number:03}" for number in range(250)]
    topics = [
        CreateTopic(name=topic_name, partitions=1, replication=1, config={"segment.ms": "1000"})
        for topic_name in names
    ]
    assert set(admin.create_topics(topics).values()) == {None}
    deadline = time.monotonic() + 180
    # A new topic is visible once the broker that answers has its metadata.
    while len((seen := admin.observe(names)).topics) < len(names):
        assert time.monotonic() < deadline
    assert all(topic.config == {"segment.ms": "1000"} for topic in seen.topics.values())
    assert set(admin.delete_topics(names).values()) == {None}


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address that refuses connections."""
    with reserve_port() as reserved:
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


@pytest.mark.long
def test_without_a_broker_every_call_fails_within_the_timeout(refusing: str) -> None:
    away = KafkaAdmin(refusing, timeout_s=0.5)
    change = AlterConfig(name="t", set={"segment.ms": "2000"}, delete=frozenset())
    calls = [
        away.describe_cluster,
        lambda: away.describe_topic("t"),
        lambda: away.observe(["t", "u"]),
        lambda: away.create_topics(
            [CreateTopic(name="t", partitions=1, replication=None, config={})]
        ),
        lambda: away.grow_partitions([GrowPartitions(name="t", partitions=2)]),
        lambda: away.alter_configs([change]),
        lambda: away.delete_topics(["t"]),
        lambda: away.watermarks("t", [0]),
    ]
    for call in calls:
        began = time.monotonic()
        with pytest.raises(KafkaUnavailable, match=f"{refusing} does not answer"):
            call()
        # librdkafka's own timeout is a minute.
        assert time.monotonic() - began < 30
    assert away.observe([]).topics == {}
    away.close()


_LISTING = """
import sys
from sluiceway_gateway.core.errors import KafkaUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin

away = KafkaAdmin(sys.argv[1], timeout_s=0.1)
topics = {f"t{number}": 1 for number in range(5000)}
for _ in range(5):
    try:
        away.watermarks_of(topics)
    except KafkaUnavailable:
        pass
"""


@pytest.mark.long
def test_offsets_of_many_topics_time_out_without_ending_the_process(refusing: str) -> None:
    subprocess.run([sys.executable, "-c", _LISTING, refusing], check=True, timeout=300)


def test_the_outcome_of_the_last_request_is_remembered(kafka: SharedKafka, refusing: str) -> None:
    client = KafkaAdmin(kafka.bootstrap_servers)
    assert client.answered(60) is None
    client.describe_cluster()
    assert client.answered(60) is True
    assert client.answered(0) is None
    client.close()
    away = KafkaAdmin(refusing, timeout_s=0.1)
    with pytest.raises(KafkaUnavailable):
        away.describe_cluster()
    assert away.answered(60) is False
    away.close()


def test_one_call_at_a_time_waits_for_a_kafka_that_does_not_answer(
    fragile_kafka: Relay, admin: KafkaAdmin, name: str
) -> None:
    create(admin, name)
    observed(admin, name, once=lambda _: True)
    away = KafkaAdmin(fragile_kafka.address, timeout_s=1.0)
    fragile_kafka.cut()
    with pytest.raises(KafkaUnavailable):
        away.describe_topic(name)
    checks, answers = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        checks.set()
        assert answers.wait(60)

    with at_call(Client, "describe_cluster", wait), ThreadPoolExecutor(1) as pool:
        first = pool.submit(away.end_offsets, name, [0])
        try:
            assert checks.wait(60)
            for _ in range(3):
                with pytest.raises(KafkaUnavailable, match=f"{fragile_kafka.address} does not"):
                    away.end_offsets(name, [0])
            assert not first.done()
        finally:
            answers.set()
        with pytest.raises(KafkaUnavailable):
            first.result(60)
    fragile_kafka.restore()
    until(lambda: away.end_offsets(name, [0]) == {0: 0}, despite=KafkaUnavailable)
    away.close()


def test_messages_without_an_acknowledgement_may_be_written(refusing: str) -> None:
    away = KafkaAdmin(refusing, timeout_s=0.1)
    message = NewMessage(partition=0, key=None, value=b"x")
    with pytest.raises(KafkaUnavailable, match="may be written") as failure:
        away.produce("orders", [message], max_message_bytes=1_000_000)
    assert "Nothing was lost" not in str(failure.value)
    away.close()
