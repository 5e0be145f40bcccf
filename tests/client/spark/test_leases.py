"""Leases of Spark's batches: renewed by the driver's session, or without one by tasks."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from ledger_view import LedgerView
from relay import Relay
from sluiceway import Gateway
from sluiceway.api.endpoints import HeartbeatReply, KeptEndpoint, Role, SessionReport
from sluiceway.api.ledger import BatchRequest
from sluiceway.channel import Channel
from sluiceway.errors import Conflict, GatewayUnavailable
from sluiceway.ledger.leases import LeaseKeeper
from sluiceway.spark.driver import Application
from sluiceway.spark.endpoints import Job, JobEndpoint, control, heartbeat_session
from sluiceway.spark.ledger_batches import JobBatch, TaskResult
from sluiceway.spark.queries import Queries
from spark_tasks import SCHEMA, BatchJob, Query, SparkParts, Tasks, progressed, rows, started
from waiting import until


@pytest.fixture
def channel(gateway: Gateway, name: str) -> Channel:
    return gateway.channel(name, SCHEMA, partitions=2, delivery="exactly_once")


def leases(channel: Channel, url: str, *, renews: bool) -> LeaseKeeper:
    """Return this process's keeper of the leases of a channel's batches."""
    request = BatchRequest(channel=channel.name, uid=channel.uid, key="", owner="", instance="")
    return JobBatch(gateway_url=url).write_batch(request, renews=renews).leases


class Write:
    """A batch write, or a micro-batch of a query; its only task is this process."""

    def __init__(
        self, kind: str, channel: Channel, url: str, tasks: Tasks, *, renews: bool
    ) -> None:
        self._tasks = tasks
        self._query = self._job = None
        job = Job(session=uuid.uuid4().hex, title="night", application="night", renews=renews)
        if kind == "stream":
            self._query = Query(channel, url, tasks, job)
        else:
            self._job = BatchJob(channel, url, tasks, job)

    def attempt(self, batches: Iterator[range]) -> TaskResult:
        """Run the task over batches of ids."""
        if self._query is not None:
            return self._query.attempt_lazily(0, 0, batches)
        assert self._job is not None
        self._tasks.run(0)
        return self._job.writer.write(map(rows, batches))

    def end(self) -> None:
        """End the write in the driver, while the task runs."""
        if self._query is not None:
            self._query.restart()
            self._query.attempt(0, 0, range(1))
        else:
            assert self._job is not None
            self._job.writer.abort([None])


@pytest.fixture
def write(
    channel: Channel, gateway_url: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, bool], Write]:
    tasks = Tasks(monkeypatch)

    def write(kind: str, renews: bool) -> Write:
        return Write(kind, channel, gateway_url, tasks, renews=renews)

    return write


@pytest.mark.parametrize("renews", [True, False], ids=["session", "no-session"])
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_tasks_renew_a_batch_only_where_no_session_does(
    write: Callable[[str, bool], Write],
    channel: Channel,
    gateway_url: str,
    ledger: LedgerView,
    kind: str,
    renews: bool,
) -> None:
    held: list[int] = []

    def batches() -> Iterator[range]:
        yield range(3)
        held.append(leases(channel, gateway_url, renews=not renews).run_once())

    part = write(kind, renews).attempt(batches()).part
    assert part is not None
    named = {part.batch.id: part.request.instance}
    lease = ledger.calls.renew(channel.name, named, uid=channel.uid, lease_ms=0)[part.batch.id]

    assert held == [1]
    assert (lease.lease_until == part.batch.lease_until) == renews


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_task_that_does_not_renew_its_batch_stops_writing_at_its_end(
    write: Callable[[str, bool], Write], channel: Channel, gateway_url: str, kind: str
) -> None:
    job = write(kind, True)

    def batches() -> Iterator[range]:
        yield range(3)
        job.end()
        leases(channel, gateway_url, renews=False).run_once()
        yield range(3, 6)

    with pytest.raises(Conflict, match="is aborted: its lease or its time ended"):
        job.attempt(batches())


def test_the_session_knows_a_job_by_its_endpoint(
    write: Callable[[str, bool], Write], channel: Channel
) -> None:
    part = write("batch", True).attempt(iter([range(3)])).part

    assert part is not None
    assert [endpoint.id for endpoint in channel.endpoints()] == [part.request.instance]


def kept(
    *endpoints: tuple[str, str], timeout_ms: int = 30_000, name: str = "c", uid: str = "0" * 32
) -> HeartbeatReply:
    """Return the response to a heartbeat that keeps endpoints, named by id and role."""
    present = tuple(
        KeptEndpoint(
            id=id_,
            role=role,
            channel=name,
            uid=uid,
            epoch=1,
            heartbeat_timeout_ms=timeout_ms,
            reported_at=None,
        )
        for id_, role in endpoints
    )
    return HeartbeatReply(next_ms=60_000, results={}, kept=present)


def renewed(application: Application) -> tuple[str, ...]:
    """Return the instances that the application's next heartbeat renews."""
    report = application.report()
    assert report is not None
    return report.renews


