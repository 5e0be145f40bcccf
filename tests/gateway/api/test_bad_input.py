import gzip
import json
import socket
from typing import Any
from urllib.parse import quote

import pytest

from gateways import SCHEMA, Rig, code, running
from sluiceway_gateway.core.db.engine import Database

PATH = "/v1/channels/flights"
JSON = {"Content-Type": "application/json"}


def refused(
    rig: Rig, content: bytes, headers: dict[str, str] = JSON, *, status: int = 422
) -> dict[str, Any]:
    """Send a body, assert that it is refused and changes nothing, and return the problem."""
    response = rig.http.put(PATH, content=content, headers=headers)
    codes = {
        400: {"malformed_json"},
        415: {"unsupported_media_type"},
        422: {"invalid_request", "invalid_schema"},
    }
    assert response.status_code == status, response.text
    assert code(response) in codes[status]
    assert rig.http.get(PATH).status_code == 404
    body: dict[str, Any] = response.json()
    return body


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no body; send JSON"),
        (b" ", "no body; send JSON"),
        (b"{", "line 1, column 2"),
        (b'{"spec": {},\n  "metadata" 1}', "line 2, column 14"),
        (b'{"spec": {}} x', "line 1, column 14"),
        (b"\xff\xfe", "not UTF-8 (at byte 1)"),
        ('{"spec":{}}'.encode("utf-16"), "not UTF-8 (at byte 1)"),
        (b"\xef\xbb\xbf{}", "line 1, column 1"),
        (b'{"spec":NaN}', "NaN is no number of JSON (line 1, column 9)"),
        (b'{"NaN": 1,\n"spec":{"a":-Infinity}}', "-Infinity is no number of JSON (line 2"),
        (b"a=1&b=2", "line 1, column 1"),
    ],
)
def test_a_body_that_is_not_json_is_400_and_the_place_is_named(
    shared_rig: Rig, content: bytes, words: str
) -> None:
    assert words in refused(shared_rig, content, status=400)["detail"]


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"[]",
        b'"x"',
        b"1",
        b'{"spec":{"partitions":1e999}}',
        b'{"spec":{"partitions":' + b"9" * 5000 + b"}}",
        b'{"spec":{"partitions":99999999999999999999}}',
        b'{"spec":{"partitions":2,"partitions":3}}',
        b"[" * 100_000,
        b'{"spec":' + b'{"a":' * 200 + b"1" + b"}" * 201,
        b'{"metadata":{"labels":{"a":"\\u0000"}}}',
        b'{"metadata":{"labels":{"\\ud800":"a"}}}',
        b'{"spec":{"config":{"a":"\\udfff"}}}',
        b'{"spec":{"config":{"\\u0000":"a"}}}',
        b'{"spec":{"schema":{"type":"record","name":"R","doc":"\\ud800","fields":[]}}}',
        b'{"metadata":{"labels":{"schema":"\\u0000"}},"spec":{"schema":{"type":"record"}}}',
    ],
)
def test_json_of_another_form_is_refused(shared_rig: Rig, content: bytes) -> None:
    refused(shared_rig, content)


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/xml", "application/jsonx"])
def test_a_body_needs_a_json_content_type(shared_rig: Rig, media_type: str) -> None:
    body = json.dumps({"spec": {"schema": SCHEMA}}).encode()
    problem = refused(shared_rig, body, {"Content-Type": media_type}, status=415)
    assert problem["errors"][0]["pointer"] == "header:Content-Type"
    assert media_type in problem["detail"]
    assert "send JSON with the header Content-Type: application/json" in problem["detail"]


def test_a_compressed_body_is_415(shared_rig: Rig) -> None:
    body = gzip.compress(json.dumps({"spec": {"schema": SCHEMA}}).encode())
    problem = refused(shared_rig, body, JSON | {"Content-Encoding": "gzip"}, status=415)
    assert "send it without Content-Encoding" in problem["detail"]


def test_a_request_without_a_body_is_refused_with_advice(shared_rig: Rig) -> None:
    response = shared_rig.http.put(PATH)
    assert (response.status_code, code(response)) == (400, "malformed_json")
    assert "no body; send JSON" in response.json()["detail"]


