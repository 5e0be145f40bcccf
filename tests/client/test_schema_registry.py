"""Adopted topics whose messages have the ids of another registry."""

import base64
import json
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from sluiceway import Channel, Gateway
from sluiceway.api.schema_registry import SchemaRegistry
from sluiceway.errors import OptionError, RegistryFailure, RegistryUnavailable, SchemaMismatch
from topics import Topics

WRITTEN = {
    "type": "record",
    "name": "Envelope",
    "namespace": "inventory.customers",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "op", "type": "string"},
        {"name": "source", "type": ["null", "string"], "default": None},
    ],
}
READ = {
    "type": "record",
    "name": "Customer",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "op", "type": "string"},
        {"name": "tier", "type": "string", "default": "none"},
    ],
}
RECORDS = [{"id": number, "op": "c", "tier": "none"} for number in range(3)]

Produce = Callable[[Channel, int], None]


@pytest.fixture
def produce(topics: Topics) -> Produce:
    """Write messages as another registry's clients do."""

    def produce(channel: Channel, schema_id: int) -> None:
        # In Avro: an int, a text of one letter, and the second branch of a union with a text.
        bodies = [bytes([2 * number, 2]) + b"c" + bytes([2, 2]) + b"x" for number in range(3)]
        prefix = struct.pack(">BI", 0, schema_id)
        topics.produce(channel.status.topic.name, 0, [prefix + body for body in bodies])

    return produce


@pytest.fixture
def channel(gateway: Gateway, topics: Topics) -> Channel:
    topic = f"customers-{uuid.uuid4().hex[:8]}"
    topics.create(topic)
    return gateway.channel(topic, READ, topic=topic)


def test_ids_are_resolved_by_another_registry(
    gateway: Gateway, gateway_url: str, channel: Channel, produce: Produce
) -> None:
    """The registry is the gateway's own interface, where another channel has the schema."""
    subject = f"registered-{uuid.uuid4().hex[:8]}"
    gateway.channel(subject, WRITTEN)
    url = f"{gateway_url}/registry"
    with SchemaRegistryClient({"url": url}) as client:
        latest = client.get_latest_version(f"{subject}-value").schema_id
    assert isinstance(latest, int)
    produce(channel, latest)
    with channel.reader(until="now", schema_registry=url) as reader:
        assert list(reader) == RECORDS
    # Without a word about the registry, the ids are none of the channel's.
    with channel.reader(until="now", on_corrupt="skip") as reader:
        assert (list(reader), reader.corrupt_messages) == ([], 3)
    produce(channel, 2**31 - 1)
    with channel.reader(until="now", schema_registry=url, on_corrupt="skip") as reader:
        assert reader.read(3, timeout=None) == RECORDS
        with pytest.raises(SchemaMismatch, match=rf"id {2**31 - 1} is not in the registry {url}"):
            reader.read(1, timeout=None)


def test_ids_are_resolved_by_a_file_also_those_that_the_channel_has(
    channel: Channel, produce: Produce, tmp_path: Path
) -> None:
    own = channel.connection("read").schema_id
    produce(channel, own)
    file = tmp_path / "schemas.json"
    for schema in (WRITTEN, json.dumps(WRITTEN)):
        file.write_text(json.dumps({str(own): schema}))
        with channel.reader(until="now", schema_registry=file) as reader:
            assert [row for batch in reader.batches() for row in batch.to_pylist()] == RECORDS
    for text, schema_registry_ in (("[]", file), ("{", str(file)), ("{}", tmp_path / "none.json")):
        file.write_text(text)
        with pytest.raises(OptionError, match="no readable file with a JSON object"):
            channel.reader(until="now", schema_registry=schema_registry_)


@pytest.fixture
def answers() -> dict[int, tuple[int, object]]:
    """Status and body of the faulty registry's answers, by schema id."""
    return {}


