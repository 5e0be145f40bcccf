"""Fixtures for the tests of pypz channels."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from pypz_rig import Bench
from relay import Relay


@pytest.fixture
def bench(gateway_url: str) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(gateway_url, stack)


@pytest.fixture
def relay(gateway_url: str) -> Iterator[Relay]:
    """A connection to the gateway, for channels that use it as their location."""
    with closing(Relay(int(gateway_url.rpartition(":")[2]))) as relay:
        yield relay
