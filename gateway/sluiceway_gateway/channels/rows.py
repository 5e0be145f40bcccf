"""Mapping between channels and table rows."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Row, Select, bindparam, select, update

from sluiceway_gateway.channels.model import (
    Channel,
    ChannelSpec,
    Compatibility,
    Condition,
    Format,
    Heartbeat,
    Phase,
    Retention,
    TopicRef,
)
from sluiceway_gateway.db.schema import channels, schemas

#: Changes a channel, unless somebody has since it was read; its parameters are columns' values with
#: those of `as_it_was`.
CHANGE = update(channels).where(
    channels.c.uid == bindparam("was_uid"),
    channels.c.generation == bindparam("was_generation"),
    channels.c.revision == bindparam("was_revision"),
    channels.c.phase == bindparam("was_phase"),
)


def selection() -> Select[Any]:
    """Select whole channels, with their schemas."""
    return select(channels, schemas.c.definition).join(
        schemas, schemas.c.id == channels.c.schema_id
    )


def channel_of(row: Row[Any]) -> Channel:
    """Return the channel of a row of `selection()`."""
    return Channel(
        name=row.name,
        uid=row.uid,
        labels=row.labels,
        generation=row.generation,
        revision=row.revision,
        created_at=row.created_at,
        spec=ChannelSpec(
            schema=row.definition,
            compatibility=Compatibility(row.compatibility),
            format=Format(row.format),
            partitions=row.partitions,
            pinned=row.pinned,
            replication=row.replication,
            retention=Retention(ms=row.retention_ms, bytes=row.retention_bytes),
            config=row.config,
            heartbeat=Heartbeat(
                interval_ms=row.heartbeat_interval_ms, timeout_ms=row.heartbeat_timeout_ms
            ),
            mirrored=row.mirrored,
            idle_ms=row.idle_ms,
        ),
        schema_id=row.schema_id,
        schema_version=row.schema_version,
        phase=Phase(row.phase),
        observed_generation=row.observed_generation,
        conditions=tuple(_condition_of(each) for each in row.conditions),
        topic=TopicRef(name=row.topic_name, id=row.topic_id, partitions=row.topic_partitions),
        adopted=row.adopted,
        keep_topic=row.keep_topic,
    )


def values_of(channel: Channel) -> dict[str, Any]:
    """Return the columns of a channel; when it is due, and who uses it, is not part of them."""
    return {
        "uid": channel.uid,
        "name": channel.name,
        "labels": dict(channel.labels),
        "generation": channel.generation,
        "revision": channel.revision,
        "created_at": channel.created_at,
        "schema_id": channel.schema_id,
        "schema_version": channel.schema_version,
        "compatibility": str(channel.spec.compatibility),
        "format": str(channel.spec.format),
        "partitions": channel.spec.partitions,
        "pinned": channel.spec.pinned,
        "replication": channel.spec.replication,
        "retention_ms": channel.spec.retention.ms,
        "retention_bytes": channel.spec.retention.bytes,
        "config": dict(channel.spec.config),
        "heartbeat_interval_ms": channel.spec.heartbeat.interval_ms,
        "heartbeat_timeout_ms": channel.spec.heartbeat.timeout_ms,
        "mirrored": channel.spec.mirrored,
        "idle_ms": channel.spec.idle_ms,
        "phase": str(channel.phase),
        "observed_generation": channel.observed_generation,
        "conditions": _conditions_of(channel.conditions),
        "topic_name": channel.topic.name,
        "topic_id": channel.topic.id,
        "topic_partitions": channel.topic.partitions,
        "adopted": channel.adopted,
        "keep_topic": channel.keep_topic,
    }


def as_it_was(channel: Channel) -> dict[str, Any]:
    """Return by what `CHANGE` knows the channel, as it was read."""
    stored = {
        "uid": channel.uid,
        "generation": channel.generation,
        "revision": channel.revision,
        "phase": str(channel.phase),
    }
    return {f"was_{name}": value for name, value in stored.items()}


def in_phases(phases: Collection[Phase]) -> ColumnElement[bool]:
    """Tell whether a row is in one of these phases."""
    return channels.c.phase.in_([str(each) for each in phases])


def _conditions_of(conditions: tuple[Condition, ...]) -> list[dict[str, str]]:
    return [
        {
            "type": each.type,
            "status": each.status,
            "reason": each.reason,
            "message": each.message,
            "last_transition_at": each.last_transition_at.isoformat(),
        }
        for each in conditions
    ]


def _condition_of(value: dict[str, Any]) -> Condition:
    status: Literal["True", "False", "Unknown"] = value["status"]
    return Condition(
        type=value["type"],
        status=status,
        reason=value["reason"],
        message=value["message"],
        last_transition_at=datetime.fromisoformat(value["last_transition_at"]),
    )
