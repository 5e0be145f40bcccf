"""What a Python worker tells of Spark's tasks, to a server that answers by script."""

import logging
from typing import Any

import pyarrow as pa
import pytest
from scripted_gateway import Script

from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.rest.endpoints import EndpointCalls
from sluiceway.spark import task_heartbeats
from sluiceway.spark.endpoints import JobEndpoint, TaskSlice
from sluiceway.spark.task_heartbeats import TaskReports, reporting

ROWS = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})


@pytest.fixture
def part(script: Script) -> TaskSlice:
    work = JobEndpoint(
        gateway_url=script.url,
        channel="flights",
        uid="0" * 32,
        role="writer",
        endpoint="1" * 32,
        epoch=1,
        heartbeat_interval_ms=2000,
        took_over=False,
    )
    return TaskSlice(work=work, number=4)


@pytest.fixture
def reports(
    script: Script, part: TaskSlice, monkeypatch: pytest.MonkeyPatch
) -> tuple[TaskReports, EndpointCalls]:
    """The reports of this process, whose beats are made by the test."""
    monkeypatch.setattr(HeartbeatSession, "_run", lambda *_: None)
    monkeypatch.setattr(task_heartbeats, "_REPORTS", {})
    return TaskReports.of(part.work.gateway_url), EndpointCalls(script.transport())


def answer(status: str = "ok") -> Any:
    told = {"endpoint": "1" * 32, "status": status, "reason": None}
    return {"next_ms": 2000, "endpoints": [], "tasks": [told]}


def told(script: Script) -> list[Any]:
    return [
        [(each["task"], each["state"], each["counters"]["records"]) for each in body["tasks"]]
        for body in script.bodies
    ]


def test_a_task_is_told_while_it_runs_and_its_end_once(
    reports: tuple[TaskReports, EndpointCalls], part: TaskSlice, script: Script
) -> None:
    session, calls = reports[0].session, reports[1]
    for _ in range(2):
        script.answer(200, answer())
    with reporting(part) as report:
        assert [*report.counted([ROWS])] == [ROWS]
        session.send(calls)
    session.send(calls)
    session.send(calls)
    assert told(script) == [[("4", "running", 3)], [("4", "done", 3)]]


def test_a_task_that_failed_says_so_and_one_that_spark_left_is_done(
    reports: tuple[TaskReports, EndpointCalls], part: TaskSlice, script: Script
) -> None:
    with pytest.raises(ValueError, match="broken"), reporting(part):
        raise ValueError("broken")
    with pytest.raises(GeneratorExit), reporting(part):
        raise GeneratorExit
    script.answer(200, answer())
    reports[0].session.send(reports[1])
    assert told(script) == [[("4", "failed", 0), ("4", "done", 0)]]


def test_an_endpoint_that_is_over_is_told_no_more(
    reports: tuple[TaskReports, EndpointCalls], part: TaskSlice, script: Script
) -> None:
    script.answer(200, answer("closed"))
    with reporting(part):
        reports[0].session.send(reports[1])
        reports[0].session.send(reports[1])
    assert told(script) == [[("4", "running", 0)]]


def test_a_worker_without_a_token_goes_on_and_says_once_that_nobody_sees(
    reports: tuple[TaskReports, EndpointCalls],
    part: TaskSlice,
    script: Script,
    caplog: pytest.LogCaptureFixture,
) -> None:
    script.problem(401, "unauthenticated")
    with reporting(part):
        reports[0].session.send(reports[1])
    with reporting(part):
        reports[0].session.send(reports[1])
    assert len(script.requests) == 1
    (line,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "others do not see" in line.getMessage()


def test_a_task_that_nobody_sees_counts_for_itself() -> None:
    with reporting(None) as report:
        assert [*report.counted([ROWS])] == [ROWS]
    assert (report.state, report.records) == ("done", 3)
