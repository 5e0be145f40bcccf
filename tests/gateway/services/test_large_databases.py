"""Loops do their work however many rows there are."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from crowds import crowd
from gateway_rig import NOBODY, TurnedClock
from sqlalchemy import event, func, select, text, update

from databases import Postgres
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.db.schema import endpoints
from sluiceway_gateway.endpoints.liveness import LostEnds, Reaper
from sluiceway_gateway.endpoints.model import Role
from sluiceway_gateway.endpoints.store import find_all, on_sides
from sluiceway_gateway.kafka.admin import KafkaAdmin
from sluiceway_gateway.lifecycle.idle import TtlReaper
from sluiceway_gateway.offsets.mirror import Mirror
from sluiceway_gateway.status import sample_store
from sluiceway_gateway.status.sampler import Sampler

SUSPECT_S, LOST_S = 6.5, 121.0


class Looks:
    """Loops on one database, whose time passes while they work and when a test turns it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.turned_s = 0.0
        kafka = KafkaAdmin(NOBODY, timeout_s=0.1)
        clock = TurnedClock()
        dated: dict[str, Any] = {
            "database": database,
            "clock": clock,
            "monotonic": lambda: time.monotonic() + self.turned_s,
        }
        self.reaper = Reaper(**dated)
        self.sampler = Sampler(kafka=kafka, **dated)
        self.mirror = Mirror(kafka=kafka, prefix="", **dated)
        self.idler = TtlReaper(logs=kafka, **dated)
        self.ends = LostEnds(
            database=database, topics=kafka, monotonic=lambda: time.monotonic() + self.turned_s
        )

    def pass_once(self) -> None:
        """Have the reaper look once, and rest."""
        pause_s = self.reaper.run_once().pause_s
        self.turned_s += pause_s

    def reap(self, seconds: float) -> int:
        """Let time pass, in which nobody beats; return how many passes it took to see that."""
        self.turned_s += seconds
        self.reaper._due_s = None
        passes = 1
        while self.reaper.run_once().pause_s == 0:
            passes += 1
        return passes

    def health(self) -> dict[str, int]:
        with self.database.read() as tx:
            statement = select(endpoints.c.health, func.count().label("number")).group_by(
                endpoints.c.health
            )
            return {row.health: row.number for row in tx.execute(statement)}


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_no_statement_has_more_parameters_the_more_rows_there_are(
    database: Database, database_url: str
) -> None:
    crowd(database, channels=700, endpoints=700)
    small = Database(database_url)

    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 600)

    event.listen(small.engine, "connect", prepare)
    looks = Looks(small)
    looks.reaper.run_once()
    looks.reap(SUSPECT_S)
    assert looks.health() == {"suspect": 700}
    looks.sampler.run_once()
    looks.reap(LOST_S)
    assert looks.health() == {"lost": 700}
    looks.ends.run_once()
    looks.mirror.run_once()
    looks.idler.run_once()
    small.close()


