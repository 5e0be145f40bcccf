"""The check of a topic's identity, shared within a process while it succeeds."""

import contextlib
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from relay import Relay
from sluiceway.errors import KafkaUnavailable, TopicGone
from sluiceway.kafka import topic
from sluiceway.kafka.consumer import MessageStream
from sluiceway.kafka.io_thread import SHARED_CONSUMERS
from sluiceway.kafka.topic import TopicIdentity
from topics import Topics
from waiting import until

Describe = Callable[..., Any]


class Client(AdminClient):
    """An admin client that counts its descriptions; `instead` replaces the next ones.

    `limits_s` has the time limits of its requests for offsets.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.descriptions = 0
        self.instead: list[Callable[[Describe], Any]] = []
        self.limits_s: list[float] = []

    def list_offsets(self, *arguments: Any, **options: Any) -> Any:
        self.limits_s.append(options["request_timeout"])
        assert self.descriptions, "librdkafka would look up the leaders"
        return super().list_offsets(*arguments, **options)

    def describe_topics(self, *arguments: Any, **options: Any) -> Any:
        self.descriptions += 1

        def describe(wanted: Any = arguments[0]) -> Any:
            return super(Client, self).describe_topics(wanted, **options)

        return self.instead.pop(0)(describe) if self.instead else describe()


class Lines(logging.Handler):
    """Collects messages of a logger."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """The admin clients of topic identities, in the order of their creation."""
    created: list[Client] = []

    def create(*arguments: Any, **options: Any) -> Client:
        created.append(Client(*arguments, **options))
        return created[-1]

    # Only librdkafka knows which requests it sends, and when.
    monkeypatch.setattr(topic, "AdminClient", create)
    return created


@pytest.fixture
def own_properties() -> Mapping[str, str]:
    """Kafka properties that only this test uses."""
    return {"client.id": uuid.uuid4().hex}


def test_equal_properties_share_one_admin_client(
    topics: Topics, clients: list[Client], own_properties: Mapping[str, str]
) -> None:
    first, second = (TopicIdentity(topics.connect(), own_properties) for _ in range(2))
    assert len(clients) == 1
    other = TopicIdentity(topics.connect(), {"client.id": uuid.uuid4().hex})
    assert len(clients) == 2
    for identity in (first, second, other):
        identity.verify(timeout_s=30)


def test_an_advertised_address_that_cannot_be_reached_is_named(
    topics: Topics, fragile_kafka: Relay, own_properties: Mapping[str, str]
) -> None:
    # The broker's own port, which names that of the relay.
    bootstrap = {"bootstrap.servers": f"127.0.0.1:{fragile_kafka.target}"}
    fragile_kafka.cut()
    identity = TopicIdentity(replace(topics.connect(), kafka=bootstrap), own_properties)
    named = rf"broker at {fragile_kafka.address} \(Connection refused\) .*SLUICEWAY_LISTENER"

    def names_it() -> bool:
        with pytest.raises(KafkaUnavailable) as raised:
            identity.verify(timeout_s=2)
        return re.search(named, str(raised.value)) is not None

    # On a busy machine, the bootstrap server may not answer in time.
    until(names_it)


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


def test_of_concurrent_callers_one_checks_the_topic(
    topics: Topics, clients: list[Client], own_properties: Mapping[str, str]
) -> None:
    connection = topics.connect()
    crowd = [TopicIdentity(connection, own_properties) for _ in range(8)]
    together = threading.Barrier(8)

    def verify(identity: TopicIdentity) -> None:
        together.wait(30)
        identity.verify(timeout_s=30, max_age_s=60)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(verify, crowd))
    assert [client.descriptions for client in clients] == [1]


def test_a_caller_whose_shared_check_fails_checks_alone_in_the_remaining_time(
    topics: Topics, clients: list[Client], own_properties: Mapping[str, str]
) -> None:
    nowhere = replace(topics.connect(), kafka={"bootstrap.servers": "127.0.0.1:1"})
    identity, another = (TopicIdentity(nowhere, own_properties) for _ in range(2))
    checking, proceed = threading.Event(), threading.Event()

    def hold(describe: Describe) -> Any:
        checking.set()
        assert proceed.wait(60)
        return describe()

    clients[0].instead.append(hold)
    with ThreadPoolExecutor(1) as threads:
        shared = threads.submit(another.verify, timeout_s=0.3, max_age_s=60)
        assert checking.wait(60)
        with pytest.raises(KafkaUnavailable):
            identity.verify(timeout_s=0.3, max_age_s=60)
        proceed.set()
        with pytest.raises(KafkaUnavailable):
            shared.result(60)


def test_after_a_failure_a_new_check_starts(
    topics: Topics, clients: list[Client], own_properties: Mapping[str, str]
) -> None:
    nowhere = replace(topics.connect(), kafka={"bootstrap.servers": "127.0.0.1:1"})
    first = TopicIdentity(nowhere, own_properties)
    TopicIdentity(nowhere, own_properties)
    assert len(clients) == 1
    with pytest.raises(KafkaUnavailable):
        first.verify(timeout_s=0.3)
    TopicIdentity(nowhere, own_properties)
    assert len(clients) == 2


def test_in_an_outage_a_client_is_replaced_at_most_once_a_second(
    topics: Topics, clients: list[Client], own_properties: Mapping[str, str]
) -> None:
    nowhere = replace(topics.connect(), kafka={"bootstrap.servers": "127.0.0.1:1"})
    identities = [TopicIdentity(nowhere, own_properties) for _ in range(10)]
    replaced_s = []
    while len(replaced_s) < 3:
        before = len(clients)
        for identity in identities:
            with pytest.raises(KafkaUnavailable):
                identity.verify(timeout_s=0.05)
        if len(clients) > before:
            replaced_s.append(time.monotonic())
    assert len(clients) <= 2 + replaced_s[-1] - replaced_s[0] + 1


def test_a_delivery_is_confirmed_although_another_broker_does_not_know_a_new_topic(
    topics: Topics, clients: list[Client], own_properties: Mapping[str, str]
) -> None:
    connection = topics.connect()
    identity = TopicIdentity(connection, own_properties)
    identity.verify(timeout_s=30)

    def describe_at_another_broker(describe: Describe) -> Any:
        return {connection.topic_name: describe(TopicCollection(["unknown"]))["unknown"]}

    before = clients[0].descriptions
    clients[0].instead.append(describe_at_another_broker)
    identity.confirm_delivery(5, timeout_s=30)
    assert clients[0].descriptions == before + 2
    identity.confirm_delivery(5, timeout_s=30)
    assert clients[0].descriptions == before + 2


@pytest.mark.parametrize("shared", [False, True])
def test_a_topic_that_a_broker_does_not_know_has_no_end(topics: Topics, shared: bool) -> None:
    connection = topics.connect(partitions=3)
    opened = MessageStream(connection, timeout_s=30, consumers=SHARED_CONSUMERS if shared else None)
    opened.verify()
    topics.delete(connection.topic_name)
    with pytest.raises(TopicGone):
        opened.verify()
    # Otherwise a reader would take the topic for one that it has read completely.
    assert opened.discover_partitions() == 3
    with pytest.raises(TopicGone):
        opened.final_ends(range(opened.discover_partitions()))
    opened.close()


def test_a_request_for_offsets_has_at_least_a_second(
    topics: Topics, clients: list[Client], own_properties: Mapping[str, str]
) -> None:
    identity = TopicIdentity(topics.connect(), own_properties)
    identity.ends([0], timeout_s=60)
    # Kafka may answer within so short a time, or not.
    with contextlib.suppress(KafkaUnavailable):
        identity.ends([0], timeout_s=0.01)
    first_s, second_s = clients[0].limits_s
    assert first_s > second_s >= 1


@pytest.mark.parametrize("described", [False, True])
def test_librdkafka_looks_up_the_leaders_of_topics_that_it_has_not_described(
    topics: Topics, described: bool
) -> None:
    """Such a lookup may crash the process, so TopicIdentity describes the topic before."""
    connection = topics.connect()
    name = connection.topic_name
    # The leader of a new topic may refuse requests for a moment.
    TopicIdentity(connection).ends([0], timeout_s=60)
    lines: list[str] = []
    logger = logging.Logger("librdkafka")
    logger.addHandler(Lines(lines))
    properties = {"bootstrap.servers": topics.bootstrap_servers, "debug": "metadata"}
    client = AdminClient(properties, logger=logger)
    if described:
        client.describe_topics(TopicCollection([name]))[name].result(60)
    (future,) = client.list_offsets({TopicPartition(name, 0): OffsetSpec.latest()}).values()
    assert future.result(60).offset == 0
    client.poll(0)
    until(lambda: client.poll(0.1) == 0)
    assert lines
    assert any("query partition leaders" in line for line in lines) is not described


def test_offsets_are_requested_of_leaders_that_the_client_has(
    topics: Topics, clients: list[Client], own_properties: Mapping[str, str]
) -> None:
    connection = topics.connect(partitions=2)
    identity, another = (TopicIdentity(connection, own_properties) for _ in range(2))
    assert identity.ends([0, 1], timeout_s=60) == {0: 0, 1: 0}
    assert another.ends([0], timeout_s=60) == {0: 0}
    assert clients[0].descriptions == 1
    topics.grow(connection.topic_name, 3)
    assert identity.ends([2], timeout_s=60) == {2: 0}
    assert clients[0].descriptions > 1
