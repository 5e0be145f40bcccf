"""Leases of Spark's batches: renewed by the driver's session, or without one by tasks."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JNetworkError

from ledger_view import LedgerView
from micro_batches import BatchJob, Query, Tasks, rows
from sluiceway import Gateway
from sluiceway.channel import Channel
from sluiceway.errors import Conflict, GatewayUnavailable
from sluiceway.ledger.leases import LeaseKeeper
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.rest.parsing import JsonNode
from sluiceway.spark import ledger_batches, queries
from sluiceway.spark.driver import Application
from sluiceway.spark.ledger_batches import JobBatch
from spark_tasks import SCHEMA
from topics import Topics
from waiting import until


@pytest.fixture(scope="module")
def ledger(gateway_url: str, topics: Topics) -> Iterator[LedgerView]:
    with closing(LedgerView(gateway_url, topics)) as view:
        yield view


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=2, delivery="exactly_once")


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> dict[Any, LeaseKeeper]:
    """The lease keepers of this process, which renew leases on the test's command."""
    kept: dict[Any, LeaseKeeper] = {}
    monkeypatch.setattr(ledger_batches, "_KEEPERS", kept)
    return kept


@pytest.fixture
def plan(
    channel: Channel, gateway_url: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, bool], JobBatch]:
    """Plan a job or a query whose only task is this process."""
    tasks = Tasks(monkeypatch)

    def plan(kind: str, renews: bool) -> JobBatch:
        if kind == "batch":
            writer = BatchJob(channel, gateway_url, tasks, renews=renews).writer
            batch = writer._batch
        else:
            query = Query(channel, gateway_url, tasks, renews=renews)
            query.attempt(0, 0)
            batch = query.sink()._batch
        assert batch is not None
        return batch

    return plan


@pytest.mark.parametrize("renews", [True, False], ids=["session", "no-session"])
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_tasks_renew_a_batch_only_where_no_session_does(
    plan: Callable[[str, bool], JobBatch],
    channel: Channel,
    ledger: LedgerView,
    keepers: dict[Any, LeaseKeeper],
    kind: str,
    renews: bool,
) -> None:
    with plan(kind, renews).in_task() as task:
        task.open()
        part = task.result(0).part
        assert part is not None
        named = {part.batch.id: part.request.instance}
        (keeper,) = keepers.values()
        before = ledger.calls.renew(channel.name, named, uid=channel.uid, lease_ms=0)
        assert keeper.run_once() == 1
        after = ledger.calls.renew(channel.name, named, uid=channel.uid, lease_ms=0)

    assert (after == before) == renews


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_task_that_does_not_renew_its_batch_detects_its_end(
    plan: Callable[[str, bool], JobBatch], keepers: dict[Any, LeaseKeeper], kind: str
) -> None:
    job = plan(kind, True)
    with job.in_task() as task:
        task.open()
        (keeper,) = keepers.values()
        job.abort([task.result(0)], "the driver says so")
        keeper.run_once()

        with pytest.raises(Conflict, match="is aborted: its lease or its time ended"):
            task.check()


def test_a_task_stops_writing_when_its_batch_has_ended(
    channel: Channel,
    gateway_url: str,
    monkeypatch: pytest.MonkeyPatch,
    keepers: dict[Any, LeaseKeeper],
) -> None:
    tasks = Tasks(monkeypatch)
    writer = BatchJob(channel, gateway_url, tasks, renews=True).writer

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(range(3))
        writer.abort([None])
        for each in keepers.values():
            each.run_once()
        yield rows(range(3, 6))

    tasks.run(0)
    with pytest.raises(Conflict, match="is aborted: its lease or its time ended"):
        writer.write(batches())


