"""The check of a topic's identity, shared within a process while it succeeds."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from sluiceway.errors import KafkaUnavailable, TopicGone
from sluiceway.kafka.consumer import MessageStream, OwnStream
from sluiceway.kafka.shared_stream import SharedStream
from sluiceway.kafka.topic import TopicIdentity
from topics import Topics


def test_equal_properties_share_one_admin_client(topics: Topics) -> None:
    first, second = (TopicIdentity(topics.connect()) for _ in range(2))
    assert first._admin is second._admin
    other = TopicIdentity(topics.connect(), {"client.id": "another"})
    assert other._admin is not first._admin
    for each in (first, second, other):
        each.verify(timeout_s=30)


def test_a_topic_check_serves_all_callers_that_accept_its_age(topics: Topics) -> None:
    connection = topics.connect()
    first = TopicIdentity(connection)
    first.verify(timeout_s=30)
    topics.delete(connection.topic_name)
    topics.create(connection.topic_name, 3)
    second = TopicIdentity(connection)
    second.verify(timeout_s=30, max_age_s=60)
    with pytest.raises(TopicGone):
        second.verify(timeout_s=30)
    # And that is the newest check.
    with pytest.raises(TopicGone):
        first.verify(timeout_s=30, max_age_s=60)


def test_of_concurrent_callers_one_checks_the_topic(topics: Topics) -> None:
    connection = topics.connect()
    crowd = [TopicIdentity(connection) for _ in range(8)]
    admin, together = crowd[0]._admin, threading.Barrier(8)
    moments = set()

    def verify(identity: TopicIdentity) -> None:
        together.wait(30)
        identity.verify(timeout_s=30, max_age_s=60)
        moments.add(admin.descriptions[connection.topic_name].at_s)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(verify, crowd))
    assert len(moments) == 1


def test_a_caller_whose_shared_check_fails_checks_alone_in_the_remaining_time(
    topics: Topics,
) -> None:
    nowhere = replace(topics.connect(), kafka={"bootstrap.servers": "127.0.0.1:1"})
    identity = TopicIdentity(nowhere)
    with identity._admin.lock, pytest.raises(KafkaUnavailable):
        identity.verify(timeout_s=0.3, max_age_s=60)


def test_after_a_failure_a_new_check_starts(topics: Topics) -> None:
    nowhere = replace(topics.connect(), kafka={"bootstrap.servers": "127.0.0.1:1"})
    first = TopicIdentity(nowhere)
    assert TopicIdentity(nowhere)._admin is first._admin
    with pytest.raises(KafkaUnavailable):
        first.verify(timeout_s=0.3)
    assert TopicIdentity(nowhere)._admin is not first._admin


def test_a_delivery_is_confirmed_although_another_broker_does_not_know_a_new_topic(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = topics.connect()
    identity = TopicIdentity(connection)
    identity.verify(timeout_s=30)
    admin = AdminClient({"bootstrap.servers": connection.kafka["bootstrap.servers"]})
    answered: list[str] = []

    def describe(wanted: TopicCollection, **options: Any) -> Any:
        # The first request reaches a broker without the topic.
        name = "unknown" if not answered else connection.topic_name
        answered.append(name)
        described = admin.describe_topics(TopicCollection([name]), **options)
        return {connection.topic_name: described[name]}

    # librdkafka chooses the broker.
    monkeypatch.setattr(identity._admin.client, "describe_topics", describe)
    assert identity.confirm_delivery(timeout_s=30)
    assert answered == ["unknown", connection.topic_name]


@pytest.mark.parametrize("stream", [OwnStream, SharedStream])
def test_a_topic_that_a_broker_does_not_know_has_no_end(
    topics: Topics, stream: type[MessageStream]
) -> None:
    connection = topics.connect(partitions=3)
    opened = stream(connection, timeout_s=30)
    opened.verify()
    topics.delete(connection.topic_name)
    with pytest.raises(TopicGone):
        opened.verify()
    # Otherwise a reader would take the topic for one that it has read completely.
    assert opened.discover_partitions() == 3
    with pytest.raises(TopicGone):
        opened.final_ends(range(opened.discover_partitions()))
    opened.close()
