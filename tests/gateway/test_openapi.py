"""Schemathesis over the OpenAPI document of a gateway that runs, with Kafka and without it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from serving import serving
from sluiceway_gateway.app import create_app
from sluiceway_gateway.embedded import KafkaServer, free_ports
from sluiceway_gateway.services.migration import migrate
from sluiceway_gateway.settings import Settings

TOKEN_KEY = "0123456789abcdef" * 2
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
DOCUMENT = create_app(Settings(database_url="sqlite:///never-opened.db")).openapi()
# Streams of events have no end; test_status_events.py reads them.
ENDLESS = "/events$"
api = schemathesis.openapi.from_dict(DOCUMENT).exclude(path_regex=ENDLESS)
# How the limits of each field are answered does not hang on Kafka: without it, random requests do.
without_kafka = schemathesis.openapi.from_dict(DOCUMENT).exclude(path_regex=ENDLESS)
without_kafka.config.phases.coverage.enabled = False
few = settings(
    max_examples=settings.default.max_examples // 4,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """A gateway that runs, and a token that may do everything."""

    url: str
    token: str
    kafka_is_up: bool

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


@pytest.fixture(scope="module", params=["up", "down"])
def kafka_is(request: pytest.FixtureRequest) -> str:
    state: str = request.param
    return state


@pytest.fixture(scope="module")
def gateway(
    kafka_is: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway with tokens, and Kafka as the parameter says."""
    servers, timeout_ms = f"127.0.0.1:{free_ports(1)[0]}", 100
    if kafka_is == "up":
        kafka: KafkaServer = request.getfixturevalue("kafka")
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
        gateway = Gateway(url=url, token=made.text.get_secret_value(), kafka_is_up=kafka_is == "up")
        make_channel(gateway)
        yield gateway


def make_channel(gateway: Gateway) -> None:
    """Make the channel that requests meet; with Kafka, wait until it is ready."""
    with httpx.Client(base_url=gateway.url, headers=gateway.headers, timeout=60) as http:
        answer = http.put("/v1/channels/fuzzed", json={"spec": {"schema": SCHEMA}})
        deadline = time.monotonic() + 60
        while gateway.kafka_is_up and answer.json()["status"]["phase"] != "ready":
            assert time.monotonic() < deadline
            answer = http.get("/v1/channels/fuzzed")


def test_the_document_is_the_one_that_is_served(gateway: Gateway) -> None:
    assert httpx.get(f"{gateway.url}/openapi.json", headers=gateway.headers).json() == DOCUMENT


@api.hook
@without_kafka.hook
def map_case(_context: schemathesis.HookContext, case: schemathesis.Case) -> schemathesis.Case:
    """Have half of the well-formed requests meet the channel, and some make others.

    Those have few partitions: each takes files of the broker that all tests share.
    """
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return case
    if len(str(case.path_parameters.get("name", ""))) % 2:
        case.path_parameters["name"] = "fuzzed"
    spec = case.body.get("spec") if isinstance(case.body, dict) else None
    if isinstance(spec, dict):
        if len(str(case.body)) % 3:
            spec["schema"] = SCHEMA
        if "partitions" in spec:
            spec["partitions"] = min(spec["partitions"], 4)
    return case


@api.parametrize()
@few
@pytest.mark.parametrize("kafka_is", ["up"], indirect=True)
def test_every_answer_is_as_documented(case: schemathesis.Case, gateway: Gateway) -> None:
    validate(case, case.call(base_url=gateway.url, headers=gateway.headers), gateway)


@without_kafka.parametrize()
@few
@pytest.mark.parametrize("kafka_is", ["down"], indirect=True)
def test_every_answer_without_kafka_is_as_documented(
    case: schemathesis.Case, gateway: Gateway
) -> None:
    answer = case.call(base_url=gateway.url, headers=gateway.headers)
    if answer.status_code != 503:
        validate(case, answer, gateway)
        return
    adopts = case.method == "PUT" and "topic" in str(case.body)
    assert adopts or case.path.startswith(("/v1/cluster", "/readyz")), answer.text
    validate(case, answer, gateway, CHECKS.get_one("not_a_server_error"))


def validate(
    case: schemathesis.Case, answer: schemathesis.Response, gateway: Gateway, *excluded: Any
) -> None:
    """Hold the answer against the document."""
    # Avro, selectors and cursors have grammars that a JSON schema cannot tell.
    excluded = (*excluded, CHECKS.get_one("positive_data_acceptance"))
    case.validate_response(answer, headers=gateway.headers, excluded_checks=list(excluded))
