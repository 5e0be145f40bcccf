"""Heartbeats of Spark's tasks, sent to a scripted gateway."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from scripted_gateway import Script
from sluiceway.api.endpoints import EndpointCalls
from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.errors import InvalidRecord
from sluiceway.spark.endpoints import (
    EndpointSpec,
    Job,
    JobEndpoint,
    TaskReports,
    TaskSlice,
    reporting,
)

ROWS = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})


@pytest.fixture
def task(script: Script) -> TaskSlice:
    job = Job(session="2" * 32, title="job")
    spec = EndpointSpec(channel="flights", uid="0" * 32, role="writer", group=None, job=job)
    endpoint = JobEndpoint(
        spec=spec,
        gateway_url=script.url,
        id="1" * 32,
        epoch=1,
        heartbeat_interval_ms=60_000,
        took_over=False,
    )
    return TaskSlice(endpoint=endpoint, number=4)


@pytest.fixture
def reports(
    script: Script, task: TaskSlice, monkeypatch: pytest.MonkeyPatch
) -> tuple[TaskReports, EndpointCalls]:
    """The reports of this process; the test sends their heartbeats."""
    # Spark's tasks have the session of their process, whose heartbeats would come in between.
    monkeypatch.setattr(HeartbeatSession, "_run", lambda *_: None)
    return TaskReports.of(task.endpoint.gateway_url), EndpointCalls(script.transport())


def response(status: str = "ok") -> Any:
    status_of = {"endpoint": "1" * 32, "status": status, "reason": None}
    return {"next_ms": 60_000, "endpoints": [], "tasks": [status_of]}


def reported(script: Script) -> list[Any]:
    return [
        [(entry["task"], entry["state"], entry["counters"]["records"]) for entry in body["tasks"]]
        for body in script.bodies
    ]


def test_a_task_is_reported_while_it_runs_and_its_end_once(
    reports: tuple[TaskReports, EndpointCalls], task: TaskSlice, script: Script
) -> None:
    session, calls = reports[0].session, reports[1]
    for _ in range(2):
        script.response(200, response())
    with reporting(task) as report:
        assert [*report.counted([ROWS])] == [ROWS]
        session.send(calls)
    session.send(calls)
    session.send(calls)
    assert reported(script) == [[("4", "running", 3)], [("4", "done", 3)]]


def test_a_failed_task_is_reported_as_failed_and_an_abandoned_one_as_done(
    reports: tuple[TaskReports, EndpointCalls], task: TaskSlice, script: Script
) -> None:
    with pytest.raises(ValueError, match="broken"), reporting(task):
        raise ValueError("broken")
    with pytest.raises(GeneratorExit), reporting(task):
        raise GeneratorExit
    script.response(200, response())
    reports[0].session.send(reports[1])
    assert reported(script) == [[("4", "failed", 0), ("4", "done", 0)]]


INVALID = InvalidRecord(index=3, field="n", reason="it is 'SECRET'", schema_path="n")


def test_the_cause_of_a_failed_task_arrives_before_spark_learns_of_it(
    task: TaskSlice, script: Script
) -> None:
    endpoint = replace(task.endpoint, takes_causes=True)
    script.response(200, response())
    with pytest.raises(InvalidRecord), reporting(replace(task, endpoint=endpoint)):
        raise INVALID
    (body,) = script.bodies
    (told,) = body["tasks"]
    assert (told["state"], told["cause"]) == ("failed", "InvalidRecord: record 3, field 'n'")


def test_an_earlier_gateway_gets_no_causes(
    reports: tuple[TaskReports, EndpointCalls], task: TaskSlice, script: Script
) -> None:
    script.response(200, response())
    with pytest.raises(InvalidRecord), reporting(task):
        raise INVALID
    reports[0].session.send(reports[1])
    assert "cause" not in script.bodies[0]["tasks"][0]


def test_tasks_of_an_ended_endpoint_are_not_reported(
    reports: tuple[TaskReports, EndpointCalls], task: TaskSlice, script: Script
) -> None:
    script.response(200, response("closed"))
    with reporting(task):
        reports[0].session.send(reports[1])
        reports[0].session.send(reports[1])
    assert reported(script) == [[("4", "running", 0)]]


def test_a_task_whose_report_is_refused_for_a_time_is_reported_later(
    reports: tuple[TaskReports, EndpointCalls], task: TaskSlice, script: Script
) -> None:
    script.problem(401, "unauthenticated")
    script.response(200, response())
    with reporting(task):
        reports[0].session.send(reports[1])
    reports[0].session.send(reports[1])
    assert reported(script) == [[("4", "running", 0)], [("4", "done", 0)]]


def test_tasks_are_not_reported_to_a_gateway_that_does_not_know_them(
    reports: tuple[TaskReports, EndpointCalls],
    task: TaskSlice,
    script: Script,
    caplog: pytest.LogCaptureFixture,
) -> None:
    script.problem(422, "invalid_request")
    with reporting(task):
        reports[0].session.send(reports[1])
    with reporting(task):
        reports[0].session.send(reports[1])
    assert len(script.requests) == 1
    (line,) = [record for record in caplog.records if record.name.startswith("sluiceway.spark")]
    assert "not reported to the gateway" in line.getMessage()


def test_an_unreported_task_counts_records() -> None:
    with reporting(None) as report:
        assert [*report.counted([ROWS])] == [ROWS]
    assert (report.state, report.records) == ("done", 3)
