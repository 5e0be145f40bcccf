"""Actions on the page: channels are created, edited and deleted; groups are reset and resized."""

import json
from datetime import datetime
from unittest.mock import Mock

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from browsers import Browser
from endpoints import Site, site
from gateways import SCHEMA, TOPIC_ID, Rig
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.messages.reading import PartitionOffsets, TopicOffsets
from waiting import until

DIALOG_ALERT = "dialog [role=alert]"


def write(browser: Browser, field: str, text: str) -> None:
    """Replace the text of a field of the dialog."""
    element = browser.one(f"#field-{field}")
    element.send_keys(Keys.CONTROL, "a")
    element.send_keys(text)


def edited(browser: Browser, old: str, new: str) -> None:
    """Replace a part of the document in the dialog."""
    text = str(browser.one("#field-document").get_property("value"))
    assert text.count(old) == 1, text
    write(browser, "document", text.replace(old, new))


@pytest.fixture
def flights(rig: Rig) -> Site:
    """A channel whose group `g` is at (0, 5) and (1, 7)."""
    flights = site(rig, partitions=2)
    reader = flights.member()
    flights.commit(reader, 1, (0, 5, 0), (1, 7, 0)).raise_for_status()
    flights.detach(reader).raise_for_status()
    return flights


def test_a_channel_is_created(browser: Browser, rig: Rig) -> None:
    browser.open(rig.url)
    browser.button("Create a channel…").click()
    write(browser, "name", "landings")
    write(browser, "partitions", "3")
    write(browser, "labels", "team=ops, stage=test")
    Select(browser.one("#field-delivery")).select_by_value("exactly_once")
    write(browser, "schema", '{"type": "record"')
    browser.button("Create the channel").click()
    browser.shows("The schema is not JSON", DIALOG_ALERT)
    write(browser, "schema", json.dumps({**SCHEMA, "fields": []} | {"type": "records"}))
    browser.button("Create the channel").click()
    browser.shows("schema", DIALOG_ALERT)
    assert browser.violations() == []
    write(browser, "schema", json.dumps(SCHEMA))
    browser.button("Create the channel").click()
    browser.shows("landings", "h1")
    assert browser.current_url.endswith("#/channels/landings?tab=configuration")
    created = rig.http.get("/v1/channels/landings").json()
    assert created["metadata"]["labels"] == {"team": "ops", "stage": "test"}
    spec = created["spec"]
    assert (spec["partitions"], spec["delivery"], spec["schema"]["name"]) == (
        3,
        "exactly_once",
        "R",
    )
    browser.back()
    browser.button("Create a channel…").click()
    write(browser, "name", "landings")
    browser.button("Create the channel").click()
    browser.shows("exist", DIALOG_ALERT)


def test_a_channel_of_bytes_needs_no_schema(browser: Browser, rig: Rig) -> None:
    browser.open(rig.url)
    browser.button("Create a channel…").click()
    write(browser, "name", "raw")
    Select(browser.one("#field-format")).select_by_visible_text("bytes")
    until(lambda: not browser.all("#field-schema"), 30)
    browser.button("Create the channel").click()
    browser.shows("raw", "h1")
    assert rig.http.get("/v1/channels/raw").json()["spec"]["format"] == "bytes"


def test_a_channel_is_edited_as_json_after_a_preview(browser: Browser, rig: Rig) -> None:
    rig.put("flights", retention={"ms": 2**62 + 1, "bytes": None}).raise_for_status()
    rig.observe("flights", Phase.READY)
    browser.open(f"{rig.url}/#/channels/flights")
    browser.button("Edit…").click()
    browser.shows("Nothing is changed.", "dialog .preview")
    edited(browser, '"partitions": 1', '"partitions": 4')
    edited(browser, '"labels": {}', '"labels": {"team": "ops"}')
    browser.shows("partitions: 1 → 4", "dialog .preview")
    browser.shows('labels: {} → {"team": "ops"}', "dialog .preview")
    assert browser.violations() == []
    # Meanwhile somebody else changes it.
    rig.put("flights", mirrored=True).raise_for_status()
    browser.button("Save the changes").click()
    browser.shows("Somebody else has changed the channel meanwhile", DIALOG_ALERT)
    browser.button("Cancel").click()
    browser.button("Edit…").click()
    edited(browser, '"partitions": 1', '"partitions": 4')
    edited(browser, '"labels": {}', '"labels": {"team": "ops"}')
    browser.button("Save the changes").click()
    until(lambda: not browser.all("dialog"), 30)
    after = rig.http.get("/v1/channels/flights").json()
    assert (after["metadata"]["labels"], after["spec"]["partitions"]) == ({"team": "ops"}, 4)
    assert after["spec"]["retention"] == {"ms": 2**62 + 1, "bytes": None}
    assert after["spec"]["mirrored"]
    browser.button("Edit…").click()
    edited(browser, '"partitions": 4', '"partitions": 2')
    browser.button("Save the changes").click()
    browser.shows("partitions", DIALOG_ALERT)


