"""Offset requests during a leader election."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo

from broker_calls import broker_at, encode, fetch_offset, produce_values
from confluent_facade import Facade, at, error_code_of
from sluiceway import Channel, ChannelWriter
from sluiceway.broker import Broker, OffsetType, PartitionOffsetRequest
from sluiceway.broker.exceptions import LeaderNotAvailable
from sluiceway.confluent import sender
from sluiceway.errors import Fenced, KafkaUnavailable
from topics import readings

NewChannel = Callable[..., Channel]
ELECTED = KafkaError.FENCED_LEADER_EPOCH


class Elections:
    """Fails `left` requests for offsets like a broker with another leader epoch."""

    left: float = 0
    silent = False
    """Whether the leader does not answer at all, which librdkafka takes for a result."""

    def list_offsets(self, admin: AdminClient, asked: Any, **options: Any) -> dict[Any, Any]:
        if not self.left:
            found: dict[Any, Any] = self.asking(admin, asked, **options)
            return found
        self.left -= 1
        failed: Future[Any] = Future()
        if self.silent:
            failed.set_result(ListOffsetsResultInfo(OFFSET_INVALID, -1, -1))
        else:
            failed.set_exception(KafkaException(KafkaError(ELECTED)))
        return dict.fromkeys(asked, failed)

    asking = staticmethod(AdminClient.list_offsets)


class OfConsumer:
    """A librdkafka consumer whose requests fail during `left` elections."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.left = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def get_watermark_offsets(self, *asked: Any, **options: Any) -> Any:
        if not self.left:
            return self._consumer.get_watermark_offsets(*asked, **options)
        self.left -= 1
        raise KafkaException(KafkaError(ELECTED))

    def offsets_for_times(self, *asked: Any, **options: Any) -> Any:
        self.get_watermark_offsets(asked[0][0], timeout=20)
        return self._consumer.offsets_for_times(*asked, **options)


@pytest.fixture
def elections(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elections]:
    elections = Elections()

    def list_offsets(admin: AdminClient, asked: Any, **options: Any) -> dict[Any, Any]:
        return elections.list_offsets(admin, asked, **options)

    monkeypatch.setattr(AdminClient, "list_offsets", list_offsets)
    yield elections
    elections.left = 0


