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
from sluiceway.errors import Fenced, KafkaUnavailable
from topics import readings
from waiting import until

NewChannel = Callable[..., Channel]
ELECTED = KafkaError.FENCED_LEADER_EPOCH


class Elections:
    """Fails `left` requests for offsets like a broker with another leader epoch."""

    left: float = 0
    silent = False
    """Whether the leader does not answer at all, which librdkafka takes for a result."""

    def __init__(self) -> None:
        self.leaderless: set[int] = set()
        """Partitions without a leader in librdkafka's metadata."""

    def list_offsets(self, admin: AdminClient, requests: Any, **options: Any) -> dict[Any, Any]:
        failed: Future[Any] = Future()
        if any(place.partition in self.leaderless for place in requests):
            failed.set_exception(KafkaException(KafkaError(KafkaError._NOENT)))
            return dict.fromkeys(requests, failed)
        if not self.left:
            offsets: dict[Any, Any] = self.requesting(admin, requests, **options)
            return offsets
        self.left -= 1
        if self.silent:
            failed.set_result(ListOffsetsResultInfo(OFFSET_INVALID, -1, -1))
        else:
            failed.set_exception(KafkaException(KafkaError(ELECTED)))
        return dict.fromkeys(requests, failed)

    requesting = staticmethod(AdminClient.list_offsets)


@pytest.fixture
def elections(monkeypatch: pytest.MonkeyPatch) -> Iterator[Elections]:
    elections = Elections()

    def list_offsets(admin: AdminClient, requests: Any, **options: Any) -> dict[Any, Any]:
        return elections.list_offsets(admin, requests, **options)

    # The only broker of the run elects no leaders.
    monkeypatch.setattr(AdminClient, "list_offsets", list_offsets)
    yield elections
    elections.left = 0


@pytest.fixture
def leaderless(elections: Elections, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Partitions without a leader in librdkafka's metadata."""
    absent, describe = elections.leaderless, AdminClient.describe_topics

    def described(admin: AdminClient, topics: Any, **options: Any) -> dict[str, Future[Any]]:
        descriptions: dict[str, Future[Any]] = describe(admin, topics, **options)
        for future in descriptions.values() if absent else ():
            for partition in future.result(20).partitions:
                if partition.id in absent:
                    partition.leader = None
        return descriptions

    # The only broker of the run leads all partitions.
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


def opened(channel: Channel, **wishes: Any) -> ChannelWriter:
    writer = channel.writer(**wishes)
    writer.write(readings(20))
    return writer


def opened_impatiently(channel: Channel) -> ChannelWriter:
    """Open a writer that waits a second for Kafka, which a busy machine may exceed at first."""

    def impatient() -> ChannelWriter | None:
        with suppress(KafkaUnavailable):
            return opened(channel, timeout_s=1)
        return None

    writer: ChannelWriter = until(impatient)
    writer.flush()
    return writer


def states(channel: Channel) -> list[str]:
    return [endpoint.state for endpoint in channel.endpoints()]


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
    writer = opened_impatiently(channel)
    elections.left = math.inf
    for _ in range(2):
        with pytest.raises(KafkaUnavailable, match="epoch"):
            writer.close()
        assert states(channel)[0] not in ("closed", "error")
    elections.left = 0

    def closes() -> bool:
        with suppress(KafkaUnavailable):
            writer.close()
            return True
        return False

    until(closes)
    writer.close()
    (endpoint,) = channel.endpoints()
    assert (endpoint.state, endpoint.ends) == ("closed", {0: 20})


def test_a_writer_whose_closing_failed_in_a_with_block_has_failed(
    new_channel: NewChannel, elections: Elections
) -> None:
    channel = new_channel()
    writer = opened_impatiently(channel)
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
    errors = []
    for _ in range(3):
        with pytest.raises(Fenced) as caught:
            superseded.close()
        errors.append(caught.value)
    assert errors == [errors[0]] * 3


def test_a_producer_closes_after_a_leader_election(site: Facade, elections: Elections) -> None:
    name = site.channel()
    closing, impatient = site.producer(), site.producer()
    for producer in (closing, impatient):
        producer.produce(name, b"value", partition=0)
        producer.flush()
    elections.left = 2
    assert (closing.close(), closing.close()) == (True, True)
    (endpoint,) = [end for end in site.gateway.channel(name).endpoints() if end.ends]
    assert (endpoint.state, endpoint.ends) == ("closed", {0: 2})
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


@pytest.mark.long
def test_a_consumer_gets_offsets_after_a_leader_election(
    site: Facade, elections: Elections
) -> None:
    name = site.channel(filled=4)
    with site.consumer() as consumer:
        consumer.assign([at(name, 0, 0)])
        elections.left = 2
        assert consumer.get_watermark_offsets(at(name)) == (0, 4)
        elections.left = 2
        assert consumer.offsets_for_times([at(name, 0, 0)])[0].offset == 0
        elections.left = 2
        consumer.assign([at(name, 1, -2)])
        assert consumer.consume(1, 30)[0].offset() == 0
