"""JSON of channels: request models and responses."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sluiceway_gateway.channels.change import UNSET, Change, Unset
from sluiceway_gateway.channels.model import (
    MAX_HEARTBEAT_MS,
    MAX_HEARTBEAT_TIMEOUT_MS,
    MAX_IDLE_MS,
    MAX_LABELS,
    MAX_PARTITIONS,
    MIN_HEARTBEAT_MS,
    MIN_IDLE_MS,
    TOPIC_PATTERN,
    Channel,
    Compatibility,
    Format,
    check_labels,
    check_topic,
)
from sluiceway_gateway.http.params import INT64_MAX

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


class Heartbeat(BaseModel):
    """How often endpoints beat, and after how long without one is lost."""

    interval_ms: int
    timeout_ms: int


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
    heartbeat: Heartbeat
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
            "heartbeat": {
                "interval_ms": spec.heartbeat.interval_ms,
                "timeout_ms": spec.heartbeat.timeout_ms,
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


MAX_SETTINGS = 20
"""Of a topic: more than a channel may set, and few enough to name all that are refused."""

Labels = Annotated[dict[str, str], Field(max_length=MAX_LABELS), AfterValidator(check_labels)]


class MetadataPut(Asked):
    """Whom the request means, and labels."""

    uid: Uid | None = Field(default=None, description="Means this incarnation and no other")
    labels: Labels = Field(default_factory=dict, description="Replaces all labels")


class RetentionPut(Asked):
    """How long records are kept; null leaves it to the broker, -1 is for ever."""

    ms: int | None = Field(default=None, ge=-1, le=INT64_MAX)
    bytes: int | None = Field(default=None, ge=-1, le=INT64_MAX, description="By partition")


class HeartbeatPut(Asked):
    """How often endpoints beat, and after how long without one is lost; three beats at least."""

    interval_ms: int = Field(default=2_000, ge=MIN_HEARTBEAT_MS, le=MAX_HEARTBEAT_MS)
    timeout_ms: int = Field(default=120_000, ge=3 * MIN_HEARTBEAT_MS, le=MAX_HEARTBEAT_TIMEOUT_MS)


class TopicPut(Asked):
    """The topic that is adopted."""

    name: Annotated[str, AfterValidator(check_topic)] = Field(
        description="A topic that is in Kafka, and no other channel's",
        json_schema_extra={"pattern": TOPIC_PATTERN},
    )


class SpecPut(Asked):
    """What is wanted; a field that is left out keeps its value, or takes its default."""

    schema_: dict[str, Any] = Field(
        default_factory=dict,
        alias="schema",
        description="An Avro record schema; needed when the channel is made",
    )
    compatibility: Literal["none", "backward", "forward", "full"] = Field(
        default="backward", description="What a new version of the schema must be to all kept ones"
    )
    format: Literal["avro", "arrow", "bytes"] = "avro"
    partitions: int = Field(default=1, ge=1, le=MAX_PARTITIONS)
    pinned: bool = False
    replication: int | None = Field(
        default=None, ge=1, le=32767, description="null takes the broker's default"
    )
    retention: RetentionPut = Field(default_factory=RetentionPut)
    config: dict[str, str] = Field(
        default_factory=dict,
        max_length=MAX_SETTINGS,
        description="Further topic settings, by Kafka's names; replaces all",
    )
    heartbeat: HeartbeatPut = Field(default_factory=HeartbeatPut)
    mirrored: bool = Field(
        default=False, description="Groups' positions are written to Kafka's own group offsets too"
    )
    idle_ms: int | None = Field(
        default=None,
        ge=MIN_IDLE_MS,
        le=MAX_IDLE_MS,
        description="When nobody has used it for so long it is closed, and after as long again "
        "removed with its records; null: never",
    )
    topic: TopicPut | None = Field(
        default=None,
        description="A topic to adopt when the channel is made: it is never deleted or changed; "
        "null has one made",
    )


class ClosePost(Asked):
    """The body of `POST /v1/channels/{name}/close`."""

    uid: Uid = Field(description="Means this incarnation and no other")
    force: bool = Field(default=False, description="Closed at once, whoever writes or reads")


class ChannelPut(Asked):
    """The body of `PUT /v1/channels/{name}`."""

    metadata: MetadataPut = Field(default_factory=MetadataPut)
    spec: SpecPut = Field(default_factory=SpecPut)

    @property
    def schema_given(self) -> dict[str, Any] | None:
        """The schema, if the request has one."""
        given = self.spec.given("schema_")
        return None if given is UNSET else given

    @property
    def adopts(self) -> bool:
        """Whether the request names a topic to adopt."""
        return self.spec.topic is not None

    def change(self, *, config: dict[str, str] | Unset) -> Change:
        """Return what is asked but for the schema, with the configuration in canonical form."""
        compatibility, format_ = self.spec.given("compatibility"), self.spec.given("format")
        return Change(
            labels=self.metadata.given("labels"),
            compatibility=UNSET if compatibility is UNSET else Compatibility(compatibility),
            format=UNSET if format_ is UNSET else Format(format_),
            partitions=self.spec.given("partitions"),
            pinned=self.spec.given("pinned"),
            replication=self.spec.given("replication"),
            retention_ms=self.spec.retention.given("ms"),
            retention_bytes=self.spec.retention.given("bytes"),
            config=config,
            interval_ms=self.spec.heartbeat.given("interval_ms"),
            timeout_ms=self.spec.heartbeat.given("timeout_ms"),
            mirrored=self.spec.given("mirrored"),
            idle_ms=self.spec.given("idle_ms"),
            topic=self.spec.topic.name if self.spec.topic else self.spec.given("topic"),
        )
