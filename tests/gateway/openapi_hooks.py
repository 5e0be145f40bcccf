"""Hooks for Schemathesis, which test_openapi.py runs in a separate process."""

import itertools
import json
import os
from typing import Any

import schemathesis
from schemathesis import Case, CheckContext, GenerationMode, HookContext, Response
from schemathesis.generation.meta import TestPhase

KAFKA_IS = os.environ["KAFKA_IS"]
CHANNELS = json.loads(os.environ["CHANNELS"])
"""The specs and uids of existing channels, by name."""
PLAIN, EXACTLY_ONCE = sorted(CHANNELS)
_ENDS = ("close_channel", "delete_channel")
#: Operations that create something, with the fields that are enough for success.
_REQUIRED = {
    "attach_endpoint": ("uid", "id", "session", "role"),
    "open_batch": ("uid", "key", "owner", "instance"),
}
_NUMBERS = itertools.count(1)
_MEMBER = {"group": "fuzzers", "index": 0, "size": 1}


@schemathesis.hook
def map_case(_context: HookContext, case: Case) -> Case:
    """Send half of the well-formed requests to existing channels, and let most of them succeed.

    New channels have few partitions: each takes files of the broker that all tests share.
    """
    if case.meta is None:
        return case
    if "name" not in case.path_parameters:
        return case
    operation = case.operation.definition.raw["operationId"]
    name = str(case.path_parameters.get("name", ""))
    linked = case.meta.phase.name is TestPhase.STATEFUL
    if operation in _ENDS:
        # Later requests need the channel.
        name = case.path_parameters["name"] = "ended"
    elif linked or (name not in CHANNELS and len(name) % 2):
        name = EXACTLY_ONCE if "batch" in operation or "slice" in operation else PLAIN
        case.path_parameters["name"] = name
    if case.meta.generation.mode is not GenerationMode.POSITIVE:
        return case
    if "wait" in case.query:
        case.query["wait"] = 0.1
    channel = CHANNELS.get(name)
    case.body = _with_integers(case.body)
    if not isinstance(case.body, dict):
        return case
    if channel and "uid" in case.body:
        case.body["uid"] = channel["uid"]
    if linked and operation in _REQUIRED:
        required = {name: case.body[name] for name in _REQUIRED[operation] if name in case.body}
        number = f"{next(_NUMBERS):032x}"
        identity = {"key": number} if operation == "open_batch" else {"id": number, **_MEMBER}
        case.body = required | identity
        case.query.pop("listener", None)
    spec = case.body.get("spec")
    if channel and isinstance(spec, dict):
        case.body = {"spec": channel["spec"]}
    elif isinstance(spec, dict):
        if len(str(case.body)) % 3:
            spec["schema"] = CHANNELS[PLAIN]["spec"]["schema"]
        if "partitions" in spec:
            spec["partitions"] = min(spec["partitions"], 4)
    return case


def _with_integers(value: Any) -> Any:
    """Replace numbers such as 1.0, which are integers to JSON schemas but not to the gateway."""
    if isinstance(value, dict):
        return {key: _with_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@schemathesis.check
def no_error_but_kafka_away(_context: CheckContext, response: Response, case: Case) -> None:
    """The only server error allowed: Kafka is needed and unavailable."""
    if response.status_code < 500:
        return
    assert response.status_code == 503, response.text
    assert KAFKA_IS == "down", response.text
    adopts = case.method == "PUT" and "topic" in str(case.body)
    assert adopts or case.path.startswith(("/v1/cluster", "/readyz")), response.text
