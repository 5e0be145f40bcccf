"""Liveness and readiness."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated

from anyio import CapacityLimiter, move_on_after, to_thread
from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from sluiceway_gateway.api.deps import KafkaDep, Service
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.core.db import revision
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import (
    DatabaseUnavailable,
    KafkaUnavailable,
    WrongEncoding,
    WrongRevision,
)
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Reason, unavailable_reason
from sluiceway_gateway.core.passes import ENDED

#: Timeout of a request to Kafka, before the search for the reason.
_TIMEOUT_S = 2.0
#: Time of a check. Probes time out after 5 s, and would not show the reason.
_RESPONSE_S = 4.0

router = APIRouter(route_class=StrictRoute)

DatabaseDep = Annotated[Database, Depends(Service("database"))]
FailingLoopsDep = Annotated[Callable[[], Mapping[str, str]], Depends(Service("failing_loops"))]
ProbeThreadsDep = Annotated[CapacityLimiter, Depends(Service("probe_threads"))]


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
async def readyz(
    database: DatabaseDep,
    kafka: KafkaDep,
    probe_threads: ProbeThreadsDep,
    failing_loops: FailingLoopsDep,
) -> Response:
    """Check the database and Kafka, in a few threads for any number of requests."""
    checks = {
        "database": (partial(_database_failure, database), "DatabaseUnavailable"),
        "kafka": (partial(_kafka_failure, kafka), str(Reason.BROKER_UNAVAILABLE)),
    }
    failures = await asyncio.gather(
        *(_in_time(probe_threads, check, silent) for check, silent in checks.values())
    )
    whys = dict(zip(checks, failures, strict=True))
    loops = dict(failing_loops())
    reasons = {part: why for part, why in whys.items() if why is not None}
    if ENDED in loops.values():
        reasons["threads"] = ENDED
    body = {
        **{part: part not in reasons for part in whys},
        "reasons": reasons,
        "loops": loops,
    }
    return JSONResponse(body, 503 if reasons else 200)


async def _in_time(
    threads: CapacityLimiter, check: Callable[[], str | None], silent: str
) -> str | None:
    """Return the result of a check, or `silent` if it takes too long; it continues then."""
    with move_on_after(_RESPONSE_S):
        return await to_thread.run_sync(check, limiter=threads, abandon_on_cancel=True)
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
