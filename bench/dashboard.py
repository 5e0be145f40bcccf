"""The dashboard in Chromium: the first rows of 1,000 channels, and frames of a list of 5,000.

First measures the cost of 200 open dashboards for a gateway (`bench.watchers`). The page is
measured with a gateway in a separate process on SQLite, without Kafka. `first_paint_ms` is the time
from the navigation, with an empty cache, to the frame with the first rows; `transfer_kb` is the
data received until then, compressed if the response is.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from bench.measure import Reached, report
from bench.service import Service, running
from bench.watchers import CHANNELS, SECONDS, STREAMS, watched
from bench.watchers import GOALS as WATCHERS
from rich.progress import track
from selenium import webdriver
from selenium.webdriver.chrome.service import Service as Driver

SHOWN, MANY = 1_000, 5_000
LOADS = 5
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
GOALS = {"first_paint_ms": 1_000.0, "transfer_kb": 100.0, "longest_frame_ms": 50.0, **WATCHERS}

#: Records the time of the frame after the first one with rows.
PAINTED = """
new MutationObserver((_, observer) => {
  if (!document.querySelector("[data-row-link]")) return;
  observer.disconnect();
  requestAnimationFrame(() => requestAnimationFrame((at) => { window.paintedAt = at; }));
}).observe(document, { childList: true, subtree: true });
"""
#: Scrolls through the whole list, then types a filter and clears it; returns the longest frame.
FRAMES = """
const done = arguments[arguments.length - 1];
const scroller = document.querySelector(".scroller");
const filter = document.querySelector(".filter input");
const steps = [];
for (let step = 1; step <= 150; step += 1) {
  steps.push(() => { scroller.scrollTop = (scroller.scrollHeight * step) / 150; });
}
for (const text of ["c", "c1", "c12", "c123", "c12", "c1", "c", ""]) {
  steps.push(() => {
    filter.value = text;
    filter.dispatchEvent(new InputEvent("input", { bubbles: true }));
  });
  for (let pause = 0; pause < 6; pause += 1) steps.push(() => {});
}
let last = null;
let longest = 0;
function frame(at) {
  if (last !== null) longest = Math.max(longest, at - last);
  last = at;
  const step = steps.shift();
  if (step) { step(); requestAnimationFrame(frame); } else done(longest);
}
requestAnimationFrame(frame);
"""


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Run Chromium while the block runs."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for each in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1280,800"):
        options.add_argument(f"--{each}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Driver("/usr/bin/chromedriver"))
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": PAINTED})
    driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    try:
        yield driver
    finally:
        driver.quit()


def fill(service: Service, first: int, end: int) -> None:
    """Create channels."""
    headers = {"Authorization": f"Bearer {service.token}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as http:
        for number in track(range(first, end), "Creating channels", transient=True):
            labels = {"team": f"team-{number % 20}"}
            body = {"metadata": {"labels": labels}, "spec": {"schema": SCHEMA}}
            http.put(f"/v1/channels/c{number:04}", json=body).raise_for_status()


def until(driver: webdriver.Chrome, script: str, seconds: float = 60) -> Any:
    """Wait until the script returns a true value, and return it."""
    deadline_s = time.monotonic() + seconds
    while not (found := driver.execute_script(script)):
        assert time.monotonic() < deadline_s, script
        time.sleep(0.01)
    return found


def load(driver: webdriver.Chrome, url: str) -> tuple[float, float]:
    """Load the page; return the time of its first rows in ms, and the received data in kB."""
    driver.get("about:blank")
    driver.get_log("performance")
    driver.get(url)
    painted_ms = until(driver, "return window.paintedAt")
    events = [json.loads(each["message"])["message"] for each in driver.get_log("performance")]
    received = sum(
        each["params"]["encodedDataLength"]
        for each in events
        if each["method"] == "Network.dataReceived"
    )
    return painted_ms, received / 1000


def page() -> dict[str, float]:
    """Return the figures of the page."""
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'gateway.db'}"
        with running(url, "127.0.0.1:1") as service, chromium() as driver:
            until_ready(service)
            fill(service, 0, SHOWN)
            driver.get(service.url)
            driver.execute_script(f"sessionStorage['sluiceway.token'] = '{service.token}'")
            loads = [load(driver, f"{service.url}/#/?sort=name") for _ in range(LOADS)]
            fill(service, SHOWN, MANY)
            load(driver, f"{service.url}/#/?sort=name")
            count = "document.querySelector('table').getAttribute('aria-rowcount')"
            until(driver, f"return {count} === '{MANY + 1}'")
            frames = [driver.execute_async_script(FRAMES) for _ in range(LOADS)]
    return {
        "first_paint_ms": median(paint for paint, _ in loads),
        # The last piece may be noted after the rows are shown.
        "transfer_kb": max(size for _, size in loads),
        "longest_frame_ms": median(frames),
    }


def write(values: dict[str, float], cost: dict[str, float]) -> None:
    """Print the figures of the page and of watchers, and write the results."""
    values = {**values, **cost}
    report(
        "dashboard",
        {},
        {},
        title="Dashboard in Chromium",
        settings={
            "channels": SHOWN,
            "rows": MANY,
            "loads": LOADS,
            "streams": STREAMS,
            "watched_channels": CHANNELS,
            "seconds": SECONDS,
            "watchers": {name: round(value, 3) for name, value in cost.items()},
        },
        others={key: Reached(value=values[key], at_most=goal) for key, goal in GOALS.items()},
    )


def main() -> None:
    write(page(), watched())


def until_ready(service: Service) -> None:
    """Wait until the gateway answers."""
    deadline_s = time.monotonic() + 60
    while True:
        try:
            httpx.get(f"{service.url}/livez").raise_for_status()
        except httpx.TransportError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    main()
