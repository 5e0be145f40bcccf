"""Route of the token that a request uses."""

from datetime import datetime

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from sluiceway_gateway.api.auth import Anybody
from sluiceway_gateway.api.deps import TokensDep
from sluiceway_gateway.api.json import json_response, time_json
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute

router = APIRouter(prefix="/v1", tags=["tokens"], route_class=StrictRoute)


class TokenBody(BaseModel):
    """A token without its secret. A gateway without tokens serves its own machine as `admin`."""

    id: str | None = Field(description="As `sluiceway token list` shows it; null without tokens")
    name: str | None = Field(description="The label; null without tokens")
    scopes: list[str] = Field(examples=[["read", "manage:sales."]])
    expires_at: datetime | None = Field(description="null: valid until it is revoked")


@router.get(
    "/token",
    summary="Get the token of the request",
    response_model=TokenBody,
    response_description="The token",
    responses=problems(),
)
def get_token(principal: Anybody, tokens: TokensDep) -> Response:
    """Return name, scopes and expiry of the token in use."""
    token = tokens.of(principal)
    expires_at = None if token is None else token.expires_at
    body = {
        "id": None if token is None else token.id,
        "name": principal.subject,
        "scopes": [str(scope) for scope in principal.scopes],
        "expires_at": expires_at and time_json(expires_at),
    }
    return json_response(body)