def test_a_channel_is_deleted_after_its_name_was_typed(browser: Browser, flights: Site) -> None:
    browser.open(f"{flights.rig.url}/#/channels/flights")
    browser.button("Delete…").click()
    write(browser, "name", "flight")
    browser.button("Delete the channel").click()
    browser.shows("Type flights to delete it.", DIALOG_ALERT)
    assert browser.violations() == []
    write(browser, "name", "flights")
    browser.one("dialog label.check:has(input)").click()
    browser.button("Delete the channel").click()
    until(lambda: not browser.all("dialog"), 30)
    browser.shows("Deleting", ".title .state")
    assert flights.rig.http.get(flights.path).json()["status"]["phase"] == "deleting"


def test_a_group_is_reset_to_an_offset_of_a_partition(browser: Browser, flights: Site) -> None:
    browser.open(f"{flights.rig.url}/#/channels/flights")
    browser.button("Reset offsets…").click()
    Select(browser.one("#field-target")).select_by_value("offset")
    browser.shows("Give a partition and an offset.", "dialog .preview")
    write(browser, "partition", "1")
    write(browser, "offset", "3")
    browser.shows("in 1 partition", "dialog .preview")
    write(browser, "reason", "a wrong join")
    browser.button("Reset the offsets").click()
    until(lambda: not browser.all("dialog"), 30)
    assert flights.committed() == [(0, 5, 0), (1, 3, 0)]


def test_a_group_is_reset_to_a_time(browser: Browser, flights: Site) -> None:
    offsets = [
        PartitionOffsets(
            partition=partition, begin_offset=0, end_offset=9, stable_offset=None, offset=offset
        )
        for partition, offset in ((0, 2), (1, 9))
    ]
    topic_offsets = TopicOffsets(topic_id=TOPIC_ID, partitions=tuple(offsets), unavailable=())
    reads = Mock(offsets=Mock(return_value=topic_offsets))
    flights.rig.replace(message_reads=reads)
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    try:
        browser.open(f"{flights.rig.url}/#/channels/flights")
        browser.button("Reset offsets…").click()
        Select(browser.one("#field-target")).select_by_value("time")
        script = """
            const input = arguments[0];
            input.value = "2026-01-31T17:30";
            input.dispatchEvent(new Event("input", { bubbles: true }));
        """
        browser.execute_script(script, browser.one("#field-time"))
        browser.shows("in 2 partitions", "dialog .preview")
        write(browser, "reason", "again from noon")
        assert browser.violations() == []
        browser.button("Reset the offsets").click()
        until(lambda: not browser.all("dialog"), 30)
    finally:
        browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
    assert flights.committed() == [(0, 2, 0), (1, 9, 0)]
    noon = datetime.fromisoformat("2026-01-31T12:00:00+00:00")
    assert {call.kwargs["since"] for call in reads.offsets.call_args_list} == {noon}


def test_a_group_is_resized(browser: Browser, flights: Site) -> None:
    browser.open(f"{flights.rig.url}/#/channels/flights")
    browser.button("Resize…").click()
    write(browser, "size", "2")
    browser.button("Resize the group").click()
    until(lambda: not browser.all("dialog"), 30)
    assert flights.rig.http.get(flights.offsets_path("g")).json()["size"] == 2
    flights.join(group="dynamic")
    browser.shows("dynamic", "article.group h3")
    until(lambda: len(browser.all("article.group")) == 2, 30)
    assert (
        len([button for button in browser.all("article button") if button.text == "Resize…"]) == 1
    )


def test_a_token_that_may_not_manage_creates_no_channel(browser: Browser, rig: Rig) -> None:
    token = rig.token("read", "write", label="ana")["Authorization"].removeprefix("Bearer ")
    browser.open(rig.url)
    browser.one("#token").send_keys(token + Keys.ENTER)
    browser.shows("ana", "header .account")
    browser.shows("There are no channels that this token may see.")
    assert "Create a channel…" not in browser.text()
