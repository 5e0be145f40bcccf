"""The demo's own broker and gateway, and the environment in which its jobs run."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from sluiceway_gateway.cli.server import bound_socket
from sluiceway_gateway.db.revision import migrate
from sluiceway_gateway.demo.spark_home import spark_home
from sluiceway_gateway.embedded import KafkaServer
from sluiceway_gateway.embedded.jars import Progress
from sluiceway_gateway.logs import configure_logs
from sluiceway_gateway.settings import PREFIX, Settings

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where the jobs work and what they find in their environment."""

    directory: Path
    environment: Mapping[str, str]


@contextmanager
def surroundings(directory: Path, on_fetch: Progress) -> Iterator[Surroundings]:
    """Run a broker and a gateway on free ports, with all their data in `directory`.

    `on_fetch` is told of Kafka's jars while they are fetched. Raises EmbeddedError.
    """
    data = directory / "gateway"
    data.mkdir()
    with KafkaServer.start(directory / "kafka", heap_mb=512, on_progress=on_fetch) as kafka:
        settings = Settings(
            host="127.0.0.1",
            port=0,
            database_url=f"sqlite:///{data / 'gateway.db'}",  # type: ignore[arg-type]
            kafka_bootstrap_servers=kafka.bootstrap_servers,
            kafka_advertised_servers=None,
            token_key=None,
            log_level="error",
            log_format="console",
        )
        with (data / "gateway.log").open("w") as log:
            configure_logs(level=settings.log_level, format=settings.log_format, stream=log)
            migrate(settings.database_url.get_secret_value())
            with _serving(settings) as url:
                yield Surroundings(directory=directory, environment=_environment(directory, url))


@contextmanager
def _serving(settings: Settings) -> Iterator[str]:
    """Serve the gateway in a thread; signals stay the demo's own."""
    # What takes long to import comes when it is needed, for whoever interrupts before.
    from sluiceway_gateway.app import create_app

    app = create_app(settings)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on")
    server = uvicorn.Server(config)
    with bound_socket("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            deadline_s = time.monotonic() + _START_TIMEOUT_S
            while not server.started:
                if not thread.is_alive() or time.monotonic() > deadline_s:
                    raise RuntimeError("the gateway did not start; this is a defect, report it")
                time.sleep(_POLL_S)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            app.state.parts.watch.close()
            server.should_exit = True
            thread.join(_STOP_TIMEOUT_S)


def _environment(directory: Path, url: str) -> dict[str, str]:
    """Return the jobs' environment: ours, but for settings meant for another gateway."""
    temporary = directory / "tmp"
    temporary.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return kept | {
        f"{PREFIX}URL": url,
        "TMPDIR": str(temporary),
        "SPARK_HOME": str(spark_home(directory / "spark")),
        "SPARK_LOCAL_DIRS": str(temporary),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
