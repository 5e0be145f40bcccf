"""Transactions: output and positions are committed together."""

import contextlib
from collections.abc import Callable
from typing import Any, Literal
from unittest.mock import Mock

import pytest

from faults import at_call, failing_call
from ledger_view import LedgerView, copy
from sluiceway import Channel, ChannelReader, ChannelWriter, Gateway, Position
from sluiceway.api.endpoints import EndpointCalls
from sluiceway.api.ledger import LedgerCalls
from sluiceway.errors import (
    Conflict,
    EndpointClosed,
    GatewayUnavailable,
    KafkaUnavailable,
    OptionError,
    StaleGeneration,
)
from sluiceway.kafka.consumer import MessageStream
from sluiceway.kafka.producer import IdempotentProducer
from topics import readings
from waiting import until

NewChannel = Callable[..., Channel]


@pytest.fixture
def source(new_channel: NewChannel, each_format: str) -> Channel:
    """A channel of 100 readings, in messages of 40 where they hold several."""
    channel = new_channel(partitions=1, format=each_format)
    with channel.writer(batch_records=40) as writer:
        writer.write(readings(100))
    return channel


@pytest.fixture
def sink(new_ledgered: NewChannel) -> Channel:
    return new_ledgered()


def fail(gateway: Gateway, reader: ChannelReader, writer: ChannelWriter, count: int) -> None:
    with gateway.transaction(reader, writer):
        writer.write(reader.read(count, timeout=None))
        writer.flush()
        raise ZeroDivisionError


def commit_early(gateway: Gateway, reader: ChannelReader, writer: ChannelWriter) -> None:
    with gateway.transaction(reader, writer):
        writer.write(reader.read(30, timeout=None))
        reader.commit()


def nest(
    gateway: Gateway, reader: ChannelReader, outer: ChannelWriter, inner: ChannelWriter
) -> None:
    with gateway.transaction(reader, outer):
        outer.write(reader.read(30, timeout=None))
        with gateway.transaction(reader, inner):
            inner.write(reader.read(30, timeout=None))


@pytest.mark.sample
def test_output_and_positions_are_committed_together(
    gateway: Gateway, source: Channel, sink: Channel, ledger: LedgerView
) -> None:
    with source.reader(group="copy") as reader, sink.writer() as writer:
        with gateway.transaction(reader, writer):
            writer.write(reader.read(30, timeout=None))
            writer.flush()
            assert ledger.ids(sink) == []
            assert source.committed("copy") == {}
        assert ledger.ids(sink) == list(range(30))
        assert source.committed("copy") == reader.position()
        while copy(gateway, reader, writer, 30):
            pass
    assert ledger.ids(sink) == list(range(100))


@pytest.mark.long
def test_a_restarted_job_continues_within_a_message(
    gateway: Gateway, source: Channel, sink: Channel, ledger: LedgerView
) -> None:
    for _ in range(5):
        with source.reader(group="copy") as reader, sink.writer() as writer:
            copy(gateway, reader, writer, 23)
            # Returned, and lost with the job.
            reader.read(5, timeout=None)
    assert ledger.ids(sink) == list(range(100))


@pytest.mark.long
@pytest.mark.parametrize("until_", [None, "finished"])
def test_an_exception_rewinds_partitions_that_were_added_since_the_last_commit(
    gateway: Gateway,
    new_channel: NewChannel,
    sink: Channel,
    ledger: LedgerView,
    until_: Literal["finished"] | None,
) -> None:
    source = new_channel(partitions=1)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(source.writer())
        reader = stack.enter_context(source.reader(group="copy", until=until_))
        writer = stack.enter_context(sink.writer())
        first.write(readings(10))
        source.update(partitions=2)
        with source.writer(partition=1) as second:
            second.write(readings(10, 10))
        first.close()
        if until_ is None:
            until(lambda: reader.discover_partitions() == (1,))

        def read_all_and_fail() -> None:
            with gateway.transaction(reader, writer):
                assert len(reader.read(20, timeout=None)) == 20
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            read_all_and_fail()
        with gateway.transaction(reader, writer):
            writer.write(reader.read(20, timeout=60))
    assert sorted(ledger.ids(sink)) == list(range(20))


@pytest.mark.long
@pytest.mark.parametrize("arrives", [True, False])
def test_an_interrupted_commit_is_committed_with_its_positions_or_not_at_all(
    gateway: Gateway, source: Channel, sink: Channel, ledger: LedgerView, arrives: bool
) -> None:
    with source.reader(group="copy") as reader, sink.writer() as writer:
        with failing_call(LedgerCalls, "commit", KeyboardInterrupt(), arrives=arrives):
            copy(gateway, reader, writer, 30)
        assert ledger.ids(sink) == (list(range(30)) if arrives else [])
        while copy(gateway, reader, writer, 30):
            pass
    assert ledger.ids(sink) == list(range(100))


