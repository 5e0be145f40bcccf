"""Searches of messages over HTTP, on a real broker: order, bounds, continuation, following."""

import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from fastapi import FastAPI

from databases import SQLite
from gateways import serving
from shared_kafka import SharedKafka
from sluiceway import Channel, Gateway
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.messages.reading import MessageReads
from sluiceway_gateway.messages.search import MessageSearches, SearchLimits
from topics import Topics
from waiting import until

SCHEMA = {
    "type": "record",
    "name": "Landing",
    "fields": [{"name": "id", "type": "long"}, {"name": "carrier", "type": "string"}],
}
CARRIERS = ("UA", "AA", "DL")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def app(kafka: SharedKafka, sqlite: SQLite) -> FastAPI:
    settings = Settings(
        database_url=sqlite.migrated(),
        kafka_bootstrap_servers=kafka.bootstrap_servers,
        kafka_timeout_ms=20_000,
    )
    app = create_app(settings)
    limit_searches(app, time_s=600.0)
    return app


def limit_searches(app: FastAPI, **limits: Any) -> None:
    parts = app.state.parts
    searches = MessageSearches(
        parts.database, parts.kafka, parts.message_reads, limits=SearchLimits(**limits)
    )
    app.state.parts = replace(parts, message_searches=searches)


@pytest.fixture(scope="module")
def url(app: FastAPI) -> Iterator[str]:
    with serving(app) as url:
        yield url


@pytest.fixture
def gateway(url: str) -> Iterator[Gateway]:
    with Gateway(url) as gateway:
        yield gateway


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=120) as client:
        yield client


@dataclass(frozen=True, kw_only=True)
class Result:
    """The lines of a search."""

    messages: list[Any]
    progress: list[Any]
    end: Any

    @property
    def ids(self) -> list[int]:
        return [record["id"] for message in self.messages for record in message["records"]]


def write_to(channel: Channel, partition: int, *ids: int) -> None:
    with channel.writer(partition=partition) as writer:
        writer.write([{"id": number, "carrier": "UA"} for number in ids])


def path_of(channel: Channel) -> str:
    return f"/v1/channels/{channel.name}/messages/search"


def search(http: httpx.Client, channel: Channel, **params: Any) -> Result:
    with http.stream("GET", path_of(channel), params=params) as response:
        assert response.status_code == 200, response.read()
        lines = [json.loads(line) for line in response.iter_lines()]
    kinds = [kind for line in lines for kind in line]
    assert (kinds[0], kinds[-1], kinds.count("end")) == ("progress", "end", 1)
    return Result(
        messages=[line["message"] for line in lines if "message" in line],
        progress=[line["progress"] for line in lines if "progress" in line],
        end=lines[-1]["end"],
    )


@contextmanager
def following(http: httpx.Client, channel: Channel, **params: Any) -> Iterator[Iterator[Any]]:
    """Yield the lines of a search that follows, from its first progress on."""
    params |= {"follow": "true"}
    with http.stream("GET", path_of(channel), params=params) as response:
        lines = map(json.loads, response.iter_lines())
        assert "progress" in next(lines)
        yield lines


def next_message(lines: Iterator[Any]) -> Any:
    return next(line["message"] for line in lines if "message" in line)


def channel_of(gateway: Gateway, **options: Any) -> Channel:
    return gateway.channel(f"searched-{next(_numbers)}", SCHEMA, **options)


def write(channel: Channel, first: int, count: int) -> None:
    with channel.writer() as writer:
        writer.write(
            [{"id": number, "carrier": CARRIERS[number % 3]} for number in range(first, count)]
        )


def test_matches_come_from_the_newest_back_or_from_the_oldest_on(
    http: httpx.Client, gateway: Gateway
) -> None:
    channel = channel_of(gateway)
    write(channel, 0, 3_000)
    newest = search(http, channel, text="ua", field="carrier", limit=3)
    assert newest.ids == [2997, 2994, 2991]
    assert (newest.end["reason"], newest.end["message"]) == ("limit", None)
    oldest = search(http, channel, regex="^(AA|UA)$", field="carrier", limit=3, start="earliest")
    assert oldest.ids == [0, 1, 3]
    everything = search(http, channel, regex='"id": 29[0-9]0\\b')
    assert everything.ids == list(range(2990, 2890, -10))
    assert everything.end == {
        "reason": "end",
        "message": None,
        "partitions_left_out": 0,
        "partitions_unavailable": [],
        "next_cursor": None,
    }
    last = everything.progress[-1]
    assert (last["scanned"], last["passed"], last["total"]) == (3_000, 3_000, 3_000)
    assert [line["scanned"] for line in everything.progress] == sorted(
        line["scanned"] for line in everything.progress
    )


