import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event, text

from sluiceway_gateway.core.db import leases
from sluiceway_gateway.core.db.engine import Database, ReadTransaction
from sluiceway_gateway.core.errors import DatabaseUnavailable, InvalidSettings


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "not a URL"),
        ("mysql://h/d", "'mysql'"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
    ],
)
def test_an_unsupported_database_url_is_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        Database(url)


def test_a_password_is_never_shown() -> None:
    database = Database("postgresql://me:geheim@127.0.0.1:1/x")
    assert "geheim" not in repr(database)


def test_sqlite_is_durable_through_a_power_loss(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'a.db'}")
    for begun in (database.read, database.write):
        with begun() as tx:
            assert tx.execute(text("PRAGMA synchronous")).scalar_one() == 2
            assert tx.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
            assert tx.execute(text("PRAGMA foreign_keys")).scalar_one() == 1
    database.close()


@pytest.mark.long
def test_a_new_file_can_be_opened_concurrently(tmp_path: Path) -> None:
    at_once = threading.Barrier(8)

    def opened(url: str) -> None:
        database = Database(url)
        at_once.wait()
        try:
            with database.read():
                pass
        finally:
            database.close()

    with ThreadPoolExecutor(at_once.parties) as pool:
        for number in range(100):
            url = f"sqlite:///{tmp_path / str(number)}"
            assert list(pool.map(opened, [url] * at_once.parties)) == [None] * at_once.parties


def test_a_new_file_locked_by_another_is_awaited_for_a_limited_time(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    database = Database(f"sqlite:///{path}", wait_ms=50)

    def open_it() -> None:
        with database.read():
            pass

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseUnavailable, match="locked"):
            open_it()
        other.execute("ROLLBACK")
    open_it()
    database.close()


@pytest.mark.sample
def test_a_failed_transaction_leaves_no_rows(database: Database) -> None:
    def fail() -> None:
        with database.write() as tx:
            leases.acquire(tx, "l", "me", 60_000)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with database.read() as tx:
        assert leases.current(tx, "l") is None


@pytest.mark.sample
@pytest.mark.parametrize("failure", [RuntimeError(), sqlite3.OperationalError(), None])
def test_work_after_a_failed_transaction_is_not_part_of_it(
    database: Database, failure: Exception | None
) -> None:
    def fail() -> None:
        with database.write() as tx:
            leases.acquire(tx, "failed", "me", 60_000)
            if failure is not None:
                raise failure
            tx.execute(text("SELECT * FROM nowhere"))

    for name in ("l", "m"):
        with pytest.raises((RuntimeError, DatabaseUnavailable)):
            fail()
        with database.write() as tx:
            leases.acquire(tx, name, "me", 60_000)
    with database.read() as tx:
        held = [leases.current(tx, name) is not None for name in ("failed", "l", "m")]
    assert held == [False, True, True]


def test_an_interrupted_transaction_is_rolled_back_and_the_next_one_works(
    database: Database,
) -> None:
    def interrupt(*_: object) -> None:
        event.remove(database.engine, "do_execute", interrupt)
        raise KeyboardInterrupt

    def write() -> None:
        with database.write() as tx:
            leases.acquire(tx, "undone", "me", 60_000)
            event.listen(database.engine, "do_execute", interrupt)
            tx.execute(text("SELECT 1"))

    with pytest.raises(KeyboardInterrupt):
        write()
    with database.write() as tx:
        leases.acquire(tx, "kept", "me", 60_000)
    with database.read() as tx:
        held = [leases.current(tx, name) is not None for name in ("undone", "kept")]
    assert held == [False, True]


def test_sqlites_writer_uses_no_reader_connection_and_reopens_after_close(
    tmp_path: Path,
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'a.db'}", pool_size=1, wait_ms=50)
    for _ in range(2):
        with database.write() as tx:
            tx.execute(text("CREATE TABLE IF NOT EXISTS t (x INTEGER)"))
            tx.execute(text("INSERT INTO t VALUES (1)"))
            with database.read() as other:
                assert other.execute(text("SELECT 1")).scalar_one() == 1
            # A connection in use stays open.
            database.close()
        database.close()
    with database.read() as tx:
        assert tx.execute(text("SELECT count(*) FROM t")).scalar_one() == 2
    database.close()


def test_connections_in_use_at_close_are_closed_when_returned(
    database_url: str,
) -> None:
    database = Database(database_url)
    opened: list[object] = []
    event.listen(database.engine, "connect", lambda raw, _: opened.append(raw))
    event.listen(database.engine, "close", lambda raw, _: opened.remove(raw))

    with database.read():
        database.close()
        assert len(opened) == 1
    assert opened == []
    # A late caller gets the same error, and leaves no connection open.
    with database.read() as tx:
        assert tx.execute(text("SELECT 1")).scalar_one() == 1
    assert opened == []


def test_a_reader_is_not_blocked_by_a_writer(database: Database) -> None:
    with database.write() as tx:
        leases.acquire(tx, "l", "me", 60_000)
        with database.read() as other:
            assert leases.current(other, "l") is None


def test_a_database_locked_by_others_is_unavailable(database: Database, database_url: str) -> None:
    impatient = Database(database_url, wait_ms=50)

    def take() -> None:
        with impatient.write() as other:
            leases.acquire(other, "l", "you", 60_000)

    with database.write() as tx:
        leases.acquire(tx, "l", "me", 60_000)
        with pytest.raises(DatabaseUnavailable):
            take()
    impatient.close()


def test_a_writer_of_the_same_process_waits_for_its_turn_only(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'a.db'}", wait_ms=50)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with database.write():
            held.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    with pytest.raises(DatabaseUnavailable, match="busy"), database.write():
        raise AssertionError
    done.set()
    thread.join(20)
    with database.write():
        pass
    database.close()


def test_an_unreachable_database_is_unavailable(tmp_path: Path) -> None:
    for url in (
        "postgresql://me@127.0.0.1:1/x",
        f"sqlite:///{tmp_path / 'no' / 'such' / 'folder' / 'a.db'}",
    ):
        database = Database(url, wait_ms=1000)
        with pytest.raises(DatabaseUnavailable), database.read():
            raise AssertionError
        with pytest.raises(DatabaseUnavailable), database.write():
            raise AssertionError


def test_a_database_without_tables_is_unavailable(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    with pytest.raises(DatabaseUnavailable), database.read() as tx:
        leases.current(tx, "l")
    database.close()


def test_a_file_that_is_not_a_database_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"this is not a database" * 100)
    database = Database(f"sqlite:///{path}")
    with pytest.raises(DatabaseUnavailable), database.read():
        raise AssertionError


def test_connections_closed_by_the_server_are_replaced(
    database: Database, database_url: str
) -> None:
    if database.dialect == "sqlite":
        sqlite3.connect(database_url.removeprefix("sqlite:///")).close()
        return
    with database.read():
        pass
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    with database.read() as tx:
        assert leases.current(tx, "l") is None


def test_an_exhausted_pool_is_unavailable(database_url: str, database: Database) -> None:
    small = Database(database_url, pool_size=1, wait_ms=50)
    with small.read(), pytest.raises(DatabaseUnavailable, match="in use"), small.read():
        raise AssertionError
    small.close()


def test_the_connection_that_was_used_last_is_used_next(database: Database) -> None:
    def driver(tx: ReadTransaction) -> object:
        return tx.connection.connection.dbapi_connection

    with database.read() as first:
        last = driver(first)
        with database.read() as second:
            assert driver(second) is not last
    for _ in range(3):
        with database.read() as tx:
            assert driver(tx) is last
