"""Permissions to read and write messages, and responses without Kafka."""

import json
import threading
from contextlib import ExitStack
from unittest.mock import Mock

import httpx
import pytest

from gateways import Rig, code
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.errors import DatabaseUnavailable, Unauthenticated
from sluiceway_gateway.messages import routes
from sluiceway_gateway.messages.search import SearchEvents, SearchProgress
from waiting import until

PATH = "/v1/channels/flights/messages"
SEARCH = f"{PATH}/search"
BODY = {"records": [{"a": 1}]}


def responses(rig: Rig, headers: dict[str, str]) -> tuple[httpx.Response, httpx.Response]:
    read = rig.http.get(PATH, headers=headers)
    return read, rig.http.post(PATH, json=BODY, headers=headers)


def test_reading_needs_read_and_writing_needs_write(rig: Rig) -> None:
    rig.put("flights").raise_for_status()
    rig.observe("flights", Phase.READY)
    for scope, forbidden in {
        "read:fl": (False, True),
        "write:fl": (True, False),
        "manage:fl": (False, False),
        "manage:trains": (True, True),
    }.items():
        attempted = responses(rig, rig.token(scope))
        assert tuple(response.status_code == 403 for response in attempted) == forbidden, scope
        searched = rig.http.get(SEARCH, headers=rig.token(scope))
        assert (searched.status_code == 403) == forbidden[0], scope
    assert [response.status_code for response in responses(rig, {})] == [401, 401]


def test_without_kafka_both_are_unavailable_and_say_so(rig: Rig) -> None:
    rig.put("flights").raise_for_status()
    rig.observe("flights", Phase.READY)
    for response in (*responses(rig, {}), rig.http.get(SEARCH)):
        assert (response.status_code, code(response)) == (503, "kafka_unavailable")
        assert "does not answer" in response.json()["detail"]
        assert response.headers["Retry-After"]


def test_a_channel_without_a_topic_is_not_ready(rig: Rig) -> None:
    assert [code(response) for response in responses(rig, {})] == ["channel_not_found"] * 2
    rig.put("flights").raise_for_status()
    assert [code(response) for response in responses(rig, {})] == ["channel_not_ready"] * 2
    assert code(rig.http.get(SEARCH)) == "channel_not_ready"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"regex": "(a"}, "query:regex: not an expression of RE2"),
        ({"field": "b", "text": "1"}, "query:field: no version of the schema has a field 'b'"),
        ({"field": "a"}, "query:field: without text or regex"),
        ({"follow": "true", "until": "2026-01-01T00:00:00Z"}, "query:until: not together with"),
        ({"follow": "true", "start": "earliest"}, "query:start: not together with follow"),
        ({"cursor": "x"}, "query:cursor: not a cursor"),
        ({"text": ""}, "query:text"),
    ],
)
def test_a_search_that_is_impossible_is_refused(
    rig: Rig, params: dict[str, str], words: str
) -> None:
    rig.put("flights").raise_for_status()
    rig.observe("flights", Phase.READY)
    response = rig.http.get(SEARCH, params=params)
    assert (response.status_code, code(response)) == (422, "invalid_request")
    assert words in response.json()["detail"]


@pytest.mark.long
def test_concurrent_and_waiting_reads_are_limited(rig: Rig) -> None:
    rig.put("flights").raise_for_status()
    rig.observe("flights", Phase.READY)
    goes_on, running = threading.Event(), threading.Semaphore(0)

    def slow(*_: object, **__: object) -> None:
        running.release()
        assert goes_on.wait(60)
        raise TimeoutError

    rig.replace(message_reads=Mock(read=slow))
    statuses: list[int] = []

    def fetch_messages() -> None:
        with httpx.Client(base_url=rig.url, timeout=60, verify=False) as http:  # noqa: S501
            statuses.append(http.get(PATH).status_code)

    threads = [threading.Thread(target=fetch_messages) for _ in range(24)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        assert running.acquire(timeout=60)
    refused = 24 - 4 - 16
    until(lambda: len(statuses) == refused, 60)
    assert set(statuses) == {503}
    # Other requests are served meanwhile.
    assert rig.http.get("/v1/channels/flights").status_code == 200
    assert not running.acquire(blocking=False)
    goes_on.set()
    for thread in threads:
        thread.join(60)
    assert sorted(statuses) == [500] * 20 + [503] * refused


def test_searches_beyond_four_are_refused_and_end_with_their_clients(rig: Rig) -> None:
    stops: list[threading.Event] = []

    def search(_name: str, _request: object, events: SearchEvents) -> None:
        ended = threading.Event()
        stops.append(ended)
        events.on_progress(SearchProgress(scanned=0, scanned_bytes=0, passed=0, total=0))
        until(events.stopped)
        ended.set()

    rig.replace(message_searches=Mock(run=search))
    with ExitStack() as clients:
        responses = [clients.enter_context(rig.http.stream("GET", SEARCH)) for _ in range(4)]
        # A response is closed with its iterator.
        readers = [response.iter_lines() for response in responses]
        assert [next(lines)[:12] for lines in readers] == ['{"progress":'] * 4
        assert code(rig.http.get(SEARCH)) == "too_many_waiters"
        # Those that follow have slots of their own.
        live = clients.enter_context(rig.http.stream("GET", SEARCH, params={"follow": "true"}))
        assert live.status_code == 200
    for ended in stops:
        assert ended.wait(60)
    with rig.http.stream("GET", SEARCH) as response:
        assert response.headers["Content-Type"] == "application/jsonl"
        assert response.headers["Cache-Control"] == "no-store"
    assert rig.http.head(SEARCH).status_code == 200


@pytest.fixture
def _authenticated_often(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tokens are looked at again after seconds.
    monkeypatch.setattr(routes, "_AUTHENTICATED_S", 0.0)


@pytest.mark.usefixtures("_authenticated_often")
def test_a_search_ends_once_its_token_is_revoked(rig: Rig) -> None:
    def search(_name: str, _request: object, events: SearchEvents) -> None:
        while not events.stopped():
            events.on_progress(SearchProgress(scanned=0, scanned_bytes=0, passed=0, total=0))

    rig.put("flights").raise_for_status()
    rig.replace(message_searches=Mock(run=search))
    headers = rig.token("read")
    with rig.http.stream("GET", SEARCH, headers=headers) as response:
        lines = response.iter_lines()
        assert next(lines).startswith('{"progress":')
        rig.tokens.revoke(headers["Authorization"].split("_")[1])
        *_, last = lines
    end = json.loads(last)["end"]
    assert (end["reason"], end["next_cursor"]) == ("stopped", None)
    assert "token" in end["message"]


@pytest.mark.usefixtures("_authenticated_often")
def test_a_search_goes_on_while_its_token_cannot_be_looked_at(rig: Rig) -> None:
    looks = Mock(side_effect=[None, DatabaseUnavailable("away"), Unauthenticated("revoked")])

    def search(_name: str, _request: object, events: SearchEvents) -> None:
        rig.replace(tokens=Mock(authenticate=looks))
        for scanned in range(4):
            events.on_progress(SearchProgress(scanned=scanned, scanned_bytes=0, passed=0, total=0))

    rig.replace(message_searches=Mock(run=search))
    *lines, last = rig.http.get(SEARCH).text.splitlines()
    assert [json.loads(line)["progress"]["scanned"] for line in lines] == [0, 1]
    assert json.loads(last)["end"]["message"] == "revoked"