def test_a_reader_interrupted_before_it_has_gone_back_reads_no_further(
    gateway: Gateway, source: Channel, sink: Channel
) -> None:
    with source.reader(group="copy") as reader, sink.writer() as writer:
        with failing_call(ChannelReader, "rewind", KeyboardInterrupt(), arrives=False):
            fail(gateway, reader, writer, 30)
        with pytest.raises(EndpointClosed, match="interrupted the return"):
            reader.read(1)


def test_a_second_interrupt_ends_the_writer_and_the_reader_still_goes_back(
    gateway: Gateway,
    source: Channel,
    sink: Channel,
    ledger: LedgerView,
) -> None:
    second = at_call(IdempotentProducer, "flush", Mock(side_effect=KeyboardInterrupt()))

    def be_interrupted_twice() -> None:
        with contextlib.ExitStack() as stack, gateway.transaction(reader, writer):
            writer.write(reader.read(30, timeout=None))
            stack.enter_context(second)
            raise KeyboardInterrupt

    with source.reader(group="copy") as reader:
        writer = sink.writer()
        with pytest.raises(KeyboardInterrupt):
            be_interrupted_twice()
        with pytest.raises(EndpointClosed, match="while it aborted a batch"):
            writer.write(readings(1))
        writer.close()
        with sink.writer() as other:
            while copy(gateway, reader, other, 30):
                pass
    assert ledger.ids(sink) == list(range(100))


def test_an_exception_rewinds_the_reader_and_writes_nothing(
    gateway: Gateway, source: Channel, sink: Channel, ledger: LedgerView
) -> None:
    with source.reader(group="copy") as reader, sink.writer() as writer:
        copy(gateway, reader, writer, 33)
        before = reader.position()
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                fail(gateway, reader, writer, 41)
            assert reader.position() == before == source.committed("copy")
        while copy(gateway, reader, writer, 33):
            pass
    assert ledger.ids(sink) == list(range(100))
    assert ledger.kinds(sink)[:4] == ["commit", "abort", "abort", "abort"]
    assert ledger.open_keys(sink) == []


@pytest.mark.long
def test_records_read_before_the_block_are_committed_with_it(
    gateway: Gateway, source: Channel, sink: Channel, ledger: LedgerView
) -> None:
    failures = iter([3, 50, 50, 99])
    doomed = next(failures)

    def process(record: dict[str, Any]) -> dict[str, Any]:
        nonlocal doomed
        if record["id"] == doomed:
            doomed = next(failures, -1)
            raise ZeroDivisionError
        return record

    with source.reader(group="copy") as reader, sink.writer() as writer:
        while not reader.finished:
            for record in reader:
                with contextlib.suppress(ZeroDivisionError), gateway.transaction(reader, writer):
                    writer.write(process(record))
    assert ledger.ids(sink) == list(range(100))


def test_a_reader_commits_nothing_by_itself_in_a_transaction(
    gateway: Gateway, source: Channel, sink: Channel, ledger: LedgerView
) -> None:
    """A failure of the block would lose the records before such a commit."""
    with source.reader(group="copy") as reader, sink.writer() as writer:
        with pytest.raises(OptionError, match="in a transaction, which commits its positions"):
            commit_early(gateway, reader, writer)
        assert source.committed("copy") == {}
        while copy(gateway, reader, writer, 30):
            pass
        reader.commit()
    assert ledger.ids(sink) == list(range(100))


def test_a_reader_is_in_one_transaction_at_a_time(
    gateway: Gateway,
    source: Channel,
    sink: Channel,
    new_ledgered: NewChannel,
    ledger: LedgerView,
) -> None:
    """The inner one would commit the positions without the output of the outer one."""
    second = new_ledgered()
    with source.reader(group="copy") as reader, sink.writer() as writer, second.writer() as other:
        with pytest.raises(OptionError, match="already in a transaction"):
            nest(gateway, reader, writer, other)
        assert source.committed("copy") == {}
        while copy(gateway, reader, writer, 30):
            pass
    assert ledger.ids(sink) == list(range(100))
    assert ledger.kinds(second) == []


def test_a_reader_goes_back_once_kafka_is_available_again(
    gateway: Gateway,
    source: Channel,
    sink: Channel,
    ledger: LedgerView,
) -> None:
    with source.reader(group="r", until=None) as reader, sink.writer() as writer:
        # An outage of Kafka for the reader only.
        with at_call(MessageStream, "assign", Mock(side_effect=KafkaUnavailable("no broker"))):
            with pytest.raises(ZeroDivisionError):
                fail(gateway, reader, writer, 30)
            for call in (lambda: reader.read(1), reader.position, reader.commit):
                with pytest.raises(KafkaUnavailable) as raised:
                    call()
                assert raised.value.retriable
        with gateway.transaction(reader, writer):
            writer.write(reader.read(10, timeout=None))
    assert ledger.ids(sink) == [*range(10)]


def test_an_exception_does_not_undo_a_seek(
    gateway: Gateway, source: Channel, sink: Channel
) -> None:
    with source.reader(group="copy") as reader, sink.writer() as writer:
        whole = reader.position()
        reader.read(90, timeout=None)
        skipped = reader.position()
        reader.seek(whole)
        reader.seek(skipped)
        with pytest.raises(ZeroDivisionError):
            fail(gateway, reader, writer, 5)
        assert reader.position() == skipped


