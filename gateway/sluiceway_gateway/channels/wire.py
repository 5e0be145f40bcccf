"""JSON of channels: request models and responses."""

import json
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sluiceway_gateway.api.json import body_of, time_json
from sluiceway_gateway.api.models import RequestModel, Uid
from sluiceway_gateway.channels.labels import MAX_LABELS, Selector, check_labels
from sluiceway_gateway.channels.model import (
    AdoptedTopic,
    Channel,
    Condition,
    Delivery,
    KeyPartitioner,
    Phase,
    Spec,
    TopicRef,
)
from sluiceway_gateway.core.errors import InvalidRequest
from sluiceway_gateway.schemas.model import Format


class Metadata(BaseModel):
    """Identity of a channel, and its labels."""

    name: str
    uid: str
    labels: dict[str, str]
    generation: int
    created_at: datetime


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
        "spec": channel.spec.model_copy(
            update={
                "schema_": json.loads(channel.schema),
                "topic": AdoptedTopic(name=channel.topic.name) if channel.adopted else None,
            }
        ),
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


Labels = Annotated[dict[str, str], Field(max_length=MAX_LABELS), AfterValidator(check_labels)]


class MetadataPut(RequestModel):
    """Identity of the channel, and its labels."""

    uid: Uid | None = Field(default=None, description="Refuse any other channel of this name")
    labels: Labels = Field(default_factory=dict, description="Replaces all labels")


class ChannelPut(RequestModel):
    """The body of `PUT /v1/channels/{name}`."""

    metadata: MetadataPut = Field(default_factory=MetadataPut)
    spec: Spec = Field(default_factory=Spec)


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
    compacted: bool = Field(description="Whether its cleanup.policy includes compact")


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
    partitioner: KeyPartitioner
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
