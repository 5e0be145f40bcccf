"""Traces exported by OTLP: by `sluiceway serve`, by the example in the docs, and by Spark jobs."""

import gzip
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from databases import SQLite
from processes import process, spark_environment
from shared_kafka import SharedKafka
from sluiceway import Gateway
from waiting import until


@dataclass(frozen=True, kw_only=True)
class Collected:
    """An exported span."""

    service: str
    trace: str
    id: str
    parent: str
    name: str
    attributes: dict[str, Any]


@dataclass
class Collector:
    """The spans received so far, and the endpoint for exporters."""

    endpoint: str = ""
    spans: list[Collected] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def until(self, *names: str, timeout_s: float = 60) -> list[Collected]:
        """Wait for spans of all of these names, and return all spans."""
        with self.arrived:
            assert self.arrived.wait_for(
                lambda: set(names) <= {span.name for span in self.spans}, timeout_s
            ), f"{names} are not all in {sorted({span.name for span in self.spans})}"
            return list(self.spans)

    def path(self, span: Collected) -> tuple[str, ...]:
        """Return the names of a span's known ancestors, outermost first, and its own."""
        names, by_id = [span.name], {collected.id: collected for collected in self.spans}
        while (parent := by_id.get(span.parent)) is not None:
            names.insert(0, parent.name)
            span = parent
        return tuple(names)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector while the block runs."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            response = ExportTraceServiceResponse().SerializeToString()
            with collector.arrived:
                collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
                collector.arrived.notify_all()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _spans(request: Any) -> Iterator[Collected]:
    for resource in request.resource_spans:
        service = _attributes(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Collected(
                    service=service,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    name=span.name,
                    attributes=_attributes(span.attributes),
                )


def _attributes(attributes: Any) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in attributes
    }


OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"


TRACE, PARENT = "4b" * 16, "0a" * 8


def settings(sqlite: SQLite, kafka: SharedKafka) -> dict[str, str]:
    return {
        "SLUICEWAY_DATABASE_URL": sqlite.migrated(),
        "SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
    }


def traced_request(variables: dict[str, str]) -> str:
    """Send one request of a trace to a gateway, stop the gateway, and return its log."""
    with process("serve", "--port", "0", **variables) as running:
        url = running.until(r"serving on (\S+)")
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        response = httpx.get(f"{url}/v1/channels", headers=headers, timeout=60, trust_env=False)
        response.raise_for_status()
        assert running.end(signal.SIGTERM) == 0
        return running.text


@pytest.mark.long
def test_serve_exports_its_spans_before_it_ends(sqlite: SQLite, kafka: SharedKafka) -> None:
    with collecting() as collector:
        traced_request(
            settings(sqlite, kafka) | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
        )
        (span,) = (span for span in collector.spans if span.name == "GET /v1/channels")
        assert (span.service, span.trace, span.parent) == ("sluiceway-gateway", TRACE, PARENT)
        statements = {span.name for span in collector.spans if span.trace == TRACE}
        assert {"read transaction", "SELECT channels"} <= statements


@pytest.mark.long
@pytest.mark.parametrize(
    "variables",
    [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}],
    ids=lambda variables: next(iter(variables)),
)
def test_serve_exports_nothing_if_variables_disable_it(
    sqlite: SQLite, kafka: SharedKafka, variables: dict[str, str]
) -> None:
    with collecting() as collector:
        exporter = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, **variables}
        traced_request(settings(sqlite, kafka) | exporter)
        assert collector.spans == []


@pytest.mark.long
def test_serve_runs_without_an_exporter_that_is_not_installed(
    sqlite: SQLite, kafka: SharedKafka
) -> None:
    logged = traced_request(settings(sqlite, kafka) | {"OTEL_TRACES_EXPORTER": "zipkin"})
    assert "OpenTelemetry's exporter 'zipkin' is not installed: it gets no traces" in logged


WITHOUT_SDK = """
import logging, sys
logging.basicConfig()
sys.modules["opentelemetry.sdk"] = None
from sluiceway import tracing
assert tracing.configure("sluiceway-gateway") is None
"""


def test_a_missing_sdk_is_named_with_the_command_that_installs_it() -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_SDK],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "OpenTelemetry's SDK is not installed: `pip install '.[otel]'`" in result.stderr


INVALID = """
import logging
logging.basicConfig()
from sluiceway import tracing
assert tracing.configure("sluiceway-spark") is None
"""


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10000", "max_export_batch_size must be less than"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many", "must be a non-negative integer"),
    ],
)
def test_a_program_runs_without_traces_if_the_sdk_refuses_a_variable(
    variable: str, value: str, reason: str
) -> None:
    result = subprocess.run(
        [sys.executable, "-c", INVALID],
        env=os.environ | {"OTEL_TRACES_EXPORTER": "console", variable: value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no traces are exported: ValueError: " in result.stderr
    assert reason in result.stderr


def documented_example() -> str:
    (code,) = re.findall(
        r"^```python\n(from opentelemetry .*?)^```$", OPERATING.read_text(), re.M | re.S
    )
    return str(code)


def run_example(code: str, collector: Collector, url: str) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_SERVICE_NAME": "import-landings",
        "SLUICEWAY_URL": url,
    }
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.long
def test_the_documented_example_is_one_trace_of_two_services(
    sqlite: SQLite, kafka: SharedKafka
) -> None:
    with collecting() as collector:
        variables = settings(sqlite, kafka) | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
        with process("serve", "--port", "0", **variables) as running:
            run_example(documented_example(), collector, running.until(r"serving on (\S+)"))
            assert running.end(signal.SIGTERM) == 0
        (root,) = (span for span in collector.spans if span.name == "import landings")
        spans = [span for span in collector.spans if span.trace == root.trace]
        assert {span.service for span in spans} == {"import-landings", "sluiceway-gateway"}
        # The tree in the documentation.
        documented = re.search(r"^    import landings\n(?:    .*\n)+", OPERATING.read_text(), re.M)
        assert documented is not None
        assert tree(documented[0]) - {collector.path(span) for span in spans} == set()


def tree(text: str) -> set[tuple[str, ...]]:
    """Return the paths of an indented tree; text after two spaces is a remark."""
    paths, path = set(), []
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip(" └"))) // 2 - 2
        path = [*path[:depth], re.split(r"  ", line.strip(" └"))[0]]
        paths.add(tuple(path))
    return paths


