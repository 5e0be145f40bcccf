"""Fixtures for the tests of sluiceway.confluent."""

import confluent_kafka
import pytest

from sluiceway.confluent import Consumer, Producer


@pytest.fixture
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let closing and leaving take a second at most."""
    # Users have no option for the limit of 10 s.
    monkeypatch.setattr("sluiceway.confluent.coordinator._LEAVE_TIMEOUT_S", 1.0)


@pytest.fixture
def substituted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let confluent-kafka's asyncio clients use ours, as docs/coming-from.md says."""
    # Once the test's channel is filled, by confluent-kafka's own.
    assert name
    for client in (Consumer, Producer):
        # They have no parameter for it.
        monkeypatch.setattr(confluent_kafka, client.__name__, client)
