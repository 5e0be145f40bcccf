from collections.abc import Iterator

import pytest

from gateways import Rig, code, running, until_ready
from shared_kafka import SharedKafka
from sluiceway_gateway.core.db.engine import Database


@pytest.fixture
def rig_with_kafka(database: Database, database_url: str, kafka: SharedKafka) -> Iterator[Rig]:
    """A gateway with Kafka and without loops."""
    servers = kafka.bootstrap_servers
    with running(
        database, database_url, kafka_bootstrap_servers=servers, kafka_timeout_ms=20_000
    ) as rig:
        yield rig


@pytest.mark.sample
def test_more_replicas_than_brokers_are_refused_and_nothing_is_created(rig_with_kafka: Rig) -> None:
    response = rig_with_kafka.put(replication=2)
    assert (response.status_code, code(response)) == (409, "replication_exceeds_brokers")
    assert "Kafka has 1" in response.json()["detail"]
    assert rig_with_kafka.http.get("/v1/channels/flights").status_code == 404
    assert rig_with_kafka.put(replication=1).status_code == 201


def test_a_gateway_is_ready_when_database_and_kafka_answer(rig_with_kafka: Rig) -> None:
    body = {"database": True, "kafka": True, "reasons": {}, "loops": {}}
    until_ready(rig_with_kafka, 200, body)
