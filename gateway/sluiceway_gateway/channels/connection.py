"""Route of a channel's connection: topic, schemas and Kafka properties."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from sluiceway_gateway.auth.model import Action
from sluiceway_gateway.channels.etag import etag
from sluiceway_gateway.channels.model import Channel, Delivery, Format, SchemaVersion
from sluiceway_gateway.channels.service import require_known
from sluiceway_gateway.http.auth import Viewer
from sluiceway_gateway.http.params import Features, Name
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import Gateway, GatewayRoute, Services

router = APIRouter(prefix="/v1/channels", tags=["channels"], route_class=GatewayRoute)


Listener = Annotated[
    str | None, Query(description="Which of Kafka's listeners to reach it by", max_length=100)
]


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
    """The topic; `id` tells it from others of the same name."""

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
    """Everything that a client needs to access the records."""

    channel: ConnectionChannel
    format: Format
    delivery: Delivery
    schema_: ConnectionSchema = Field(alias="schema", description="The newest")
    schemas: list[ConnectionSchema] = Field(description="All that records may have, oldest first")
    topic: ConnectionTopic
    kafka: KafkaProperties


@router.get(
    "/{name}/connection",
    summary="Connect to a channel",
    response_model=Connection,
    responses=problems(404, 409, also={200: {"description": "How", "model": Connection}}),
)
def get_connection(
    name: Name,
    access: Annotated[Literal["read", "write"], Query(description="What for")],
    principal: Viewer,
    gateway: Gateway,
    features: Features,
    listener: Listener = None,
) -> Response:
    """Return the connection; creates no endpoint.

    409 `channel_not_ready` until there is a topic, `channel_closed` for writing to a closed one,
    `client_outdated` for a client that does not know the channel's delivery.
    """
    principal.require(Action(access), name)
    gateway.settings.listeners.reached_by(listener)
    channel, versions = gateway.channels.connected(name, writes=access == "write")
    require_known(channel, features)
    return Response(
        connection_text(gateway, channel, versions, listener=listener),
        # The properties may contain credentials.
        headers={"Cache-Control": "no-store"},
        media_type="application/json",
    )


def connection_text(
    gateway: Services, channel: Channel, versions: Sequence[SchemaVersion], *, listener: str | None
) -> str:
    """Return the JSON of a connection, cached per state of the channel.

    Raises InvalidRequest for an unknown listener.
    """
    kafka = gateway.settings.listeners.reached_by(listener)
    topic = channel.topic
    tag = f"{etag(channel)}/{channel.schema_id}/{len(versions)}/{topic.id}/{topic.partitions}"
    key = f"connection/{channel.uid}/{listener}"
    kept = gateway.rendered.get(key, tag)
    if kept is None:
        connection = _connection_json(channel, versions, kafka)
        kept = to_json(connection)
        gateway.rendered.put(key, tag, kept)
    return kept.decode()


def _connection_json(
    channel: Channel, versions: Sequence[SchemaVersion], kafka: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "channel": {"name": channel.name, "uid": channel.uid, "generation": channel.generation},
        "format": channel.spec.format,
        "delivery": channel.spec.delivery,
        "schema": {
            "id": channel.schema_id,
            "version": channel.schema_version,
            "definition": json.loads(channel.spec.schema),
        },
        "schemas": [
            {"id": each.id, "version": each.version, "definition": json.loads(each.definition)}
            for each in versions
        ],
        "topic": {
            "name": channel.topic.name,
            "id": channel.topic.id,
            "partitions": channel.topic.partitions,
            "max_message_bytes": channel.max_message_bytes,
        },
        "kafka": dict(kafka),
    }
