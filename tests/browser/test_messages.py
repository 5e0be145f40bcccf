"""The messages tab: listing, search, copying, writing, hostile content, keyboard, axe."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select

from browsers import Browser
from databases import SQLite
from gateways import patient_reads, serving
from shared_kafka import SharedKafka
from sluiceway import Gateway
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.settings import Settings
from topics import Topics
from waiting import until

SCHEMA = {
    "type": "record",
    "name": "Landing",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "text", "type": ["null", "string"], "default": None},
    ],
}
BIG = 2**63 - 1
SCRIPT = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
BIDI = "abc \u202egnp.exe\u2066 \u200b\u0007 end"


@pytest.fixture(scope="module")
def url(kafka: SharedKafka, sqlite: SQLite) -> Iterator[str]:
    settings = Settings(
        database_url=sqlite.migrated(), kafka_bootstrap_servers=kafka.bootstrap_servers
    )
    with serving(patient_reads(create_app(settings))) as url:
        yield url


@pytest.fixture
def gateway(url: str) -> Iterator[Gateway]:
    with Gateway(url) as gateway:
        yield gateway


def rows(browser: Browser) -> list[str]:
    return [row.text for row in browser.all("table.messages tbody > tr:not(.details)")]


def offsets(browser: Browser) -> list[int]:
    script = """return [...document.querySelectorAll('table.messages tbody > tr > th')]
        .map(each => Number(each.textContent))"""
    return list(browser.execute_script(script))


def open_row(browser: Browser, number: int = 0) -> str:
    """Open a row and return the text of its details."""
    browser.all("table.messages button.disclosure")[number].click()
    return browser.one("tr.details").text


def control(browser: Browser, label: str) -> WebElement:
    path = f'//label[starts-with(normalize-space(), "{label}")]//*[self::input or self::select]'
    element: WebElement = until(lambda: next(iter(browser.find_elements(By.XPATH, path)), None), 30)
    return element


def test_messages_are_listed_opened_and_paged_by_the_url(
    browser: Browser, gateway: Gateway, url: str
) -> None:
    channel = gateway.channel("listed", SCHEMA)
    with channel.writer() as writer:
        writer.write([{"id": BIG - number, "text": f"t{number}"} for number in range(30)])
    browser.open(f"{url}/#/channels/listed?tab=messages&limit=20")
    until(lambda: offsets(browser) == list(range(29, 9, -1)), 30)
    browser.shows("20 messages, newest first")
    # A JavaScript number would be rounded.
    assert f'"id": {BIG - 29}' in rows(browser)[0]
    details = open_row(browser)
    assert f'"id": {BIG - 29}' in details
    assert "version 1" in details
    browser.button("Older messages").click()
    until(lambda: offsets(browser) == list(range(9, -1, -1)), 30)
    assert "cursor=" in browser.current_url
    browser.back()
    until(lambda: offsets(browser)[:1] == [29], 30)

    Select(control(browser, "Show")).select_by_value("offset")
    browser.shows("Give a partition and an offset")
    control(browser, "Partition").send_keys("0" + Keys.ENTER)
    control(browser, "Offset").send_keys("25")
    # The input keeps its value while the status changes.
    with channel.writer(group="another"):
        browser.shows("Writers\n1", ".figures")
        assert control(browser, "Offset").get_property("value") == "25"
    control(browser, "Offset").send_keys(Keys.ENTER)
    until(lambda: offsets(browser) == [25, 26, 27, 28, 29], 30)
    address = browser.current_url
    browser.open(address)
    until(lambda: offsets(browser) == [25, 26, 27, 28, 29], 30)
    browser.one("input[type=search]").send_keys("T27")
    until(lambda: offsets(browser) == [27], 30)
    browser.shows("1 of 5 messages")


def test_an_offset_out_of_range_is_refused_with_the_valid_range(
    browser: Browser, gateway: Gateway, url: str
) -> None:
    gateway.channel("empty", SCHEMA)
    browser.open(f"{url}/#/channels/empty?tab=messages")
    browser.shows("There are no messages here")
    browser.open(f"{url}/#/channels/empty?tab=messages&start=offset&partition=0&offset=7")
    browser.shows("messages begin at 0, and the next one will have 0", "[role=alert]")


def test_hostile_messages_are_shown_as_text(
    browser: Browser, gateway: Gateway, url: str, kafka: SharedKafka
) -> None:
    channel = gateway.channel("hostile", SCHEMA)
    with channel.writer(key=lambda record: record["text"][:50]) as writer:
        writer.write(
            [{"id": 1, "text": record_text} for record_text in (SCRIPT, BIDI, "x" * 300_000)]
        )
    topics = Topics(kafka.bootstrap_servers)
    topic = channel.status.topic.name
    topics.produce(topic, 0, [SCRIPT.encode(), b"\xff\xfe\x00", BIDI.encode(), None])
    browser.open(f"{url}/#/channels/hostile?tab=messages")
    until(lambda: len(offsets(browser)) == 7, 30)
    for number in reversed(range(7)):
        browser.all("table.messages button.disclosure")[number].click()
    text = browser.text("table.messages")
    assert "<script>document.title='owned'</script>" in text
    assert "\\u202egnp.exe\\u2066 \\u200b\\u0007 end" in text
    assert not {"\u202e", "\u2066", "\u200b"} & set(text)
    assert "//4A" in text
    assert "Cannot be decoded" in text
    assert "Large values are cut" in text
    assert browser.title == "hostile · Sluiceway"
    assert browser.all("main img, main script") == []
    script = "return document.documentElement.scrollWidth"
    assert browser.execute_script(script) <= 1280
    assert browser.violations() == []
    browser.button("Show this message alone").click()
    until(lambda: offsets(browser) == [2], 30)
    # Its details are open, as they were in the list.
    until(lambda: "x" * 250_000 in browser.text("tr.details"), 30)


def test_json_in_messages_of_format_bytes_is_indented(
    browser: Browser, gateway: Gateway, url: str, kafka: SharedKafka
) -> None:
    channel = gateway.channel("raw", format="bytes")
    value = b'{"b": 1.0, "a": [12345678901234567890]}'
    Topics(kafka.bootstrap_servers).produce(channel.status.topic.name, 0, [value, b"a\tb\nc"])
    browser.open(f"{url}/#/channels/raw?tab=messages&start=earliest")
    until(lambda: offsets(browser) == [0, 1], 30)
    open_row(browser)
    assert browser.one("tr.details pre").text == (
        '{\n  "b": 1.0,\n  "a": [\n    12345678901234567890\n  ]\n}'
    )


def test_uncommitted_messages_are_shown_on_request(
    browser: Browser, gateway: Gateway, url: str
) -> None:
    channel = gateway.channel("exact", SCHEMA, delivery="exactly_once")
    with channel.writer(group="job") as writer:
        with writer.batch("day-1"):
            writer.write([{"id": 1}])
        with writer.batch("day-2"):
            writer.write([{"id": 2}])
            writer.flush()
            browser.open(f"{url}/#/channels/exact?tab=messages")
            until(lambda: offsets(browser) == [0], 30)
            control(browser, "Uncommitted too").click()
            until(lambda: offsets(browser) == [1, 0], 30)
            newest, oldest = rows(browser)
            assert "Uncommitted" in newest
            assert "Committed" in oldest
            assert browser.violations() == []


def test_a_message_is_written_and_copied(
    browser: Browser, gateway: Gateway, url: str, kafka: SharedKafka
) -> None:
    channel = gateway.channel("written", SCHEMA, delivery="exactly_once")
    browser.open(f"{url}/#/channels/written?tab=messages")
    browser.button("Write messages…").click()
    area = browser.one("dialog[open] textarea")
    assert json.loads(str(area.get_property("value"))) == {"id": 0, "text": None}
    area.clear()
    area.send_keys('{"id": true}')
    browser.button("Write them").click()
    browser.shows("field id: it must be", "dialog [role=alert]")
    area.clear()
    area.send_keys(f'[{{"id": {BIG}}}]')
    assert browser.violations() == []
    browser.button("Write them").click()
    browser.shows("Written: partition 0, offset 0.")
    until(lambda: offsets(browser) == [0], 30)
    with channel.reader(until="now") as reader:
        assert list(reader) == [{"id": BIG, "text": None}]
    open_row(browser)
    browser.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": url},
    )
    browser.button("Copy message").click()
    browser.shows("Copied", "tr.details")
    read = "navigator.clipboard.readText().then(arguments[arguments.length - 1])"
    copied: Any = json.loads(browser.execute_async_script(read))
    assert copied["records"] == [{"id": BIG, "text": None}]
    assert (copied["offset"], copied["committed"]) == (0, True)


def test_messages_are_searched_on_the_gateway(
    browser: Browser, gateway: Gateway, url: str, tmp_path: Path
) -> None:
    channel = gateway.channel("searched", SCHEMA, partitions=2)
    with channel.writer(partition=0) as writer:
        writer.write([{"id": number, "text": f"t{number % 100}"} for number in range(2_000)])
    browser.open(f"{url}/#/channels/searched?tab=messages")
    Select(control(browser, "Show")).select_by_value("search")
    browser.one("input[type=search]").send_keys("T77")
    Select(control(browser, "At most")).select_by_value("20")
    browser.button("Search").click()
    browser.shows("20 matches in 2,000 messages.", "[role=status]")
    assert offsets(browser) == list(range(1_977, 0, -100))
    assert browser.violations() == []
    address = browser.current_url
    assert "q=T77" in address
    # The link searches again; Enter does, too.
    browser.open(address)
    browser.shows("20 matches in 2,000 messages.", "[role=status]")
    control(browser, "In").send_keys("id")
    control(browser, "Regular expression").click()
    browser.one("input[type=search]").clear()
    browser.one("input[type=search]").send_keys("^10.$" + Keys.ENTER)
    browser.shows("10 matches in 2,000 messages.", "[role=status]")
    assert offsets(browser) == list(range(109, 99, -1))
    assert '"id": 109' in open_row(browser)

    browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    browser.button("Download as JSON lines").click()
    file = tmp_path / "searched.jsonl"
    until(lambda: file.exists() and file.read_text().count("\n") == 10, 30)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["records"][0]["id"] for line in lines] == list(range(109, 99, -1))

    browser.one("input[type=search]").send_keys("(" + Keys.ENTER)
    browser.shows("not an expression of RE2", "[role=alert]")
    browser.one("input[type=search]").clear()
    browser.one("input[type=search]").send_keys("." + Keys.ENTER)
    browser.shows("20 matches in", "[role=status]")
    # What is typed meanwhile is for the next search.
    browser.one("input[type=search]").send_keys("nothing")
    browser.button("Search on").click()
    browser.shows("40 matches", "[role=status]")
    assert offsets(browser) == list(range(1_999, 1_959, -1))


def test_new_messages_are_shown_live(browser: Browser, gateway: Gateway, url: str) -> None:
    channel = gateway.channel("lively", SCHEMA)
    with channel.writer() as writer:
        writer.write([{"id": 1, "text": "before"}])
    browser.open(f"{url}/#/channels/lively?tab=messages&start=live&q=t")
    browser.shows("New messages appear here")
    # Once there is progress, the search knows the end.
    browser.shows("0 matches in 0 messages")
    with channel.writer() as writer:
        writer.write([{"id": 2, "text": "t2"}, {"id": 3, "text": "other"}])
        writer.flush()
        until(lambda: offsets(browser) == [2, 1], 30)
        writer.write([{"id": 5, "text": "t5"}])
        writer.flush()
        until(lambda: offsets(browser) == [3, 2, 1], 30)
        assert browser.violations() == []
        browser.button("Stop").click()
        browser.shows("Stopped: 3 matches.")
        writer.write([{"id": 6, "text": "t6"}])
    browser.button("Follow").click()
    browser.shows("0 matches in 0 messages")
    assert offsets(browser) == []


def test_the_tab_is_used_with_the_keyboard_only(
    browser: Browser, gateway: Gateway, url: str
) -> None:
    channel = gateway.channel("keys", SCHEMA)
    with channel.writer() as writer:
        writer.write([{"id": 7}])
    browser.open(f"{url}/#/channels/keys")
    browser.one("nav.tabs")
    browser.tab_to(lambda element: element.text == "Messages")
    browser.press(Keys.ENTER)
    until(lambda: offsets(browser) == [0], 30)
    browser.tab_to(lambda element: element.text.startswith("Details"))
    browser.press(Keys.ENTER)
    browser.shows('"id": 7', "tr.details pre")
    browser.tab_to(lambda element: element.text == "Change and write…")
    browser.press(Keys.ENTER)
    browser.one("dialog[open]")
    browser.press(Keys.ESCAPE)
    until(lambda: not browser.all("dialog"), 30)


def test_a_missing_permission_is_reported(
    browser: Browser, gateway: Gateway, kafka: SharedKafka, sqlite: SQLite, tmp_path: Path
) -> None:
    settings = Settings(
        database_url=sqlite.migrated(),
        kafka_bootstrap_servers=kafka.bootstrap_servers,
        token_key="k" * 40,
    )
    app = create_app(settings)
    tokens = app.state.parts.tokens
    with serving(app) as url:
        admin = tokens.create(label="a", scopes=["admin"]).text.get_secret_value()
        with Gateway(url, token=admin) as admin_gateway:
            admin_gateway.channel("guarded", SCHEMA)
        reader = tokens.create(label="r", scopes=["write:guarded"]).text.get_secret_value()
        browser.open(f"{url}/#/channels/guarded?tab=messages")
        browser.one("#token").send_keys(reader + Keys.ENTER)
        browser.shows("a token with the scope read does", "[role=alert]")
        browser.execute_script("sessionStorage.clear()")
