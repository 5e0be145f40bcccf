"""Migrations: their tables, and upgrades from earlier revisions."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, event, inspect, text

from databases import Databases, Postgres
from sluiceway_gateway import migration
from sluiceway_gateway.channels.model import Phase
from sluiceway_gateway.core.audit import store as audit_store
from sluiceway_gateway.core.audit.model import AuditedAction
from sluiceway_gateway.core.db import revision
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.db.failures import cause_of
from sluiceway_gateway.core.errors import DatabaseUnavailable, WrongRevision
from sluiceway_gateway.core.kafka import cluster_store
from sluiceway_gateway.migration import migrate
from sluiceway_gateway.tables import metadata

LATER = '''
"""Add a column; on SQLite by copying the table, as a change of a CHECK needs."""

import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "HEAD"


def upgrade() -> None:
    recreate = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("schemas", recreate=recreate) as batch:
        batch.add_column(sa.Column("notes", sa.Text(), nullable=False, server_default=""))
'''
NEWEST = revision.head()
DEFINITIONS = {
    "sqlite": "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE '%alembic%'",
    "postgresql": """
        SELECT 'column', table_name, column_name, data_type, collation_name, is_nullable,
            column_default FROM information_schema.columns
            WHERE table_schema = 'public' AND table_name <> 'alembic_version'
        UNION ALL SELECT 'constraint', conrelid::regclass::text, conname,
            pg_get_constraintdef(oid), NULL, NULL, NULL FROM pg_constraint
            WHERE connamespace = 'public'::regnamespace AND conname NOT LIKE 'alembic%'
        UNION ALL SELECT 'index', tablename, indexname, indexdef, NULL, NULL, NULL
            FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'
    """,
}


@contextmanager
def opened(url: str) -> Iterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def writing(database: Database) -> Iterator[Connection]:
    with database.engine.connect() as connection:
        connection = connection.execution_options(sluiceway_writes=True)
        with connection.begin():
            yield connection


def definitions(database: Database) -> set[tuple[object, ...]]:
    """Return the database's description of all tables, columns, constraints and indexes."""
    with database.engine.connect() as connection:
        rows = connection.execute(text(DEFINITIONS[database.dialect]))
        # SQLite's text has no line break before an added column.
        return {
            tuple(" ".join(column.split()) if isinstance(column, str) else column for column in row)
            for row in rows
        }


def test_the_migration_creates_the_tables_of_the_schema(
    database: Database, empty_database_url: str
) -> None:
    with opened(empty_database_url) as other:
        with writing(other) as connection:
            metadata.create_all(connection)
        expected = definitions(other)
    assert len(expected) > len(metadata.tables)
    assert definitions(database) == expected


@pytest.mark.sample
def test_the_next_migration_would_be_empty(database: Database) -> None:
    with database.engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_the_phase_check_allows_exactly_the_phases_of_the_model(database: Database) -> None:
    checks = inspect(database.engine).get_check_constraints("channels")
    phase = next(str(check["sqltext"]) for check in checks if check["name"] == "ck_channels_phase")
    assert set(phase.split("'")[1::2]) == set(Phase)


def test_migrating_again_changes_nothing(database: Database, database_url: str) -> None:
    before = definitions(database)
    assert migrate(database_url) == revision.head()
    assert definitions(database) == before
    revision.require_current(database)


