"""Where `sluiceway up` keeps its data, and the lock that keeps a second one out."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click


def default() -> Path:
    """Return the user's own data directory for Sluiceway."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "sluiceway"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make the directory and hold its lock; raises ClickException where that cannot be.

    The lock ends with the process, however that ends.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (directory / "lock").open("a")
    except OSError as error:
        raise click.ClickException(
            f"cannot keep data in {directory} ({error.strerror}): name another place with --data"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(
                f"another `sluiceway up` runs on the data in {directory}: "
                "use that one, or name another place with --data"
            ) from None
        yield
