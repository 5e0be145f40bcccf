"""The secured broker, a gateway that reaches it by a password, and clean surroundings."""

import os
from collections.abc import Iterator

import pytest
from secured_kafka import SecuredKafka, secured_kafka


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with secured_kafka(tmp_path_factory.mktemp("secured-kafka")) as kafka:
        yield kafka


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("SLUICEWAY_") and name != "SLUICEWAY_IVY_SETTINGS":
            monkeypatch.delenv(name)