@pytest.mark.long
def test_concurrent_migrations_all_succeed(empty_database_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        revisions = list(pool.map(migrate, [empty_database_url] * 4))
    assert revisions == [revision.head()] * 4


def test_a_database_without_tables_is_refused(empty_database_url: str) -> None:
    with (
        opened(empty_database_url) as database,
        pytest.raises(WrongRevision, match="sluiceway migrate"),
    ):
        revision.require_current(database)


@pytest.mark.sample
def test_a_database_of_a_newer_version_is_refused(database: Database, database_url: str) -> None:
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(WrongRevision, match="newer version"):
        revision.require_current(database)
    with pytest.raises(WrongRevision, match="newer version"):
        migrate(database_url)


def test_times_are_loaded_aware_and_in_utc(database: Database) -> None:
    from sluiceway_gateway.schemas import store as schemas_store
    from sluiceway_gateway.schemas.tables import schemas as table

    now = datetime(2030, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
    with database.write() as tx:
        schemas_store.register(tx, fingerprint="f", definition="d", now=now)
        assert tx.execute(table.select()).one().created_at == now


def test_a_migration_has_no_statement_timeout(postgres: Postgres) -> None:
    bounds: list[str] = []

    def committing(connection: Connection) -> None:
        settings = ("statement_timeout", "idle_in_transaction_session_timeout")
        bounds.extend(
            connection.exec_driver_sql(f"SHOW {setting}").scalar_one() for setting in settings
        )

    with opened(postgres.empty()) as database:
        event.listen(database.engine, "commit", committing)
        migration.upgrade(database)
    assert bounds == ["0", "0"]


@pytest.fixture
def old(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    """A database at the newest revision, with a schema kept by a channel, used by later code."""
    with opened(databases.migrated()) as database:
        with writing(database) as connection:
            fill(connection)
        path = tmp_path / "migrations"
        shutil.copytree(revision.migrations_path(), path)
        (path / "versions" / "9000_later.py").write_text(LATER.replace("HEAD", NEWEST))
        # There is no later version yet.
        monkeypatch.setattr(revision, "migrations_path", lambda: path)
        revision.head.cache_clear()
        try:
            yield database
        finally:
            revision.head.cache_clear()


def fill(connection: Connection) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    tables = metadata.tables
    connection.execute(
        tables["schemas"].insert(),
        {"id": 7, "fingerprint": "f", "definition": "d", "created_at": now},
    )
    connection.execute(
        tables["kept_schemas"].insert(),
        {"topic_id": "t", "version": 1, "schema_id": 7, "created_at": now, "format": "avro"},
    )


@pytest.mark.sample
def test_an_upgrade_keeps_all_rows_and_references(old: Database) -> None:
    assert migration.upgrade(old) == "9000"
    assert revision.current(old) == "9000"
    with old.read() as tx:
        assert tx.execute(text("SELECT id, definition, notes FROM schemas")).all() == [(7, "d", "")]
        assert tx.execute(text("SELECT topic_id, schema_id FROM kept_schemas")).all() == [("t", 7)]


@pytest.mark.sample
def test_an_upgrade_of_the_initial_revision_keeps_its_rows(empty_database_url: str) -> None:
    with opened(empty_database_url) as database:
        with writing(database) as connection:
            config = revision.alembic_config()
            config.attributes["connection"] = connection
            command.upgrade(config, "0001")
            connection.execute(
                text(
                    "INSERT INTO leases (name, holder, epoch, renewals, lease_ms) "
                    "VALUES ('reconcile', 'a', 3, 7, 10000)"
                )
            )
            connection.execute(
                text(
                    "INSERT INTO audit_entries "
                    '(seq, channel, channel_uid, at, "by", action, fields, omitted) '
                    "VALUES (41, 'flights', 'u', '2030-01-01 00:00:00', 'ops', 'create', '[]', 0)"
                )
            )
        assert migration.upgrade(database) == revision.head()
        with database.read() as tx:
            rows = tx.execute(text("SELECT name, holder, epoch, renewals FROM leases")).all()
            assert rows == [("reconcile", "a", 3, 7)]
            assert cluster_store.recorded_id(tx) is None
            (entry,) = audit_store.page(tx, "flights", before=None, limit=10)
            assert (entry.number, entry.by, entry.action) == (41, "ops", AuditedAction.CREATE)


def test_the_previous_version_can_write_to_an_expanded_table(old: Database) -> None:
    migration.upgrade(old)
    now = datetime(2030, 1, 2, tzinfo=UTC)
    with writing(old) as connection:
        connection.execute(
            metadata.tables["schemas"].insert(),
            {"fingerprint": "g", "definition": "e", "created_at": now},
        )
        row = connection.execute(text("SELECT id, notes FROM schemas ORDER BY id DESC")).first()
    assert row is not None
    assert row.notes == ""


def test_a_migration_waits_for_another_for_a_limited_time(old: Database) -> None:
    with writing(old) as connection:
        if old.dialect == "postgresql":
            lock = text("SELECT pg_advisory_xact_lock(:lock)")
            connection.execute(lock.bindparams(lock=migration.ADVISORY_LOCK))
        with pytest.raises(DatabaseUnavailable, match="another migration is running"):
            migration.upgrade(old, wait_s=0.2)
    assert revision.current(old) == NEWEST
    assert migration.upgrade(old) == revision.head()


def test_a_migration_does_not_hold_up_requests_behind_a_long_transaction(old: Database) -> None:
    if old.dialect == "sqlite":
        # Readers see the previous state, and block no one.
        with old.read() as tx:
            tx.execute(text("SELECT id FROM schemas"))
            assert migration.upgrade(old, wait_s=0.2) == revision.head()
        return
    with old.read() as tx:
        tx.execute(text("SELECT id FROM schemas"))
        with pytest.raises(DatabaseUnavailable, match="a long transaction holds its t") as raised:
            migration.upgrade(old, table_wait_s=0.1)
    # The command prints this message alone.
    assert str(raised.value).endswith("run `sluiceway migrate` again")
    assert cause_of(raised.value) is None
    assert revision.current(old) == NEWEST


def test_an_older_revision_is_refused_with_the_command_to_run(old: Database) -> None:
    with pytest.raises(WrongRevision, match=rf"is at revision {NEWEST}.*run `sluiceway migrate`"):
        revision.require_current(old)


def test_an_upgrade_leaves_no_settings_on_pooled_connections(old: Database) -> None:
    migration.upgrade(old)
    if old.dialect == "sqlite":
        with old.engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1
