"""Where to read and write a channel's records."""

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from sluiceway_gateway.domain.channel import Channel
from sluiceway_gateway.domain.scope import Action
from sluiceway_gateway.http.guard import Viewer
from sluiceway_gateway.http.parameters import Name
from sluiceway_gateway.http.parts import Gateway
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute

router = APIRouter(prefix="/v1/channels", tags=["channels"], route_class=GatewayRoute)


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


class Kafka(BaseModel):
    """Kafka properties for the client."""

    model_config = ConfigDict(extra="forbid")

    bootstrap_servers: str = Field(alias="bootstrap.servers")


class Connection(BaseModel):
    """All that a client needs to reach the records by itself."""

    channel: ConnectionChannel
    format: Literal["avro", "arrow"]
    schema_: ConnectionSchema = Field(alias="schema")
    topic: ConnectionTopic
    kafka: Kafka


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
) -> Response:
    """Say where the records go; leaves no trace. 409 `channel_not_ready` until there is a topic."""
    principal.require(Action(access), name)
    channel = gateway.channels.ready(name)
    body = _connection(channel, gateway.settings.servers_for_clients)
    return Response(json.dumps(body, separators=(",", ":")), media_type="application/json")


def _connection(channel: Channel, servers: str) -> dict[str, Any]:
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
        "topic": {
            "name": channel.topic.name,
            "id": channel.topic.id,
            "partitions": channel.topic.partitions,
            "max_message_bytes": channel.max_message_bytes,
        },
        "kafka": {"bootstrap.servers": servers},
    }
