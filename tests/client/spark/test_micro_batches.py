"""Micro-batches of exactly-once channels, without a Spark session."""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from importlib.machinery import ModuleSpec
from unittest.mock import Mock

import httpx
import pyarrow as pa
import pyspark
import pytest

from faults import at_call
from ledger_view import LedgerView
from relay import Relay
from sluiceway import Gateway
from sluiceway.api.ledger import LedgerCalls
from sluiceway.channel import Channel
from sluiceway.errors import (
    Conflict,
    GatewayUnavailable,
    IncompleteBatch,
    InvalidRecord,
    ReplayMismatch,
)
from sluiceway.spark.ledger_batches import JobBatch
from sluiceway.spark.options import WriteOptions
from sluiceway.spark.writer import ChannelStreamWriter, TaskWriter
from spark_tasks import SCHEMA, Query, Tasks, pickled_copy, rows
from topics import messages_of
from waiting import until


@pytest.fixture(params=["avro", "arrow"])
def channel(request: pytest.FixtureRequest, gateway: Gateway, name: str) -> Channel:
    return gateway.channel(
        name, SCHEMA, partitions=3, format=request.param, delivery="exactly_once"
    )


class WaitingQuery(Query):
    """A query whose tasks open their batch after this wait for rows, by default after 5 s."""

    def __init__(self, channel: Channel, url: str, tasks: Tasks, open_after_s: float) -> None:
        super().__init__(channel, url, tasks)
        connection = channel.connection("write")
        options = WriteOptions.parse({"path": channel.name}, streaming=True)
        batch = JobBatch(gateway_url=url, connection=connection, open_after_s=open_after_s)
        self._writer = ChannelStreamWriter(channel.name, TaskWriter(connection, options), batch)

    def sink(self) -> ChannelStreamWriter:
        return pickled_copy(self._writer)


@pytest.fixture
def start(
    channel: Channel, gateway_url: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Query]:
    """Start a query into the channel."""
    tasks = Tasks(monkeypatch)

    def start(open_after_s: float | None = None, **options: str) -> Query:
        if open_after_s is not None:
            return WaitingQuery(channel, gateway_url, tasks, open_after_s)
        return Query(channel, gateway_url, tasks, **options)

    return start


@pytest.fixture
def query(start: Callable[..., Query]) -> Query:
    return start()


@pytest.mark.sample
def test_a_micro_batch_is_visible_with_its_commit(
    query: Query, channel: Channel, ledger: LedgerView
) -> None:
    results = [query.attempt(0, 0, range(3), range(3, 5)), query.attempt(0, 1, range(5, 9))]
    assert ledger.ids(channel) == []

    query.sink().commit(results, 0)
    query.write(1, range(9, 12))

    assert ledger.ids(channel) == [*range(12)]
    assert ledger.kinds(channel) == ["commit", "commit"]
    assert [message.headers() for message in messages_of(channel.connection("read"))][:1] == [None]


def test_a_failed_and_a_speculative_attempt_are_invisible(
    query: Query, channel: Channel, ledger: LedgerView
) -> None:
    def failing() -> Iterator[range]:
        yield range(3)
        raise RuntimeError("the executor is gone")

    with pytest.raises(RuntimeError, match="the executor is gone"):
        query.attempt(0, 0, *failing())
    lost = query.attempt(0, 0, range(3))
    won = query.attempt(0, 0, [2, 0, 1])
    assert lost != won
    query.sink().commit([won], 0)

    assert ledger.ids(channel) == [0, 1, 2]


def test_a_record_that_fails_a_task_leaves_nothing_visible_and_a_retry_works(
    query: Query, channel: Channel, ledger: LedgerView
) -> None:
    bad = pa.RecordBatch.from_arrays([pa.array([None], pa.int64()), pa.array(["x"])], ["id", "s"])
    query.attempt(0, 1, range(1))
    with pytest.raises(InvalidRecord):
        query.sink().write(iter([rows(range(1, 3)), bad]))

    query.write(0, range(1), range(1, 3))

    assert ledger.ids(channel) == [0, 1, 2]


def test_a_replayed_micro_batch_that_was_committed_writes_nothing(
    query: Query, channel: Channel, ledger: LedgerView
) -> None:
    query.write(0, range(5), range(5, 7))
    messages = len(messages_of(channel.connection("read")))
    for _ in range(2):
        query.restart()
        # The rows may come to other tasks.
        results = query.write(0, range(3), range(3, 3), range(3, 7))
    assert len(messages_of(channel.connection("read"))) == messages
    query.write(1, range(7, 9))

    assert [result.records for result in results] == [3, 0, 4]
    assert ledger.ids(channel) == [*range(9)]
    assert ledger.kinds(channel) == ["commit", "commit"]


