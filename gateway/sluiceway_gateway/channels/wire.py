"""JSON of channels: request models and responses."""

import json
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sluiceway_gateway.api.json import body_of, time_json
from sluiceway_gateway.api.models import INT64_MAX, RequestModel, Uid
from sluiceway_gateway.channels.change import PLAIN, UNSET, Change, Unset
from sluiceway_gateway.channels.labels import MAX_LABELS, Selector, check_labels
from sluiceway_gateway.channels.model import (
    MAX_HEARTBEAT_MS,
    MAX_HEARTBEAT_TIMEOUT_MS,
    MAX_IDLE_MS,
    MIN_HEARTBEAT_MS,
    MIN_IDLE_MS,
    Channel,
    Condition,
    Delivery,
    Heartbeat,
    Phase,
    Retention,
    TopicRef,
)
from sluiceway_gateway.core.errors import InvalidRequest
from sluiceway_gateway.core.names import MAX_PARTITIONS, TOPIC_PATTERN, check_topic
from sluiceway_gateway.schemas.model import Compatibility, Format


class Metadata(BaseModel):
    """Identity of a channel, and its labels."""

    name: str
    uid: str
    labels: dict[str, str]
    generation: int
    created_at: datetime


class AdoptedTopic(BaseModel):
    """A topic that existed before the channel."""

    name: str


class Spec(BaseModel):
    """Desired state."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    schema_: dict[str, Any] = Field(alias="schema")
    compatibility: Compatibility
    format: Format
    partitions: int
    pinned: bool
    max_partitions: int | None = Field(
        description="Number up to which a group that attaches may grow the channel without `manage`"
    )
    replication: int | None
    retention: Retention
    config: dict[str, str]
    heartbeat: Heartbeat
    mirrored: bool
    delivery: Delivery
    idle_ms: int | None = Field(description="Idle time until the channel is closed")
    topic: AdoptedTopic | None = Field(description="The adopted topic")


class SchemaRef(BaseModel):
    """Id and version of a schema."""

    id: int
    version: int


class ObservedStatus(BaseModel):
    """Observed state."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)

    phase: Phase
    observed_generation: int
    conditions: list[Condition]
    topic: TopicRef
    schema_: SchemaRef = Field(alias="schema")


class ChannelBody(BaseModel):
    """A channel."""

    metadata: Metadata
    spec: Spec
    status: ObservedStatus


class ChannelList(BaseModel):
    """A page of channels, ordered by name."""

    items: list[ChannelBody]
    next_cursor: str | None = Field(description="null at the end")


def channel_json(channel: Channel) -> dict[str, Any]:
    """Return the JSON of a channel."""
    return {
        "metadata": body_of(Metadata, channel),
        "spec": {
            **vars(channel.spec),
            "schema": json.loads(channel.spec.schema),
            "topic": {"name": channel.topic.name} if channel.adopted else None,
        },
        "status": {
            "phase": channel.phase,
            "observed_generation": channel.observed_generation,
            "conditions": [
                vars(condition) | {"last_transition_at": time_json(condition.last_transition_at)}
                for condition in channel.conditions
            ],
            "topic": channel.topic,
            "schema": {"id": channel.schema_id, "version": channel.schema_version},
        },
    }


MAX_SETTINGS = 20
"""Maximum of config entries in a request; more than allowed settings, so that all are named."""

Labels = Annotated[dict[str, str], Field(max_length=MAX_LABELS), AfterValidator(check_labels)]


class _ChangeModel(RequestModel):
    """Base of request models whose omitted fields keep their values or get defaults."""

    def value_or_unset(self, field: str) -> Any:
        """Return the field's value if the request has it, else UNSET."""
        return getattr(self, field) if field in self.model_fields_set else UNSET


class MetadataPut(_ChangeModel):
    """Identity of the channel, and its labels."""

    uid: Uid | None = Field(default=None, description="Refuse any other channel of this name")
    labels: Labels = Field(default_factory=dict, description="Replaces all labels")


class RetentionPut(_ChangeModel):
    """Retention of records; null means the broker's default, -1 unlimited."""

    ms: int | None = Field(default=None, ge=-1, le=INT64_MAX)
    bytes: int | None = Field(default=None, ge=-1, le=INT64_MAX, description="Per partition")


class HeartbeatPut(_ChangeModel):
    """Heartbeat interval of endpoints, and the timeout: at least three intervals."""

    interval_ms: int = Field(default=2_000, ge=MIN_HEARTBEAT_MS, le=MAX_HEARTBEAT_MS)
    timeout_ms: int = Field(default=120_000, ge=3 * MIN_HEARTBEAT_MS, le=MAX_HEARTBEAT_TIMEOUT_MS)


