"""Responses of a newer gateway; requests of a newer client."""

import inspect
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from scripted_gateway import scripted
from sluiceway.api.channels import Control
from sluiceway.api.endpoints import EndpointCalls, EndpointEnd, PositionAdvance
from sluiceway.api.models import ChannelResource, ChannelSpec
from sluiceway.api.parsing import JsonNode, parse, problem
from sluiceway.errors import Conflict, GatewayUnavailable
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.settings import Settings

pytestmark = pytest.mark.long

DEFINITION = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
VERSION = {"id": 1, "version": 1, "definition": DEFINITION, "created_at": "2026-01-01T00:00:00Z"}
RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "recorded" / "client-0.1.0.json").read_text()
)
#: These hold data, not fields.
MAPS = {"labels", "config", "kafka", "schema", "definition", "ends"}


def sample(status: int, *keys: str) -> Any:
    """Return the last recorded response with these keys, with a time where it had one."""
    bodies = [
        exchange["response"]["json"]
        for exchange in RECORDED
        if exchange["response"]["status"] == status
        and set(keys) <= exchange["response"]["json"].keys()
    ]
    return json.loads(json.dumps(bodies[-1]).replace("<time>", "2026-01-01T00:00:00Z"))


CHANNEL = sample(200, "metadata", "spec", "status")
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "channel": (CHANNEL, {"name": "a"}),
    "channels": ({"items": [CHANNEL], "next_cursor": None}, {}),
    "wait_for_change": (CHANNEL, {"seen": parse(ChannelResource, JsonNode(CHANNEL)), "wait_s": 1}),
    "create": (CHANNEL, {"name": "a", "spec": ChannelSpec(), "labels": {}}),
    "ensure": (CHANNEL, {"name": "a", "spec": ChannelSpec(), "labels": {}}),
    "update": (CHANNEL, {"name": "a", "uid": "0", "spec": ChannelSpec(), "labels": {}}),
    "delete": (CHANNEL, {"name": "a", "uid": "0", "keep_topic": False}),
    "close_channel": (CHANNEL, {"name": "a", "uid": "0"}),
    "connection": (sample(200, "kafka"), {"name": "a", "access": "read"}),
    "schemas": ({"items": [VERSION]}, {"name": "a"}),
}
ID = "0" * 32
AT = "2026-01-01T00:00:00Z"
NAMED = {"name": "a", "uid": ID, "phase": "ready"}
PACE = {"lag_messages": 5, "lag_seconds": None, "progress": "ok"}
CREW = {"live": 1, "lost": 0, "failed": 0, "finished": 0}
LINE = {"channel": NAMED, "sampled_at": AT, "writers": CREW, "readers": CREW, "write_rate": 1.5}
LINE |= PACE
PLACE = {"id": ID, "role": "writer", "group": "g", "index": 0, "size": 2}
FATE = {"state": "error", "health": "lost", "cause": "why", "ends": {"0": 7}, "lost_at": None}
ENDPOINT = {**PLACE, **FATE, "payload": None}
ATTACHED = {
    "endpoint": {"id": ID, "epoch": 3, "generation": 1, "partitions": [0, 2]},
    "heartbeat": {"interval_ms": 2000, "timeout_ms": 120_000},
    "positions": [{"partition": 0, "offset": 5, "record": 0}],
    "connection": sample(200, "kafka"),
}
WORD = {"id": ID, "status": "ok", "reason": None, "asked": None, "endpoints_revision": 4}
BEAT = {"next_ms": 2000, "endpoints": [{**WORD, "counterparts": [ENDPOINT]}]}
ATTACH = {"uid": ID, "instance": ID, "session": ID, "role": "reader", "membership": None}
GROUP = {"group": "g", "index": None, "mode": "shared", "size": 2, "generation": 1, "members": 1}
GROUP |= {"lag_records": 5, "read_rate": 1.0, "trend": None, "drain_s": 5.0, **PACE}
GROUP["partitions"] = [{"partition": 0, "committed": 1, "position": 2, "end": 7, **PACE}]
STATUS = {
    "channel": NAMED,
    "sampled_at": AT,
    "writers": [ENDPOINT],
    "readers": [{**ENDPOINT, **PACE, "role": "reader"}],
    "groups": [GROUP],
    "partitions": [{"partition": 0, "start": 0, "end": 7}],
    "write_rate": None,
}
BROKER = {"id": 1, "host": "kafka-1", "port": 9092, "rack": None}
CALLS |= {
    "status": (STATUS, {"name": "a"}),
    "statuses": ({"items": [LINE], "next_cursor": None}, {}),
    "status_page": ({"items": [LINE], "next_cursor": "c"}, {"seen": "x", "wait_s": 1}),
    "cluster": ({"cluster_id": "c", "controller_id": None, "brokers": [BROKER]}, {}),
    "offsets": (
        {
            "topic_id": "t",
            "partitions": [{"partition": 0, "begin_offset": 0, "offset": 7}],
            "partitions_unavailable": [],
        },
        {"name": "a"},
    ),
}
LACK = {"index": None, "partition": 0, "committed": None, "wanted": 5}
OF_CHANNEL = {"channel": "a", "uid": ID, "topic_id": "t"}
PLACES: dict[str, Any] = {**OF_CHANNEL, "group": "g", "positions": {}}
ADVANCE = PositionAdvance(
    **OF_CHANNEL, group="g", endpoint=ID, epoch=1, generation=1, number=1, before={}, after={}
)
END = EndpointEnd(uid=ID, epoch=1, state="closed")
SHARE = {"generation": 2, "taken": True, "has": None, "total": 4, "held": [0]}
SHARE |= {"partitions": [0, 2], "pending": [2], "positions": ATTACHED["positions"]}
POSITION = {"partition": 0, "offset": 5, "record": 0}
IMPORTED = {"partition": 0, "result": "imported", "kafka_offset": 5, "before": None}
IMPORTED |= {"after": POSITION, "begin_offset": 0, "end_offset": 7}
IMPORT = {"group": "g", "kafka_group": {"name": "k", "active": False}, "topic": "t", "members": 0}
IMPORT |= {"refusal": None, "partitions": [IMPORTED]}
ENDPOINT_CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "attach": (ATTACHED, {"channel": "a", **ATTACH}),
    "heartbeat": (BEAT, {"session": ID, "number": 1, "reports": [], "timeout_s": 1}),
    "endpoints": ({"items": [ENDPOINT], "next_cursor": None}, {"channel": "a"}),
    "committed": (
        {"positions": ATTACHED["positions"]},
        {"channel": "a", "group": "g", "index": None},
    ),
    "commit": ({"positions": []}, {"advance": ADVANCE}),
    "commit_progress": (
        {"passed": False, "known": True, "lacking": 1, "missing": [LACK]},
        {**OF_CHANNEL, "group": "g", "ends": {}, "wait_s": 0},
    ),
    "plan_import": (IMPORT, {"channel": "a", "group": "g", "kafka_group": "k"}),
    "import_offsets": (IMPORT, {"channel": "a", "group": "g", "uid": ID, "kafka_group": "k"}),
    "reset": ({"positions": []}, {**PLACES, "index": None, "reason": "r", "force": False}),
    "detach": (ENDPOINT, {"channel": "a", "instance": ID, "end": END, "timeout_s": 1}),
    "sync": (SHARE, {"channel": "a", "instance": ID, "uid": ID, "epoch": 1}),
    "resize": ({"generation": 3}, {"channel": "a", "group": "g", "uid": ID, "size": 2}),
    "remove": (ENDPOINT, {"channel": "a", "instance": ID, "uid": ID}),
    "transfer": (
        {"owner": "etl"},
        {"channel": "a", "group": "g", "uid": ID, "role": "reader", "owner": "etl", "reason": None},
    ),
}


