"""Writers of exactly-once channels: commits at flush, by time, at the end, and of blocks."""

import pickle
import secrets
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from faults import at_call, failing_call
from ledger_view import LedgerView
from sluiceway import Channel, ChannelWriter
from sluiceway.api.ledger import BatchRequest, LedgerCalls
from sluiceway.errors import (
    Conflict,
    DeliveryFailed,
    EndpointClosed,
    GatewayUnavailable,
    OptionError,
    ReplayMismatch,
)
from sluiceway.ledger.intervals import WrittenRecords
from topics import Topics, readings
from waiting import until

NewChannel = Callable[..., Channel]


def numbers(*ranges: tuple[int, int]) -> list[int]:
    return [number for first, end in ranges for number in range(first, end)]


@pytest.mark.sample
def test_records_are_visible_after_flush_and_not_before(
    channel: Channel, ledger: LedgerView
) -> None:
    with channel.writer() as writer:
        writer.write(readings(100))
        writer.flush()
        writer.write(readings(50, 100))
        assert ledger.ids(channel) == numbers((0, 100))
        writer.flush()
        assert ledger.ids(channel) == numbers((0, 150))
    assert ledger.kinds(channel) == ["commit", "commit"]
    assert ledger.open_keys(channel) == []


@pytest.mark.long
def test_closing_commits(channel: Channel, ledger: LedgerView) -> None:
    with channel.writer() as writer:
        writer.write(readings(100))
    assert ledger.ids(channel) == numbers((0, 100))


def test_a_flush_without_records_is_no_batch(channel: Channel, ledger: LedgerView) -> None:
    with channel.writer() as writer:
        writer.flush()
        writer.write([])
        writer.flush()
    assert ledger.kinds(channel) == []


def test_leaving_by_an_exception_aborts_uncommitted_records(
    channel: Channel, ledger: LedgerView
) -> None:
    def fail() -> None:
        with channel.writer() as writer:
            writer.write(readings(10))
            writer.flush()
            writer.write(readings(20_000, 10))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ledger.ids(channel) == numbers((0, 10))
    assert ledger.kinds(channel)[:1] == ["commit"]
    assert ledger.open_keys(channel) == []


@pytest.mark.long
def test_a_writer_commits_by_time(channel: Channel, ledger: LedgerView) -> None:
    with channel.writer(commit_every_s=0.05, batch_records=10) as writer:
        writer.write(readings(100))
        until(lambda: ledger.ids(channel) == numbers((0, 100)))
        writer.write(readings(100, 100))
        until(lambda: ledger.ids(channel) == numbers((0, 200)))


def test_closing_raises_the_failure_of_a_timed_commit(channel: Channel, ledger: LedgerView) -> None:
    writer = channel.writer(commit_every_s=0.05)
    with writer.turn:
        writer.write(readings(10))
        writer.send_accumulated()
        # Another instance of the same owner aborts the batch; the writer does not know.
        (opened,) = ledger.calls.commits(channel.name).open
        request = BatchRequest(
            channel=channel.name,
            uid=channel.uid,
            key="another",
            owner=opened.owner,
            instance="another",
            takeover=True,
        )
        ledger.calls.abort(request, ledger.calls.open(request).id, cause="a test")
    until(lambda: writer.failure is not None)
    with pytest.raises(Conflict) as raised:
        writer.close()
    assert raised.value.code == "batch_aborted"
    assert ledger.ids(channel) == []
    with pytest.raises(EndpointClosed):
        writer.write(readings(1))


@pytest.mark.long
def test_a_block_is_not_committed_by_time(channel: Channel, ledger: LedgerView) -> None:
    with channel.writer(commit_every_s=0.05) as writer:
        with writer.batch("k"):
            writer.write(readings(100))
            writer.flush()
            assert ledger.open_keys(channel) == ["k"]
            writer.write(readings(100, 100))
            assert ledger.ids(channel) == []
        assert ledger.kinds(channel) == ["commit"]
    assert ledger.ids(channel) == numbers((0, 200))


