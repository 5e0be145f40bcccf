"""pykafka's Broker with tokens of different scopes, and without Kafka."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from databases import Databases
from endpoints import site
from gateways import Rig, running
from sluiceway.broker import (
    Broker,
    PartitionFetchRequest,
    PartitionOffsetFetchRequest,
    PartitionOffsetRequest,
)
from sluiceway.broker.exceptions import (
    GroupAuthorizationFailed,
    SocketDisconnectedError,
    TopicAuthorizationFailed,
)
from sluiceway.errors import Unauthenticated
from sluiceway_gateway.core.db.engine import Database


@pytest.fixture
def rig(sqlite: Databases) -> Iterator[Rig]:
    """A gateway on one database; the Broker does not depend on the database."""
    url = sqlite.migrated()
    database = Database(url)
    with running(database, url) as rig:
        yield rig
    database.close()


def broker_with(rig: Rig, *scopes: str) -> Broker:
    """Return a Broker with a token of these scopes."""
    at = urlsplit(rig.url)
    assert at.hostname is not None
    assert at.port is not None
    token = rig.token(*scopes)["Authorization"].removeprefix("Bearer ")
    return Broker(0, at.hostname, at.port, None, 20_000, 20_000, token=token)


def test_requests_outside_the_tokens_scope_are_refused_with_pykafkas_errors(rig: Rig) -> None:
    site(rig, "flights")
    with broker_with(rig, "read:trains.", "write:flights") as broker:
        assert broker.connected
        told = broker.fetch_messages([PartitionFetchRequest("flights", 0, 0)])
        assert told.topics["flights"][0].err == TopicAuthorizationFailed.ERROR_CODE
        joined = broker.join_group("c", b"g", b"", b"flights")
        assert joined.error_code == GroupAuthorizationFailed.ERROR_CODE
        metadata = broker.request_metadata([b"flights"])
        assert metadata.topics["flights"].err == TopicAuthorizationFailed.ERROR_CODE
    with broker_with(rig, "read:flights") as broker:
        joined = broker.join_group("c", b"g", b"", b"flights").check()
        broker.sync_group("c", b"g", joined.generation_id, joined.member_id, []).check()
        asked = [PartitionOffsetFetchRequest("flights", 0)]
        broker.fetch_consumer_group_offsets(b"g", asked).check()


def test_without_kafka_requests_fail_and_groups_continue(rig: Rig) -> None:
    site(rig, "flights", partitions=2)
    at = urlsplit(rig.url)
    with Broker(0, str(at.hostname), at.port or 0, None, 20_000) as broker:
        # For Kafka; the gateway has the longer time.
        assert broker.handler is not None
        broker.handler.timeout_s = 0.5
        for ask in (
            lambda: broker.fetch_messages([PartitionFetchRequest("flights", 0, 0)]),
            lambda: broker.request_offset_limits([PartitionOffsetRequest("flights", 0, -1, 1)]),
            lambda: broker.request_metadata(["flights"]),
        ):
            with pytest.raises(SocketDisconnectedError):
                ask()
            assert not broker.connected
        assert broker.join_group("c", b"g", b"", b"flights").error_code == 0
        assert broker.connected


def test_an_unknown_token_refuses_the_connection(rig: Rig) -> None:
    rig.token("admin")
    at = urlsplit(rig.url)
    with pytest.raises(Unauthenticated):
        Broker(0, str(at.hostname), at.port or 0, None, 20_000, token="slw_nobody_knows")
