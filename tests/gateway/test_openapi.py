"""Schemathesis runs on the OpenAPI document of a gateway, with and without Kafka.

It runs in a separate process, because importing it takes a second in each test process.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings
from hypothesis.configuration import storage_directory

from gateways import serving
from shared_kafka import SharedKafka
from sluiceway_gateway.app import create_app
from sluiceway_gateway.db.revision import migrate
from sluiceway_gateway.settings import Settings

CHANNEL = "fuzzed"
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
HERE = Path(__file__).parent
TOKEN_KEY = "0123456789abcdef" * 2
EXAMPLES = settings.default.max_examples // 10
# Limits of fields do not depend on Kafka, so without Kafka random requests are enough.
PHASES = {"up": "coverage,fuzzing", "down": "fuzzing"}
# Event streams do not end; test_status_events.py tests them.
ENDLESS = "/events$"
# JSON schemas cannot express the grammars of Avro, selectors and cursors. openapi_hooks.py checks
# server errors.
NOT_CHECKED = ["positive_data_acceptance", "not_a_server_error"]
# The defaults of Schemathesis, and 414: invalid parameters may be too long for a URL.
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 414, 415, 422, 428, 429, "5xx"]


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """A running gateway, and a token with all permissions."""

    url: str
    token: str
    kafka_is: str
    document: dict[str, Any]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def operations(self) -> int:
        """The number of operations except for event streams."""
        paths: dict[str, Any] = self.document["paths"]
        return sum(len(each) for path, each in paths.items() if not re.search(ENDLESS, path))


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
        )
        create_channel(gateway)
        yield gateway


def create_channel(gateway: Gateway) -> None:
    """Create the channel that requests use; with Kafka, wait until it is ready."""
    with httpx.Client(base_url=gateway.url, headers=gateway.headers, timeout=60) as http:
        response = http.put(f"/v1/channels/{CHANNEL}", json={"spec": {"schema": SCHEMA}})
        deadline = time.monotonic() + 180
        while gateway.kafka_is == "up" and response.json()["status"]["phase"] != "ready":
            assert time.monotonic() < deadline
            response = http.get(f"/v1/channels/{CHANNEL}")


def test_the_stored_openapi_document_is_the_served_one(gateway: Gateway) -> None:
    served = httpx.get(f"{gateway.url}/openapi.json", headers=gateway.headers).json()
    assert served == gateway.document


@pytest.mark.long
def test_responses_conform_to_the_openapi_document(gateway: Gateway, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{gateway.url}/openapi.json"),
        *("--header", f"Authorization: {gateway.headers['Authorization']}"),
        *("--phases", PHASES[gateway.kafka_is]),
        *("--max-examples", str(EXAMPLES)),
        *("--exclude-path-regex", ENDLESS),
        *("--exclude-checks", ",".join(NOT_CHECKED)),
        *("--suppress-health-check", "all"),
        *("--generation-deterministic", "--no-color"),
        *("--report", "json", "--report-json-path", str(report)),
    ]
    configuration = (
        f"[checks.negative_data_rejection]\nexpected-statuses = {json.dumps(REFUSALS)}\n"
    )
    (tmp_path / "schemathesis.toml").write_text(configuration)
    parameters = {"channel": CHANNEL, "schema": SCHEMA, "kafka_is": gateway.kafka_is}
    hooks = {"SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": str(HERE)}
    # The cached character sets of codecs, which take long to compute.
    cache = {"HYPOTHESIS_STORAGE_DIRECTORY": str(storage_directory().path)}
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **hooks, **cache, "FUZZING_PARAMETERS": json.dumps(parameters)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=480,
    )
    assert result.returncode == 0, result.stdout
    outcomes = json.loads(report.read_text())
    assert outcomes["operations"]["tested"] == gateway.operations
    successful = [
        phase for phase, outcome in outcomes["phases"].items() if outcome["status"] == "success"
    ]
    assert successful == PHASES[gateway.kafka_is].split(",")