@pytest.mark.long
def test_an_open_batch_of_one_writer_holds_back_later_commits_of_another(
    new_ledgered: NewChannel, ledger: LedgerView
) -> None:
    channel = new_ledgered(partitions=1)
    with channel.writer() as first, channel.writer() as second:
        with first.batch("slow"):
            first.write(readings(10))
            first.flush()
            second.write(readings(10, 10))
            second.flush()
            assert ledger.ids(channel) == []
            assert ledger.committed(channel).visible_end == {0: 20}
        assert ledger.ids(channel) == numbers((0, 20))


def test_a_batch_is_all_or_nothing_and_the_writer_remains_usable(
    channel: Channel, ledger: LedgerView
) -> None:
    def fail(writer: ChannelWriter) -> None:
        with writer.batch("day-1"):
            # Written before the block, so committed regardless of the block.
            assert ledger.ids(channel) == numbers((0, 10))
            writer.write(readings(20_000, 10))
            raise ZeroDivisionError

    with channel.writer() as writer:
        writer.write(readings(10))
        with pytest.raises(ZeroDivisionError):
            fail(writer)
        assert ledger.open_keys(channel) == []
        with writer.batch("day-1") as batch:
            writer.write(readings(10, 10))
        assert not batch.replayed
        writer.write(readings(10, 20))
    assert ledger.ids(channel) == numbers((0, 30))
    assert ledger.kinds(channel) == ["commit", "abort", "commit", "commit"]


@pytest.mark.long
def test_a_committed_key_writes_nothing_again(channel: Channel, ledger: LedgerView) -> None:
    for replayed in (False, True, True):
        with channel.writer() as writer:
            with writer.batch("day-1") as batch:
                assert writer.write(readings(100)) == 100
                writer.flush()
            assert batch.replayed is replayed
            assert writer.accepted_records == 100
    assert ledger.ids(channel) == numbers((0, 100))
    assert ledger.kinds(channel) == ["commit"]


@pytest.mark.long
@pytest.mark.parametrize("count", [0, 99, 101])
def test_a_replay_with_another_number_of_records_is_refused(
    new_ledgered: NewChannel, ledger: LedgerView, count: int
) -> None:
    channel = new_ledgered()
    with channel.writer() as writer, writer.batch("day-1"):
        writer.write(readings(100))
    with channel.writer() as writer:
        with (
            pytest.raises(ReplayMismatch, match=f"100 records, and now has {count}"),
            writer.batch("day-1"),
        ):
            writer.write(readings(count))
        writer.write(readings(5, 100))
    assert ledger.ids(channel) == numbers((0, 105))


def test_an_empty_batch_is_committed_too(new_ledgered: NewChannel, ledger: LedgerView) -> None:
    channel = new_ledgered()
    for replayed in (False, True):
        with channel.writer() as writer, writer.batch("nothing") as batch:
            assert batch.replayed is replayed
    assert ledger.kinds(channel) == ["commit"]


@pytest.mark.long
def test_a_key_belongs_to_its_owner(new_ledgered: NewChannel, ledger: LedgerView) -> None:
    channel = new_ledgered()
    with channel.writer() as writer, writer.batch("day-1", owner="flights"):
        writer.write(readings(10))
    with channel.writer() as writer:
        with pytest.raises(Conflict, match="belongs to 'flights'") as raised, writer.batch("day-1"):
            raise AssertionError("the block runs")
        assert raised.value.code == "batch_key_taken"
        writer.write(readings(5, 10))
    assert ledger.ids(channel) == numbers((0, 15))


def test_a_key_that_another_live_writer_has_open_is_refused(new_ledgered: NewChannel) -> None:
    channel = new_ledgered()
    with channel.writer() as first, channel.writer() as second, first.batch("day-1"):
        with pytest.raises(Conflict) as raised, second.batch("day-1"):
            raise AssertionError("the block runs")
        assert raised.value.code == "batch_open"
        assert raised.value.retriable


