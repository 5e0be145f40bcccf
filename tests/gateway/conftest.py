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
