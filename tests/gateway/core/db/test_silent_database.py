"""A database that does not answer: requests fail fast, and it is used again immediately."""

import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import pytest
from sqlalchemy import make_url, text

from databases import Postgres, SQLite
from faults import at_call, no_threads
from sluiceway_gateway.core.auth.service import LOOPBACK
from sluiceway_gateway.core.changes import Changes
from sluiceway_gateway.core.db import leases
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.leases import Leader
from sluiceway_gateway.core.db.postgresql import CircuitBreaker, connect_arguments
from sluiceway_gateway.core.errors import DatabaseUnavailable
from sluiceway_gateway.endpoints import session_store
from sluiceway_gateway.loops import Loop
from waiting import until

#: Every call is answered by then.
ANSWERED_S = 30
#: The database's `wait_ms`; the rest of the time does not scale with it.
SHORT_MS = 500


@contextmanager
def opened(url: str, **options: int) -> Iterator[Database]:
    database = Database(url, wait_ms=SHORT_MS, **options)
    try:
        yield database
    finally:
        database.close()


@pytest.fixture
def silent(postgres: Postgres) -> Iterator[Database]:
    """A database on a server that the test stops, with connections in use."""
    with opened(postgres.migrated()) as database:
        look(database)
        yield database


def look(database: Database) -> None:
    with database.read() as tx:
        tx.execute(text("SELECT 1"))


def change(database: Database) -> None:
    with database.write() as tx:
        leases.acquire(tx, "l", "me", 60_000)


def responses(call: Callable[[Database], object], database: Database) -> bool:
    try:
        call(database)
    except DatabaseUnavailable:
        return False
    return True


def seconds_to_refuse(call: Callable[[Database], object], database: Database) -> float:
    begun_s = time.monotonic()
    with pytest.raises(DatabaseUnavailable):
        call(database)
    return time.monotonic() - begun_s


@pytest.mark.long
def test_a_connection_for_notifications_whose_packets_are_lost_is_replaced(
    postgres: Postgres,
) -> None:
    failures: list[int] = []
    with postgres.relayed() as (relay, url), opened(url) as database:
        changes = Changes(
            database, limit=1, reread_s=60, on_pass=lambda _name, number: failures.append(number)
        )
        changes.start()
        try:
            until(lambda: failures == [0])
            relay.drop()
            until(lambda: failures == [0, 1, 0], ANSWERED_S)
        finally:
            changes.stop()


@pytest.mark.sample
@pytest.mark.parametrize("prepared", [False, True])
def test_a_statement_without_an_answer_ends_the_transaction(
    postgres: Postgres, silent: Database, prepared: bool
) -> None:
    def stuck(database: Database) -> None:
        with database.write() as tx:
            leases.acquire(tx, "l", "me", 60_000)
            with postgres.stopped():
                if prepared:
                    session_store.beat(tx, "unknown", 1, principal=LOOPBACK, now=datetime.now(UTC))
                else:
                    leases.current(tx, "l")

    assert seconds_to_refuse(stuck, silent) < ANSWERED_S
    until(lambda: responses(look, silent), ANSWERED_S)
    assert holder(silent) is None


def holder(database: Database) -> str | None:
    with database.read() as tx:
        lease = leases.current(tx, "l")
    return lease and lease.holder


def test_a_silent_server_fails_queued_requests_fast_and_is_used_when_it_answers(
    postgres: Postgres, silent: Database
) -> None:
    """With few threads that each wait, the last call would wait for minutes."""
    with postgres.stopped(), ThreadPoolExecutor(4) as pool:
        begun_s = time.monotonic()
        calls = [pool.submit(seconds_to_refuse, call, silent) for call in (look, change) * 50]
        for future in calls:
            future.result()
        assert time.monotonic() - begun_s < 40
    until(lambda: responses(look, silent), ANSWERED_S)
    change(silent)