@pytest.fixture
def leaderless(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Partitions without a leader in librdkafka's metadata."""
    absent: set[int] = set()
    list_offsets, describe = AdminClient.list_offsets, AdminClient.describe_topics

    def listed(admin: AdminClient, asked: Any, **options: Any) -> dict[Any, Any]:
        if not any(each.partition in absent for each in asked):
            found: dict[Any, Any] = list_offsets(admin, asked, **options)
            return found
        failed: Future[Any] = Future()
        failed.set_exception(KafkaException(KafkaError(KafkaError._NOENT)))
        return dict.fromkeys(asked, failed)

    def described(admin: AdminClient, topics: Any, **options: Any) -> dict[str, Future[Any]]:
        found: dict[str, Future[Any]] = describe(admin, topics, **options)
        for future in found.values() if absent else ():
            for each in future.result(20).partitions:
                if each.id in absent:
                    each.leader = None
        return found

    monkeypatch.setattr(AdminClient, "list_offsets", listed)
    monkeypatch.setattr(AdminClient, "describe_topics", described)
    return absent


def test_a_partition_without_a_leader_does_not_hide_the_others_offsets(
    gateway_url: str, new_channel: NewChannel, leaderless: set[int]
) -> None:
    channel = new_channel(partitions=3)
    with broker_at(gateway_url) as broker:
        produce_values(broker, channel, encode(channel, 2), 2)
        leaderless.add(1)
        name = channel.name.encode()
        requests = [PartitionOffsetRequest(name, number, OffsetType.LATEST) for number in range(3)]
        responses = broker.request_offset_limits(requests).topics[name]
        assert [tuple(responses[number]) for number in range(3)] == [([0], 0), ([], 5), ([2], 0)]
        assert "no leader" in responses[1].reason
        assert (
            fetch_offset(broker, channel, OffsetType.EARLIEST, 1).err
            == LeaderNotAvailable.ERROR_CODE
        )
        leaderless.clear()
        assert fetch_offset(broker, channel, OffsetType.LATEST, 1).offset == [0]


def set_timeout(writer: ChannelWriter, timeout_s: float) -> None:
    """Change the `timeout_s` of an open writer: a busy machine may take longer to open it."""
    writer._timeout_s = writer.sender._timeout_s = timeout_s


def opened(channel: Channel, **wishes: Any) -> ChannelWriter:
    writer = channel.writer(**wishes)
    writer.write(readings(20))
    return writer


def states(channel: Channel) -> list[str]:
    return [each.state for each in channel.endpoints()]


def test_a_writer_closes_after_a_leader_election(
    new_channel: NewChannel, elections: Elections
) -> None:
    channel = new_channel(partitions=2)
    writer = opened(channel)
    elections.left = 2
    writer.close()
    assert states(channel) == ["closed"]
    with channel.reader() as reader:
        assert len(list(reader)) == 20


def test_a_leader_that_does_not_answer_for_a_while_ends_no_read(
    new_channel: NewChannel, elections: Elections
) -> None:
    channel = new_channel()
    opened(channel).close()
    elections.silent, elections.left = True, 2
    with channel.reader(until="now") as reader:
        assert len(list(reader)) == 20
    assert elections.left == 0


def test_closing_without_a_leader_can_be_retried(
    new_channel: NewChannel, elections: Elections
) -> None:
    channel = new_channel()
    writer = opened(channel)
    set_timeout(writer, 1)
    elections.left = math.inf
    for _ in range(2):
        with pytest.raises(KafkaUnavailable, match="epoch"):
            writer.close()
        assert states(channel)[0] not in ("closed", "error")
    elections.left = 0
    set_timeout(writer, 30)
    writer.close()
    writer.close()
    (endpoint,) = channel.endpoints()
    assert (endpoint.state, endpoint.ends) == ("closed", {0: 20})


def test_a_writer_whose_closing_failed_in_a_with_block_has_failed(
    new_channel: NewChannel, elections: Elections
) -> None:
    channel = new_channel()
    writer = opened(channel)
    set_timeout(writer, 1)
    elections.left = math.inf
    with pytest.raises(KafkaUnavailable) as first, writer:
        writer.close()
    with pytest.raises(KafkaUnavailable) as again:
        writer.close()
    assert again.value is first.value
    assert states(channel) == ["error"]


def test_a_closed_writer_stays_closed_after_later_failures(new_channel: NewChannel) -> None:
    channel = new_channel()
    writer = opened(channel)
    with suppress(ZeroDivisionError), writer:
        writer.close()
        raise ZeroDivisionError
    writer.close()
    assert states(channel) == ["closed"]


def test_a_permanent_closing_error_is_raised_again(new_channel: NewChannel) -> None:
    channel = new_channel()
    superseded = opened(channel, group="jobs")
    superseded.flush()
    channel.writer(group="jobs").close()
    found = []
    for _ in range(3):
        with pytest.raises(Fenced) as caught:
            superseded.close()
        found.append(caught.value)
    assert found == [found[0]] * 3


def test_a_producer_closes_after_a_leader_election(
    site: Facade, elections: Elections, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = site.channel()
    producer, impatient = site.producer(), site.producer()
    for each in (producer, impatient):
        each.produce(name, b"value", partition=0)
        each.flush()
    elections.left = 2
    assert (producer.close(), producer.close()) == (True, True)
    (endpoint,) = [each for each in site.gateway.channel(name).endpoints() if each.ends]
    assert (endpoint.state, endpoint.ends) == ("closed", {0: 2})

    monkeypatch.setattr(sender, "_LEAST_DETACH_S", 0.2)
    elections.left = math.inf
    for _ in range(2):
        assert error_code_of(impatient.close, 0.2) == KafkaError._ALL_BROKERS_DOWN
    assert sorted(states(site.gateway.channel(name))) == ["closed", "error"]


def test_a_broker_closes_after_a_leader_election(
    gateway_url: str, new_channel: NewChannel, elections: Elections
) -> None:
    channel = new_channel()
    broker = broker_at(gateway_url)
    produce_values(broker, channel, encode(channel, 3))
    elections.left = 2
    broker.close()
    broker.close()
    assert states(channel) == ["closed"]

    impatient = broker_at(gateway_url)
    produce_values(impatient, channel, encode(channel, 3))
    assert impatient.handler is not None
    impatient.handler.timeout_s = 1.0
    elections.left = math.inf
    for _ in range(2):
        with pytest.raises(KafkaUnavailable):
            impatient.close()
    assert sorted(states(channel)) == ["closed", "error"]


def test_a_broker_returns_offsets_after_a_leader_election(
    broker: Broker, new_channel: NewChannel, elections: Elections
) -> None:
    channel = new_channel()
    produce_values(broker, channel, encode(channel, 3))
    elections.left = 2
    assert fetch_offset(broker, channel, OffsetType.LATEST).offset == [3]


def test_a_consumer_gets_offsets_after_a_leader_election(site: Facade) -> None:
    name = site.channel(filled=4)
    with site.consumer() as consumer:
        consumer.assign([at(name, 0, 0)])
        fetcher = consumer._assignment.fetcher
        fetcher._consumer = OfConsumer(fetcher._consumer)
        fetcher._consumer.left = 2
        assert consumer.get_watermark_offsets(at(name)) == (0, 4)
        fetcher._consumer.left = 2
        assert consumer.offsets_for_times([at(name, 0, 0)])[0].offset == 0
        fetcher._consumer.left = 2
        consumer.assign([at(name, 1, -2)])
        assert consumer.consume(1, 30)[0].offset() == 0
