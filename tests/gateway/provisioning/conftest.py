"""The reconciler of a replica, on a real broker and both databases."""

from collections.abc import Iterator

import pytest

from reconciler_rig import Rig
from shared_kafka import SharedKafka
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.provisioning import reconciler
from topics import Topics


@pytest.fixture(autouse=True)
def _changes_of_topics_may_show_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pass wait longer for the brokers' metadata than one of a gateway, which has others."""
    pauses_s = (*reconciler._SETTLE_PAUSES_S, 1, 2, 4, 8, 16)
    monkeypatch.setattr(reconciler, "_SETTLE_PAUSES_S", pauses_s)


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
