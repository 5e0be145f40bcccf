"""Admin requests of pykafka's Broker: topics and groups."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_calls import broker_at, fetch, produce_values
from sluiceway import Channel, Gateway
from sluiceway.broker import Broker, CreateTopicRequest
from sluiceway.errors import ChannelNotFound, Conflict, OptionError

NewChannel = Callable[..., Channel]


@pytest.fixture
def broker(gateway_url: str) -> Iterator[Broker]:
    with broker_at(gateway_url) as broker:
        yield broker


def test_a_created_topic_is_a_channel_of_bytes_and_is_deleted_when_read(
    broker: Broker, gateway_url: str
) -> None:
    name = f"made-{uuid.uuid4().hex[:8]}"
    config: Any = [(b"retention.ms", b"60000")]
    request = CreateTopicRequest(name.encode(), 2, 1, [], config)
    broker.create_topics([request], timeout=30_000)
    with Gateway(gateway_url) as gateway:
        channel = gateway.channel(name)
        assert (channel.format, channel.partitions) == ("bytes", 2)
        assert produce_values(broker, channel, [b"anything"]).err == 0
        assert fetch(broker, channel).messages[0].value == b"anything"
        with pytest.raises(Conflict):
            broker.create_topics([request])
        with pytest.raises(Conflict) as caught:
            broker.delete_topics([name])
        assert caught.value.code == "endpoints_live"
        broker.close()
        broker.connect()
        broker.delete_topics([name.encode()], timeout=30_000)
        with pytest.raises(ChannelNotFound):
            channel.refresh()
    wrong: Any = [("retention.ms", "long")]
    with pytest.raises(OptionError, match=r"retention\.ms is 'long'"):
        broker.create_topics([CreateTopicRequest(topic_name=name, config_entries=wrong)])
    with pytest.raises(OptionError, match="replication_factor"):
        broker.create_topics([CreateTopicRequest(name, 1, 1, [(0, [1])])])


@pytest.mark.long
def test_groups_are_listed_and_described_with_live_readers(
    broker: Broker, new_channel: NewChannel
) -> None:
    channel, group = new_channel(), f"g-{uuid.uuid4().hex[:8]}".encode()
    reported = broker.join_group("c", group, b"", channel.name)
    assert broker.list_groups().groups[group].group_id == group
    described = broker.describe_groups([group, b"nobody-was-in"]).groups
    assert (described[group].state, described[b"nobody-was-in"].state) == (b"Stable", b"Dead")
    (member,) = described[group].members.values()
    assert member.member_id == reported.member_id
    assert (member.client_id, member.client_host, member.member_metadata) == (b"", b"", None)
    ((topic, _),) = member.member_assignment.partition_assignment
    assert topic == channel.name.encode()
    broker.leave_group("c", group, reported.member_id)
    assert broker.describe_groups([group]).groups[group].state == b"Empty"


def test_every_request_has_one_version(broker: Broker) -> None:
    versions = broker.fetch_api_versions().api_versions
    assert {(version.min, version.max) for version in versions.values()} == {(0, 0)}
    assert {0, 1, 2, 3, 8, 9, 11, 12, 13, 14} <= versions.keys()
