"""Schemathesis over the OpenAPI document of a running gateway, with and without Kafka.

It runs in its own process: its import takes a second, and pytest has many processes.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings
from hypothesis.configuration import storage_directory

from gateways import serving
from shared_kafka import SharedKafka
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.migration import migrate

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
SPECS = {
    "fuzzed": {"schema": SCHEMA},
    "fuzzed-once": {"schema": SCHEMA, "delivery": "exactly_once"},
}
HERE = Path(__file__).parent
TOKEN_KEY = "0123456789abcdef" * 2
# Limits of fields are checked before Kafka is needed, so without Kafka random requests suffice.
PHASES = {"up": "coverage,fuzzing", "down": "fuzzing"}
# Event streams and searches that follow do not end: test_status_events.py, test_searching.py.
ENDLESS = "/(events|search)$"
STATEFUL_S = 40
# JSON schemas cannot express the grammars of Avro, selectors and cursors. openapi_hooks.py checks
# server errors.
NOT_CHECKED = ["positive_data_acceptance", "not_a_server_error"]
# The defaults of Schemathesis, and 414: invalid parameters may be too long for a URL.
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 414, 415, 422, 428, 429, "5xx"]


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """A running gateway, a token with all permissions, and channels."""

    url: str
    token: str
    kafka_is: str
    document: dict[str, Any]
    channels: dict[str, dict[str, Any]]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def operations(self) -> int:
        """The number of operations except for event streams."""
        paths: dict[str, Any] = self.document["paths"]
        return sum(
            len(path_item) for path, path_item in paths.items() if not re.search(ENDLESS, path)
        )


@pytest.fixture(scope="module", params=["up", "down"])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway with tokens, with or without Kafka."""
    servers, timeout_ms = "127.0.0.1:1", 100
    if request.param == "up":
        kafka: SharedKafka = request.getfixturevalue("kafka")
        servers, timeout_ms = kafka.bootstrap_servers, 10_000
    configuration = Settings(
        database_url=f"sqlite:///{tmp_path_factory.mktemp('fuzzed') / 'gateway.db'}",
        kafka_bootstrap_servers=servers,
        kafka_timeout_ms=timeout_ms,
        topic_prefix="fuzzed.",
        token_key=TOKEN_KEY,
    )
    migrate(configuration.database_url.get_secret_value())
    app = create_app(configuration)
    token = app.state.parts.tokens.create(label="fuzzer", scopes=["admin"])
    with serving(app) as url:
        gateway = Gateway(
            url=url,
            token=token.text.get_secret_value(),
            kafka_is=request.param,
            document=app.openapi(),
            channels={},
        )
        channels = {name: create_channel(gateway, name) for name in SPECS}
        yield replace(gateway, channels=channels)


def create_channel(gateway: Gateway, name: str) -> dict[str, Any]:
    """Create a channel that requests are sent to, and return its spec and uid.

    With Kafka, wait until it is ready.
    """
    with httpx.Client(base_url=gateway.url, headers=gateway.headers, timeout=60) as http:
        response = http.put(f"/v1/channels/{name}", json={"spec": SPECS[name]})
        deadline = time.monotonic() + 180
        while gateway.kafka_is == "up" and response.json()["status"]["phase"] != "ready":
            assert time.monotonic() < deadline
            response = http.get(f"/v1/channels/{name}")
    return {"spec": SPECS[name], "uid": response.json()["metadata"]["uid"]}


@pytest.mark.sample
def test_the_stored_openapi_document_is_the_served_one(gateway: Gateway) -> None:
    served = httpx.get(f"{gateway.url}/openapi.json", headers=gateway.headers, timeout=60).json()
    assert served == gateway.document


@pytest.mark.long
def test_every_response_is_as_documented(gateway: Gateway, tmp_path: Path) -> None:
    report = run_schemathesis(
        gateway,
        tmp_path,
        *("--phases", PHASES[gateway.kafka_is]),
        *("--max-examples", str(settings.default.max_examples // 10)),
        "--generation-deterministic",
    )
    assert report["operations"]["tested"] == gateway.operations
    assert succeeded(report) == PHASES[gateway.kafka_is].split(",")


@pytest.mark.long
@pytest.mark.parametrize("gateway", ["up"], indirect=True)
def test_responses_to_linked_requests_are_as_documented(gateway: Gateway, tmp_path: Path) -> None:
    """The links of the document lead from opening batches and endpoints to their use and end."""
    report = run_schemathesis(
        gateway, tmp_path, *("--phases", "stateful"), *("--max-time", str(STATEFUL_S))
    )
    assert succeeded(report) == ["stateful"]
    assert report["operations"]["tested"] >= 10


def run_schemathesis(gateway: Gateway, directory: Path, *options: str) -> dict[str, Any]:
    """Run Schemathesis with these options, and return its report; fails with its output."""
    path = directory / "report.json"
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{gateway.url}/openapi.json"),
        *("--header", f"Authorization: {gateway.headers['Authorization']}"),
        *("--exclude-path-regex", ENDLESS),
        *("--exclude-checks", ",".join(NOT_CHECKED)),
        *("--suppress-health-check", "all"),
        "--no-color",
        *("--report", "json", "--report-json-path", str(path)),
        *options,
    ]
    (directory / "schemathesis.toml").write_text(
        f"[checks.negative_data_rejection]\nexpected-statuses = {json.dumps(REFUSALS)}\n"
        # Only the links of the document are followed.
        "[phases.stateful.inference]\nalgorithms = []\n"
    )
    variables = {
        "SCHEMATHESIS_HOOKS": "openapi_hooks",
        "PYTHONPATH": str(HERE),
        # Contains the character sets of codecs, which take long to compute.
        "HYPOTHESIS_STORAGE_DIRECTORY": str(storage_directory().path),
        "KAFKA_IS": gateway.kafka_is,
        "CHANNELS": json.dumps(gateway.channels),
    }
    result = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=480,
    )
    assert result.returncode == 0, result.stdout
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def succeeded(report: dict[str, Any]) -> list[str]:
    """Return the phases of a report that succeeded."""
    return [phase for phase, result in report["phases"].items() if result["status"] == "success"]