def test_a_cursor_continues_until_every_match_was_sent_once(
    http: httpx.Client, gateway: Gateway
) -> None:
    channel = channel_of(gateway, partitions=3)
    write(channel, 0, 600)
    for start in ("latest", "earliest"):
        ids: list[int] = []
        params: dict[str, Any] = {"start": start}
        while True:
            result = search(http, channel, text="DL", limit=30, **params)
            ids += result.ids
            if result.end["next_cursor"] is None:
                break
            params = {"cursor": result.end["next_cursor"]}
        assert sorted(ids) == list(range(2, 600, 3))


def test_a_search_ends_at_its_bounds_and_can_be_continued(
    app: FastAPI, http: httpx.Client, gateway: Gateway
) -> None:
    channel = channel_of(gateway)
    write(channel, 0, 2_000)
    before = app.state.parts
    try:
        for limits, reason in (
            ({"messages": 500}, "messages"),
            ({"size_bytes": 1_000}, "bytes"),
        ):
            limit_searches(app, **limits)
            first = search(http, channel, text="nothing has it")
            assert (first.end["reason"], first.messages) == (reason, [])
            passed = first.progress[-1]["passed"]
            assert 500 <= passed < 2_000
            cursor = first.end["next_cursor"]
            second = search(http, channel, text="nothing has it", cursor=cursor)
            assert second.progress[-1]["passed"] > passed
    finally:
        app.state.parts = before


