"""Views of the dashboard: list, channel, sign-in; filters, keyboard, accessibility, escaping."""

import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from browsers import Browser
from endpoints import site
from gateways import SCHEMA, Rig
from relay import Relay
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.provisioning.store import remove
from waiting import until


def create_channels(rig: Rig, *names: str, **labels: str) -> None:
    for name in names:
        rig.put(name, metadata={"labels": labels}).raise_for_status()
        rig.observe(name, Phase.READY)


def test_the_page_loads_everything_from_the_gateway_and_violates_no_policy(
    browser: Browser, rig: Rig
) -> None:
    create_channels(rig, "flights")
    browser.open(rig.url)
    browser.one("[data-row-link]")
    script = "return performance.getEntriesByType('resource').map(each => each.name)"
    loaded = browser.execute_script(script)
    assert len(loaded) > 10
    assert [url for url in loaded if not url.startswith(rig.url)] == []
    assert browser.errors() == []


def test_the_list_sorts_by_any_column_and_keeps_the_order_in_the_url(
    browser: Browser, rig: Rig
) -> None:
    create_channels(rig, "b-2", "b-10", "a")
    browser.open(f"{rig.url}/#/?sort=name")
    until(lambda: browser.names() == ["a", "b-2", "b-10"], 30)
    browser.one("th.column-name button").click()
    until(lambda: browser.names() == ["b-10", "b-2", "a"], 30)
    assert browser.one("th[aria-sort]").get_attribute("aria-sort") == "descending"
    url = browser.current_url
    browser.open(url)
    until(lambda: browser.names() == ["b-10", "b-2", "a"], 30)


def test_filters_find_names_and_labels_and_survive_the_back_button(
    browser: Browser, rig: Rig
) -> None:
    create_channels(rig, "flights", "delays", team="ops")
    create_channels(rig, "weather", team="data")
    browser.open(rig.url)
    browser.one(".filter input").send_keys("OPS del")
    until(lambda: browser.names() == ["delays"], 30)
    browser.shows("1 of 3 channels")
    browser.one("[data-row-link]").click()
    browser.shows("delays", "h1")
    browser.button("Endpoints").click()
    browser.shows("No writer has attached")
    browser.back()
    browser.shows("No group reads this channel")
    browser.back()
    until(lambda: browser.names() == ["delays"], 30)
    assert browser.one(".filter input").get_attribute("value") == "OPS del"


def test_the_slash_key_leads_to_the_filter_unless_something_is_typed(
    browser: Browser, rig: Rig
) -> None:
    create_channels(rig, "flights", "weather")
    browser.open(rig.url)
    browser.shows("2 channels", ".count")
    browser.press("/")
    browser.press("fl", "/")
    until(lambda: browser.one(".filter input").get_property("value") == "fl/", 30)
    browser.press(Keys.BACKSPACE)
    until(lambda: browser.names() == ["flights"], 30)
    browser.one("[data-row-link]").click()
    browser.button("Edit…").click()
    browser.one("dialog[open] textarea").click()
    browser.press("/")
    assert "/" in str(browser.one("dialog textarea").get_property("value"))


def test_links_lead_to_any_part_of_a_channel(browser: Browser, rig: Rig) -> None:
    create_channels(rig, "flights")
    wider = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "b", "type": "long", "default": 7}]}
    rig.put("flights", schema=wider).raise_for_status()
    browser.open(f"{rig.url}/#/channels/flights?tab=schema")
    browser.shows('+       "default": 7', "pre")
    lines = browser.one("pre").text.splitlines()
    assert '+       "default": 7' in lines
    assert len(lines) == 15
    browser.open(f"{rig.url}/#/channels/flights?tab=configuration")
    browser.shows("compatibility")
    browser.shows("at_least_once")


def test_unknown_figures_are_not_shown_as_zero(browser: Browser, rig: Rig) -> None:
    create_channels(rig, "flights")
    browser.open(rig.url)
    lag = browser.one("td.column-lag")
    assert lag.text == "–"
    assert "Unknown" in str(lag.find_element("css selector", "[role=img]").accessible_name)