def test_a_replay_with_other_records_is_refused(query: Query) -> None:
    query.write(0, range(5))
    query.restart()

    with pytest.raises(ReplayMismatch, match="committed with 5 records, and now has 6") as caught:
        query.write(0, range(6))
    (note,) = caught.value.__notes__
    assert "the file offsets/0 of its present one as startingOffsets" in note
    assert "In a restored checkpoint they are not those of the committed records" in note


def test_a_replay_without_rows_is_refused(
    start: Callable[..., Query], channel: Channel, ledger: LedgerView
) -> None:
    # No task opens the batch.
    query = start(open_after_s=3600.0)
    query.write(0, range(5), range(5, 7))
    start().write(0, range(7, 8))
    query.restart()

    with pytest.raises(ReplayMismatch, match="committed with 7 records, and now has 0") as caught:
        query.write(0, range(0), range(0))
    assert "the micro-batch 0, which was committed" in caught.value.__notes__[0]
    query.write(1, range(0), range(0))
    assert ledger.ids(channel) == [*range(8)]
    assert ledger.kinds(channel) == ["commit", "commit"]


def test_a_restarted_query_takes_over_at_once(
    query: Query, channel: Channel, ledger: LedgerView
) -> None:
    zombie = query.attempt(0, 0, range(5))
    sink = query.sink()
    query.restart()
    query.write(0, range(5))

    with pytest.raises(Conflict) as caught:
        sink.commit([zombie], 0)
    assert caught.value.code in {"batch_aborted", "batch_fenced"}
    sink.abort([zombie], 0)
    assert ledger.ids(channel) == [*range(5)]
    assert ledger.open_keys(channel) == []


def test_tasks_of_a_replaced_run_are_refused_before_they_write(
    query: Query, channel: Channel, ledger: LedgerView
) -> None:
    query.write(0, range(2))
    before, after = query.run_id, "the run after it"
    query.run_id = after
    query.attempt(1, 0, range(2, 4))
    messages = len(messages_of(channel.connection("read")))
    query.run_id = before

    with pytest.raises(Conflict) as caught:
        query.attempt(1, 0, range(2, 4))

    assert caught.value.code == "batch_fenced"
    assert len(messages_of(channel.connection("read"))) == messages


def test_a_checkpoint_that_was_rolled_back_is_refused(query: Query) -> None:
    for number in range(3):
        query.write(number, range(2))
    query.restart()

    with pytest.raises(Conflict, match="has committed the batch 2 already") as caught:
        query.write(1, range(2))
    assert caught.value.code == "stale_batch"


def test_a_micro_batch_without_rows_is_no_batch(
    start: Callable[..., Query], channel: Channel, ledger: LedgerView
) -> None:
    # A task that waits for its first row for long opens the batch.
    query = start(open_after_s=3600.0)
    results = query.write(0, range(0), range(0))
    query.sink().commit([], 1)

    assert [result.part for result in results] == [None, None]
    assert ledger.kinds(channel) == []
    assert ledger.open_keys(channel) == []


def test_a_repeated_commit_changes_nothing(
    query: Query, channel: Channel, ledger: LedgerView
) -> None:
    results = query.write(0, range(4))
    query.sink().commit(results, 0)
    query.sink().abort(results, 0)

    assert ledger.ids(channel) == [*range(4)]
    assert ledger.kinds(channel) == ["commit"]


def test_an_abort_ends_the_batch_at_once(
    query: Query, channel: Channel, ledger: LedgerView
) -> None:
    result = query.attempt(0, 0, range(4))
    query.sink().abort([None, result], 0)

    with pytest.raises(Conflict) as caught:
        query.sink().commit([result], 0)
    assert caught.value.code == "batch_aborted"
    assert ledger.kinds(channel) == ["abort"]
    query.restart()
    query.write(0, range(4))
    assert ledger.ids(channel) == [*range(4)]


