"""Fixtures for the tests of sluiceway.confluent."""

import pytest


@pytest.fixture
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let closing and leaving take a second at most."""
    # Users have no option for the limit of 10 s.
    monkeypatch.setattr("sluiceway.confluent.coordinator._LEAVE_TIMEOUT_S", 1.0)
