"""Examples of the OpenAPI document: request bodies, and the requests that follow on responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_CHANNEL = "5f0c3a1e9b7d4c62a8e1f3b5d7092c46"
_READER = "0b8e6d2f4a1c4e7f9d3b5a7c9e1f2d4b"
_SESSION = "c3d5e7f9a1b34c5d8e6f7a9b0c1d2e3f"
_TOPIC = "qM3Vw1pVTWuGkq0c5yq0Xg"
_POSITION = {"partition": 0, "offset": 1200, "record": 0}

#: Examples of request bodies by operation: a channel of landings, a reader of a group, a writer
#: that ends.
EXAMPLES: Mapping[str, Any] = {
    "create_channel": {
        "metadata": {"labels": {"team": "ops"}},
        "spec": {
            "schema": {
                "type": "record",
                "name": "Landing",
                "fields": [
                    {"name": "carrier", "type": "string"},
                    {"name": "delay", "type": ["null", "double"], "default": None},
                ],
            },
            "partitions": 4,
            "retention": {"ms": 604_800_000},
        },
    },
    "close_channel": {"uid": _CHANNEL},
    "attach_endpoint": {
        "uid": _CHANNEL,
        "id": _READER,
        "session": _SESSION,
        "role": "reader",
        "group": "delays",
        "index": 0,
        "size": 4,
    },
    "send_heartbeat": {
        "session": _SESSION,
        "beat": 1,
        "endpoints": [
            {
                "id": _READER,
                "epoch": 1,
                "state": "started",
                "counters": {"records": 1200},
                "positions": {"0": [1200, 0]},
            }
        ],
    },
    "sync_endpoint": {"uid": _CHANNEL, "epoch": 1, "take": 2, "has": None},
    "detach_endpoint": {
        "uid": _CHANNEL,
        "epoch": 1,
        "state": "closed",
        "ends": {"0": 1200, "1": 1187},
    },
    "commit_offsets": {
        "uid": _CHANNEL,
        "id": _READER,
        "epoch": 1,
        "generation": 1,
        "topic_id": _TOPIC,
        "number": 1,
        "positions": [_POSITION],
    },
    "advance_offsets": {
        "uid": _CHANNEL,
        "topic_id": _TOPIC,
        "before": [{"partition": 0, "offset": 1000, "record": 0}],
        "positions": [_POSITION],
    },
    "reset_offsets": {
        "uid": _CHANNEL,
        "topic_id": _TOPIC,
        "positions": [{"partition": 0, "offset": 0, "record": 0}],
        "reason": "wrong exchange rates on Monday",
    },
    "import_offsets": {"uid": _CHANNEL, "kafka_group": "billing"},
    "wait_for_offsets": {"uid": _CHANNEL, "topic_id": _TOPIC, "offsets": {"0": 1200}},
    "transfer_group": {"uid": _CHANNEL, "owner": "etl", "reason": "another team"},
    "transfer_batches": {"uid": _CHANNEL, "writer": "import", "owner": "etl"},
    "resize_group": {"uid": _CHANNEL, "size": 8, "generation": 1},
    "open_batch": {
        "uid": _CHANNEL,
        "key": "flights-2026-11-24",
        "owner": "import",
        "instance": "run-1",
    },
    "upload_slice": {"uid": _CHANNEL, "instance": "run-1", "manifest": {"0": [[120, 140]]}},
    "commit_batch": {
        "uid": _CHANNEL,
        "instance": "run-1",
        "digest": "8102b58c615ad75b76d3a1adef5794efe679539027bad41f444cf4c69fd676d6",
        "manifest": {"0": [[120, 140]]},
        "records": 20,
        "counts": {"0": 20},
    },
    "write_messages": {
        "uid": _CHANNEL,
        "records": [{"carrier": "UA", "delay": 12.5}, {"carrier": "DL"}],
    },
    "abort_batch": {"uid": _CHANNEL, "instance": "run-1", "cause": "the job failed"},
    "repair_ledger": {"uid": _CHANNEL, "lost_from": {"0": 1180}, "reason": "a disk failed"},
    "renew_batches": {
        "uid": _CHANNEL,
        "batches": [{"id": "0" * 32, "instance": "run-1"}],
        "lease_ms": 60000,
    },
}


@dataclass(frozen=True, kw_only=True)
class Link:
    """A request that a response gives parameters and parts of the body for."""

    operation: str
    parameters: Mapping[str, str]
    body: Mapping[str, Any] = field(default_factory=dict)


_OF_CHANNEL = {"name": "$request.path.name"}
_OF_ENDPOINT = _OF_CHANNEL | {"id": "$response.body#/endpoint/id"}
_OF_GROUP = _OF_CHANNEL | {"group": "$request.body#/group"}
_EPOCH = {"uid": "$request.body#/uid", "epoch": "$response.body#/endpoint/epoch"}
_OF_BATCH = _OF_CHANNEL | {"id": "$response.body#/id"}
_INSTANCE = {"uid": "$request.body#/uid", "instance": "$request.body#/instance"}


def _from_channel(pointer: str) -> list[Link]:
    """Return the links of a response with a channel at this pointer."""
    name = {"name": f"$response.body#{pointer}/metadata/name"}
    uid = {"uid": f"$response.body#{pointer}/metadata/uid"}
    reads = ("get_channel", "get_connection", "get_channel_status", "list_messages")
    changes = ("attach_endpoint", "open_batch", "write_messages", "close_channel")
    return [
        *(Link(operation=operation, parameters=name) for operation in reads),
        *(Link(operation=operation, parameters=name, body=uid) for operation in changes),
        Link(operation="delete_channel", parameters=name | uid),
    ]


#: Requests that follow on a response, as links of the document: they take ids and epochs from it.
LINKS: Mapping[str, Sequence[Link]] = {
    "create_channel": _from_channel(""),
    "list_channels": _from_channel("/items/0"),
    "get_connection": [
        Link(operation="get_schema", parameters={"schema_id": "$response.body#/schema/id"})
    ],
    "attach_endpoint": [
        Link(operation="get_endpoint", parameters=_OF_ENDPOINT),
        Link(operation="dismiss_endpoint", parameters=_OF_ENDPOINT),
        Link(operation="sync_endpoint", parameters=_OF_ENDPOINT, body=_EPOCH),
        Link(operation="detach_endpoint", parameters=_OF_ENDPOINT, body=_EPOCH),
        Link(operation="get_offsets", parameters=_OF_GROUP),
        Link(
            operation="commit_offsets",
            parameters=_OF_GROUP,
            body=_EPOCH
            | {
                "id": "$response.body#/endpoint/id",
                "generation": "$response.body#/endpoint/generation",
                "topic_id": "$response.body#/connection/topic/id",
            },
        ),
        Link(
            operation="send_heartbeat",
            parameters={},
            body={
                "session": "$request.body#/session",
                "endpoints": [
                    {
                        "id": "$response.body#/endpoint/id",
                        "epoch": "$response.body#/endpoint/epoch",
                        "state": "started",
                    }
                ],
            },
        ),
    ],
    "open_batch": [
        Link(operation="upload_slice", parameters=_OF_BATCH, body=_INSTANCE),
        Link(operation="commit_batch", parameters=_OF_BATCH, body=_INSTANCE),
        Link(operation="abort_batch", parameters=_OF_BATCH, body=_INSTANCE),
    ],
    "list_messages": [
        Link(
            operation="list_messages",
            parameters=_OF_CHANNEL | {"cursor": "$response.body#/next_cursor"},
        )
    ],
}
