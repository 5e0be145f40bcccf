"""The graph of a channel: pipelines as an image and as text, links, hostile names."""

import pytest
from selenium.webdriver.common.keys import Keys

from browsers import Browser, create_pipeline
from endpoints import Site, fresh_id, site
from gateways import Rig
from waiting import until

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def pipeline(rig: Rig) -> dict[str, Site]:
    """The pipeline of `flights` and `delays`, with a hostile name reported by a reader."""
    sites = create_pipeline(rig) | {"fares": site(rig, "fares")}
    sites["delays"].session = fresh_id()
    sites["delays"].attach(spark={"application": HOSTILE, "ui": "javascript:alert(1)"})
    return sites


def order(browser: Browser) -> list[str]:
    """Return the texts of the nodes from left to right."""
    script = """
        const nodes = [...document.querySelectorAll(".graph foreignObject")];
        nodes.sort((a, b) => a.x.baseVal.value - b.x.baseVal.value);
        return nodes.map(each => each.querySelector("a, b").textContent);
    """
    texts: list[str] = browser.execute_script(script)
    return texts


def test_a_pipeline_is_one_picture_from_left_to_right(
    browser: Browser, rig: Rig, pipeline: dict[str, Site]
) -> None:
    browser.open(f"{rig.url}/#/channels/delays?tab=graph")
    until(lambda: len(browser.all(".graph .node")) == 6, 30)
    assert order(browser)[:4] == ["loader", "flights", "sums", "delays"]
    assert "fares" not in order(browser)
    browser.shows("delays: written by sums (1 running); read by", ".sentences")
    browser.shows("archive (1 failed)", ".sentences")
    assert len(browser.all(".edge.error")) == 1
    assert browser.one(".node.current").text.startswith("delays")
    links = [link.get_attribute("href") for link in browser.all(".node.job a")]
    assert links == ["http://driver.example:4040/"]


CROSSINGS = """
    const boxOf = (element) => element.getBBox();
    const edges = [...document.querySelectorAll(".graph .edge")].map((edge) => ({
        path: edge.querySelector("path"), label: boxOf(edge.querySelector("text")),
    }));
    const nodes = [...document.querySelectorAll(".graph foreignObject")].map(boxOf);
    const inside = ({ x, y, width, height }, point) =>
        point.x > x + 1 && point.x < x + width - 1 && point.y > y + 1 && point.y < y + height - 1;
    const overlap = (one, other) => one.x < other.x + other.width && other.x < one.x + one.width
        && one.y < other.y + other.height && other.y < one.y + one.height;
    const crossings = [];
    edges.forEach(({ path }, index) => {
        const others = edges.filter((_, other) => other !== index).map(({ label }) => label);
        for (let at = 0; at <= path.getTotalLength(); at += 2) {
            const point = path.getPointAtLength(at);
            for (const box of [...others, ...nodes]) {
                if (inside(box, point)) crossings.push([index, point.x, point.y]);
            }
        }
    });
    edges.forEach(({ label }, index) => {
        for (const box of [...edges.slice(index + 1).map((edge) => edge.label), ...nodes]) {
            if (overlap(label, box)) crossings.push([index, label.x, label.y]);
        }
    });
    return [edges.length, crossings];
"""


def test_edges_cross_no_label_and_no_node(browser: Browser, rig: Rig) -> None:
    """Jobs that read and write several channels, one that skips a channel, and a cycle."""
    sites = {name: site(rig, name) for name in ("raw", "clean", "sums", "alerts")}
    width = 9
    for number in range(width):
        sites["raw"].session = fresh_id()
        sites["raw"].member(role="writer", group=f"loader-{number}")
        sites["raw"].session = sites["clean"].session = fresh_id()
        sites["raw"].member(group=f"cleaner-{number}")
        sites["clean"].member(role="writer", group=f"cleaner-{number}")
    session = sites["raw"].session = sites["clean"].session = sites["sums"].session = fresh_id()
    sites["alerts"].session = session
    sites["raw"].member(group="all")
    sites["clean"].member(group="all")
    sites["sums"].member(role="writer", group="all")
    sites["alerts"].member(role="writer", group="all")
    session = sites["sums"].session = sites["raw"].session = fresh_id()
    sites["sums"].member(group="back")
    sites["raw"].member(role="writer", group="back")
    browser.open(f"{rig.url}/#/channels/clean?tab=graph")
    until(lambda: len(browser.all(".graph .node.job")) == 2 * width + 2, 30)
    edges, crossings = browser.execute_script(CROSSINGS)
    assert edges == 3 * width + 6
    assert crossings == []


def test_the_graph_leads_from_channel_to_channel_by_keyboard(
    browser: Browser, rig: Rig, pipeline: dict[str, Site]
) -> None:
    browser.open(f"{rig.url}/#/channels/delays?tab=graph")
    browser.one(".graph .node")
    browser.tab_to(lambda element: element.text == "flights")
    browser.press(Keys.ENTER)
    browser.shows("flights", "h1")
    browser.shows("flights: written by loader", ".sentences")
    assert browser.current_url.endswith("#/channels/flights?tab=graph")


def test_a_new_reader_appears(browser: Browser, rig: Rig, pipeline: dict[str, Site]) -> None:
    browser.open(f"{rig.url}/#/channels/fares?tab=graph")
    browser.shows("No job writes or reads this channel")
    pipeline["fares"].member(group="newcomer")
    browser.shows("read by newcomer (1 running)", ".sentences")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_graph_is_accessible_and_names_are_text(
    browser: Browser, rig: Rig, pipeline: dict[str, Site], scheme: str
) -> None:
    browser.color_scheme(scheme)
    browser.open(f"{rig.url}/#/channels/delays?tab=graph")
    until(lambda: len(browser.all(".graph .node")) == 6, 30)
    assert browser.violations() == []
    assert HOSTILE in browser.text(".graph")
    assert browser.all("main img") == []
    assert browser.title == "delays · Sluiceway"
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= 1280
    browser.open(f"{rig.url}/#/channels/delays?tab=endpoints")
    browser.shows("nightly / sums", ".spark")
    links = [link.get_attribute("href") for link in browser.all(".spark a")]
    assert links == ["http://driver.example:4040/"]
