"""The admin client of sluiceway.confluent."""

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from confluent_facade import OFFSET_INVALID, Facade, KafkaError, KafkaException, at, poll_until
from sluiceway import Position
from sluiceway.confluent import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicCollection
from sluiceway.confluent.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from sluiceway.errors import ChannelNotFound


@pytest.fixture
def admin(site: Facade) -> AdminClient:
    return AdminClient({"bootstrap.servers": site.url})


def code_of(future: Any) -> int:
    with pytest.raises(KafkaException) as caught:
        future.result(60)
    code: int = caught.value.args[0].code()
    return code


def test_channels_are_created_grown_listed_and_deleted(site: Facade, admin: AdminClient) -> None:
    name = f"admin-{uuid.uuid4().hex[:8]}"
    topic = NewTopic(name, 2, config={"retention.ms": "60000", "max.message.bytes": "2000"})
    assert admin.create_topics([topic])[name].result(60) is None
    channel = site.gateway.channel(name)
    assert (channel.format, channel.partitions) == ("bytes", 2)
    assert channel.partitioner == "consistent_random"
    assert channel.retention.ms == 60000
    assert channel.config["max.message.bytes"] == "2000"
    assert code_of(admin.create_topics([topic])[name]) == KafkaError.TOPIC_ALREADY_EXISTS

    assert admin.create_partitions([NewPartitions(name, 3)])[name].result(60) is None
    shrunk = admin.create_partitions([NewPartitions(name, 1)])[name]
    assert code_of(shrunk) == KafkaError.INVALID_PARTITIONS
    assert len(admin.list_topics(name).topics[name].partitions) == 3
    assert admin.cluster_id()

    with channel.writer():
        assert code_of(admin.delete_topics([name])[name]) == KafkaError.POLICY_VIOLATION
    assert admin.delete_topics([name])[name].result(60) is None
    unknown = admin.delete_topics([name])[name]
    assert code_of(unknown) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_offsets_of_groups_are_listed_and_altered(site: Facade, admin: AdminClient) -> None:
    name, group = site.channel(filled=5), f"g-{uuid.uuid4().hex[:8]}"
    with site.consumer(**{"group.id": group}) as reader:
        reader.assign([at(name, 0, 0)])
        reader.consume(3, 30)
        reader.commit(asynchronous=False)
        (committed,) = reader.committed([at(name)])

    def offsets(*places: Any) -> dict[tuple[str, int], int]:
        request = ConsumerGroupTopicPartitions(group, list(places) or None)
        result = admin.list_consumer_group_offsets([request])[group].result(60)
        return {(p.topic, p.partition): p.offset for p in result.topic_partitions}

    assert offsets(at(name), at(name, 1)) == {
        (name, 0): committed.offset,
        (name, 1): OFFSET_INVALID,
    }
    assert offsets() == {(name, 0): committed.offset}
    # The group has not read the other channel yet.
    other = site.channel(filled=5)
    request = ConsumerGroupTopicPartitions(group, [at(name, 0, 1), at(other, 0, 2)])
    admin.alter_consumer_group_offsets([request])[group].result(60)
    assert offsets() == {(name, 0): 1, (other, 0): 2}