def test_a_restarted_member_of_a_group_takes_over_its_open_batch(
    new_ledgered: NewChannel, ledger: LedgerView
) -> None:
    channel = new_ledgered()

    def be_replaced() -> None:
        with channel.writer(group="loader") as zombie, zombie.batch("day-1"):
            zombie.write(readings(10))
            zombie.flush()
            with channel.writer(group="loader") as restarted, restarted.batch("day-1"):
                restarted.write(readings(10))

    with pytest.raises(Conflict):
        be_replaced()
    assert ledger.ids(channel) == numbers((0, 10))
    assert ledger.kinds(channel) == ["abort", "commit"]


def test_a_lost_batch_ends_the_writer_and_shows_nothing(
    new_ledgered: NewChannel, ledger: LedgerView
) -> None:
    channel = new_ledgered()
    writer = channel.writer()

    def lose() -> None:
        with writer, writer.batch("day-1") as batch:
            writer.write(readings(10))
            ledger.calls.abort(batch.request, batch.opened.id, cause="a test")

    with pytest.raises(Conflict) as raised:
        lose()
    assert raised.value.code == "batch_aborted"
    with pytest.raises(EndpointClosed):
        writer.write(readings(1))
    assert ledger.ids(channel) == []


@pytest.mark.long
def test_a_failed_delivery_aborts_the_batch_and_ends_the_writer(
    new_ledgered: NewChannel, ledger: LedgerView, topics: Topics
) -> None:
    channel = new_ledgered()
    topic = channel.connection("write").topic_name

    def fail() -> None:
        with channel.writer(commit_every_s=600) as writer:
            writer.write(readings(10))
            writer.flush()
            topics.limit_messages(topic)
            writer.write([{"id": 10, "station": secrets.token_hex(2000), "celsius": 1.0}])
            writer.flush()

    with pytest.raises(DeliveryFailed):
        fail()
    assert ledger.ids(channel) == numbers((0, 10))
    assert ledger.kinds(channel) == ["commit", "abort"]
    assert ledger.open_keys(channel) == []


FORKING = """
    import os, sys, warnings
    from sluiceway import Gateway
    from sluiceway.errors import EndpointClosed

    # That there are threads is the point.
    warnings.simplefilter("ignore", DeprecationWarning)
    parent = os.getpid()

    def fork(leave):
        child = os.fork()
        if child == 0:
            leave()
        assert os.waitpid(child, 0)[1] == 0

    channel = Gateway(sys.argv[1]).channel(sys.argv[2])
    try:
        with channel.writer() as writer:
            with writer.batch("parent") as batch:
                writer.write(RECORDS[:10])
                writer.flush()
                fork(writer.flush)
                fork(lambda: batch.commit(None))
                fork(sys.exit)
                writer.write(RECORDS[10:])
            fork(sys.exit)
    except (EndpointClosed, SystemExit):
        assert os.getpid() != parent
        os._exit(0)
"""


