"""Fixtures for the tests of sluiceway.confluent: time limits for which users have no option."""

import confluent_kafka
import pytest

from sluiceway.confluent import Consumer, Producer


@pytest.fixture
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let closing and leaving take a second at most.

    Patched, because users have no option for the limit of 10 s.
    """
    # There is no option for it.
    monkeypatch.setattr("sluiceway.confluent.coordinator._LEAVE_TIMEOUT_S", 1.0)


@pytest.fixture(params=[600.0])
def commit_every_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let producers commit messages of exactly-once channels by time so rarely, or so often.

    Patched, because users have no option for the interval of 5 s.
    """
    # There is no option for it.
    monkeypatch.setattr("sluiceway.confluent.channel_producer._COMMIT_EVERY_S", request.param)


@pytest.fixture
def substituted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let confluent-kafka's asyncio clients use ours, as docs/coming-from.md says."""
    # Once the test's channel is filled, by confluent-kafka's own.
    assert name
    for client in (Consumer, Producer):
        # They have no parameter for it.
        monkeypatch.setattr(confluent_kafka, client.__name__, client)
