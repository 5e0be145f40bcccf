"""Kafka's secured listeners, a secured gateway, and an environment without settings."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from secured import SecuredGateway, SecuredKafka, secured_gateway, secured_kafka
from shared_kafka import SharedKafka


@pytest.fixture(scope="package")
def secured(kafka: SharedKafka) -> SecuredKafka:
    return secured_kafka(kafka)


@pytest.fixture(scope="package")
def secured_service(
    secured: SecuredKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredGateway]:
    with secured_gateway(secured, tmp_path_factory.mktemp("secured-gateway")) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SLUICEWAY_") and name not in _EMBEDDED_BROKER:
            monkeypatch.delenv(name)


_EMBEDDED_BROKER = ("SLUICEWAY_IVY_SETTINGS", "SLUICEWAY_CACHE_DIR")


@pytest.fixture
def environment(
    secured_service: SecuredGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> SecuredGateway:
    """The secured gateway, with a client's settings in environment variables."""
    for name, value in secured_service.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return secured_service
