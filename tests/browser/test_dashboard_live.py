"""Problems of writers, readers and the gateway appear on the page.

Each test first waits for the gateway's status, then for the page.
"""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from browsers import Browser
from databases import SQLite
from gateways import UNREACHABLE, serving
from shared_kafka import SharedKafka
from sluiceway import Gateway, Heartbeat
from sluiceway.errors import Conflict
from sluiceway.writer import ChannelWriter
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.status import sampler
from waiting import until

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}


class Live:
    """A gateway on a real broker, and a client."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=30)
        self.client = Gateway(url)

    def status(self, name: str) -> Any:
        status: Any = self.http.get(f"/v1/channels/{name}/status").json()
        return status

    def summary(self, name: str) -> Any:
        items = self.http.get("/v1/status?limit=1000").json()["items"]
        return next(item for item in items if item["channel"]["name"] == name)

    def close(self) -> None:
        self.client.close()
        self.http.close()


def app(kafka: SharedKafka, database_url: str) -> FastAPI:
    return create_app(
        Settings(
            database_url=database_url,
            kafka_bootstrap_servers=kafka.bootstrap_servers,
            sample_s=0.2,
        )
    )


@contextmanager
def gateway(kafka: SharedKafka, sqlite: SQLite) -> Iterator[Live]:
    settings = Settings(
        database_url=sqlite.migrated(),
        kafka_bootstrap_servers=kafka.bootstrap_servers,
        sample_s=0.2,
    )
    with pytest.MonkeyPatch.context() as patched:
        # By default, the lag of a reader that has ended may be seen only after a minute; no setting
        # changes that.
        patched.setattr(sampler, "IDLE_S", 0.5)
        with serving(create_app(settings)) as url, closing(Live(url)) as live:
            yield live


@pytest.fixture
def live(kafka: SharedKafka, sqlite: SQLite) -> Iterator[Live]:
    with gateway(kafka, sqlite) as live:
        yield live


def records(count: int) -> list[dict[str, int]]:
    return [{"a": number} for number in range(count)]


def held_messages(status: Any) -> int:
    ledger = status["ledger"]
    return sum(batch["held_messages"] for batch in ledger["batches"]) if ledger else 0


def test_a_stalled_reader_is_shown_until_it_reads_again(browser: Browser, live: Live) -> None:
    channel = live.client.channel("stalled", schema=SCHEMA, heartbeat=Heartbeat(interval_ms=100))
    browser.open(live.url)
    with channel.writer() as writer, channel.reader(group="slow") as reader:
        writer.write(records(100))
        writer.flush()
        assert len(reader.read(10, timeout=30)) == 10
        reader.commit()
        until(lambda: live.summary("stalled")["progress"] == "stalled")
        browser.shows("stalled: alive, but nothing is read", ".problems")
        browser.one(".problems a").click()
        browser.shows("Stalled", "article.group")
        browser.shows("not converging", ".figures")
        reader.read(100, timeout=30)
        reader.commit()
        until(lambda: live.summary("stalled")["progress"] == "ok")
        browser.shows("OK", "article.group")


def test_a_lost_writer_is_shown(browser: Browser, live: Live) -> None:
    live.client.channel(
        "orphaned", schema=SCHEMA, heartbeat=Heartbeat(interval_ms=100, timeout_ms=1_000)
    )
    program = f"""
        import time
        from sluiceway import Gateway
        with Gateway({live.url!r}) as gateway:
            writer = gateway.channel("orphaned").writer(group="loader")
            writer.write([{{"a": 1}}])
            writer.flush()
            print("written", flush=True)
            time.sleep(600)
    """
    arguments = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        browser.open(live.url)
        browser.shows("No problems", ".problems")
        process.kill()
    until(lambda: live.summary("orphaned")["writers"]["lost"])
    browser.shows("The writer loader (0) is lost", ".problems")
    browser.one(".problems a").click()
    browser.shows("The writer loader (0) is lost", "ul.problems")


def test_a_draining_channel_is_shown(browser: Browser, live: Live) -> None:
    channel = live.client.channel("ending", schema=SCHEMA)
    with channel.writer() as writer:
        writer.write(records(1))
        writer.flush()
        browser.open(live.url)
        browser.shows("Ready", ".column-state")
        uid = live.http.get("/v1/channels/ending").json()["metadata"]["uid"]
        live.http.post("/v1/channels/ending/close", json={"uid": uid}).raise_for_status()
        browser.shows("Draining", ".column-state")
        browser.button("ending").click()
        browser.one(".title a").click()
        browser.shows("WritersOpen", ".conditions")


def test_a_topic_that_cannot_be_created_is_a_problem(browser: Browser, sqlite: SQLite) -> None:
    settings = Settings(
        database_url=sqlite.migrated(), kafka_bootstrap_servers=UNREACHABLE, kafka_timeout_ms=300
    )
    with serving(create_app(settings)) as url, httpx.Client(base_url=url, timeout=60) as http:
        http.put("/v1/channels/new", json={"spec": {"schema": SCHEMA}}).raise_for_status()
        browser.open(url)
        browser.shows("new: The topic does not match the spec.", ".problems")
        browser.one(".problems .disclosure").click()
        browser.shows("Kafka does not answer. The gateway retries", ".problems")
        browser.one(".problems a").click()
        browser.shows("BrokerUnavailable: Kafka does not answer.", ".conditions")
        browser.get("about:blank")


def test_an_open_batch_that_holds_readers_back_is_shown_and_aborted(
    browser: Browser, live: Live
) -> None:
    channel = live.client.channel("daily", schema=SCHEMA, delivery="exactly_once")
    with channel.writer(group="one") as one, pytest.raises(Conflict):
        hold_readers_until_aborted(browser, live, one)


def hold_readers_until_aborted(browser: Browser, live: Live, one: ChannelWriter) -> None:
    """Open a batch, abort it on the page, and raise the Conflict of its end."""
    browser.open(live.url)
    with live.client.channel("daily").writer(group="two") as two, one.batch("2013-01-01"):
        one.write(records(10))
        one.flush()
        with two.batch("2013-01-02"):
            two.write(records(20))
        until(lambda: held_messages(live.status("daily")))
        browser.shows("Open batch 2013-01-01 of one[0] holds", ".problems")
        browser.one(".problems a").click()
        browser.shows("2013-01-02", "section")
        browser.button("Abort…").click()
        browser.one("dialog[open] input").send_keys("it hangs")
        browser.button("Abort the batch").click()
        until(lambda: not browser.all("dialog"), 30)
        browser.shows("it hangs", "section")
        until(lambda: not browser.all("ul.problems"), 30)


def test_a_reset_shows_the_number_of_messages_to_read_again(browser: Browser, live: Live) -> None:
    channel = live.client.channel("again", schema=SCHEMA)
    with channel.writer() as writer:
        writer.write(records(7))
    with channel.reader(group="sums") as reader:
        assert len(reader.read(7, timeout=30)) == 7
        reader.commit()
    browser.open(f"{live.url}/#/channels/again")
    until(lambda: live.status("again")["groups"][0]["lag_messages"] == 0)
    browser.shows("drained", "article.group")
    browser.button("Reset offsets…").click()
    browser.shows("7 messages will be read again, 0 skipped", "dialog")
    browser.one("#field-reason").send_keys("wrong rates")
    browser.button("Reset the offsets").click()
    until(lambda: not browser.all("dialog"), 30)
    until(lambda: live.status("again")["groups"][0]["lag_messages"] == 7)
    browser.shows("7", "article.group dd")


def test_a_stopped_gateway_and_its_return_are_shown(
    browser: Browser, kafka: SharedKafka, sqlite: SQLite
) -> None:
    with gateway(kafka, sqlite) as live:
        live.client.channel("flights", schema=SCHEMA)
        port = httpx.URL(live.url).port
        browser.open(live.url)
        # "Live" alone may precede the rows.
        until(lambda: browser.names() == ["flights"], 30)
        browser.shows("Live", ".freshness")
    browser.shows("No connection to the gateway", "[role=alert]")
    browser.shows("What you see is from", "[role=alert]")
    assert browser.names() == ["flights"]
    with serving(app(kafka, sqlite.migrated()), port=port or 0):
        browser.shows("Live", ".freshness")
        assert browser.all("[role=alert]") == []
        browser.get("about:blank")
