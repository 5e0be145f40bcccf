"""`sluiceway up`: one broker and the gateway on this machine."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
from pydantic import Secret
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sluiceway_gateway.cli import server
from sluiceway_gateway.cli.serve import check, ending_in_order
from sluiceway_gateway.db.revision import migrate
from sluiceway_gateway.embedded import KafkaServer, find_java
from sluiceway_gateway.logs import configure_logs
from sluiceway_gateway.settings import Settings


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


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The gateway's address.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8900,
    show_default=True,
    envvar="SLUICEWAY_PORT",
    help="The gateway's port; 0: a free one.",
)
@click.option(
    "--kafka-port", type=click.IntRange(1, 65535), help="The broker's port.  [default: a free one]"
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to keep the data.  [default: ~/.local/share/sluiceway]",
)
def up(host: str, port: int, kafka_port: int | None, data: Path | None) -> None:
    """Run a Kafka broker and the gateway until Ctrl-C; the data are kept.

    The first time, this fetches Apache Kafka. It needs Java 17 or newer.
    """
    console = Console(stderr=True, highlight=False)
    directory = (data or default()).resolve()
    with ending_in_order(), ExitStack() as stack:
        find_java()
        stack.enter_context(locked(directory))
        # Bound before the broker starts, so that a port in use is told at once.
        bound = stack.enter_context(server.bind(host, port))
        settings = Settings.load(
            host=host,
            port=port,
            database_url=f"sqlite:///{directory / 'gateway.db'}",
            log_format="console",
            log_level="warning",
        )
        migrate(settings.database_url.get_secret_value())
        check(settings)
        kafka = stack.enter_context(_broker(directory / "kafka", kafka_port, console))
        settings = settings.model_copy(update=_reaching(kafka.bootstrap_servers))
        configure_logs(level=settings.log_level, format=settings.log_format)
        address = server.url(bound, settings)
        server.serve(
            settings,
            bound,
            lambda: _welcome(console, address, kafka.bootstrap_servers, directory),
        )
    console.print("Stopped. The data are kept.")


def _reaching(bootstrap_servers: str) -> dict[str, Any]:
    """Return the settings for the broker of this machine, whatever is set for another one."""
    return {
        "kafka_bootstrap_servers": bootstrap_servers,
        "kafka_advertised_servers": None,
        "kafka_properties": Secret({}),
        "kafka_client_properties": Secret({}),
        "kafka_listeners": Secret({}),
        "kafka_default_listener": None,
    }


def _broker(directory: Path, port: int | None, console: Console) -> KafkaServer:
    """Start the broker, with a bar for the jars if they have to be fetched."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task("Fetching Apache Kafka", total=None)

    def fetched(done: int, total: int) -> None:
        progress.start()
        progress.update(task, completed=done, total=total)

    try:
        return KafkaServer.start(directory, port=port, on_progress=fetched)
    finally:
        if progress.live.is_started:
            progress.stop()


def _welcome(console: Console, address: str, servers: str, directory: Path) -> None:
    export = "" if address == "http://127.0.0.1:8900" else f"  export SLUICEWAY_URL={address}\n"
    console.print(
        f"[bold green]Sluiceway is up.[/] Ctrl-C stops it; the data are kept.\n"
        f"  gateway  {address}  (its calls: {address}/docs)\n"
        f"  Kafka    {servers}\n"
        f"  data     {directory}\n"
        "What to try next, in another terminal:\n"
        f"{export}"
        "  sluiceway channels list\n"
        "  sluiceway tail NAME --from-beginning",
        soft_wrap=True,
    )
