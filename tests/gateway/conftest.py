"""Running gateways on migrated databases."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import make_url

from databases import Databases, WatchedDatabase
from endpoints import Site, site
from gateways import ManualClock, Rig, running
from ledger_sites import LedgerSite, ledger_site, written_topic
from shared_kafka import SharedKafka
from sluiceway_gateway.channels.model import TopicRef
from sluiceway_gateway.core.db.engine import Database


@pytest.fixture
def clock() -> ManualClock:
    """A wall clock that only tests advance."""
    return ManualClock()


@pytest.fixture
def rig(database: Database, database_url: str) -> Iterator[Rig]:
    """A running gateway on loopback, without Kafka."""
    with running(database, database_url) as rig:
        yield rig


@pytest.fixture
def patient_database(database_url: str) -> Iterator[WatchedDatabase]:
    """A migrated database, for tests that hold a transaction open: it may last a minute."""
    url = make_url(database_url)
    if url.get_backend_name() == "postgresql":
        idle = "-c idle_in_transaction_session_timeout=60000"
        url = url.update_query_dict({"options": idle})
    with closing(WatchedDatabase(url.render_as_string(False), wait_ms=60_000)) as database:
        yield database


@pytest.fixture
def flights(rig: Rig) -> Site:
    """A ready channel of four partitions."""
    return site(rig, partitions=4)


@pytest.fixture(scope="session")
def written(kafka: SharedKafka) -> TopicRef:
    """A topic of four partitions, each with a thousand records."""
    return written_topic(kafka.bootstrap_servers, partitions=4, records=1000)


@pytest.fixture
def ledger(
    database: Database, database_url: str, kafka: SharedKafka, written: TopicRef
) -> Iterator[LedgerSite]:
    """A ready channel with exactly-once delivery, on that topic."""
    servers = kafka.bootstrap_servers
    with running(
        database, database_url, kafka_bootstrap_servers=servers, kafka_timeout_ms=20_000
    ) as rig:
        yield ledger_site(rig, written)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared_rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A running gateway, for tests that leave it unchanged."""
    databases: Databases = request.getfixturevalue(request.param)
    url = databases.migrated()
    database = Database(url)
    with running(database, url) as rig:
        yield rig
    database.close()