def test_a_block_that_neither_reads_nor_writes_is_no_batch(
    gateway: Gateway, source: Channel, sink: Channel, ledger: LedgerView
) -> None:
    with source.reader(group="copy") as reader, sink.writer() as writer:
        copy(gateway, reader, writer, 10)
        for _ in range(3):
            with gateway.transaction(reader, writer):
                pass
    assert ledger.kinds(sink) == ["commit"]


def test_positions_of_a_block_without_output_are_committed(
    gateway: Gateway, source: Channel, sink: Channel, ledger: LedgerView
) -> None:
    with source.reader(group="copy") as reader, sink.writer() as writer:
        with gateway.transaction(reader, writer):
            reader.read(10, timeout=None)
        assert source.committed("copy") == reader.position()
    assert ledger.ids(sink) == []


@pytest.mark.long
@pytest.mark.parametrize("arrives", [True, False])
def test_a_transaction_continues_after_a_commit_without_a_response(
    gateway: Gateway, source: Channel, sink: Channel, ledger: LedgerView, arrives: bool
) -> None:
    with source.reader(group="copy") as reader, sink.writer() as writer:
        reader.read(10, timeout=None)
        lost = GatewayUnavailable("no response")
        with failing_call(EndpointCalls, "commit", lost, arrives=arrives):
            reader.commit()
        copy(gateway, reader, writer, 20)
        assert source.committed("copy") == reader.position()
    assert ledger.ids(sink) == list(range(10, 30))


@pytest.mark.long
def test_positions_that_were_moved_meanwhile_refuse_the_output(
    gateway: Gateway, source: Channel, sink: Channel, ledger: LedgerView
) -> None:
    def move() -> None:
        with gateway.transaction(reader, writer):
            writer.write(reader.read(10, timeout=None))
            source.reset("copy", {0: Position(offset=1)}, reason="a test", force=True)

    with pytest.raises(Conflict), source.reader(group="copy") as reader, sink.writer() as writer:
        move()
    assert ledger.ids(sink) == []
    assert source.committed("copy") == {0: Position(offset=1)}
    assert ledger.open_keys(sink) == []


@pytest.mark.sample
@pytest.mark.parametrize("inside", [True, False])
def test_revoked_partitions_refuse_the_output_of_a_block(
    gateway: Gateway, new_channel: NewChannel, sink: Channel, ledger: LedgerView, inside: bool
) -> None:
    source = new_channel(partitions=2)
    for partition in range(2):
        with source.writer(partition=partition) as writer:
            writer.write(readings(20, 20 * partition))

    def lose(reader: ChannelReader, writer: ChannelWriter) -> None:
        with contextlib.ExitStack() as block:
            if inside:
                block.enter_context(gateway.transaction(reader, writer))
            records = reader.read(40, timeout=None)
            with source.reader(group="copy", dynamic=True):
                until(lambda: reader.read(1, timeout=0.1) or len(reader.partitions) == 1)
            if not inside:
                block.enter_context(gateway.transaction(reader, writer))
            writer.write(records)

    with (
        source.reader(group="copy", dynamic=True) as reader,
        sink.writer() as writer,
    ):
        with pytest.raises(StaleGeneration, match="shorter transactions"):
            lose(reader, writer)
        assert ledger.ids(sink) == []
        while copy(gateway, reader, writer, 10):
            pass
    assert sorted(ledger.ids(sink)) == list(range(40))


@pytest.mark.long
def test_a_superseded_reader_commits_no_output(
    gateway: Gateway, source: Channel, sink: Channel, ledger: LedgerView
) -> None:
    def be_replaced() -> None:
        with (
            source.reader(group="copy") as zombie,
            sink.writer() as writer,
            gateway.transaction(zombie, writer),
        ):
            writer.write(zombie.read(10, timeout=None))
            with source.reader(group="copy") as successor, sink.writer() as other:
                assert copy(gateway, successor, other, 20) == 20

    with pytest.raises(Conflict):
        be_replaced()
    assert ledger.ids(sink) == list(range(20))


def test_a_transaction_needs_a_group_and_a_channel_with_batches(
    gateway: Gateway, gateway_url: str, source: Channel, sink: Channel
) -> None:
    with (
        source.reader(group="copy") as reader,
        source.writer() as unfit,
        pytest.raises(OptionError, match='delivery="exactly_once"'),
    ):
        gateway.transaction(reader, unfit)
    with (
        source.reader() as alone,
        sink.writer() as writer,
        pytest.raises(OptionError, match="group="),
    ):
        gateway.transaction(alone, writer)
    with (
        Gateway(gateway_url, timeout_s=29) as other,
        other.channel(source.name).reader(group="copy") as reader,
        sink.writer() as writer,
        pytest.raises(OptionError, match="different gateways"),
    ):
        gateway.transaction(reader, writer)
