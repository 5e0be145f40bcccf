"""Route of the audit trail, with its JSON."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from sluiceway_gateway.api.auth import Viewer
from sluiceway_gateway.api.json import body_of, json_response
from sluiceway_gateway.api.models import INT64_MAX
from sluiceway_gateway.api.params import Name
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.channels.deps import ChannelsDep
from sluiceway_gateway.core.audit.model import AuditedAction, FieldChange

router = APIRouter(prefix="/v1", tags=["channels"], route_class=StrictRoute)


class AuditEntryBody(BaseModel):
    """A change of a channel."""

    number: int = Field(description="Increases with each change")
    uid: str = Field(description="Of the channel, which may be deleted")
    at: datetime
    by: str = Field(
        description="Label of the token; `loopback` without tokens, `gateway` for idle channels"
    )
    token_id: str | None = Field(description="Id of the token")
    action: AuditedAction
    target: str | None = Field(description="Group, endpoint id, batch key, or writer of batches")
    reason: str | None = Field(description="As given with the request")
    fields: list[FieldChange] = Field(description="At most 20")
    omitted: int = Field(description="Further changed fields")


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

    items: list[AuditEntryBody]
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
            "items": [body_of(AuditEntryBody, entry, uid=entry.channel_uid) for entry in entries],
            "next_before": entries[-1].number if more else None,
        }
    )
