"""Hooks of Schemathesis, which runs in its own process: see test_openapi.py."""

import json
import os

import schemathesis
from schemathesis import Case, CheckContext, GenerationMode, HookContext, Response

GIVEN = json.loads(os.environ["GIVEN"])


@schemathesis.hook
def map_case(_context: HookContext, case: Case) -> Case:
    """Have half of the well-formed requests meet the channel, and some make others.

    Those have few partitions: each takes files of the broker that all tests share.
    """
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return case
    if len(str(case.path_parameters.get("name", ""))) % 2:
        case.path_parameters["name"] = GIVEN["channel"]
    spec = case.body.get("spec") if isinstance(case.body, dict) else None
    if isinstance(spec, dict):
        if len(str(case.body)) % 3:
            spec["schema"] = GIVEN["schema"]
        if "partitions" in spec:
            spec["partitions"] = min(spec["partitions"], 4)
    return case


@schemathesis.check
def no_error_but_kafka_away(_context: CheckContext, response: Response, case: Case) -> None:
    """The one error of a server that is right: Kafka is away, and had to be asked."""
    if response.status_code < 500:
        return
    assert response.status_code == 503, response.text
    assert GIVEN["kafka_is"] == "down", response.text
    adopts = case.method == "PUT" and "topic" in str(case.body)
    assert adopts or case.path.startswith(("/v1/cluster", "/readyz")), response.text
