"""Recorded requests of older clients still work, and responses have the recorded fields."""

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateways import serving
from shared_kafka import SharedKafka
from sluiceway import __version__
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.settings import Settings

pytestmark = pytest.mark.long

RECORDINGS = sorted((Path(__file__).parent / "recorded").glob("client-*.json"))
UIDS = re.compile(r"<uid(8?) (\d+)>")


@pytest.fixture
def http(database_url: str, kafka: SharedKafka) -> Iterator[httpx.Client]:
    """A client of the current gateway, on an empty database and a real broker."""
    settings = Settings(database_url=database_url, kafka_bootstrap_servers=kafka.bootstrap_servers)
    with serving(create_app(settings)) as url, httpx.Client(base_url=url, timeout=60) as http:
        yield http


class Replay:
    """Sends recorded requests with the uids and ETags of current responses."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._uids: dict[str, str] = {}
        self._etags: dict[str, str] = {}
        self._topic_id = ""

    def send(self, exchange: dict[str, Any]) -> httpx.Response:
        path = exchange["path"]
        headers = {
            name: value.replace("<etag>", self._etags.get(path, ""))
            for name, value in exchange["headers"].items()
        }
        response = self._http.request(
            exchange["method"],
            self._substituted(path),
            params=self._substituted(exchange["query"]),
            headers=headers,
            json=self._substituted(exchange["body"]),
        )
        if "etag" in response.headers:
            self._etags[path] = response.headers["etag"]
        return response

    def differences(self, exchange: dict[str, Any], response: httpx.Response) -> list[str]:
        """Return the parts of the recorded response that are missing in this one."""
        expected = exchange["response"]
        if response.status_code != expected["status"]:
            return [f"status {response.status_code}, was {expected['status']}: {response.text}"]
        etag_differences = [] if not expected["etag"] or "etag" in response.headers else ["no ETag"]
        return etag_differences + list(self._missing(expected["json"], response.json(), ""))

    def _missing(self, expected: Any, actual: Any, path: str) -> Iterator[str]:
        if isinstance(expected, dict) and isinstance(actual, dict):
            for name, child in expected.items():
                if name in actual:
                    yield from self._missing(child, actual[name], f"{path}.{name}")
                else:
                    yield f"{path}.{name} is missing"
        elif isinstance(expected, list) and isinstance(actual, list):
            if len(expected) != len(actual):
                yield f"{path} has {len(actual)} items, had {len(expected)}"
            for number, (old, new) in enumerate(zip(expected, actual, strict=False)):
                yield from self._missing(old, new, f"{path}[{number}]")
        elif not self._same(expected, actual):
            yield f"{path} is {actual!r}, was {expected!r}"

    def _same(self, expected: Any, actual: Any) -> bool:
        if expected == "<number>":
            return type(actual) is int
        if not isinstance(expected, str) or not isinstance(actual, str):
            return type(expected) is type(actual) and bool(expected == actual)
        if expected == "<time>":
            return datetime.fromisoformat(actual).tzinfo is not None
        if expected == "<topic id>":
            self._topic_id = actual
        if expected in ("<text>", "<topic id>", "<address>"):
            return bool(actual)
        new = UIDS.fullmatch(expected)
        if new is not None and not new[1]:
            return self._uids.setdefault(new[2], actual) == actual
        return bool(self._substituted(expected) == actual)

    def _substituted(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._substituted(child) for name, child in value.items()}
        if isinstance(value, list):
            return [self._substituted(child) for child in value]
        if not isinstance(value, str):
            return value
        if value == "<topic id>":
            return self._topic_id
        return UIDS.sub(lambda uid: self._uids[uid[2]][: 8 if uid[1] else None], value)


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_requests_of_an_older_client_still_work(recording: Path, http: httpx.Client) -> None:
    replay = Replay(http)
    for number, exchange in enumerate(json.loads(recording.read_text())):
        deadline = time.monotonic() + 180
        differences = replay.differences(exchange, replay.send(exchange))
        # Repeat a long poll until its condition is true, as clients do.
        while differences and "wait" in exchange["query"] and time.monotonic() < deadline:
            differences = replay.differences(exchange, replay.send(exchange))
        assert differences == [], f"{number}: {exchange['method']} {exchange['path']}"


def test_the_supported_versions_are_recorded() -> None:
    # The current and the last two minor versions; 0.1 is the first one.
    major, minor = map(int, __version__.split(".")[:2])
    supported = {f"{major}.{number}" for number in range(max(1, minor - 2), minor + 1)}
    recorded = {".".join(path.stem.removeprefix("client-").split(".")[:2]) for path in RECORDINGS}
    assert supported <= recorded, "run python tests/deploy/recording.py"