KEPT = (("reading", "reader"), ("writing", "writer"))


@pytest.fixture
def spark() -> SparkParts:
    """A session whose driver runs a job."""
    return SparkParts([7])


@pytest.fixture
def application(spark: SparkParts, relay: Relay) -> Iterator[Application]:
    """An application that runs a job and a query; the test sends its heartbeats."""
    application = Application(spark, relay.url)  # type: ignore[arg-type]
    application.queries.listen()
    application.queries.onQueryStarted(started("run"))
    application.on_response(kept(*KEPT))
    until(lambda: renewed(application) == ("run", "writing"))
    yield application
    application.end()
    application.on_response(kept())


def terminated(exception: str | None = None) -> Any:
    """Return Spark's event of the end of the query."""
    return SimpleNamespace(runId="run", exception=exception, errorClassOnException=None)


def test_heartbeats_of_the_driver_renew_running_writes(application: Application) -> None:
    assert application.job.renews
    assert renewed(application) == ("run", "writing")


def test_writes_are_not_renewed_while_spark_runs_no_job(
    application: Application, spark: SparkParts
) -> None:
    """As in a notebook, after a job whose end was not reported."""
    spark.jobs = []

    until(lambda: renewed(application) == ("run",))


def test_an_ended_query_is_not_renewed(application: Application) -> None:
    application.queries.onQueryTerminated(terminated("java.lang.Error: no"))

    # Also before its end is reported.
    assert application.queries.running == []
    report = SessionReport(keeps=True, renews=("writing",), ended=("run",))
    assert application.report() == report


def test_the_end_of_a_query_is_reported_for_as_long_as_a_batch_lasts(relay: Relay) -> None:
    """A task that outlives its query may still open a batch, with a lease of 30 s."""
    now_s = 0.0
    queries = Queries(
        SparkParts([7]),  # type: ignore[arg-type]
        heartbeat_session(relay.url),
        control(relay.url),
        monotonic=lambda: now_s,
    )
    queries.onQueryStarted(started("run"))
    assert queries.ended == []
    queries.onQueryTerminated(terminated())

    assert queries.ended == ["run"]
    now_s += 34
    assert queries.ended == ["run"]
    now_s += 2
    assert queries.ended == []


def test_all_writes_have_ended_once_spark_is_stopped(
    application: Application, spark: SparkParts
) -> None:
    spark.stop()

    assert application.report() == SessionReport(keeps=True, ended=("run", "writing"))


def test_the_end_of_the_process_is_no_end_of_its_writes(application: Application) -> None:
    """Spark's driver may continue, and commit: over Spark Connect, and in notebooks."""
    application.end()

    assert application.report() == SessionReport(keeps=True)


def test_nothing_is_renewed_after_the_driver_has_ended(
    application: Application, spark: SparkParts
) -> None:
    spark.jobs = None

    until(lambda: renewed(application) == ())


def test_a_session_outside_of_the_driver_leaves_leases_to_tasks(gateway_url: str) -> None:
    """As over Spark Connect."""
    application = Application(SparkParts(None), gateway_url)  # type: ignore[arg-type]
    application.queries.listen()

    assert not application.job.renews


@pytest.mark.parametrize("work", ["queries", "detaches"])
def test_renewals_do_not_wait_for_other_requests(
    application: Application, relay: Relay, channel: Channel, work: str
) -> None:
    with relay.stalled() as held:
        if work == "queries":
            application.queries.onQueryProgress(progressed("run", channel))
            application.report()
        else:
            application.on_response(kept(*KEPT, timeout_ms=0))
        assert held.wait(60)
        assert renewed(application) == ("run", "writing")


@pytest.mark.parametrize(
    ("status", "code"), [(401, "unauthenticated"), (500, "internal_error"), (404, None)]
)
def test_a_refused_heartbeat_does_not_end_renewals_and_endpoints(
    application: Application,
    relay: Relay,
    channel: Channel,
    refusing: Any,
    status: int,
    code: str | None,
) -> None:
    application.queries.onQueryProgress(progressed("run", channel))
    application.report()
    (endpoint,) = until(channel.endpoints)
    application.session.add_extension(application)
    with closing(control(relay.url).endpoints) as calls:
        with refusing(status, code):
            application.session.send(calls)
        assert application.is_active
        assert renewed(application) == ("run", "writing")
        assert application.session.ids == {endpoint.id}
        application.session.send(calls)
    until(lambda: application.session.interruption is None)


