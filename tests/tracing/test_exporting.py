"""Export of traces by `sluiceway serve` and by the example in the docs."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from collector import Collector, collecting
from databases import SQLite
from processes import process
from shared_kafka import SharedKafka

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
        (span,) = (each for each in collector.spans if each.name == "GET /v1/channels")
        assert (span.service, span.trace, span.parent) == ("sluiceway-gateway", TRACE, PARENT)
        statements = {each.name for each in collector.spans if each.trace == TRACE}
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
        (root,) = (each for each in collector.spans if each.name == "import landings")
        spans = [each for each in collector.spans if each.trace == root.trace]
        assert {each.service for each in spans} == {"import-landings", "sluiceway-gateway"}
        # The tree in the documentation.
        documented = re.search(r"^    import landings\n(?:    .*\n)+", OPERATING.read_text(), re.M)
        assert documented is not None
        assert tree(documented[0]) - {collector.path(each) for each in spans} == set()


def tree(text: str) -> set[tuple[str, ...]]:
    """Return the paths of an indented tree; text after two spaces is a remark."""
    paths, path = set(), []
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip(" └"))) // 2 - 2
        path = [*path[:depth], re.split(r"  ", line.strip(" └"))[0]]
        paths.add(tuple(path))
    return paths
