"""Batch writes of exactly-once channels, without a Spark session."""

import uuid
from collections.abc import Callable

import pytest

from faults import at_call
from ledger_view import LedgerView
from pyspark_sluiceway import DefaultSource
from sluiceway import Gateway
from sluiceway.api.transport import Transport
from sluiceway.channel import Channel
from sluiceway.errors import (
    ChannelNotFound,
    CommitUnknown,
    Conflict,
    Fenced,
    GatewayUnavailable,
    IncompleteBatch,
    OptionError,
    ReplayMismatch,
)
from sluiceway.spark.datasource import ChannelDataSource
from sluiceway.spark.endpoints import Job, JobEndpoint
from sluiceway.spark.types import struct_of
from spark_tasks import SCHEMA, BatchJob, Tasks
from topics import messages_of

Start = Callable[..., BatchJob]


def micro_batch(query: str, number: int) -> dict[str, str]:
    """Return the local properties of tasks that `foreachBatch` starts."""
    return {"sql.streaming.queryId": query, "streaming.sql.batchId": str(number)}


@pytest.fixture(params=["avro", "arrow"])
def channel(request: pytest.FixtureRequest, gateway: Gateway, name: str) -> Channel:
    return gateway.channel(
        name, SCHEMA, partitions=3, format=request.param, delivery="exactly_once"
    )