def test_a_paused_page_does_not_change_until_it_is_resumed(browser: Browser, rig: Rig) -> None:
    create_channels(rig, "flights")
    browser.open(rig.url)
    until(lambda: browser.names() == ["flights"], 30)
    browser.shows("Live", ".freshness")
    browser.button("Pause").click()
    browser.shows("Paused", ".freshness")
    create_channels(rig, "weather")
    until(lambda: "s ago" in browser.text(".updated"), 30)
    assert browser.names() == ["flights"]
    browser.button("Resume").click()
    until(lambda: sorted(browser.names()) == ["flights", "weather"], 30)


def test_views_that_are_opened_while_the_page_is_paused_are_read_once(
    browser: Browser, rig: Rig
) -> None:
    rig.put("flights").raise_for_status()
    browser.open(rig.url)
    browser.shows("1 channel", ".count")
    browser.button("Pause").click()
    browser.button("flights").click()
    browser.shows("Provisioning", ".title .state")
    rig.observe("flights", Phase.READY)
    browser.back()
    browser.button("flights").click()
    browser.shows("Ready", ".title .state")
    assert "Paused" in browser.text(".freshness")


def test_a_deleted_channel_is_reported_and_leaves_the_list(browser: Browser, rig: Rig) -> None:
    create_channels(rig, "flights")
    browser.open(rig.url)
    browser.one("[data-row-link]").click()
    browser.shows("flights", "h1")
    uid = rig.http.get("/v1/channels/flights").json()["metadata"]["uid"]
    rig.http.delete("/v1/channels/flights", params={"uid": uid}).raise_for_status()
    browser.shows("Deleting", ".state")
    with rig.database.write() as tx:
        tx.connection.exec_driver_sql("DELETE FROM channels")
    browser.shows("does not exist any more: it was deleted", "[role=alert]")
    browser.button("All channels").click()
    browser.shows("There are no channels")


HOSTILE = {
    "html": "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>",
    "bidi": "abc \u202egnp.exe\u2066 \u0000\u0007 end",
    "long": "x" * 200,
}


def test_a_gateway_without_channels_says_so(browser: Browser, rig: Rig) -> None:
    browser.open(rig.url)
    browser.shows("There are no channels yet.")


def test_hostile_names_are_shown_as_text(browser: Browser, rig: Rig) -> None:
    target = site(rig, "flights." + "n" * 150)
    rig.observe(target.name, Phase.READY)
    for number, text in enumerate(HOSTILE.values()):
        clean = "".join(
            character for character in text if character.isprintable() or ord(character) > 0x2000
        )
        target.attach("writer", group=f"g{number}", index=0, size=1, title=clean[:200])
    browser.open(f"{rig.url}/#/channels/{target.name}?tab=endpoints")
    browser.shows("<script>document.title='owned'</script>")
    assert browser.title == f"{target.name} · Sluiceway"
    assert browser.all("main img, main script") == []
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= 1280
    # Bidirectional control characters affect only their own text.
    assert len(browser.all("td bdi")) >= len(HOSTILE)


def test_the_list_is_used_with_the_keyboard_only(browser: Browser, rig: Rig) -> None:
    create_channels(rig, *(f"c{number:03}" for number in range(300)))
    browser.open(f"{rig.url}/#/?sort=name")
    browser.one("[data-row-link]")
    first = browser.tab_to(lambda element: element.get_attribute("data-row-link") is not None)
    assert first.text == "c000"
    browser.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    until(lambda: browser.focused()[1] == "c002", 30)
    browser.press(Keys.END)
    until(lambda: browser.focused()[1] == "c299", 30)
    browser.press(Keys.ENTER)
    browser.shows("c299", "h1")
    browser.tab_to(lambda element: element.text == "Configuration")
    browser.press(Keys.ENTER)
    browser.shows("compatibility")
    browser.tab_to(lambda element: element.text == "Close…")
    browser.press(Keys.ENTER)
    browser.shows("Close the channel?", "dialog")
    browser.press(Keys.ESCAPE)
    until(lambda: not browser.all("dialog"), 30)


