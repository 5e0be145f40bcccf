"""Tests of the dashboard in Chromium, against real gateways."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from browsers import Browser
from databases import SQLite
from gateways import Rig, running
from sluiceway_gateway.core.db.engine import Database


# Before markers select tests.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here as long: `make test` starts no browser."""
    for item in items:
        if item.nodeid.startswith("tests/browser/"):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Browser]:
    """Debian's headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    options.add_argument("--lang=en-US")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with Browser(options=options, service=Service("/usr/bin/chromedriver")) as browser:
        # For axe on large pages; the default is 30 s.
        browser.set_script_timeout(300)
        yield browser


@pytest.fixture
def browser(_chromium: Browser) -> Iterator[Browser]:
    """A browser with an empty session storage; fails if its console has errors at the end."""
    _chromium.resize(1280, 800)
    _chromium.color_scheme("light")
    _chromium.errors()
    yield _chromium
    assert _chromium.errors() == []
    _chromium.execute_script("if (location.origin !== 'null') sessionStorage.clear()")
    _chromium.get("about:blank")


@pytest.fixture
def rig(sqlite: SQLite) -> Iterator[Rig]:
    """A gateway without Kafka and without loops: channels change only by the test."""
    url = sqlite.migrated()
    with closing(Database(url)) as database, running(database, url) as rig:
        yield rig
