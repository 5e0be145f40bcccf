"""Responses of the gateway parsed into models, and requests built from them."""

import copy
import json
import pickle
import re
from datetime import timedelta
from typing import Any

import pytest

from scripted_gateway import CHANNEL
from sluiceway.api.endpoints import EndpointEnd, HeartbeatReply, Position
from sluiceway.api.ledger import Committed
from sluiceway.api.models import ChannelResource, ChannelSpec, Connection, Retention
from sluiceway.api.parsing import JsonNode, parse, to_json
from sluiceway.errors import IncompatibleGateway, OptionError

CONNECTION: dict[str, Any] = {
    "channel": {"name": "flights", "uid": "0" * 32, "generation": 2},
    "format": "avro",
    "schema": {"id": 1, "version": 1, "definition": CHANNEL["spec"]["schema"]},
    "topic": {"name": "t", "id": "id", "partitions": 4, "max_message_bytes": 1000},
    "kafka": {"bootstrap.servers": "127.0.0.1:9092", "sasl.password": "hush"},
}

COMMITTED: dict[str, Any] = {
    "uid": "0" * 32,
    "topic_id": "t",
    "number": 7,
    "stable": {"0": 20},
    "visible_end": {"0": 30},
    "runs": {"0": [[2, 5]]},
}
EARLIER = {"id": 4, "version": 1, "definition": {"type": "record", "name": "F", "fields": []}}
LATER = {"id": 9, "version": 2, "definition": CHANNEL["spec"]["schema"]}


def changed(response: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    response = copy.deepcopy(response)
    *parents, last = path.split(".")
    place = response
    for parent in parents:
        place = place[parent]
    place[last] = value
    return response


def test_a_channel_is_read_with_its_etag() -> None:
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "BrokerUnavailable",
        "message": "no broker answers",
        "last_transition_at": "2026-01-02T03:04:05Z",
    }
    response = changed(CHANNEL, "status.conditions", [condition])
    channel = parse(ChannelResource, JsonNode(response), etag='"0.2.3"')
    assert (channel.name, channel.partitions, channel.etag) == ("flights", 4, '"0.2.3"')
    assert channel.retention.ms == 1000
    assert channel.created_at.tzinfo is not None
    ready = channel.status.condition("Ready")
    assert ready is not None
    assert ready.reason == "BrokerUnavailable"
    assert channel.status.explain() == "no broker answers"


def test_fields_of_a_newer_gateway_are_ignored() -> None:
    newer = changed(CHANNEL, "spec.compression", "zstd")
    newer = changed(newer, "metadata.annotations", {"a": 1})
    assert parse(ChannelResource, JsonNode(newer)) == parse(ChannelResource, JsonNode(CHANNEL))
    assert parse(Connection, JsonNode(changed(CONNECTION, "lease", 7))) == parse(
        Connection, JsonNode(CONNECTION)
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.uid", None),
        ("metadata.created_at", "yesterday"),
        ("metadata.labels", {"a": 1}),
        ("spec.partitions", "4"),
        ("spec.pinned", 0),
        ("status.conditions", {}),
        ("status.topic", None),
    ],
)
def test_a_malformed_response_is_rejected_with_the_path(path: str, value: Any) -> None:
    with pytest.raises(IncompatibleGateway, match=path.replace(".", r"\.")):
        parse(ChannelResource, JsonNode(changed(CHANNEL, path, value)))


@pytest.mark.parametrize("response", [None, [], "text", {}])
def test_a_response_that_is_not_a_channel_is_rejected(response: object) -> None:
    with pytest.raises(IncompatibleGateway, match="is missing"):
        parse(ChannelResource, JsonNode(response))


@pytest.mark.parametrize(
    ("kind", "path", "value", "fault"),
    [
        (HeartbeatReply, "endpoints", [{"id": "1"}], "$.endpoints[0].status is missing"),
        (HeartbeatReply, "endpoints", [{"status": "ok"}], "$.endpoints[0].id is missing"),
        (HeartbeatReply, "endpoints", {}, "$.endpoints is dict, not list"),
        (Committed, "runs", {"3": [[0, 2], [4]]}, "$.runs.3[1] is not [first, end]"),
        (Committed, "runs", {"x": []}, "$.runs.x is not a partition number"),
        (Committed, "stable", {"3": "4"}, "$.stable.3 is str, not int"),
    ],
)
def test_a_malformed_value_is_named_by_its_path(
    kind: type[Any], path: str, value: Any, fault: str
) -> None:
    document = COMMITTED if kind is Committed else {"next_ms": 1, "endpoints": []}
    assert parse(kind, JsonNode(document))
    with pytest.raises(IncompatibleGateway, match=re.escape(f": {fault}. ")):
        parse(kind, JsonNode(changed(document, path, value)))


def test_a_request_is_read_back_as_it_was() -> None:
    """As the driver does with ends that writes have left to it."""
    ended = EndpointEnd(uid="u", epoch=1, state="closed", ends={0: 7, 10: 2}, positions={3: (5, 2)})
    document = json.loads(json.dumps(to_json(ended)))
    assert document == {
        "uid": "u",
        "epoch": 1,
        "state": "closed",
        "ends": {"0": 7, "10": 2},
        "positions": {"3": [5, 2]},
    }
    assert parse(EndpointEnd, JsonNode(document)) == ended


def test_a_spec_has_the_fields_to_set_and_0_removes_limits() -> None:
    spec = ChannelSpec(topic="t", pinned=False, idle=timedelta(0), max_partitions=0)
    assert to_json(spec) == {
        "topic": {"name": "t"},
        "pinned": False,
        "idle_ms": None,
        "max_partitions": None,
    }
    spec = ChannelSpec(retention=Retention(ms=5), idle=timedelta(minutes=2), config={"a": "b"})
    assert to_json(spec) == {
        "retention": {"ms": 5, "bytes": None},
        "idle_ms": 120_000,
        "config": {"a": "b"},
    }


def test_a_connection_can_be_pickled_and_shows_no_credentials() -> None:
    connection = parse(Connection, JsonNode(CONNECTION))
    assert pickle.loads(pickle.dumps(connection)) == connection  # noqa: S301
    assert "hush" not in repr(connection)


def test_a_connection_names_all_schemas_that_messages_may_have() -> None:
    response = changed(changed(CONNECTION, "schema", LATER), "schemas", [EARLIER, LATER])
    connection = parse(Connection, JsonNode(response))
    assert [(schema.id, schema.version) for schema in connection.schemas] == [(4, 1), (9, 2)]
    assert (connection.schema_id, connection.schema_definition) == (9, LATER["definition"])


def test_a_connection_of_an_older_gateway_has_its_one_schema() -> None:
    connection = parse(Connection, JsonNode(changed(CONNECTION, "schema", LATER)))
    assert [(schema.id, schema.version) for schema in connection.schemas] == [(9, 2)]
    assert connection.schemas[0].definition == LATER["definition"]


@pytest.mark.parametrize("bad", [-1, 1.0, "1", None, True])
def test_a_position_needs_whole_numbers_from_0(bad: Any) -> None:
    with pytest.raises(OptionError, match="offset of a position"):
        Position(offset=bad)
    with pytest.raises(OptionError, match="records of a position"):
        Position(offset=0, records=bad)


def test_positions_of_a_partition_are_ordered() -> None:
    assert Position(offset=1, records=9) < Position(offset=2) < Position(offset=2, records=1)