def test_closing_a_channel_requires_confirmation(browser: Browser, rig: Rig) -> None:
    create_channels(rig, "flights")
    browser.open(f"{rig.url}/#/channels/flights")
    browser.button("Close…").click()
    browser.shows("cannot be opened again", "dialog")
    browser.button("Close the channel").click()
    browser.shows("Closed", ".title .state")
    assert not browser.button("Close…").is_enabled()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violations(browser: Browser, rig: Rig, scheme: str) -> None:
    rig.http.headers["Sluiceway-Features"] = "exactly-once"
    target = site(rig, "flights", delivery="exactly_once")
    rig.observe("flights", Phase.READY)
    target.attach("writer", group="w", index=0, size=1, title="a title")
    target.attach("reader", group="g", index=0, size=1)
    browser.color_scheme(scheme)
    for path in ("", *(f"channels/flights?tab={tab}" for tab in TABS)):
        browser.open(f"{rig.url}/#/{path}")
        until(lambda: browser.all("main") and not browser.all(".loading"), 30)
        assert browser.violations() == [], path
    browser.button("Close…").click()
    browser.one("dialog[open]")
    assert browser.violations() == []


TABS = (
    "readers",
    "charts",
    "graph",
    "endpoints",
    "messages",
    "commits",
    "schema",
    "changes",
    "configuration",
)


def test_a_token_signs_in_and_its_expiry_leads_back_to_the_form(browser: Browser, rig: Rig) -> None:
    create_channels(rig, "flights")
    header = rig.token("admin", expires_in=timedelta(hours=1))
    browser.open(rig.url)
    browser.shows("This gateway requires a token", ".signin")
    assert browser.violations() == []
    browser.one("#token").send_keys("wrong" + Keys.ENTER)
    browser.shows("does not accept this token", ".signin")
    browser.one("#token").send_keys(header["Authorization"].removeprefix("Bearer ") + Keys.ENTER)
    until(lambda: browser.names() == ["flights"], 30)
    rig.clock.advance(timedelta(hours=2))
    browser.shows("has expired or was revoked", ".signin")
    assert "flights" not in browser.text()


def test_five_thousand_channels_are_listed_and_filtered(browser: Browser, rig: Rig) -> None:
    create_channels(rig, "c0000")
    with rig.database.write() as tx:
        first = channels_store.find(tx, "c0000")
        assert first is not None
        for number in range(1, 5_000):
            name = f"c{number:04}"
            topic = replace(first.topic, name=f"{first.topic.name}-{number}")
            assert channels_store.insert(
                tx, replace(first, uid=str(uuid.uuid4()), name=name, topic=topic)
            )
    browser.open(f"{rig.url}/#/?sort=name")
    browser.shows("5,000 channels", ".count", 120)
    # Only visible rows are in the document.
    assert len(browser.names()) < 100
    assert browser.one("table").get_attribute("aria-rowcount") == "5001"
    browser.one(".filter input").send_keys("499")
    browser.shows("15 of 5,000 channels", ".count")


