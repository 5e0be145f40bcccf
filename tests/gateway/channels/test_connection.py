import pytest
from sqlalchemy import text

from gateways import SCHEMA, UNREACHABLE, Rig, code, running
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.db.engine import Database

PATH = "/v1/channels/flights/connection"


@pytest.mark.sample
@pytest.mark.parametrize("access", ["read", "write"])
def test_a_ready_channel_returns_its_connection(rig: Rig, access: str) -> None:
    made = rig.put(partitions=3, format="arrow", config={"max.message.bytes": "2000000"}).json()
    rig.observe("flights", Phase.READY)
    assert rig.http.get(PATH, params={"access": access}).json() == {
        "channel": {"name": "flights", "uid": made["metadata"]["uid"], "generation": 1},
        "format": "arrow",
        "delivery": "at_least_once",
        "partitioner": "murmur2",
        "schema": {"id": 1, "version": 1, "definition": SCHEMA},
        "schemas": [{"id": 1, "version": 1, "definition": SCHEMA}],
        "topic": {
            "name": made["status"]["topic"]["name"],
            "id": "dG9waWM",
            "partitions": 3,
            "max_message_bytes": 2_000_000,
            "compacted": False,
        },
        "kafka": {"bootstrap.servers": UNREACHABLE},
    }


def test_clients_may_have_their_own_address_of_kafka(database: Database, database_url: str) -> None:
    with running(database, database_url, kafka_advertised_servers="kafka.example:1") as rig:
        rig.put()
        rig.observe("flights", Phase.READY)
        body = rig.http.get(PATH, params={"access": "read"}).json()
        assert body["kafka"] == {"bootstrap.servers": "kafka.example:1"}
        assert body["topic"]["max_message_bytes"] == 1_048_588


def test_a_channel_that_is_not_ready_returns_the_reason(rig: Rig) -> None:
    assert code(rig.http.get(PATH, params={"access": "read"})) == "channel_not_found"
    rig.put()
    lost = rig.observe("flights", Phase.FAILED).with_condition(
        "Ready", "False", "TopicMissing", "The topic vanished; delete the channel.", rig.clock()
    )
    rig.observe("flights", Phase.FAILED, conditions=lost.conditions)
    response = rig.http.get(PATH, params={"access": "write"})
    assert (response.status_code, code(response)) == (409, "channel_not_ready")
    assert "The topic vanished; delete the channel." in response.json()["detail"]
    assert response.json()["retriable"]


@pytest.mark.sample
@pytest.mark.parametrize(("topic", "how"), [("delete", "with"), ("keep", "without")])
def test_a_channel_that_is_being_deleted_says_what_to_do(rig: Rig, topic: str, how: str) -> None:
    uid = rig.put().json()["metadata"]["uid"]
    rig.http.delete("/v1/channels/flights", params={"uid": uid, "topic": topic})
    response = rig.http.get(PATH, params={"access": "write"})
    assert (response.status_code, code(response)) == (409, "channel_not_ready")
    assert response.json()["detail"] == (
        f"The channel 'flights' is being deleted, {how} its topic: use another one, or create it "
        "again once it is gone."
    )


@pytest.mark.parametrize("parameters", [{}, {"access": "raed"}, {"access": "read", "x": "1"}])
def test_the_purpose_of_a_connection_is_required(
    shared_rig: Rig, parameters: dict[str, str]
) -> None:
    response = shared_rig.http.get(PATH, params=parameters)
    assert (response.status_code, code(response)) == (422, "invalid_request")


def test_connecting_leaves_no_trace(rig: Rig) -> None:
    def everything() -> list[object]:
        tables = ("channels", "schemas", "channel_schemas", "requests", "tokens")
        with rig.database.read() as tx:
            return [list(tx.execute(text(f"SELECT * FROM {table}"))) for table in tables]  # noqa: S608

    rig.put()
    rig.observe("flights", Phase.READY)
    before = everything()
    assert rig.http.get(PATH, params={"access": "read"}).status_code == 200
    assert everything() == before
