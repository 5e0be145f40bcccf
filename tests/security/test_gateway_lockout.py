"""A gateway that Kafka refuses reports its wrong properties, and recovers."""

import io
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateways import serving
from processes import restored_logging
from secured import PASSWORDS, SecuredKafka
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.logs import configure_logs
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.migration import migrate
from waiting import until

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
PATH = "/v1/channels/shut-out"
WRONG = "pw-nobody-0000"
DEADLINE_S = 180


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """A SQLite database only: these tests do not depend on the database."""
    url = f"sqlite:///{tmp_path / 'gateway.db'}"
    migrate(url)
    return url


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log, as JSON lines."""
    stream = io.StringIO()
    with restored_logging():
        configure_logs(level="warning", format="json", stream=stream)
        yield stream


@contextmanager
def gateway(database_url: str, properties: Mapping[str, str]) -> Iterator[httpx.Client]:
    """Run a gateway that connects to Kafka with these properties."""
    others = dict(properties)
    settings = Settings(
        database_url=database_url,
        kafka_bootstrap_servers=others.pop("bootstrap.servers"),
        # A connection that is set up slowly would replace the error of a refused one.
        kafka_properties=json.dumps({**others, "socket.connection.setup.timeout.ms": "60000"}),
        # A busy broker takes more than a second to refuse a client.
        kafka_timeout_ms=3000,
        resync_s=1,
    )
    with (
        serving(create_app(settings)) as url,
        httpx.Client(base_url=url, timeout=DEADLINE_S) as http,
    ):
        yield http


def ready_condition(channel: httpx.Response) -> dict[str, str]:
    (condition,) = [
        condition
        for condition in channel.json()["status"]["conditions"]
        if condition["type"] == "Ready"
    ]
    return dict(condition)


def wait_for_reason(http: httpx.Client, reason: str) -> httpx.Response:
    """Wait until the channel's condition Ready has this reason."""
    deadline_s = time.monotonic() + DEADLINE_S
    channel = http.get(PATH)
    while ready_condition(channel)["reason"] != reason:
        assert time.monotonic() < deadline_s, channel.text
        etag = channel.headers["etag"]
        response = http.get(PATH, params={"wait": 5}, headers={"If-None-Match": etag})
        channel = channel if response.status_code == 304 else response
    return channel


def warnings_since(reason: str, lines: io.StringIO) -> list[dict[str, Any]]:
    """Return the warnings about Kafka from the first one with this cause on."""
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    warnings = [entry for entry in logged if entry["event"] == "kafka is unavailable"]
    # Before, a slow broker has not refused the gateway yet.
    return list(itertools.dropwhile(lambda warning: warning["cause"] != reason, warnings))


LOCKOUTS: dict[str, tuple[Any, str]] = {
    "KafkaCredentialsRefused": (
        lambda kafka: kafka.scram("gateway", sasl_password=WRONG),
        "correct sasl.username, sasl.password and sasl.mechanism in SLUICEWAY_KAFKA_PROPERTIES",
    ),
    "KafkaCertificateRefused": (
        lambda kafka: kafka.scram("gateway", ssl_ca_pem=kafka.foreign.pem),
        "not signed by a trusted authority; set ssl.ca.pem",
    ),
    "KafkaProtocolMismatch": (
        lambda kafka: kafka.scram("gateway", security_protocol="SASL_PLAINTEXT"),
        "uses TLS, but security.protocol is SASL_PLAINTEXT; set it to SASL_SSL",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "reason",
    [
        reason if index == 0 else pytest.param(reason, marks=pytest.mark.long)
        for index, reason in enumerate(LOCKOUTS)
    ],
)
def test_a_channel_reports_kafkas_refusal_and_is_created_after_access_is_granted(
    secured: SecuredKafka,
    database_url: str,
    lines: io.StringIO,
    reason: str,
) -> None:
    properties, words = LOCKOUTS[reason]
    with gateway(database_url, properties(secured)) as http:
        assert http.put(PATH, json={"spec": {"schema": SCHEMA}}).status_code == 201
        channel = wait_for_reason(http, reason)
        assert channel.json()["status"]["phase"] == "provisioning"
        condition = ready_condition(channel)
        assert condition["status"] == "False"
        assert words in condition["message"]
        params = {"wait": 6}
        again = http.get(PATH, params=params, headers={"If-None-Match": channel.headers["etag"]})
        assert again.status_code == 304, f"the channel must not change again: {again.text}"
        body = {"database": True, "kafka": False, "reasons": {"kafka": reason}, "loops": {}}

        def is_reported() -> bool:
            # A check that takes seconds counts as failed, without the reason.
            ready = http.get("/readyz")
            return (ready.status_code, ready.json()) == (503, body)

        until(is_reported)
        refused = http.get("/v1/cluster")
        assert (refused.status_code, refused.json()["code"]) == (503, "kafka_unavailable")
        assert words in refused.json()["detail"]
        until(lambda: len(warnings_since(reason, lines)) > 1)
    warnings = warnings_since(reason, lines)
    assert {warning["cause"] for warning in warnings} == {reason}
    assert words in warnings[0]["reason"]
    for secret in (WRONG, PASSWORDS["gateway"]):
        assert secret not in f"{condition} {lines.getvalue()}"

    with gateway(database_url, secured.scram("gateway")) as http:
        channel = wait_for_reason(http, "TopicCreated")
        assert channel.json()["status"]["phase"] == "ready"
        until(lambda: http.get("/readyz").json()["reasons"] == {})
