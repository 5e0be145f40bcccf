import itertools
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from databases import Postgres, SQLite
from gateways import SCHEMA, Rig, code, running
from sluiceway_gateway.db.engine import FULL_S, Database
from sluiceway_gateway.errors import DatabaseUnavailable
from waiting import until

BODY = {"spec": {"schema": SCHEMA}}


def calls(uid: str) -> list[dict[str, Any]]:
    return [
        {"method": "GET", "url": "/v1/channels"},
        {"method": "GET", "url": "/v1/channels/flights"},
        {"method": "GET", "url": "/v1/channels/flights/connection?access=read"},
        {"method": "PUT", "url": "/v1/channels/flights", "json": BODY},
        {"method": "DELETE", "url": f"/v1/channels/flights?uid={uid}"},
    ]


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
        changes = [each for each in calls(uid) if each["method"] != "GET"]
        for call in changes:
            response = rig.http.request(**call)
            assert (response.status_code, code(response)) == (503, "database_unavailable")
            assert response.headers["retry-after"] == "1"
            assert response.json()["retriable"]
        assert rig.http.get("/v1/channels/flights").json() == made.json(), "reads go on"
        lock.rollback()
        lock.close()
        until(lambda: rig.put(partitions=2).status_code == 200)


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
        rig.fail_checks_of_kafka()
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
