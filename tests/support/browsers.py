"""Chromium for tests of the dashboard, and channels that it shows."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from endpoints import Site, fresh_id, site
from gateways import Rig
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.status.lag_history import store
from sluiceway_gateway.status.lag_history.model import FINEST, GroupPoint, HistoryPoint
from sluiceway_gateway.status.lag_history.store import PointWrite
from waiting import until

_AXE = Path(__file__).parent / "axe" / "axe.min.js"


class Browser(webdriver.Chrome):
    """Chromium with one tab."""

    def open(self, url: str) -> None:
        """Load the page as in a new tab."""
        self.get("about:blank")
        self.get(url)

    def all(self, css: str) -> list[WebElement]:
        return self.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        """Wait for an element and return it."""
        return until(lambda: self.all(css), 30)[0]

    def button(self, text: str) -> WebElement:
        """Wait for a button or link with this text and return it."""
        path = f'//*[self::button or self::a][normalize-space()="{text}"]'
        return until(lambda: self.find_elements(By.XPATH, path), 30)[0]

    def text(self, css: str = "body") -> str:
        """Return the visible text of the elements; empty while there are none."""
        try:
            return " ".join(element.text for element in self.all(css))
        except StaleElementReferenceException:
            return ""

    def shows(self, text: str, css: str = "body", seconds: float = 30) -> None:
        """Wait until the element shows a text."""
        until(lambda: text in self.text(css), seconds, state=lambda: self.text(css))

    def names(self) -> list[str]:
        """Return the channel names that the list has rendered so far."""
        script = "return [...document.querySelectorAll('[data-row-link]')].map(e => e.textContent)"
        return list(self.execute_script(script))

    def focused(self) -> tuple[str, str]:
        """Return the tag name and the text of the focused element, read in one step.

        Between two steps the page may replace the element.
        """
        script = "const each = document.activeElement; return [each.localName, each.innerText]"
        return tuple(self.execute_script(script))

    def press(self, *keys: str) -> None:
        """Press keys in the focused element."""
        webdriver.ActionChains(self).send_keys(*keys).perform()

    def tab_to(self, matches: Callable[[WebElement], bool]) -> WebElement:
        """Press the tab key until the focused element matches."""
        for _ in range(60):
            self.press(Keys.TAB)
            focused = self.switch_to.active_element
            if matches(focused):
                return focused
        raise AssertionError("no such element among the tab stops")

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def color_scheme(self, scheme: str) -> None:
        """Set the preferred color scheme of the system: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def errors(self) -> list[str]:
        """Return new console errors of scripts and of the content security policy."""
        severe = [
            entry["message"] for entry in self.get_log("browser") if entry["level"] == "SEVERE"
        ]
        return [message for message in severe if "Failed to load resource" not in message]

    def violations(self) -> list[str]:
        """Return axe's violations of WCAG 2.2 AA and of its best practices."""
        self.execute_script(_AXE.read_text())
        report = self.execute_async_script(
            "axe.run({resultTypes: ['violations']}).then(arguments[arguments.length - 1])"
        )
        return [
            f"{violation['id']}: {node['html']}"
            for violation in report["violations"]
            for node in violation["nodes"]
        ]


def record_lag(
    target: Site, hours: float, *, names: tuple[str, ...] = ("archive", "delays")
) -> None:
    """Write points up to now: a wave of lag, unknown for one group in the last ten minutes."""
    now = target.rig.clock.now = datetime.now(UTC)
    now_s = FINEST.start(now.timestamp())
    previous_s = None
    for number in range(int(hours * 360), -1, -1):
        groups = {}
        for place, name in enumerate(names):
            lag = int(1000 * (1 + place) * (1 + math.sin(number / 30 + place)))
            is_known = place == 0 or number > 60
            groups[name] = GroupPoint(
                lag_messages=lag if is_known else None,
                lag_seconds=lag / 40 if is_known else None,
                lag_seconds_at_least=False,
                read_rate=50.0 + place,
            )
        point = HistoryPoint(at_s=now_s - 10 * number, write_rate=60.0, groups=groups)
        write = PointWrite(channel_uid=target.uid, point=point, previous_s=previous_s)
        with target.rig.database.write() as tx:
            store.write(tx, [write])
        previous_s = point.at_s


def create_pipeline(rig: Rig) -> dict[str, Site]:
    """Create `flights`, written by a loader, and `delays`, written from it by a Spark query.

    A reader of `delays` has failed.
    """
    sites = {name: site(rig, name) for name in ("flights", "delays")}
    for name in sites:
        rig.observe(name, Phase.READY)
    flights, delays = sites.values()
    spark = {"application": "nightly", "query": "sums", "ui": "http://driver.example:4040"}
    flights.member(role="writer", group="loader")
    flights.session = delays.session = fresh_id()
    flights.member(group="sums", spark=spark)
    delays.member(role="writer", group="sums", spark=spark)
    delays.session = fresh_id()
    delays.detach(delays.member(group="archive"), "error", cause="the disk is full")
    delays.session = fresh_id()
    return sites
