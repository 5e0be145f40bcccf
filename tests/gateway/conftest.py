"""Databases that are migrated, and gateways that run on them."""

from collections.abc import Iterator

import pytest
from gateway_rig import Rig, TurnedClock, running

from sluiceway_gateway.services.migration import migrate
from sluiceway_gateway.store.engine import Database


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A migrated database, once on SQLite and once on PostgreSQL."""
    migrate(database_url)
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def clock() -> TurnedClock:
    """A clock that goes only when it is turned."""
    return TurnedClock()


@pytest.fixture
def rig(database: Database, database_url: str) -> Iterator[Rig]:
    """A gateway that runs, open to loopback, with Kafka away."""
    with running(database, database_url) as rig:
        yield rig


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    """A gateway that runs, for tests that leave it as it was."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('shared') / 'gateway.db'}"
    else:
        url = request.getfixturevalue("postgres").new_database()
    migrate(url)
    database = Database(url)
    with running(database, url) as rig:
        yield rig
    database.close()