@contextmanager
def proxy(
    target: str,
    *,
    prefix: str = "",
    held: list[str] | None = None,
    hangs: threading.Event | None = None,
    page: str | None = None,
) -> Iterator[str]:
    """Run a proxy that strips a prefix.

    With `held`, it stalls event streams and lists them. While `hangs` is set, it stalls requests
    of the API. With `page`, it answers these with that HTML.
    """
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "/v1/" in self.path and hangs is not None and hangs.is_set():
                stopped.wait(60)
                return
            if "/v1/" in self.path and page is not None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page.encode())
                return
            if held is not None and self.path.partition("?")[0].endswith("/events"):
                held.append(self.path)
                stopped.wait(60)
                return
            headers = {name: self.headers.get(name, "") for name in ("Accept", "If-None-Match")}
            response = httpx.get(
                target + self.path.removeprefix(prefix), headers=headers, timeout=60
            )
            self.send_response(response.status_code)
            for name in ("content-type", "content-security-policy", "etag"):
                if name in response.headers:
                    self.send_header(name, response.headers[name])
            self.send_header("Content-Length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}"
    finally:
        stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_page_polls_behind_a_proxy_that_buffers_streams(browser: Browser, rig: Rig) -> None:
    create_channels(rig, "flights")
    held: list[str] = []
    with proxy(rig.url, prefix="/tools/sluiceway", held=held) as url:
        browser.open(f"{url}/")
        browser.shows("Polling", ".freshness", 30)
        until(lambda: browser.names() == ["flights"], 30)
        create_channels(rig, "weather")
        until(lambda: sorted(browser.names()) == ["flights", "weather"], 30)
        # After a minute the page tries the stream again, because the network may have recovered.
        assert len(held) == 1
        browser.execute_script(
            "const now = performance.now.bind(performance); performance.now = () => now() + 60_000"
        )
        until(lambda: len(held) == 2, 30)
        create_channels(rig, "planes")
        until(lambda: sorted(browser.names()) == ["flights", "planes", "weather"], 30)
        browser.get("about:blank")


def test_polls_that_hang_are_no_connection(browser: Browser, rig: Rig) -> None:
    create_channels(rig, "flights")
    held: list[str] = []
    hangs = threading.Event()
    with proxy(rig.url, held=held, hangs=hangs) as url:
        browser.open(f"{url}/")
        browser.shows("Polling", ".freshness", 30)
        browser.execute_script(
            "window.patient = AbortSignal.timeout;"
            "AbortSignal.timeout = (ms) => patient.call(AbortSignal, ms / 60)"
        )
        hangs.set()
        browser.shows("No connection to the gateway. The gateway does not answer.", "[role=alert]")
        browser.execute_script("AbortSignal.timeout = patient")
        hangs.clear()
        browser.shows("Polling", ".freshness", 30)
        assert browser.all("[role=alert]") == []
        browser.get("about:blank")


def test_the_header_says_within_five_seconds_that_the_gateway_hangs(
    browser: Browser, rig: Rig
) -> None:
    create_channels(rig, "flights")
    with closing(Relay(httpx.URL(rig.url).port or 0)) as relay:
        for view, shown in (("", "flights"), ("#/channels/flights", "No group reads")):
            browser.open(f"{relay.url}/{view}")
            browser.shows("Live", ".freshness")
            browser.shows(shown)
            with relay.stalled():
                # By the clock of the page, which starts with the last line that arrived.
                browser.shows("No connection", ".freshness")
                age = re.search(r"updated (\d+)s ago", browser.text(".freshness"))
                assert age is not None
                assert int(age[1]) <= 5
                browser.shows("The gateway does not answer.", "[role=alert]")
            browser.shows("Live", ".freshness")
        browser.get("about:blank")


def test_a_page_of_a_proxy_is_not_taken_for_the_gateway(browser: Browser, rig: Rig) -> None:
    with proxy(rig.url, page="<html><form>Sign in") as url:
        browser.open(f"{url}/")
        browser.shows("The response is not the gateway's. A proxy may ask you", "[role=alert]")
        browser.shows("No connection", ".freshness")
        browser.get("about:blank")


def test_thousands_of_channels_are_streamed(browser: Browser, rig: Rig) -> None:
    for number in range(1_050):
        rig.put(f"c{number:04}").raise_for_status()
    browser.open(f"{rig.url}/#/?sort=name&filter=c104")
    browser.shows("10 of 1,050 channels")
    browser.shows("Live", ".freshness")
    names = [f"c104{number}" for number in range(10)]
    assert browser.names() == names
    # One channel is added, one changes, and one is removed.
    rig.put("c1045-more").raise_for_status()
    rig.observe("c1041", Phase.READY)
    with rig.database.write() as tx:
        uid = rig.http.get("/v1/channels/c1042").json()["metadata"]["uid"]
        remove(tx, uid, from_phases=list(Phase))
    names.remove("c1042")
    names.insert(5, "c1045-more")
    until(lambda: browser.names() == names, 30)
    browser.shows("10 of 1,050 channels")
    browser.shows("Ready", ".column-state")
    browser.shows("Live", ".freshness")