def test_topics_offsets_and_groups_are_those_of_channels(site: Facade, admin: AdminClient) -> None:
    name, group = site.channel(filled=5), f"g-{uuid.uuid4().hex[:8]}"
    description = admin.describe_topics(TopicCollection([name]))[name].result(60)
    assert (description.name, len(description.partitions)) == (name, 2)
    unknown = admin.describe_topics(TopicCollection(["nowhere"]))["nowhere"]
    assert code_of(unknown) == KafkaError.UNKNOWN_TOPIC_OR_PART

    specs = {
        at(name, 0): OffsetSpec.latest(),
        at(name, 1): OffsetSpec.earliest(),
        at(name, 7): OffsetSpec.latest(),
    }
    futures = admin.list_offsets(specs)
    assert [futures[at(name, p)].result(60).offset for p in (0, 1)] == [5, 0]
    assert code_of(futures[at(name, 7)]) == KafkaError._UNKNOWN_PARTITION
    committed = site.channel(partitions=1, delivery="exactly_once")
    with site.gateway.channel(committed).writer() as writer:
        writer.write({"value": b"m"})
    (latest,) = admin.list_offsets({at(committed): OffsetSpec.latest()}).values()
    assert latest.result(60).offset == 1

    def states() -> dict[str, ConsumerGroupState]:
        groups = admin.list_consumer_groups().result(60).valid
        return {listing.group_id: listing.state for listing in groups}

    assert group not in states()
    with site.consumer(**{"group.id": group}) as reader:
        reader.subscribe([name])
        poll_until(lambda: reader.assignment(), reader)
        assert states()[group] is ConsumerGroupState.STABLE
    assert states()[group] is ConsumerGroupState.EMPTY
    only = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(60)
    assert group not in {listing.group_id for listing in only.valid}


def test_lists_of_groups_have_one_deadline_and_leave_out_deleted_channels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = AdminClient({"bootstrap.servers": "http://127.0.0.1:1"})
    timeouts_s: list[float] = []

    def channels(*, timeout_s: float) -> list[Any]:
        timeouts_s.append(timeout_s)
        return [SimpleNamespace(name=name) for name in ("gone", "a", "b")]

    def status(name: str, *, timeout_s: float) -> Any:
        timeouts_s.append(timeout_s)
        if name == "gone":
            raise ChannelNotFound("deleted", status=404)
        group = SimpleNamespace(group="g", members=int(name == "a"))
        return SimpleNamespace(groups=[group])

    def committed(name: str, _: str, *, index: None, timeout_s: float) -> dict[int, Position]:
        status(name, timeout_s=timeout_s)
        return {0: Position(offset=3)}

    # Each request notes the time that is left for it.
    monkeypatch.setattr(
        admin,
        "_control",
        SimpleNamespace(
            channels=channels, status=status, endpoints=SimpleNamespace(committed=committed)
        ),
    )
    (listed,) = admin.list_consumer_groups(request_timeout=60).result(60).valid
    assert (listed.group_id, listed.state) == ("g", ConsumerGroupState.STABLE)
    request = ConsumerGroupTopicPartitions("g")
    offsets = admin.list_consumer_group_offsets([request], request_timeout=60)["g"].result(60)
    assert [(p.topic, p.offset) for p in offsets.topic_partitions] == [("a", 3), ("b", 3)]
    for call in (timeouts_s[:4], timeouts_s[4:]):
        assert 60 > call[0] > call[1] > call[2] > call[3]
    named = ConsumerGroupTopicPartitions("g", [at("gone")])
    refused = admin.list_consumer_group_offsets([named])["g"]
    assert code_of(refused) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_retention_that_is_no_number_is_refused() -> None:
    admin = AdminClient({"bootstrap.servers": "http://127.0.0.1:1"})
    created = admin.create_topics([NewTopic("orders", 1, config={"retention.ms": "a week"})])
    with pytest.raises(KafkaException, match=r"retention\.ms is 'a week'") as caught:
        created["orders"].result(60)
    assert caught.value.args[0].code() == KafkaError._INVALID_ARG


def test_what_only_kafka_knows_is_not_available() -> None:
    admin = AdminClient({"bootstrap.servers": "http://127.0.0.1:1"})
    with pytest.raises(AttributeError, match=r"describe_configs\(\) is not available for channels"):
        admin.describe_configs([])
    with pytest.raises(AttributeError, match="has no attribute 'creat_topics'"):
        _ = admin.creat_topics
    with pytest.raises(KafkaException, match="takes the gateway's address"):
        AdminClient({"bootstrap.servers": "kafka-1:9092"})
