"""Gateways on a real uvicorn, and their public view of a channel."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
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
from sluiceway_gateway.channels.model import Channel, Condition, Phase, TopicRef
from sluiceway_gateway.cli.serve import bound_socket
from sluiceway_gateway.db import leases
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.http.limits import limited_protocol
from sluiceway_gateway.provisioning.store import record_observation
from sluiceway_gateway.settings import Settings


class _Server(uvicorn.Server):
    """Stops at once; uvicorn's own server polls every tenth of a second."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop, self._told = asyncio.get_running_loop(), asyncio.Event()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        told = asyncio.ensure_future(self._told.wait())
        ticking = asyncio.ensure_future(super().main_loop())
        await asyncio.wait([told, ticking], return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
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
        self._loop.call_soon_threadsafe(self._told.set)


@contextmanager
def serving(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Serve on a loopback port (0: a free one), in a thread, in the block; yield the URL."""
    bound = bound_socket("127.0.0.1", port)
    protocol = limited_protocol(app.state.parts.settings)
    server = _Server(uvicorn.Config(app, log_config=None, lifespan="on", http=protocol, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 180
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the gateway did not start")
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        # The server waits for running requests, so end long polls first.
        app.state.parts.watch.close()
        server.end()
        thread.join(timeout=120)
        assert not thread.is_alive(), "the gateway did not stop"


NOBODY = "127.0.0.1:1"
KEY = "k" * 40
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
FAR = datetime(2999, 1, 1, tzinfo=UTC)


class ManualClock:
    """A wall clock that only tests advance, by a timedelta or seconds."""

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
    tokens: Tokens

    def put(self, name: str = "flights", *, metadata: Any = None, **spec: Any) -> httpx.Response:
        """Create the channel, with a schema."""
        body = {"metadata": metadata or {}, "spec": {"schema": SCHEMA, **spec}}
        return self.http.put(f"/v1/channels/{name}", json=body)

    def token(self, *scopes: str, label: str = "test", **options: Any) -> dict[str, str]:
        """Create a token and return the header that sends it."""
        made = self.tokens.create(label=label, scopes=scopes, **options)
        return {"Authorization": f"Bearer {made.text.get_secret_value()}"}

    def observe(self, name: str, phase: Phase, **status: Any) -> Channel:
        """Record an observation as the reconciler does."""
        with self.database.write() as tx:
            was = channels_store.hold(tx, name)
            assert was is not None
            seen = replace(was, phase=phase, **status)
            if phase is Phase.READY:
                topic = TopicRef(name=was.topic.name, id="dG9waWM", partitions=was.spec.partitions)
                seen = replace(seen, topic=topic, observed_generation=was.generation)
            following = record_observation(tx, seen, was=was, due_at=FAR, refusals=0)
        assert following is not None
        return following


def condition(reason: str, message: str, now: datetime) -> Condition:
    return Condition(
        type="Ready", status="False", reason=reason, message=message, last_transition_at=now
    )


@contextlib.contextmanager
def running(database: Database, url: str, **options: Any) -> Iterator[Rig]:
    """Run a gateway on a migrated database, without loops: the test holds the lease."""
    with database.write() as tx:
        leases.acquire(tx, "reconcile", "the test", 3_600_000)
    clock = ManualClock()
    given = {
        "kafka_bootstrap_servers": NOBODY,
        "kafka_timeout_ms": 300,
        "token_key": KEY,
        **options,
    }
    settings = Settings(database_url=url, **given)
    app = create_app(settings, clock=clock)
    # Without certificate authorities, which take 20 ms to read: there is no TLS here.
    with (
        serving(app) as address,
        httpx.Client(base_url=address, timeout=30, verify=False) as http,  # noqa: S501
    ):
        yield Rig(
            app=app,
            url=address,
            http=http,
            database=database,
            clock=clock,
            tokens=app.state.parts.tokens,
        )


def code(response: httpx.Response) -> str:
    """Return the code of a problem response, after checking its form."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    body = response.json()
    assert body["type"] == f"urn:sluiceway:problem:{body['code']}"
    assert body["status"] == response.status_code
    assert body["title"]
    assert body["detail"]
    assert isinstance(body["retriable"], bool)
    return str(body["code"])


__all__ = ["failed_cause", "views"]


def views(url: str, channel: str) -> str:
    """Return all responses about a channel, its endpoints and their history, as one text."""
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
        told = [each.text for each in responses]
        with http.stream("GET", f"{base}/status/events") as stream:
            told.append(next(line for line in stream.iter_lines() if line.startswith("data:")))
    return "\n".join(told)


def failed_cause(url: str, channel: str, role: str) -> str:
    """Return the cause of the channel's only failed endpoint of a role."""
    with httpx.Client(base_url=url, timeout=30) as http:
        listed = http.get(f"/v1/channels/{channel}/endpoints").raise_for_status().json()["items"]
    failed = [each for each in listed if (each["role"], each["state"]) == (role, "error")]
    (cause,) = (each["cause"] for each in failed)
    assert isinstance(cause, str)
    return cause
