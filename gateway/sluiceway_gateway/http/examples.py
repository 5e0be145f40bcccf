"""Examples of request bodies for the OpenAPI document, by operation.

Together they tell one story: a channel of landings, a reader of a group, a writer that ends.
"""

from collections.abc import Mapping
from typing import Any

_CHANNEL = "5f0c3a1e9b7d4c62a8e1f3b5d7092c46"
_READER = "0b8e6d2f4a1c4e7f9d3b5a7c9e1f2d4b"
_SESSION = "c3d5e7f9a1b34c5d8e6f7a9b0c1d2e3f"
_TOPIC = "qM3Vw1pVTWuGkq0c5yq0Xg"
_POSITION = {"partition": 0, "offset": 1200, "record": 0}

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
    "wait_for_offsets": {"uid": _CHANNEL, "topic_id": _TOPIC, "offsets": {"0": 1200}},
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
    "abort_batch": {"uid": _CHANNEL, "instance": "run-1", "cause": "the job failed"},
    "renew_batches": {
        "uid": _CHANNEL,
        "batches": [{"id": "0" * 32, "instance": "run-1"}],
        "lease_ms": 60000,
    },
}
