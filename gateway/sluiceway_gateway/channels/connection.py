"""The route that tells where a channel's records are."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from sluiceway_gateway.auth.model import Action
from sluiceway_gateway.channels.etag import etag
from sluiceway_gateway.channels.model import Channel, SchemaVersion
from sluiceway_gateway.http.auth import Viewer
from sluiceway_gateway.http.deps import Gateway, Services
from sluiceway_gateway.http.params import Name
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute

router = APIRouter(prefix="/v1/channels", tags=["channels"], route_class=GatewayRoute)


Listener = Annotated[
    str | None, Query(description="Which of Kafka's listeners to reach it by", max_length=100)
]


class ConnectionChannel(BaseModel):
    """Which channel it is."""

    name: str
    uid: str
    generation: int


class ConnectionSchema(BaseModel):
    """The schema that records have."""

    id: int
    version: int
    definition: dict[str, Any]


class ConnectionTopic(BaseModel):
    """Where the records lie; `id` tells the topic from others of its name."""

    name: str
    id: str
    partitions: int
    max_message_bytes: int


class KafkaProperties(BaseModel):
    """Kafka properties for the client; they may hold credentials."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str]

    bootstrap_servers: str = Field(alias="bootstrap.servers")


class Connection(BaseModel):
    """All that a client needs to reach the records by itself."""

    channel: ConnectionChannel
    format: Literal["avro", "arrow", "bytes"]
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
    listener: Listener = None,
) -> Response:
    """Say where the records go; leaves no trace.

    409 `channel_not_ready` until there is a topic, `channel_closed` for writing to a closed one.
    """
    principal.require(Action(access), name)
    gateway.settings.listeners.reached_by(listener)
    channel, versions = gateway.channels.connected(name, writes=access == "write")
    return Response(
        connection_text(gateway, channel, versions, listener=listener),
        # It may hold credentials.
        headers={"Cache-Control": "no-store"},
        media_type="application/json",
    )


def connection_text(
    gateway: Services, channel: Channel, versions: Sequence[SchemaVersion], *, listener: str | None
) -> str:
    """Return the connection as it is sent, put together once for each state of the channel.

    Raises InvalidRequest for a listener that there is not.
    """
    kafka = gateway.settings.listeners.reached_by(listener)
    topic = channel.topic
    tag = f"{etag(channel)}/{channel.schema_id}/{len(versions)}/{topic.id}/{topic.partitions}"
    key = f"connection/{channel.uid}/{listener}"
    kept = gateway.rendered.get(key, tag)
    if kept is None:
        connection = _connection_json(channel, versions, kafka)
        kept = json.dumps(connection, separators=(",", ":")).encode()
        gateway.rendered.put(key, tag, kept)
    return kept.decode()


def _connection_json(
    channel: Channel, versions: Sequence[SchemaVersion], kafka: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "channel": {
            "name": channel.name,
            "uid": channel.uid,
            "generation": channel.generation,
        },
        "format": str(channel.spec.format),
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
