"""Fixtures of exactly-once channels."""

from collections.abc import Callable
from typing import Any

import pytest

from sluiceway import Channel


@pytest.fixture
def new_ledgered(new_channel: Callable[..., Channel]) -> Callable[..., Channel]:
    """Create an exactly-once channel of readings."""

    def make(**wishes: Any) -> Channel:
        return new_channel(**{"partitions": 2, "delivery": "exactly_once", **wishes})

    return make


@pytest.fixture
def channel(new_ledgered: Callable[..., Channel], each_format: str) -> Channel:
    return new_ledgered(format=each_format)
