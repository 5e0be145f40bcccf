import asyncio
import io
import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event, text
from starlette.types import Message, Receive, Scope, Send

from gateways import Rig, code, until_ready
from processes import restored_logging
from sluiceway_gateway.api.middleware import Observation
from sluiceway_gateway.api.problems import problem_response
from sluiceway_gateway.core.auth.model import OwnershipMode
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import DatabaseUnavailable
from sluiceway_gateway.core.logs import configure_logs
from waiting import until


def metric(rig: Rig, name: str, **labels: str) -> float | None:
    text = rig.http.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return None


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log, as JSON lines."""
    stream = io.StringIO()
    with restored_logging():
        configure_logs(level="debug", format="json", stream=stream)
        yield stream


def test_health_and_readiness_name_the_available_parts(rig: Rig) -> None:
    assert rig.http.get("/livez").json() == {"live": True}
    reasons = {"kafka": "BrokerUnavailable"}
    body = {"database": True, "kafka": False, "reasons": reasons, "loops": {}}
    until_ready(rig, 503, body)


@pytest.mark.long
def test_a_loop_that_keeps_failing_shows_in_readiness_metrics_and_log(
    rig: Rig, database: Database, lines: io.StringIO
) -> None:
    with database.write() as tx:
        tx.execute(text("ALTER TABLE leases RENAME TO other_leases"))
    numbers = itertools.count()

    def is_told() -> bool:
        # Each new channel wakes the loop.
        rig.put(f"channel-{next(numbers)}")
        return "reconcile" in rig.http.get("/readyz").json()["loops"]

    until(is_told)
    assert rig.http.get("/readyz").json()["loops"]["reconcile"] == "DatabaseUnavailable"
    failures = metric(rig, "sluiceway_loop_consecutive_failures", loop="reconcile")
    assert failures is not None
    assert failures >= 3
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    passes = [
        (entry["level"], entry["failures"]) for entry in logged if entry.get("loop") == "reconcile"
    ]
    # Other gateways in this process fail, too, and write to the same log.
    assert {("warning", 1), ("warning", 2), ("error", 3)} <= set(passes)
    assert all((level == "error") == (failures >= 3) for level, failures in passes)
    with database.write() as tx:
        tx.execute(text("ALTER TABLE other_leases RENAME TO leases"))
    until(lambda: metric(rig, "sluiceway_loop_consecutive_failures", loop="reconcile") == 0)
    assert "reconcile" not in rig.http.get("/readyz").json()["loops"]


def test_a_thread_that_has_ended_shows_in_readiness(rig: Rig) -> None:
    def end(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        if "leases" in statement:
            raise SystemExit

    event.listen(rig.app.state.parts.database.engine, "before_cursor_execute", end)
    numbers = itertools.count()

    def is_told() -> bool:
        rig.put(f"channel-{next(numbers)}")
        return "reconcile" in rig.http.get("/readyz").json()["loops"]

    until(is_told)
    ready = rig.http.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["loops"]["reconcile"] == "ThreadEnded"
    assert ready.json()["reasons"]["threads"] == "ThreadEnded"


@pytest.mark.long
def test_requests_are_counted_by_route_and_not_by_path(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.put(name)
    rig.http.get("/v1/channels/absent")
    rig.http.get("/nothing/at/all")
    rig.http.request("PURGE", "/v1/channels")
    route = "/v1/channels/{name}"
    counted = "sluiceway_http_requests_total"
    assert metric(rig, counted, route=route, method="PUT", status="201") == 2
    assert metric(rig, counted, route=route, method="GET", status="404") == 1
    assert metric(rig, counted, route="unmatched", method="GET", status="404") == 1
    assert metric(rig, counted, method="other", status="405") == 1
    assert metric(rig, "sluiceway_http_request_seconds_count", route=route, method="PUT") == 2
    assert metric(rig, "sluiceway_channels", phase="provisioning") == 2
    assert metric(rig, "sluiceway_channels", phase="ready") == 0
    assert metric(rig, "sluiceway_database_up") == 1
    assert metric(rig, "sluiceway_waiting_reads") == 0


def test_a_pass_of_the_loop_is_counted(rig: Rig) -> None:
    rig.app.state.parts.metrics.count_reconciled({"created": 2, "checked": 3})
    assert metric(rig, "sluiceway_reconciled_channels_total", outcome="created") == 2


def test_metrics_are_available_without_the_database(rig: Rig, database: Database) -> None:
    rig.put()
    scraper, revoked, unused = (rig.token("read", label=label) for label in "abc")
    rig.http.headers.update(scraper)
    assert metric(rig, "sluiceway_database_up") == 1
    assert rig.http.get("/metrics", headers=revoked).status_code == 200
    rig.tokens.revoke(revoked["Authorization"].split("_")[1])
    assert rig.http.get("/metrics", headers=revoked).status_code == 401
    tables = ("channels", "tokens")
    with database.write() as tx:
        for table in tables:
            tx.execute(text(f"ALTER TABLE {table} RENAME TO other_{table}"))
    assert metric(rig, "sluiceway_database_up") == 0
    assert metric(rig, "sluiceway_channels", phase="ready") is None
    assert metric(rig, "sluiceway_http_requests_total", status="401") == 1
    for path, headers in (("/metrics", revoked), ("/metrics", unused), ("/v1/status", scraper)):
        assert code(rig.http.get(path, headers=headers)) == "database_unavailable"
    with database.write() as tx:
        for table in tables:
            tx.execute(text(f"ALTER TABLE other_{table} RENAME TO {table}"))
    assert metric(rig, "sluiceway_database_up") == 1


def test_an_unexpected_error_is_a_problem_response_and_logged(rig: Rig, lines: io.StringIO) -> None:
    rig.replace(channels=Mock(**{"get.side_effect": RuntimeError("the details")}))
    response = rig.http.get("/v1/channels/a")
    assert (response.status_code, code(response)) == (500, "internal_error")
    assert "the details" not in response.text
    until(lambda: "the details" in lines.getvalue())
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    (failure,) = [entry for entry in logged if entry["event"] == "request failed"]
    assert failure["request_id"] == response.headers["x-request-id"]
    assert failure["request_id"] in response.json()["detail"]
    assert "RuntimeError" in failure["exception"]


def test_an_error_after_the_start_of_a_response_cuts_the_connection(
    rig: Rig, lines: io.StringIO
) -> None:
    async def begun(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise DatabaseUnavailable("the details")

    async def receive() -> Message:
        raise AssertionError("reads nothing")

    async def send(message: Message) -> None:
        sent.append(message["type"])

    sent: list[str] = []
    observation = Observation(
        begun,
        metrics=rig.app.state.parts.metrics,
        ownership=Ownership(rig.database, mode=OwnershipMode.ENFORCE),
        respond=lambda _request, error: problem_response(error),
    )
    with pytest.raises(DatabaseUnavailable):
        asyncio.run(observation({"type": "http", "method": "GET"}, receive, send))
    assert sent == ["http.response.start"]
    assert "the details" in lines.getvalue()


def test_requests_are_logged_without_their_secrets(rig: Rig, lines: io.StringIO) -> None:
    token = rig.token("admin")["Authorization"].removeprefix("Bearer ")
    rig.http.get("/v1/channels/absent", headers={"Authorization": f"Bearer {token}"})
    until(lambda: '"channel": "absent"' in lines.getvalue())
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    # Clients of earlier tests may still send heartbeats to this port.
    requests = [entry for entry in logged if entry["event"] == "request"]
    (request,) = [entry for entry in requests if entry["channel"] == "absent"]
    assert (request["route"], request["status"]) == ("/v1/channels/{name}", 404)
    assert token not in lines.getvalue()


def requests_logged(lines: io.StringIO, route: str) -> list[dict[str, Any]]:
    """Return what is logged of a route; other tests' gateways log in this process, too."""

    def logged() -> list[dict[str, Any]]:
        entries = [json.loads(line) for line in lines.getvalue().splitlines()]
        return [
            entry for entry in entries if entry["event"] == "request" and entry["route"] == route
        ]

    until(logged)
    return logged()


