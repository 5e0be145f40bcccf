"""Watching status: server-sent events over real connections, as a browser or curl reads them."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

import httpx
import pytest
from structlog.testing import capture_logs

from endpoints import Site, report, site
from gateways import UNREACHABLE, Rig, code, running, serving
from sluiceway_gateway.api.json import JsonCache
from sluiceway_gateway.app import create_app
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.auth.service import LOOPBACK
from sluiceway_gateway.core.changes import Changes
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import DatabaseUnavailable
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.provisioning.store import remove
from sluiceway_gateway.status.event_feed import StatusFeed
from sluiceway_gateway.status.service import FeedUpdate, Statuses
from sluiceway_gateway.tables import metadata
from waiting import until

PATH = "/v1/channels/flights/status"
LIST = "/v1/status"
BOTH = [PATH, LIST]
START, COMMENT = b"retry: 2000\n\n", b": \n\n"


class Name(str):
    """A channel's name that notes the prefixes of each event for which it is looked at."""

    encoded_for: ClassVar[list[Any]] = []

    def startswith(self, prefix: str | tuple[str, ...], *bounds: Any) -> bool:
        self.encoded_for.append(prefix)
        return super().startswith(prefix, *bounds)


class ObservedStatuses(Statuses):
    """Statuses that note and disturb the feed's reads."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.database, rig.tokens, clock=rig.clock)
        self.failure: Exception | None = None
        """Raised by reads of the feed, as long as it is set."""
        self.failed = threading.Event()
        self.partial_failure: Exception | None = None
        """Raised once, after a line of the list was read."""
        self.read_lines: list[str] = []

    def feed_update(self, **arguments: Any) -> FeedUpdate:
        if self.failure is not None:
            self.failed.set()
            raise self.failure
        return super().feed_update(**arguments)

    def summaries(self, names: Sequence[str]) -> Any:
        for summary in super().summaries(names):
            channel = summary.version.channel
            self.read_lines.append(channel.name)
            named = replace(channel, name=Name(channel.name))
            yield replace(summary, version=replace(summary.version, channel=named))
            failure, self.partial_failure = self.partial_failure, None
            if failure is not None:
                raise failure


@pytest.fixture
def statuses(rig: Rig) -> ObservedStatuses:
    return ObservedStatuses(rig)


@pytest.fixture
def rig(rig: Rig, statuses: ObservedStatuses) -> Rig:
    """A gateway whose feed has short times."""
    rig.replace(feed=short_feed(rig, statuses, rig.app.state.parts.changes))
    return rig


def short_feed(rig: Rig, statuses: Statuses, changes: Changes) -> StatusFeed:
    return StatusFeed(
        statuses,
        changes,
        fragments=JsonCache(),
        clock=rig.clock,
        on_pass=rig.app.state.parts.metrics.set_loop_failures,
        pace_s=0.01,
        max_pause_s=0.1,
        heartbeat_s=0.1,
    )


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig, partitions=2)


@dataclass
class Events:
    """A stream, read line by line."""

    response: httpx.Response
    lines: Iterator[str] = field(init=False)
    last_id: str = ""
    kind: str | None = None

    def __post_init__(self) -> None:
        assert self.response.status_code == 200
        assert self.response.headers["content-type"].startswith("text/event-stream")
        assert self.response.headers["cache-control"] == "no-store"
        self.lines = self.response.iter_lines()

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
        while (fields := self.block()) is not None:
            if "data" in fields:
                self.last_id, self.kind = fields["id"], fields.get("event")
                return self.last_id, json.loads(fields["data"])
        raise AssertionError("the stream ended")

    def data(self) -> Any:
        """Return the data of the next event."""
        return self.event()[1]

    def next(self, kind: str) -> Any:
        """Return the data of the next event, which is of this kind."""
        data = self.data()
        assert self.kind == kind
        return data

    def rest(self) -> list[dict[str, str]]:
        """Return all data until the end."""
        return list(iter(self.block, None))  # type: ignore[arg-type]


@contextmanager
def watched(rig: Rig, path: str = PATH, **headers: str) -> Iterator[Events]:
    with rig.http.stream("GET", f"{path}/events", headers=headers) as response:
        yield Events(response)


@pytest.mark.sample
def test_a_status_event_is_sent_for_each_change(flights: Site) -> None:
    reader = flights.member()
    with watched(flights.rig) as events:
        assert events.block() == {"retry": "2000"}
        read = flights.rig.http.get(PATH)
        assert events.event() == (read.headers["etag"], read.json())
        flights.beat(report(reader, "started"))
        id_, status = events.event()
        read = flights.rig.http.get(PATH)
        assert (id_, status) == (read.headers["etag"], read.json())
    # A reconnecting client gets only states newer than its last one.
    with watched(flights.rig, **{"Last-Event-ID": id_}) as events:
        assert [events.block() for _ in range(2)] == [{"retry": "2000"}, {"": ""}]
        flights.beat(report(reader, "stopped"))
        assert events.event()[0] != id_
    with watched(flights.rig, **{"Last-Event-ID": id_}) as events:
        assert events.event()[0] != id_


def names(lines: list[Any]) -> list[str]:
    return [line["channel"]["name"] for line in lines]


@pytest.mark.long
def test_the_list_is_sent_once_and_then_changes(flights: Site) -> None:
    rig = flights.rig
    site(rig, "weather")
    with watched(rig, LIST) as events:
        assert events.block() == {"retry": "2000"}
        state = events.next("state")
        assert state["items"] == rig.http.get(LIST).json()["items"]
        assert datetime.fromisoformat(state["at"]) == rig.clock.now
        flights.member()
        rig.clock.advance(5)
        change = events.next("change")
        (line,) = change["changed"]
        assert line == rig.http.get(LIST).json()["items"][0]
        assert line["readers"]["live"] == 1
        assert change["removed"] == []
        with rig.database.write() as tx:
            remove(tx, flights.uid, from_phases=list(Phase))
        change = events.next("change")
        assert (change["changed"], change["removed"]) == ([], ["flights"])
        site(rig, "again")
        assert names(events.next("change")["changed"]) == ["again"]


def test_a_resumed_list_stream_gets_the_changes_since_then(flights: Site) -> None:
    rig = flights.rig
    site(rig, "weather")
    with watched(rig, LIST) as events:
        events.next("state")
    flights.member()
    # The same after a time without watchers.
    with watched(rig, LIST, **{"Last-Event-ID": events.last_id}) as events:
        assert names(events.next("change")["changed"]) == ["flights"]
    with watched(rig, LIST, **{"Last-Event-ID": events.last_id}) as events:
        assert [events.block() for _ in range(2)] == [{"retry": "2000"}, {"": ""}]
    for unknown in ("x", "-1", f"{events.last_id}9", 'W/"etag"'):
        with watched(rig, LIST, **{"Last-Event-ID": unknown}) as events:
            assert names(events.next("state")["items"]) == ["flights", "weather"]


@pytest.mark.parametrize("path", BOTH)
def test_a_stream_is_compressed_for_clients_that_accept_it(flights: Site, path: str) -> None:
    with (
        watched(flights.rig, path, **{"Accept-Encoding": "gzip"}) as compressed,
        watched(flights.rig, path, **{"Accept-Encoding": "identity"}) as plain,
    ):
        assert compressed.response.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.response.headers
        assert compressed.block() == plain.block() == {"retry": "2000"}
        first = compressed.data()
        assert first == plain.data()
        # Comments, which come first, are compressed too.
        assert compressed.block() == {"": ""}
        flights.member()
        assert compressed.data() == plain.data() != first


def separate_feed(rig: Rig) -> StatusFeed:
    """Return a feed that the gateway does not use."""
    changes = Changes(rig.database, limit=1, reread_s=60)
    return short_feed(rig, rig.app.state.parts.statuses, changes)


async def stream_pieces(
    rig: Rig, channel: str | None, between: Callable[[], object]
) -> list[bytes]:
    """Return the pieces of a stream whose client waits after the first event for `between`."""
    # The server requests the next piece when the connection accepts it.
    own = separate_feed(rig)
    events = own.events(LOOPBACK, channel=channel, last_id=None, compress=False)
    other = own.events(LOOPBACK, channel=channel, last_id=None, compress=False)

    async def event(of: AsyncGenerator[bytes]) -> bytes:
        while (piece := await anext(of)) == COMMENT:
            pass
        return piece

    pieces = [await anext(events), await event(events)]
    await asyncio.to_thread(between)
    # Another stream takes all of them.
    while b"weather" not in (piece := await event(other)) and b'"number":9' not in piece:
        pass
    pieces += [await event(events), await anext(events)]
    for stream in (events, other):
        await stream.aclose()
    return pieces


@pytest.mark.long
def test_a_slow_client_gets_the_last_state_without_the_earlier_ones(flights: Site) -> None:
    reader = flights.member()

    def beat() -> None:
        for number in range(10):
            flights.beat(report(reader, payload={"number": number}))

    _, first, second, third = asyncio.run(stream_pieces(flights.rig, "flights", beat))
    assert b'"payload":null' in first
    assert b'"payload":{"number":9}' in second
    assert third == b": \n\n"


@pytest.mark.long
def test_a_slow_client_gets_changes_of_the_list_merged(flights: Site) -> None:
    # So many lines that a change is read separately, without a new state.
    for number in range(20):
        assert flights.rig.put(f"other-{number}").is_success

    def change() -> None:
        for number in range(3):
            site(flights.rig, f"c{number}")
            flights.member(group=f"g{number}")
        # One commit, so that the other stream gets all changes with it.
        assert flights.rig.put("weather").is_success

    _, first, second, third = asyncio.run(stream_pieces(flights.rig, None, change))
    assert b"event: state\n" in first
    change_event = json.loads(second.partition(b"data: ")[2])
    merged = {line["channel"]["name"]: line["readers"]["live"] for line in change_event["changed"]}
    assert merged == {"c0": 0, "c1": 0, "c2": 0, "flights": 3, "weather": 0}
    assert third == b": \n\n"


def test_a_client_that_missed_more_than_the_list_has_gets_all_of_it(flights: Site) -> None:
    rig = flights.rig
    with watched(rig, LIST) as events:
        events.next("state")
        old = events.last_id
        for number in range(3):
            flights.member(group=f"g{number}")
            events.next("change")
    with watched(rig, LIST, **{"Last-Event-ID": old}) as events:
        (line,) = events.next("state")["items"]
        assert line["readers"]["live"] == 3


@pytest.mark.long
def test_one_read_and_one_encoding_serve_all_watchers_with_the_same_scopes(
    flights: Site, statuses: ObservedStatuses
) -> None:
    rig = flights.rig
    site(rig, "other")
    rig.http.headers.update(rig.token("admin"))
    mine = [rig.token("read:fl") for _ in range(3)]
    with ExitStack() as stack:
        tokens = [*mine, {}, {}]
        streams = [stack.enter_context(watched(rig, LIST, **token)) for token in tokens]
        first = [names(stream.next("state")["items"]) for stream in streams]
        assert first == [["flights"]] * 3 + [["flights", "other"]] * 2
        statuses.read_lines.clear()
        Name.encoded_for.clear()
        flights.member()
        assert [names(stream.next("change")["changed"]) for stream in streams] == [["flights"]] * 5
    # The line was read once, and encoded once for each permission.
    assert statuses.read_lines == ["flights"]
    assert sorted(Name.encoded_for) == [("",), ("fl",)]


@pytest.mark.long
def test_several_gateways_on_one_database_send_the_same(
    flights: Site, database: Database, database_url: str
) -> None:
    second = create_app(Settings(database_url=database_url, kafka_bootstrap_servers=UNREACHABLE))
    with serving(second) as url, httpx.stream("GET", f"{url}{LIST}/events", timeout=30) as response:
        others = Events(response)
        with watched(flights.rig, LIST) as events:
            assert others.next("state")["items"] == events.next("state")["items"]
            flights.member()
            assert others.next("change")["changed"] == events.next("change")["changed"]
        # Ids of one gateway are unknown to another.
        with watched(flights.rig, LIST, **{"Last-Event-ID": others.last_id}) as events:
            events.next("state")


def test_a_stream_ends_when_its_token_is_revoked(flights: Site) -> None:
    rig = flights.rig
    assert rig.http.get(PATH).status_code == 200
    with watched(rig) as local:
        local.event()
        # The first token closes the gateway.
        admin = rig.token("admin")
        assert all("data" not in block for block in local.rest())
    rig.http.headers.update(admin)
    hers = rig.token("read", expires_in=timedelta(seconds=60))
    with watched(rig, **hers) as expiring:
        expiring.event()
        rig.clock.advance(timedelta(seconds=61))
        expiring.rest()
    revoked = rig.token("read:flights")
    with watched(rig, LIST, **revoked) as ended:
        ended.next("state")
        rig.tokens.revoke(revoked["Authorization"].split("_")[1])
        flights.member()
        # Nor are changes before the next comment sent.
        assert all("data" not in block for block in ended.rest())
    until(lambda: rig.app.state.parts.changes.waiting == 0)


def test_a_stream_needs_the_view_scope(flights: Site) -> None:
    rig = flights.rig
    site(rig, "other")
    rig.http.headers.update(rig.token("admin"))
    hers = rig.token("read:fl")
    with watched(rig, LIST, **hers) as events:
        assert names(events.next("state")["items"]) == ["flights"]
        # Changes of invisible channels change nothing.
        site(rig, "others")
        assert events.block() == {"": ""}
        flights.member()
        assert names(events.next("change")["changed"]) == ["flights"]
    response = rig.http.get("/v1/channels/other/status/events", headers=hers)
    assert (response.status_code, code(response)) == (403, "forbidden")


def test_a_stream_ends_with_its_channel(flights: Site) -> None:
    with watched(flights.rig) as events:
        events.event()
        with flights.rig.database.write() as tx:
            remove(tx, flights.uid, from_phases=list(Phase))
        events.rest()
    response = flights.rig.http.get(f"{PATH}/events")
    assert (response.status_code, code(response)) == (404, "channel_not_found")


def test_a_slow_stream_of_a_deleted_channel_does_not_end_those_of_its_successor(
    flights: Site,
) -> None:
    rig = flights.rig

    def delete() -> None:
        with rig.database.write() as tx:
            remove(tx, flights.uid, from_phases=list(Phase))

    async def run() -> None:
        own = separate_feed(rig)
        slow, ended, successor = (
            own.events(LOOPBACK, channel="flights", last_id=None, compress=False) for _ in range(3)
        )
        for stream in (slow, ended):
            assert await anext(stream) == START
            while await anext(stream) == COMMENT:
                pass
        await asyncio.to_thread(delete)
        assert {piece async for piece in ended} <= {COMMENT}
        await asyncio.to_thread(site, rig)
        assert await anext(successor) == START
        while await anext(successor) == COMMENT:
            pass
        # The new channel's stream does not end with the last one of the deleted channel.
        await slow.aclose()
        assert await anext(successor) == COMMENT
        await successor.aclose()

    asyncio.run(run())


def test_a_stopping_gateway_ends_its_streams(database: Database, database_url: str) -> None:
    ended: list[list[dict[str, str]]] = []
    with running(database, database_url) as rig:
        site(rig)
        begun = threading.Event()

        def read() -> None:
            with httpx.stream("GET", f"{rig.url}{PATH}/events", timeout=60) as response:
                events = Events(response)
                events.event()
                begun.set()
                ended.append(events.rest())

        reading = threading.Thread(target=read)
        reading.start()
        assert begun.wait(60)
        begun_s = time.monotonic()
    reading.join(60)
    assert len(ended) == 1
    assert time.monotonic() - begun_s < 45


def test_streams_count_as_waiting_requests(database: Database, database_url: str) -> None:
    with running(database, database_url, max_waiters=1) as rig:
        site(rig)
        changes = rig.app.state.parts.changes
        with watched(rig) as events:
            events.event()
            assert changes.waiting == 1
            response = httpx.get(f"{rig.url}/v1/status/events", timeout=60)
            assert (response.status_code, code(response)) == (503, "too_many_waiters")
        # A closed stream frees its slot.
        until(lambda: changes.waiting == 0)
        with watched(rig) as events:
            events.event()


def test_a_stream_survives_a_database_outage(flights: Site, statuses: ObservedStatuses) -> None:
    with watched(flights.rig) as events:
        events.event()
        statuses.failure = DatabaseUnavailable("away")
        assert statuses.failed.wait(60)
        statuses.failure = None
        flights.member()
        assert len(events.event()[1]["readers"]) == 1


def test_a_failed_read_is_repeated_and_shows_in_the_log_and_in_a_metric(
    flights: Site, statuses: ObservedStatuses
) -> None:
    with watched(flights.rig) as events, capture_logs() as logs:
        events.event()
        statuses.failure = RuntimeError("a defect")
        until(lambda: failed_passes(flights.rig) >= 2)
        statuses.failure = None
        flights.member()
        assert len(events.event()[1]["readers"]) == 1
        assert failed_passes(flights.rig) == 0
    (entry, *_) = [entry for entry in logs if entry["event"] == "pass failed"]
    assert (entry["loop"], entry["reason"]) == ("status-feed", "a defect")


def failed_passes(rig: Rig) -> float:
    """Return the metric of the status feed's consecutive failures."""
    name = 'sluiceway_loop_consecutive_failures{loop="status-feed"} '
    (line,) = [line for line in rig.http.get("/metrics").text.splitlines() if name in line]
    return float(line.removeprefix(name))


@pytest.mark.long
def test_a_list_that_was_read_in_part_is_continued(
    flights: Site, statuses: ObservedStatuses
) -> None:
    site(flights.rig, "other")
    statuses.partial_failure = DatabaseUnavailable("the transaction was idle for too long")
    with watched(flights.rig, LIST) as events:
        assert names(events.next("state")["items"]) == ["flights", "other"]
    assert sorted(statuses.read_lines) == ["flights", "other"]


def test_watching_leaves_no_trace(flights: Site) -> None:
    flights.member()

    def everything() -> list[Any]:
        with flights.rig.database.read() as tx:
            return [tx.execute(table.select()).all() for table in metadata.sorted_tables]

    before = everything()
    for path in BOTH:
        with watched(flights.rig, path) as events:
            until(lambda events=events: "data" in (events.block() or {}))
            assert events.block() == {"": ""}
    assert everything() == before


@pytest.mark.parametrize(
    "path",
    [f"{PATH}/events?wait=3", f"{LIST}/events?limit=100", f"{LIST}/events?cursor=x"],
)
def test_invalid_stream_requests_are_refused(shared_rig: Rig, path: str) -> None:
    response = shared_rig.http.get(path)
    assert (response.status_code, code(response)) == (422, "invalid_request")
