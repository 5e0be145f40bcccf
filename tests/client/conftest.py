"""Fixtures of the client's tests."""

from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def outage(tmp_path: Path) -> Iterator[Outage]:
    outage = Outage(tmp_path / "kafka")
    yield outage
    outage.begin()
