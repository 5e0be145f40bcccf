"""A gateway on a real uvicorn whose Kafka is away: rows stay as a test puts them."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from fastapi import FastAPI

from serving import serving
from sluiceway_gateway.app import create_app
from sluiceway_gateway.auth.service import Tokens
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Channel, Condition, Phase, TopicRef
from sluiceway_gateway.db import leases
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.provisioning.store import record_observation
from sluiceway_gateway.settings import Settings

NOBODY = "127.0.0.1:1"
KEY = "k" * 40
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
FAR = datetime(2999, 1, 1, tzinfo=UTC)


class TurnedClock:
    """A clock that goes only when it is turned."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def turn(self, by: timedelta) -> None:
        self.now += by


@dataclass(frozen=True, kw_only=True)
class Rig:
    """A gateway that runs, its database, and a client of it."""

    app: FastAPI
    url: str
    http: httpx.Client
    database: Database
    clock: TurnedClock
    tokens: Tokens

    def put(self, name: str = "flights", *, metadata: Any = None, **spec: Any) -> httpx.Response:
        """Make the channel, with a schema."""
        body = {"metadata": metadata or {}, "spec": {"schema": SCHEMA, **spec}}
        return self.http.put(f"/v1/channels/{name}", json=body)

    def token(self, *scopes: str, label: str = "test", **options: Any) -> dict[str, str]:
        """Make a token and return the header that sends it."""
        made = self.tokens.create(label=label, scopes=scopes, **options)
        return {"Authorization": f"Bearer {made.text.get_secret_value()}"}

    def observe(self, name: str, phase: Phase, **status: Any) -> Channel:
        """Write down what the reconciler would have seen."""
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
    """Run a gateway on a migrated database, its loops held off by a lease of the test's own."""
    with database.write() as tx:
        leases.acquire(tx, "reconcile", "the test", 3_600_000)
    clock = TurnedClock()
    given = {
        "kafka_bootstrap_servers": NOBODY,
        "kafka_timeout_ms": 300,
        "token_key": KEY,
        **options,
    }
    settings = Settings(database_url=url, **given)
    app = create_app(settings, clock=clock)
    # Without authorities to trust, which take 20 ms to read: nothing here is encrypted.
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
    """Return the code of a problem, after a look at its form."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    body = response.json()
    assert body["type"] == f"urn:sluiceway:problem:{body['code']}"
    assert body["status"] == response.status_code
    assert body["title"]
    assert body["detail"]
    assert isinstance(body["retriable"], bool)
    return str(body["code"])
