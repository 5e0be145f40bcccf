"""Routes of health and metrics."""

from contextlib import suppress

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.errors import DatabaseUnavailable
from sluiceway_gateway.http.auth import Anybody
from sluiceway_gateway.http.deps import Gateway
from sluiceway_gateway.http.problems import problems
from sluiceway_gateway.http.route import GatewayRoute
from sluiceway_gateway.metrics import CONTENT_TYPE

router = APIRouter(route_class=GatewayRoute)


class Live(BaseModel):
    """The process responds."""

    live: bool


class Ready(BaseModel):
    """Which parts respond, and a one-word reason for each that does not.

    `loops` has the background loops of this replica that keep failing, each with the kind of error.
    """

    database: bool
    kafka: bool
    reasons: dict[str, str]
    loops: dict[str, str]


@router.get("/livez", tags=["health"], summary="Is the process alive?", response_model=Live)
async def livez() -> Response:
    """Respond while the process runs."""
    return JSONResponse({"live": True})


@router.get(
    "/readyz",
    tags=["health"],
    summary="Do the database and Kafka answer?",
    response_model=Ready,
    responses={503: {"description": "At least one of them does not", "model": Ready}},
)
async def readyz(gateway: Gateway) -> Response:
    """Check the database and Kafka."""
    found = await gateway.readiness.check()
    whys = {"database": found.database, "kafka": found.kafka}
    reasons = {part: why for part, why in whys.items() if why is not None}
    body = {
        **{part: part not in reasons for part in whys},
        "reasons": reasons,
        "loops": dict(found.loops),
    }
    return JSONResponse(body, 200 if found.ready else 503)


@router.get(
    "/metrics",
    tags=["health"],
    summary="Metrics for Prometheus",
    response_class=Response,
    responses=problems(
        also={
            200: {"description": "Text", "content": {"text/plain": {"schema": {"type": "string"}}}}
        }
    ),
)
async def metrics(_anybody: Anybody, gateway: Gateway) -> Response:
    """Return all metrics; without the database, those that need none."""
    counts: dict[Phase, int] | None = None
    with suppress(DatabaseUnavailable):
        counts = await run_in_threadpool(gateway.channels.count_by_phase)
    text = gateway.metrics.render(channels=counts, waiting=gateway.watch.waiting)
    return Response(text, media_type=CONTENT_TYPE)
