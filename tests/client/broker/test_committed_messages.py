"""pykafka's Broker on exactly-once channels: each request is a batch, and fetches see commits."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from broker_calls import broker_at, encode, fetch, fetch_offset, produce_values
from faults import at_call, failing_call
from ledger_view import LedgerView
from sluiceway import Channel
from sluiceway.api.ledger import LedgerCalls
from sluiceway.broker import Broker, Message, OffsetType, ProduceRequest, produce
from sluiceway.broker.exceptions import OffsetOutOfRangeError, SocketDisconnectedError
from sluiceway.errors import OptionError
from sluiceway.ledger.write_batch import BatchSequence
from topics import readings
from waiting import until

NewChannel = Callable[..., Channel]


@pytest.fixture
def channel(new_channel: NewChannel) -> Channel:
    return new_channel(partitions=2, delivery="exactly_once")


def values(response: Any) -> list[bytes | None]:
    assert response.err == 0, response.reason
    return [message.value for message in response.messages]


def abandon(channel: Channel, count: int) -> None:
    """Leave messages of an aborted batch in each partition."""

    def write() -> None:
        with channel.writer() as writer, writer.batch("abandoned"):
            writer.write(readings(count, 1000))
            writer.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()


@pytest.mark.long
def test_each_request_is_committed_before_it_returns(
    broker: Broker, channel: Channel, ledger: LedgerView
) -> None:
    request = ProduceRequest(required_acks=-1)
    for number, value in enumerate(encode(channel, 10)):
        request.add_message(Message(value), channel.name, number % 2)
    response = broker.produce_messages(request)
    assert response is not None
    results = response.topics[channel.name].values()
    assert [(result.err, result.reason) for result in results] == [(0, ""), (0, "")]
    assert ledger.ids(channel) == list(range(10))
    assert produce_values(broker, channel, encode(channel, 5, 10)).err == 0
    assert ledger.ids(channel) == list(range(15))
    assert ledger.kinds(channel) == ["commit", "commit"]


def test_an_invalid_message_commits_nothing_of_its_partition(
    broker: Broker, channel: Channel, ledger: LedgerView
) -> None:
    assert produce_values(broker, channel, [*encode(channel, 3), b"invalid"]).err != 0
    assert ledger.ids(channel) == []


def test_unacknowledged_requests_are_refused(broker: Broker, channel: Channel) -> None:
    with pytest.raises(OptionError, match="required_acks is 0"):
        produce_values(broker, channel, encode(channel, 1), required_acks=0)


def test_only_committed_messages_are_fetched(broker: Broker, channel: Channel) -> None:
    sent = encode(channel, 6)
    produce_values(broker, channel, sent[:3])
    abandon(channel, 20)
    produce_values(broker, channel, sent[3:])
    fetched = fetch(broker, channel)
    assert values(fetched) == sent
    end = fetched.messages[-1].offset + 1
    assert fetched.max_offset == end > 6
    assert fetch_offset(broker, channel, OffsetType.LATEST).offset == [end]
    assert fetch_offset(broker, channel, OffsetType.EARLIEST).offset == [0]
    assert values(fetch(broker, channel, end, timeout=50)) == []
    assert values(fetch(broker, channel, 4, timeout=50)) == sent[3:]


@pytest.mark.long
def test_an_open_batch_hides_later_records(broker: Broker, channel: Channel) -> None:
    sent = encode(channel, 4)
    with channel.writer(partition=0) as writer:
        with writer.batch("open"):
            writer.write(readings(2, 100))
            produce_values(broker, channel, sent)
            assert values(fetch(broker, channel, timeout=50)) == []
        assert len(values(fetch(broker, channel))) == 6


def test_a_waiting_fetch_gets_the_next_commit(broker: Broker, channel: Channel) -> None:
    sent = encode(channel, 2)
    fetched: list[Any] = []
    waiting = threading.Thread(
        target=lambda: fetched.append(fetch(broker, channel, timeout=20_000)), daemon=True
    )
    waiting.start()
    with channel.writer(partition=0) as writer:
        writer.write(readings(2))
    waiting.join(20)
    assert values(fetched[0]) == sent


def test_an_offset_past_the_committed_end_is_out_of_range(broker: Broker, channel: Channel) -> None:
    produce_values(broker, channel, encode(channel, 2))
    response = fetch(broker, channel, 3, timeout=50)
    assert response.err == OffsetOutOfRangeError.ERROR_CODE
    assert "range is 0 to 2" in response.reason


def test_a_short_socket_timeout_is_accepted(gateway_url: str, channel: Channel) -> None:
    with broker_at(gateway_url, socket_timeout_ms=900) as impatient:

        def answered() -> bool:
            # A busy machine may need longer.
            with suppress(SocketDisconnectedError):
                impatient.connect()
                response = fetch(impatient, channel, timeout=50)
                return response.err == 0 and values(response) == []
            return False

        until(answered)


@pytest.mark.sample
@pytest.mark.parametrize("arrives", [True, False])
def test_an_interrupted_commit_leaves_no_batch_open(
    broker: Broker,
    new_channel: NewChannel,
    ledger: LedgerView,
    arrives: bool,
) -> None:
    channels = [new_channel(partitions=1, delivery="exactly_once") for _ in range(2)]
    request = ProduceRequest(required_acks=-1)
    for channel in channels:
        request.add_message(Message(encode(channel, 1)[0]), channel.name, 0)
    with failing_call(LedgerCalls, "commit", KeyboardInterrupt(), arrives=arrives):
        broker.produce_messages(request)
    assert [ledger.open_keys(channel) for channel in channels] == [[], []]
    for channel, ids in zip(channels, ([0, 1] if arrives else [1], [1]), strict=True):
        assert produce_values(broker, channel, encode(channel, 1, 1)).err == 0
        assert ledger.ids(channel) == ids


@pytest.mark.parametrize("arrives", [True, False])
def test_an_interrupt_as_a_batch_opens_leaves_none_open(
    broker: Broker, channel: Channel, ledger: LedgerView, *, arrives: bool
) -> None:
    with failing_call(BatchSequence, "open", KeyboardInterrupt(), arrives=arrives):
        produce_values(broker, channel, encode(channel, 5))
    assert ledger.open_keys(channel) == []
    assert produce_values(broker, channel, encode(channel, 5, 10)).err == 0
    assert ledger.ids(channel) == list(range(10, 15))


@pytest.mark.parametrize("call", ["open", "abort"])
def test_a_request_after_two_interrupts_of_another_is_written(
    gateway_url: str, channel: Channel, ledger: LedgerView, call: str
) -> None:
    with broker_at(gateway_url) as broker:
        with (
            failing_call(LedgerCalls, call, KeyboardInterrupt(), arrives=call == "open"),
            at_call(LedgerCalls, "commit", Mock(side_effect=KeyboardInterrupt())),
        ):
            produce_values(broker, channel, encode(channel, 5))
        response = produce_values(broker, channel, encode(channel, 5, 5))
        assert response.err == 0, response.reason
        assert ledger.ids(channel) == [5, 6, 7, 8, 9]


def test_reports_of_an_interrupted_request_do_not_count_for_the_next(
    broker: Broker, channel: Channel, ledger: LedgerView
) -> None:
    with failing_call(produce, "run_callbacks", KeyboardInterrupt(), arrives=False):
        produce_values(broker, channel, encode(channel, 5))
    response = produce_values(broker, channel, encode(channel, 5, 5))
    assert response.err == 0, response.reason
    assert ledger.ids(channel) == [5, 6, 7, 8, 9]
