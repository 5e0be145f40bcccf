from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, inspect, text

from databases import Postgres
from sluiceway_gateway.db import revision
from sluiceway_gateway.db.engine import Database
from sluiceway_gateway.db.revision import migrate
from sluiceway_gateway.db.schema import metadata
from sluiceway_gateway.errors import WrongRevision


def test_migrations_make_the_tables_of_the_models(database: Database) -> None:
    with database.engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_migrations_make_the_checks_of_the_models(database: Database) -> None:
    # Alembic compares no CHECK constraints: their names, at least, are ours to compare.
    found = inspect(database.engine)
    for table in metadata.sorted_tables:
        expected = {
            str(each.name) for each in table.constraints if isinstance(each, CheckConstraint)
        }
        assert {each["name"] for each in found.get_check_constraints(table.name)} == expected


def test_the_check_of_phases_refuses_what_the_domain_does_not_know(database: Database) -> None:
    checks = inspect(database.engine).get_check_constraints("channels")
    phase = next(str(each["sqltext"]) for each in checks if each["name"] == "ck_channels_phase")
    for word in ("provisioning", "ready", "failed", "closed", "deleting"):
        assert f"'{word}'" in phase


def test_migrating_again_changes_nothing(database: Database, database_url: str) -> None:
    assert migrate(database_url) == revision.head()
    revision.check_revision(database)


def test_several_that_migrate_at_once_end_well(empty_database_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(migrate, [empty_database_url] * 4))
    assert found == [revision.head()] * 4


def test_a_database_without_tables_is_refused(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    with pytest.raises(WrongRevision, match="sluiceway migrate"):
        revision.check_revision(database)
    database.close()


def test_a_database_of_a_newer_version_is_refused(database: Database, database_url: str) -> None:
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(WrongRevision, match="newer version"):
        revision.check_revision(database)
    with pytest.raises(WrongRevision, match="newer version"):
        migrate(database_url)


def test_times_come_back_aware_and_in_utc(database: Database) -> None:
    from sluiceway_gateway.db.schema import schemas as table
    from sluiceway_gateway.schemas import store as schemas_store

    now = datetime(2030, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
    with database.write() as tx:
        schemas_store.register(tx, fingerprint="f", definition="d", now=now)
        assert tx.execute(table.select()).one().created_at == now


def test_a_migration_may_think_as_long_as_it_likes(postgres: Postgres) -> None:
    database = Database(postgres.empty())
    with database.engine.begin() as connection:
        revision._lock_postgresql(connection, wait_s=1)
        for bound in ("statement_timeout", "idle_in_transaction_session_timeout"):
            assert connection.execute(text(f"SHOW {bound}")).scalar_one() == "0"
    database.close()
