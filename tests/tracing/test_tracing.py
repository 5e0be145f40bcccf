"""Traces from a job to the gateway's requests and SQL statements, with a real SDK."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from databases import Databases
from shared_kafka import SharedKafka

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The spans and the log of one process."""

    spans: list[dict[str, Any]]
    log: list[dict[str, Any]]
    system: str

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]

    def one(self, name: str) -> dict[str, Any]:
        (span,) = self.named(name)
        return span

    def trace_of(self, name: str) -> list[dict[str, Any]]:
        """Return the spans of the trace with the span of this name."""
        trace = self.one(name)["trace"]
        return [span for span in self.spans if span["trace"] == trace]

    def path(self, span: dict[str, Any]) -> list[str]:
        """Return the names from the root to a span."""
        names, by_id = [], {other["id"]: other for other in self.spans}
        while True:
            names.insert(0, span["name"])
            if span["parent"] is None:
                return names
            span = by_id[span["parent"]]

    def paths(self, name: str) -> set[tuple[str, ...]]:
        return {tuple(self.path(span)) for span in self.trace_of(name)}


def run(*arguments: str, **variables: str) -> str:
    """Run Python with the tests' modules, and return its output."""
    paths = os.pathsep.join(map(str, (HERE.parents[1], HERE.parent / "support")))
    result = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": paths} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def recorded(request: pytest.FixtureRequest, kafka: SharedKafka) -> Recorded:
    databases: Databases = request.getfixturevalue(request.param)
    *printed, result = run(
        str(HERE / "traced_process.py"), databases.migrated(), kafka.bootstrap_servers
    ).splitlines()
    assert printed == ["ChannelNotFound", "InvalidRecord"]
    system = "sqlite" if request.param == "sqlite" else "postgresql"
    return Recorded(**json.loads(result), system=system)


def test_one_trace_leads_from_a_write_to_the_statements_of_its_commit(recorded: Recorded) -> None:
    paths = recorded.paths("job")
    batches = "POST /v1/channels/{name}/batches"
    end = f"{batches}/{{id}}/commit"
    offsets = "PUT /v1/channels/{name}/groups/{group}/offsets"
    attach = "POST /v1/channels/{name}/endpoints"
    transaction = "write transaction"
    expected = {
        ("job", "PUT", "PUT /v1/channels/{name}", transaction, "INSERT channels"),
        ("job", "attach landings", "POST", attach, "attach batch", transaction, "INSERT endpoints"),
        ("job", "send landings", "POST", batches, transaction, "INSERT batches"),
        ("job", "flush landings", "POST", end, transaction, "UPDATE batches"),
        ("job", "flush landings", "POST", end, transaction, "INSERT visible_runs"),
        ("job", "receive landings"),
        ("job", "commit landings", "PUT", offsets, "commit batch", transaction, "INSERT positions"),
        ("job", "POST", f"{attach}/{{id}}/detach", transaction, "UPDATE endpoints"),
    }
    assert expected - paths == set()


def test_spans_have_the_attributes_of_their_kind(recorded: Recorded) -> None:
    (sent,) = (span for span in recorded.trace_of("job") if span["name"] == "send landings")
    topic = sent["attributes"].pop("messaging.destination.name")
    assert topic.startswith("sluiceway.landings-")
    assert sent["attributes"] == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "sluiceway.channel": "landings",
        "sluiceway.records": 100,
    }
    (request,) = (
        span
        for span in recorded.trace_of("job")
        if span["name"] == "PUT"
        if span["attributes"]["url.full"].endswith("/channels/landings")
    )
    assert request["kind"] == "CLIENT"
    assert request["attributes"]["http.request.method"] == "PUT"
    assert request["attributes"]["http.response.status_code"] == 201
    assert request["attributes"]["server.address"] == "127.0.0.1"
    (served,) = (span for span in recorded.spans if span["parent"] == request["id"])
    assert served["kind"] == "SERVER"
    assert served["attributes"]["http.route"] == "/v1/channels/{name}"
    inserts = [span for span in recorded.trace_of("job") if span["name"] == "INSERT channels"]
    (inserted,) = inserts
    assert inserted["kind"] == "CLIENT"
    assert inserted["attributes"]["db.system.name"] == recorded.system
    assert inserted["attributes"]["db.operation.name"] == "INSERT"
    assert inserted["attributes"]["db.query.text"].startswith("INSERT INTO channels (")


def test_no_span_contains_values_of_records_or_parameters(recorded: Recorded) -> None:
    containing = [span for span in recorded.spans if "a value" in span["text"]]
    assert containing == []
    # Ids and names of groups are parameters of statements.
    texts = [span["attributes"].get("db.query.text", "") for span in recorded.spans]
    assert any(texts)
    assert not any("readers" in text or "writers'" in text for text in texts)