def slow(database: Database, looks: Looks, seconds: Callable[[], float]) -> None:
    """Have each query for beats take some seconds."""

    def query(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        if statement.startswith("SELECT") and "FROM sessions" in statement:
            looks.turned_s += seconds()

    event.listen(database.engine, "after_cursor_execute", query)


def test_a_pass_that_takes_longer_than_a_beat_finds_the_silent_all_the_same(
    database: Database,
) -> None:
    crowd(database, channels=1, endpoints=3)
    looks = Looks(database)
    slow(database, looks, lambda: 5.0)
    passes = 0
    while looks.health() != {"lost": 3}:
        looks.pass_once()
        passes += 1
        assert passes < 40


def test_a_process_that_stands_still_within_a_pass_makes_nobody_lost(database: Database) -> None:
    crowd(database, channels=1, endpoints=3)
    looks = Looks(database)
    stands_s = iter([0.0, 0.0, 3600.0])
    slow(database, looks, lambda: next(stands_s, 0.0))
    for _ in range(5):
        looks.pass_once()
    assert next(stands_s, None) is None
    assert looks.health() == {"healthy": 3}


def test_many_that_fall_silent_together_are_written_in_several_passes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluiceway_gateway.endpoints.liveness._AT_ONCE", 3)
    monkeypatch.setattr("sluiceway_gateway.endpoints.liveness._PASS", 6)
    monkeypatch.setattr("sluiceway_gateway.db.statements.KEYS_AT_ONCE", 2)
    monkeypatch.setattr("sluiceway_gateway.db.statements._KEYS_AT_ONCE", 2)
    crowd(database, channels=4, endpoints=20)
    looks = Looks(database)
    looks.reaper.run_once()
    assert looks.reap(SUSPECT_S) == 4
    assert looks.health() == {"suspect": 20}
    assert looks.reap(LOST_S) == 4
    assert looks.health() == {"lost": 20}


def test_who_is_silent_is_read_when_it_may_be_worse_and_not_before(database: Database) -> None:
    crowd(database, channels=1, endpoints=3)
    looks = Looks(database)
    looks.reaper.run_once()

    def judged(seconds: float) -> int:
        looks.turned_s += seconds
        looks.reaper._due_s = None
        return looks.reaper.run_once().judged

    assert [judged(seconds) for seconds in (3, 2, 1.5, 1, 100, 20)] == [0, 0, 3, 0, 0, 3]
    assert looks.health() == {"lost": 3}


@pytest.mark.parametrize("loop", ["reaper", "sampler", "mirror", "idler", "ends"])
def test_rows_are_made_something_of_when_no_transaction_is_open(
    postgres: Postgres, loop: str
) -> None:
    """PostgreSQL ends sessions that do that within one."""
    many = 200
    database = Database(postgres.migrated())
    crowd(database, channels=many, endpoints=many)
    with database.write() as tx:
        tx.execute(update(endpoints).values(health="lost" if loop == "ends" else "healthy"))
    looks, found = Looks(database), []

    def fetched(connection: Any, cursor: psycopg.Cursor[Any], *_others: object) -> None:
        if cursor.rowcount >= many:
            found.append(cursor.connection.info.transaction_status)

    event.listen(database.engine, "after_cursor_execute", fetched)
    getattr(looks, loop).run_once()
    assert found
    assert set(found) == {psycopg.pq.TransactionStatus.IDLE}
    database.close()


def test_channels_with_endpoints_or_positions_are_found_though_memory_is_short(
    postgres: Postgres,
) -> None:
    url = postgres.migrated()
    with closing(Database(url)) as made:
        crowd(made, channels=8_000, endpoints=16_000)
        with made.engine.connect() as connection:
            name = connection.engine.url.database
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET work_mem = '64kB'")
            connection.commit()
    with closing(Database(url)) as database, database.scan() as tx:
        tx.execute(text("SET statement_timeout = '1s'"))
        assert len(sample_store.channels_with_readers(tx)) == 8_000


def test_lost_writers_are_noted_in_parts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluiceway_gateway.endpoints.liveness._AT_ONCE", 2)
    crowd(database, channels=2, endpoints=5)
    with database.write() as tx:
        tx.execute(update(endpoints).values(health="lost"))
    looks = Looks(database)
    # Kafka is away: each is asked for once, and again later.
    assert [looks.ends.run_once().pause_s for _ in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_a_session_at_very_many_channels_is_told_of_all_of_their_sides(database: Database) -> None:
    """SQLite takes only so deep a condition."""
    crowd(database, channels=1_100, endpoints=1_100)
    sides = {(f"uid-{number}", Role.WRITER) for number in range(1_100)}
    with database.read() as tx:
        assert {len(each) for each in on_sides(tx, sides).values()} == {1}


def test_a_look_up_of_very_many_keys_finds_each_once(database: Database) -> None:
    """PostgreSQL takes 65,535 parameters."""
    crowd(database, channels=1, endpoints=9)
    ids = [f"endpoint-{number}" for number in range(20_000)]
    with database.read() as tx:
        assert find_all(tx, [*ids, *ids]).keys() == set(ids[:9])


@pytest.mark.long
def test_with_150_000_endpoints_all_loops_do_their_work(postgres: Postgres) -> None:
    many = 150_000
    url = postgres.migrated()
    with closing(Database(url, wait_ms=300_000)) as made:
        crowd(made, channels=3_000, endpoints=many)
    with closing(Database(url)) as database:
        looks = Looks(database)
        looks.reaper.run_once()
        assert looks.sampler.run_once().sampled == 3_000
        looks.mirror.run_once()
        looks.idler.run_once()
        for _ in range(5):
            looks.reap(LOST_S)
            if looks.health() == {"lost": many}:
                break
            # Where the machine stands still for seconds, the reaper counts anew for all that it has
            # not come to.
        assert looks.health() == {"lost": many}
        looks.ends.run_once()
        with database.scan() as tx:
            assert len(sample_store.channels_with_readers(tx)) == 3_000