def test_a_request_id_of_the_client_is_in_answer_problem_and_log(
    rig: Rig, lines: io.StringIO
) -> None:
    mine = "job-7/attempt=2:a.b_c@x+y"
    response = rig.http.get("/v1/channels/absent", headers={"X-Request-Id": mine})
    assert response.headers.get_list("x-request-id") == [mine]
    assert response.json()["request_id"] == mine
    assert requests_logged(lines, "/v1/channels/{name}")[0]["request_id"] == mine


@pytest.mark.sample
@pytest.mark.parametrize(
    "request_ids",
    [
        ["a b"],
        ["x" * 129],
        [""],
        ['"'],
        ["a;b"],
        ["\xe9"],
        ["one", "two"],
    ],
)
def test_another_request_id_is_replaced(rig: Rig, request_ids: list[str]) -> None:
    headers = [(b"X-Request-Id", request_id.encode("latin-1")) for request_id in request_ids]
    response = rig.http.get("/livez", headers=headers)
    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


def test_requests_without_an_id_get_unique_ones(rig: Rig) -> None:
    made = [rig.http.get("/livez").headers["x-request-id"] for _ in range(20)]
    assert len(set(made)) == 20


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.sample
@pytest.mark.parametrize(
    ("header", "trace"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"01-{TRACE}-00f067aa0ba902b7-01-more", TRACE),
        (f"ff-{TRACE}-00f067aa0ba902b7-01", None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", None),
        (f"00-{TRACE}", None),
    ],
)
def test_a_traceparent_gives_the_log_its_trace_id(
    rig: Rig, lines: io.StringIO, header: str, trace: str | None
) -> None:
    rig.http.get("/v1/channels", headers={"traceparent": header})
    (logged,) = requests_logged(lines, "/v1/channels")
    assert logged.get("trace_id") == trace


