"""The application: assembles services, routes and loops."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta

from anyio import CapacityLimiter
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware

from sluiceway import __version__
from sluiceway_gateway.api import health, openapi
from sluiceway_gateway.api import token_routes as auth_routes
from sluiceway_gateway.api.auth import HEALTH, METRICS, TokenBackend, require_permissions
from sluiceway_gateway.api.json import JsonCache, ResponseCache
from sluiceway_gateway.api.middleware import BodyLimit, Observation
from sluiceway_gateway.api.openapi import DESCRIPTION, TAGS, document
from sluiceway_gateway.api.problems import ErrorResponses
from sluiceway_gateway.channels import routes as channels_routes
from sluiceway_gateway.channels import schema_routes
from sluiceway_gateway.channels.service import Channels
from sluiceway_gateway.core.auth.ownership import Ownership
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.changes import Changes
from sluiceway_gateway.core.clock import Clock, system_clock
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.revision import require_current
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.client import check_client_properties
from sluiceway_gateway.core.kafka.cluster_identity import ClusterIdentity
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.core.telemetry import Metrics
from sluiceway_gateway.endpoints import routes as endpoints_routes
from sluiceway_gateway.endpoints.groups import routes as groups_routes
from sluiceway_gateway.endpoints.groups.service import GroupService
from sluiceway_gateway.endpoints.heartbeats import HeartbeatService
from sluiceway_gateway.endpoints.service import AttachService, Endpoints
from sluiceway_gateway.ledger import batch_store
from sluiceway_gateway.ledger import routes as ledger_routes
from sluiceway_gateway.ledger import store as ledger_store
from sluiceway_gateway.ledger.reading import LedgerReads
from sluiceway_gateway.ledger.repair_service import Repairs
from sluiceway_gateway.ledger.service import Ledgers
from sluiceway_gateway.lifecycle import routes as lifecycle_routes
from sluiceway_gateway.lifecycle.service import Lifecycle
from sluiceway_gateway.loops import Loops
from sluiceway_gateway.messages import routes as messages_routes
from sluiceway_gateway.messages.reading import MessageReads
from sluiceway_gateway.messages.search import MessageSearches
from sluiceway_gateway.messages.threads import BoundedThreads
from sluiceway_gateway.messages.writing import MessageWrites
from sluiceway_gateway.offsets import routes as offsets_routes
from sluiceway_gateway.offsets.importing import OffsetImports
from sluiceway_gateway.offsets.service import Acknowledgements, Offsets
from sluiceway_gateway.provisioning.reconciler import ReconcileCounts
from sluiceway_gateway.registry import routes as registry_routes
from sluiceway_gateway.registry.service import Registry
from sluiceway_gateway.sessions import routes as sessions_routes
from sluiceway_gateway.status import audit_routes, metrics_routes
from sluiceway_gateway.status import cluster_routes as kafka_routes
from sluiceway_gateway.status import routes as status_routes
from sluiceway_gateway.status.event_feed import StatusFeed
from sluiceway_gateway.status.graph import routes as graph_routes
from sluiceway_gateway.status.lag_history import routes as history_routes
from sluiceway_gateway.status.service import Statuses
from sluiceway_gateway.ui import routes as ui_routes

__all__ = ["create_app"]

#: Paths that probes and scrapers request every few seconds.
_UNTRACED = HEALTH | {METRICS}


@dataclass(frozen=True, kw_only=True)
class Services:
    """The services of one gateway."""

    settings: Settings
    tokens: Tokens
    channels: Channels
    lifecycle: Lifecycle
    attach: AttachService
    endpoints: Endpoints
    heartbeats: HeartbeatService
    offsets: Offsets
    offset_imports: OffsetImports
    acknowledgements: Acknowledgements
    ledgers: Ledgers
    ledger_reads: LedgerReads
    message_reads: MessageReads
    message_writes: MessageWrites
    message_searches: MessageSearches
    message_threads: BoundedThreads
    search_threads: BoundedThreads
    follow_threads: BoundedThreads
    registry: Registry
    repairs: Repairs
    statuses: Statuses
    feed: StatusFeed
    rendered: ResponseCache
    fragments: JsonCache
    groups: GroupService
    changes: Changes
    metrics: Metrics
    database: Database
    """For its readiness; everything else goes through a service."""
    kafka: KafkaAdmin
    failing_loops: Callable[[], Mapping[str, str]]
    leads: Callable[[], bool]
    probe_threads: CapacityLimiter
    commit_threads: CapacityLimiter
    """For commits of batches, which wait for Kafka: no heartbeat waits for their threads."""


def create_app(settings: Settings, *, clock: Clock = system_clock) -> FastAPI:
    """Return the gateway's application.

    Connects to the database and to Kafka only at its start, which raises WrongRevision for a
    database of another version, and InvalidSettings for tokens without a key. Raises
    InvalidSettings for an invalid database URL or invalid Kafka properties.

    Before stopping the server, call `app.state.parts.changes.close()`: the server waits for running
    requests, and long polls last up to a minute.
    """
    database = Database(
        settings.database_url.get_secret_value(),
        pool_size=settings.database_pool_size,
        wait_ms=settings.database_wait_ms,
    )
    kafka = KafkaAdmin(
        settings.kafka_bootstrap_servers,
        settings.kafka_properties.get_secret_value(),
        timeout_s=settings.kafka_timeout_ms / 1000,
        identity=ClusterIdentity(database, accepted=settings.kafka_cluster_id, clock=clock),
    )
    for properties in settings.listeners.properties.values():
        check_client_properties(properties)
    metrics = Metrics()
    on_pass = metrics.set_loop_failures
    changes = Changes(
        database,
        limit=settings.max_waiters,
        reread_s=settings.watch_poll_ms / 1000,
        on_pass=on_pass,
    )
    tokens = Tokens(database, settings.token_key, clock=clock)

    ownership = Ownership(
        database, mode=settings.ownership, count=metrics.count_foreign_use, clock=clock
    )

    def on_reconciled(counts: ReconcileCounts) -> None:
        outcomes = asdict(counts)
        del outcomes["more"]
        metrics.count_reconciled(outcomes)

    # Series exist before the first pass, so that an alert sees one that never ends.
    on_reconciled(ReconcileCounts())

    loops = Loops(
        database=database,
        kafka=kafka,
        settings=settings,
        clock=clock,
        on_reconciled=on_reconciled,
        on_pass=on_pass,
    )

    channels = Channels(
        database,
        kafka,
        topic_prefix=settings.topic_prefix,
        kafka_timeout_s=settings.kafka_timeout_ms / 1000,
        wake=loops.wake,
        clock=clock,
    )
    ledgers = Ledgers(
        database,
        kafka,
        ownership=ownership,
        on_conflict=metrics.count_conflict,
        max_age=timedelta(milliseconds=settings.max_batch_ms),
        clock=clock,
    )
    statuses, fragments = Statuses(database, tokens, clock=clock), JsonCache()
    attach = AttachService(
        database,
        tokens,
        ownership=ownership,
        wake=loops.wake,
        on_pass=on_pass,
        clock=clock,
    )
    message_reads = MessageReads(database, kafka)
    offsets = Offsets(database, tokens, ownership=ownership, on_pass=on_pass, clock=clock)
    offset_imports = OffsetImports(
        database, kafka, ownership=ownership, stable_of=ledger_store.stable_of, clock=clock
    )
    parts = Services(
        settings=settings,
        tokens=tokens,
        channels=channels,
        lifecycle=Lifecycle(database, kafka, channels, clock=clock),
        attach=attach,
        endpoints=Endpoints(
            database,
            kafka=kafka,
            settlements=batch_store.settlements,
            clock=clock,
        ),
        heartbeats=HeartbeatService(
            database, tokens, settlements=batch_store.settlements, clock=clock
        ),
        offsets=offsets,
        offset_imports=offset_imports,
        acknowledgements=Acknowledgements(database, changes),
        ledgers=ledgers,
        ledger_reads=LedgerReads(database),
        message_reads=message_reads,
        message_searches=MessageSearches(database, kafka, message_reads, clock=clock),
        message_writes=MessageWrites(database, kafka, channels, ledgers, clock=clock),
        message_threads=BoundedThreads("for messages", running=4, waiting=16),
        # They take long, so none waits for others; those that follow do not keep others out.
        search_threads=BoundedThreads("for searches", running=4, waiting=0),
        follow_threads=BoundedThreads("that follow messages", running=8, waiting=0),
        registry=Registry(database),
        repairs=Repairs(database, kafka, clock=clock),
        statuses=statuses,
        feed=StatusFeed(statuses, changes, fragments=fragments, clock=clock, on_pass=on_pass),
        rendered=ResponseCache(),
        fragments=fragments,
        groups=GroupService(database, ownership, clock=clock),
        changes=changes,
        metrics=metrics,
        database=database,
        kafka=kafka,
        failing_loops=lambda: {**loops.failing(), **attach.failing(), **offsets.failing()},
        leads=lambda: loops.has_lease,
        probe_threads=CapacityLimiter(4),
        commit_threads=CapacityLimiter(20),
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await run_in_threadpool(require_current, database)
            await run_in_threadpool(tokens.check_key)
            changes.start()
            loops.start()
            try:
                yield
            finally:
                changes.close()
                await run_in_threadpool(loops.stop)
        finally:
            await run_in_threadpool(parts.offsets.close)
            await run_in_threadpool(parts.attach.close)
            await run_in_threadpool(changes.stop)
            await run_in_threadpool(kafka.close)
            database.close()

    responses = ErrorResponses(of_registry=registry_routes.error_response)
    app = FastAPI(
        title="Sluiceway",
        description=DESCRIPTION,
        version=__version__,
        lifespan=lifespan,
        # The outermost first.
        middleware=[
            Middleware(Observation, metrics=metrics, ownership=ownership, respond=responses.of),
            Middleware(
                AuthenticationMiddleware,
                backend=TokenBackend(tokens),
                on_error=responses.to_refusal,
            ),
            Middleware(BodyLimit, limit_bytes=settings.max_body_bytes, respond=responses.of),
        ],
        exception_handlers=responses.handlers,
        openapi_tags=[{"name": tag} for tag in TAGS],
        generate_unique_id_function=lambda route: route.name,
        # With an SDK, a span per request. Metrics go to Prometheus, logs to structlog.
        telemetry={
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
            "exclude": lambda scope: scope["path"] in _UNTRACED,
        },
        redirect_slashes=False,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.parts = parts
    # Routers are tried in this order: those of frequent requests are the first.
    for feature in (
        offsets_routes,
        sessions_routes,
        channels_routes,
        endpoints_routes,
        status_routes,
        lifecycle_routes,
        schema_routes,
        ledger_routes,
        messages_routes,
        history_routes,
        graph_routes,
        groups_routes,
        audit_routes,
        auth_routes,
        registry_routes,
        kafka_routes,
        health,
        metrics_routes,
        openapi,
        ui_routes,
    ):
        require_permissions(feature.router)
        app.include_router(feature.router)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app
