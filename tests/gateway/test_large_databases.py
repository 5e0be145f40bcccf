"""Background loops on databases with very many rows."""

import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, func, select, text, update

from databases import Postgres
from gateways import UNREACHABLE, ManualClock
from sluiceway_gateway.core.auth.service import LOOPBACK, Tokens
from sluiceway_gateway.core.db.engine import Database, ReadTransaction
from sluiceway_gateway.core.db.statements import KEYS_AT_ONCE, chunks
from sluiceway_gateway.core.errors import DatabaseUnavailable
from sluiceway_gateway.core.kafka.admin import KafkaAdmin
from sluiceway_gateway.endpoints.liveness import LostEnds, Reaper
from sluiceway_gateway.endpoints.model import Role
from sluiceway_gateway.endpoints.store import find_all, on_sides
from sluiceway_gateway.endpoints.tables import endpoints
from sluiceway_gateway.lifecycle.idle import TtlReaper
from sluiceway_gateway.offsets.mirror import Mirror
from sluiceway_gateway.schemas.tables import schemas
from sluiceway_gateway.status import sample_store
from sluiceway_gateway.status.sampler import IDLE_S, Sampler
from sluiceway_gateway.status.service import Statuses

#: Endpoints send a heartbeat every 30 s. They are suspect after three of them, lost after 120 s.
INTERVAL_S, SUSPECT_S, LOST_S = 30.0, 91.0, 121.0


