"""Messages over HTTP: reading, decoding, and writing by hand."""

import base64
import itertools
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from fastapi import FastAPI

from databases import SQLite
from gateways import code, patient_reads, serving
from shared_kafka import SharedKafka
from sluiceway import Channel, Gateway
from sluiceway_gateway.app import create_app
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.messages.reading import MessageReads
from topics import Topics
from waiting import until

SCHEMA = {
    "type": "record",
    "name": "Landing",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "carrier", "type": ["null", "string"], "default": None},
    ],
}
BIG = 2**63 - 1
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def app(kafka: SharedKafka, sqlite: SQLite) -> FastAPI:
    """A gateway in this process, where the tests can replace Kafka's answers."""
    settings = Settings(
        database_url=sqlite.migrated(),
        kafka_bootstrap_servers=kafka.bootstrap_servers,
        kafka_timeout_ms=20_000,
    )
    return patient_reads(create_app(settings))


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


@pytest.fixture
def topics(kafka: SharedKafka) -> Topics:
    return Topics(kafka.bootstrap_servers)


def channel_of(gateway: Gateway, schema: Any = SCHEMA, **options: Any) -> Channel:
    return gateway.channel(f"messages-{next(_numbers)}", schema, **options)


def page(http: httpx.Client, channel: Channel, **params: Any) -> Any:
    response = http.get(f"/v1/channels/{channel.name}/messages", params=params)
    assert response.status_code == 200, response.text
    assert response.headers["Cache-Control"] == "no-store"
    return response.json()


def places(message_page: Any) -> list[tuple[int, int]]:
    return [(message["partition"], message["offset"]) for message in message_page["items"]]


def ids(message_page: Any) -> list[int]:
    return [record["id"] for message in message_page["items"] for record in message["records"]]


def write(channel: Channel, *numbers: int, **options: Any) -> None:
    with channel.writer(**options) as writer:
        writer.write([{"id": number} for number in numbers])


def refused(http: httpx.Client, channel: Channel, status: int, name: str, **params: Any) -> str:
    response = http.get(f"/v1/channels/{channel.name}/messages", params=params)
    assert (response.status_code, code(response)) == (status, name), response.text
    return str(response.json()["detail"])


@pytest.mark.long
@pytest.mark.parametrize("format_", ["avro", "arrow", "json", "protobuf"])
def test_messages_show_their_records_by_their_schema(
    http: httpx.Client, gateway: Gateway, format_: str
) -> None:
    channel = channel_of(gateway, format=format_)
    write(channel, 1, BIG, partition=0)
    message_page = page(http, channel)
    records = [
        record for message in reversed(message_page["items"]) for record in message["records"]
    ]
    assert records == [{"id": 1, "carrier": None}, {"id": BIG, "carrier": None}]
    first = message_page["items"][-1]
    assert (first["partition"], first["offset"], first["timestamp_type"]) == (0, 0, "create")
    assert first["record_count"] == (2 if format_ == "arrow" else 1)
    # Messages of `json` do not tell their schema.
    schema = {"id": channel.schemas()[0].id, "version": 1}
    assert first["schema"] == (None if format_ == "json" else schema)
    age = datetime.now(UTC) - datetime.fromisoformat(first["timestamp"])
    assert abs(age.total_seconds()) < 60
    assert (first["committed"], first["key"], first["error"], first["raw"]) == (None,) * 4


@pytest.mark.long
def test_values_have_the_same_form_as_in_tail(http: httpx.Client, gateway: Gateway) -> None:
    fields = {
        "amount": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "raw": "bytes",
        "ratio": "double",
    }
    listed = [{"name": name, "type": type_} for name, type_ in fields.items()]
    channel = channel_of(gateway, {"type": "record", "name": "R", "fields": listed})
    with channel.writer() as writer:
        when = datetime(2026, 1, 1, 12, tzinfo=UTC)
        writer.write(
            {"amount": Decimal("12.50"), "at": when, "raw": b"\0\xff", "ratio": float("nan")}
        )
    (message,) = page(http, channel)["items"]
    assert message["records"] == [
        {"amount": "12.50", "at": "2026-01-01T12:00:00+00:00", "raw": "AP8=", "ratio": "NaN"}
    ]


