"""The broker and the gateway of a test run, shared by all of its processes.

A broker per process would take as much time and memory as many tests. Each process has a listener
of its own, which a relay can cut without affecting other processes. The gateway is a process of its
own, started as users start it, so no test can replace its parts.
"""

import json
import os
import re
import shutil
import signal
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import pytest

from processes import process
from relay import reserve_port
from sluiceway_gateway.dev.embedded import KafkaServer
from sluiceway_gateway.migration import migrate
from waiting import until


@dataclass(frozen=True)
class SharedKafka:
    """A real broker, which no test stops: its addresses and the directory of its logs.

    `listeners` has, for relays, the port of a listener and its advertised port per test process.
    `secured` has the addresses of the secured listeners by name, and `certificates` is the
    directory of their certificates.
    """

    bootstrap_servers: str
    log_dir: str
    listeners: Sequence[tuple[int, int]]
    secured: Mapping[str, str]
    certificates: str

    @property
    def port(self) -> int:
        return _port(self.bootstrap_servers)

    def another(self, data_dir: Path, *, port: int | None = None) -> KafkaServer:
        """Start a small broker of another cluster, or restart it with its data.

        Writes the files of Kafka's format tool, which would take a third of the start time.
        """
        log_dir = data_dir / "log"
        if not log_dir.exists():
            log_dir.mkdir(parents=True)
            shutil.copy(Path(self.log_dir) / "bootstrap.checkpoint", log_dir)
            meta = f"version=1\nnode.id=1\ncluster.id={uuid.uuid4().hex}\n"
            (log_dir / "meta.properties").write_text(meta)
        return KafkaServer.start(data_dir, port=port, heap_mb=256)


RACK = "rack-1"
_LOG = "gateway.log"


def _shared() -> Path:
    """Return the directory that all processes of the run share; it ends with the run."""
    return Path(tempfile.gettempdir())


@cache
def broker_of(config: pytest.Config) -> SharedKafka:
    """Return the broker of the run; the first call starts it, and it ends with the run."""
    file = _shared() / "kafka.json"
    if hasattr(config, "workerinput"):
        until(file.exists, seconds=300)
        return SharedKafka(**json.loads(file.read_text()))
    broker = _start(config)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(asdict(broker)))
    part.rename(file)
    return broker


def gateway_of(config: pytest.Config) -> str:
    """Return the URL of the run's gateway; it ends with the run."""
    if not hasattr(config, "workerinput"):
        start_gateway(config)
    log = _shared() / _LOG
    return until(lambda: log.exists() and re.search(r"serving on (\S+)", log.read_text()), 300)[1]


@cache
def start_gateway(config: pytest.Config) -> None:
    """Start the run's gateway, if it does not run yet."""
    directory = _shared()
    settings = {
        "DATABASE_URL": f"sqlite:///{directory / 'gateway.db'}",
        "KAFKA_BOOTSTRAP_SERVERS": broker_of(config).bootstrap_servers,
        "KAFKA_TIMEOUT_MS": "20000",
        "LOG_LEVEL": "warning",
        "SAMPLE_S": "2",
        # Drift is tested with other gateways. This one would check hundreds of channels that tests
        # have left, every half a minute.
        "RESYNC_S": "3600",
    }
    migrate(settings["DATABASE_URL"])
    variables = {f"SLUICEWAY_{name}": value for name, value in settings.items()}
    with ExitStack() as stack:
        gateway = stack.enter_context(process("serve", "--port", "0", **variables))
        stack.callback(gateway.end, signal.SIGTERM)
        (directory / _LOG).symlink_to(gateway.file)
        config.add_cleanup(stack.pop_all().close)


def _start(config: pytest.Config) -> SharedKafka:
    # A slow import that only the process with the broker needs.
    import secured

    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="kafka-"))
        certificates = directory / "certificates"
        names = [f"PROCESS_{number}" for number in range(max(1, len(config.getoption("tx"))))]
        reserved = {name: stack.enter_context(reserve_port()) for name in names}
        advertised = {name: reserved[name].getsockname()[1] for name in names}
        protocols = dict.fromkeys(names, "PLAINTEXT") | secured.PROTOCOLS
        threads = {f"listener.name.{name.lower()}.num.network.threads": "1" for name in protocols}
        server = KafkaServer.start(
            directory,
            heap_mb=1024,
            listeners=protocols,
            advertised=advertised,
            properties={"broker.rack": RACK} | threads | secured.listener_properties(certificates),
        )
        stack.enter_context(server)
        # Closing the logs of all tests takes half a minute, and nothing reads them again.
        stack.callback(os.kill, server.pid, signal.SIGKILL)
        config.add_cleanup(stack.pop_all().close)
    return SharedKafka(
        bootstrap_servers=server.bootstrap_servers,
        log_dir=str(directory / "log"),
        listeners=[(_port(server.listeners[name]), advertised[name]) for name in names],
        secured={name: server.listeners[name] for name in secured.PROTOCOLS},
        certificates=str(certificates),
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
