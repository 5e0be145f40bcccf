"""Schema revisions: the one of a database, and the refusal of others."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import WrongRevision


def migrations_path() -> Path:
    """Return the directory of migrations: in the installed package, or at the repository's root."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parents[1] / "migrations"


@cache
def head() -> str:
    """Return the revision that this version needs."""
    revision = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if revision is None:
        raise WrongRevision("this installation has no migrations; install it again")
    return revision


def current(database: Database) -> str | None:
    """Return the revision of the database, None before the first migration."""
    with database.read() as tx:
        return MigrationContext.configure(tx.connection).get_current_revision()


def require_current(database: Database) -> None:
    """Raise WrongRevision unless the database is at this version's revision."""
    revision, expected = current(database), head()
    if revision == expected:
        return
    refuse_unknown(alembic_config(), revision)
    state = "has no tables yet" if revision is None else f"is at revision {revision}"
    raise WrongRevision(
        f"the database {state}, this gateway needs {expected}: run `sluiceway migrate`"
    )


@contextmanager
def open_database(url: str) -> Iterator[Database]:
    """Open a database at this version's revision, and close it after the block.

    Raises InvalidSettings, WrongRevision and DatabaseUnavailable.
    """
    with closing(Database(url)) as database:
        file = database.file
        if file is not None and not file.exists():
            # Before the first connection, which would create it.
            raise WrongRevision(
                f"there is no database {file.absolute()}: correct SLUICEWAY_DATABASE_URL or the "
                "working directory; to create it, run `sluiceway migrate`"
            )
        require_current(database)
        yield database


def alembic_config() -> Config:
    """Return Alembic's configuration for the migrations of this version."""
    config = Config()
    config.set_main_option("script_location", str(migrations_path()).replace("%", "%%"))
    return config


def refuse_unknown(config: Config, revision: str | None) -> None:
    """Raise WrongRevision for a revision that this version does not have; None is none yet."""
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in revisions:
        raise WrongRevision(
            f"the database is at revision {revision}, which this gateway does not know: "
            "a newer version has migrated it; run that version, or restore a backup. If it is of "
            "another program, set SLUICEWAY_DATABASE_URL to a database for the gateway alone"
        )