@pytest.mark.long
def test_valid_utf8_bytes_are_shown_as_text(
    http: httpx.Client, gateway: Gateway, topics: Topics
) -> None:
    channel = channel_of(gateway, None, format="bytes")
    topics.produce(channel.status.topic.name, 0, ["grün".encode(), b"\xff\x00", None])
    tombstone, binary, text = page(http, channel)["items"]
    assert text["raw"] == {
        "encoding": "utf-8",
        "data": "grün",
        "size_bytes": 5,
        "truncated": False,
    }
    assert (binary["raw"]["encoding"], binary["raw"]["data"]) == ("base64", "/wA=")
    assert binary["records"] == [{"value": "/wA="}]
    assert (tombstone["raw"], tombstone["records"]) == (None, [{"value": None}])


@pytest.mark.long
def test_the_newest_messages_come_first_and_pages_reach_the_beginning(
    http: httpx.Client, gateway: Gateway, topics: Topics
) -> None:
    channel = channel_of(gateway, None, format="bytes", partitions=3)
    producer = Producer({"bootstrap.servers": topics.bootstrap_servers})
    for number in range(20):
        name, value = channel.status.topic.name, str(number).encode()
        producer.produce(name, value, partition=number % 3, timestamp=1_000_000 + number)
    assert producer.flush(30) == 0
    pages = [page(http, channel, limit=6)]
    while pages[-1]["next_cursor"]:
        pages.append(page(http, channel, limit=6, cursor=pages[-1]["next_cursor"]))
    shown = [
        [int(message["raw"]["data"]) for message in message_page["items"]] for message_page in pages
    ]
    assert [number for numbers in shown for number in numbers] == list(reversed(range(20)))
    assert [len(numbers) for numbers in shown] == [6, 6, 6, 2]
    assert {message_page["order"] for message_page in pages} == {"newest_first"}
    assert [partition["end_offset"] for partition in pages[0]["partitions"]] == [7, 7, 6]