def test_loops_resume_when_the_server_answers_again(postgres: Postgres, silent: Database) -> None:
    leader = Leader(
        database=silent, name="l", holder="me", lease_ms=1_000, monotonic=time.monotonic
    )
    passes = threading.Semaphore(0)

    def run_once() -> float:
        change(silent)
        passes.release()
        return 0.01

    stopping = threading.Event()
    loop = Loop(name="l", leader=leader, run_once=run_once, stopping=stopping, retry_s=0.01)
    loop.start()
    assert passes.acquire(timeout=30)
    with postgres.stopped():
        assert seconds_to_refuse(look, silent) < ANSWERED_S
        while passes.acquire(blocking=False):
            pass
    assert passes.acquire(timeout=ANSWERED_S)
    assert loop.stop(ANSWERED_S)


def waiting_threads() -> int:
    """Return the number of a database's own threads."""
    return sum(thread.name in {"connect", "database-probe"} for thread in threading.enumerate())


def test_an_unresolvable_host_name_fails_fast(postgres: Postgres) -> None:
    released = threading.Event()
    # Another name of 127.0.0.1, which only this test uses.
    name = "127.1"

    def hold(host: str, *_: object, **__: object) -> None:
        if host == name:
            assert released.wait(60)

    with (
        # The resolver is the machine's.
        at_call(socket, "getaddrinfo", hold),
        postgres.relayed() as (_, url),
        opened(url.replace("127.0.0.1", name), pool_size=2) as database,
    ):
        try:
            with ThreadPoolExecutor(4) as pool:
                begun_s = time.monotonic()
                calls = [pool.submit(seconds_to_refuse, look, database) for _ in range(4)]
                for future in calls:
                    future.result()
                assert time.monotonic() - begun_s < ANSWERED_S
            # The connecting threads, and one that waits for a free one.
            assert waiting_threads() <= 2 + 1
        finally:
            released.set()
        until(lambda: responses(look, database), ANSWERED_S)
        until(lambda: waiting_threads() == 0, ANSWERED_S)


def test_the_database_is_used_again_once_threads_can_be_started(postgres: Postgres) -> None:
    breaker = CircuitBreaker(lambda: None)
    with opened(postgres.migrated(), pool_size=1) as database:
        with no_threads():
            for call in (breaker.trip, lambda: look(database)):
                with pytest.raises(RuntimeError, match="new thread"):
                    call()
        breaker.check()
        look(database)


def test_a_locked_file_fails_queued_requests_fast(sqlite: SQLite) -> None:
    url = sqlite.migrated()
    path = url.removeprefix("sqlite:///")
    with (
        opened(url) as database,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        change(database)
        other.execute("BEGIN EXCLUSIVE")
        with ThreadPoolExecutor(4) as pool:
            begun_s = time.monotonic()
            calls = [pool.submit(seconds_to_refuse, change, database) for _ in range(400)]
            for future in calls:
                future.result()
            # Four at a time, the calls would take twice as long.
            assert time.monotonic() - begun_s < 25
        look(database)
        other.execute("ROLLBACK")
        until(lambda: responses(change, database), ANSWERED_S)


@pytest.mark.parametrize(
    ("url", "attempt_s"),
    [
        ("postgresql://h/d", 2),
        ("postgresql:///d?host=/run/postgresql", 5),
        ("postgresql://me@/d?host=a,b,c", 2),
    ],
)
def test_each_of_several_addresses_has_its_own_connect_timeout(url: str, attempt_s: int) -> None:
    assert connect_arguments(make_url(url), wait_ms=5_000)["connect_timeout"] == attempt_s


def test_tcp_options_of_the_url_override_the_defaults() -> None:
    arguments = connect_arguments(make_url("postgresql://h/d"), wait_ms=5_000)
    assert (arguments["tcp_user_timeout"], arguments["keepalives"]) == (5_000, 1)
    url = make_url("postgresql://h/d?keepalives_idle=60&tcp_user_timeout=9000&connect_timeout=7")
    assert arguments.keys() - connect_arguments(url, wait_ms=5_000).keys() == set(url.query)


def test_options_of_the_url_are_added_to_the_gateways(postgres: Postgres) -> None:
    own = {"options": "-c search_path=flights -c lock_timeout=7s", "application_name": "gates"}
    url = make_url(postgres.empty()).update_query_dict(own).render_as_string(False)
    with opened(url) as database, database.read() as tx:
        names = ("search_path", "lock_timeout", "statement_timeout", "application_name")
        values = [tx.execute(text(f"SHOW {name}")).scalar_one() for name in names]
    assert values == ["flights", "7s", "2500ms", "gates"]