class Looks:
    """Loops on one database; time passes by `monotonic` and when a test advances it."""

    def __init__(
        self,
        database: Database,
        monotonic: Callable[[], float] = lambda: 1_000.0,
        **reaping: int,
    ) -> None:
        self.database = database
        self.turned_s = 0.0
        kafka = KafkaAdmin(UNREACHABLE, timeout_s=0.1)
        clock = ManualClock()
        dated: dict[str, Any] = {
            "database": database,
            "clock": clock,
            "monotonic": lambda: monotonic() + self.turned_s,
        }
        self.reaper = Reaper(**dated, **reaping)
        self.sampler = Sampler(kafka=kafka, **dated)
        self.mirror = Mirror(kafka=kafka, prefix="", leads=lambda: True, **dated)
        self.idler = TtlReaper(kafka=kafka, **dated)
        self.ends = LostEnds(database=database, kafka=kafka, monotonic=dated["monotonic"])

    def pass_once(self) -> None:
        """Run one pass of the reaper and its pause."""
        pause_s = self.reaper.run_once().pause_s
        self.turned_s += pause_s

    def reap(self, seconds: float, most: int = 100) -> int:
        """Advance the time without heartbeats; return the passes until that is noticed."""
        self.let_pass(seconds)
        passes = 1
        while self.reaper.run_once().pause_s == 0 and passes < most:
            passes += 1
        return passes

    def let_pass(self, seconds: float) -> int:
        """Advance the time, with passes that are not too late; return the endpoints evaluated."""
        # A delay up to the interval of heartbeats is no gap.
        step_s = 0.95 * INTERVAL_S
        evaluated = 0
        while seconds > step_s:
            self.turned_s += step_s
            seconds -= step_s
            evaluated += self.reaper.run_once().evaluated
        self.turned_s += seconds
        return evaluated

    def health(self) -> dict[str, int]:
        with self.database.read() as tx:
            statement = select(endpoints.c.health, func.count().label("number")).group_by(
                endpoints.c.health
            )
            return {row.health: row.number for row in tx.execute(statement)}


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_the_number_of_parameters_does_not_grow_with_the_rows(
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


@pytest.mark.sample
def test_a_pass_longer_than_a_heartbeat_interval_finds_silent_endpoints(
    database: Database,
) -> None:
    crowd(database, channels=1, endpoints=3)
    looks = Looks(database)
    slow(database, looks, lambda: INTERVAL_S + 5.0)
    passes = 0
    while looks.health() != {"lost": 3}:
        looks.pass_once()
        passes += 1
        assert passes < 40


def test_a_process_paused_within_a_pass_makes_no_endpoint_lost(database: Database) -> None:
    crowd(database, channels=1, endpoints=3)
    looks = Looks(database)
    stands_s = iter([0.0, 0.0, 3600.0])
    slow(database, looks, lambda: next(stands_s, 0.0))
    for _ in range(5):
        looks.pass_once()
    assert next(stands_s, None) is None
    assert looks.health() == {"healthy": 3}


@pytest.mark.sample
def test_many_silent_endpoints_are_written_in_several_passes(database: Database) -> None:
    crowd(database, channels=4, endpoints=600)
    # Each ends after its first part, which has 250 endpoints.
    looks = Looks(database, pass_endpoints=150)
    looks.reaper.run_once()
    assert looks.reap(SUSPECT_S) == 3
    assert looks.health() == {"suspect": 600}
    assert looks.reap(LOST_S - SUSPECT_S) == 3
    assert looks.health() == {"lost": 600}


def test_a_silent_endpoint_is_read_only_when_its_health_may_change(database: Database) -> None:
    crowd(database, channels=1, endpoints=3)
    looks = Looks(database)
    assert looks.reaper.run_once().evaluated == 0

    def evaluated(seconds: float) -> int:
        return looks.let_pass(seconds) + looks.reaper.run_once().evaluated

    assert [evaluated(seconds) for seconds in (45, 30, 16, 10, 15, 10)] == [0, 0, 3, 0, 0, 3]
    assert looks.health() == {"lost": 3}


@pytest.mark.sample
@pytest.mark.parametrize("loop", ["reaper", "sampler", "mirror", "idler", "ends"])
def test_rows_are_processed_outside_transactions(postgres: Postgres, loop: str) -> None:
    """PostgreSQL ends sessions that do that within one."""
    many = 200
    database = Database(postgres.migrated())
    crowd(database, channels=many, endpoints=many)
    with database.write() as tx:
        tx.execute(update(endpoints).values(health="lost" if loop == "ends" else "healthy"))
    looks, states = Looks(database), []

    def fetched(connection: Any, cursor: psycopg.Cursor[Any], *_others: object) -> None:
        if cursor.rowcount >= many:
            states.append(cursor.connection.info.transaction_status)

    event.listen(database.engine, "after_cursor_execute", fetched)
    getattr(looks, loop).run_once()
    assert states
    assert set(states) == {psycopg.pq.TransactionStatus.IDLE}
    database.close()


def test_channels_with_endpoints_or_positions_are_found_with_little_memory(
    postgres: Postgres,
) -> None:
    url = postgres.migrated()
    with closing(Database(url)) as made:
        crowd(made, channels=8_000, endpoints=16_000)
        with made.engine.connect() as connection:
            name = connection.engine.url.database
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET work_mem = '64kB'")
            connection.commit()
    executed: list[tuple[str, Any]] = []

    def executing(_connection: Any, _cursor: Any, statement: str, values: Any, *_: object) -> None:
        executed.append((statement, values))

    with closing(Database(url)) as database, database.scan() as tx:
        event.listen(database.engine, "before_cursor_execute", executing)
        assert len(all_with_readers(tx)) == 8_000
        statement, values = executed[0]
        plan = "\n".join(tx.connection.exec_driver_sql(f"EXPLAIN {statement}", values).scalars())
    # A list of all endpoints or positions would be scanned for each channel.
    assert not {"endpoints", "positions"} & set(re.findall(r"Seq Scan on (\w+)", plan)), plan


@pytest.mark.parametrize("loop", ["reaper", "ends"])
def test_passes_read_only_endpoints_that_have_not_closed(database: Database, loop: str) -> None:
    """Endpoints that have closed stay for days."""
    crowd(database, channels=10, endpoints=3_000)
    with database.write() as tx:
        tx.execute(update(endpoints).values(state="closed"))
        tx.execute(update(endpoints).values(state="started").where(endpoints.c.id == "endpoint-9"))
        tx.execute(text("ANALYZE"))
    looks, executed = Looks(database), []

    def executing(_connection: Any, _cursor: Any, statement: str, values: Any, *_: object) -> None:
        executed.append((statement, values))

    event.listen(database.engine, "before_cursor_execute", executing)
    getattr(looks, loop).run_once()
    event.remove(database.engine, "before_cursor_execute", executing)
    scans = [
        pair for pair in executed if "JOIN endpoints" in pair[0] or "FROM endpoints" in pair[0]
    ]
    assert len(scans) == (2 if loop == "reaper" else 1)
    explain = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
    with database.scan() as tx:
        for statement, values in scans:
            plan = tx.connection.exec_driver_sql(f"{explain} {statement}", values)
            assert "ix_endpoints_unclosed" in "\n".join(str(row) for row in plan)


def all_with_readers(tx: ReadTransaction) -> list[str]:
    """Return the uids of all pages of channels with endpoints or positions."""
    uids: list[str] = []
    after: str | None = ""
    while after is not None:
        page = sample_store.page_with_readers(tx, after=after)
        uids += [channel.uid for channel in page.channels]
        after = page.last
    return uids


# A page has 2,000 channels, in the order of uid-0, uid-1, uid-10 and so on. The first one has uid-0
# to uid-2, the second one uid-3 to uid-5, the third one the others below uid-10.
THREE_PAGES = 4_500


@pytest.mark.long
def test_idle_channels_are_sampled_page_by_page(database: Database) -> None:
    crowd(database, channels=THREE_PAGES, endpoints=7)
    with database.write() as tx:
        tx.execute(update(endpoints).values(state="closed"))
    looks = Looks(database)
    assert looks.sampler.run_once().sampled == 7
    looks.turned_s += IDLE_S
    assert looks.sampler.run_once().sampled == 7


@pytest.mark.sample
def test_channels_in_use_are_sampled_though_the_list_of_idle_ones_fails(
    database: Database,
) -> None:
    """On a large database it may take longer than a statement may."""
    crowd(database, channels=THREE_PAGES, endpoints=10)
    with database.write() as tx:
        tx.execute(update(endpoints).values(state="closed"))
        tx.execute(update(endpoints).values(state="started").where(endpoints.c.id == "endpoint-9"))
    looks, failing = Looks(database), True
    pages: list[str] = []

    def read(*arguments: Any) -> None:
        context = arguments[4]
        after = (context.compiled_parameters or [{}])[0].get("after")
        if after is not None:
            pages.append(after)
        if failing and after:
            raise DatabaseUnavailable("the statement took too long")

    event.listen(database.engine, "before_cursor_execute", read)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            looks.sampler.run_once()
    assert set(numbers(database)) == {"uid-0", "uid-1", "uid-2", "uid-9"}
    assert numbers(database)["uid-9"] == 2
    failing = False
    looks.sampler.run_once()
    # It continues where it failed.
    first, last = sorted(f"uid-{number}" for number in range(THREE_PAGES))[1_999:4_000:2_000]
    assert pages == ["", first, first, first, last]
    assert set(numbers(database)) == {f"uid-{number}" for number in range(10)}


@pytest.mark.long
def test_channels_that_cannot_be_sampled_delay_no_other(database: Database) -> None:
    # The samples of a hundred are written together.
    crowd(database, channels=400, endpoints=400)

    def fail(_connection: Any, _cursor: Any, statement: str, values: Any, *_: object) -> None:
        if statement.startswith("INSERT INTO samples") and "'uid-150'" in str(values):
            raise ValueError("a defect")

    event.listen(database.engine, "before_cursor_execute", fail)
    with pytest.raises(ValueError, match="a defect"):
        Looks(database).sampler.run_once()
    sampled = numbers(database, 400)
    assert len(sampled) == 300
    assert "uid-150" not in sampled


def numbers(database: Database, channels: int = 10) -> dict[str, int]:
    """Return the number of the last sample of each sampled channel."""
    uids = [f"uid-{number}" for number in range(channels)]
    with database.read() as tx:
        return sample_store.last_numbers(tx, uids)


@pytest.mark.long
def test_no_transaction_is_open_while_the_list_of_channels_is_processed(
    postgres: Postgres,
) -> None:
    many = 1_200
    with closing(Database(postgres.migrated())) as database:
        crowd(database, channels=many, endpoints=many)
        with database.write() as tx:
            tx.execute(update(schemas).values(definition="{}"))
        statuses = Statuses(
            database, Tokens(database, None, clock=ManualClock()), clock=ManualClock()
        )
        states: list[tuple[int, int]] = []

        def fetched(_connection: Any, cursor: psycopg.Cursor[Any], *_others: object) -> None:
            states.append((cursor.rowcount, cursor.connection.info.transaction_status))

        event.listen(database.engine, "after_cursor_execute", fetched)
        update_ = statuses.feed_update(by=[LOOPBACK], listed={}, watched={})
        for some in chunks(update_.changed):
            statuses.summaries(some)
    assert len(update_.changed) == many
    rows = [count for count, state in states if state != psycopg.pq.TransactionStatus.IDLE]
    assert max(rows) <= KEYS_AT_ONCE


def test_lost_writers_are_recorded_in_batches(database: Database) -> None:
    # A pass has 250.
    crowd(database, channels=2, endpoints=600)
    with database.write() as tx:
        tx.execute(update(endpoints).values(health="lost"))
    looks = Looks(database)
    # Kafka is away: each is asked for once, and again later.
    assert [looks.ends.run_once().pause_s for _ in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize("databases", ["sqlite"], indirect=True)
def test_a_session_with_many_channels_gets_all_counterparts(database: Database) -> None:
    """SQLite takes only so deep a condition."""
    crowd(database, channels=1_100, endpoints=1_100)
    sides = {(f"uid-{number}", Role.WRITER) for number in range(1_100)}
    with database.read() as tx:
        assert {len(counterparts) for counterparts in on_sides(tx, sides).values()} == {1}


@pytest.mark.sample
def test_a_lookup_of_many_keys_finds_each_once(database: Database) -> None:
    """PostgreSQL takes 65,535 parameters."""
    crowd(database, channels=1, endpoints=9)
    ids = [f"endpoint-{number}" for number in range(20_000)]
    with database.read() as tx:
        assert find_all(tx, [*ids, *ids]).keys() == set(ids[:9])


@pytest.mark.long
def test_all_loops_work_with_150_000_endpoints(postgres: Postgres) -> None:
    many = 150_000
    url = postgres.migrated()
    with closing(Database(url)) as database, closing(Database(url, wait_ms=300_000)) as made:
        crowd(made, channels=3_000, endpoints=many)
        looks = Looks(database, time.monotonic)
        looks.reaper.run_once()
        assert looks.sampler.run_once().sampled == 3_000
        looks.mirror.run_once()
        looks.idler.run_once()
        for _ in range(5):
            # All passes would take most of a minute; a few are enough.
            looks.reap(LOST_S, most=2)
            if looks.health().get("lost", 0) >= 20_000:
                break
            # When the machine pauses for seconds, the reaper starts over for all that it has
            # not come to.
        assert looks.health()["lost"] >= 20_000
        with made.write() as tx:
            tx.execute(update(endpoints).values(health="lost"))
        looks.ends.run_once()
        with database.scan() as tx:
            assert len(all_with_readers(tx)) == 3_000


_SERIES = {
    "postgresql": "generate_series(0, {last}) AS n(i)",
    "sqlite": "(WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {last})"
    " SELECT i FROM n) AS n",
}
_NOW = {
    "postgresql": "'2030-01-01 00:00:00+00'",
    "sqlite": "'2030-01-01 00:00:00.000000'",
}
_STATEMENTS = (
    "INSERT INTO schemas (id, fingerprint, definition, created_at) VALUES (1, 'f', 'd', {now})",
    """
    INSERT INTO channels (uid, name, labels, generation, revision, created_at, schema_id,
        schema_version, format, partitions, pinned, config, phase, observed_generation, conditions,
        topic_name, topic_id, topic_partitions, keep_topic, due_at, refusals, mirrored, idle_ms,
        compatibility, adopted, heartbeat_interval_ms, heartbeat_timeout_ms)
    SELECT 'uid-' || i, 'channel-' || i, '{{}}', 1, 1, {now}, 1, 1, 'avro', 1, false, '{{}}',
        'ready', 1, '[]', 'topic-' || i, 'id', 1, false, {now}, 0, true, 86400000,
        'backward', false, 30000, 120000
    FROM {channels}
    """,
    """
    INSERT INTO sessions (id, beat, started_at, client)
    SELECT 'session-' || i, 0, {now}, '' FROM {endpoints}
    """,
    """
    INSERT INTO endpoints (id, channel_uid, session_id, role, group_name, member_index, mode, epoch,
        generation, state, health, superseded, attached_at, changed_at, counters, commits)
    SELECT 'endpoint-' || i, 'uid-' || (i % {count}), 'session-' || i, 'writer', '', i, 'shared', 1,
        1, 'started', 'healthy', false, {now}, {now}, '{{}}', 0
    FROM {endpoints}
    """,
    """
    INSERT INTO endpoint_groups (channel_uid, role, name, mode, generation, epoch, next_index,
        dynamic)
    SELECT 'uid-' || i, 'writer', '', 'shared', 1, 1, {number}, false FROM {channels}
    """,
    """
    INSERT INTO positions (channel_uid, group_name, member_index, partition, next_offset, record,
        topic_id, epoch, number, committed_at)
    SELECT 'uid-' || (i % {count}), 'g' || i, -1, 0, 1, 0, 'id', 1, 1, {now} FROM {endpoints}
    """,
)


def crowd(database: Database, *, channels: int, endpoints: int) -> None:
    """Fill a migrated database: writers, each of a session of its own, and as many positions.

    Channels share the writers evenly; all are mirrored, and come to their end by being idle.
    """
    series = _SERIES[database.dialect]
    with database.write() as tx:
        for statement in _STATEMENTS:
            tx.execute(
                text(
                    statement.format(
                        channels=series.format(last=channels - 1),
                        endpoints=series.format(last=endpoints - 1),
                        now=_NOW[database.dialect],
                        count=channels,
                        number=endpoints,
                    )
                )
            )
        # Autovacuum, which tests turn off, does this; query plans depend on its statistics.
        tx.execute(text("ANALYZE"))
