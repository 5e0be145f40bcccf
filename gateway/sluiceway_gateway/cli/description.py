"""A channel as JSON, in the form that the gateway gives it."""

from datetime import timedelta
from typing import Any

from sluiceway.channel import Channel


def described(channel: Channel) -> dict[str, Any]:
    """Return the channel's metadata, spec and status."""
    return {
        "metadata": {
            "name": channel.name,
            "uid": channel.uid,
            "labels": dict(channel.labels),
            "generation": channel.generation,
            "created_at": channel.created_at.isoformat(),
        },
        "spec": {
            "schema": channel.schema.definition,
            "compatibility": channel.compatibility,
            "format": channel.format,
            "partitions": channel.partitions,
            "pinned": channel.pinned,
            "replication": channel.replication,
            "retention": channel.retention.to_json(),
            "config": dict(channel.config),
            "mirrored": channel.mirrored,
            "idle_ms": None if channel.idle is None else channel.idle // timedelta(milliseconds=1),
            "topic": {"name": channel.status.topic.name} if channel.adopted else None,
        },
        "status": {
            "phase": channel.status.phase,
            "observed_generation": channel.status.observed_generation,
            "conditions": [
                {
                    "type": each.type,
                    "status": each.status,
                    "reason": each.reason,
                    "message": each.message,
                    "last_transition_at": each.last_transition_at.isoformat(),
                }
                for each in channel.status.conditions
            ],
            "topic": {
                "name": channel.status.topic.name,
                "id": channel.status.topic.id,
                "partitions": channel.status.topic.partitions,
            },
        },
    }
