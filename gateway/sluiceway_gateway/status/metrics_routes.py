"""The route of metrics."""

from collections.abc import Callable
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Response
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.api.auth import METRICS, Anybody
from sluiceway_gateway.api.deps import ChangesDep, KafkaDep, Service, SettingsDep
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.strict_json import StrictRoute
from sluiceway_gateway.core.auth.model import Action
from sluiceway_gateway.core.db.failures import reason_of
from sluiceway_gateway.core.errors import DatabaseUnavailable
from sluiceway_gateway.core.telemetry import CONTENT_TYPE, Metrics
from sluiceway_gateway.status.deps import StatusesDep
from sluiceway_gateway.status.lag import Overview
from sluiceway_gateway.status.metrics import Scrape
from sluiceway_gateway.status.service import Statuses

#: Time for which metrics show the result of a request to Kafka. The leading replica sends one a
#: minute.
_KAFKA_WITHIN_S = 120.0

_log = structlog.get_logger(__name__)

router = APIRouter(route_class=StrictRoute)

LeadsDep = Annotated[Callable[[], bool], Depends(Service("leads"))]
MetricsDep = Annotated[Metrics, Depends(Service("metrics"))]


@router.get(
    METRICS,
    tags=["health"],
    summary="Metrics for Prometheus",
    response_class=Response,
    responses=problems(
        also={
            200: {"description": "Text", "content": {"text/plain": {"schema": {"type": "string"}}}}
        }
    ),
)
async def metrics(
    scraper: Anybody,
    statuses: StatusesDep,
    settings: SettingsDep,
    telemetry: MetricsDep,
    changes: ChangesDep,
    leads: LeadsDep,
    kafka: KafkaDep,
) -> Response:
    """Return all metrics, of the channels that the token may see.

    Sends nothing to Kafka, and reads the database once; without the database, returns the metrics
    that need none.
    """

    def render() -> bytes:
        overview = _overview(
            statuses,
            prefixes=scraper.prefixes(Action.VIEW),
            max_groups=settings.metrics_groups,
        )
        return telemetry.render(
            Scrape(
                overview=overview,
                waiting=changes.waiting,
                leads=leads(),
                kafka_answers=kafka.answered(_KAFKA_WITHIN_S),
            )
        )

    return Response(await run_in_threadpool(render), media_type=CONTENT_TYPE)


def _overview(statuses: Statuses, *, prefixes: tuple[str, ...], max_groups: int) -> Overview | None:
    try:
        return statuses.overview(prefixes=prefixes, max_groups=max_groups)
    except DatabaseUnavailable as error:
        # `sluiceway_database_up` is 0 then.
        _log.warning("metrics without channels", **reason_of(error))
        return None
