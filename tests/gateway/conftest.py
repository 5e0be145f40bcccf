"""Running gateways on migrated databases."""

from collections.abc import Iterator

import pytest

from databases import Databases
from endpoints import Site, site
from gateways import ManualClock, Rig, running
from sluiceway_gateway.db.engine import Database


@pytest.fixture
def clock() -> ManualClock:
    """A wall clock that only tests advance."""
    return ManualClock()


@pytest.fixture
def rig(database: Database, database_url: str) -> Iterator[Rig]:
    """A gateway that runs, open to loopback, with Kafka away."""
    with running(database, database_url) as rig:
        yield rig


@pytest.fixture
def flights(rig: Rig) -> Site:
    """A ready channel of four partitions."""
    return site(rig, partitions=4)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared_rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A running gateway, for tests that leave it unchanged."""
    databases: Databases = request.getfixturevalue(request.param)
    url = databases.migrated()
    database = Database(url)
    with running(database, url) as rig:
        yield rig
    database.close()
