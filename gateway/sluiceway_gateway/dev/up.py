"""`sluiceway up`: a broker and the gateway on this machine."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import click
from pydantic import Secret
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sluiceway_gateway.cli.entry import waiting_for
from sluiceway_gateway.cli.serve import Interrupted, bind, check, interruptible, run_server, url
from sluiceway_gateway.core.logs import configure_logs
from sluiceway_gateway.core.settings import Settings
from sluiceway_gateway.dev.embedded import KafkaServer, find_java
from sluiceway_gateway.migration import migrate as migrate_database


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The gateway's address.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8900,
    show_default=True,
    envvar="SLUICEWAY_PORT",
    help="The gateway's port; 0 chooses a free one.",
)
@click.option(
    "--kafka-port", type=click.IntRange(1, 65535), help="The broker's port.  [default: a free one]"
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory.  [default: ~/.local/share/sluiceway]",
)
def up(host: str, port: int, kafka_port: int | None, data: Path | None) -> None:
    """Run a Kafka broker and the gateway until Ctrl-C.

    The data are kept for the next run. Needs Java 17 or newer. The first run downloads Apache
    Kafka.
    """
    console = Console(stderr=True, highlight=False)
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    directory = (data or Path(home) / "sluiceway").resolve()
    with suppress(Interrupted), interruptible(), ExitStack() as stack:
        find_java()
        stack.enter_context(_locked(directory))
        # Bound before the broker starts, to fail early if the port is in use.
        bound = stack.enter_context(bind(host, port))
        settings = Settings.load(
            host=host,
            port=port,
            database_url=f"sqlite:///{directory / 'gateway.db'}",
            log_format="console",
            log_level="warning",
        )
        configure_logs(level=settings.log_level, format=settings.log_format)
        migrate_database(settings.database_url.get_secret_value())
        check(settings)
        kafka = stack.enter_context(_start_broker(directory / "kafka", kafka_port, console))
        settings = with_broker(settings, kafka)
        address = url(bound, settings)
        run_server(
            settings,
            bound,
            lambda: _welcome(console, address, kafka.bootstrap_servers, directory),
            kafka,
        )
    console.print("Stopped. The data are kept.")


def with_broker(settings: Settings, kafka: KafkaServer) -> Settings:
    """Return the settings for this broker; the environment may have some for another one."""
    return settings.model_copy(
        update={
            "kafka_bootstrap_servers": kafka.bootstrap_servers,
            "kafka_cluster_id": kafka.cluster_id,
            "kafka_advertised_servers": None,
            "kafka_properties": Secret({}),
            "kafka_client_properties": Secret({}),
            "kafka_listeners": Secret({}),
            "kafka_default_listener": None,
        }
    )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Create the data directory and lock it for this process. Raises ClickException."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (directory / "lock").open("a")
    except OSError as error:
        raise click.ClickException(
            f"cannot keep data in {directory} ({error.strerror}): "
            "choose another directory with --data"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(
                f"another `sluiceway up` uses the data in {directory}: "
                "use that one, or choose another directory with --data"
            ) from None
        yield


def _start_broker(directory: Path, port: int | None, console: Console) -> KafkaServer:
    """Start the broker, with a progress bar if its jars have to be downloaded."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task("Downloading Apache Kafka", total=None)

    def on_progress(done: int, total: int) -> None:
        progress.start()
        progress.update(task, completed=done, total=total)

    try:
        with waiting_for("Kafka to start (the first run downloads it)"):
            return KafkaServer.start(directory, port=port, on_progress=on_progress)
    finally:
        if progress.live.is_started:
            progress.stop()


def _welcome(console: Console, address: str, servers: str, directory: Path) -> None:
    export = "" if address == "http://127.0.0.1:8900" else f"\n  export SLUICEWAY_URL={address}"
    console.print(
        f"[bold green]Sluiceway is up.[/] Ctrl-C stops it; the data are kept.\n"
        f"  gateway  {address}  (dashboard; API reference: {address}/docs)\n"
        f"  Kafka    {servers}\n"
        f"  data     {directory}\n"
        f"Try in another terminal:{export}\n"
        "  sluiceway channels list\n"
        "  sluiceway tail NAME --from-beginning",
        soft_wrap=True,
    )
