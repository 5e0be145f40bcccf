"""Liveness, readiness and metrics."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog
from anyio import move_on_after, to_thread
from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.api.auth import Scraper
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.route import Gateway, GatewayRoute, Services
from sluiceway_gateway.core.auth.model import Action
from sluiceway_gateway.core.db import revision
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.failures import reason_of
from sluiceway_gateway.core.errors import (
    DatabaseUnavailable,
    KafkaUnavailable,
    WrongEncoding,
    WrongRevision,
)
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Reason, unavailable_reason
from sluiceway_gateway.core.passes import ENDED
from sluiceway_gateway.metrics import CONTENT_TYPE, Scrape
from sluiceway_gateway.status.lag import Overview

#: Timeout of a request to Kafka, before the search for the reason.
_TIMEOUT_S = 2.0
#: Time of a check. Probes time out after 5 s, and would not show the reason.
_RESPONSE_S = 4.0
#: Time for which metrics show the result of a request to Kafka. The leading replica sends one a
#: minute.
_KAFKA_WITHIN_S = 120.0

_log = structlog.get_logger(__name__)

router = APIRouter(route_class=GatewayRoute)


class Live(BaseModel):
    """The process responds."""

    live: bool


class Ready(BaseModel):
    """The result of each check, with a one-word reason for a failure.

    `loops` has the failing background loops of this replica, and its batches of `attach` and
    `commit`, each with the type of its error. One whose thread has ended is `ThreadEnded`, and then
    `reasons` has it for `threads`.
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
    responses={503: {"description": "One does not, or a thread has ended", "model": Ready}},
)
async def readyz(gateway: Gateway) -> Response:
    """Check the database and Kafka, in a few threads for any number of requests."""
    database, kafka = await asyncio.gather(
        _in_time(gateway, partial(_database_failure, gateway.database), "DatabaseUnavailable"),
        _in_time(gateway, partial(_kafka_failure, gateway.kafka), str(Reason.BROKER_UNAVAILABLE)),
    )
    whys = {"database": database, "kafka": kafka}
    loops = dict(gateway.failing_loops())
    reasons = {part: why for part, why in whys.items() if why is not None}
    if ENDED in loops.values():
        reasons["threads"] = ENDED
    body = {
        **{part: part not in reasons for part in whys},
        "reasons": reasons,
        "loops": loops,
    }
    return JSONResponse(body, 503 if reasons else 200)


async def _in_time(gateway: Services, check: Callable[[], str | None], silent: str) -> str | None:
    """Return the result of a check, or `silent` if it takes too long; it continues then."""
    with move_on_after(_RESPONSE_S):
        return await to_thread.run_sync(
            check, limiter=gateway.probe_threads, abandon_on_cancel=True
        )
    return silent


def _database_failure(database: Database) -> str | None:
    """Return the reason why the database is unusable, without its address, or None."""
    try:
        revision.require_current(database)
        database.check()
    except (DatabaseUnavailable, WrongEncoding, WrongRevision) as error:
        return type(error).__name__
    return None


def _kafka_failure(kafka: KafkaAdmin) -> str | None:
    """Return the reason why Kafka is unusable, without its address, or None."""
    try:
        # Compared with the id that was read last, as the database may hang.
        kafka.require_cluster(_TIMEOUT_S, reread=False)
    except DatabaseUnavailable:
        return None
    except KafkaUnavailable as error:
        return str(unavailable_reason(error.access_failure))
    return None


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
async def metrics(scraper: Scraper, gateway: Gateway) -> Response:
    """Return all metrics, of the channels that the token may see.

    Sends nothing to Kafka, and reads the database once; without the database, returns the metrics
    that need none.
    """
    text = await run_in_threadpool(_metrics, gateway, scraper.prefixes(Action.VIEW))
    return Response(text, media_type=CONTENT_TYPE)


def _metrics(gateway: Services, prefixes: tuple[str, ...]) -> bytes:
    overview: Overview | None = None
    try:
        overview = gateway.statuses.overview(
            prefixes=prefixes, max_groups=gateway.settings.metrics_groups
        )
    except DatabaseUnavailable as error:
        # `sluiceway_database_up` is 0 then.
        _log.warning("metrics without channels", **reason_of(error))
    return gateway.metrics.render(
        Scrape(
            overview=overview,
            waiting=gateway.watch.waiting,
            leads=gateway.leads(),
            kafka_answers=gateway.kafka.answered(_KAFKA_WITHIN_S),
        )
    )
