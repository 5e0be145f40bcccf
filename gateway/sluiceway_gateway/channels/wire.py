"""Channels as JSON: how answers look, and what all requests have in common."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sluiceway_gateway.channels.change import UNSET
from sluiceway_gateway.channels.model import Channel

Uid = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", examples=["0" * 32])]


class Asked(BaseModel):
    """A part of a request: nothing but what is known, in exactly its types."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def given(self, field: str) -> Any:
        """Return the field's value if the request has it, else UNSET."""
        return getattr(self, field) if field in self.model_fields_set else UNSET


class Metadata(BaseModel):
    """Which channel it is."""

    name: str
    uid: str
    labels: dict[str, str]
    generation: int
    created_at: datetime


class Retention(BaseModel):
    """How long records are kept."""

    ms: int | None
    bytes: int | None


class Beat(BaseModel):
    """How often endpoints beat, and after how long without one is lost."""

    interval_ms: int
    patience_ms: int


class AdoptedTopic(BaseModel):
    """A topic that was there before the channel."""

    name: str


class Spec(BaseModel):
    """What is wanted."""

    schema_: dict[str, Any] = Field(alias="schema")
    compatibility: Literal["none", "backward", "forward", "full"]
    format: Literal["avro", "arrow", "bytes"]
    partitions: int
    pinned: bool
    replication: int | None
    retention: Retention
    config: dict[str, str]
    beat: Beat
    mirrored: bool
    idle_ms: int | None = Field(description="How long nobody uses it before it is closed")
    topic: AdoptedTopic | None = Field(description="The topic that was adopted")


class ConditionBody(BaseModel):
    """One statement about the channel."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    last_transition_at: datetime


class TopicBody(BaseModel):
    """The channel's topic, as far as it is known."""

    name: str
    id: str | None
    partitions: int | None


class SchemaVersion(BaseModel):
    """Which schema it is."""

    id: int
    version: int


class Status(BaseModel):
    """What was seen."""

    phase: Literal["provisioning", "ready", "failed", "closing", "closed", "deleting"]
    observed_generation: int
    conditions: list[ConditionBody]
    topic: TopicBody
    schema_: SchemaVersion = Field(alias="schema")


class ChannelBody(BaseModel):
    """A channel."""

    metadata: Metadata
    spec: Spec
    status: Status


class ChannelList(BaseModel):
    """A page of channels, by name."""

    items: list[ChannelBody]
    next_cursor: str | None = Field(description="null at the end")


def channel_json(channel: Channel) -> dict[str, Any]:
    """Return the channel as it is sent."""
    spec = channel.spec
    return {
        "metadata": {
            "name": channel.name,
            "uid": channel.uid,
            "labels": dict(channel.labels),
            "generation": channel.generation,
            "created_at": time_json(channel.created_at),
        },
        "spec": {
            "schema": json.loads(spec.schema),
            "compatibility": str(spec.compatibility),
            "format": str(spec.format),
            "partitions": spec.partitions,
            "pinned": spec.pinned,
            "replication": spec.replication,
            "retention": {"ms": spec.retention.ms, "bytes": spec.retention.bytes},
            "config": dict(spec.config),
            "beat": {
                "interval_ms": spec.beat.interval_ms,
                "patience_ms": spec.beat.patience_ms,
            },
            "mirrored": spec.mirrored,
            "idle_ms": spec.idle_ms,
            "topic": {"name": channel.topic.name} if channel.adopted else None,
        },
        "status": {
            "phase": str(channel.phase),
            "observed_generation": channel.observed_generation,
            "conditions": [
                {
                    "type": each.type,
                    "status": each.status,
                    "reason": each.reason,
                    "message": each.message,
                    "last_transition_at": time_json(each.last_transition_at),
                }
                for each in channel.conditions
            ],
            "topic": {
                "name": channel.topic.name,
                "id": channel.topic.id,
                "partitions": channel.topic.partitions,
            },
            "schema": {"id": channel.schema_id, "version": channel.schema_version},
        },
    }


def time_json(moment: datetime) -> str:
    """Return a moment as it is sent."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
