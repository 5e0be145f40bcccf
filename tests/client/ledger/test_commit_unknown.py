"""Commits whose response is lost: the unknown state, and its resolution."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from faults import LOST_COMMIT, at_call, failing_call, shorten_lost_commits
from ledger_view import LedgerView, copy
from relay import Relay
from sluiceway import Channel, ChannelReader, ChannelWriter, Gateway
from sluiceway.api.ledger import LedgerCalls
from sluiceway.errors import CommitUnknown, EndpointClosed
from topics import readings
from waiting import until

NewChannel = Callable[..., Channel]


@pytest.fixture
def relayed_gateway(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """The gateway through a connection that loses requests or responses."""
    shorten_lost_commits(monkeypatch, relay)
    with Gateway(relay.url) as gateway:
        yield gateway


@pytest.mark.sample
@pytest.mark.parametrize("arrives", [True, False])
def test_a_flush_without_an_answer_is_resolved(
    relayed_gateway: Gateway,
    relay: Relay,
    new_ledgered: NewChannel,
    ledger: LedgerView,
    *,
    arrives: bool,
) -> None:
    channel = new_ledgered()
    with relayed_gateway.channel(channel.name).writer() as writer:
        writer.write(readings(10))
        relay.drop_at(LOST_COMMIT, forward=arrives)
        with pytest.raises(CommitUnknown) as raised:
            writer.flush()
        until(lambda: ledger.ids(channel) == list(range(10 if arrives else 0)))
        for refused in (writer.flush, lambda: writer.write(readings(1))):
            with pytest.raises(CommitUnknown, match="resolve"):
                refused()
        assert raised.value.key.startswith(str(writer.endpoint_id))
        assert writer.resolve() is arrives
        assert writer.resolve() is None
        writer.write(readings(10, 10))
    first = 0 if arrives else 10
    assert ledger.ids(channel) == list(range(first, 20))
    assert ledger.open_keys(channel) == []


@pytest.mark.parametrize("arrives", [True, False])
def test_a_closing_flush_without_an_answer_is_resolved_after_the_endpoint_has_ended(
    relayed_gateway: Gateway,
    relay: Relay,
    new_ledgered: NewChannel,
    *,
    arrives: bool,
) -> None:
    remote = relayed_gateway.channel(new_ledgered().name)
    writer = remote.writer()
    writer.write(readings(10))
    relay.drop_at(LOST_COMMIT, forward=arrives)
    with pytest.raises(CommitUnknown):
        writer.close()

    def has_closed_connections() -> bool:
        try:
            writer.handle.calls.transport.request("GET", "/livez")
        except EndpointClosed:
            return True
        return False

    # It was the only endpoint of its session.
    until(has_closed_connections)
    assert writer.resolve() is arrives


@pytest.mark.long
@pytest.mark.parametrize("arrives", [True, False])
def test_a_batch_without_an_answer_is_written_once_by_its_key(
    relayed_gateway: Gateway,
    relay: Relay,
    new_ledgered: NewChannel,
    ledger: LedgerView,
    *,
    arrives: bool,
) -> None:
    channel = new_ledgered()

    def write() -> bool:
        remote = relayed_gateway.channel(channel.name)
        with remote.writer(group="job") as writer, writer.batch("day-1") as batch:
            writer.write(readings(10))
        return batch.replayed

    relay.drop_at(LOST_COMMIT, forward=arrives)
    with pytest.raises(CommitUnknown) as raised:
        write()
    assert raised.value.key == "day-1"
    until(lambda: ledger.ids(channel) == list(range(10 if arrives else 0)))
    assert write() is arrives
    assert ledger.ids(channel) == list(range(10))


@pytest.mark.sample
@pytest.mark.parametrize("arrives", [True, False])
def test_a_writer_repeats_a_batch_without_an_answer(
    relayed_gateway: Gateway,
    relay: Relay,
    new_ledgered: NewChannel,
    ledger: LedgerView,
    *,
    arrives: bool,
) -> None:
    channel = new_ledgered()
    with relayed_gateway.channel(channel.name).writer() as writer:

        def write(key: str) -> bool:
            with writer.batch(key) as batch:
                writer.write(readings(10))
            return batch.replayed

        relay.drop_at(LOST_COMMIT, forward=arrives)
        with pytest.raises(CommitUnknown):
            write("day-1")
        with pytest.raises(CommitUnknown):
            write("day-2")
        until(lambda: ledger.ids(channel) == list(range(10 if arrives else 0)))
        assert write("day-1") is arrives
        assert ledger.ids(channel) == list(range(10))


@pytest.fixture
def source(new_channel: NewChannel) -> Channel:
    """A channel of 100 readings."""
    channel = new_channel(partitions=1, format="arrow")
    with channel.writer() as writer:
        writer.write(readings(100))
    return channel


@pytest.fixture
def sink(new_ledgered: NewChannel) -> Channel:
    return new_ledgered()


@contextmanager
def attached(
    gateway: Gateway, source: Channel, sink: Channel
) -> Iterator[tuple[ChannelReader, ChannelWriter]]:
    """Attach a reader and a writer for copies through `gateway`."""
    with (
        gateway.channel(source.name).reader(group="copy") as reader,
        gateway.channel(sink.name).writer() as writer,
    ):
        yield reader, writer


@pytest.mark.sample
@pytest.mark.parametrize("arrives", [True, False])
def test_a_transaction_without_an_answer_is_resolved_for_reader_and_writer(
    relayed_gateway: Gateway,
    relay: Relay,
    source: Channel,
    sink: Channel,
    ledger: LedgerView,
    *,
    arrives: bool,
) -> None:
    with attached(relayed_gateway, source, sink) as (reader, writer):
        copy(relayed_gateway, reader, writer, 30)
        relay.drop_at(LOST_COMMIT, forward=arrives)
        with pytest.raises(CommitUnknown):
            copy(relayed_gateway, reader, writer, 30)
        for refused in (
            writer.flush,
            reader.commit,
            reader.position,
            lambda: reader.read(1),
            lambda: copy(relayed_gateway, reader, writer, 30),
        ):
            with pytest.raises(CommitUnknown):
                refused()
        until(lambda: ledger.ids(sink) == list(range(60 if arrives else 30)))
        assert writer.resolve() is arrives
        assert reader.position() == source.committed("copy")
        while copy(relayed_gateway, reader, writer, 30):
            pass
    assert ledger.ids(sink) == list(range(100))


@pytest.mark.long
@pytest.mark.parametrize("arrives", [True, False])
def test_an_interrupted_resolve_is_repeated_for_reader_and_writer(
    relayed_gateway: Gateway,
    relay: Relay,
    source: Channel,
    sink: Channel,
    ledger: LedgerView,
    *,
    arrives: bool,
) -> None:
    with attached(relayed_gateway, source, sink) as (reader, writer):
        relay.drop_at(LOST_COMMIT, forward=arrives)
        with pytest.raises(CommitUnknown):
            copy(relayed_gateway, reader, writer, 30)
        until(lambda: ledger.ids(sink) == list(range(30 if arrives else 0)))
        with failing_call(ChannelReader, "suspend", KeyboardInterrupt(), arrives=False):
            writer.resolve()
        assert writer.resolve() is arrives
        while copy(relayed_gateway, reader, writer, 30):
            pass
    assert ledger.ids(sink) == list(range(100))


@pytest.mark.long
def test_a_commit_that_never_arrived_holds_readers_back_no_longer_than_its_lease(
    relayed_gateway: Gateway, relay: Relay, new_ledgered: NewChannel, ledger: LedgerView
) -> None:
    channel = new_ledgered()

    def lose() -> None:
        with relayed_gateway.channel(channel.name).writer() as writer:
            writer.write(readings(10))
            writer.flush()
            writer.write(readings(10, 10))
            relay.drop_at(LOST_COMMIT, forward=False)
            writer.flush()

    with pytest.raises(CommitUnknown):
        lose()
    assert ledger.ids(channel) == list(range(10))


@pytest.mark.sample
@pytest.mark.parametrize("arrives", [True, False])
def test_a_batch_whose_opening_is_interrupted_is_free_for_the_next_writer(
    channel: Channel, ledger: LedgerView, arrives: bool
) -> None:
    interrupts = [KeyboardInterrupt()]

    def interrupt_first(*_: object, **__: object) -> None:
        if interrupts:
            raise interrupts.pop()

    with channel.writer() as writer:
        with (
            at_call(LedgerCalls, "open", interrupt_first, arrives=arrives),
            pytest.raises(KeyboardInterrupt),
            writer.batch("day-1"),
        ):
            raise AssertionError("the block runs")
        assert ledger.open_keys(channel) == []
    with channel.writer() as writer, writer.batch("day-1"):
        writer.write(readings(10))
    assert ledger.ids(channel) == list(range(10))


@pytest.mark.long
@pytest.mark.parametrize("arrives", [True, False])
def test_an_interrupted_flush_is_completed_before_later_records_are_written(
    new_ledgered: NewChannel, ledger: LedgerView, *, arrives: bool
) -> None:
    channel = new_ledgered()
    with channel.writer() as writer:
        writer.write(readings(10))
        with failing_call(LedgerCalls, "commit", KeyboardInterrupt(), arrives=arrives):
            writer.flush()
        writer.write(readings(10, 10))
        writer.flush()
        assert ledger.ids(channel) == list(range(20))
        writer.write(readings(10, 20))
    assert ledger.ids(channel) == list(range(30))


def test_records_after_an_interrupted_flush_without_an_answer_are_not_lost_silently(
    relayed_gateway: Gateway,
    relay: Relay,
    new_ledgered: NewChannel,
    ledger: LedgerView,
) -> None:
    channel = new_ledgered()
    writer = relayed_gateway.channel(channel.name).writer()
    writer.write(readings(10))
    with failing_call(LedgerCalls, "commit", KeyboardInterrupt(), arrives=False):
        writer.flush()
    relay.drop_at(LOST_COMMIT, forward=False)
    with pytest.raises(EndpointClosed, match="later records were not written"):
        writer.write(readings(20, 10))
    writer.resolve()
    with pytest.raises(EndpointClosed, match="later records were not written"):
        writer.flush()
    writer.close()
    assert ledger.ids(channel) == []
