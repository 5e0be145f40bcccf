"""The changes of a channel on its page: actor, action, and old and new values."""

from browsers import Browser
from endpoints import site
from gateways import Rig
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.provisioning.store import remove


def test_an_action_appears_in_the_changes_of_its_channel(browser: Browser, rig: Rig) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    rig.http.headers.update(rig.token("admin", label=hostile))
    flights = site(rig, partitions=2)
    reader = flights.member(group="sums")
    assert flights.commit(reader, 1, (0, 7, 0)).is_success
    assert flights.detach(reader).is_success
    rig.put(idle_ms=60_000, metadata={"labels": {"team": "ops"}}).raise_for_status()
    browser.open(f"{rig.url}/#/channels/flights?tab=changes")
    browser.one("#token").send_keys(rig.http.headers["Authorization"].removeprefix("Bearer "))
    browser.button("Sign in").click()
    browser.shows("Updated", "table.changes")
    browser.shows("idle_ms: none → 60000", "table.changes")
    browser.shows("labels.team: none → ops", "table.changes")
    browser.shows(hostile, "table.changes")
    assert browser.violations() == []
    # An action on the page itself, without a reload.
    browser.button("Close…").click()
    browser.one("dialog[open] input[type=checkbox]").click()
    browser.button("Close the channel").click()
    browser.shows("phase: ready → closed", "table.changes")
    # A change by another client.
    assert flights.reset((0, 3, 0), group="sums", reason=hostile).is_success
    browser.shows(f"Offsets reset sums {hostile}", "table.changes")
    browser.shows("partition 0: 7 → 3", "table.changes")
    with rig.database.write() as tx:
        remove(tx, flights.uid, from_phases=list(Phase))
    browser.open(f"{rig.url}/#/channels/flights")
    browser.shows("does not exist", "[role=alert]")
    browser.shows("Offsets reset", "table.changes")
    browser.open(f"{rig.url}/#/channels/never")
    browser.shows("does not exist", "[role=alert]")
    assert "Changes" not in browser.text()
