"""Another Kafka cluster than the recorded one: refused, until an operator accepts it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from databases import SQLite
from endpoints import fresh_id, site
from gateways import SCHEMA, code, running, serving, until_ready
from shared_kafka import SharedKafka
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import AccessProblem, KafkaUnavailable
from sluiceway_gateway.core.kafka import cluster_store
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.cluster_identity import ClusterIdentity
from sluiceway_gateway.core.settings import Settings
from waiting import until

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Seconds:
    """A monotonic clock that only tests advance."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def identity(database: Database, accepted: str | None = None, **options: Any) -> ClusterIdentity:
    return ClusterIdentity(database, accepted=accepted, clock=lambda: NOW, **options)


def recorded(database: Database) -> str | None:
    with database.read() as tx:
        return cluster_store.recorded_id(tx)


def record(database: Database, cluster_id: str) -> None:
    """Record the cluster, as if the gateway had found it."""
    was = recorded(database)
    with database.write() as tx:
        if was is None:
            cluster_store.record_first(tx, cluster_id, now=NOW)
        else:
            assert cluster_store.replace_id(tx, cluster_id, was=was, now=NOW)


def test_the_first_cluster_is_recorded_and_another_is_refused(database: Database) -> None:
    identity(database).compare("first")
    assert recorded(database) == "first"
    later = identity(database)
    later.compare("first")
    with pytest.raises(KafkaUnavailable, match="SLUICEWAY_KAFKA_CLUSTER_ID=other") as raised:
        later.compare("other")
    assert raised.value.access_failure is not None
    assert raised.value.access_failure.problem is AccessProblem.CLUSTER
    assert (later.refuses, recorded(database)) == (True, "first")
    later.compare("first")
    assert not later.refuses


def test_a_cluster_without_an_id_is_not_compared(database: Database) -> None:
    identity(database).compare(None)
    assert recorded(database) is None
    identity(database).compare("first")
    identity(database).compare(None)


def test_the_setting_names_the_only_cluster(database: Database) -> None:
    with pytest.raises(KafkaUnavailable, match="SLUICEWAY_KAFKA_CLUSTER_ID is right"):
        identity(database, "right").compare("wrong")
    assert recorded(database) is None
    identity(database, "right").compare("right")
    assert recorded(database) == "right"


def test_the_setting_replaces_the_recorded_cluster_once_per_process(database: Database) -> None:
    identity(database).compare("old")
    staying, moving = identity(database, "old"), identity(database, "new")
    staying.compare("old")
    moving.compare("new")
    assert recorded(database) == "new"
    # Otherwise two replicas with different settings would take turns.
    with pytest.raises(KafkaUnavailable, match="cluster new"):
        staying.compare("old")
    moving.compare("new")
    assert recorded(database) == "new"


def test_requests_compare_again_after_ten_seconds(database: Database) -> None:
    clock, answers = Seconds(), ["first", "other", "first"]
    compared = identity(database, monotonic=clock)
    asked: list[bool] = []

    def describe(must_answer: bool) -> str:
        asked.append(must_answer)
        return answers[len(asked) - 1]

    for clock.now in (0, 9.9):
        compared.require(describe)
    for clock.now in (10, 19.9):
        with pytest.raises(KafkaUnavailable, match="cluster id is other"):
            compared.require(describe)
    clock.now = 20
    compared.require(describe)
    assert asked == [True, False, False]


def test_a_kafka_that_does_not_answer_keeps_the_last_result(database: Database) -> None:
    clock = Seconds()
    compared = identity(database, monotonic=clock)

    def silent(_must_answer: bool) -> str:
        raise KafkaUnavailable("no answer")

    with pytest.raises(KafkaUnavailable, match="no answer"):
        compared.require(silent)
    compared.require(lambda _must_answer: "first")
    clock.now = 10
    # The request itself goes to other brokers, which may answer.
    compared.require(silent)