SCHEMA = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(scope="module")
def spark_traces(
    sqlite: SQLite, kafka: SharedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Collector]:
    """The collector of a Spark job's spans, after the job and its gateway have ended."""
    directory = tmp_path_factory.mktemp("spark-traces")
    with collecting() as collected:
        variables = {
            "SLUICEWAY_DATABASE_URL": sqlite.migrated(),
            "SLUICEWAY_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collected.endpoint,
        }
        with process("serve", "--port", "0", **variables) as running:
            url = running.until(r"serving on (\S+)")
            with Gateway(url) as gateway:
                for name in ("rows-in", "rows-out"):
                    gateway.channel(name, SCHEMA, partitions=2, delivery="exactly_once")
            log = directory / "job.log"
            with (
                log.open("wb") as output,
                subprocess.Popen(
                    [
                        *(sys.executable, str(Path(__file__).with_name("traced_spark_job.py"))),
                        *("rows-in", "rows-out", str(directory / "checkpoint")),
                    ],
                    env=os.environ
                    | spark_environment(directory)
                    | {
                        "SLUICEWAY_URL": url,
                        "OTEL_EXPORTER_OTLP_ENDPOINT": collected.endpoint,
                        "OTEL_BSP_SCHEDULE_DELAY": "200",
                    },
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                ) as job,
            ):
                until(lambda: job.poll() is not None or is_complete(collected), 500)
                job.communicate(b"\n", timeout=180)
                assert job.returncode == 0, log.read_text()
            assert running.end(signal.SIGTERM) == 0
        yield collected


def is_complete(collector: Collector) -> bool:
    """Whether the spans of all tasks and commits have arrived, with those above them."""
    spans = list(collector.spans)
    names, ids = Counter(span.name for span in spans), {span.id for span in spans}
    return (
        records(spans) == {"send rows-in": 1000, "receive rows-in": 2000, "send rows-out": 1000}
        and names["commit rows-in"] > 0
        and names["commit rows-out"] == names["write rows-out"] > 0
        and all(span.parent in ids for span in spans if span.parent)
    )


def records(spans: Sequence[Collected]) -> Counter[str]:
    """Return the records that tasks have moved, by the name of their spans."""
    counts: Counter[str] = Counter()
    for span in spans:
        counts[span.name] += span.attributes.get("sluiceway.records", 0)
    return +counts


def trace_of(collector: Collector, span: Collected) -> list[Collected]:
    return [collected for collected in collector.spans if collected.trace == span.trace]


@pytest.mark.long
def test_a_job_is_one_trace_from_the_program_through_its_tasks_to_the_statements(
    spark_traces: Collector,
) -> None:
    (root,) = (span for span in spark_traces.spans if span.name == "nightly")
    trace = trace_of(spark_traces, root)
    paths = Counter(map(spark_traces.path, trace))
    assert paths["nightly", "write rows-in"] == 1
    assert paths["nightly", "write rows-in", "send rows-in"] == 2
    assert paths["nightly", "write rows-in", "commit rows-in"] == 1
    commit = ("nightly", "write rows-in", "commit rows-in", "POST")
    route = "POST /v1/channels/{name}/batches/{id}/commit"
    assert paths[*commit, route, "write transaction", "INSERT visible_runs"] >= 1
    assert paths["nightly", "read rows-in"] == 1
    received = paths["nightly", "read rows-in", "receive rows-in"]
    assert received >= 2
    sent = [span for span in trace if span.name in ("send rows-in", "receive rows-in")]
    assert {span.service for span in sent} == {"sluiceway-spark"}
    assert records(sent) == {"send rows-in": 1000, "receive rows-in": 1000}


@pytest.mark.long
def test_each_micro_batch_is_a_trace_of_its_read_and_one_of_its_write(
    spark_traces: Collector,
) -> None:
    writes = [span for span in spark_traces.spans if span.name == "write rows-out"]
    assert [span.parent for span in writes] == [""] * len(writes)
    assert len({span.trace for span in writes}) == len(writes) >= 1
    sent = 0
    for write in writes:
        trace = trace_of(spark_traces, write)
        paths = Counter(map(spark_traces.path, trace))
        assert paths["write rows-out", "commit rows-out"] == 1
        tasks = [span for span in trace if span.name == "send rows-out"]
        assert {spark_traces.path(span) for span in tasks} == {("write rows-out", "send rows-out")}
        sent += sum(span.attributes["sluiceway.records"] for span in tasks)
    assert sent == 1000
    reads = [span for span in spark_traces.spans if span.name == "read rows-in" and not span.parent]
    received = [
        span.attributes["sluiceway.records"]
        for read in reads
        for span in trace_of(spark_traces, read)
        if span.name == "receive rows-in"
    ]
    assert sum(received) == 1000
