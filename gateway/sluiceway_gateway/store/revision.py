"""The database's schema revision: upgrading to ours, and refusing another one."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from sluiceway_gateway.domain.errors import WrongRevision
from sluiceway_gateway.store.engine import Database
from sluiceway_gateway.store.failures import translated

# Any number that nothing else in the database takes an advisory lock on.
_LOCK = 0x51C3_3A7


def migrations_path() -> Path:
    """Return where the migrations lie: inside a wheel, or at the repository's top."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parents[1] / "migrations"


def head() -> str:
    """Return the revision that this version of the gateway works on."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    if revision is None:
        raise WrongRevision("this installation has no migrations; install it anew")
    return revision


def current(database: Database) -> str | None:
    """Return the revision that the database is at; None before the first migration."""
    with translated(), database.engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def upgrade(database: Database) -> str:
    """Bring the database to our revision, in one transaction, one process at a time.

    Returns the revision. Raises WrongRevision for a database that a newer
    version has migrated.
    """
    config = _config()
    _refuse_unknown(config, current(database))
    with translated(), database.engine.connect() as connection:
        connection = connection.execution_options(sluiceway_writes=True)
        with connection.begin():
            if database.dialect == "postgresql":
                connection.execute(text("SET LOCAL lock_timeout = 0"))
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                connection.execute(
                    text("SELECT pg_advisory_xact_lock(:lock)").bindparams(lock=_LOCK)
                )
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    return head()


def check(database: Database) -> None:
    """Raise WrongRevision unless the database is at our revision."""
    found, expected = current(database), head()
    if found == expected:
        return
    _refuse_unknown(_config(), found)
    state = "has no tables yet" if found is None else f"is at revision {found}"
    raise WrongRevision(
        f"the database {state}, this gateway needs {expected}: run `sluiceway migrate`"
    )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_path()).replace("%", "%%"))
    return config


def _refuse_unknown(config: Config, found: str | None) -> None:
    known = {each.revision for each in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise WrongRevision(
            f"the database is at revision {found}, which this gateway does not know: "
            "a newer version has migrated it; run that version, or restore a backup"
        )
