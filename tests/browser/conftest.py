"""Tests of the dashboard in Chromium, against real gateways."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from browsers import Browser, chromium
from databases import SQLite
from gateways import Rig, running
from sluiceway_gateway.db.engine import Database


# Before markers select tests.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here as long: `make test` starts no browser."""
    for item in items:
        if item.nodeid.startswith("tests/browser/"):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(_chromium: Browser) -> Iterator[Browser]:
    """A browser with an empty session storage; fails if its console has errors at the end."""
    _chromium.resize(1280, 800)
    _chromium.color_scheme("light")
    _chromium.errors()
    yield _chromium
    assert _chromium.errors() == []
    _chromium.driver.execute_script("if (location.origin !== 'null') sessionStorage.clear()")
    _chromium.driver.get("about:blank")


@pytest.fixture
def rig(sqlite: SQLite) -> Iterator[Rig]:
    """A gateway without Kafka and without loops: channels change only by the test."""
    url = sqlite.migrated()
    with closing(Database(url)) as database, running(database, url) as rig:
        yield rig