@pytest.mark.long
def test_a_forked_child_neither_commits_nor_aborts_the_batch_of_its_parent(
    channel: Channel, ledger: LedgerView, gateway_url: str
) -> None:
    program = f"RECORDS = {readings(20)!r}" + textwrap.dedent(FORKING)
    done = subprocess.run(
        [sys.executable, "-c", program, gateway_url, channel.name],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ledger.ids(channel) == numbers((0, 20))
    assert ledger.kinds(channel) == ["commit"]


@pytest.mark.long
def test_threads_share_a_writer_and_no_record_is_lost_or_doubled(
    channel: Channel, ledger: LedgerView
) -> None:
    with channel.writer(batch_records=7) as writer:

        def work(first: int) -> None:
            for start in range(first, first + 200, 10):
                writer.write(readings(10, start))
                for record in readings(3, 10_000 + start):
                    writer.write(record)
                writer.flush()

        threads = [threading.Thread(target=work, args=(n * 200,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    singles = [10_000 + start + n for start in range(0, 800, 10) for n in range(3)]
    assert ledger.ids(channel) == [*range(800), *singles]


def test_blocks_do_not_nest_and_end_before_the_writer(new_ledgered: NewChannel) -> None:
    with new_ledgered().writer() as writer, writer.batch("outer"):
        with pytest.raises(OptionError, match="already in a batch"), writer.batch("inner"):
            pass
        with pytest.raises(OptionError, match="leave its block before you close it"):
            writer.close()


def test_records_of_a_block_cannot_be_acknowledged_before_its_end(
    new_ledgered: NewChannel,
) -> None:
    with new_ledgered().writer() as writer, writer.batch("a"):
        writer.write(readings(1))
        with pytest.raises(OptionError, match="leave its block before you wait"):
            writer.wait_acknowledged(["delays"], timeout_s=0)


@pytest.mark.sample
@pytest.mark.parametrize("key", ["", "k" * 201, 7, None])
def test_an_invalid_key_is_refused(new_ledgered: NewChannel, key: str) -> None:
    with (
        new_ledgered().writer() as writer,
        pytest.raises(OptionError, match="1 to 200 characters"),
        writer.batch(key),
    ):
        pass


def test_a_channel_that_delivers_at_least_once_has_no_batches(new_channel: NewChannel) -> None:
    with (
        new_channel().writer() as writer,
        pytest.raises(OptionError, match='delivery="exactly_once"'),
        writer.batch("k"),
    ):
        pass


def test_a_writer_of_a_connection_needs_the_gateway(new_ledgered: NewChannel) -> None:
    connection = pickle.loads(pickle.dumps(new_ledgered().connection("write")))  # noqa: S301
    with pytest.raises(OptionError, match=r"open it with channel\.writer\(\)"):
        ChannelWriter(connection)


@pytest.mark.sample
@pytest.mark.parametrize("answered", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_a_block_that_an_interrupt_has_ended_is_logged_by_its_outcome(
    channel: Channel,
    ledger: LedgerView,
    caplog: pytest.LogCaptureFixture,
    committed: bool,
    answered: bool,
) -> None:
    # An outage of the gateway would take the 5 s of the request.
    outage = at_call(LedgerCalls, "abort", Mock(side_effect=GatewayUnavailable("no response")))
    with channel.writer() as writer:
        manager = writer.batches.block("k")
        # As a `with` statement does.
        statement = manager.__exit__
        manager.__enter__()
        writer.write(readings(10))
        if committed:
            with failing_call(LedgerCalls, "commit", KeyboardInterrupt(), arrives=True):
                # No name: only the statement that is interrupted has the block.
                writer.batches.commit(manager._block)
        del statement
        with nullcontext() if answered else outage:
            writer.flush()

    (message,) = (line for line in caplog.messages if "an interrupt ended a batch" in line)
    if not committed:
        assert "none of its records are written" in message
    elif answered:
        assert "its records are written" in message
    else:
        assert "is unknown" in message
    if answered:
        assert ledger.ids(channel) == (numbers((0, 10)) if committed else [])


def test_a_flush_that_was_interrupted_as_it_collects_its_records_is_repeated(
    channel: Channel, ledger: LedgerView
) -> None:
    with channel.writer() as writer:
        for first in (0, 10):
            writer.write(readings(10, first))
            with failing_call(WrittenRecords, "require", KeyboardInterrupt(), arrives=True):
                writer.flush()
            writer.flush()
    assert ledger.ids(channel) == numbers((0, 20))


def test_a_key_is_written_again_after_two_interrupts_of_opening_its_batch(
    channel: Channel, ledger: LedgerView
) -> None:
    with channel.writer() as writer:
        # The abort opens it again, to know its id.
        with failing_call(LedgerCalls, "open", KeyboardInterrupt(), arrives=True):
            write_batch(writer)
        write_batch(writer)
    assert ledger.ids(channel) == numbers((0, 10))


def test_a_batch_whose_abort_was_interrupted_is_aborted_by_the_next_call(
    channel: Channel, ledger: LedgerView
) -> None:
    with channel.writer() as writer:
        interrupted_abort = failing_call(LedgerCalls, "abort", KeyboardInterrupt(), arrives=False)
        with interrupted_abort, writer.batch("k"):
            writer.write(readings(10))
            raise ZeroDivisionError
        writer.flush()
        assert channel.commits().open == ()
        write_batch(writer)
    assert ledger.ids(channel) == numbers((0, 10))


def write_batch(writer: ChannelWriter) -> None:
    with writer.batch("k"):
        writer.write(readings(10))
