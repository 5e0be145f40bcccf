"""Fixtures of the client's tests."""

from collections.abc import Iterator

import pytest
from real_topics import Outage, Topics

from sluiceway_gateway.embedded import KafkaServer


@pytest.fixture(scope="session")
def topics(kafka: KafkaServer) -> Topics:
    return Topics(kafka.bootstrap_servers)


@pytest.fixture(params=["avro", "arrow"])
def each_format(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def fragile_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    outage = Outage(tmp_path_factory.mktemp("fragile-kafka"))
    yield outage
    outage.begin()


@pytest.fixture
def outage(fragile_kafka: Outage) -> Outage:
    """A broker that answers, until the test says otherwise."""
    fragile_kafka.end()
    return fragile_kafka
