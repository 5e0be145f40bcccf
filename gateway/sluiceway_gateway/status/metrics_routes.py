"""The route of metrics."""

import structlog
from fastapi import APIRouter, Response
from starlette.concurrency import run_in_threadpool

from sluiceway_gateway.api.auth import Scraper
from sluiceway_gateway.api.problems import problems
from sluiceway_gateway.api.route import Gateway, GatewayRoute, Services
from sluiceway_gateway.core.auth.model import Action
from sluiceway_gateway.core.db.failures import reason_of
from sluiceway_gateway.core.errors import DatabaseUnavailable
from sluiceway_gateway.core.telemetry import CONTENT_TYPE
from sluiceway_gateway.status.lag import Overview
from sluiceway_gateway.status.metrics import Scrape

#: Time for which metrics show the result of a request to Kafka. The leading replica sends one a
#: minute.
_KAFKA_WITHIN_S = 120.0

_log = structlog.get_logger(__name__)

router = APIRouter(route_class=GatewayRoute)


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
