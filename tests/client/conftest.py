"""Fixtures of the client's tests."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partialmethod
from typing import Any

import httpx
import pytest

from broker_calls import broker_at
from confluent_facade import Facade
from ledger_view import LedgerView
from relay import Relay
from scripted_gateway import Script, scripted
from shared_kafka import SharedKafka
from sluiceway import Channel, ChannelReader, Gateway, Heartbeat
from sluiceway.api.endpoints import AttachResult
from sluiceway.api.ledger import LedgerCalls
from sluiceway.api.transport import Transport
from sluiceway.broker import Broker
from sluiceway.confluent import Consumer
from topics import DEFINITION, Topics

Refusing = Callable[[int, str | None], AbstractContextManager[Script]]


@pytest.fixture(scope="session")
def topics(kafka: SharedKafka) -> Topics:
    return Topics(kafka.bootstrap_servers)


@pytest.fixture(scope="session")
def ledger(gateway_url: str) -> Iterator[LedgerView]:
    with closing(LedgerCalls(Transport(gateway_url))) as calls:
        yield LedgerView(calls)


@pytest.fixture(params=["avro", "arrow"])
def each_format(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["own", "shared"])
def each_stream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with readers that have their own connections, and with shared connections."""
    name: str = request.param
    if name == "shared":
        for owner, method in ((ChannelReader, "__init__"), (Channel, "reader")):
            shared = partialmethod(getattr(owner, method), share_connection=True)
            # Tests of both kinds of connections call the same lines.
            monkeypatch.setattr(owner, method, shared)
    return name


@pytest.fixture
def brief_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers wait a second for the next attempt of a writer that has failed."""
    # With so short a heartbeat timeout, a busy machine would lose endpoints.
    monkeypatch.setattr(AttachResult, "replacement_timeout_s", 1.0)


@pytest.fixture
def fragile_topics(fragile_kafka: Relay) -> Topics:
    """Topics of that broker."""
    return Topics(fragile_kafka.address)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    for name in ("SLUICEWAY_URL", "SLUICEWAY_TOKEN", "SLUICEWAY_TOKEN_FILE", "SLUICEWAY_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    with scripted() as script:
        yield script


@pytest.fixture
def gateway(gateway_url: str) -> Iterator[Gateway]:
    """A client of the session's gateway."""
    with Gateway(gateway_url) as gateway:
        yield gateway


@pytest.fixture
def relay(gateway_url: str) -> Iterator[Relay]:
    """A way to the session's gateway that tests can disturb."""
    with closing(Relay(httpx.URL(gateway_url).port or 0)) as relay:
        yield relay


@pytest.fixture
def refusing(relay: Relay, script: Script) -> Refusing:
    """Put a gateway, or a proxy, that refuses each request behind the relay for a block."""

    @contextmanager
    def refusing(status: int, code: str | None) -> Iterator[Script]:
        gateway = relay.target
        assert isinstance(gateway, int)
        script.refuse(status, code)
        relay.forward_to(httpx.URL(script.url).port or 0)
        try:
            yield script
        finally:
            relay.forward_to(gateway)

    return refusing


@pytest.fixture
def new_channel(gateway_url: str) -> Iterator[Callable[..., Channel]]:
    """Create a channel of readings with a short heartbeat interval."""
    with Gateway(gateway_url) as gateway:

        def make(**wishes: Any) -> Channel:
            heartbeat = wishes.pop("heartbeat", Heartbeat(interval_ms=200, timeout_ms=60_000))
            name = f"readings-{uuid.uuid4().hex[:8]}"
            return gateway.channel(name, schema=DEFINITION, heartbeat=heartbeat, **wishes)

        yield make


@pytest.fixture
def channel(new_channel: Callable[..., Channel]) -> Channel:
    return new_channel(partitions=2)


@pytest.fixture(scope="session")
def site(gateway_url: str) -> Iterator[Facade]:
    """The session's gateway, for code with confluent-kafka's interface."""
    with Gateway(gateway_url) as gateway:
        yield Facade(gateway_url, gateway)


@pytest.fixture
def consumer(site: Facade) -> Iterator[Callable[..., Consumer]]:
    """Create a consumer that is closed at the end."""
    made: list[Consumer] = []

    def make(**config: Any) -> Consumer:
        made.append(site.consumer(**config))
        return made[-1]

    yield make
    for made_consumer in made:
        made_consumer.close()


# Its writers stay attached until it is closed, and so add to each heartbeat.
@pytest.fixture(scope="module")
def broker(gateway_url: str) -> Iterator[Broker]:
    """A shared Broker with pykafka's interface: each has its own Kafka clients."""
    with broker_at(gateway_url) as broker:
        yield broker
