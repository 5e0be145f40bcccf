import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from gateways import UNREACHABLE, serving
from shared_kafka import RACK, SharedKafka
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.migration import migrate

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
TOKEN_KEY = "0123456789abcdef" * 2
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def http(gateway_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway_url, timeout=30) as client:
        yield client


def ready(http: httpx.Client, name: str, **spec: Any) -> dict[str, Any]:
    """Create a channel, and return it once it is ready."""
    response = http.put(f"/v1/channels/{name}", json={"spec": {"schema": SCHEMA, **spec}})
    assert response.status_code == 201, response.text
    deadline = time.monotonic() + 180
    while (channel := response.json())["status"]["phase"] != "ready":
        assert time.monotonic() < deadline, channel
        response = http.get(
            f"/v1/channels/{name}?wait=5", headers={"If-None-Match": response.headers["ETag"]}
        )
        if response.status_code == 304:
            response = http.get(f"/v1/channels/{name}")
    ready_channel: dict[str, Any] = channel
    return ready_channel


def problem(response: httpx.Response, status: int, code: str) -> str:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    detail: str = response.json()["detail"]
    return detail


def test_the_cluster_shows_its_brokers_and_controller(
    http: httpx.Client, kafka: SharedKafka
) -> None:
    cluster = http.get("/v1/cluster").json()
    assert cluster["cluster_id"]
    broker = {"id": 1, "host": "127.0.0.1", "port": kafka.port, "rack": RACK}
    assert (cluster["controller_id"], cluster["brokers"]) == (1, [broker])
    assert http.get("/v1/cluster/brokers/1").json() == broker


def test_a_topic_shows_its_partitions_and_watermarks(
    http: httpx.Client, kafka: SharedKafka
) -> None:
    topic = ready(http, f"watermarks-{next(_numbers)}", partitions=2)["status"]["topic"]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for _ in range(3):
        producer.produce(topic["name"], b"record", partition=1)
    assert producer.flush(30) == 0
    body = http.get(f"/v1/cluster/topics/{topic['name']}").json()
    assert (body["name"], body["id"]) == (topic["name"], topic["id"])
    placed = {"leader": 1, "replicas": [1], "isr": [1], "begin_offset": 0}
    assert body["partitions"] == [
        {"partition": 0, **placed, "end_offset": 0},
        {"partition": 1, **placed, "end_offset": 3},
    ]


def test_an_unknown_broker_or_topic_is_404(http: httpx.Client) -> None:
    assert "live brokers: 1" in problem(http.get("/v1/cluster/brokers/9"), 404, "not_found")
    assert "'nope'" in problem(http.get("/v1/cluster/topics/nope"), 404, "not_found")


@pytest.mark.parametrize(
    "path",
    ["brokers/one", "brokers/-1", "brokers/99999999999", "topics/a%20b", "topics/" + "a" * 250],
)
def test_a_malformed_broker_or_topic_is_422(http: httpx.Client, path: str) -> None:
    problem(http.get(f"/v1/cluster/{path}"), 422, "invalid_request")


@pytest.mark.long
@pytest.mark.parametrize("path", ["", "/brokers/1", "/topics/some"])
def test_without_kafka_the_cluster_is_unavailable(tmp_path: Path, path: str) -> None:
    settings = Settings(
        database_url=f"sqlite:///{tmp_path / 'gateway.db'}",
        kafka_bootstrap_servers=UNREACHABLE,
        kafka_timeout_ms=300,
    )
    migrate(settings.database_url.get_secret_value())
    with serving(create_app(settings)) as url:
        response = httpx.get(f"{url}/v1/cluster{path}", timeout=30)
    assert "does not answer" in problem(response, 503, "kafka_unavailable")
    assert response.headers["Retry-After"]
    assert response.json()["retriable"]


@pytest.fixture
def guarded(kafka: SharedKafka, tmp_path: Path) -> Iterator[tuple[httpx.Client, Tokens]]:
    """A gateway with tokens, and the tokens."""
    settings = Settings(
        database_url=f"sqlite:///{tmp_path / 'gateway.db'}",
        kafka_bootstrap_servers=kafka.bootstrap_servers,
        token_key=TOKEN_KEY,
    )
    migrate(settings.database_url.get_secret_value())
    database = Database(settings.database_url.get_secret_value())
    tokens = Tokens(database, settings.token_key)
    with (
        serving(create_app(settings)) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        yield client, tokens
    database.close()


def test_a_channels_topic_is_shown_to_its_readers_and_the_rest_to_administrators(
    guarded: tuple[httpx.Client, Tokens],
) -> None:
    http, tokens = guarded

    def bearer(*scopes: str) -> dict[str, str]:
        text = tokens.create(label="test", scopes=scopes).text.get_secret_value()
        return {"Authorization": f"Bearer {text}"}

    admin, reader = bearer("admin"), bearer("read:flights")
    writer, other = bearer("write:flights"), bearer("manage:trains")
    http.headers.update(admin)
    topic = ready(http, "flights")["status"]["topic"]["name"]
    expected = {
        "": {"admin": 200, "reader": 403, "writer": 403, "other": 403},
        "/brokers/1": {"admin": 200, "reader": 403, "writer": 403, "other": 403},
        f"/topics/{topic}": {"admin": 200, "reader": 200, "writer": 403, "other": 403},
        # Only administrators may learn whether it exists.
        "/topics/absent": {"admin": 404, "reader": 403, "writer": 403, "other": 403},
    }
    who = {"admin": admin, "reader": reader, "writer": writer, "other": other}
    for path, statuses in expected.items():
        status_codes = {
            name: http.get(f"/v1/cluster{path}", headers=headers).status_code
            for name, headers in who.items()
        }
        assert status_codes == statuses, path
        del http.headers["Authorization"]
        assert http.get(f"/v1/cluster{path}").status_code == 401
        http.headers.update(admin)
