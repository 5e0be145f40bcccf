"""Gateways on a real uvicorn, and their public view of a channel."""

import asyncio
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from starlette.routing import BaseRoute

from sluiceway.schema import Schema
from sluiceway_gateway.app import create_app
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.create import create
from sluiceway_gateway.channels.model import Channel, Phase, Spec
from sluiceway_gateway.cli.serve import bound_socket, server_config
from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.db import leases
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.kafka.model import ObservedTopic
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.messages.reading import MessageReads
from sluiceway_gateway.provisioning.store import record_observation
from waiting import until


class _Server(uvicorn.Server):
    """A server that stops immediately; uvicorn's own polls every 100 ms."""

    ticking: asyncio.Task[None] | None = None

    async def main_loop(self) -> None:
        self.ticking = asyncio.ensure_future(super().main_loop())
        with suppress(asyncio.CancelledError):
            await self.ticking

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        await self.lifespan.shutdown()


@contextmanager
def serving(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Serve as `sluiceway serve` does, in a thread, on a loopback port; yield the URL.

    Port 0 is a free one.
    """
    bound = bound_socket("127.0.0.1", port)
    server = _Server(server_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    ticking = until(lambda: server.ticking or not thread.is_alive())
    assert isinstance(ticking, asyncio.Task), "the gateway did not start"
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        # The server waits for running requests, so end long polls first.
        app.state.parts.changes.close()
        ticking.get_loop().call_soon_threadsafe(ticking.cancel)
        thread.join(timeout=120)
        assert not thread.is_alive(), "the gateway did not stop"


UNREACHABLE = "127.0.0.1:1"
TOKEN_KEY = "k" * 40
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
TOPIC_ID = "dG9waWM"
FAR_FUTURE = datetime(2999, 1, 1, tzinfo=UTC)


class ManualClock:
    """A wall clock that tests advance, by a timedelta or seconds."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self.now = start

    def __call__(self) -> datetime:
        return self.now

    def advance(self, by: timedelta | float) -> None:
        self.now += by if isinstance(by, timedelta) else timedelta(seconds=by)


@dataclass(frozen=True, kw_only=True)
class Rig:
    """A running gateway, its database, and an HTTP client."""

    app: FastAPI
    url: str
    http: httpx.Client
    database: Database
    clock: ManualClock

    @property
    def tokens(self) -> Tokens:
        return self.app.state.parts.tokens

    def replace(self, **parts: object) -> None:
        """Replace services of the gateway, by their names in `Services`, for requests from now."""
        self.app.state.parts = replace(self.app.state.parts, **parts)

    def put(self, name: str = "flights", *, metadata: Any = None, **spec: Any) -> httpx.Response:
        """Create a channel with a default schema."""
        body = {"metadata": metadata or {}, "spec": {"schema": SCHEMA, **spec}}
        return self.http.put(f"/v1/channels/{name}", json=body)

    def token(self, *scopes: str, label: str = "test", **options: Any) -> dict[str, str]:
        """Create a token, and return its header."""
        token = self.tokens.create(label=label, scopes=scopes, **options)
        return {"Authorization": f"Bearer {token.text.get_secret_value()}"}

    def observe(self, name: str, phase: Phase, **status: Any) -> Channel:
        """Record an observation of a channel."""
        return observe(self.database, self.clock(), name, phase, **status)


def served(app: FastAPI) -> list[tuple[str, RouteContext]]:
    """Return each method of each route with the route; HEAD where there is GET."""
    routes = []
    for route in iter_route_contexts(app.routes):
        assert isinstance(route.original_route, APIRoute), "a mount would need a guard of its own"
        methods = route.original_route.methods
        methods = methods | {"HEAD"} if "GET" in methods else methods
        routes += [(method, route) for method in sorted(methods)]
    return routes


def insert_channel(
    database: Database, now: datetime, *, observed: ObservedTopic | None = None, **spec: Any
) -> Channel:
    """Insert a channel's row, as a request with this spec does, and return the channel.

    It adopts the `observed` topic.
    """
    name, schema = f"channel-{uuid.uuid4().hex[:8]}", Schema.parse(SCHEMA)
    # Not validated: tests use times below the bounds.
    request = Spec().model_copy(update=spec)
    with database.write() as tx:
        channel = create(
            tx, name, request, schema=schema, observed=observed, prefix="rig.", now=now
        )
    assert channel is not None
    return channel


def observe(database: Database, now: datetime, name: str, phase: Phase, **status: Any) -> Channel:
    """Record an observation as the reconciler does; by default, of a topic of the spec."""
    with database.write() as tx:
        before = channels_store.hold(tx, name)
        assert before is not None
        observed = replace(before, phase=phase)
        if phase is Phase.READY:
            topic = replace(before.topic, id=TOPIC_ID, partitions=before.spec.partitions)
            observed = replace(observed, topic=topic, observed_generation=before.generation)
        observed = replace(observed, **status)
        after = record_observation(tx, observed, was=before, now=now, due_at=FAR_FUTURE, refusals=0)
    assert after is not None
    return after


def until_ready(rig: Rig, status: int, body: Mapping[str, object]) -> None:
    """Wait for this response of `/readyz`: a check that takes seconds counts as failed."""
    until(lambda: (ready := rig.http.get("/readyz")).status_code == status and ready.json() == body)


#: The routes of the first gateway, for all: FastAPI builds an application's at its first requests,
#: which takes 70 ms. They have no state, and find services in the application of a request.
_routes: list[BaseRoute] = []


@contextmanager
def running(database: Database, url: str, **options: Any) -> Iterator[Rig]:
    """Run a gateway on a migrated database, without loops: the test has the lease."""
    with database.write() as tx:
        leases.acquire(tx, "reconcile", "the test", 3_600_000)
    clock = ManualClock()
    defaults: dict[str, Any] = {"kafka_bootstrap_servers": UNREACHABLE, "kafka_timeout_ms": 300}
    # Only changes end waits: one that is not published fails the test.
    defaults["watch_poll_ms"] = 60_000
    settings = Settings(database_url=url, token_key=TOKEN_KEY, **(defaults | options))
    app = create_app(settings, clock=clock)
    # Changes by the test are those of this replica.
    database.on_commit = app.state.parts.changes.publish
    _routes.extend(() if _routes else app.routes)
    app.router.routes[:] = _routes
    # Without certificate authorities, which take 20 ms to read: there is no TLS here.
    with (
        serving(app) as address,
        httpx.Client(base_url=address, timeout=60, verify=False) as http,  # noqa: S501
    ):
        yield Rig(app=app, url=address, http=http, database=database, clock=clock)


def patient_reads(app: FastAPI) -> FastAPI:
    """Let pages of messages have what is found in a minute, not in 4 s, as on a busy machine."""
    parts = app.state.parts
    reads = MessageReads(parts.database, parts.kafka, read_s=60.0)
    app.state.parts = replace(parts, message_reads=reads)
    return app


def result(response: httpx.Response) -> Any:
    """Check that the response is a success, and return its body."""
    assert response.is_success, response.text
    return response.json()


def code(response: httpx.Response) -> str:
    """Check the form of a problem response, and return its code."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    body = response.json()
    assert body["type"] == f"urn:sluiceway:problem:{body['code']}"
    assert body["status"] == response.status_code
    assert body["title"]
    assert body["detail"]
    assert isinstance(body["retriable"], bool)
    return str(body["code"])


def all_responses(url: str, channel: str) -> str:
    """Return the text of all responses about a channel and its endpoints."""
    base = f"/v1/channels/{channel}"
    with httpx.Client(base_url=url, timeout=30) as http:
        listed = http.get(f"{base}/endpoints").raise_for_status()
        paths = [base, f"{base}/status", "/v1/status?limit=1000", "/metrics"]
        paths += [f"{base}/endpoints/{endpoint['id']}" for endpoint in listed.json()["items"]]
        texts = [listed.text, *(http.get(path).raise_for_status().text for path in paths)]
        with http.stream("GET", f"{base}/status/events") as stream:
            texts.append(next(line for line in stream.iter_lines() if line.startswith("data:")))
    return "\n".join(texts)