class TopicPut(RequestModel):
    """The topic to adopt."""

    name: Annotated[str, AfterValidator(check_topic)] = Field(
        description="An existing topic that no channel has",
        json_schema_extra={"pattern": TOPIC_PATTERN},
    )


class SpecPut(_ChangeModel):
    """Desired state; omitted fields keep their values or get defaults."""

    schema_: dict[str, Any] = Field(
        default_factory=dict,
        alias="schema",
        description="An Avro record schema; required to create a channel",
    )
    # Strict validation would refuse the values of an enum.
    compatibility: Compatibility = Field(
        default=Compatibility.BACKWARD,
        strict=False,
        description="Rule for a new version of the schema and all kept ones",
    )
    format: Format = Field(default=Format.AVRO, strict=False)
    partitions: int = Field(default=1, ge=1, le=MAX_PARTITIONS)
    pinned: bool = False
    max_partitions: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PARTITIONS,
        description="Number up to which a group that attaches may grow the channel without "
        "`manage`; null: never",
    )
    replication: int | None = Field(
        default=None, ge=1, le=32767, description="null means the broker's default"
    )
    retention: RetentionPut = Field(default_factory=RetentionPut)
    config: dict[str, str] = Field(
        default_factory=dict,
        max_length=MAX_SETTINGS,
        description="Further topic settings, by Kafka's names; replaces all",
    )
    heartbeat: HeartbeatPut = Field(default_factory=HeartbeatPut)
    mirrored: bool = Field(
        default=False, description="Also write committed positions to Kafka's group offsets"
    )
    delivery: Delivery = Field(
        default=Delivery.AT_LEAST_ONCE,
        strict=False,
        description="exactly_once: readers see committed batches only; fixed at creation",
    )
    idle_ms: int | None = Field(
        default=None,
        ge=MIN_IDLE_MS,
        le=MAX_IDLE_MS,
        description="Idle time until the channel is closed, and then until it is deleted with its "
        "records; null: never",
    )
    topic: TopicPut | None = Field(
        default=None,
        description="A topic to adopt at creation, which is never deleted or changed; null creates "
        "a topic",
    )


class ChannelPut(RequestModel):
    """The body of `PUT /v1/channels/{name}`."""

    metadata: MetadataPut = Field(default_factory=MetadataPut)
    spec: SpecPut = Field(default_factory=SpecPut)

    def change(self, *, config: dict[str, str] | Unset) -> Change:
        """Return the requested change without the schema, with `config` in canonical form."""
        spec = self.spec
        return Change(
            **{name: spec.value_or_unset(name) for name in PLAIN if name != "config"},
            labels=self.metadata.value_or_unset("labels"),
            retention_ms=spec.retention.value_or_unset("ms"),
            retention_bytes=spec.retention.value_or_unset("bytes"),
            config=config,
            interval_ms=spec.heartbeat.value_or_unset("interval_ms"),
            timeout_ms=spec.heartbeat.value_or_unset("timeout_ms"),
            topic=spec.topic.name if spec.topic else spec.value_or_unset("topic"),
        )


class ConnectionChannel(BaseModel):
    """Identity of the channel."""

    name: str
    uid: str
    generation: int


class ConnectionSchema(BaseModel):
    """A schema of records."""

    id: int
    version: int
    definition: dict[str, Any]


class ConnectionTopic(BaseModel):
    """The topic; `id` distinguishes it from others of the same name."""

    name: str
    id: str
    partitions: int
    max_message_bytes: int


class KafkaProperties(BaseModel):
    """Kafka properties for the client, which may contain credentials."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str]

    bootstrap_servers: str = Field(alias="bootstrap.servers")


class Connection(BaseModel):
    """Access to the records: topic, schemas and Kafka properties."""

    channel: ConnectionChannel
    format: Format
    delivery: Delivery
    schema_: ConnectionSchema = Field(alias="schema", description="The newest")
    schemas: list[ConnectionSchema] = Field(description="All schemas of the records, oldest first")
    topic: ConnectionTopic
    kafka: KafkaProperties


def selector_of(text: str | None) -> Selector | None:
    """Return the selector. Raises InvalidRequest for an invalid one."""
    if text is None or not text.strip():
        return None
    try:
        return Selector.parse(text)
    except ValueError as error:
        raise InvalidRequest.at("query:selector", str(error)) from None