@pytest.mark.parametrize(
    ("exception", "end"),
    [(None, ("closed", None)), ("java.lang.Error: no", ("error", "java.lang.Error"))],
)
def test_the_start_and_end_of_a_query_that_are_refused_for_a_time_are_reported(
    application: Application,
    channel: Channel,
    refusing: Any,
    monkeypatch: pytest.MonkeyPatch,
    exception: str | None,
    end: tuple[str, str | None],
) -> None:
    # There is no option for the pause.
    monkeypatch.setattr("sluiceway.spark.queries._PAUSE_AFTER_FAILURE_S", 0.0)

    application.queries.onQueryProgress(progressed("run", channel))
    with refusing(401, "unauthenticated") as script:
        application.report()
        until(lambda: script.requests)
    until(lambda: application.report() and channel.endpoints())
    with refusing(500, "internal_error") as script:
        requests = len(script.requests)
        application.queries.onQueryTerminated(terminated(exception))
        application.report()
        until(lambda: len(script.requests) > requests)
    assert not application.queries.all_ended
    until(lambda: application.report() and application.queries.all_ended)
    assert [(endpoint.state, endpoint.cause) for endpoint in channel.endpoints()] == [end]


def test_renewals_do_not_wait_for_spark(application: Application, spark: SparkParts) -> None:
    """As in a long garbage collection of the JVM."""
    waiting, proceed = Event(), Event()

    def pause() -> None:
        waiting.set()
        assert proceed.wait(60)

    spark.pause = pause
    try:
        application.report()
        assert waiting.wait(60)
        assert renewed(application) == ("run", "writing")
    finally:
        proceed.set()


def test_the_last_ends_are_reported_after_earlier_ones_that_take_long(
    application: Application, relay: Relay, channel: Channel
) -> None:
    connection = channel.connection("write")
    endpoints: list[tuple[str, str]] = []
    roles: tuple[Role, ...] = ("reader", "writer")
    for role in roles:
        endpoint = JobEndpoint.attach(application.job, relay.url, connection, role)
        assert endpoint is not None
        endpoints.append((endpoint.id, role))
    response = partial(kept, *endpoints, name=channel.name, uid=channel.uid)

    def states() -> list[tuple[str, str, str | None]]:
        return sorted((listed.role, listed.state, listed.cause) for listed in channel.endpoints())

    application.on_response(response())
    with relay.stalled() as held:
        application.on_response(response(timeout_ms=0))
        assert held.wait(60)
        ending = Thread(target=application.end)
        ending.start()
        until(lambda: not application.is_active)
        application.on_response(response())
    ending.join()

    ends = [
        ("reader", "closed", "no task reports any more"),
        ("writer", "error", "the Spark application ended"),
    ]
    until(lambda: states() == ends)


@pytest.mark.long
def test_queries_whose_ends_cannot_be_reported_become_lost(
    application: Application,
    spark: SparkParts,
    channel: Channel,
    refusing: Any,
) -> None:
    application.queries.onQueryProgress(progressed("run", channel))
    application.report()
    until(channel.endpoints)
    with refusing(503, "overloaded"):
        spark.stop()
        application.report()
        application.on_response(kept())

        until(lambda: not application.session.ids)
    (endpoint,) = channel.endpoints()
    assert endpoint.state in ("opened", "started")


def test_an_end_that_the_heartbeat_thread_reports_first_is_no_warning(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a program that ends without `spark.stop()`, while a heartbeat is in flight."""
    waiting, proceed = Event(), Event()

    def heartbeat(*_: object, **__: object) -> None:
        waiting.set()
        assert proceed.wait(60)
        raise GatewayUnavailable("no response")

    application.session.add_extension(application)
    calls = SimpleNamespace(heartbeat=heartbeat)
    earlier = Thread(target=application.session.send, args=(calls,))
    earlier.start()
    assert waiting.wait(60)
    exiting = Thread(target=application.end)
    exiting.start()
    # Its own heartbeat waits for the earlier one.
    until(lambda: not application.queries.running)
    application.on_response(kept())
    proceed.set()
    earlier.join()
    exiting.join()

    assert unreported(caplog) == []


def test_an_end_that_is_not_reported_is_a_warning(
    application: Application,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    refusing: Any,
) -> None:
    application.session.add_extension(application)
    with refusing(401, "unauthenticated"):
        monkeypatch.setenv("SLUICEWAY_TOKEN_FILE", "/missing")
        application.end()
        monkeypatch.undo()

    (warning,) = unreported(caplog)
    cause = "the file /missing in SLUICEWAY_TOKEN_FILE cannot be read"
    assert warning.startswith(f"the end of the Spark application was not reported: {cause}")


def unreported(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of ends that were not reported."""
    return [record.message for record in caplog.records if "was not reported" in record.message]
