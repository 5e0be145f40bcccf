"""Chromium for tests of the dashboard."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from waiting import until

_AXE = Path(__file__).parent / "axe" / "axe.min.js"
_FAILED_REQUEST = "Failed to load resource"


class Browser:
    """A tab of Chromium."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load the page as in a new tab."""
        self.driver.get("about:blank")
        self.driver.get(url)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        """Wait for an element and return it."""
        element: WebElement = until(lambda: next(iter(self.all(css)), None), 30)
        return element

    def button(self, text: str) -> WebElement:
        """Wait for a button or link with this text and return it."""
        path = f'//*[self::button or self::a][normalize-space()="{text}"]'
        element: WebElement = until(
            lambda: next(iter(self.driver.find_elements(By.XPATH, path)), None), 30
        )
        return element

    def text(self, css: str = "body") -> str:
        """Return the visible text of the elements; empty while there are none."""
        try:
            return " ".join(each.text for each in self.all(css))
        except StaleElementReferenceException:
            return ""

    def shows(self, text: str, css: str = "body", seconds: float = 30) -> None:
        """Wait until the element shows a text."""
        try:
            until(lambda: text in self.text(css), seconds)
        except AssertionError:
            raise AssertionError(f"{text!r} is not in {self.text(css)!r}") from None

    def names(self) -> list[str]:
        """Return the channel names that the list has rendered so far."""
        script = "return [...document.querySelectorAll('[data-row-link]')].map(e => e.textContent)"
        return list(self.driver.execute_script(script))

    def focused(self) -> tuple[str, str]:
        """Return the tag name and the text of the focused element, read in one step.

        Between two steps the page may replace the element.
        """
        script = "const each = document.activeElement; return [each.localName, each.innerText]"
        tag, text = self.driver.execute_script(script)
        return tag, text

    def press(self, *keys: str) -> None:
        """Press keys in the focused element."""
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, matches: Callable[[WebElement], bool], limit: int = 60) -> WebElement:
        """Press the tab key until the focused element matches."""
        for _ in range(limit):
            self.press(Keys.TAB)
            focused = self.driver.switch_to.active_element
            if matches(focused):
                return focused
        raise AssertionError("no such element among the tab stops")

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def color_scheme(self, scheme: str) -> None:
        """Set the preferred color scheme of the system: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def errors(self) -> list[str]:
        """Return new console errors of scripts and of the content security policy."""
        entries: list[Any] = self.driver.get_log("browser")
        severe = [each["message"] for each in entries if each["level"] == "SEVERE"]
        return [each for each in severe if _FAILED_REQUEST not in each]

    def violations(self) -> list[str]:
        """Return axe's violations of WCAG 2.2 AA and of its best practices."""
        self.driver.execute_script(_AXE.read_text())
        report = self.driver.execute_async_script(
            "axe.run({resultTypes: ['violations']}).then(arguments[arguments.length - 1])"
        )
        return [
            f"{each['id']}: {node['html']}"
            for each in report["violations"]
            for node in each["nodes"]
        ]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's headless Chromium while the block runs."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for each in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{each}")
    options.add_argument("--lang=en-US")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    # For axe on large pages; the default is 30 s.
    driver.set_script_timeout(300)
    try:
        browser = Browser(driver)
        browser.resize(1280, 800)
        yield browser
    finally:
        driver.quit()