def test_spans_have_the_type_of_an_error_but_not_its_message(recorded: Recorded) -> None:
    (sent,) = (span for span in recorded.trace_of("failed") if span["name"] == "send landings")
    assert (sent["status"], sent["attributes"]["error.type"]) == ("ERROR", "InvalidRecord")
    (request,) = (span for span in recorded.trace_of("refused") if span["name"] == "GET")
    assert (request["status"], request["attributes"]["error.type"]) == ("ERROR", "404")
    (served,) = (span for span in recorded.spans if span["parent"] == request["id"])
    assert served["attributes"]["http.response.status_code"] == 404
    ours = [span for span in recorded.spans if span["scope"].startswith("sluiceway")]
    assert [span for span in ours if span["events"]] == []


def test_work_outside_of_a_trace_starts_no_trace(recorded: Recorded) -> None:
    roots = [span for span in recorded.spans if span["parent"] is None]
    names = {span["name"] for span in roots if span["kind"] != "SERVER"}
    assert names <= {
        *("job", "refused", "failed", "first", "second", "third"),
        # An operation outside of the application's spans starts a trace.
        "attach landings",
    }
    background = {span["name"] for span in roots if span["kind"] == "SERVER"}
    # Heartbeats, renewed leases, and the requests of the job outside of its spans.
    assert background <= {
        "POST /v1/heartbeats",
        "POST /v1/channels/{name}/batches/renew",
        "GET /v1/channels/{name}/connection",
        "POST /v1/channels/{name}/endpoints/{id}/detach",
        "GET /v1/channels/{name}/committed",
    }


def test_requests_that_share_a_batch_link_to_it(recorded: Recorded) -> None:
    alone, shared = recorded.named("test batch")
    assert recorded.path(alone) == ["first", "test batch"]
    assert alone["links"] == []
    assert recorded.path(shared) == ["second", "test batch"]
    third = recorded.one("third")
    assert shared["links"] == [third["id"]]
    assert third["links"] == [shared["id"]]
    assert shared["attributes"] == {"sluiceway.requests": 2}
    assert recorded.path(recorded.one("work second+third"))[-2:] == [
        "test batch",
        "work second+third",
    ]


def test_log_entries_have_the_ids_of_their_trace_and_span(recorded: Recorded) -> None:
    requests = [entry for entry in recorded.log if entry["event"] == "request"]
    served = {span["id"]: span for span in recorded.spans if span["kind"] == "SERVER"}
    created = next(
        request for request in requests if request["method"] == "PUT" and request["status"] == 201
    )
    span = served[int(created["span_id"], 16)]
    assert span["name"] == "PUT /v1/channels/{name}"
    assert int(created["trace_id"], 16) == recorded.one("job")["trace"] == span["trace"]


def test_health_and_metrics_are_not_traced(recorded: Recorded) -> None:
    names = {span["name"] for span in recorded.spans}
    paths = {entry["route"] for entry in recorded.log if entry["event"] == "request"}
    assert {"/livez", "/metrics"} <= paths
    assert not {"GET /livez", "GET /metrics"} & names


WITHOUT = """
import os, sys
sys.modules["opentelemetry"] = None
from sluiceway import tracing
from sluiceway.api.transport import Transport
assert not tracing.INSTALLED
with tracing.channel_span("send", "landings", kind="send") as span:
    span.set("sluiceway.records", 1)
    span.fail("ValueError")
with tracing.continued({"traceparent": os.environ["TRACEPARENT"]}):
    print(tracing.carrier())
print([name for name in sys.modules if name.startswith("opentelemetry.")])
"""


def test_without_opentelemetry_nothing_is_imported_and_the_environments_context_is_sent() -> None:
    trace = f"00-{'4b' * 16}-{'0a' * 8}-01"
    assert run("-c", WITHOUT, TRACEPARENT=trace, TRACESTATE="a=b").splitlines() == [
        str({"traceparent": trace, "tracestate": "a=b"}),
        "[]",
    ]


PARENT = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from sluiceway import tracing
trace.set_tracer_provider(TracerProvider())
with tracing.span("work"):
    print(tracing.carrier()["traceparent"])
"""


def test_a_schedulers_traceparent_is_the_parent_of_a_processs_first_span() -> None:
    sent = run("-c", PARENT, TRACEPARENT=f"00-{'4b' * 16}-{'0a' * 8}-01").strip()
    assert sent.startswith(f"00-{'4b' * 16}-")
    assert "0a" * 8 not in sent