def test_a_response_does_not_wait_for_a_delayed_ack(rig: Rig) -> None:
    def several_are_fast() -> bool:
        # The kernel delays an acknowledgement by 40 ms, but not each one of a new connection.
        took = sorted(rig.http.get("/livez").elapsed.total_seconds() for _ in range(20))
        return took[5] < 0.03

    until(several_are_fast, 30)


@pytest.mark.long
def test_the_log_has_the_code_of_a_refusal_and_the_cause_in_the_database(
    rig: Rig, database: Database, lines: io.StringIO
) -> None:
    def entries(**fields: object) -> list[dict[str, Any]]:
        logged = [json.loads(line) for line in lines.getvalue().splitlines()]
        return [log_entry for log_entry in logged if fields.items() <= log_entry.items()]

    rig.put()
    until(lambda: entries(event="request", status=201, by="loopback"))
    rig.http.headers.update(rig.token("manage", label="team a"))
    refused = rig.put(partitions=0)
    assert refused.status_code == 422
    until(lambda: entries(event="request", status=422, code="invalid_request", by="team a"))
    with database.write() as tx:
        for table in ("channels", "leases"):
            tx.execute(text(f"ALTER TABLE {table} RENAME TO other_{table}"))
    away = rig.put("second")
    assert away.status_code == 503
    assert "table" not in away.json()["detail"]
    until(lambda: entries(event="request", request_id=away.headers["x-request-id"]))
    (entry,) = entries(event="request", request_id=away.headers["x-request-id"])
    missing = ("no such table: {}", 'relation "{}" does not exist')
    assert entry["code"] == "database_unavailable"
    assert entry["cause"] in [message.format("channels") for message in missing]
    causes = [message.format("leases") for message in missing]
    until(lambda: any(log_entry.get("cause") in causes for log_entry in entries(loop="reconcile")))


def test_text_has_colours_in_terminals_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, coloured in ((Terminal(), True), (io.StringIO(), False)):
        with restored_logging():
            configure_logs(level="info", format="console", stream=stream)
            logging.getLogger("sluiceway_gateway.http").warning("all connections are in use")
        assert "all connections are in use" in stream.getvalue()
        assert ("\x1b[" in stream.getvalue()) is coloured


def test_readiness_has_the_reason_before_probes_time_out(rig: Rig) -> None:
    ended = threading.Event()
    rig.replace(kafka=Mock(require_cluster=lambda *_, **__: ended.wait(60)))
    begun_s = time.monotonic()
    try:
        ready = rig.http.get("/readyz").json()
        assert time.monotonic() - begun_s < 20
    finally:
        ended.set()
    assert ready["reasons"]["kafka"] == "BrokerUnavailable"
