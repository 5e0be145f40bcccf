"""The status of channels over HTTP; its values are tested with the samples."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from sqlalchemy import update

from endpoints import Site, report, site
from gateways import Rig, code
from sluiceway_gateway.api.json import ResponseCache
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.endpoints.tables import endpoints
from sluiceway_gateway.status import sample_store
from sluiceway_gateway.status.lag import GroupLag, Sample
from sluiceway_gateway.status.reader_progress import OffsetTrack, ProgressState
from sluiceway_gateway.status.sample_store import SampleWrite, StoredSample
from waiting import until

PATH = "/v1/channels/flights/status"
UNKNOWN = {
    "lag_messages": None,
    "lag_records": None,
    "lag_seconds": None,
    "lag_seconds_at_least": False,
    "read_rate": None,
    "trend": None,
    "drain_s": None,
    "progress": None,
}


@pytest.fixture
def flights(rig: Rig) -> Site:
    return site(rig, partitions=2, metadata={"labels": {"team": "ops"}})


def sampled(flights: Site, number: int = 1, key: str = "/g", lag: int = 4) -> None:
    """Store a sample as if taken from Kafka: a group at an offset of partition 0."""
    clock = flights.rig.clock
    clock.advance(timedelta(seconds=5))
    lag_of_group = GroupLag(
        lags=[lag, None],
        since=[clock().timestamp() - 7.5 if lag else None, None],
        progress=[ProgressState.STALLED if lag else ProgressState.OK, None],
        lag_messages=lag,
        behind_since=clock().timestamp() - 7.5 if lag else None,
        read_rate=0.5,
        trend=-0.25,
        drain_s=4 * lag,
    )
    track = OffsetTrack(position=[5, None], committed=[3, None], holder=[1, None])
    sample = Sample(at=clock(), starts=[0, 0], ends=[5 + lag, 0], tracks={key: track})
    kept = StoredSample(number=number, sample=sample, lags={key: lag_of_group}, write_rate=1.0)
    with flights.rig.database.write() as tx:
        taken = SampleWrite(channel_uid=flights.uid, stored=kept, is_new=True, changes_status=True)
        assert sample_store.write(tx, [taken]) == 1


def test_a_sample_without_offsets_is_a_problem_in_the_status_and_in_the_list(
    flights: Site,
) -> None:
    http = flights.rig.http

    def problems() -> list[tuple[str, str]]:
        (line,) = http.get("/v1/status").json()["items"]
        assert line["problems"] == http.get(PATH).json()["problems"]
        return [(problem["code"], problem["severity"]) for problem in line["problems"]]

    for number, (starts, expected) in enumerate(
        (
            ([0, 0], []),
            ([0, None], [("partitions_unavailable", "warning")]),
            ([], [("partitions_unavailable", "error")]),
        ),
        1,
    ):
        sample = Sample(at=flights.rig.clock(), starts=starts, ends=starts)
        kept = StoredSample(number=number, sample=sample)
        write = SampleWrite(channel_uid=flights.uid, stored=kept, is_new=True, changes_status=True)
        with flights.rig.database.write() as tx:
            assert sample_store.write(tx, [write]) == 1
        assert problems() == expected


@pytest.mark.long
def test_a_status_and_the_list_have_ten_problems_and_whether_there_are_more(flights: Site) -> None:
    http = flights.rig.http
    for number in range(11):
        (line,) = http.get("/v1/status").json()["items"]
        for shown in (line, http.get(PATH).json()):
            assert (len(shown["problems"]), shown["more_problems"]) == (number, False)
        flights.member(group=f"g{number}")
        with flights.rig.database.write() as tx:
            tx.execute(update(endpoints).values(health="lost"))
    (line,) = http.get("/v1/status").json()["items"]
    for shown in (line, http.get(PATH).json()):
        assert (len(shown["problems"]), shown["more_problems"]) == (10, True)


@pytest.mark.long
def test_failures_are_one_problem_after_the_live_ones_and_expire_after_a_day(
    flights: Site,
) -> None:
    http = flights.rig.http
    for number in range(6):
        flights.rig.clock.advance(1)
        flights.detach(flights.attach("writer"), "error", cause=f"record {number}")
    flights.member(group="late")
    with flights.rig.database.write() as tx:
        late = endpoints.c.group_name == "late"
        tx.execute(update(endpoints).values(health="suspect").where(late))
    (line,) = http.get("/v1/status").json()["items"]
    assert line["problems"] == http.get(PATH).json()["problems"]
    (live, failed) = line["problems"]
    assert (live["code"], live["failures"]) == ("suspect", None)
    assert [failed[key] for key in ("code", "severity", "reason", "failures")] == [
        *("writer_failed", "warning", "record 5", 6)
    ]
    assert line["writers"]["failed"] == 6
    flights.rig.clock.advance(timedelta(days=1))
    (line,) = http.get("/v1/status").json()["items"]
    assert [problem["code"] for problem in line["problems"]] == ["suspect"]
    assert line["writers"]["failed"] == 0


def test_a_writer_that_is_lost_without_a_group_is_a_failure_for_a_day(flights: Site) -> None:
    http = flights.rig.http
    flights.detach(flights.attach("writer"), "error", cause="a wrong record")
    flights.rig.clock.advance(1)
    flights.attach("writer")
    flights.attach("reader")
    member = flights.member(group="load", role="writer")
    with flights.rig.database.write() as tx:
        is_open = endpoints.c.state == "opened"
        now = flights.rig.clock()
        tx.execute(update(endpoints).values(health="lost", changed_at=now).where(is_open))

    def problems() -> list[tuple[str, str, int | None]]:
        (line,) = http.get("/v1/status").json()["items"]
        return [
            (problem["code"], problem["severity"], problem["failures"])
            for problem in line["problems"]
        ]

    waiting = ("writer_lost", "error", None)
    live, failed = problems()
    assert [problem["failures"] for problem in http.get(PATH).json()["problems"]] == [None, 3]
    assert (live, failed[1:]) == (waiting, ("warning", 3))
    assert failed[0] in ("writer_lost", "reader_lost")
    flights.rig.clock.advance(timedelta(days=1))
    # A group waits for the next instance in the place.
    assert problems() == [waiting]
    (line,) = http.get("/v1/status").json()["items"]
    assert (line["writers"]["lost"], line["readers"]["lost"]) == (1, 0)
    flights.beat(report(member, "started"))
    assert problems() == []


def test_the_status_has_writers_readers_groups_and_partitions(flights: Site) -> None:
    writer, reader = flights.attach("writer"), flights.member(1, 2)
    sampled(flights)
    status = flights.rig.http.get(PATH).json()
    assert status["channel"] == {
        "name": "flights",
        "uid": flights.uid,
        "phase": "ready",
        "generation": 1,
        "labels": {"team": "ops"},
        "format": "avro",
        "delivery": "at_least_once",
        "partitions": 2,
    }
    listed = {endpoint["role"]: endpoint for endpoint in flights.listed()}
    silent = {"last_heartbeat_at": None}
    assert status["writers"] == [listed["writer"] | silent]
    assert status["writers"][0]["id"] == writer["id"]
    unread = {"progress": None, "lag_messages": None}
    assert status["readers"] == [listed["reader"] | unread | silent]
    assert status["readers"][0]["id"] == reader["id"]
    assert status["sampled_at"] == "2030-01-01T00:00:05.000Z"
    assert status["write_rate"] == 1.0
    assert status["partitions"] == [
        {"partition": 0, "start": 0, "end": 9, "stable": None, "visible_end": None},
        {"partition": 1, "start": 0, "end": 0, "stable": None, "visible_end": None},
    ]
    (group,) = status["groups"]
    assert group == {
        "group": "g",
        "index": None,
        "mode": "shared",
        "size": 2,
        "generation": 1,
        "dynamic": False,
        "members": 1,
        "lag_messages": 4,
        "lag_records": 4,
        "lag_seconds": 7.5,
        "lag_seconds_at_least": False,
        "read_rate": 0.5,
        "trend": -0.25,
        "drain_s": 16,
        "progress": "stalled",
        "partitions": [
            {
                "partition": 0,
                "committed": 3,
                "position": 5,
                "end": 9,
                "lag_messages": 4,
                "lag_seconds": 7.5,
                "lag_seconds_at_least": False,
                "progress": "stalled",
            },
            {
                "partition": 1,
                "committed": None,
                "position": None,
                "end": 0,
                "lag_messages": None,
                "lag_seconds": None,
                "lag_seconds_at_least": False,
                "progress": None,
            },
        ],
    }


def test_writers_and_readers_have_the_heartbeat_of_a_changed_channel(flights: Site) -> None:
    http = flights.rig.http
    flights.attach("writer")
    flights.member()
    http.get(PATH)
    heartbeat = {"interval_ms": 1_000, "timeout_ms": 30_000}
    assert http.put(flights.path, json={"spec": {"heartbeat": heartbeat}}).status_code == 200
    status = http.get(PATH).json()
    assert [endpoint["heartbeat"] for endpoint in (*status["writers"], *status["readers"])] == [
        heartbeat,
        heartbeat,
    ]


def test_before_the_first_sample_values_are_unknown(flights: Site) -> None:
    flights.member()
    status = flights.rig.http.get(PATH).json()
    assert (status["sampled_at"], status["write_rate"], status["partitions"]) == (None, None, [])
    (group,) = status["groups"]
    assert group.items() >= UNKNOWN.items()
    assert (group["members"], group["partitions"]) == (1, [])


def test_each_member_of_a_broadcast_group_has_its_own_row(flights: Site) -> None:
    for index in range(2):
        flights.member(index, 2, mode="broadcast")
    sampled(flights, key="1/g")
    (group,) = flights.rig.http.get(PATH).json()["groups"]
    assert (group["index"], group["mode"], group["members"]) == (1, "broadcast", 2)
    first, second = flights.rig.http.get(PATH).json()["readers"]
    assert (first["progress"], second["progress"]) == (None, "stalled")


@pytest.mark.sample
@pytest.mark.parametrize(
    ("spec", "records"),
    [
        ({}, 4),
        ({"format": "arrow"}, None),
        ({"config": {"cleanup.policy": "compact"}}, None),
        ({"config": {"cleanup.policy": "delete"}}, 4),
    ],
    ids=["avro", "arrow", "compacted", "deleted"],
)
def test_records_are_counted_where_each_offset_holds_one(
    rig: Rig, spec: dict[str, Any], records: int | None
) -> None:
    flights = site(rig, partitions=2, **spec)
    flights.member()
    sampled(flights)
    assert rig.http.get(PATH).json()["groups"][0]["lag_records"] == records


@pytest.mark.long
def test_an_unchanged_status_is_304(flights: Site) -> None:
    reader = flights.member()
    sampled(flights)
    tag = flights.rig.http.get(PATH).headers["etag"]
    assert tag.startswith('W/"')

    def read_status() -> httpx.Response:
        return flights.rig.http.get(PATH, headers={"If-None-Match": tag})

    flights.beat(report(reader, counters={"records": 5}))
    assert (read_status().status_code, read_status().content, read_status().headers["etag"]) == (
        304,
        b"",
        tag,
    )
    sampled(flights, 2)
    assert read_status().status_code == 200
    tag = read_status().headers["etag"]
    flights.beat(report(reader, "started"))
    assert read_status().status_code == 200
    tag = read_status().headers["etag"]
    flights.rig.observe("flights", Phase.CLOSED)
    assert read_status().json()["channel"]["phase"] == "closed"


def test_an_unchanged_status_is_cached_with_the_time_of_the_sample(flights: Site) -> None:
    statuses = Mock(wraps=flights.rig.app.state.parts.statuses)
    flights.rig.replace(statuses=statuses)
    flights.member()
    sampled(flights)
    before = flights.rig.http.get(PATH).json()
    statuses.status.assert_called_once()
    flights.rig.clock.advance(timedelta(seconds=5))
    with flights.rig.database.write() as tx:
        last = sample_store.last(tx, flights.uid)
        assert last is not None
        again = StoredSample(
            number=1, sample=Sample(at=flights.rig.clock(), tracks=last.sample.tracks)
        )
        sample_store.write(
            tx,
            [
                SampleWrite(
                    channel_uid=flights.uid, stored=again, is_new=False, changes_status=False
                )
            ],
        )
    after = flights.rig.http.get(PATH).json()
    assert after == before | {"sampled_at": "2030-01-01T00:00:10.000Z"}
    statuses.status.assert_called_once()


def test_the_list_is_compressed_for_clients_that_accept_gzip(flights: Site) -> None:
    http = flights.rig.http
    plain = http.get("/v1/status", headers={"Accept-Encoding": "identity"})
    packed = http.get("/v1/status", headers={"Accept-Encoding": "gzip"})

    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert {plain.headers["vary"], packed.headers["vary"]} == {"Accept-Encoding"}
    assert packed.json() == plain.json()
    unchanged = {"If-None-Match": packed.headers["etag"], "Accept-Encoding": "gzip"}
    assert http.get("/v1/status", headers=unchanged).status_code == 304


def waiting(
    rig: Rig, pool: ThreadPoolExecutor, path: str, **headers: str
) -> "Future[httpx.Response]":
    """Request a state that differs from the current one, and return once the request waits."""
    changes = rig.app.state.parts.changes
    tag = rig.http.get(path, headers=headers).headers["etag"]
    sent_headers = {"If-None-Match": tag, **headers}
    future = pool.submit(
        httpx.get, rig.url + path, params={"wait": 60}, headers=sent_headers, timeout=90
    )
    until(lambda: changes.waiting == 1)
    return future


@pytest.mark.sample
@pytest.mark.parametrize("path", [PATH, "/v1/status"])
def test_a_wait_ends_with_the_next_sample(flights: Site, path: str) -> None:
    flights.member()
    with ThreadPoolExecutor() as pool:
        future = waiting(flights.rig, pool, path)
        sampled(flights)
        response = future.result(60)
    assert response.status_code == 200
    assert "stalled" in response.text


def test_a_long_poll_of_the_list_ignores_hidden_changes(flights: Site) -> None:
    rig = flights.rig
    hers, all_ = rig.token("read:flights"), rig.token("admin")
    rig.http.headers.update(all_)
    with ThreadPoolExecutor() as pool:
        future = waiting(rig, pool, "/v1/status", **hers)
        looks = threading.Event()
        was = rig.app.state.parts.statuses.page

        def page(**arguments: Any) -> Any:
            looks.set()
            return was(**arguments)

        rig.app.state.parts.statuses.page = page
        rig.put("other")
        assert looks.wait(60)
        assert not future.done()
        sampled(flights)
        response = future.result(60)
    assert [line["channel"]["name"] for line in response.json()["items"]] == ["flights"]


def test_a_long_poll_without_a_change_times_out(flights: Site) -> None:
    for path in (PATH, "/v1/status"):
        tag = flights.rig.http.get(path).headers["etag"]
        response = flights.rig.http.get(path, params={"wait": 0.2}, headers={"If-None-Match": tag})
        assert (response.status_code, response.headers["etag"]) == (304, tag)


def test_a_deleted_channel_ends_the_long_poll_of_its_status(flights: Site) -> None:
    from sluiceway_gateway.provisioning.store import remove

    with ThreadPoolExecutor() as pool:
        future = waiting(flights.rig, pool, PATH)
        with flights.rig.database.write() as tx:
            remove(tx, flights.uid, from_phases=list(Phase))
        assert code(future.result(60)) == "channel_not_found"


@pytest.mark.long
def test_the_status_list_has_a_line_per_channel_in_pages(rig: Rig) -> None:
    sites = {name: site(rig, name, partitions=2) for name in ("a", "b", "c")}
    writers = [sites["b"].attach("writer") for _ in range(3)]
    sites["b"].detach(writers[0], ends={"0": 3})
    sites["b"].detach(writers[1], "error", cause="x")
    sites["b"].member()
    sampled(sites["b"])
    sampled(sites["c"], lag=0)
    page = rig.http.get("/v1/status", params={"limit": 2}).json()
    none = {"live": 0, "lost": 0, "failed": 0, "finished": 0}
    assert page["items"][0] == {
        "channel": rig.http.get("/v1/channels/a/status").json()["channel"],
        "sampled_at": None,
        "writers": none,
        "readers": none,
        "lag_messages": None,
        "lag_seconds": None,
        "lag_seconds_at_least": False,
        "progress": None,
        "write_rate": None,
        "read_rate": None,
        "trend": None,
        "last_heartbeat_at": None,
        "problems": [],
        "more_problems": False,
    }
    line = page["items"][1]
    assert line["writers"] == none | {"live": 1, "failed": 1, "finished": 1}
    assert line["readers"] == none | {"live": 1}
    assert (line["lag_messages"], line["lag_seconds"], line["progress"]) == (4, 7.5, "stalled")
    assert line["trend"] == -0.25
    assert {problem["code"] for problem in line["problems"]} == {"reader_stalled", "writer_failed"}
    (failed,) = [problem for problem in line["problems"] if problem["code"] == "writer_failed"]
    assert (failed["endpoint"], failed["reason"]) == (writers[1]["id"], "x")
    assert line["problems"] == rig.http.get("/v1/channels/b/status").json()["problems"]
    rest = rig.http.get("/v1/status", params={"cursor": page["next_cursor"]}).json()
    (last,) = rest["items"]
    assert rest["next_cursor"] is None
    assert (last["lag_messages"], last["lag_seconds"], last["progress"]) == (0, 0.0, "ok")


def test_the_status_list_contains_only_channels_in_the_tokens_scope(rig: Rig) -> None:
    site(rig, "flights")
    site(rig, "other")
    hers = rig.token("read:fl")
    listed = rig.http.get("/v1/status", headers=hers).json()["items"]
    assert [line["channel"]["name"] for line in listed] == ["flights"]
    assert rig.http.get(PATH, headers=hers).status_code == 200
    assert rig.http.get("/v1/channels/other/status", headers=hers).status_code == 403


@pytest.mark.long
def test_reading_a_status_leaves_no_trace(flights: Site) -> None:
    flights.member()
    sampled(flights)

    def everything() -> list[Any]:
        from sluiceway_gateway.tables import metadata

        with flights.rig.database.read() as tx:
            return [tx.execute(table.select()).all() for table in metadata.sorted_tables]

    before = everything()
    for path in (PATH, "/v1/status", f"{flights.path}/endpoints"):
        tag = flights.rig.http.get(path).headers["etag"]
        flights.rig.http.get(path, params={"wait": 0.1}, headers={"If-None-Match": tag})
    assert everything() == before


def test_a_full_status_cache_evicts_the_least_recently_used() -> None:
    rendered = ResponseCache(limit_bytes=10)
    rendered.put("a", "1", b"12345")
    rendered.put("b", "1", b"12345")
    assert rendered.get("a", "1") == b"12345"
    assert rendered.get("a", "2") is None
    rendered.put("c", "1", b"1")
    assert (rendered.get("a", "1"), rendered.get("b", "1")) == (b"12345", None)
    rendered.put("a", "2", b"x")
    rendered.put("d", "1", b"12345678")
    assert [rendered.get(key, tag) for key, tag in (("c", "1"), ("a", "2"))] == [b"1", b"x"]
    rendered.put("e", "1", b"x" * 11)
    assert rendered.get("e", "1") is None


@pytest.mark.long
def test_the_documented_phases_of_a_status_are_all_phases(flights: Site) -> None:
    schemas = flights.rig.http.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["StatusChannel"]["properties"]["phase"] == {"$ref": "#/components/schemas/Phase"}
    assert schemas["Phase"]["enum"] == list(Phase)


def test_the_last_heartbeat_is_that_of_the_process(flights: Site) -> None:
    writer, reader = flights.attach("writer"), flights.member()
    flights.rig.clock.advance(timedelta(seconds=1))
    flights.beat(report(writer, "started"))
    flights.rig.clock.advance(timedelta(seconds=1))
    flights.beat(report(reader, "started"))
    # A repeated heartbeat is not a new one.
    flights.rig.clock.advance(timedelta(seconds=1))
    flights.beat(report(reader, "started"), beat=1)
    status = flights.rig.http.get(PATH).json()
    assert [
        endpoint["last_heartbeat_at"] for endpoint in (*status["writers"], *status["readers"])
    ] == ["2030-01-01T00:00:02.000Z"] * 2
    (line,) = flights.rig.http.get("/v1/status").json()["items"]
    assert line["last_heartbeat_at"] == "2030-01-01T00:00:02.000Z"


def test_the_times_of_heartbeats_are_up_to_date_though_the_status_is_not(flights: Site) -> None:
    path = f"{flights.path}/heartbeats"
    writer = flights.attach("writer")
    assert flights.rig.http.get(path).json() == {"heartbeats": {}}
    flights.beat(report(writer, "started"))
    before = flights.rig.http.get(PATH).headers["etag"]
    flights.rig.clock.advance(timedelta(seconds=2))
    flights.beat(report(writer, "started"))
    assert flights.rig.http.get(PATH).headers["etag"] == before
    heartbeats = flights.rig.http.get(path).json()["heartbeats"]
    assert heartbeats == {writer["id"]: "2030-01-01T00:00:02.000Z"}
    assert flights.rig.http.get("/v1/channels/nowhere/heartbeats").status_code == 404
