"""sluiceway.confluent.Producer on exactly-once channels: commits at flush, and transactions."""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaException

from confluent_facade import Facade, at, error_code_of, poll_messages, poll_until
from faults import (
    LOST_COMMIT,
    failing_call,
    interrupted_at_call,
    interrupted_in_report,
    shorten_lost_commits,
)
from ledger_view import LedgerView
from relay import Relay
from sluiceway import Channel
from sluiceway.api.ledger import LedgerCalls
from sluiceway.confluent import Consumer, KafkaError, Message, Producer
from sluiceway.confluent.channel_producer import ChannelProducer
from sluiceway.ledger.intervals import WrittenRecords
from waiting import until

MakeConsumer = Callable[..., Consumer]


@pytest.fixture(params=[600.0])
def commit_every_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let producers commit messages of exactly-once channels by time so rarely, or so often.

    Patched, because users have no option for the interval of 5 s.
    """
    # There is no option for it.
    monkeypatch.setattr("sluiceway.confluent.channel_producer._COMMIT_EVERY_S", request.param)


@pytest.fixture
def name(site: Facade) -> str:
    return site.channel(delivery="exactly_once")


@pytest.fixture
def transactional(site: Facade) -> Iterator[Callable[..., Producer]]:
    """Create a producer with transactions, which is closed at the end."""
    made: list[Producer] = []

    def make(id_: str | None = None, **config: Any) -> Producer:
        id_ = id_ or f"job-{uuid.uuid4().hex[:8]}"
        producer = site.producer(**{"transactional.id": id_, **config})
        made.append(producer)
        producer.init_transactions(30)
        return producer

    yield make
    for client in made:
        try:
            client.close()
        except KafkaException:
            continue


def values(site: Facade, name: str) -> list[bytes]:
    """Return the values that a native reader returns."""
    with site.gateway.channel(name).reader(until="now") as reader:
        return sorted(record["value"] for record in reader)


def kinds(ledger: LedgerView, site: Facade, name: str) -> list[str]:
    return ledger.kinds(site.gateway.channel(name))


def abort_error(call: Callable[..., object], *arguments: Any) -> KafkaError:
    with pytest.raises(KafkaException) as caught:
        call(*arguments)
    error: KafkaError = caught.value.args[0]
    return error


def test_flush_commits_and_nothing_is_visible_before(
    site: Facade, name: str, ledger: LedgerView
) -> None:
    reported: list[Any] = []
    with site.producer() as producer:
        for number in range(100):
            producer.produce(
                name, b"%03d" % number, on_delivery=lambda error, _: reported.append(error)
            )
        assert producer.flush(30) == 0
        assert values(site, name) == [b"%03d" % number for number in range(100)]
        assert reported == [None] * 100
        producer.produce(name, b"next")
        producer.flush(30)
        producer.flush(30)
    assert len(values(site, name)) == 101
    assert kinds(ledger, site, name) == ["commit", "commit"]


def test_a_channel_may_be_attached_while_another_thread_flushes(
    site: Facade, name: str, ledger: LedgerView, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, flushing = site.channel(delivery="exactly_once"), threading.Event()

    def opened(name: str) -> bool:
        return ledger.open_keys(site.gateway.channel(name)) != []

    # Another thread attaches in the middle of an iteration over the attached channels.
    def attach_then(channel: ChannelProducer) -> Any:
        if flushing.is_set() and threading.current_thread() is threading.main_thread():
            flushing.clear()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(producer.produce, other, b"other").result()
            until(lambda: opened(other))
        return vars(channel)["batches"]

    def store(channel: ChannelProducer, batches: object) -> None:
        vars(channel)["batches"] = batches

    hooked = property(attach_then, store)
    # The moment between two of its steps.
    monkeypatch.setattr(ChannelProducer, "batches", hooked, raising=False)
    with site.producer() as producer:
        producer.produce(name, b"one")
        assert producer.flush(30) == 0
        flushing.set()
        producer.flush(30)
        assert not flushing.is_set()
    assert (values(site, name), values(site, other)) == ([b"one"], [b"other"])


def test_closing_commits_and_leaving_by_an_exception_aborts(
    site: Facade, name: str, ledger: LedgerView
) -> None:
    with site.producer() as producer:
        producer.produce(name, b"kept")
    assert values(site, name) == [b"kept"]

    def failing() -> None:
        with site.producer() as producer:
            producer.produce(name, b"dropped")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert values(site, name) == [b"kept"]
    assert kinds(ledger, site, name) == ["commit", "abort"]


@pytest.mark.usefixtures("commit_every_s")
@pytest.mark.parametrize("commit_every_s", [0.05], indirect=True)
def test_a_producer_commits_by_time(site: Facade, name: str) -> None:
    with site.producer() as producer:
        for number in range(3):
            producer.produce(name, b"%d" % number)
            until(lambda: len(values(site, name)) == number + 1)  # noqa: B023


@pytest.mark.usefixtures("commit_every_s")
def test_a_batch_whose_opening_is_refused_for_a_time_is_opened_later(
    site: Facade, name: str, relay: Relay, refusing: Any
) -> None:
    reports: list[KafkaError | None] = []
    with site.producer(**{"bootstrap.servers": relay.url}) as producer:

        def produce(value: bytes) -> None:
            producer.produce(name, value, on_delivery=lambda error, _: reports.append(error))

        produce(b"0")
        assert producer.flush(60) == 0
        with refusing(401, "unauthenticated") as script:
            produce(b"1")
            until(lambda: any(path.endswith("/batches") for _, path, _ in script.requests))
        assert producer.flush(60) == 0
    assert reports == [None, None]
    assert sorted(values(site, name)) == [b"0", b"1"]


@pytest.mark.usefixtures("commit_every_s")
def test_a_batch_that_the_token_does_not_cover_fails_its_messages(
    site: Facade, name: str, relay: Relay, refusing: Any
) -> None:
    reports: list[KafkaError] = []
    producer = site.producer(**{"bootstrap.servers": relay.url})
    producer.produce(name, b"0")
    assert producer.flush(60) == 0
    with refusing(403, "forbidden"):
        producer.produce(name, b"1", on_delivery=lambda error, _: reports.append(error))
        until(lambda: producer.poll(0.05) and reports)
    assert [error.code() for error in reports] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    error_code_of(producer.close)


@pytest.mark.usefixtures("commit_every_s")
def test_a_failed_message_commits_nothing_and_ends_the_producer(site: Facade, name: str) -> None:
    producer = site.producer(**{"message.max.bytes": 2000})
    delivered: list[Any] = []
    producer.produce(name, b"small", on_delivery=lambda *report: delivered.append(report))
    until(lambda: producer.poll(0.05) and delivered)
    producer.produce(name, b"large" * 1000, on_delivery=lambda *_: None)
    error = abort_error(producer.flush, 30)
    assert error.code() != 0
    assert values(site, name) == []
    error_code_of(producer.close)


def test_a_batch_whose_delivery_report_an_interrupt_lost_is_aborted(
    site: Facade, name: str
) -> None:
    producer = site.producer()
    for number in range(10):
        producer.produce(name, b"%d" % number)
    with interrupted_in_report():
        producer.flush(30)
    error = abort_error(producer.flush, 30)
    assert "an interrupt lost the delivery report" in error.str()
    assert values(site, name) == []
    error_code_of(producer.close)


def test_a_flush_that_was_interrupted_as_it_collects_its_records_is_repeated(
    site: Facade, name: str
) -> None:
    producer = site.producer()
    producer.produce(name, b"1")
    with failing_call(WrittenRecords, "require", KeyboardInterrupt(), arrives=True):
        producer.flush(30)
    assert producer.flush(30) == 0
    assert values(site, name) == [b"1"]
    producer.close()


@pytest.mark.parametrize("end", ["flush", "close"])
def test_messages_after_an_interrupted_commit_are_sent_once_it_is_repeated(
    site: Facade, name: str, end: str
) -> None:
    producer = site.producer()
    producer.produce(name, b"1")
    with failing_call(LedgerCalls, "commit", KeyboardInterrupt(), arrives=False):
        producer.flush(30)
    producer.produce(name, b"2")
    if end == "flush":
        # Earlier than the timed commit, after 5 s.
        assert producer.flush(3) == 0
        assert values(site, name) == [b"1", b"2"]
    producer.close()
    assert values(site, name) == [b"1", b"2"]


def test_an_interrupt_as_a_batch_with_a_lost_report_is_aborted_hides_no_loss(
    site: Facade, name: str
) -> None:
    producer = site.producer()
    producer.produce(name, b"1")
    with interrupted_in_report():
        producer.flush(30)
    with failing_call(LedgerCalls, "abort", KeyboardInterrupt(), arrives=False):
        producer.flush(30)
    error = abort_error(producer.flush, 30)
    assert "an interrupt lost the delivery report" in error.str()
    error_code_of(producer.close)


def test_a_transaction_is_visible_when_it_is_committed(
    site: Facade, name: str, transactional: Callable[..., Producer], ledger: LedgerView
) -> None:
    producer = transactional()
    for first in (0, 10):
        producer.begin_transaction()
        for number in range(first, first + 10):
            producer.produce(name, b"%03d" % number, key=b"k")
        producer.flush(30)
        assert len(values(site, name)) == first
        producer.commit_transaction(30)
        assert values(site, name) == [b"%03d" % number for number in range(first + 10)]
    assert kinds(ledger, site, name) == ["commit", "commit"]


def test_an_aborted_transaction_is_never_visible(
    site: Facade, name: str, transactional: Callable[..., Producer], ledger: LedgerView
) -> None:
    producer = transactional()
    producer.begin_transaction()
    for _ in range(50):
        producer.produce(name, b"dropped")
    producer.poll(0.1)
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(name, b"kept")
    producer.commit_transaction(30)
    assert values(site, name) == [b"kept"]
    assert kinds(ledger, site, name)[-1] == "commit"
    assert producer.close(), "dropped messages are no failed deliveries"


def test_empty_transactions_are_no_batches(
    site: Facade, name: str, transactional: Callable[..., Producer], ledger: LedgerView
) -> None:
    producer = transactional()
    producer.begin_transaction()
    producer.commit_transaction(30)
    producer.begin_transaction()
    producer.abort_transaction(30)
    assert kinds(ledger, site, name) == []


@pytest.mark.long
def test_messages_and_offsets_are_committed_together(
    site: Facade, name: str, transactional: Callable[..., Producer], consumer: MakeConsumer
) -> None:
    source = site.channel(filled=10, partitions=1)
    producer = transactional()
    first = consumer(**{"auto.offset.reset": "earliest"})
    first.subscribe([source])
    messages = poll_messages(first, 4)
    producer.begin_transaction()
    for message in messages:
        producer.produce(name, message.value())
    last = messages[-1]
    positions = [at(source, 0, last.offset() + 1)]
    producer.send_offsets_to_transaction(positions, first.consumer_group_metadata())
    assert first.committed([at(source)])[0].offset < 0
    producer.commit_transaction(30)
    assert first.committed([at(source)])[0].offset == 4
    assert len(values(site, name)) == 4

    producer.begin_transaction()
    producer.produce(name, b"dropped")
    more = poll_messages(first, 2)
    positions = [at(source, 0, more[-1].offset() + 1)]
    producer.send_offsets_to_transaction(positions, first.consumer_group_metadata())
    producer.abort_transaction(30)
    assert first.committed([at(source)])[0].offset == 4
    assert len(values(site, name)) == 4
    first.close()
    second = consumer(**{"auto.offset.reset": "earliest"})
    second.subscribe([source])
    assert poll_messages(second, 1)[0].offset() == 4


def test_a_transaction_whose_consumer_lost_its_partitions_is_refused(
    site: Facade, name: str, transactional: Callable[..., Producer], consumer: MakeConsumer
) -> None:
    source = site.channel(filled=10, partitions=1)
    producer = transactional()
    reader = consumer(**{"auto.offset.reset": "earliest"})
    reader.subscribe([source])
    for _ in range(2):
        producer.begin_transaction()
        last = poll_messages(reader, 2)[-1]
        producer.produce(name, b"kept")
        positions = [at(source, 0, last.offset() + 1)]
        producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata())
        producer.commit_transaction(30)
    producer.begin_transaction()
    last = poll_messages(reader, 2)[-1]
    producer.produce(name, b"dropped")
    reader.unsubscribe()
    reader.subscribe([source])
    poll_messages(reader, 2)
    positions = [at(source, 0, last.offset() + 1)]
    producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata())
    error = abort_error(producer.commit_transaction, 30)
    assert error.txn_requires_abort()
    assert error.code() == KafkaError.REBALANCE_IN_PROGRESS
    producer.abort_transaction(30)
    assert values(site, name) == [b"kept", b"kept"]
    assert reader.committed([at(source)])[0].offset == 4


@pytest.mark.long
def test_a_transaction_whose_consumer_lost_a_partition_before_it_is_refused(
    site: Facade, name: str, transactional: Callable[..., Producer], consumer: MakeConsumer
) -> None:
    source = site.channel(filled=10, partitions=2)
    producer = transactional()
    reader, other = (consumer(**{"auto.offset.reset": "earliest"}) for _ in range(2))
    reader.subscribe([source])
    messages = poll_messages(reader, 20)
    other.subscribe([source])
    poll_until(lambda: len(reader.assignment()) == len(other.assignment()) == 1, reader, other)

    def write() -> None:
        producer.begin_transaction()
        for message in messages:
            producer.produce(name, message.value())
        positions = reader.position(reader.assignment())
        producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata())
        producer.commit_transaction(30)

    error = abort_error(write)
    assert error.txn_requires_abort()
    assert error.code() == KafkaError.REBALANCE_IN_PROGRESS
    producer.abort_transaction(30)
    assert values(site, name) == []
    (held,) = reader.assignment()
    messages = [message for message in messages if message.partition() == held.partition]
    write()
    assert len(values(site, name)) == 10


def test_offsets_without_messages_are_committed(
    site: Facade, transactional: Callable[..., Producer], consumer: MakeConsumer
) -> None:
    source = site.channel(filled=2, partitions=1)
    reader = consumer(**{"auto.offset.reset": "earliest"})
    reader.subscribe([source])
    poll_messages(reader, 2)
    producer = transactional()
    producer.begin_transaction()
    producer.send_offsets_to_transaction([at(source, 0, 2)], reader.consumer_group_metadata())
    producer.commit_transaction(30)
    assert reader.committed([at(source)])[0].offset == 2


def test_a_second_producer_of_an_id_fences_the_first(
    site: Facade, name: str, transactional: Callable[..., Producer]
) -> None:
    first, second = transactional("job"), transactional("job")
    first.begin_transaction()
    first.produce(name, b"zombie")
    first.flush(30)
    second.begin_transaction()
    second.produce(name, b"new")
    second.flush(30)
    error = abort_error(first.commit_transaction, 30)
    assert error.fatal() or error.txn_requires_abort()
    second.commit_transaction(30)
    assert values(site, name) == [b"new"]
    if not error.fatal():
        first.abort_transaction(30)
        first.begin_transaction()
        first.produce(name, b"zombie")
        abort_error(first.commit_transaction, 30)
    assert values(site, name) == [b"new"]


def test_calls_out_of_turn_are_refused(
    site: Facade, name: str, transactional: Callable[..., Producer]
) -> None:
    assert error_code_of(site.producer().begin_transaction) == KafkaError._STATE
    producer = transactional()
    assert error_code_of(producer.init_transactions) == KafkaError._STATE
    assert error_code_of(producer.commit_transaction) == KafkaError._STATE
    assert error_code_of(producer.produce, name, b"1") == KafkaError._STATE
    producer.begin_transaction()
    assert error_code_of(producer.begin_transaction) == KafkaError._STATE


def test_a_second_channel_is_refused_at_its_first_message_and_aborts_the_transaction(
    site: Facade, name: str, transactional: Callable[..., Producer]
) -> None:
    other = site.channel(delivery="exactly_once")
    producer = transactional()
    producer.begin_transaction()
    producer.produce(name, b"1")
    refusal = abort_error(producer.produce, other, b"2")
    assert refusal.code() == KafkaError._INVALID_ARG
    assert f"writes to {name!r}, so it cannot write to {other!r}" in refusal.str()
    assert "second producer with its own transactional.id" in refusal.str()
    # A program that ignores the refusal does not commit half of its transaction.
    messages = [{"value": b"3"}]
    assert producer.produce_batch(other, messages) == 0
    assert str(messages[0]["_error"]) == str(refusal)
    for call, *arguments in ((producer.produce, name, b"4"), (producer.commit_transaction, 30)):
        assert str(abort_error(call, *arguments)) == str(refusal)
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(other, b"5")
    producer.commit_transaction(30)
    assert values(site, name) == []
    assert values(site, other) == [b"5"]


def test_offsets_of_assigned_partitions_are_committed_with_the_messages(
    site: Facade, name: str, transactional: Callable[..., Producer], consumer: MakeConsumer
) -> None:
    source = site.channel(filled=6, partitions=1)
    producer = transactional()
    readers = [consumer(), consumer()]
    for reader in readers:
        reader.assign([at(source, 0, 0)])
    (first,) = readers[0].consume(1, 30)

    def copy(reader: Consumer, last: Message, value: bytes) -> None:
        producer.begin_transaction()
        producer.produce(name, value)
        positions = [at(source, 0, last.offset() + 1)]
        producer.send_offsets_to_transaction(positions, reader.consumer_group_metadata())
        producer.commit_transaction(30)

    copy(readers[0], first, b"1")
    copy(readers[0], poll_messages(readers[0], 2)[-1], b"2")
    assert readers[0].committed([at(source)])[0].offset == 3
    # Another consumer of the partition has committed meanwhile.
    error = abort_error(copy, readers[1], poll_messages(readers[1], 4)[-1], b"3")
    assert error.txn_requires_abort()
    assert error.code() == KafkaError._CONFLICT
    producer.abort_transaction(30)
    assert values(site, name) == [b"1", b"2"]
    assert readers[1].committed([at(source)])[0].offset == 3


def test_a_channel_without_batches_is_refused(
    site: Facade, transactional: Callable[..., Producer]
) -> None:
    plain = site.channel()
    reported: list[KafkaError] = []
    producer = transactional()
    for number in range(1, 3):
        producer.begin_transaction()
        producer.produce(plain, b"1", on_delivery=lambda error, _: reported.append(error))
        error = abort_error(producer.commit_transaction, 30)
        assert error.txn_requires_abort()
        assert len(reported) == number
        assert "at_least_once" in reported[-1].str()
        producer.abort_transaction(30)
    assert values(site, plain) == []


def test_automatic_commits_are_refused(consumer: MakeConsumer) -> None:
    reader = consumer(**{"enable.auto.commit": True})
    assert error_code_of(reader.consumer_group_metadata) == KafkaError._STATE


def test_offsets_of_several_channels_are_refused(
    transactional: Callable[..., Producer], consumer: MakeConsumer
) -> None:
    producer = transactional()
    producer.begin_transaction()
    metadata = consumer().consumer_group_metadata()
    positions = [at("one", 0, 1), at("two", 0, 1)]
    call = producer.send_offsets_to_transaction
    assert error_code_of(call, positions, metadata) == KafkaError._INVALID_ARG
    with pytest.raises(TypeError, match="consumer_group_metadata"):
        call(positions[:1], object())


def test_closing_within_a_transaction_aborts_it(
    site: Facade, name: str, transactional: Callable[..., Producer], ledger: LedgerView
) -> None:
    producer = transactional()
    producer.begin_transaction()
    producer.produce(name, b"1")
    producer.flush(30)
    producer.close()
    assert values(site, name) == []
    channel: Channel = site.gateway.channel(name)
    assert ledger.open_keys(channel) == []


@pytest.fixture
def relay(
    gateway_url: str, commit_every_s: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Relay]:
    """A connection to the gateway that loses responses to commits, which only the test makes."""
    with closing(Relay(httpx.URL(gateway_url).port or 0)) as relay:
        shorten_lost_commits(monkeypatch, relay)
        yield relay


@pytest.mark.long
@pytest.mark.parametrize("arrives", [True, False])
def test_a_flush_without_an_answer_is_repeated_by_the_next(
    site: Facade, name: str, relay: Relay, *, arrives: bool
) -> None:
    with site.producer(**{"bootstrap.servers": relay.url}) as producer:
        producer.produce(name, b"1")
        until(lambda: producer.poll(0.05) >= 0 and len(producer) == 0)
        relay.drop_at(LOST_COMMIT, forward=arrives)
        error = abort_error(producer.flush, 30)
        assert error.retriable()
        until(lambda: len(values(site, name)) == arrives)
        producer.flush(30)
        assert values(site, name) == [b"1"]
        producer.produce(name, b"2")
    assert values(site, name) == [b"1", b"2"]


@pytest.mark.long
@pytest.mark.parametrize("arrives", [True, False])
def test_an_interrupted_flush_is_repeated_by_the_next(
    site: Facade, name: str, arrives: bool
) -> None:
    with site.producer() as producer:
        producer.produce(name, "1")
        with failing_call(LedgerCalls, "commit", KeyboardInterrupt(), arrives=arrives):
            producer.flush()
        assert producer.flush() == 0
        producer.produce(name, "2")
        assert producer.flush() == 0
    assert values(site, name) == [b"1", b"2"]


def test_a_commit_that_is_interrupted_at_any_call_does_not_hold_back_the_next(
    site: Facade, name: str
) -> None:
    with site.producer() as producer:
        producer.produce(name, "1")
        assert producer.flush() == 0
        # Nothing is left to commit, but a commit has its turn.
        number = 1
        while interrupted_at_call(number, partial(producer.flush, 10)):
            assert producer.flush(10) == 0
            number += 1
        assert number > 5
        producer.produce(name, "2")
        assert producer.flush() == 0
    assert values(site, name) == [b"1", b"2"]


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_after_an_interrupt_of_any_call_of_produce_a_flush_delivers_the_next_message(
    site: Facade, delivery: str
) -> None:
    name = site.channel(delivery=delivery)
    acknowledged, interrupted = [], True
    while interrupted:
        number = 1 + 9 * len(acknowledged)
        # The first message of a producer waits until its channel is attached.
        with site.producer() as producer:
            interrupted = interrupted_at_call(number, partial(producer.produce, name, b"maybe"))
            producer.produce(name, b"%05d" % number)
            assert producer.flush() == 0
            acknowledged.append(b"%05d" % number)
    assert len(acknowledged) > 5
    assert [value for value in values(site, name) if value != b"maybe"] == acknowledged


def test_an_interrupt_of_any_call_that_opens_a_batch_leaves_none_open(
    name: str, transactional: Callable[..., Producer], ledger: LedgerView, site: Facade
) -> None:
    producer = transactional()
    producer.begin_transaction()
    producer.produce(name, b"0")
    producer.commit_transaction(30)
    number, interrupted = 1, True
    while interrupted:
        producer.begin_transaction()
        interrupted = interrupted_at_call(number, partial(producer.produce, name, b"1"))
        if interrupted:
            producer.abort_transaction(30)
            assert ledger.open_keys(site.gateway.channel(name)) == []
        number += 5
    producer.commit_transaction(30)
    assert values(site, name) == [b"0", b"1"]


@pytest.mark.long
@pytest.mark.parametrize("arrives", [True, False])
def test_a_transaction_without_an_answer_is_repeated_with_its_offsets(
    site: Facade,
    name: str,
    relay: Relay,
    transactional: Callable[..., Producer],
    consumer: MakeConsumer,
    *,
    arrives: bool,
) -> None:
    source = site.channel(filled=3, partitions=1)
    address = {"bootstrap.servers": relay.url}
    reader = consumer(**{"auto.offset.reset": "earliest", **address})
    reader.subscribe([source])
    poll_messages(reader, 3)
    producer = transactional(**address)
    producer.begin_transaction()
    producer.produce(name, b"1")
    producer.send_offsets_to_transaction([at(source, 0, 3)], reader.consumer_group_metadata())
    producer.flush(30)
    relay.drop_at(LOST_COMMIT, forward=arrives)
    assert abort_error(producer.commit_transaction, 30).retriable()
    until(lambda: len(values(site, name)) == arrives)
    producer.commit_transaction(30)
    assert values(site, name) == [b"1"]
    assert reader.committed([at(source)])[0].offset == 3


@pytest.mark.sample
@pytest.mark.parametrize("arrives", [True, False])
def test_aborting_an_unanswered_commit_reports_whether_it_was_applied(
    site: Facade,
    name: str,
    relay: Relay,
    transactional: Callable[..., Producer],
    *,
    arrives: bool,
) -> None:
    producer = transactional(**{"bootstrap.servers": relay.url})
    producer.begin_transaction()
    producer.produce(name, b"1")
    producer.flush(30)
    relay.drop_at(LOST_COMMIT, forward=arrives)
    assert abort_error(producer.commit_transaction, 30).retriable()
    until(lambda: len(values(site, name)) == arrives)
    if arrives:
        assert "was committed" in abort_error(producer.abort_transaction, 30).str()
    else:
        producer.abort_transaction(30)
    producer.begin_transaction()
    producer.produce(name, b"2")
    producer.commit_transaction(30)
    assert values(site, name) == ([b"1", b"2"] if arrives else [b"2"])
