"""The reconciler of a replica, on a real broker and both databases."""

from collections.abc import Iterator

import pytest

from reconciler_rig import Rig
from shared_kafka import SharedKafka
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from topics import Topics


@pytest.fixture(scope="session")
def admin(kafka: SharedKafka) -> Iterator[KafkaAdmin]:
    client = KafkaAdmin(kafka.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def rig(database: Database, admin: KafkaAdmin) -> Rig:
    return Rig(database=database, kafka=admin)


@pytest.fixture(scope="session")
def operator(kafka: SharedKafka) -> Topics:
    """Changes topics without the gateway."""
    return Topics(kafka.bootstrap_servers)
