import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import httpx
import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from databases import Postgres
from endpoints import Site, site
from gateways import TOPIC_ID, Rig, code, running
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.provisioning.store import remove
from waiting import until

PATH = "/v1/channels/flights"
# Reading the system's certificate authorities takes 20 ms each time.
NOBODY_TO_TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def wait(rig: Rig, etag: str, seconds: float = 60) -> httpx.Response:
    return httpx.get(
        f"{rig.url}{PATH}",
        params={"wait": seconds},
        headers={"If-None-Match": etag},
        timeout=480,
        verify=NOBODY_TO_TRUST,
    )


def start_waiting(rig: Rig, pool: ThreadPoolExecutor, etag: str) -> "Future[httpx.Response]":
    changes = rig.app.state.parts.changes
    before = changes.waiting
    waiting = pool.submit(wait, rig, etag)
    until(lambda: changes.waiting == before + 1)
    return waiting


def test_an_unchanged_channel_is_304(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    response = rig.http.get(PATH, headers={"If-None-Match": etag})
    assert (response.status_code, response.content) == (304, b"")
    assert response.headers["etag"] == etag
    assert rig.http.get(PATH, headers={"If-None-Match": '"other"'}).status_code == 200


def test_a_wait_without_a_change_times_out(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    begun = time.monotonic()
    assert wait(rig, etag, 0.2).status_code == 304
    assert time.monotonic() - begun >= 0.2


def test_a_wait_with_an_old_etag_ends_at_once(rig: Rig) -> None:
    rig.put()
    assert wait(rig, '"other"').status_code == 200
    assert rig.http.get(PATH, params={"wait": 30}).status_code == 200


def test_a_change_by_this_replica_ends_the_wait(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    with ThreadPoolExecutor() as pool:
        waiting = start_waiting(rig, pool, etag)
        rig.put(partitions=2)
        response = waiting.result(60)
    assert response.status_code == 200
    assert response.json()["spec"]["partitions"] == 2


def test_an_observation_ends_the_wait(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    with ThreadPoolExecutor() as pool:
        waiting = start_waiting(rig, pool, etag)
        rig.observe("flights", Phase.READY)
        assert waiting.result(60).json()["status"]["phase"] == "ready"


@contextmanager
def two_replicas(url: str) -> Iterator[tuple[Rig, Rig]]:
    """Run two gateways on one database."""
    with (
        closing(Database(url)) as first,
        closing(Database(url)) as second,
        running(first, url) as one,
        running(second, url) as other,
    ):
        yield one, other


def listeners(database: Database) -> list[int]:
    """Return the processes of the server whose connections are for notifications."""
    statement = text(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND (query LIKE 'LISTEN %' OR query LIKE 'SELECT pg_notify(%')"
    )
    with database.read() as tx:
        return list(tx.execute(statement).scalars())


def until_replaced(database: Database, lost: set[int]) -> None:
    until(lambda: len(set(listeners(database)) - lost) == 2)


def change_channel(flights: Site) -> None:
    flights.rig.put(partitions=8)


def attach_reader(flights: Site) -> None:
    flights.attach()


def commit_offsets(flights: Site) -> None:
    flights.commit(flights.member(), 1, (0, 5, 0))


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (PATH, change_channel),
        (f"{PATH}/endpoints", attach_reader),
        (f"{PATH}/status", attach_reader),
        ("/v1/status", change_channel),
        (f"{PATH}/groups/g/offsets/passed", commit_offsets),
    ],
)
def test_a_change_by_another_replica_ends_the_wait(
    postgres: Postgres, path: str, change: Callable[[Site], None]
) -> None:
    with two_replicas(postgres.migrated()) as (one, other), ThreadPoolExecutor() as pool:
        flights = site(other, partitions=4)
        until(lambda: len(listeners(one.database)) == 2)
        waiting = pool.submit(wait_at, one, path, flights)
        until(lambda: one.app.state.parts.changes.waiting == 1)
        change(flights)
        # Without the change, it ends with a 304.
        assert waiting.result(60).status_code == 200


def wait_at(rig: Rig, path: str, flights: Site) -> httpx.Response:
    """Wait at a replica for a change of the present state."""
    if path.endswith("/passed"):
        body = {"uid": flights.uid, "topic_id": TOPIC_ID, "offsets": {"0": 5}}
        response = httpx.post(f"{rig.url}{path}?wait=60", json=body, timeout=90)
        assert response.json()["passed"]
        return response
    etag = rig.http.get(path).headers["etag"]
    return rig.http.get(path, params={"wait": 60}, headers={"If-None-Match": etag}, timeout=90)


def test_a_change_without_a_notification_is_found_later(
    database: Database, database_url: str
) -> None:
    with running(database, database_url, watch_poll_ms=100) as rig, ThreadPoolExecutor() as pool:
        database.on_commit = lambda _changes: None
        waiting = start_waiting(rig, pool, rig.put().headers["etag"])
        rig.observe("flights", Phase.READY)
        assert waiting.result(60).json()["status"]["phase"] == "ready"


def test_a_lost_connection_for_notifications_is_replaced(postgres: Postgres) -> None:
    with two_replicas(postgres.migrated()) as (one, other), ThreadPoolExecutor() as pool:
        etag = one.put().headers["etag"]
        until(lambda: len(listeners(one.database)) == 2)
        for partitions in (2, 3):
            lost = set(listeners(one.database))
            waiting = start_waiting(one, pool, etag)
            with capture_logs() as logs:
                with one.database.write() as tx:
                    for process in lost:
                        tx.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": process})
                # Neither replica has a connection for notifications now.
                etag = other.put(partitions=partitions).headers["etag"]
                assert waiting.result(60).json()["spec"]["partitions"] == partitions
                until_replaced(one.database, lost)
            failed = [entry["event"] for entry in logs if entry.get("loop") == "notifications"]
            assert failed.count("pass failed, retrying") >= 2
        for rig in (one, other):
            failures = 'sluiceway_loop_consecutive_failures{loop="notifications"} 0.0'
            assert failures in rig.http.get("/metrics").text


def test_a_wait_for_a_deleted_channel_ends_with_404(rig: Rig) -> None:
    made = rig.put()
    with ThreadPoolExecutor() as pool:
        waiting = start_waiting(rig, pool, made.headers["etag"])
        with rig.database.write() as tx:
            remove(tx, made.json()["metadata"]["uid"], from_phases=list(Phase))
        assert code(waiting.result(60)) == "channel_not_found"


@pytest.mark.long
def test_hundreds_of_long_polls_do_not_block_other_requests(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    changes = rig.app.state.parts.changes
    with ThreadPoolExecutor(200) as pool:
        waiting = [pool.submit(wait, rig, etag) for _ in range(200)]
        until(lambda: changes.waiting == 200)
        rig.put(partitions=2)
        assert {future.result(60).status_code for future in waiting} == {200}
    until(lambda: changes.waiting == 0)


def test_a_disconnected_client_ends_its_wait(rig: Rig) -> None:
    etag = rig.put().headers["etag"]
    changes = rig.app.state.parts.changes
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(
            f"{rig.url}{PATH}?wait=60",
            headers={"If-None-Match": etag},
            timeout=httpx.Timeout(10, read=0.2),
        )
    until(lambda: changes.waiting == 0)


def test_waits_over_the_limit_are_refused(database: Database, database_url: str) -> None:
    with (
        running(database, database_url, max_waiters=1) as rig,
        ThreadPoolExecutor() as pool,
    ):
        etag = rig.put().headers["etag"]
        waiting = start_waiting(rig, pool, etag)
        response = wait(rig, etag)
        assert (response.status_code, code(response)) == (503, "too_many_waiters")
        assert response.headers["retry-after"] == "1"
        rig.put(partitions=2)
        assert waiting.result(60).status_code == 200


def test_a_stopping_gateway_answers_waiting_requests(database: Database, database_url: str) -> None:
    before = threads_of_gateways()
    with ThreadPoolExecutor() as pool:
        with running(database, database_url) as rig:
            waiting = start_waiting(rig, pool, rig.put().headers["etag"])
            begun = time.monotonic()
        assert waiting.result(60).status_code == 304
        assert time.monotonic() - begun < 45
    until(lambda: threads_of_gateways() <= before)


def threads_of_gateways() -> set[threading.Thread]:
    """The threads of this process, but for those of clients, which other tests have left."""
    return {t for t in threading.enumerate() if not t.name.startswith("sluiceway-")}


@pytest.mark.parametrize("seconds", ["-1", "61", "nan", "inf", "soon", ""])
def test_an_invalid_wait_is_refused(shared_rig: Rig, seconds: str) -> None:
    response = shared_rig.http.get(PATH, params={"wait": seconds})
    assert (response.status_code, code(response)) == (422, "invalid_request")


@pytest.mark.sample
@pytest.mark.parametrize("path", [PATH, f"{PATH}/endpoints", f"{PATH}/status", "/v1/status"])
def test_a_token_that_is_revoked_during_a_wait_does_not_see_the_change(
    flights: Site, path: str
) -> None:
    rig = flights.rig
    admin, mine = rig.token("admin"), rig.token("read")
    rig.http.headers.update(admin)
    etag = rig.http.get(path).headers["etag"]
    changes = rig.app.state.parts.changes
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(
            httpx.get,
            f"{rig.url}{path}",
            params={"wait": 60},
            headers=mine | {"If-None-Match": etag},
            timeout=480,
            verify=NOBODY_TO_TRUST,
        )
        until(lambda: changes.waiting == 1)
        rig.tokens.revoke(mine["Authorization"].split("_")[1])
        flights.attach()
        rig.put(partitions=8)
        response = waiting.result(60)
    assert (response.status_code, code(response)) == (401, "unauthenticated")