def test_messages_that_are_missing_or_of_other_batches_are_refused(
    query: Query, start: Callable[..., Query], channel: Channel, ledger: LedgerView
) -> None:
    first, second = query.attempt(0, 0, range(2)), query.attempt(1, 1, range(2, 4))
    other = start().attempt(0, 1, range(2, 4))
    assert first.part is not None
    replayed = replace(
        first, part=replace(first.part, batch=replace(first.part.batch, state="committed"))
    )

    with pytest.raises(IncompleteBatch, match="no message of the tasks 1"):
        query.sink().commit([first, None], 0)
    for messages, number in [
        ([first, second], 0),
        ([first, other], 0),
        ([first], 1),
        ([first, replayed], 0),
    ]:
        with pytest.raises(IncompleteBatch, match="messages of other batches"):
            query.sink().commit(messages, number)
    few = replace(first, part=replace(first.part, records=3))
    with pytest.raises(IncompleteBatch, match="wrote 3 records, but listed 2"):
        query.sink().commit([few], 0)

    query.sink().abort([second, other], 1)
    assert ledger.ids(channel) == []
    query.sink().commit([first], 0)
    assert ledger.ids(channel) == [0, 1]


def test_queries_into_one_channel_have_separate_batches(
    query: Query, start: Callable[..., Query], channel: Channel, ledger: LedgerView
) -> None:
    other = start()
    mine, others = query.attempt(0, 0, range(3)), other.attempt(0, 0, range(3, 6))
    query.sink().commit([mine], 0)
    other.sink().commit([others], 0)

    assert ledger.ids(channel) == [*range(6)]


def test_records_with_a_key_are_listed_in_all_partitions(
    start: Callable[..., Query], channel: Channel, ledger: LedgerView
) -> None:
    query = start(key="id")
    query.write(0, range(20), range(20, 40))

    assert ledger.ids(channel) == [*range(40)]
    assert len(ledger.committed(channel).runs) == 3


def test_a_task_that_waits_for_its_first_row_holds_the_batch_of_others(
    start: Callable[..., Query], channel: Channel, ledger: LedgerView
) -> None:
    query = start(open_after_s=0.01)

    def late() -> Iterator[range]:
        until(lambda: len(ledger.open_keys(channel)) == 1)
        yield range(3, 5)

    second = query.attempt_lazily(0, 1, late())
    first = query.attempt(0, 0, range(3))
    query.sink().commit([first, second], 0)

    assert ledger.ids(channel) == [*range(5)]


def test_a_batch_that_was_opened_for_no_rows_is_aborted(
    start: Callable[..., Query], channel: Channel, ledger: LedgerView
) -> None:
    query = start(open_after_s=0.01)

    def none() -> Iterator[range]:
        until(lambda: len(ledger.open_keys(channel)) == 1)
        yield range(0)

    result = query.attempt_lazily(0, 0, none())
    query.sink().commit([result], 0)

    assert result.records == 0
    assert ledger.kinds(channel) == ["abort"]


@pytest.mark.parametrize("lasts", [False, True])
def test_a_task_without_rows_succeeds_after_an_opening_without_a_response(
    start: Callable[..., Query], channel: Channel, ledger: LedgerView, lasts: bool
) -> None:
    query = start(open_after_s=0.01)
    lost = GatewayUnavailable("no response")
    responses = Mock(side_effect=itertools.chain([lost], itertools.repeat(lost if lasts else None)))

    def none() -> Iterator[range]:
        until(lambda: responses.called)
        yield range(0)

    # The gateway opens the batch, unless the outage lasts.
    with at_call(LedgerCalls, "open", responses, arrives=not lasts):
        result = query.attempt_lazily(0, 0, none())
    query.sink().commit([result], 0)

    assert result.records == 0
    assert ledger.kinds(channel) == ([] if lasts else ["abort"])
    assert ledger.open_keys(channel) == []


@pytest.mark.sample
@pytest.mark.parametrize("daemon", [True, False])
def test_a_commit_needs_no_connection_to_the_channel(
    query: Query,
    channel: Channel,
    gateway_url: str,
    ledger: LedgerView,
    monkeypatch: pytest.MonkeyPatch,
    daemon: bool,
) -> None:
    """As in a new worker that Spark starts for commits, while the channel closes."""
    result = query.attempt(0, 0, range(3))
    channel.close()
    # Spark runs the module only in a worker that it starts itself.
    worker = "pyspark.sql.worker.python_streaming_sink_runner"
    if daemon:
        # As in such a worker.
        monkeypatch.setitem(sys.modules, worker, pyspark)
    else:
        # As in such a worker.
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(worker, None))
    with closing(Relay(httpx.URL(gateway_url).port or 0)) as relay:
        # A sink of this address is not known yet.
        Query(channel, relay.url, Tasks(monkeypatch)).sink().commit([result], 0)

    assert ledger.ids(channel) == [*range(3)]
