"""Batches without a writer: several processes write parts, one commits."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest

from faults import at_call, failing_call
from ledger_view import LedgerView
from relay import Relay
from scripted_gateway import Script
from sluiceway import Channel
from sluiceway.api.ledger import Batch, BatchRequest, Interval, LedgerCalls
from sluiceway.api.transport import Transport
from sluiceway.codecs import codec
from sluiceway.errors import (
    ChannelNotReady,
    CommitUnknown,
    Conflict,
    EndpointClosed,
    GatewayUnavailable,
    TopicGone,
)
from sluiceway.kafka.messages import Messages
from sluiceway.kafka.producer import IdempotentProducer
from sluiceway.ledger.intervals import DeliveredIntervals, WrittenRecords
from sluiceway.ledger.leases import LeaseKeeper
from sluiceway.ledger.write_batch import (
    BATCH_TRANSITIONS,
    BatchSequence,
    BatchState,
    WriteBatch,
)
from sluiceway.records import to_batches
from sluiceway.schema import Schema
from topics import readings
from waiting import until

NewChannel = Callable[..., Channel]


@pytest.fixture
def channel(new_ledgered: NewChannel) -> Channel:
    return new_ledgered()


def request(channel: Channel, key: str = "q-1", **options: Any) -> BatchRequest:
    wishes = {"owner": "query", "instance": "run-1", "lease_ms": 60_000, **options}
    return BatchRequest(channel=channel.name, uid=channel.uid, key=key, **wishes)


def attempt(channel: Channel, batch: WriteBatch, first: int, count: int = 10) -> WrittenRecords:
    """Write records like a task, and return its part for the driver."""
    batch.open()
    connection = channel.connection("write")
    schema = Schema.parse(connection.schema_definition)
    encoder = codec(connection.format, schema, connection.schema_id)
    intervals = DeliveredIntervals()
    producer = IdempotentProducer(
        connection,
        {},
        connect_timeout_s=30,
        delivery_timeout_s=30,
        on_delivery=intervals.add,
    )
    (rows,) = to_batches(readings(count, first), schema)
    values = encoder.encode(rows, limit_bytes=1_000_000).values
    producer.send(Messages(values=values, partitions=np.zeros(count, np.int32)))
    producer.flush()
    batch.release()
    written: WrittenRecords = pickle.loads(pickle.dumps(intervals.take()))  # noqa: S301
    assert written.records == count
    return written


def test_attempts_of_several_processes_write_one_batch_and_the_losers_stay_invisible(
    channel: Channel, ledger: LedgerView
) -> None:
    request_ = request(channel)
    tasks = [WriteBatch(ledger.calls, pickle.loads(pickle.dumps(request_))) for _ in range(4)]  # noqa: S301
    winner, loser, other, _ = (attempt(channel, task, 10 * n) for n, task in enumerate(tasks))
    assert len({task.opened.id for task in tasks}) == 1
    driver = WriteBatch(ledger.calls, request_)
    driver.open()
    result = driver.commit(WrittenRecords.merged([other, winner]))
    assert result.number == 1
    assert ledger.ids(channel) == [*range(10), *range(20, 30)]
    assert loser.manifest[0][0].first not in range(*winner.manifest[0][0])


def test_a_repeated_commit_gives_the_same_answer(channel: Channel, ledger: LedgerView) -> None:
    batch = WriteBatch(ledger.calls, request(channel))
    written = attempt(channel, batch, 0)
    assert batch.commit(written) == batch.commit(written)
    assert ledger.ids(channel) == list(range(10))
    again = WriteBatch(ledger.calls, request(channel, instance="run-2"))
    again.open()
    assert again.replayed
    again.verify_replay(10)


def test_another_manifest_for_a_committed_batch_is_refused(
    channel: Channel, ledger: LedgerView
) -> None:
    batch = WriteBatch(ledger.calls, request(channel))
    first, second = attempt(channel, batch, 0), attempt(channel, batch, 10)
    batch.commit(first)
    with pytest.raises(Conflict) as raised:
        batch.commit(second)
    assert raised.value.code == "batch_committed"
    assert ledger.ids(channel) == list(range(10))


def test_a_manifest_with_one_attempt_twice_is_refused(channel: Channel, ledger: LedgerView) -> None:
    batch = WriteBatch(ledger.calls, request(channel))
    written = attempt(channel, batch, 0)
    with pytest.raises(Exception, match=r"overlap|order|twice|interval"):
        batch.commit(WrittenRecords.merged([written, written]))
    assert ledger.ids(channel) == []


def test_a_newer_run_takes_over_and_commits_of_the_earlier_one_are_refused(
    channel: Channel, ledger: LedgerView
) -> None:
    zombie = WriteBatch(ledger.calls, request(channel, takeover=True, ordinal=7))
    written = attempt(channel, zombie, 0)
    newer = WriteBatch(ledger.calls, request(channel, instance="run-2", takeover=True, ordinal=7))
    newer.commit(attempt(channel, newer, 10))
    with pytest.raises(Conflict):
        zombie.commit(written)
    assert ledger.ids(channel) == list(range(10, 20))
    with pytest.raises(Conflict) as raised:
        WriteBatch(
            ledger.calls,
            request(channel, "q-0", instance="run-3", takeover=True, ordinal=6),
        ).open()
    assert raised.value.code == "stale_batch"


def test_an_aborted_batch_shows_nothing_and_is_not_committed(
    channel: Channel, ledger: LedgerView
) -> None:
    batch = WriteBatch(ledger.calls, request(channel))
    written = attempt(channel, batch, 0)
    batch.abort(ZeroDivisionError())
    batch.abort(ZeroDivisionError())
    with pytest.raises(Conflict) as raised:
        batch.commit(written)
    assert raised.value.code == "batch_aborted"
    assert ledger.ids(channel) == []
    assert ledger.kinds(channel) == ["abort"]


def test_an_abort_after_the_commit_changes_nothing(channel: Channel, ledger: LedgerView) -> None:
    batch = WriteBatch(ledger.calls, request(channel))
    batch.commit(attempt(channel, batch, 0))
    batch.abort(ZeroDivisionError())
    assert batch.resolve()
    assert ledger.ids(channel) == list(range(10))


def test_a_batch_that_is_not_open_is_refused(channel: Channel, ledger: LedgerView) -> None:
    batch = WriteBatch(ledger.calls, request(channel))
    with pytest.raises(EndpointClosed, match=r"open\(\) first"):
        batch.commit(WrittenRecords())


def test_leases_are_renewed_until_the_batch_ends(channel: Channel, ledger: LedgerView) -> None:
    leases = LeaseKeeper(ledger.calls, channel.name, channel.uid, lease_ms=60_000)
    request_ = request(channel)
    batch = WriteBatch(ledger.calls, request_, leases=leases)
    opened = batch.open()
    other = WriteBatch(ledger.calls, request(channel, "q-2"), leases=leases)
    other.open()
    assert leases.run_once() == 2
    batch.check()
    ledger.calls.abort(request_, opened.id, cause="a test")
    assert leases.run_once() == 1
    with pytest.raises(Conflict, match="aborted"):
        batch.check()
    other.check()
    batch.release()
    other.abort(ZeroDivisionError())
    assert leases.run_once() == 0
    leases.close()


@pytest.fixture
def often(channel: Channel, ledger: LedgerView) -> Iterator[LeaseKeeper]:
    """Renews long leases soon."""
    with closing(
        LeaseKeeper(
            ledger.calls, channel.name, channel.uid, lease_ms=60_000, renewals_per_lease=200
        )
    ) as leases:
        yield leases


def is_renewed(ledger: LedgerView, batch: WriteBatch) -> bool:
    first, now = batch.opened, ledger.calls.open(batch.request)
    assert now.id == first.id
    assert now.lease_until is not None
    assert first.lease_until is not None
    return now.lease_until > first.lease_until


def test_a_lease_is_renewed_in_the_background(
    channel: Channel, ledger: LedgerView, often: LeaseKeeper
) -> None:
    batch = WriteBatch(ledger.calls, request(channel, lease_ms=often.lease_ms), leases=often)
    batch.open()
    until(lambda: is_renewed(ledger, batch))
    batch.abort(ZeroDivisionError())


def test_the_lease_of_a_dropped_batch_is_not_renewed(channel: Channel, ledger: LedgerView) -> None:
    leases = LeaseKeeper(ledger.calls, channel.name, channel.uid, lease_ms=60_000)
    batch = WriteBatch(ledger.calls, request(channel), leases=leases)
    batch.open()
    assert leases.run_once() == 1
    del batch
    assert leases.run_once() == 0
    leases.close()


OPENED = Batch(
    id="1" * 32,
    key="q-1",
    owner="query",
    epoch=1,
    state="open",
    begin={0: 0},
    number=None,
    records=None,
    counts=None,
    lease_until=None,
)


def scripted_batch(script: Script) -> WriteBatch:
    return WriteBatch(
        LedgerCalls(script.transport()),
        BatchRequest(channel="a", uid="2" * 32, key="q-1", owner="query", instance="run-1"),
    )


def test_a_batch_whose_opening_was_refused_is_not_opened_by_its_abort(script: Script) -> None:
    batch = scripted_batch(script)
    script.problem(409, "batch_key_taken")
    with pytest.raises(Conflict, match="batch_key_taken"):
        batch.open()
    batch.abort("it could not be opened")
    assert len(script.requests) == 1


@pytest.fixture
def relay(gateway_url: str) -> Iterator[Relay]:
    """A connection to the gateway that may lose a response."""
    with closing(Relay(httpx.URL(gateway_url).port or 0)) as relay:
        yield relay


@pytest.fixture
def lossy(relay: Relay) -> Iterator[LedgerCalls]:
    """Requests through the relay, which wait a second for their response."""
    with closing(Transport(relay.url, timeout_s=1)) as transport:
        yield LedgerCalls(transport)


OPENING = b'"takeover"'
"""A field that only a request to open a batch has."""


def test_an_opening_whose_response_was_lost_is_repeated_with_the_same_batch(
    channel: Channel, ledger: LedgerView, relay: Relay, lossy: LedgerCalls
) -> None:
    batch = WriteBatch(lossy, request(channel))
    relay.drop_at(OPENING, forward=True)
    with pytest.raises(GatewayUnavailable):
        batch.open()
    (before,) = channel.commits().open
    batch.open()
    assert channel.commits().open == (before,)
    batch.commit(WrittenRecords())
    assert not channel.commits().open


def test_a_batch_whose_opening_had_no_response_is_aborted(
    channel: Channel, ledger: LedgerView, relay: Relay, lossy: LedgerCalls
) -> None:
    batch = WriteBatch(lossy, request(channel))
    relay.drop_at(OPENING, forward=True)
    with pytest.raises(GatewayUnavailable):
        batch.open()
    assert ledger.open_keys(channel) == [batch.key]
    batch.abort("it is given up")
    assert batch.committed is False
    assert ledger.open_keys(channel) == []


def test_closing_a_sequence_after_a_failure_ends_a_batch_whose_opening_had_no_response(
    channel: Channel, ledger: LedgerView, relay: Relay, lossy: LedgerCalls
) -> None:
    sequence = BatchSequence(lossy, channel.connection("write"), DeliveredIntervals(), writer="w")
    # The abort, which requests the batch again, does not reach the gateway.
    unavailable = Mock(side_effect=[None, GatewayUnavailable("cut off")])
    relay.drop_at(OPENING, forward=True)
    with at_call(LedgerCalls, "open", unavailable), pytest.raises(GatewayUnavailable) as raised:
        sequence.open()
    assert ledger.open_keys(channel) == ["w-1"]
    sequence.close(raised.value)
    assert ledger.open_keys(channel) == []


def test_the_next_batch_of_a_writer_ends_the_one_whose_opening_had_no_response(
    channel: Channel, ledger: LedgerView, relay: Relay, lossy: LedgerCalls
) -> None:
    sequence = BatchSequence(lossy, channel.connection("write"), DeliveredIntervals(), writer="w")
    # The abort, which requests the batch again, does not reach the gateway.
    unavailable = Mock(side_effect=[None, GatewayUnavailable("cut off")])
    relay.drop_at(OPENING, forward=True)
    with at_call(LedgerCalls, "open", unavailable), pytest.raises(GatewayUnavailable):
        sequence.open()
    assert ledger.open_keys(channel) == ["w-1"]
    batch = sequence.open()
    assert ledger.open_keys(channel) == [batch.key]
    sequence.close(ZeroDivisionError())


def test_a_batch_of_another_topic_is_aborted(channel: Channel, ledger: LedgerView) -> None:
    batch = WriteBatch(ledger.calls, request(channel, topic_id="another"))
    for _ in range(2):
        with pytest.raises(TopicGone, match="created again"):
            batch.open()
    batch.abort("the topic is gone")
    assert ledger.open_keys(channel) == []


def test_an_interrupted_opening_that_cannot_be_undone_is_left_to_the_lease(script: Script) -> None:
    batch = scripted_batch(script)
    with failing_call(LedgerCalls, "open", KeyboardInterrupt(), arrives=False):
        batch.open()
    script.problem(409, "batch_fenced")
    batch.abort("it was interrupted")
    assert len(script.requests) == 1
    assert batch.committed is None


def test_only_the_answer_that_it_is_committed_resolves_a_batch_as_committed(script: Script) -> None:
    batch = scripted_batch(script).adopt(OPENED)
    script.problem(409, "batch_aborted")
    with pytest.raises(Conflict, match="batch_aborted"):
        batch.resolve()
    assert batch.committed is None
    script.problem(409, "batch_committed")
    assert batch.resolve()
    assert batch.committed


ONE = WrittenRecords(manifest={0: (Interval(0, 1),)}, counts={0: 1})
MANY = WrittenRecords(
    manifest={0: [Interval(2 * n, 2 * n + 1) for n in range(20_000)]}, counts={0: 20_000}
)
"""Records whose manifest is uploaded in slices."""


def test_each_state_of_a_batch_is_reached_and_the_last_ones_are_final() -> None:
    reached = frozenset().union(*BATCH_TRANSITIONS.values())
    assert reached == set(BatchState)
    final = {state for state, following in BATCH_TRANSITIONS.items() if not following}
    assert final == {BatchState.REPLAYED, BatchState.COMMITTED, BatchState.ABORTED}


def test_an_ended_batch_is_neither_committed_nor_aborted_again(script: Script) -> None:
    batch = scripted_batch(script).adopt(OPENED)
    script.response(200, {})
    batch.abort("a test")
    with pytest.raises(Conflict, match="is aborted"):
        batch.commit(ONE)
    batch.abort("again")
    assert batch.resolve() is False
    assert len(script.requests) == 1


def test_an_interrupted_commit_is_requested_until_it_is_repeated_or_resolved(
    script: Script,
) -> None:
    batch = scripted_batch(script).adopt(OPENED)
    with failing_call(LedgerCalls, "commit", KeyboardInterrupt(), arrives=False):
        batch.commit(ONE)
    assert (batch.state, batch.is_requested, batch.committed) == ("committing", True, None)
    script.problem(409, "batch_committed")
    batch.abort("it was interrupted")
    assert (batch.state, batch.is_requested, batch.committed) == ("committed", True, True)


def test_a_repeated_commit_that_an_outage_stops_early_is_unknown(script: Script) -> None:
    """The slices of its manifest are uploaded before the request that may have been applied."""
    batch = scripted_batch(script).adopt(OPENED)
    with at_call(LedgerCalls, "upload", Mock(side_effect=GatewayUnavailable("no response"))):
        with pytest.raises(GatewayUnavailable):
            scripted_batch(script).adopt(OPENED).commit(MANY)
        with failing_call(LedgerCalls, "commit", KeyboardInterrupt(), arrives=False):
            batch.commit(MANY)
        for _ in range(2):
            with pytest.raises(CommitUnknown):
                batch.commit(MANY)
    script.problem(409, "batch_committed")
    assert batch.resolve()


def test_an_open_batch_is_aborted_once_whether_the_gateway_answers_or_not(script: Script) -> None:
    batch = scripted_batch(script).adopt(OPENED)
    outage = Mock(side_effect=GatewayUnavailable("no response"))
    with at_call(LedgerCalls, "abort", outage):
        batch.abort("a test")
        batch.abort("again")
    assert batch.committed is False
    assert outage.call_count == 1


def test_a_batch_that_lacks_a_partition_is_requested_again(script: Script) -> None:
    batch = scripted_batch(script)
    for begin in ({"0": 0}, {"0": 0, "1": 0}):
        script.response(200, {**asdict(OPENED), "begin": begin})
    with pytest.raises(ChannelNotReady, match="the partition 1"):
        batch.open(partitions=2)
    for _ in range(2):
        assert batch.open(partitions=2).begin == {0: 0, 1: 0}
    assert len(script.requests) == 2
    batch.release()


@pytest.fixture
def sequence(channel: Channel, ledger: LedgerView) -> Iterator[BatchSequence]:
    connection = channel.connection("write")
    sequence = BatchSequence(ledger.calls, connection, DeliveredIntervals(), writer="w")
    yield sequence
    sequence.close(ZeroDivisionError())


def test_the_batches_of_a_writer_name_its_last_commit(sequence: BatchSequence) -> None:
    first = sequence.open()
    sequence.commit()
    second = sequence.open(key="day-1", owner="job", takeover=True)
    sequence.abort(ZeroDivisionError())
    requests = [batch.request for batch in (first, second, sequence.open())]
    assert [request.key for request in requests] == ["w-1", "day-1", "w-2"]
    assert [request.owner for request in requests] == ["w", "job", "w"]
    assert [request.own_key for request in requests] == [True, False, True]
    assert [request.previous for request in requests] == [None, first.result, first.result]


@pytest.mark.parametrize("repeats", [True, False])
def test_no_batch_opens_until_a_commit_without_a_response_is_repeated_or_resolved(
    channel: Channel, ledger: LedgerView, sequence: BatchSequence, *, repeats: bool
) -> None:
    batch = sequence.open()
    lost = CommitUnknown(channel=channel.name, key=batch.key)
    with failing_call(LedgerCalls, "commit", lost, arrives=False):
        sequence.commit()
    with pytest.raises(CommitUnknown):
        sequence.open()
    if repeats:
        sequence.commit()
    else:
        assert sequence.resolve() is False
    assert batch.committed is repeats
    assert ledger.open_keys(channel) == []
    assert sequence.open().key == "w-2"


@pytest.mark.parametrize("arrives", [True, False])
def test_an_interrupted_opening_of_a_writers_batch_leaves_none(
    channel: Channel, ledger: LedgerView, sequence: BatchSequence, *, arrives: bool
) -> None:
    interrupts = iter([KeyboardInterrupt()])

    def interrupt_first(*_: object, **__: object) -> None:
        for interrupt in interrupts:
            raise interrupt

    with (
        at_call(LedgerCalls, "open", interrupt_first, arrives=arrives),
        pytest.raises(KeyboardInterrupt),
    ):
        sequence.open()
    assert sequence.current is None
    assert ledger.kinds(channel) == ["abort"]
    assert ledger.open_keys(channel) == []