def test_no_request_about_topics_reaches_another_cluster(
    database: Database, kafka: SharedKafka
) -> None:
    record(database, "elsewhere")
    admin = KafkaAdmin(kafka.bootstrap_servers, identity=identity(database))
    for refused in (
        lambda: admin.observe(["topic"]),
        lambda: admin.describe_topic("topic"),
        lambda: admin.end_offsets("topic", [0]),
        lambda: admin.newest("topic", [0]),
        lambda: admin.delete_topics(["topic"]),
        lambda: admin.commit_offsets({"group": {("topic", 0): 1}}),
        admin.require_cluster,
    ):
        with pytest.raises(KafkaUnavailable, match="in the cluster elsewhere"):
            refused()
    assert admin.answered(60) is False
    cluster_id = admin.describe_cluster().cluster_id
    assert cluster_id is not None
    record(database, cluster_id)
    admin.require_cluster()
    assert admin.describe_topic("no-such-topic") is None
    assert admin.answered(60) is True


def test_positions_are_committed_while_kafka_is_another_cluster(
    database: Database, database_url: str, kafka: SharedKafka
) -> None:
    record(database, "elsewhere")
    servers = kafka.bootstrap_servers
    with running(
        database, database_url, kafka_bootstrap_servers=servers, kafka_timeout_ms=20_000
    ) as rig:
        reasons = {"kafka": "WrongKafkaCluster"}
        body = {"database": True, "kafka": False, "reasons": reasons, "loops": {}}
        until_ready(rig, 503, body)
        assert "sluiceway_kafka_up 0.0" in rig.http.get("/metrics").text
        flights = site(rig, partitions=2)
        reader = flights.attach(group="g", index=0, size=1)
        assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
        adopted = rig.put("adopted", topic={"name": "some-topic"})
        assert (adopted.status_code, code(adopted)) == (503, "kafka_unavailable")
        assert "in the cluster elsewhere" in adopted.json()["detail"]


def phase_of(http: httpx.Client, name: str) -> str:
    phase: str = http.get(f"/v1/channels/{name}").json()["status"]["phase"]
    return phase


@pytest.mark.long
def test_a_gateway_that_starts_with_another_cluster_leaves_its_channels_alone(
    kafka: SharedKafka, tmp_path: Path, sqlite: SQLite
) -> None:
    url, name = sqlite.migrated(), f"moved-{fresh_id()[:8]}"

    def gateway(servers: str, **options: Any) -> Any:
        settings = Settings(
            database_url=url, kafka_bootstrap_servers=servers, resync_s=1, **options
        )
        return serving(create_app(settings))

    def checked(http: httpx.Client) -> float:
        """Return how many checks of channels have ended."""
        lines = http.get("/metrics").text.splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith("sluiceway_reconciled_channels_total")
        )

    def client(address: str) -> httpx.Client:
        return httpx.Client(base_url=address, timeout=60)

    with gateway(kafka.bootstrap_servers) as address, client(address) as http:
        http.put(f"/v1/channels/{name}", json={"spec": {"schema": SCHEMA}}).raise_for_status()
        until(lambda: phase_of(http, name) == "ready")
    with kafka.another(tmp_path) as other:
        with gateway(other.bootstrap_servers) as address, client(address) as http:
            until(lambda: http.get("/readyz").json()["reasons"] == {"kafka": "WrongKafkaCluster"})
            before = checked(http)
            # Two checks that miss a topic would fail its channel.
            until(lambda: checked(http) >= before + 3)
            assert phase_of(http, name) == "ready"
            cluster_id = http.get("/v1/cluster").json()["cluster_id"]
        accepted = {"kafka_cluster_id": cluster_id}
        with gateway(other.bootstrap_servers, **accepted) as address, client(address) as http:
            until(lambda: phase_of(http, name) == "failed")
            until(lambda: http.get("/readyz").status_code == 200)
