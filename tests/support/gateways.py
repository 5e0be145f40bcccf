"""Gateways on a real uvicorn, and their public view of a channel."""

import asyncio
import contextlib
import json
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from sluiceway_gateway.app import create_app
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import (
    Channel,
    ChannelSpec,
    Condition,
    Phase,
    SchemaVersion,
    TopicRef,
    topic_name,
)
from sluiceway_gateway.cli.serve import bound_socket, server_config
from sluiceway_gateway.db import leases
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.messages.reading import MessageReads
from sluiceway_gateway.provisioning.store import record_observation
from sluiceway_gateway.schemas import store as schemas_store
from sluiceway_gateway.settings import Settings
from waiting import until


class _Server(uvicorn.Server):
    """A server that stops immediately; uvicorn's own polls every 100 ms."""

    ticking: asyncio.Task[None] | None = None

    async def main_loop(self) -> None:
        self.ticking = asyncio.ensure_future(super().main_loop())
        with contextlib.suppress(asyncio.CancelledError):
            await self.ticking

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        await self.lifespan.shutdown()


@contextmanager
def serving(app: FastAPI, port: int = 0, *, send_buffer_bytes: int | None = None) -> Iterator[str]:
    """Serve as `sluiceway serve` does, in a thread, on a loopback port; yield the URL.

    Port 0 is a free one.
    """
    bound = bound_socket("127.0.0.1", port)
    if send_buffer_bytes is not None:
        # Connections inherit it.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    server = _Server(server_config(app))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    ticking = until(lambda: server.ticking or not thread.is_alive())
    assert isinstance(ticking, asyncio.Task), "the gateway did not start"
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        # The server waits for running requests, so end long polls first.
        app.state.parts.watch.close()
        ticking.get_loop().call_soon_threadsafe(ticking.cancel)
        thread.join(timeout=120)
        assert not thread.is_alive(), "the gateway did not stop"


UNREACHABLE = "127.0.0.1:1"
TOKEN_KEY = "k" * 40
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
FAR_FUTURE = datetime(2999, 1, 1, tzinfo=UTC)


class ManualClock:
    """A wall clock that tests advance, by a timedelta or seconds; each look takes `look_s`."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self.now = start
        self.look_s = 0

    def __call__(self) -> datetime:
        self.advance(self.look_s)
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
    tokens: Tokens

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
        """Record an observation as the reconciler does; by default, of a topic of the spec."""
        with self.database.write() as tx:
            before = channels_store.hold(tx, name)
            assert before is not None
            observed = replace(before, phase=phase)
            if phase is Phase.READY:
                topic = replace(before.topic, id="dG9waWM", partitions=before.spec.partitions)
                observed = replace(observed, topic=topic, observed_generation=before.generation)
            observed = replace(observed, **status)
            after = record_observation(
                tx, observed, was=before, now=self.clock(), due_at=FAR_FUTURE, refusals=0
            )
        assert after is not None
        return after


def insert_channel(
    database: Database,
    now: datetime,
    *,
    phase: Phase = Phase.PROVISIONING,
    topic: TopicRef | None = None,
    adopted: bool = False,
    **spec: Any,
) -> Channel:
    """Insert a channel's row, as a request does, and return the channel."""
    uid = uuid.uuid4().hex
    name = f"channel-{uid[:8]}"
    definition = json.dumps(SCHEMA, separators=(",", ":"), sort_keys=True)
    default = TopicRef(name=topic_name("rig.", name, uid))
    if phase is Phase.READY:
        default = replace(default, id="t", partitions=spec["partitions"])
    with database.write() as tx:
        id_ = schemas_store.register(tx, fingerprint="one", definition=definition, now=now)
        version = SchemaVersion(
            id=id_, version=1, fingerprint="one", definition=definition, created_at=now
        )
        channel = Channel(
            name=name,
            uid=uid,
            labels={},
            generation=1,
            revision=1,
            created_at=now,
            spec=ChannelSpec(schema=definition, **spec),
            schema_id=id_,
            schema_version=1,
            phase=phase,
            observed_generation=0,
            conditions=(),
            topic=topic or default,
            adopted=adopted,
        )
        assert channels_store.insert(tx, channel)
        schemas_store.assign(tx, channel_uid=uid, version=version)
    return channel


def until_ready(rig: Rig, status: int, body: Mapping[str, object]) -> None:
    """Wait for this response of `/readyz`: a check that takes seconds counts as failed."""
    until(lambda: (ready := rig.http.get("/readyz")).status_code == status and ready.json() == body)


def condition(reason: str, message: str, now: datetime) -> Condition:
    return Condition(
        type="Ready", status="False", reason=reason, message=message, last_transition_at=now
    )


@contextlib.contextmanager
def running(
    database: Database, url: str, *, send_buffer_bytes: int | None = None, **options: Any
) -> Iterator[Rig]:
    """Run a gateway on a migrated database, without loops: the test has the lease."""
    with database.write() as tx:
        leases.acquire(tx, "reconcile", "the test", 3_600_000)
    clock = ManualClock()
    options_with_defaults = {
        "kafka_bootstrap_servers": UNREACHABLE,
        "kafka_timeout_ms": 300,
        "token_key": TOKEN_KEY,
        **options,
    }
    settings = Settings(database_url=url, **options_with_defaults)
    app = create_app(settings, clock=clock)
    # Without certificate authorities, which take 20 ms to read: there is no TLS here.
    with (
        serving(app, send_buffer_bytes=send_buffer_bytes) as address,
        httpx.Client(base_url=address, timeout=60, verify=False) as http,  # noqa: S501
    ):
        yield Rig(
            app=app,
            url=address,
            http=http,
            database=database,
            clock=clock,
            tokens=app.state.parts.tokens,
        )


def patient_reads(app: FastAPI) -> FastAPI:
    """Let pages of messages have what is found in a minute, not in 4 s, as on a busy machine."""
    parts = app.state.parts
    reads = MessageReads(parts.database, parts.kafka, read_s=60.0)
    app.state.parts = replace(parts, message_reads=reads)
    return app


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