def test_pages_from_an_offset_a_time_or_the_beginning_go_forward(
    http: httpx.Client, gateway: Gateway, kafka: SharedKafka
) -> None:
    channel = channel_of(gateway, None, format="bytes", partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    now_ms = int(time.time() * 1000) - 100_000
    for number in range(10):
        producer.produce(
            channel.status.topic.name,
            str(number).encode(),
            partition=number % 2,
            timestamp=now_ms + 1000 * number,
        )
    assert producer.flush(30) == 0

    def numbers(**params: Any) -> list[int]:
        message_page = page(http, channel, **params)
        assert message_page["order"] == "oldest_first"
        shown = [int(message["raw"]["data"]) for message in message_page["items"]]
        if message_page["next_cursor"] and "limit" in params:
            shown += numbers(cursor=message_page["next_cursor"], limit=params["limit"])
        return shown

    assert numbers(start="earliest", limit=4) == list(range(10))
    assert numbers(partition=1, offset=3) == [7, 9]
    assert numbers(partition=1, offset=5) == []
    since = datetime.fromtimestamp((now_ms + 5500) / 1000, UTC).isoformat()
    assert numbers(since=since, limit=3) == [6, 7, 8, 9]
    assert numbers(since="2999-01-01T00:00:00Z") == []
    assert numbers(since="1999-01-01T00:00:00Z", partition=0) == [0, 2, 4, 6, 8]


def test_keys_headers_and_foreign_timestamps_are_shown(
    http: httpx.Client, gateway: Gateway, kafka: SharedKafka
) -> None:
    channel = channel_of(gateway, None, format="bytes")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    headers = [("trace", b"abc"), ("trace", None), ("raw", b"\xff")]
    producer.produce(channel.status.topic.name, b"v", b"\xfe", headers=headers, timestamp=1)
    producer.flush(30)
    (message,) = page(http, channel)["items"]
    assert (message["key"]["encoding"], message["key"]["data"]) == ("base64", "/g==")
    named = [
        (header["name"], header["value"] and header["value"]["data"])
        for header in message["headers"]
    ]
    assert named == [("trace", "abc"), ("trace", None), ("raw", "/w==")]
    assert message["timestamp"] == "1970-01-01T00:00:00.001Z"


def test_many_headers_and_long_keys_are_cut(
    http: httpx.Client, gateway: Gateway, kafka: SharedKafka
) -> None:
    channel = channel_of(gateway, None, format="bytes")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    headers = [("n" * 500, "é".encode() * 20_000)] * 20 + [("h", b"")] * 200
    for _ in range(20):
        producer.produce(channel.status.topic.name, b"v", b"k" * 50_000, headers=headers)
    producer.flush(30)
    response = http.get(f"/v1/channels/{channel.name}/messages")
    assert len(response.content) < 4 * 2**20
    message = response.json()["items"][0]
    assert len(message["headers"]) == 100
    first = message["headers"][0]["value"]
    assert (first["size_bytes"], first["truncated"]) == (40_000, True)
    assert set(first["data"]) == {"é"}
    assert message["key"]["truncated"]


@pytest.mark.long
def test_a_message_that_cannot_be_decoded_is_shown_raw_with_the_reason(
    http: httpx.Client, gateway: Gateway, topics: Topics
) -> None:
    for format_ in ("avro", "arrow"):
        channel = channel_of(gateway, format=format_)
        write(channel, 1, partition=0)
        foreign = b"\0" + struct.pack(">I", 2**31 - 1) + b"x"
        topics.produce(channel.status.topic.name, 0, [b"<b>hello</b>", foreign, b"", None])
        messages = page(http, channel)["items"]
        tombstone, empty, unknown, text, record = messages
        assert record["records"]
        assert text["raw"]["data"] == "<b>hello</b>"
        assert tombstone["raw"] is None
        for message in (tombstone, empty, unknown, text):
            assert (message["records"], message["record_count"]) == ([], 0)
            assert message["error"]
        if format_ == "avro":
            assert "not one of the channel's" in unknown["error"]


def test_deletes_of_compacted_channels_are_no_errors(http: httpx.Client, gateway: Gateway) -> None:
    channel = channel_of(gateway, config={"cleanup.policy": "compact"})
    with channel.writer(key="id") as writer:
        writer.delete(1)
    (delete,) = page(http, channel)["items"]
    assert (delete["deleted"], delete["error"], delete["records"]) == (True, None, [])
    assert delete["key"]["data"]


@pytest.mark.long
def test_each_message_is_shown_with_the_schema_of_its_writer(
    http: httpx.Client, gateway: Gateway
) -> None:
    channel = channel_of(gateway)
    write(channel, 1, partition=0)
    added = {"name": "gate", "type": ["null", "string"], "default": None}
    channel.update(schema={**SCHEMA, "fields": [*SCHEMA["fields"], added]})
    write(channel, 2, partition=0)
    second, first = page(http, channel)["items"]
    assert first["records"] == [{"id": 1, "carrier": None}]
    assert second["records"] == [{"id": 2, "carrier": None, "gate": None}]
    assert (first["schema"]["version"], second["schema"]["version"]) == (1, 2)


def test_large_values_are_cut_and_marked_but_not_in_a_single_message(
    http: httpx.Client, gateway: Gateway
) -> None:
    channel = channel_of(gateway)
    text = "x" * 200_000
    with channel.writer(partition=0) as writer:
        writer.write([{"id": number, "carrier": text} for number in range(20)])
    many = page(http, channel, limit=20)
    assert len(many["items"]) == 20
    for message in many["items"]:
        assert message["truncated"] == ["/0/carrier"]
        assert message["records"][0]["carrier"].endswith("x…")
        assert message["size_bytes"] > 200_000
    alone = page(http, channel, partition=0, offset=3, limit=1)["items"][0]
    assert (alone["truncated"], alone["records"]) == ([], [{"id": 3, "carrier": text}])


@pytest.mark.long
def test_the_size_of_a_response_is_limited(
    http: httpx.Client, gateway: Gateway, topics: Topics
) -> None:
    channel = channel_of(gateway, None, format="bytes", partitions=2)
    for partition in (0, 1):
        topics.produce(channel.status.topic.name, partition, [bytes(900_000)] * 8)
    shown: list[tuple[int, int]] = []
    cursor = None
    while True:
        message_page = page(http, channel, **({} if cursor is None else {"cursor": cursor}))
        shown += places(message_page)
        cursor = message_page["next_cursor"]
        if cursor is None:
            break
        assert message_page["incomplete"]["reason"] == "bytes"
        assert sum(message["size_bytes"] for message in message_page["items"]) <= 8 * 2**20
    assert sorted(shown) == [(partition, offset) for partition in (0, 1) for offset in range(8)]
    assert len(set(shown)) == len(shown)


def test_partitions_and_offsets_out_of_range_are_refused_with_the_valid_range(
    http: httpx.Client, gateway: Gateway, topics: Topics
) -> None:
    channel = channel_of(gateway, partitions=2)
    write(channel, *range(5), partition=1)
    name = channel.status.topic.name
    topics.truncate(name, 1, 2)
    invalid = "invalid_request"
    assert "has 2, from 0 on" in refused(http, channel, 422, invalid, partition=2)
    past = refused(http, channel, 422, invalid, partition=1, offset=6)
    assert "not written yet: messages begin at 2, and the next one will have 5" in past
    below = refused(http, channel, 422, invalid, partition=1, offset=1)
    assert "removed by retention" in below
    assert "give partition too" in refused(http, channel, 422, invalid, offset=1)
    assert "time zone" in refused(http, channel, 422, invalid, since="2026-01-01T00:00:00")
    for since in ("yesterday", "0.5", "1767225600", "2026-01-01"):
        assert "ISO 8601" in refused(http, channel, 422, invalid, since=since)
    # An unescaped plus sign.
    assert "%2B01:00" in refused(http, channel, 422, invalid, since="2026-01-01T00:00:00 01:00")
    assert "not together" in refused(
        http, channel, 422, invalid, start="earliest", since="2026-01-01T00:00:00Z"
    )
    assert "use next_cursor" in refused(http, channel, 422, invalid, cursor="bm9wZQ")
    refused(http, channel, 422, invalid, limit=501)
    # What retention has removed is skipped.
    assert ids(page(http, channel, start="earliest")) == [2, 3, 4]
    assert ids(page(http, channel)) == [4, 3, 2]


class Leaderless(KafkaAdmin):
    """The real Kafka, without a leader of partition 1."""

    def watermarks(self, name: str, partitions: Iterable[int]) -> dict[int, Watermarks | None]:
        return super().watermarks(name, partitions) | {1: None}


def test_a_cursor_keeps_partitions_whose_leaders_do_not_answer(
    app: FastAPI, http: httpx.Client, gateway: Gateway, kafka: SharedKafka
) -> None:
    channel = channel_of(gateway, partitions=2)
    for partition in (0, 1):
        write(channel, 2 * partition, 2 * partition + 1, partition=partition)
    pages = [page(http, channel, limit=1)]
    parts = app.state.parts
    with closing(Leaderless(kafka.bootstrap_servers)) as leaderless:
        reads = MessageReads(parts.database, leaderless, read_s=60.0)
        app.state.parts = replace(parts, message_reads=reads)
        pages.append(page(http, channel, cursor=pages[-1]["next_cursor"]))
        app.state.parts = parts
    assert pages[-1]["partitions_unavailable"] == [1]
    pages.append(page(http, channel, cursor=pages[-1]["next_cursor"]))
    assert [ids(message_page) for message_page in pages] == [[3], [1, 0], [2]]
    assert pages[-1]["next_cursor"] is None


def test_a_channel_without_messages_has_none(http: httpx.Client, gateway: Gateway) -> None:
    empty = page(http, channel_of(gateway, partitions=2))
    assert (empty["items"], empty["next_cursor"], empty["incomplete"]) == ([], None, None)


def test_texts_with_zero_bytes_are_written(http: httpx.Client, gateway: Gateway) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    fields = [
        {"name": "text", "type": "string"},
        {"name": "price", "type": decimal, "default": "\0"},
    ]
    channel = channel_of(gateway, {"type": "record", "name": "Text", "fields": fields})
    response = http.post(
        f"/v1/channels/{channel.name}/messages", json={"records": [{"text": "a\0b"}]}
    )
    response.raise_for_status()
    (item,) = page(http, channel)["items"]
    assert item["records"] == [{"text": "a\0b", "price": "0.00"}]
    assert list(channel.reader(until="now")) == [{"text": "a\0b", "price": Decimal("0.00")}]


def test_reading_leaves_no_trace_in_the_channel(http: httpx.Client, gateway: Gateway) -> None:
    channel = channel_of(gateway)
    write(channel, 1)
    path = f"/v1/channels/{channel.name}"
    before = http.get(path).json(), http.get(f"{path}/endpoints").json()
    page(http, channel)
    assert (http.get(path).json(), http.get(f"{path}/endpoints").json()) == before


@pytest.mark.long
def test_compacted_topics_are_read_over_their_gaps(
    http: httpx.Client, gateway: Gateway, topics: Topics
) -> None:
    """Offsets without messages, like those of transaction markers."""
    channel = channel_of(gateway, None, format="bytes")
    for number in range(4):
        topics.produce_in_transaction(channel.status.topic.name, 0, [str(number).encode()])
    newest = page(http, channel, limit=3)
    assert [message["raw"]["data"] for message in newest["items"]] == ["3", "2", "1"]
    rest = page(http, channel, limit=3, cursor=newest["next_cursor"])
    assert [message["raw"]["data"] for message in rest["items"]] == ["0"]
    first = page(http, channel, limit=3, start="earliest")
    assert [message["raw"]["data"] for message in first["items"]] == ["0", "1", "2"]


def test_a_recreated_topic_is_neither_read_nor_written(
    http: httpx.Client, gateway: Gateway, topics: Topics
) -> None:
    channel = channel_of(gateway)
    name = channel.status.topic.name
    topics.delete(name)
    topics.create(name)
    assert "created anew" in refused(http, channel, 409, "channel_not_ready")
    response = http.post(f"/v1/channels/{channel.name}/messages", json={"records": [{"id": 1}]})
    assert code(response) == "channel_not_ready"


class TestExactlyOnce:
    @pytest.fixture
    def channel(self, gateway: Gateway) -> Channel:
        return channel_of(gateway, delivery="exactly_once")

    @pytest.mark.long
    def test_committed_records_are_shown_and_others_on_request(
        self, http: httpx.Client, channel: Channel
    ) -> None:
        with channel.writer(group="job", partition=0) as writer:
            with writer.batch("one"):
                writer.write([{"id": 1}, {"id": 2}])
            with suppress(ZeroDivisionError), writer.batch("two"):
                writer.write({"id": 3})
                writer.flush()
                raise ZeroDivisionError
            with writer.batch("three"):
                writer.write({"id": 4})
            with writer.batch("four"):
                writer.write({"id": 5})
                writer.flush()

                message_page = page(http, channel)
                assert ids(message_page) == [4, 2, 1]
                assert {message["committed"] for message in message_page["items"]} == {True}
                (partition,) = message_page["partitions"]
                assert (partition["stable_offset"], partition["end_offset"]) == (4, 5)

                message_page = page(http, channel, uncommitted=True)
                assert ids(message_page) == [5, 4, 3, 2, 1]
                flags = [message["committed"] for message in message_page["items"]]
                assert flags == [False, True, False, True, True]

                assert ids(page(http, channel, start="earliest", limit=3)) == [1, 2, 4]
                assert ids(page(http, channel, partition=0, offset=2)) == [4]
                older = page(http, channel, limit=1)
                assert ids(page(http, channel, limit=1, cursor=older["next_cursor"])) == [2]

    def test_the_offset_of_a_time_is_not_above_an_open_batch(
        self, http: httpx.Client, channel: Channel
    ) -> None:
        with channel.writer(group="job", partition=0) as writer:
            with writer.batch("committed"):
                writer.write({"id": 1})
            with writer.batch("open"):
                times: list[str] = []
                # The newest first; the last one is committed.
                while not times or times[0] == times[-2]:
                    writer.write({"id": 2})
                    writer.flush()
                    message_page = page(http, channel, uncommitted=True, limit=500)
                    times = [message["timestamp"] for message in message_page["items"]]
                response = http.get(
                    f"/v1/channels/{channel.name}/messages/offsets", params={"since": times[0]}
                )
                (partition,) = response.json()["partitions"]
                assert partition["end_offset"] > 2
                assert (partition["stable_offset"], partition["offset"]) == (1, 1)

    @pytest.mark.parametrize("order", ["n", "o"])
    def test_a_cursor_beyond_the_end_is_one_at_the_end(
        self, http: httpx.Client, channel: Channel, order: str
    ) -> None:
        with channel.writer(group="job", partition=0) as writer, writer.batch("one"):
            writer.write({"id": 1})
        text = f"{order},0:{10**19 - 1}".encode()
        message_page = page(
            http, channel, cursor=base64.urlsafe_b64encode(text).decode().rstrip("=")
        )
        assert ids(message_page) == ([1] if order == "n" else [])

    def test_a_channel_without_commits_has_only_uncommitted_messages(
        self, http: httpx.Client, channel: Channel, topics: Topics
    ) -> None:
        topics.produce(channel.status.topic.name, 0, [b"foreign"])
        assert page(http, channel)["items"] == []
        (message,) = page(http, channel, uncommitted=True)["items"]
        assert (message["committed"], message["raw"]["data"]) == (False, "foreign")

    @pytest.mark.long
    def test_hand_made_records_are_one_committed_batch(
        self, http: httpx.Client, channel: Channel
    ) -> None:
        path = f"/v1/channels/{channel.name}/messages"
        body = {"uid": channel.uid, "records": [{"id": 1}, {"id": 2}], "batch_key": "fix-1"}
        response = http.post(path, json=body)
        assert response.status_code == 201, response.text
        written = response.json()
        assert len(written["messages"]) == 2
        assert (written["batch"]["key"], written["batch"]["replayed"]) == ("fix-1", False)
        assert sorted(ids(page(http, channel))) == [1, 2]
        again = http.post(path, json=body).json()
        assert again["messages"] == []
        assert again["batch"] == {**written["batch"], "replayed": True}
        entry, created = http.get(f"/v1/channels/{channel.name}/changes").json()["items"]
        assert (entry["action"], entry["target"], entry["by"]) == (
            *("write_messages", "fix-1"),
            "loopback",
        )
        written_to = [{"field": "partition 0", "old": None, "new": "offsets 0 to 1"}]
        assert (entry["fields"], created["action"]) == (written_to, "create")
        http.post(path, json={"records": [{"id": 3}]}).raise_for_status()
        with channel.reader(until="now") as reader:
            assert sorted(record["id"] for record in reader) == [1, 2, 3]


@pytest.mark.parametrize("format_", ["avro", "arrow", "json", "protobuf"])
def test_records_are_written_as_their_readers_expect(
    http: httpx.Client, gateway: Gateway, format_: str
) -> None:
    channel = channel_of(gateway, format=format_, partitions=4)
    records = [{"id": BIG, "carrier": "UA"}, {"id": 2}]
    response = http.post(
        f"/v1/channels/{channel.name}/messages", json={"records": records, "key": "UA"}
    )
    assert response.status_code == 201, response.text
    written = response.json()
    assert written["batch"] is None
    assert sum(message["records"] for message in written["messages"]) == 2
    with channel.reader(until="now") as reader:
        assert list(reader) == [{"id": BIG, "carrier": "UA"}, {"id": 2, "carrier": None}]
    message_page = page(http, channel)
    assert {message["key"]["data"] for message in message_page["items"]} == {"UA"}
    assert sorted(places(message_page)) == sorted(
        (message["partition"], message["offset"]) for message in written["messages"]
    )


def test_a_key_takes_the_partition_that_writers_give_it(
    http: httpx.Client, gateway: Gateway
) -> None:
    channel = channel_of(gateway, partitions=8)
    numbers = range(5)
    with channel.writer(key="id") as writer:
        writer.write([{"id": number} for number in numbers])
    by_writer = {
        message["records"][0]["id"]: message["partition"]
        for message in page(http, channel)["items"]
    }
    path = f"/v1/channels/{channel.name}/messages"
    for number in numbers:
        response = http.post(path, json={"records": [{"id": number}], "key": number}).json()
        assert response["messages"][0]["partition"] == by_writer[number]


@pytest.mark.long
def test_messages_that_kafka_refuses_are_invalid_and_kafka_counts_as_up(
    http: httpx.Client, gateway: Gateway
) -> None:
    for config, advice in (
        ({"cleanup.policy": "compact"}, "each message needs a key"),
        ({"message.timestamp.before.max.ms": "0"}, "message.timestamp.before.max.ms"),
    ):
        channel = channel_of(gateway, None, format="bytes", config=config)
        response = http.post(
            f"/v1/channels/{channel.name}/messages", json={"records": [{"value": "eA=="}]}
        )
        assert (response.status_code, code(response)) == (422, "invalid_request")
        (error,) = response.json()["errors"]
        assert error["pointer"] == "/records"
        assert advice in error["message"]
        until(lambda: "sluiceway_kafka_up 1.0" in http.get("/metrics").text)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_key_that_is_larger_than_a_message_is_refused_and_leaves_no_batch_open(
    http: httpx.Client, gateway: Gateway, delivery: str
) -> None:
    config = {"max.message.bytes": "1024"}
    channel = channel_of(gateway, None, format="bytes", config=config, delivery=delivery)
    path = f"/v1/channels/{channel.name}"
    body = {"records": [{"value": None}], "key": "k" * 2000}
    response = http.post(f"{path}/messages", json=body)
    assert (response.status_code, code(response)) == (422, "invalid_request"), response.text
    assert "raise the topic's max.message.bytes" in response.json()["detail"]
    if delivery == "exactly_once":
        commits = http.get(f"{path}/commits").json()
        assert [commit["state"] for commit in commits["commits"]] == ["aborted"]
        assert commits["open"] == []


@pytest.mark.long
def test_tombstones_and_bytes_are_written_to_channels_of_bytes(
    http: httpx.Client, gateway: Gateway
) -> None:
    channel = channel_of(gateway, None, format="bytes")
    body = {"records": [{"value": "AP8="}, {"value": None}], "partition": 0, "key": "k"}
    http.post(f"/v1/channels/{channel.name}/messages", json=body).raise_for_status()
    assert [message["records"] for message in page(http, channel)["items"]] == [
        [{"value": None}],
        [{"value": "AP8="}],
    ]


def test_invalid_records_are_refused_before_any_write(http: httpx.Client, gateway: Gateway) -> None:
    channel = channel_of(gateway, config={"max.message.bytes": "2000"})

    def refusal(status: int, name: str, **body: Any) -> Any:
        response = http.post(f"/v1/channels/{channel.name}/messages", json=body)
        assert (response.status_code, code(response)) == (status, name), response.text
        return response.json()

    one = {"id": 1}
    invalid = "invalid_request"
    wrong = refusal(422, invalid, records=[one, {"id": "x"}])
    assert wrong["errors"][0]["pointer"] == "/records/1"
    assert "field id: it must be" in wrong["detail"]
    unknown = refusal(422, invalid, records=[{"id": 1, "b": 2}])
    assert "a field that is not in the schema, which has id, carrier" in unknown["detail"]
    assert "missing" in refusal(422, invalid, records=[{}])["detail"]
    large = refusal(422, invalid, records=[{"id": 1, "carrier": "x" * 3000}])
    assert "raise max.message.bytes" in large["detail"]
    assert "from 0 on" in refusal(422, invalid, records=[one], partition=1)["detail"]
    assert "64 bits" in refusal(422, invalid, records=[one], key=2**63)["detail"]
    assert "exactly_once" in refusal(422, invalid, records=[one], batch_key="k")["detail"]
    refusal(422, invalid, records=[])
    refusal(422, invalid, records=[one] * 101)
    refusal(409, "uid_mismatch", records=[one], uid="0" * 32)
    assert page(http, channel)["items"] == []
    channel.close(force=True)
    refusal(409, "channel_closed", records=[one])
