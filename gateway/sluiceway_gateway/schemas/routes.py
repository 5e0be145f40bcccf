"""Routes of schemas."""

import json
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from sluiceway_gateway.channels.wire import time_json
from sluiceway_gateway.http.auth import Anybody, Viewer
from sluiceway_gateway.http.deps import Gateway
from sluiceway_gateway.http.params import Name
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute

router = APIRouter(prefix="/v1", tags=["schemas"], route_class=GatewayRoute)

SchemaId = Annotated[int, Path(ge=1, le=2**31 - 1, description="The id that messages carry")]


class SchemaBody(BaseModel):
    """A schema, as canonical Avro JSON."""

    id: int
    definition: dict[str, Any]


class VersionBody(SchemaBody):
    """One of a channel's schemas."""

    version: int
    created_at: datetime


class VersionList(BaseModel):
    """All schemas that a channel keeps, the oldest first."""

    items: list[VersionBody]


@router.get(
    "/channels/{name}/schemas",
    summary="List a channel's schemas",
    response_model=VersionList,
    responses=problems(404, also={200: {"description": "All versions", "model": VersionList}}),
)
def list_schemas(name: Name, _viewer: Viewer, gateway: Gateway) -> Response:
    """Give all schemas that records of the channel may have; `status.schema` is the one in use."""
    items = [
        {
            "id": each.id,
            "version": each.version,
            "definition": json.loads(each.definition),
            "created_at": time_json(each.created_at),
        }
        for each in gateway.channels.versions(name)
    ]
    return JSONResponse({"items": items})


@router.get(
    "/schemas/{schema_id}",
    summary="Read a schema",
    response_model=SchemaBody,
    responses=problems(404, also={200: {"description": "The schema", "model": SchemaBody}}),
)
def get_schema(schema_id: SchemaId, principal: Anybody, gateway: Gateway) -> Response:
    """Give the schema of this id, if the token may see a channel that has it."""
    definition = gateway.channels.schema(schema_id, principal)
    return JSONResponse({"id": schema_id, "definition": json.loads(definition)})
