"""Watching status: server-sent events over real connections, as a browser or curl reads them."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from endpoints import Site, report, site
from gateways import Rig, code, running
from sluiceway_gateway.auth.service import LOOPBACK
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.db.schema import metadata
from sluiceway_gateway.errors import DatabaseUnavailable
from sluiceway_gateway.longpoll import Watch
from sluiceway_gateway.provisioning.store import remove
from sluiceway_gateway.status import routes as status_routes
from sluiceway_gateway.status.routes import ChannelView
from waiting import until

PATH = "/v1/channels/flights/status"
BOTH = [PATH, "/v1/status"]


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_routes, "PACE_S", 0.01)
    monkeypatch.setattr(status_routes, "HEARTBEAT_S", 0.1)


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig, partitions=2)


@dataclass
class Events:
    """A stream, read line by line."""

    answer: httpx.Response
    lines: Iterator[str] = field(init=False)

    def __post_init__(self) -> None:
        assert self.answer.status_code == 200
        assert self.answer.headers["content-type"].startswith("text/event-stream")
        assert self.answer.headers["cache-control"] == "no-store"
        self.lines = self.answer.iter_lines()

    def block(self) -> dict[str, str] | None:
        """Return the fields of the next event or comment; None at the end."""
        fields: dict[str, str] = {}
        for line in self.lines:
            if not line:
                return fields
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        return None

    def event(self) -> tuple[str, Any]:
        """Return the id and the data of the next event."""
        while (found := self.block()) is not None:
            if "data" in found:
                return found["id"], json.loads(found["data"])
        raise AssertionError("the stream ended")

    def rest(self) -> list[dict[str, str]]:
        """Return all that comes until the end."""
        return list(iter(self.block, None))  # type: ignore[arg-type]


@contextmanager
def watched(rig: Rig, path: str = PATH, **headers: str) -> Iterator[Events]:
    with rig.http.stream("GET", f"{path}/events", headers=headers) as answer:
        yield Events(answer)


@pytest.mark.parametrize("path", BOTH)
def test_a_status_event_is_sent_for_each_change(flights: Site, path: str) -> None:
    reader = flights.member()
    with watched(flights.rig, path) as events:
        assert events.block() == {"retry": "2000"}
        read = flights.rig.http.get(path)
        assert events.event() == (read.headers["etag"], read.json())
        flights.beat(report(reader, "started"))
        id_, status = events.event()
        read = flights.rig.http.get(path)
        assert (id_, status) == (read.headers["etag"], read.json())
    # A reconnecting client gets only states newer than its last one.
    with watched(flights.rig, path, **{"Last-Event-ID": id_}) as events:
        assert [events.block() for _ in range(2)] == [{"retry": "2000"}, {"": ""}]
        flights.beat(report(reader, "stopped"))
        assert events.event()[0] != id_
    with watched(flights.rig, path, **{"Last-Event-ID": id_}) as events:
        assert events.event()[0] != id_


def test_events_are_throttled_and_include_the_last_state(
    flights: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace_s = 0.3
    monkeypatch.setattr(status_routes, "PACE_S", pace_s)
    reader = flights.member()
    with watched(flights.rig) as events:
        events.event()
        begun_s, told = time.monotonic(), 0
        for number in range(30):
            flights.beat(report(reader, payload={"number": number}))
        payload = None
        while payload != {"number": 29}:
            told += 1
            payload = events.event()[1]["readers"][0]["payload"]
        assert told <= 2 + (time.monotonic() - begun_s) / pace_s
        assert told < 30


def test_a_slow_client_gets_the_last_state_without_the_earlier_ones(flights: Site) -> None:
    reader = flights.member()

    async def taken() -> list[bytes]:
        # The server asks for the next piece when the connection takes it.
        watch = Watch(flights.rig.database, limit=1, poll_s=0.01)
        parts = replace(flights.rig.app.state.parts, watch=watch)
        view = ChannelView(parts, "flights", by=LOOPBACK)

        async def check() -> None: ...

        events = status_routes._events(view, watch, check=check, seen=None)
        pieces = [await anext(events) for _ in range(2)]
        for number in range(10):
            flights.beat(report(reader, payload={"number": number}))
        pieces += [await anext(events) for _ in range(2)]
        await events.aclose()
        return pieces

    _, first, second, third = asyncio.run(taken())
    assert b'"payload":null' in first
    assert b'"payload":{"number":9}' in second
    assert third == b": \n\n"


def test_a_stream_ends_when_its_token_is_revoked(flights: Site) -> None:
    rig = flights.rig
    assert rig.http.get(PATH).status_code == 200
    with watched(rig) as local:
        local.event()
        # The first token closes the gateway.
        admin = rig.token("admin")
        assert all("data" not in each for each in local.rest())
    rig.http.headers.update(admin)
    hers = rig.token("read", expires_in=timedelta(seconds=60))
    with watched(rig, **hers) as expiring:
        expiring.event()
        rig.clock.advance(timedelta(seconds=61))
        expiring.rest()
    revoked = rig.token("read:flights")
    with watched(rig, "/v1/status", **revoked) as ended:
        ended.event()
        rig.tokens.revoke(revoked["Authorization"].split("_")[1])
        flights.member()
        # Nor are changes before the next comment sent.
        assert all("data" not in each for each in ended.rest())
    until(lambda: rig.app.state.parts.watch.waiting == 0)


def test_a_stream_needs_the_view_scope(flights: Site) -> None:
    rig = flights.rig
    site(rig, "other")
    hers = rig.token("read:fl")
    with watched(rig, "/v1/status", **hers) as events:
        (line,) = events.event()[1]["items"]
        assert line["channel"]["name"] == "flights"
    answer = rig.http.get("/v1/channels/other/status/events", headers=hers)
    assert (answer.status_code, code(answer)) == (403, "forbidden")


def test_a_stream_ends_with_its_channel(flights: Site) -> None:
    with watched(flights.rig) as events:
        events.event()
        with flights.rig.database.write() as tx:
            remove(tx, flights.uid, from_phases=list(Phase))
        events.rest()
    answer = flights.rig.http.get(f"{PATH}/events")
    assert (answer.status_code, code(answer)) == (404, "channel_not_found")


def test_a_stopping_gateway_ends_its_streams(database: Database, database_url: str) -> None:
    ended: list[list[dict[str, str]]] = []
    with running(database, database_url) as rig:
        site(rig)
        begun = threading.Event()

        def read() -> None:
            with httpx.stream("GET", f"{rig.url}{PATH}/events", timeout=30) as answer:
                events = Events(answer)
                events.event()
                begun.set()
                ended.append(events.rest())

        reading = threading.Thread(target=read)
        reading.start()
        assert begun.wait(20)
        begun_s = time.monotonic()
    reading.join(20)
    assert len(ended) == 1
    assert time.monotonic() - begun_s < 10


def test_streams_count_as_waiting_requests(database: Database, database_url: str) -> None:
    with running(database, database_url, max_waiters=1) as rig:
        site(rig)
        watch = rig.app.state.parts.watch
        with watched(rig) as events:
            events.event()
            assert watch.waiting == 1
            answer = httpx.get(f"{rig.url}/v1/status/events")
            assert (answer.status_code, code(answer)) == (503, "too_many_waiters")
        # One that was left makes room.
        until(lambda: watch.waiting == 0)
        with watched(rig) as events:
            events.event()


def test_a_stream_survives_a_database_outage(
    flights: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = threading.Event()
    was = ChannelView.look

    async def look(view: ChannelView) -> str:
        if away:
            looks.set()
            raise DatabaseUnavailable("away")
        return await was(view)

    away = False
    monkeypatch.setattr(ChannelView, "look", look)
    with watched(flights.rig) as events:
        events.event()
        away = True
        assert looks.wait(20)
        away = False
        flights.member()
        assert len(events.event()[1]["readers"]) == 1


def test_watching_leaves_no_trace(flights: Site) -> None:
    flights.member()

    def everything() -> list[Any]:
        with flights.rig.database.read() as tx:
            return [tx.execute(table.select()).all() for table in metadata.sorted_tables]

    before = everything()
    for path in BOTH:
        with watched(flights.rig, path) as events:
            events.event()
            assert events.block() == {"": ""}
    assert everything() == before


@pytest.mark.parametrize(
    "path",
    [f"{PATH}/events?wait=3", "/v1/status/events?limit=0", "/v1/status/events?cursor=x"],
)
def test_invalid_stream_requests_are_refused(shared_rig: Rig, path: str) -> None:
    answer = shared_rig.http.get(path)
    assert (answer.status_code, code(answer)) == (422, "invalid_request")
