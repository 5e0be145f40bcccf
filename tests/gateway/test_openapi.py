"""Schemathesis over the OpenAPI document of a running gateway, with and without Kafka.

It is a process of its own: to import it takes a second, and pytest's own processes are many.
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
# How the limits of each field are answered does not hang on Kafka: without it, random requests do.
PHASES = {"up": "coverage,fuzzing", "down": "fuzzing"}
# Streams of events have no end; test_status_events.py reads them.
ENDLESS = "/events$"
# Avro, selectors and cursors have grammars beyond JSON schemas; which errors of the
# server are right is checked by openapi_hooks.py.
NOT_CHECKED = ["positive_data_acceptance", "not_a_server_error"]
# Schemathesis' own list, and 414: invalid parameters may be too long for a URL.
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 414, 415, 422, 428, 429, "5xx"]


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """A gateway that runs, and a token that may do everything."""

    url: str
    token: str
    kafka_is: str
    document: dict[str, Any]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def operations(self) -> int:
        """How many there are that have an end."""
        paths: dict[str, Any] = self.document["paths"]
        return sum(len(each) for path, each in paths.items() if not re.search(ENDLESS, path))


@pytest.fixture(scope="module", params=["up", "down"])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway with tokens, and Kafka as the parameter says."""
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
    made = app.state.parts.tokens.create(label="fuzzer", scopes=["admin"])
    with serving(app) as url:
        gateway = Gateway(
            url=url,
            token=made.text.get_secret_value(),
            kafka_is=request.param,
            document=app.openapi(),
        )
        make_channel(gateway)
        yield gateway


def make_channel(gateway: Gateway) -> None:
    """Make the channel that requests meet; with Kafka, wait until it is ready."""
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
def test_every_answer_is_as_documented(gateway: Gateway, tmp_path: Path) -> None:
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
    expected = f"[checks.negative_data_rejection]\nexpected-statuses = {json.dumps(REFUSALS)}\n"
    (tmp_path / "schemathesis.toml").write_text(expected)
    given = {"channel": CHANNEL, "schema": SCHEMA, "kafka_is": gateway.kafka_is}
    hooks = {"SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": str(HERE)}
    # Which characters a codec has is worked out once, and kept there.
    kept = {"HYPOTHESIS_STORAGE_DIRECTORY": str(storage_directory().path)}
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **hooks, **kept, "GIVEN": json.dumps(given)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=480,
    )
    assert ran.returncode == 0, ran.stdout
    told = json.loads(report.read_text())
    assert told["operations"]["tested"] == gateway.operations
    tried = [phase for phase, outcome in told["phases"].items() if outcome["status"] == "success"]
    assert tried == PHASES[gateway.kafka_is].split(",")
