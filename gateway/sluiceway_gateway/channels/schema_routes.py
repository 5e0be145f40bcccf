"""Routes of schemas."""

import json
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel

from sluiceway_gateway.api.auth import Anybody, Viewer
from sluiceway_gateway.api.json import body_of, json_response
from sluiceway_gateway.api.params import Name
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.channels.deps import ChannelsDep

router = APIRouter(prefix="/v1", tags=["schemas"], route_class=StrictRoute)

SchemaId = Annotated[int, Path(ge=1, le=2**31 - 1, description="The schema id in messages")]


class SchemaBody(BaseModel):
    """A schema, as canonical Avro JSON."""

    id: int
    definition: dict[str, Any]


class VersionBody(SchemaBody):
    """One of a channel's schemas."""

    version: int
    created_at: datetime


class VersionList(BaseModel):
    """All schemas of a channel, the oldest first."""

    items: list[VersionBody]


@router.get(
    "/channels/{name}/schemas",
    summary="List a channel's schemas",
    response_model=VersionList,
    response_description="All versions",
    responses=problems(404),
)
def list_schemas(name: Name, _viewer: Viewer, channels: ChannelsDep) -> Response:
    """Return all schemas of the channel's records; `status.schema` is the current one."""
    items = [
        body_of(VersionBody, version, definition=json.loads(version.definition))
        for version in channels.versions(name)
    ]
    return json_response({"items": items})


@router.get(
    "/schemas/{schema_id}",
    summary="Read a schema",
    response_model=SchemaBody,
    response_description="The schema",
    responses=problems(404),
)
def get_schema(schema_id: SchemaId, principal: Anybody, channels: ChannelsDep) -> Response:
    """Return a schema of a channel that the token may see."""
    definition = channels.schema(schema_id, principal)
    return json_response({"id": schema_id, "definition": json.loads(definition)})