def newer(value: Any, key: str = "") -> Any:
    """Return a response with a field that this client does not know in every object."""
    if isinstance(value, list):
        return [newer(child, key) for child in value]
    if not isinstance(value, dict):
        return value
    # In a connection and in a status, the schema is an object with fields.
    if key in MAPS and not (key == "schema" and "id" in value):
        return value
    return {name: newer(child, name) for name, child in value.items()} | {"since-then": {"x": [1]}}


def ask(call: str, response: Any, **arguments: Any) -> Any:
    """Make a call to a gateway that returns this response, and return the client's result."""
    with scripted() as server, closing(server.control()) as control:
        # `resize` first requests the generation; other calls take one response.
        for _ in range(2):
            server.response(200, response)
        owner = control.endpoints if call in ENDPOINT_CALLS else control
        result = getattr(owner, call)(**arguments)
        return list(result) if isinstance(result, Iterator) else result


@pytest.mark.parametrize("call", sorted([*CALLS, *ENDPOINT_CALLS]))
def test_new_fields_are_ignored_in_every_response(call: str) -> None:
    response, arguments = (CALLS | ENDPOINT_CALLS)[call]
    assert newer(response) != response
    assert ask(call, newer(response), **arguments) == ask(call, response, **arguments)


@pytest.mark.parametrize(("kind", "tried"), [(Control, CALLS), (EndpointCalls, ENDPOINT_CALLS)])
def test_every_call_of_the_client_is_covered_here(kind: type, tried: dict[str, Any]) -> None:
    public = {
        name
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in ("close", "clone")
    }
    # A search returns lines of JSON as they are.
    assert public - {"search"} == tried.keys()


def test_an_unknown_problem_is_mapped_by_its_status() -> None:
    told = {"code": "since_then", "detail": "why", "retriable": False, "errors": [], "more": 1}
    request = httpx.Request("GET", "http://gateway.invalid")
    conflict = problem(httpx.Response(409, json=told, request=request))
    assert (type(conflict), conflict.code) == (Conflict, "since_then")
    away = problem(httpx.Response(503, json=told, request=request))
    assert isinstance(away, GatewayUnavailable)


def test_requests_with_unknown_fields_are_refused(tmp_path: Path) -> None:
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'gateway.db'}"))
    document = app.openapi()
    bodies = [
        content["schema"]
        for path in document["paths"].values()
        for operation in path.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
    ]
    assert bodies
    todo, seen = [body["$ref"].rpartition("/")[2] for body in bodies], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        schema = document["components"]["schemas"][name]
        assert "enum" in schema or schema.get("additionalProperties") is False, name
        todo += [reference.rpartition("/")[2] for reference in references(schema)]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for child in value.values():
            yield from references(child)
    elif isinstance(value, list):
        for child in value:
            yield from references(child)
