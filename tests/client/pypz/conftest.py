"""Fixtures for the tests of pypz channels."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pypz_rig import Bench


@pytest.fixture
def bench(gateway_url: str) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(gateway_url, stack)
