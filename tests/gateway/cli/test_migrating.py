"""Concurrent migrations, and databases that `migrate` and `serve` refuse."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url, text

from databases import Postgres
from processes import Process, Sluiceway, process
from sluiceway_gateway import migration
from sluiceway_gateway.core.db import revision
from sluiceway_gateway.core.db.engine import Database
from waiting import until


@contextmanager
def locked(database: Database) -> Iterator[Callable[[Process], bool]]:
    """Hold the migration lock; yield a function that returns whether a process waits for it."""
    with database.engine.connect() as connection:
        connection = connection.execution_options(sluiceway_writes=True)
        with connection.begin():
            if database.dialect == "sqlite":
                path = str(make_url(str(database.engine.url)).database)
                yield lambda process: path in open_files(process)
                return
            lock = text("SELECT pg_advisory_xact_lock(:lock)")
            connection.execute(lock.bindparams(lock=migration.ADVISORY_LOCK))
            waiting = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            before = connection.execute(waiting).scalar_one()
            yield lambda _process: connection.execute(waiting).scalar_one() == before + 2


def open_files(process: Process) -> set[str]:
    """Return the open files of a process."""
    paths = set()
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            paths.add(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    return paths


def all_run(processes: list[Process]) -> bool:
    return all(running.poll() is None for running in processes)


@pytest.mark.long
@pytest.mark.parametrize(
    "databases", ["postgres", pytest.param("sqlite", marks=pytest.mark.long)], indirect=True
)
def test_of_two_concurrent_migrations_one_does_the_work(
    empty_database_url: str,
) -> None:
    database = Database(empty_database_url)
    variables = {"SLUICEWAY_DATABASE_URL": empty_database_url}
    with ExitStack() as stack:
        with locked(database) as waits:
            both = [stack.enter_context(process("migrate", **variables)) for _ in range(2)]
            until(lambda: all(waits(running) for running in both) or not all_run(both), 60)
            assert all_run(both), [running.text for running in both]
        assert [running.wait() for running in both] == [0, 0], [running.text for running in both]
    revision.require_current(database)
    database.close()


@pytest.mark.sample
def test_a_database_of_a_newer_version_is_refused(sluiceway: Sluiceway, database_url: str) -> None:
    database = Database(database_url)
    with database.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    for command in ("serve", "migrate"):
        sluiceway(command, database_url=database_url).failed(
            "is at revision 9999", "run that version, or restore a backup"
        )


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_with_another_encoding_than_utf8_is_refused(
    sluiceway: Sluiceway, postgres: Postgres, encoding: str
) -> None:
    url = postgres.empty(f"ENCODING '{encoding}' LOCALE 'C'", template="template0")
    for command in ("migrate", "serve"):
        sluiceway(command, database_url=url).failed(
            f"encoding is {encoding}", "needs UTF8", "CREATE DATABASE", "ENCODING 'UTF8'"
        )


def test_a_database_with_tables_of_another_program_is_refused(
    sluiceway: Sluiceway, empty_database_url: str
) -> None:
    database = Database(empty_database_url)
    with database.write() as tx:
        tx.execute(text("CREATE TABLE channels (x INTEGER)"))
    database.close()
    run = sluiceway("migrate", database_url=empty_database_url)
    run.failed("tables of another program (channels)", "SLUICEWAY_DATABASE_URL")


def test_a_user_without_privileges_gets_the_reason(
    sluiceway: Sluiceway, postgres: Postgres
) -> None:
    empty, migrated = postgres.empty(), postgres.migrated()
    with psycopg.connect(empty.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CREATE ROLE stranger LOGIN")
    try:
        for command, url in (("migrate", empty), ("serve", migrated)):
            own = make_url(url).set(username="stranger").render_as_string(False)
            run = sluiceway(command, database_url=own)
            run.failed("refuses access", "Cause: permission denied for ")
    finally:
        with psycopg.connect(empty.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("DROP ROLE stranger")
