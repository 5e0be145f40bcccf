"""Charts of lag and rates: lines, ranges in the URL, values as text, themes, hostile names."""

from datetime import UTC, datetime, timedelta

import pytest

from browsers import Browser, record_lag
from endpoints import Site, site
from gateways import Rig
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.status.lag_history import store
from sluiceway_gateway.status.lag_history.model import FINEST, HistoryPoint
from sluiceway_gateway.status.lag_history.store import PointWrite
from waiting import until

HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture
def flights(rig: Rig) -> Site:
    target = site(rig)
    rig.observe("flights", Phase.READY)
    return target


def drawn_charts(browser: Browser) -> int:
    """Return the number of charts with a pixel in the color of the first series."""
    script = """
        const color = getComputedStyle(document.documentElement).getPropertyValue("--series-1");
        const [r, g, b] = [1, 3, 5].map(at => parseInt(color.trim().slice(at, at + 2), 16));
        return [...document.querySelectorAll(".chart canvas")].filter(canvas => {
            const { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            for (let at = 0; at < data.length; at += 4)
                if (data[at] === r && data[at + 1] === g && data[at + 2] === b) return true;
            return false;
        }).length;
    """
    count: int = browser.execute_script(script)
    return count


def test_charts_show_lag_and_rates_of_each_group(browser: Browser, flights: Site) -> None:
    record_lag(flights, 1)
    browser.open(f"{flights.rig.url}/#/channels/flights?tab=charts")
    until(lambda: drawn_charts(browser) == 3, 30)
    labels = [chart.get_attribute("aria-label") or "" for chart in browser.all(".chart")]
    assert "Lag in messages, the last 1 hour: archive" in labels[0]
    assert "delays unknown now, at most 4K" in labels[0]
    assert "Written 60/s now" in labels[2]
    assert "archive" in browser.text(".legend")
    # Unknown is not shown as zero.
    lag, largest, *_ = browser.all(".legend tbody tr:nth-child(2) td")
    assert lag.text == "–"
    assert int(largest.text.replace(",", "")) in range(3_950, 4_001)
    browser.button("Values as a table").click()
    browser.shows("60/s", ".values-over-time")
    assert len(browser.all(".values-over-time tbody tr")) in (60, 61)


def test_the_range_is_in_the_url_and_survives_other_tabs(browser: Browser, flights: Site) -> None:
    record_lag(flights, 7)
    browser.open(f"{flights.rig.url}/#/channels/flights?tab=charts&range=15m")
    until(lambda: drawn_charts(browser) == 3, 30)
    assert "last 15 minutes" in str(browser.one(".chart").get_attribute("aria-label"))
    browser.button("6 hours").click()
    until(lambda: "last 6 hours" in str(browser.one(".chart").get_attribute("aria-label")), 30)
    assert browser.current_url.endswith("tab=charts&range=6h")
    until(lambda: drawn_charts(browser) == 3, 30)
    browser.button("Schema").click()
    browser.button("Charts").click()
    assert browser.current_url.endswith("tab=charts&range=6h")
    assert browser.one(".ranges [aria-current]").text == "6 hours"


def test_a_group_can_be_hidden(browser: Browser, flights: Site) -> None:
    record_lag(flights, 0.3)
    browser.open(f"{flights.rig.url}/#/channels/flights?tab=charts")
    until(lambda: drawn_charts(browser) == 3, 30)
    browser.one(".legend input").click()
    until(lambda: drawn_charts(browser) == 0, 30)
    assert "archive" not in str(browser.one(".chart").get_attribute("aria-label"))


def test_lines_are_interrupted_where_no_sample_was_taken(browser: Browser, flights: Site) -> None:
    record_lag(flights, 0.1)
    browser.open(f"{flights.rig.url}/#/channels/flights?tab=charts")
    until(lambda: drawn_charts(browser) == 3, 30)
    script = """
        const done = arguments[arguments.length - 1];
        const series = [{ values: [1, 2, 3, null] }];
        const times = [0, 60, 400, 410];
        import("./ui/charts.js").then(({ withGaps }) => done(withGaps(times, 10, series)));
    """
    # One sample a minute, as for idle channels, is no gap.
    assert browser.execute_async_script(script) == [
        [0, 60, 70, 400, 410],
        [1, 2, None, 3, None],
    ]


def test_a_channel_without_samples_shows_a_notice(browser: Browser, flights: Site) -> None:
    flights.rig.clock.now = datetime.now(UTC)
    browser.open(f"{flights.rig.url}/#/channels/flights?tab=charts")
    browser.shows("No sample in this time")


def test_new_samples_appear(browser: Browser, flights: Site) -> None:
    record_lag(flights, 0.3)
    browser.open(f"{flights.rig.url}/#/channels/flights?tab=charts&range=15m")
    before = browser.one(".legend caption").text
    flights.rig.clock.advance(timedelta(seconds=20))
    point = HistoryPoint(
        at_s=FINEST.start(flights.rig.clock().timestamp()), write_rate=777.0, groups={}
    )
    with flights.rig.database.write() as tx:
        store.write(tx, [PointWrite(channel_uid=flights.uid, point=point, previous_s=None)])
    browser.shows("written 777/s", ".legend caption")
    assert browser.one(".legend caption").text != before


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_are_accessible_and_hostile_names_are_text(
    browser: Browser, flights: Site, scheme: str
) -> None:
    record_lag(flights, 0.3, names=(HOSTILE, "\u202egnp.exe", "", *(f"g{n}" for n in range(9))))
    browser.color_scheme(scheme)
    browser.open(f"{flights.rig.url}/#/channels/flights?tab=charts&range=1h")
    until(lambda: drawn_charts(browser) == 3, 30)
    browser.button("Values as a table").click()
    assert browser.violations() == []
    assert HOSTILE in browser.text(".legend")
    assert "without a group" in browser.text(".legend")
    browser.shows("8 of 12 groups have lines")
    assert browser.all("main img") == []
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= 1280
    # Switch the theme without a reload.
    browser.color_scheme("dark" if scheme == "light" else "light")
    until(lambda: drawn_charts(browser) == 3, 30)