@pytest.fixture
def faulty(answers: dict[int, tuple[int, object]]) -> Iterator[tuple[str, list[str | None]]]:
    """The URL of a registry with faults, and the credentials of the requests to it."""
    credentials: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            credentials.append(self.headers["Authorization"])
            status, body = answers[int(self.path.rpartition("/")[2])]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

        def log_message(self, *_arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", credentials
        server.shutdown()


def test_schemas_that_cannot_be_used_are_named(
    channel: Channel,
    produce: Produce,
    faulty: tuple[str, list[str | None]],
    answers: dict[int, tuple[int, object]],
) -> None:
    url, _ = faulty
    avro = json.dumps(WRITTEN)
    answers |= {
        1: (200, {"schemaType": "JSON", "schema": "{}"}),
        2: (200, {"schema": avro, "references": [{"name": "a", "subject": "b", "version": 1}]}),
        3: (200, {"schema": '"string"'}),
        4: (200, {"schema": avro.replace('"op"', '"operation"')}),
        5: (200, b"<html>"),
        6: (404, {"detail": "Not Found"}),
        7: (302, b""),
        8: (200, b" " * 5_000_000),
    }
    for offset, (id_, error, reason) in enumerate(
        [
            (1, SchemaMismatch, "the type JSON, not AVRO"),
            (2, SchemaMismatch, "refers to schemas of other subjects"),
            (3, SchemaMismatch, "cannot be used"),
            (4, SchemaMismatch, "this reader's schema cannot read: .*op"),
            (5, RegistryFailure, "as a registry does"),
            (6, RegistryFailure, "as a registry does"),
            (7, RegistryFailure, "HTTP 302; check its URL"),
            (8, RegistryFailure, "more than 4,194,304 bytes"),
        ]
    ):
        produce(channel, id_)
        start = {0: 3 * offset}
        with channel.reader(until="now", start=start, schema_registry=url) as reader:
            with pytest.raises(error, match=reason) as raised:
                reader.read(1, timeout=None)
            assert url in str(raised.value)
            assert reader.position()[0].offset == 3 * offset


def test_requests_are_repeated_and_have_credentials(
    channel: Channel,
    produce: Produce,
    faulty: tuple[str, list[str | None]],
    answers: dict[int, tuple[int, object]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    url, credentials = faulty
    produce(channel, 1)
    impatient = replace(SchemaRegistry.open(url), timeout_s=0.2)
    with channel.reader(until="now", schema_registry=impatient) as reader:
        answers[1] = (503, b"")
        with pytest.raises(RegistryUnavailable, match=r"the schema id 1 within .* HTTP 503"):
            reader.read(1, timeout=None)
        answers[1] = (401, {"error_code": 40101})
        monkeypatch.setenv("SLUICEWAY_REGISTRY_AUTH", "reader:secret")
        with pytest.raises(RegistryFailure, match="set SLUICEWAY_REGISTRY_AUTH") as raised:
            reader.read(1, timeout=None)
        assert "secret" not in str(raised.value)
        assert credentials[-1] == f"Basic {base64.b64encode(b'reader:secret').decode()}"
        monkeypatch.delenv("SLUICEWAY_REGISTRY_AUTH")
        (tmp_path / "token").write_text("slr_token\n")
        monkeypatch.setenv("SLUICEWAY_REGISTRY_AUTH_FILE", str(tmp_path / "token"))
        answers[1] = (200, {"schema": json.dumps(WRITTEN)})
        assert reader.read(3, timeout=None) == RECORDS
        assert credentials[-1] == "Bearer slr_token"
    requests = len(credentials)
    with channel.reader(until="now", schema_registry=url) as reader:
        assert list(reader) == RECORDS
    assert len(credentials) == requests


def test_a_registry_without_the_ids_of_many_messages_is_the_wrong_one(
    channel: Channel,
    produce: Produce,
    faulty: tuple[str, list[str | None]],
    answers: dict[int, tuple[int, object]],
    topics: Topics,
) -> None:
    url, credentials = faulty
    answers |= {id_: (404, {"error_code": 40403}) for id_ in range(200)}
    garbage = [struct.pack(">BI", 0, id_) for id_ in range(200)]
    topics.produce(channel.status.topic.name, 0, garbage)
    with (
        channel.reader(until="now", schema_registry=url) as reader,
        pytest.raises(RegistryFailure, match="has none of 100 schema ids"),
    ):
        reader.read(1, timeout=None)
    assert len(credentials) == 100
    # Others of the process still get their schemas.
    answers[300] = (200, {"schema": json.dumps(WRITTEN)})
    assert SchemaRegistry.open(url).look_up([300]).keys() == {300}


def test_registries_are_for_adopted_topics_of_avro(
    gateway: Gateway, channel: Channel, topics: Topics
) -> None:
    for source, reason in (
        ("https://user:pw@registry", "without a user, which SLUICEWAY_REGISTRY_AUTH has"),
        ("user:pw@registry:8081", "without a user"),
        (" https://user:pw@registry", "without a user"),
        ("https://user:12#pw@registry", "without a user"),
        ("https://registry#pw", "it must be http://HOST:PORT"),
        ("ftp://registry", "it must be http://HOST:PORT"),
        (7, "of the type int; it takes a URL"),
    ):
        with pytest.raises(OptionError, match=reason) as raised:
            channel.reader(until="now", schema_registry=source)  # type: ignore[arg-type]
        assert "pw" not in str(raised.value)
    topic = f"plain-{uuid.uuid4().hex[:8]}"
    topics.create(topic)
    plain = gateway.channel(topic, format="bytes", topic=topic)
    owned = gateway.channel(f"owned-{uuid.uuid4().hex[:8]}", READ)
    for other, reason in ((plain, "has the format bytes"), (owned, "owns its topic")):
        with pytest.raises(OptionError, match=reason):
            other.reader(until="now", schema_registry="http://registry")
