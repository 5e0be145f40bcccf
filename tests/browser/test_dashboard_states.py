"""States of the page: failed requests, late heartbeats, long lists, history, and rerendering."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys
from sqlalchemy import update

from browsers import Browser, record_lag
from endpoints import report, site
from gateways import SCHEMA, Rig
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.endpoints.model import Mode
from sluiceway_gateway.endpoints.tables import endpoints
from sluiceway_gateway.ledger.tables import ledger_repairs
from sluiceway_gateway.status import sample_store
from sluiceway_gateway.status.lag import Sample, group_lag
from sluiceway_gateway.status.reader_progress import ReaderProgress, offset_tracks, partitions_read
from sluiceway_gateway.status.sample_store import SampleWrite, StoredSample
from waiting import until

LONGER = {
    **SCHEMA,
    "fields": [*SCHEMA["fields"], {"name": "gate", "type": "string", "default": ""}],
}


@contextmanager
def network(browser: Browser, command: str, **conditions: Any) -> Iterator[None]:
    """Emulate a network problem while the block runs."""
    off: dict[str, dict[str, Any]] = {
        "Network.setBlockedURLs": {"urls": []},
        "Network.emulateNetworkConditions": {
            "offline": False,
            "latency": 0,
            "downloadThroughput": -1,
            "uploadThroughput": -1,
        },
    }
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd(command, off[command] | conditions)
    try:
        yield
    finally:
        browser.execute_cdp_cmd(command, off[command])


def test_a_dialog_closes_with_its_view(browser: Browser, rig: Rig) -> None:
    for name in ("flights", "weather"):
        site(rig, name)
    browser.open(f"{rig.url}/#/channels/weather")
    browser.shows("weather", "h1")
    browser.execute_script("location.hash = '#/channels/flights'")
    browser.shows("flights", "h1")
    browser.button("Close…").click()
    browser.shows("New writers of flights", "dialog")
    browser.back()
    browser.shows("weather", "h1")
    browser.button("Close…")
    assert browser.all("dialog") == []
    assert "New writers of flights" not in browser.text()


def test_an_action_without_a_response_is_reported_as_possibly_done(
    browser: Browser, rig: Rig
) -> None:
    site(rig)
    browser.open(f"{rig.url}/#/channels/flights")
    browser.button("Close…").click()
    browser.one("dialog[open]")
    with network(browser, "Network.emulateNetworkConditions", offline=True):
        browser.button("Close the channel").click()
        browser.shows("The change may or may not have been made", "dialog [role=alert]")
    browser.button("Close the channel").click()
    browser.shows("Closed", ".title .state")


def test_a_list_read_before_the_connection_ended_is_marked_as_old(
    browser: Browser, rig: Rig
) -> None:
    site(rig)
    browser.open(rig.url)
    browser.one("[data-row-link]").click()
    browser.shows("flights", "h1")
    with network(browser, "Network.emulateNetworkConditions", offline=True):
        browser.back()
        browser.shows("No connection", ".freshness")
        assert browser.names() == ["flights"]
        browser.shows("What you see is from", "[role=alert]")
    browser.shows("Live", ".freshness")


def test_a_failed_read_is_reported_and_can_be_repeated(browser: Browser, rig: Rig) -> None:
    site(rig)
    browser.open(f"{rig.url}/#/channels/flights")
    browser.shows("flights", "h1")
    with network(browser, "Network.setBlockedURLs", urls=["*/schemas"]):
        browser.button("Schema").click()
        browser.shows("The gateway does not answer.", "section [role=alert]")
    browser.button("Try again").click()
    browser.shows("Version 1", "nav.versions")


def test_charts_stay_while_the_gateway_does_not_answer(browser: Browser, rig: Rig) -> None:
    record_lag(site(rig), 0.1)
    browser.open(f"{rig.url}/#/channels/flights?tab=charts")
    browser.one(".chart canvas")
    with network(browser, "Network.setBlockedURLs", urls=["*/history*"]):
        browser.shows("The gateway does not answer.", "section [role=alert]")
        assert len(browser.all(".chart canvas")) == 3
    until(lambda: not browser.all("section [role=alert]"), 30)


@pytest.mark.parametrize(
    ("blocked", "tab", "expected_element"),
    [("channel.js", "readers", "h1"), ("uPlot.esm.js", "charts", ".chart canvas")],
)
def test_code_that_cannot_be_loaded_is_explained(
    browser: Browser, rig: Rig, blocked: str, tab: str, expected_element: str
) -> None:
    record_lag(site(rig), 0.1)
    with network(browser, "Network.setBlockedURLs", urls=[f"*/{blocked}"]):
        browser.open(f"{rig.url}/#/channels/flights?tab={tab}")
        browser.shows("A part of the page cannot be loaded", "[role=alert]")
        assert browser.all(".loading") == []
    browser.button("Reload the page").click()
    browser.one(expected_element)


def test_the_list_of_versions_adds_new_ones_and_marks_the_current_one(
    browser: Browser, rig: Rig
) -> None:
    site(rig)
    browser.open(f"{rig.url}/#/channels/flights?tab=schema")
    browser.shows("Version 1, in use", "nav.versions")
    rig.put(schema=LONGER).raise_for_status()
    browser.shows("Version 2, in use", "nav.versions")
    browser.shows("Version 2, compared with 1", "h2")
    # Back to version 1, which also determines the record in the write dialog.
    rig.put(schema=SCHEMA).raise_for_status()
    browser.shows("Version 1, in use", "nav.versions")
    assert browser.one("nav.versions [aria-current]").text.startswith("Version 1")
    browser.button("Messages").click()
    browser.button("Write messages…").click()
    assert "gate" not in str(browser.one("dialog textarea").get_attribute("value"))
    browser.open(f"{rig.url}/#/channels/flights?tab=schema&version=9")
    browser.shows("The channel has no version 9.", "section [role=alert]")


def test_a_healthy_endpoint_has_the_age_of_its_last_heartbeat(browser: Browser, rig: Rig) -> None:
    flights = site(rig)
    writer = flights.member(role="writer", group="loader")
    browser.open(f"{rig.url}/#/channels/flights?tab=endpoints")
    browser.shows("loader", "tbody")
    rig.clock.now = datetime.now(UTC) - timedelta(seconds=40)
    flights.beat(report(writer, "started"))
    browser.shows("Running", "tbody")

    def age_s() -> int:
        text = browser.one("tbody td:nth-of-type(5)").text
        match = re.fullmatch(r"(?:(\d+)m ?)?(?:(\d+)s)? ago", text)
        return 60 * int(match[1] or 0) + int(match[2] or 0) if match else -1

    until(lambda: age_s() >= 40, 30)
    title = browser.one("tbody td:nth-of-type(5) span").get_attribute("title")
    assert title == "In time: every 2s, lost after 2m without one"
    # A heartbeat without changes creates no new status.
    rig.clock.now = datetime.now(UTC)
    flights.beat(report(writer, "started"))
    until(lambda: 0 <= age_s() < 40, 30)


def test_the_heartbeat_column_reports_late_endpoints(browser: Browser, rig: Rig) -> None:
    flights = site(rig)
    writer, reader = flights.member(role="writer", group="loader"), flights.member()
    flights.beat(report(writer, "started"), report(reader, "started"))
    browser.open(rig.url)
    browser.shows("in time", "td.column-heartbeat")
    with rig.database.write() as tx:
        tx.connection.exec_driver_sql(
            f"UPDATE endpoints SET health = 'lost' WHERE id = '{reader['id']}'"  # noqa: S608
        )
    rig.put(metadata={"labels": {"a": "b"}}).raise_for_status()
    browser.shows("some late", "td.column-heartbeat")


def create_lagging_group(rig: Rig, partitions: int) -> None:
    """Create a channel with a group that is behind in its last partition only."""
    flights = site(rig, partitions=partitions)
    flights.member(group="delays")
    ends = [1_234_567] * partitions
    reader = ReaderProgress(
        group="delays",
        index=0,
        size=1,
        mode=Mode.SHARED,
        epoch=1,
        alive=True,
        positions={
            partition: 1_234_567 - 5 * (partition == partitions - 1)
            for partition in range(partitions)
        },
    )
    tracks = offset_tracks([reader], [], partitions=partitions)
    sample = Sample(at=rig.clock(), starts=[0] * partitions, ends=ends, tracks=tracks)
    alive = partitions_read([reader], partitions=partitions)
    history = [(sample.at.timestamp(), sample.ends)]
    lags = {key: group_lag(key, [sample], history, alive=alive[key]) for key in tracks}
    stored = StoredSample(number=1, sample=sample, lags=lags, write_rate=None)
    write = SampleWrite(channel_uid=flights.uid, stored=stored, is_new=True, changes_status=True)
    with rig.database.write() as tx:
        assert sample_store.write(tx, [write]) == 1


def test_offsets_have_all_digits_and_partitions_with_the_largest_lag_are_shown(
    browser: Browser, rig: Rig
) -> None:
    create_lagging_group(rig, 300)
    browser.open(f"{rig.url}/#/channels/flights")
    browser.button("Positions by partition").click()
    browser.shows("200 of 300 partitions, those with the largest lag", "article")
    row = browser.all("article tbody tr")[-1].text
    assert row.startswith("299 – 1,234,562 1,234,567 5 ")
    browser.shows("200 of 300 partitions, those with the lowest numbers")


def test_the_preview_of_a_reset_says_that_it_lists_some_partitions(
    browser: Browser, rig: Rig
) -> None:
    create_lagging_group(rig, 300)
    browser.open(f"{rig.url}/#/channels/flights")
    browser.button("Reset offsets…").click()
    browser.shows("The first 100 of 300 partitions are listed; the sums are of all.", "dialog")


def test_offsets_are_not_reset_to_ends_that_are_not_known(browser: Browser, rig: Rig) -> None:
    site(rig).member(group="delays")
    browser.open(f"{rig.url}/#/channels/flights")
    browser.button("Reset offsets…").click()
    browser.shows("The ends of the partitions are not known yet", "dialog .preview")
    browser.one("#field-reason").send_keys("again")
    browser.button("Reset the offsets").click()
    browser.shows("The ends of the partitions are not known yet", "dialog [role=alert]")


def test_a_problem_is_one_line_and_says_on_demand_what_to_do_and_where(
    browser: Browser, rig: Rig
) -> None:
    flights = site(rig)
    writer = flights.member(role="writer", group=f"loader of {'very ' * 30}many flights")
    flights.detach(writer, "error", cause="the disk is full", ends={})
    flights.member(group="slow")
    with rig.database.write() as tx:
        tx.execute(update(endpoints).values(health="lost").where(endpoints.c.state != "error"))
    browser.resize(400, 800)
    heights = "return [...document.querySelectorAll('.problems .line')].map(l => l.offsetHeight)"
    for view in ("", "#/channels/flights"):
        browser.open(f"{rig.url}/{view}")
        until(lambda: len(browser.all(".problems .line")) == 2, 30)
        one, other = browser.execute_script(heights)
        assert one == other < 32
        assert "the disk is full" not in browser.text(".problems")
        disclosure = browser.all(".problems .disclosure")[1]
        assert disclosure.get_attribute("aria-expanded") == "false"
        disclosure.click()
        browser.shows("the disk is full", ".problems")
        browser.shows("Start it again, or dismiss it, so that readers take it as", ".problems")
        command = f"sluiceway channels dismiss flights --endpoint {writer['id']}"
        assert browser.text(".problems code") == command
        assert browser.violations() == []
    browser.one("ul.problems .advice a").click()
    browser.button("Dismiss…")


def test_a_draining_channel_is_closed_at_once(browser: Browser, rig: Rig) -> None:
    flights = site(rig)
    flights.member(role="writer", group="loader")
    rig.http.post(f"{flights.path}/close", json={"uid": flights.uid}).raise_for_status()
    browser.open(f"{rig.url}/#/channels/flights")
    browser.shows("Draining", ".title .state")
    browser.button("Close…").click()
    browser.shows("flights waits for its writers and readers.", "dialog")
    browser.button("Close it at once").click()
    browser.shows("Closed", ".title .state")


def lose_all(rig: Rig) -> None:
    """Have all endpoints lost."""
    with rig.database.write() as tx:
        tx.execute(update(endpoints).values(health="lost"))


def test_failures_are_one_problem_below_the_live_ones(browser: Browser, rig: Rig) -> None:
    flights = site(rig)
    for number in range(6):
        flights.detach(flights.attach("writer"), "error", cause=f"record {number} is wrong")
    site(rig, "weather").member(group="slow")
    with rig.database.write() as tx:
        tx.execute(update(endpoints).values(health="lost").where(endpoints.c.state != "error"))
    browser.open(rig.url)
    browser.shows("2 problems in 2 channels", ".problems h2")
    assert [link.text for link in browser.all(".problems li a")] == ["weather", "flights"]
    browser.shows("has failed. It is the last of 6 failures within a day.", ".problems")
    browser.all(".problems li a")[0].click()
    # The state of the channel and its reader say what the banner says.
    browser.shows("Reader lost", ".title .state")


def test_a_list_of_problems_that_the_gateway_has_cut_is_marked(browser: Browser, rig: Rig) -> None:
    flights = site(rig)
    for number in range(11):
        flights.member(group=f"g{number}")
    lose_all(rig)
    browser.open(rig.url)
    browser.shows("At least 10 problems in 1 channel", ".problems h2")
    browser.one(".problems a").click()
    browser.shows("There are more: the first 10 are listed.", "ul.problems")


@pytest.mark.parametrize("name", ["weather", "a b", "%E0%A4%A"])
def test_a_link_to_no_channel_is_explained(browser: Browser, rig: Rig, name: str) -> None:
    browser.open(f"{rig.url}/#/channels/{name}")
    browser.shows(f"The channel {name} does not exist.", "[role=alert]")
    browser.button("All channels").click()
    browser.shows("There are no channels yet.")


def test_a_channel_with_many_problems_hides_no_other(browser: Browser, rig: Rig) -> None:
    for name in ("old", "flights"):
        target = site(rig, name)
        for number in range(9 if name == "flights" else 1):
            target.member(group=f"g{number}")
        rig.clock.advance(60)
    lose_all(rig)
    browser.open(rig.url)
    browser.shows("10 problems in 2 channels", ".problems h2")
    channels = [link.text for link in browser.all(".problems li a")]
    assert channels == ["flights", "old", *["flights"] * 6]


def test_a_view_that_fails_is_reported_and_others_are_shown(browser: Browser, rig: Rig) -> None:
    for name in ("flights", "weather"):
        site(rig, name)
    # As of a gateway of another version, which has no groups in its statuses.
    script = """
        const parse = JSON.parse;
        JSON.parse = (...given) => {
          const value = parse(...given);
          if (value?.channel?.name === "flights") delete value.groups;
          return value;
        };
    """
    browser.open(rig.url)
    browser.one("[data-row-link]")
    browser.execute_script(script)
    browser.button("flights").click()
    browser.shows("The page cannot show this. The gateway may have another", "[role=alert]")
    browser.back()
    browser.button("weather").click()
    browser.shows("weather", "h1")
    browser.button("Readers")
    assert browser.all("[role=alert]") == []


def test_the_page_of_a_channel_that_was_followed_has_the_focus(browser: Browser, rig: Rig) -> None:
    site(rig)
    browser.open(rig.url)
    browser.one("[data-row-link]").send_keys(Keys.ENTER)
    until(lambda: browser.focused()[0] == "h1", 30)
    browser.button("Close…")
    browser.press(Keys.TAB)
    assert browser.focused()[1] == "Edit…"


def test_titles_of_times_name_their_zone(browser: Browser, rig: Rig) -> None:
    rig.put().raise_for_status()
    zone = "Emulation.setTimezoneOverride"
    browser.execute_cdp_cmd(zone, {"timezoneId": "Asia/Kolkata"})
    try:
        browser.open(f"{rig.url}/#/channels/flights?tab=changes")
        time = browser.one("table.changes time")
        # Midnight in UTC.
        assert time.get_attribute("datetime").startswith("2030-01-01T00:00:00")
        title = str(time.get_attribute("title"))
        assert title.startswith("Jan 1, 2030, 5:30:00")
        assert title.endswith("AM GMT+5:30")
    finally:
        browser.execute_cdp_cmd(zone, {"timezoneId": ""})


def test_a_repair_is_in_the_list_of_commits(browser: Browser, rig: Rig) -> None:
    rig.http.headers["Sluiceway-Features"] = "exactly-once"
    flights = site(rig, delivery="exactly_once")
    lost = {"partition": 0, "first": 20, "end": 30, "messages": 1_000}
    row = {
        "channel_uid": flights.uid,
        "number": 2,
        "at": rig.clock(),
        "by": "ops",
        "reason": "a disk failed",
        "cause": "Kafka has lost records",
        "lost": [lost],
    }
    with rig.database.write() as tx:
        tx.execute(ledger_repairs.insert(), row)
    browser.open(f"{rig.url}/#/channels/flights?tab=commits")
    browser.shows("Repaired a disk failed", "tbody")
    browser.shows("-1,000", "tbody")
    assert browser.violations() == []


def test_a_truncated_list_of_changes_is_marked_and_can_be_extended(
    browser: Browser, rig: Rig
) -> None:
    for number in range(101):
        rig.put(metadata={"labels": {"n": str(number)}}).raise_for_status()
    browser.open(f"{rig.url}/#/channels/flights?tab=changes")
    browser.shows("The newest 100.")
    assert len(browser.all("table.changes > tbody > tr")) == 100
    browser.button("Show up to 1,000").click()
    until(lambda: len(browser.all("table.changes > tbody > tr")) == 101, 30)
    assert "The newest" not in browser.text()


def test_the_back_button_leads_to_the_row_that_was_opened(browser: Browser, rig: Rig) -> None:
    for number in range(300):
        rig.put(f"c{number:03}").raise_for_status()
    browser.open(f"{rig.url}/#/?sort=name")
    browser.shows("300 channels", ".count")
    browser.execute_script("document.querySelector('.scroller').scrollTop = 200 * 36")
    until(lambda: "c203" in browser.names(), 30)
    browser.button("c203").click()
    browser.shows("c203", "h1")
    browser.back()
    until(lambda: browser.focused()[1] == "c203", 30)
    scrolled = "return document.querySelector('.scroller').scrollTop"
    assert browser.execute_script(scrolled) == 200 * 36
    browser.press(Keys.ARROW_DOWN)
    until(lambda: browser.focused()[1] == "c204", 30)


RENDERED = """
const done = arguments[arguments.length - 1];
import("preact").then(({ options }) => {
  window.rendered = {};
  const after = options.diffed;
  options.diffed = (node) => {
    const name = node.type?.name;
    if (name) window.rendered[name] = (window.rendered[name] ?? 0) + 1;
    after?.(node);
  };
  done();
});
"""


def take_render_counts(browser: Browser) -> dict[str, int]:
    """Return the number of renderings of each component since the last call."""
    script = "const { rendered } = window; window.rendered = {}; return rendered"
    counts: dict[str, int] = browser.execute_script(script)
    return counts


def test_each_second_only_ages_are_rendered_again(browser: Browser, rig: Rig) -> None:
    for number in range(250):
        rig.put(f"c{number:03}").raise_for_status()
        rig.observe(f"c{number:03}", Phase.FAILED)
    flights = site(rig)
    flights.detach(flights.member(), "error", cause="full disk")
    browser.open(rig.url)
    browser.shows("251 problems in 251 channels", ".problems h2")
    browser.button("Show 200 of 251").click()
    until(lambda: len(browser.all(".problems li")) == 200, 30)
    # The account is read once there is a connection.
    asked = "return performance.getEntriesByType('resource').some(e => e.name.endsWith('/token'))"
    until(lambda: browser.execute_script(asked), 30)
    browser.button("Pause").click()
    browser.shows("Paused", ".freshness")
    browser.execute_async_script(RENDERED)
    take_render_counts(browser)
    until(lambda: browser.execute_script("return rendered.Freshness ?? 0") >= 2, 30)
    assert take_render_counts(browser).keys() <= {"Ago", "Freshness", "Expiry"}


def test_the_pointer_over_a_chart_renders_only_the_legend_again(browser: Browser, rig: Rig) -> None:
    record_lag(site(rig), 0.5)
    browser.open(f"{rig.url}/#/channels/flights?tab=charts")
    browser.one(".chart canvas")
    browser.button("Values as a table").click()
    browser.one(".values-over-time td")
    browser.button("Pause").click()
    browser.shows("Paused", ".freshness")
    browser.execute_async_script(RENDERED)
    take_render_counts(browser)
    before = browser.text(".legend caption")
    browser.execute_script("""
        const over = document.querySelector(".u-over");
        const { left, top } = over.getBoundingClientRect();
        const at = { clientX: left + 60, clientY: top + 50, bubbles: true };
        for (const type of ["mouseenter", "mousemove"])
          over.dispatchEvent(new MouseEvent(type, at));
    """)
    until(lambda: browser.text(".legend caption") != before, 30)
    counts = take_render_counts(browser)
    assert counts["Legend"] > 0
    assert not counts.keys() & {"Chart", "Values", "History", "Charts"}
