"""Route of the audit trail, with its JSON."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from sluiceway_gateway.api.auth import Viewer
from sluiceway_gateway.api.json import fields_json, json_response
from sluiceway_gateway.api.models import INT64_MAX
from sluiceway_gateway.api.params import Name
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.channels.deps import ChannelsDep
from sluiceway_gateway.core.audit.model import AuditEntry

router = APIRouter(prefix="/v1", tags=["channels"], route_class=StrictRoute)


class AuditBody(BaseModel):
    """A page of changes, newest first."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "items": [
                        {
                            "number": 42,
                            "uid": "0" * 32,
                            "at": "2026-11-25T12:00:00.000Z",
                            "by": "ops",
                            "token_id": "0123456789abcdef",
                            "action": "reset_offsets",
                            "target": "delays",
                            "reason": "wrong rates",
                            "fields": [{"field": "partition 0", "old": 1200, "new": 0}],
                            "omitted": 0,
                        }
                    ],
                    "next_before": None,
                }
            ]
        }
    )

    items: list[AuditEntry]
    next_before: int | None = Field(description="`before` of the next page; null on the last")


@router.get(
    "/channels/{name}/changes",
    summary="List changes of a channel",
    response_model=AuditBody,
    response_description="A page",
    responses=problems(404),
)
def list_channel_changes(
    name: Name,
    _viewer: Viewer,
    channels: ChannelsDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, le=INT64_MAX, description="A number")] = None,
) -> Response:
    """Return the changes of channels of this name: principal, time, and old and new values.

    Entries of deleted channels stay as long as others.
    """
    entries, more = channels.changes(name, before=before, limit=limit)
    return json_response(
        {
            "items": [fields_json(entry) for entry in entries],
            "next_before": entries[-1].number if more else None,
        }
    )