def test_the_session_knows_a_job_by_its_endpoint(
    channel: Channel, gateway_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = BatchJob(channel, gateway_url, Tasks(monkeypatch), renews=True).writer

    assert writer._batch is not None
    assert writer._batch.request is not None
    assert writer._endpoint is not None
    assert writer._batch.request.instance == writer._endpoint.id
    assert not writer._batch.renewed_by_tasks


class Spark:
    """The parts of a Spark session that an application uses; `jobs` is None without a driver."""

    def __init__(self, jobs: list[int] | None) -> None:
        self.jobs = jobs
        self.conf: dict[str, str] = {}
        self.is_stopped = False
        self.streams = SimpleNamespace(addListener=lambda _: None, get=lambda _: None)

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's name
        if self.jobs is None:
            raise Py4JNetworkError("the JVM has ended")
        return SimpleNamespace(statusTracker=lambda: self)

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802 - Spark's name
        assert self.jobs is not None
        return self.jobs


KEPT: dict[str, Any] = {
    "kept": [
        {
            "id": id_,
            "role": role,
            "channel": {"name": "c", "uid": "0" * 32},
            "epoch": 1,
            "heartbeat_timeout_ms": 30_000,
            "reported_at": None,
        }
        for id_, role in (("reading", "reader"), ("writing", "writer"))
    ]
}


@pytest.fixture
def application(gateway_url: str) -> Iterator[Application]:
    """An application that runs a job and a query; the test sends its heartbeats."""
    application = Application(Spark([7]), gateway_url)  # type: ignore[arg-type]
    application.queries.listen()
    event = SimpleNamespace(id="query", runId="run", name=None)
    application.queries.onQueryStarted(event)  # type: ignore[arg-type]
    application.on_response(JsonNode(KEPT))
    renewed(application)
    yield application
    application._close()


def renewed(application: Application) -> object:
    """Return what a heartbeat renews that knows the present jobs, from an earlier one."""
    application.fields()
    until(lambda: not application._sampling._running.locked())
    return application.fields()["renews"]


def test_heartbeats_of_the_driver_renew_running_writes(application: Application) -> None:
    assert application.job.renews
    assert renewed(application) == ["run", "writing"]


def test_writes_are_not_renewed_while_spark_runs_no_job(application: Application) -> None:
    """As in a notebook, after a job whose end was not reported."""
    application._spark.jobs = []  # type: ignore[attr-defined]

    assert renewed(application) == ["run"]


def test_an_ended_query_is_not_renewed(application: Application) -> None:
    event = SimpleNamespace(runId="run", exception="java.lang.Error: no", errorClassOnException="")
    application.queries.onQueryTerminated(event)  # type: ignore[arg-type]

    # Also before its end is reported.
    assert application.queries.running == []
    assert renewed(application) == ["writing"]


def test_the_end_of_a_query_is_reported_for_as_long_as_a_batch_lasts(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that outlives its query may still open a batch, with a lease of 30 s."""
    now_s = 0.0
    monkeypatch.setattr(queries, "time", SimpleNamespace(monotonic=lambda: now_s))
    assert "ended" not in application.fields()
    event = SimpleNamespace(runId="run", exception=None, errorClassOnException=None)
    application.queries.onQueryTerminated(event)  # type: ignore[arg-type]

    assert application.fields()["ended"] == ["run"]
    now_s += 34
    assert application.fields()["ended"] == ["run"]
    now_s += 2
    assert "ended" not in application.fields()


def test_all_writes_have_ended_once_spark_is_stopped(application: Application) -> None:
    application._spark._sc = SimpleNamespace(_jsc=None)  # type: ignore[attr-defined]

    assert application.fields() == {"keeps": True, "renews": [], "ended": ["run", "writing"]}


def test_the_end_of_the_process_is_no_end_of_its_writes(application: Application) -> None:
    """Spark's driver may continue, and commit: over Spark Connect, and in notebooks."""
    application._ending = True

    assert application.fields() == {"keeps": True, "renews": []}


def test_nothing_is_renewed_after_the_driver_has_ended(application: Application) -> None:
    application._spark.jobs = None  # type: ignore[attr-defined]

    assert renewed(application) == []


def test_a_session_outside_of_the_driver_leaves_leases_to_tasks(gateway_url: str) -> None:
    """As over Spark Connect."""
    application = Application(Spark(None), gateway_url)  # type: ignore[arg-type]
    application.queries.listen()

    assert not application.job.renews


@pytest.mark.parametrize("work", ["queries", "detaches", "jobs"])
def test_renewals_do_not_wait_for_other_requests(
    application: Application, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    waiting, proceed = Event(), Event()

    def hold(*_: object, **__: object) -> None:
        waiting.set()
        assert proceed.wait(60)

    if work == "queries":
        monkeypatch.setattr(queries.Queries, "_update_endpoints", hold)
        assert application.fields()["renews"] == ["run", "writing"]
    elif work == "jobs":
        # As in a long garbage collection of the JVM.
        monkeypatch.setattr(Spark, "getActiveJobsIds", hold)
        assert application.fields()["renews"] == ["run", "writing"]
    else:
        monkeypatch.setattr(EndpointCalls, "detach", hold)
        application._last_reports["reading"] = (None, -math.inf)
        application.on_response(JsonNode(KEPT))
    try:
        assert waiting.wait(60)
        assert application.fields()["renews"] == ["run", "writing"]
    finally:
        proceed.set()


def test_the_last_ends_are_reported_after_earlier_ones_that_take_long(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, proceed = Event(), Event()
    detached: list[str] = []

    def hold(_: EndpointCalls, channel: str, id_: str, *args: object, **options: object) -> None:
        waiting.set()
        assert proceed.wait(60)
        detached.append(id_)

    monkeypatch.setattr(EndpointCalls, "detach", hold)
    application._last_reports["reading"] = (None, -math.inf)
    application.on_response(JsonNode(KEPT))
    assert waiting.wait(60)
    application._ending = True
    application.on_response(JsonNode(KEPT))
    proceed.set()
    until(lambda: application._closed)

    assert detached == ["reading", "reading", "writing"]


def test_queries_whose_ends_cannot_be_reported_become_lost(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise GatewayUnavailable("no response")

    ended: list[str] = []
    endpoint = SimpleNamespace(end=lambda: ended.append("run"))
    application.queries._runs["run"].endpoints["spec"] = endpoint  # type: ignore[index, assignment]
    monkeypatch.setattr(queries.Queries, "_update_endpoints", fail)
    application._ending = True
    application.on_response(JsonNode({"kept": []}))
    until(lambda: application._closed)

    assert ended == ["run"]


def test_an_end_that_the_heartbeat_thread_reports_first_is_no_warning(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a program that ends without `spark.stop()`, while a heartbeat is in flight."""
    application.session.add_extension(application)
    with application.session._in_flight:
        exiting = Thread(target=application.end)
        exiting.start()
        until(lambda: application._final_heartbeats)
        application.on_response(JsonNode({"kept": []}))
    exiting.join()

    assert unreported(caplog) == []


def test_an_end_that_is_not_reported_is_a_warning(
    application: Application, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(_: EndpointCalls) -> None:
        raise GatewayUnavailable("no response")

    monkeypatch.setattr(application.session, "send", send)
    application.end()

    assert unreported(caplog) == [
        "the end of the Spark application was not reported: no response",
    ]


def unreported(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of ends that were not reported."""
    return [each.message for each in caplog.records if "was not reported" in each.message]
