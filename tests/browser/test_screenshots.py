"""The screenshots of docs/dashboard.md: light, dark and narrow."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from browsers import Browser, create_pipeline, record_lag
from databases import SQLite
from gateways import Rig, serving
from shared_kafka import SharedKafka
from sluiceway import Gateway, Heartbeat
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.settings import Settings
from waiting import until

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "double"}],
}
TEAMS = {"airports": "data", "delays": "ml", "planes": "data", "weather": "ops", "fares": "sales"}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Directory of the images: in the docs with SLUICEWAY_SCREENSHOTS=1, else a temporary one."""
    return IMAGES if os.environ.get("SLUICEWAY_SCREENSHOTS") == "1" else tmp_path


def test_screenshots_of_a_busy_gateway(
    browser: Browser, kafka: SharedKafka, sqlite: SQLite, target: Path
) -> None:
    settings = Settings(
        database_url=sqlite.migrated(),
        kafka_bootstrap_servers=kafka.bootstrap_servers,
        sample_s=0.2,
    )
    with serving(create_app(settings)) as url, closing(Gateway(url)) as gateway:
        for name, team in TEAMS.items():
            gateway.channel(name, schema=SCHEMA, labels={"team": team})
        heartbeat = Heartbeat(interval_ms=100)
        flights = gateway.channel(
            "flights", schema=SCHEMA, partitions=4, labels={"team": "ops"}, heartbeat=heartbeat
        )
        daily = gateway.channel("daily", schema=SCHEMA, delivery="exactly_once")
        with (
            flights.writer(group="loader") as writer,
            flights.reader(group="archive") as archive,
            flights.reader(group="delays") as delays,
            daily.writer(group="import") as importer,
        ):
            rows = [{"carrier": "UA", "delay": number / 2} for number in range(12_000)]
            writer.write(rows)
            writer.flush()
            assert delays.read(len(rows), timeout=60)
            delays.commit()
            assert archive.read(100, timeout=60)
            archive.commit()
            with importer.batch("2013-01-01"):
                importer.write(rows[:500])
            take_screenshots(browser, url, target)


def test_screenshots_of_a_pipeline(browser: Browser, rig: Rig, target: Path) -> None:
    sites = create_pipeline(rig)
    sites["delays"].member(group="report")
    record_lag(sites["delays"], 1, names=("archive", "report"))
    browser.resize(1280, 1240)
    browser.open(f"{rig.url}/#/channels/delays?tab=charts")
    browser.shows("archive", ".legend")
    until(lambda: len(browser.all(".chart canvas")) == 3, 30)
    save(browser, target / "dashboard-charts.png")
    browser.resize(1280, 700)
    browser.open(f"{rig.url}/#/channels/delays?tab=graph")
    browser.shows("delays: written by sums", ".sentences")
    save(browser, target / "dashboard-graph.png")


def take_screenshots(browser: Browser, url: str, target: Path) -> None:
    browser.resize(1280, 620)
    browser.open(url)
    browser.shows("stalled: alive, but nothing is read", ".problems")
    save(browser, target / "dashboard-light.png")
    browser.resize(390, 700)
    until(lambda: browser.one("main").size["width"] <= 390, 30)
    save(browser, target / "dashboard-narrow.png")
    browser.resize(1280, 860)
    browser.color_scheme("dark")
    browser.open(f"{url}/#/channels/flights")
    browser.shows("Stalled", "article.group")
    save(browser, target / "dashboard-dark.png")


def save(browser: Browser, path: Path) -> None:
    assert browser.save_screenshot(str(path))
    assert path.stat().st_size < 150_000
