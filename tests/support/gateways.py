"""Gateways on a real uvicorn, and their public view of a channel."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import httpx
import uvicorn
from fastapi import FastAPI

from relay import Relay
from sluiceway_gateway.app import create_app
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel, Condition, Phase
from sluiceway_gateway.cli.serve import bound_socket, server_config
from sluiceway_gateway.db import leases
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.db.revision import migrate
from sluiceway_gateway.errors import KafkaUnavailable
from sluiceway_gateway.messages.reading import MessageReads
from sluiceway_gateway.provisioning.store import record_observation
from sluiceway_gateway.settings import Settings
from waiting import until


class _Server(uvicorn.Server):
    """A server that stops immediately; uvicorn's own polls every 100 ms."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()

    async def main_loop(self) -> None:
        stopping = asyncio.ensure_future(self._stopping.wait())
        ticking = asyncio.ensure_future(super().main_loop())
        await asyncio.wait([stopping, ticking], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        ticking.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for each in (*self.servers, *(sockets or ())):
            each.close()
        await self.lifespan.shutdown()

    def end(self) -> None:
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._stopping.set)


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
    if not server.ready.wait(timeout=180) or not server.started:
        raise RuntimeError("the gateway did not start")
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        # The server waits for running requests, so end long polls first.
        app.state.parts.watch.close()
        server.end()
        thread.join(timeout=120)
        assert not thread.is_alive(), "the gateway did not stop"


class RestartableGateway:
    """A gateway that can be stopped, and started again with its address and its database.

    A relay keeps the port meanwhile, which another process could take.
    """

    def __init__(self, settings: Settings) -> None:
        """Create the tables, and start the gateway."""
        migrate(settings.database_url.get_secret_value())
        self._settings = settings
        self._running = contextlib.ExitStack()
        self._relay = Relay(self._serve())
        self.url = self._relay.url

    def stop(self) -> None:
        """Close and refuse connections, and end the gateway."""
        self._relay.cut()
        self._running.close()

    def start(self) -> None:
        self._relay.forward_to(self._serve())
        self._relay.restore()

    def close(self) -> None:
        self.stop()
        self._relay.close()

    def _serve(self) -> int:
        """Start the gateway, and return its own port."""
        url = self._running.enter_context(serving(create_app(self._settings)))
        return httpx.URL(url).port or 0


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

    def fail_checks_of_kafka(self) -> None:
        """Let `/readyz` and metrics find at once that Kafka is away, which else takes 2 s."""
        away = KafkaUnavailable("away")
        self.replace(kafka=Mock(answered=lambda _: False, require_cluster=Mock(side_effect=away)))

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


def until_ready(rig: Rig, status: int, body: Mapping[str, object]) -> None:
    """Wait for this response of `/readyz`: a check that takes seconds counts as failed."""

    def responds() -> bool:
        ready = rig.http.get("/readyz")
        return (ready.status_code, ready.json()) == (status, body)

    until(responds)


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


__all__ = ["all_responses", "failed_cause"]


def all_responses(url: str, channel: str) -> str:
    """Return the text of all responses about a channel and its endpoints."""
    with httpx.Client(base_url=url, timeout=30) as http:

        def read(path: str) -> httpx.Response:
            return http.get(path).raise_for_status()

        base = f"/v1/channels/{channel}"
        listed = read(f"{base}/endpoints")
        responses = [
            read(base),
            read(f"{base}/status"),
            read("/v1/status?limit=1000"),
            read("/metrics"),
            listed,
            *(read(f"{base}/endpoints/{each['id']}") for each in listed.json()["items"]),
        ]
        texts = [each.text for each in responses]
        with http.stream("GET", f"{base}/status/events") as stream:
            texts.append(next(line for line in stream.iter_lines() if line.startswith("data:")))
    return "\n".join(texts)


def failed_cause(url: str, channel: str, role: str) -> str:
    """Return the cause of the channel's only failed endpoint of a role."""
    with httpx.Client(base_url=url, timeout=30) as http:
        listed = http.get(f"/v1/channels/{channel}/endpoints").raise_for_status().json()["items"]
    failed = [each for each in listed if (each["role"], each["state"]) == (role, "error")]
    (cause,) = (each["cause"] for each in failed)
    assert isinstance(cause, str)
    return cause
