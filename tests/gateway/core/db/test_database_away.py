"""A database that is unavailable, locked, full or silent, or whose connections are lost."""

import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import httpx
import psycopg
import pytest
from sqlalchemy import text

from databases import Postgres, SQLite
from endpoints import Site, report, site
from gateways import SCHEMA, Rig, code, running
from sluiceway_gateway.core.db.engine import FULL_S, Database
from sluiceway_gateway.core.db.leases import Leader
from sluiceway_gateway.core.errors import DatabaseUnavailable, KafkaUnavailable
from waiting import until


@pytest.fixture
def no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways of this test do not request the lease, so only requests use the database."""
    # Replicas request it every second, whatever the settings say.
    monkeypatch.setattr(Leader, "leads", lambda _self: False)


BODY = {"spec": {"schema": SCHEMA}}


def calls(uid: str) -> list[dict[str, Any]]:
    return [
        {"method": "GET", "url": "/v1/channels"},
        {"method": "GET", "url": "/v1/channels/flights"},
        {"method": "GET", "url": "/v1/channels/flights/connection?access=read"},
        {"method": "PUT", "url": "/v1/channels/flights", "json": BODY},
        {"method": "DELETE", "url": f"/v1/channels/flights?uid={uid}"},
    ]


@pytest.mark.sample
@pytest.mark.usefixtures("no_leader")
def test_a_locked_database_is_503_and_loses_nothing(database: Database, database_url: str) -> None:
    with running(database, database_url, database_wait_ms=50) as rig:
        made = rig.put()
        uid = made.json()["metadata"]["uid"]
        lock: Any
        if database.dialect == "sqlite":
            lock = sqlite3.connect(database_url.removeprefix("sqlite:///"), isolation_level=None)
            lock.execute("BEGIN IMMEDIATE")
        else:
            lock = psycopg.connect(database_url.replace("+psycopg", ""))
            lock.execute("LOCK TABLE channels IN EXCLUSIVE MODE")
        changes = [call for call in calls(uid) if call["method"] != "GET"]
        for call in changes:
            response = rig.http.request(**call)
            assert (response.status_code, code(response)) == (503, "database_unavailable")
            assert response.headers["retry-after"] == "1"
            assert response.json()["retriable"]
        assert rig.http.get("/v1/channels/flights").json() == made.json(), "reads go on"
        lock.rollback()
        lock.close()
        until(lambda: rig.put(partitions=2).status_code == 200)


@pytest.mark.long
def test_an_unavailable_database_is_503_on_every_route_until_it_returns(
    database: Database, database_url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if database.dialect == "sqlite":
        # The tables are missing, as without a mounted volume.
        path = Path(database_url.removeprefix("sqlite:///"))
        with running(database, database_url) as rig:
            uid = rig.put().json()["metadata"]["uid"]
            rename(database, "channels", "channels_away")
            check_away(rig, uid)
            rename(database, "channels_away", "channels")
            assert rig.http.get("/v1/channels/flights").status_code == 200
        assert path.exists()
        return
    name = psycopg.conninfo.conninfo_to_dict(database_url.replace("+psycopg", ""))["dbname"]
    server = request.getfixturevalue("postgres").empty().replace("+psycopg", "")
    with (
        running(database, database_url, database_wait_ms=1000) as rig,
        psycopg.connect(server, autocommit=True) as operator,
    ):
        uid = rig.put().json()["metadata"]["uid"]
        operator.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false".encode())
        operator.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        check_away(rig, uid)
        ready = rig.http.get("/readyz")
        assert (ready.status_code, ready.json()["database"]) == (503, False)
        assert ready.json()["reasons"]["database"] == "DatabaseUnavailable"
        operator.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true".encode())
        until(lambda: rig.http.get("/v1/channels/flights").status_code == 200)


@pytest.mark.usefixtures("no_leader")
def test_a_gateway_whose_file_another_process_locks_is_not_ready(sqlite: SQLite) -> None:
    url = sqlite.migrated()
    database = Database(url)
    with (
        closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as other,
        running(database, url, database_wait_ms=50) as rig,
    ):
        fail_checks_of_kafka(rig)
        assert rig.http.get("/readyz").json()["database"] is True
        other.execute("BEGIN EXCLUSIVE")
        ready = rig.http.get("/readyz").json()
        assert (ready["database"], ready["reasons"]["database"]) == (False, "DatabaseUnavailable")
        assert rig.http.get("/v1/channels").status_code == 200
        other.execute("ROLLBACK")
        until(lambda: rig.http.get("/readyz").json()["database"])
    database.close()


def rename(database: Database, old: str, new: str) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA legacy_alter_table = ON")
        connection.exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")


def check_away(rig: Rig, uid: str) -> None:
    for call in calls(uid):
        response = rig.http.request(**call)
        assert (response.status_code, code(response)) == (503, "database_unavailable"), call
        assert response.headers["retry-after"] == "1"
    assert rig.http.get("/livez").status_code == 200


@pytest.mark.long
def test_a_full_disk_is_not_ready(sqlite: SQLite) -> None:
    url = sqlite.migrated()
    with closing(Database(url)) as database, running(database, url) as rig:
        limit_pages(rig.app.state.parts.database, 1)

        def is_refused() -> bool:
            # Free pages in the file take a few channels.
            return rig.put(f"channel-{next(numbers)}").status_code == 503

        numbers = itertools.count()
        until(is_refused)
        ready = rig.http.get("/readyz")
        assert (ready.status_code, ready.json()["database"]) == (503, False)
        assert ready.json()["reasons"]["database"] == "DatabaseUnavailable"
        assert rig.http.get("/v1/channels").status_code == 200
        limit_pages(rig.app.state.parts.database, 1_000_000)
        assert rig.put("after").status_code == 201


def test_writes_count_as_impossible_for_a_while_after_one_that_did_not_fit(sqlite: SQLite) -> None:
    now_s = 0.0
    with closing(Database(sqlite.migrated(), monotonic=lambda: now_s)) as database:
        database.check()
        limit_pages(database, 1)
        with pytest.raises(DatabaseUnavailable), database.write() as tx:
            tx.execute(text("CREATE TABLE large AS SELECT zeroblob(1000000)"))
        limit_pages(database, 1_000_000)
        now_s = FULL_S - 1
        with pytest.raises(DatabaseUnavailable, match="disk is full"):
            database.check()
        now_s = FULL_S
        database.check()


def test_a_postgresql_that_takes_no_changes_is_not_ready(postgres: Postgres) -> None:
    url = postgres.migrated()
    plain = url.replace("+psycopg", "")
    name = psycopg.conninfo.conninfo_to_dict(plain)["dbname"]
    with (
        closing(Database(url)) as database,
        running(database, url) as rig,
        psycopg.connect(plain, autocommit=True) as operator,
    ):

        def set_read_only(value: str) -> None:
            # As after a failover to a standby, connections are new ones.
            setting = f"ALTER DATABASE {name} SET default_transaction_read_only = {value}"
            operator.execute(setting.encode())
            operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

        assert rig.http.get("/readyz").json()["database"]
        set_read_only("on")
        until(lambda: rig.http.get("/v1/channels").status_code == 200)
        refused = rig.put()
        assert (refused.status_code, code(refused)) == (503, "database_unavailable")
        assert "read-only" in refused.json()["detail"]
        ready = rig.http.get("/readyz")
        assert (ready.status_code, ready.json()["database"]) == (503, False)
        assert ready.json()["reasons"]["database"] == "DatabaseUnavailable"
        set_read_only("off")
        until(lambda: rig.put().status_code == 201)
        assert rig.http.get("/readyz").json()["database"]


def limit_pages(database: Database, pages: int) -> None:
    """Limit the size of the file, which stays at least as large as it is."""
    with database.write() as tx:
        tx.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")


#: Every call is answered by then.
ANSWERED_S = 30


#: As psycopg sends it; other statements contain this text.
COMMIT = b"COMMIT\0"


def fail_checks_of_kafka(rig: Rig) -> None:
    """Let `/readyz` and metrics find at once that Kafka is away, which else takes 2 s."""
    away = KafkaUnavailable("away")
    rig.replace(kafka=Mock(answered=lambda _: False, require_cluster=Mock(side_effect=away)))


@contextmanager
def gateway(url: str, **options: Any) -> Iterator[Rig]:
    database = Database(url)
    try:
        with running(database, url, **{"database_wait_ms": 500, **options}) as rig:
            fail_checks_of_kafka(rig)
            yield rig
    finally:
        database.close()


def requests(reader: Any) -> list[Callable[[Site], httpx.Response]]:
    change = {"spec": {"schema": SCHEMA}}
    return [
        lambda flights: flights.rig.http.get("/v1/channels"),
        lambda flights: flights.rig.http.get(flights.path),
        lambda flights: flights.rig.http.get("/v1/status"),
        lambda flights: flights.rig.http.put("/v1/channels/others", json=change),
        lambda flights: flights.rig.http.delete(flights.path, params={"uid": flights.uid}),
        lambda flights: flights.post_attach(),
        lambda flights: flights.post_attach(group="d", dynamic=True),
        lambda flights: flights.send(report(reader), beat=1_000_000),
        lambda flights: flights.commit(reader, 2, (0, 9, 0)),
        lambda flights: flights.detach(reader),
        lambda flights: flights.reset((0, 0, 0), headers={"Idempotency-Key": "a"}),
        lambda flights: flights.rig.http.get(flights.offsets_path("g")),
    ]


@contextmanager
def clients(flights: Site, count: int) -> Iterator[SimpleQueue[Site]]:
    """The same channel through `count` clients, each for one thread at a time.

    The pool of a shared httpx.Client now and then closes an idle connection that another thread
    has just been given, whose request then fails with "Bad file descriptor".
    """
    free: SimpleQueue[Site] = SimpleQueue()
    with ExitStack() as stack:
        for _ in range(count):
            made = httpx.Client(base_url=flights.rig.url, timeout=60, verify=False)  # noqa: S501
            free.put(replace(flights, rig=replace(flights.rig, http=stack.enter_context(made))))
        yield free


def ready(rig: Rig) -> bool:
    return bool(rig.http.get("/readyz").json()["database"])


@pytest.mark.long
@pytest.mark.parametrize("wait_ms", [500, pytest.param(5_000, marks=pytest.mark.long)])
def test_while_postgres_hangs_every_request_is_503(postgres: Postgres, wait_ms: int) -> None:
    with gateway(postgres.migrated(), database_wait_ms=wait_ms) as rig:
        flights = site(rig)
        reader = flights.member()
        assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
        assert ready(rig)
        threads = threading.active_count()

        def check(request: Callable[[Site], httpx.Response]) -> None:
            own = free.get()
            begun_s = time.monotonic()
            response = request(own)
            free.put(own)
            assert time.monotonic() - begun_s < ANSWERED_S
            assert (response.status_code, code(response)) == (503, "database_unavailable")
            assert response.json()["retriable"] is True

        # Many more requests than connections and threads, so that the last ones would wait far too
        # long if each took its own timeout; then again when the outage is known.
        with (
            clients(flights, 120) as free,
            postgres.stopped(),
            ThreadPoolExecutor(120) as pool,
        ):
            for times in (27, 9):
                begun_s = time.monotonic()
                readiness = pool.submit(rig.http.get, "/readyz")
                asked = [pool.submit(check, request) for request in requests(reader) * times]
                for future in asked:
                    future.result()
                # Within Prometheus' timeout.
                metrics = rig.http.get("/metrics")
                assert "sluiceway_database_up 0.0" in metrics.text
                assert readiness.result().json()["reasons"]["database"] == "DatabaseUnavailable"
                assert readiness.result().status_code == 503
                assert time.monotonic() - begun_s < ANSWERED_S
            # Workers, and one for each connection.
            assert threading.active_count() < threads + 120 + 40 + 20
        until(lambda: ready(rig), ANSWERED_S)
        assert flights.committed() == [(0, 5, 0)]
        assert flights.commit(reader, 2, (0, 9, 0)).status_code == 200
        assert flights.committed() == [(0, 9, 0)]


@pytest.mark.long
def test_connections_with_lost_packets_are_replaced_and_commits_continue(
    postgres: Postgres,
) -> None:
    with (
        postgres.relayed() as (relay, url),
        gateway(url, database_wait_ms=5_000) as rig,
    ):
        flights = site(rig)
        reader = flights.member()
        with ThreadPoolExecutor(20) as pool:
            for future in [pool.submit(flights.committed) for _ in range(20)]:
                future.result()
            relay.drop()
            begun_s = time.monotonic()
            looks = [pool.submit(flights.committed) for _ in range(20)]
            assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
            for future in looks:
                future.result()
        assert time.monotonic() - begun_s < ANSWERED_S
        assert ready(rig)


@pytest.mark.usefixtures("no_leader")
@pytest.mark.parametrize("arrives", [pytest.param(True, marks=pytest.mark.long), False])
def test_an_unconfirmed_commit_can_be_repeated(postgres: Postgres, arrives: bool) -> None:
    with postgres.relayed() as (relay, url), gateway(url) as rig:
        flights = site(rig)
        reader = flights.member()
        assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
        relay.drop_at(COMMIT, forward=arrives)
        response = flights.commit(reader, 2, (0, 9, 0))
        assert not relay.drop_pending
        assert (response.status_code, code(response)) == (503, "database_unavailable")
        assert "may or may not" in response.json()["detail"]
        assert response.json()["retriable"] is True
        again = repeated(lambda: flights.commit(reader, 2, (0, 9, 0)))
        assert (again.status_code, again.json()["number"]) == (200, 2)
        assert flights.committed() == [(0, 9, 0)]


@pytest.mark.long
@pytest.mark.usefixtures("no_leader")
@pytest.mark.parametrize("arrives", [pytest.param(True, marks=pytest.mark.long), False])
def test_an_unconfirmed_change_is_made_once(postgres: Postgres, arrives: bool) -> None:
    with postgres.relayed() as (relay, url), gateway(url) as rig:
        flights = site(rig)
        reader = flights.member()
        assert flights.commit(reader, 1, (0, 5, 0)).status_code == 200
        flights.detach(reader)

        def reset() -> httpx.Response:
            return flights.reset((0, 3, 0), headers={"Idempotency-Key": "once"})

        relay.drop_at(COMMIT, forward=arrives)
        assert reset().status_code == 503
        assert not relay.drop_pending
        assert repeated(reset).status_code == 200
        told = rig.http.get(flights.offsets_path("g")).json()
        assert len(told["resets"]) == 1
        assert flights.committed() == [(0, 3, 0)]


def repeated(call: Callable[[], httpx.Response]) -> httpx.Response:
    """Repeat a call until it is not 503: a lost transaction may hold its locks for a while."""
    responses: list[httpx.Response] = []

    def done() -> bool:
        responses.append(call())
        return responses[-1].status_code != 503

    until(done, 3 * ANSWERED_S)
    return responses[-1]