@pytest.fixture
def start(channel: Channel, gateway_url: str, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Plan a job that writes into the channel."""
    tasks = Tasks(monkeypatch)

    def start(application: str = "night", *, remote: bool = False, **options: str) -> BatchJob:
        session = uuid.uuid4().hex
        job = Job(session=session, title=application, application=application, remote=remote)
        return BatchJob(channel, gateway_url, tasks, job, **options)

    return start


@pytest.mark.sample
def test_a_job_is_one_batch(start: Start, channel: Channel, ledger: LedgerView) -> None:
    job = start()
    results = [job.attempt(number, [number]) for number in range(5)]
    assert ledger.ids(channel) == []

    job.writer.commit(results)

    assert ledger.ids(channel) == [*range(5)]
    assert ledger.kinds(channel) == ["commit"]


def test_planning_opens_nothing(start: Start, channel: Channel, ledger: LedgerView) -> None:
    start(batchKey="monday")

    assert ledger.open_keys(channel) == []
    assert ledger.kinds(channel) == []


def test_retried_and_speculative_attempts_are_invisible(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    job = start()
    for _ in range(3):
        message = job.attempt(0, range(4))
    job.writer.commit([message, job.attempt(1, range(4, 6))])

    assert ledger.ids(channel) == [*range(6)]


def test_a_job_that_runs_again_with_its_key_writes_nothing(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    start(batchKey="monday").write(range(3), range(3, 5))
    messages = len(messages_of(channel.connection("read")))

    start(batchKey="monday").write(range(5))

    assert ledger.ids(channel) == [*range(5)]
    assert len(messages_of(channel.connection("read"))) == messages


def test_jobs_without_a_key_all_write(start: Start, channel: Channel, ledger: LedgerView) -> None:
    start().write(range(3))
    start().write(range(3))

    assert ledger.ids(channel) == [0, 0, 1, 1, 2, 2]


def test_another_write_with_a_key_is_refused(start: Start) -> None:
    start(batchKey="monday").write(range(3))

    with pytest.raises(ReplayMismatch, match="committed with 3 records, and now has 4"):
        start(batchKey="monday").write(range(4))
    with pytest.raises(Conflict, match="belongs to 'Spark job night'") as caught:
        start("day", batchKey="monday").write(range(3))
    assert caught.value.code == "batch_key_taken"
    with pytest.raises(OptionError, match="1 to 200 characters"):
        start(batchKey="k" * 201)


def test_a_second_job_with_the_key_of_a_running_one_is_refused(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    job = start(batchKey="monday")
    message = job.attempt(0, range(3))
    second = start(batchKey="monday")

    with pytest.raises(Conflict) as caught:
        second.attempt(0, range(3))
    assert caught.value.code == "batch_open"
    second.writer.abort([None])
    job.writer.commit([message])

    assert ledger.ids(channel) == [*range(3)]


def test_of_two_writes_with_one_group_the_earlier_one_is_refused(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    first = start(batchKey="monday", group="loader")
    message = first.attempt(0, range(3))
    second = start(batchKey="tuesday", group="loader")

    with pytest.raises(Fenced, match="another instance took that place"):
        first.attempt(1, range(3, 6))
    with pytest.raises(Fenced) as caught:
        first.writer.commit([message])
    first.writer.abort([message])  # as Spark does
    second.write(range(6, 9))

    assert "groups of their own" in caught.value.__notes__[0]
    assert ledger.ids(channel) == [6, 7, 8]
    assert ledger.open_keys(channel) == []


def test_a_write_whose_place_was_taken_after_its_commit_has_succeeded(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    first = start(batchKey="monday", group="loader")
    message = first.attempt(0, range(3))

    with at_call(JobEndpoint, "close", lambda *_, **__: start(batchKey="x", group="loader")):
        first.writer.commit([message])

    assert ledger.ids(channel) == [0, 1, 2]


def test_of_two_at_least_once_writes_with_one_group_the_earlier_one_fails(
    gateway: Gateway, gateway_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = gateway.channel(f"{name}-plain", SCHEMA)
    tasks = Tasks(monkeypatch)

    def start() -> BatchJob:
        job = Job(session=uuid.uuid4().hex, title="night", application="night")
        return BatchJob(channel, gateway_url, tasks, job, group="loader")

    first, second = start(), start()
    message = first.attempt(0, range(3))

    with pytest.raises(Fenced, match="another instance took that place") as caught:
        first.writer.commit([message])
    first.writer.abort([message])  # as Spark does
    second.write(range(3, 6))

    assert "groups of their own" in caught.value.__notes__[0]
    assert [endpoint.state for endpoint in channel.endpoints()] == ["closed"]


def test_a_failed_job_leaves_no_batch_open_and_its_late_tasks_are_refused(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    failed = start(batchKey="monday")
    failed.attempt(0, range(3))
    failed.writer.abort([None])

    assert ledger.open_keys(channel) == []
    with pytest.raises(Conflict) as caught:
        failed.attempt(0, range(3))
    assert caught.value.code == "batch_aborted"
    start(batchKey="monday").write(range(3))
    assert ledger.ids(channel) == [*range(3)]


def test_a_job_without_rows_or_tasks_commits_an_empty_batch(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    start(batchKey="monday").write()
    start(batchKey="tuesday").write(range(0), range(0))

    assert ledger.kinds(channel) == ["commit", "commit"]
    assert ledger.ids(channel) == []
    with pytest.raises(ReplayMismatch):
        start(batchKey="monday").write(range(1))


def test_a_job_in_foreach_batch_needs_a_key(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    properties = micro_batch("a", 7)
    for local_properties in (properties, {"streaming.sql.batchId": "7"}):
        with pytest.raises(OptionError, match=r"in foreachBatch.*batchKey"):
            start().attempt(0, range(3), **local_properties)

    assert messages_of(channel.connection("read")) == []
    job = start(batchKey="counts-7")
    job.writer.commit([job.attempt(0, range(3), **properties)])
    assert ledger.ids(channel) == [0, 1, 2]


def test_a_key_in_foreach_batch_belongs_to_its_query(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    for _ in range(2):  # as Spark does after a failure
        job = start(batchKey="counts-0")
        job.writer.commit([job.attempt(0, range(3), **micro_batch("a", 0))])
    job = start(batchKey="counts-0")

    with pytest.raises(Conflict, match=r"belongs to 'Spark query a'.*with a new checkpoint"):
        job.attempt(0, range(3, 6), **micro_batch("b", 0))
    job.writer.abort([None])

    assert ledger.ids(channel) == [0, 1, 2]
    assert ledger.kinds(channel) == ["commit"]


def test_a_checkpoint_of_foreach_batch_that_was_rolled_back_is_refused(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    def write(number: int, ids: range, key: str = "counts") -> None:
        job = start(batchKey=f"{key}-{number}")
        job.writer.commit([job.attempt(0, ids, **micro_batch("a", number))])

    for number in (5, 6, 7):
        write(number, range(3))
    write(7, range(3))  # as Spark does after a failure
    write(7, range(3, 6), key="totals")

    with pytest.raises(Conflict, match="has committed the batch 7 already") as caught:
        write(6, range(6, 9))
    assert caught.value.code == "stale_batch"
    assert len(ledger.ids(channel)) == 12


def test_a_key_in_foreach_batch_without_the_number_is_refused_in_the_next_micro_batch(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    job = start(batchKey="counts")
    job.writer.commit([job.attempt(0, range(3), **micro_batch("a", 0))])

    with pytest.raises(Conflict, match="a key with the number of the micro-batch") as caught:
        start(batchKey="counts").attempt(0, range(3, 6), **micro_batch("a", 1))

    assert caught.value.code == "batch_key_taken"
    assert ledger.ids(channel) == [0, 1, 2]


def test_a_failed_job_in_foreach_batch_leaves_no_batch_open_and_its_key_to_the_query(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    properties = micro_batch("a", 0)
    start(batchKey="counts-0").writer.abort([None])  # before its tasks
    failed = start(batchKey="counts-0")
    failed.attempt(0, range(3), **properties)
    failed.writer.abort([None])

    assert ledger.open_keys(channel) == []
    job = start(batchKey="counts-0")
    job.writer.commit([job.attempt(0, range(3), **properties)])
    assert ledger.ids(channel) == [0, 1, 2]


def test_a_remote_write_without_a_key_is_refused_before_it_is_planned(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    """In Spark Connect a task cannot recognize foreachBatch."""
    with pytest.raises(OptionError, match=r"needs a batch key.*batchKey.*Spark Connect"):
        start(remote=True)
    start(remote=True, batchKey="monday").write(range(3))
    assert ledger.ids(channel) == [*range(3)]


def test_messages_that_are_missing_or_of_another_run_are_refused(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    job, other = start(), start()
    message, others = job.attempt(0, range(2)), other.attempt(1, range(2))

    with pytest.raises(IncompleteBatch, match="no message of the tasks 1"):
        job.writer.commit([message, None])
    with pytest.raises(IncompleteBatch, match="messages of other batches"):
        job.writer.commit([message, others])
    assert ledger.ids(channel) == []


def test_a_commit_without_an_answer_names_the_key_of_the_next_run(
    start: Start, channel: Channel, ledger: LedgerView
) -> None:
    job = start()
    message = job.attempt(0, range(3))

    def cut(_: Transport, _method: str, path: str, **_options: object) -> None:
        if path.endswith("/commit"):
            raise GatewayUnavailable("the connection was cut")

    # The driver of Spark has no address of its own to put a relay before.
    with at_call(Transport, "request", cut, arrives=True):
        with pytest.raises(CommitUnknown) as caught:
            job.writer.commit([message])
        job.writer.abort([message])  # as Spark does
    assert f'.option("batchKey", "{caught.value.key}")' in "".join(caught.value.__notes__)

    start(batchKey=caught.value.key).write(range(3))

    assert ledger.ids(channel) == [*range(3)]


def test_a_batch_key_needs_a_channel_with_batches(
    gateway: Gateway, gateway_url: str, name: str, start: Start
) -> None:
    gateway.channel(f"{name}-plain", SCHEMA)
    source = ChannelDataSource({"path": f"{name}-plain", "batchKey": "k"}, gateway_url=gateway_url)

    with pytest.raises(OptionError, match=r"delivery at_least_once, which has no batches"):
        source.writer(struct_of(SCHEMA), overwrite=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batchKey": "k"}, r"delivery at_least_once, which has no batches"),
        ({"batchKey": "k", "delivery": "at_least_once"}, r"which has no batches"),
        ({"key": "nope"}, r"key is 'nope'; the channel has the fields"),
    ],
)
def test_a_refused_write_creates_no_channel(
    gateway: Gateway, gateway_url: str, name: str, options: dict[str, str], said: str
) -> None:
    """A second try may ask for another delivery, which an existing channel cannot get."""
    source = ChannelDataSource(
        {"path": f"{name}-refused", "create": "true"} | options, gateway_url=gateway_url
    )

    with pytest.raises(OptionError, match=said):
        source.writer(struct_of(SCHEMA), overwrite=False)
    with pytest.raises(ChannelNotFound):
        gateway.channel(f"{name}-refused")


def test_a_write_creates_a_channel_with_exactly_once_delivery(
    gateway: Gateway, gateway_url: str, name: str
) -> None:
    options = {"path": f"{name}-new", "create": "true", "delivery": "exactly_once"}
    ChannelDataSource(options, gateway_url=gateway_url).writer(struct_of(SCHEMA), overwrite=False)

    assert gateway.channel(f"{name}-new").delivery == "exactly_once"


def test_a_write_without_register_needs_a_batch_key(
    gateway: Gateway, gateway_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEWAY_URL", gateway_url)
    gateway.channel(f"{name}-looked-up", SCHEMA, delivery="exactly_once")
    options = {"path": f"{name}-looked-up"}

    with pytest.raises(OptionError, match=r"needs a batch key.*without register\(spark\)"):
        DefaultSource(options).writer(struct_of(SCHEMA), overwrite=False)
    DefaultSource(options | {"batchKey": "k"}).writer(struct_of(SCHEMA), overwrite=False)