def test_a_search_is_limited_to_a_partition_and_to_times(
    http: httpx.Client, gateway: Gateway, kafka: SharedKafka
) -> None:
    channel = gateway.channel(f"searched-{next(_numbers)}", format="bytes", partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    name = channel.status.topic.name
    for number in range(20):
        value, at = str(number).encode(), 1_000_000 + 1_000 * number
        producer.produce(name, value, partition=number % 2, timestamp=at)
    assert producer.flush(30) == 0

    def values(**params: Any) -> list[int]:
        return [int(message["raw"]["data"]) for message in search(http, channel, **params).messages]

    assert values(partition=1) == list(range(19, 0, -2))
    times = {"since": "1970-01-01T00:16:45Z", "until": "1970-01-01T00:16:50Z"}
    assert values(**times) == [9, 8, 7, 6, 5]
    assert values(**times, start="earliest") == [5, 6, 7, 8, 9]
    assert values(since="1970-01-01T00:16:50Z", regex="^1[05]$") == [15, 10]
    assert values(since="2001-01-01T00:00:00Z") == []
    response = http.get(path_of(channel), params={"partition": 2})
    assert response.status_code == 422


def test_committed_messages_are_searched_and_others_on_request(
    http: httpx.Client, gateway: Gateway
) -> None:
    channel = channel_of(gateway, delivery="exactly_once")
    with channel.writer(group="job") as writer:
        with writer.batch("day-1"):
            writer.write([{"id": 1, "carrier": "UA"}])
        with writer.batch("day-2"):
            writer.write([{"id": 2, "carrier": "UA"}])
            writer.flush()
            assert search(http, channel, text="UA").ids == [1]
            both = search(http, channel, text="UA", uncommitted=True)
            assert [(message["committed"], message["offset"]) for message in both.messages] == [
                *((False, 1), (True, 0)),
            ]
        with following(http, channel, since="2001-01-01T00:00:00Z") as lines:
            assert [next_message(lines)["records"][0]["id"] for _ in range(2)] == [1, 2]


def test_a_search_that_follows_shows_a_batch_that_was_open_when_it_began(
    http: httpx.Client, gateway: Gateway
) -> None:
    channel = channel_of(gateway, delivery="exactly_once")
    with channel.writer(group="job") as writer:
        with writer.batch("day-1"):
            writer.write([{"id": 1, "carrier": "UA"}])
        with ExitStack() as response:
            with writer.batch("day-2"):
                writer.write([{"id": 2, "carrier": "UA"}])
                writer.flush()
                lines = response.enter_context(following(http, channel))
            with writer.batch("day-3"):
                writer.write([{"id": 3, "carrier": "UA"}])
            assert [next_message(lines)["records"][0]["id"] for _ in range(2)] == [2, 3]


def test_a_search_follows_new_messages_and_partitions(
    http: httpx.Client, gateway: Gateway, kafka: SharedKafka
) -> None:
    channel = channel_of(gateway)
    write(channel, 0, 3)
    with following(http, channel, text="AA") as lines:
        write(channel, 3, 9)
        assert [next_message(lines)["records"][0]["id"] for _ in range(2)] == [4, 7]
        channel.update(partitions=2)
        with channel.writer(partition=1) as writer:
            writer.write([{"id": 10, "carrier": "AA"}])
        message = next_message(lines)
        assert (message["partition"], message["offset"]) == (1, 0)
        channel.delete(force=True)
        end = next(line["end"] for line in lines if "end" in line)
    assert end["reason"] == "error"
    assert "no channel" in end["message"] or "deleted" in end["message"]


def test_a_search_that_follows_a_growing_channel_can_be_continued(
    app: FastAPI, http: httpx.Client, gateway: Gateway
) -> None:
    channel = channel_of(gateway, partitions=199)
    limit_searches(app, follow_s=20.0)
    try:
        with following(http, channel) as lines:
            channel.update(partitions=202)
            end = next(line["end"] for line in lines if "end" in line)
    finally:
        limit_searches(app, time_s=600.0)
    assert (end["reason"], end["partitions_left_out"]) == ("time", 2)
    write_to(channel, 199, 7)
    with following(http, channel, cursor=end["next_cursor"]) as lines:
        assert next_message(lines)["records"][0]["id"] == 7


class Leaderless(KafkaAdmin):
    """The real Kafka, in which the leader of partition 1 may be away."""

    away = True
    unanswered_times = 0
    """Requests for offsets of a time to which the leader does not answer, although it is back."""

    def watermarks(self, name: str, partitions: Iterable[int]) -> dict[int, Watermarks | None]:
        watermarks = super().watermarks(name, partitions)
        return watermarks | dict.fromkeys({1} & watermarks.keys()) if self.away else watermarks

    def offsets_at(self, name: str, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        offsets = super().offsets_at(name, partitions, time_ms)
        if self.unanswered_times:
            self.unanswered_times -= 1
            offsets.pop(1, None)
        return offsets


@pytest.fixture
def leaderless(app: FastAPI, kafka: SharedKafka) -> Iterator[Leaderless]:
    """The Kafka of searches."""
    before = app.state.parts
    with closing(Leaderless(kafka.bootstrap_servers)) as leaderless:
        reads = MessageReads(before.database, leaderless, read_s=60.0)
        searches = MessageSearches(before.database, leaderless, reads)
        app.state.parts = replace(before, message_searches=searches)
        yield leaderless
        app.state.parts = before


@pytest.mark.parametrize("since", [None, "2001-01-01T00:00:00Z"])
def test_a_search_follows_partitions_whose_leaders_return(
    http: httpx.Client, gateway: Gateway, leaderless: Leaderless, since: str | None
) -> None:
    channel = channel_of(gateway, partitions=2)
    write_to(channel, 1, 1)
    with following(http, channel, **({} if since is None else {"since": since})) as lines:
        write_to(channel, 1, 2)
        write_to(channel, 0, 3)
        assert next_message(lines)["records"][0]["id"] == 3
        leaderless.away = False
        ids = [1, 2] if since else [2]
        assert [next_message(lines)["records"][0]["id"] for _ in ids] == ids


def test_a_search_that_follows_skips_old_messages_of_a_leader_that_returns_for_a_moment(
    http: httpx.Client, gateway: Gateway, leaderless: Leaderless
) -> None:
    channel = channel_of(gateway, partitions=2)
    write_to(channel, 1, 1)
    with following(http, channel) as lines:
        write_to(channel, 1, 2)
        leaderless.unanswered_times = 2
        leaderless.away = False
        assert next_message(lines)["records"][0]["id"] == 2
        assert leaderless.unanswered_times == 0


def test_a_cursor_keeps_its_places_in_partitions_whose_leaders_are_away(
    http: httpx.Client, gateway: Gateway, leaderless: Leaderless
) -> None:
    channel = channel_of(gateway, partitions=2)
    for partition in (0, 1):
        write_to(channel, partition, 2 * partition, 2 * partition + 1)
    leaderless.away = False
    results = [search(http, channel, limit=1)]
    leaderless.away = True
    results.append(search(http, channel, cursor=results[-1].end["next_cursor"]))
    assert results[-1].end["partitions_unavailable"] == [1]
    leaderless.away = False
    results.append(search(http, channel, cursor=results[-1].end["next_cursor"]))
    assert sorted(number for result in results for number in result.ids) == [0, 1, 2, 3]
    assert results[-1].end["next_cursor"] is None


def test_a_search_stops_when_its_client_disconnects(
    app: FastAPI, http: httpx.Client, gateway: Gateway
) -> None:
    channel = channel_of(gateway)
    threads = app.state.parts.follow_threads
    with following(http, channel):
        assert threads.present == 1
    until(lambda: threads.present == 0, 60)


def test_a_channel_without_messages_has_no_matches(
    http: httpx.Client, gateway: Gateway, kafka: SharedKafka
) -> None:
    channel = channel_of(gateway)
    result = search(http, channel)
    assert (result.messages, result.end["reason"]) == ([], "end")
    Topics(kafka.bootstrap_servers).produce(channel.status.topic.name, 0, [b"broken"])
    (message,) = search(http, channel, text="BROK").messages
    assert message["error"] is not None