@pytest.mark.sample
@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"spce": {}}, "/spce"),
        ({"metadata": {"name": "x"}}, "/metadata/name"),
        ({"metadata": {"uid": "x"}}, "/metadata/uid"),
        ({"metadata": {"labels": {"a": 1}}}, "/metadata/labels/a"),
        ({"metadata": {"labels": {"a b": ""}}}, "/metadata/labels"),
        ({"metadata": {"labels": None}}, "/metadata/labels"),
        ({"metadata": None}, "/metadata"),
        ({"spec": {"partitons": 2}}, "/spec/partitons"),
        ({"spec": {"partitions": 0}}, "/spec/partitions"),
        ({"spec": {"partitions": -1}}, "/spec/partitions"),
        ({"spec": {"partitions": 10_001}}, "/spec/partitions"),
        ({"spec": {"partitions": "4"}}, "/spec/partitions"),
        ({"spec": {"partitions": True}}, "/spec/partitions"),
        ({"spec": {"partitions": 1.5}}, "/spec/partitions"),
        ({"spec": {"partitions": None}}, "/spec/partitions"),
        ({"spec": {"pinned": "yes"}}, "/spec/pinned"),
        ({"spec": {"format": "csv"}}, "/spec/format"),
        ({"spec": {"replication": 0}}, "/spec/replication"),
        ({"spec": {"replication": 40_000}}, "/spec/replication"),
        ({"spec": {"retention": {"ms": -2}}}, "/spec/retention/ms"),
        ({"spec": {"retention": {"bytes": 2**63}}}, "/spec/retention/bytes"),
        ({"spec": {"retention": {"s": 1}}}, "/spec/retention/s"),
        ({"spec": {"config": {"a": 1}}}, "/spec/config/a"),
        ({"spec": {"heartbeat": {"interval_ms": 99}}}, "/spec/heartbeat/interval_ms"),
        ({"spec": {"idle_ms": 59_999}}, "/spec/idle_ms"),
        ({"spec": {"idle_ms": 2**60}}, "/spec/idle_ms"),
        ({"spec": {"idle_ms": "7d"}}, "/spec/idle_ms"),
        ({"spec": {"heartbeat": {"timeout_ms": 3_600_001}}}, "/spec/heartbeat/timeout_ms"),
        ({"spec": {"schema": "long"}}, "/spec/schema"),
        ({"spec": {"schema": None}}, "/spec/schema"),
        ({"spec": {"schema": {}}}, "/spec/schema"),
        ({"spec": {"schema": {"type": "long"}}}, "/spec/schema"),
    ],
)
def test_an_invalid_field_is_named(shared_rig: Rig, body: dict[str, Any], pointer: str) -> None:
    problem = refused(shared_rig, json.dumps(body).encode())
    assert [error["pointer"] for error in problem["errors"]] == [pointer]


@pytest.mark.parametrize("name", ["a b", "ä", "a\0", "%2E", "sluiceway.x", "x" * 241, "%"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_an_invalid_name_is_refused_with_the_rule(shared_rig: Rig, method: str, name: str) -> None:
    path = f"/v1/channels/{quote(name, safe='')}"
    body = {"spec": {"schema": SCHEMA}} if method == "PUT" else None
    query = {"uid": "0" * 32} if method == "DELETE" else None
    response = shared_rig.http.request(method, path, json=body, params=query)
    assert (response.status_code, code(response)) == (422, "invalid_request")
    (error,) = response.json()["errors"]
    assert error["pointer"] == "path:name"


@pytest.mark.parametrize(
    "path", ["/index", "/v1/nothing", "/v1/channels/", "/v1/channels/a/b", "/%ff"]
)
def test_an_unknown_path_is_a_problem_response(shared_rig: Rig, path: str) -> None:
    response = shared_rig.http.get(path)
    assert (response.status_code, code(response)) == (404, "not_found")


def test_an_unknown_method_names_the_known_ones(shared_rig: Rig) -> None:
    response = shared_rig.http.patch(PATH)
    assert (response.status_code, code(response)) == (405, "method_not_allowed")
    assert response.headers["allow"] == "DELETE, GET, HEAD, PUT"


def test_unknown_query_parameters_are_refused_everywhere(shared_rig: Rig) -> None:
    for method, path in (("GET", PATH), ("PUT", PATH), ("GET", "/livez"), ("GET", "/metrics")):
        response = shared_rig.http.request(method, path, params={"wiat": 1})
        assert (response.status_code, code(response)) == (422, "invalid_request")
        assert response.json()["errors"][0]["pointer"] == "query:wiat"


def test_a_body_over_the_limit_is_refused_announced_or_not(
    database: Database, database_url: str
) -> None:
    with running(database, database_url, max_body_bytes=2000) as rig:
        pad = b" " * 2001
        announced = rig.http.put(PATH, content=pad, headers=JSON)
        assert (announced.status_code, code(announced)) == (413, "body_too_large")
        chunked = rig.http.put(PATH, content=iter([pad[:1000]] * 3), headers=JSON)
        assert (chunked.status_code, code(chunked)) == (413, "body_too_large")
        body = json.dumps({"spec": {"schema": SCHEMA}}).encode()
        fitting = body + b" " * (2000 - len(body))
        assert rig.http.put(PATH, content=fitting, headers=JSON).status_code == 201
        assert rig.http.put(PATH, content=iter([fitting]), headers=JSON).status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"PUT /v1/channels/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"PUT /v1/channels/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1/channels/\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x00\x01\x02\r\n\r\n",
    ],
)
def test_other_protocols_get_400_or_a_closed_connection(shared_rig: Rig, raw: bytes) -> None:
    host, port = shared_rig.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(raw)
        assert connection.recv(4096).startswith((b"HTTP/1.1 4", b""))
    assert shared_rig.http.get("/livez").status_code == 200
