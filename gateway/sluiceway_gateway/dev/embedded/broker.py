"""Embedded Kafka broker (KRaft): a supervised child process that listens on loopback."""

import base64
import json
import logging
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sluiceway_gateway.core.errors import EmbeddedError
from sluiceway_gateway.dev.embedded import supervisor
from sluiceway_gateway.dev.embedded.jars import OnProgress, fetch_jars, find_java, kafka_jars

CLIENT, CONTROLLER = "CLIENT", "CONTROLLER"
"""Names of the listeners of every broker."""

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Java options for short runs, where the optimizing compiler costs more than it saves."""

_SMALL_HEAP_MB = 512
_LOGGING = """status = error
appenders = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:sluiceway.log}
appender.file.filePattern = ${sys:sluiceway.log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{ISO8601} %p %c %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
rootLogger.level = warn
rootLogger.appenderRefs = file
rootLogger.appenderRef.file.ref = file
logger.kafka.name = kafka.server.KafkaRaftServer
logger.kafka.level = info
"""


_START_TIMEOUT_S = 90
_STOP_TIMEOUT_S = 40
_POLL_S = 0.05
_PORT_ATTEMPTS = 5


class BrokerStartFailed(EmbeddedError):
    """The broker exited or did not answer in time; the message has its last log lines."""


def java_options(data_dir: Path, heap_mb: int) -> list[str]:
    """Return the Java options of a broker that logs into `data_dir`."""
    logging_file = data_dir / "log4j2.properties"
    logging_file.write_text(_LOGGING)
    small = SHORT_LIVED if heap_mb < _SMALL_HEAP_MB else ()
    return [
        f"-Xmx{heap_mb}m",
        *small,
        f"-Dlog4j2.configurationFile={logging_file}",
        f"-Dsluiceway.log={data_dir / 'broker.log'}",
        "-Djava.awt.headless=true",
        "-XX:+ExitOnOutOfMemoryError",
    ]


def broker_properties(
    data_dir: Path,
    protocols: Mapping[str, str],
    ports: Mapping[str, int],
    advertised: Mapping[str, int],
) -> dict[str, str]:
    """Return a broker's properties. It advertises `ports`, overridden by `advertised`."""
    public = {name: port for name, port in ports.items() if name != CONTROLLER} | dict(advertised)
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{ports[CONTROLLER]}",
        "listeners": ",".join(_addresses(ports)),
        "advertised.listeners": ",".join(_addresses(public)),
        "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
        "inter.broker.listener.name": CLIENT,
        "controller.listener.names": CONTROLLER,
        "log.dirs": str(data_dir / "log"),
        # Kafka allocates its default of 128 MiB at once, half of a small heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # By default Kafka writes a no-op record twice a second, a quarter of its work when idle.
        "metadata.max.idle.interval.ms": "10000",
        # A misspelt topic name must fail instead of creating a topic.
        "auto.create.topics.enable": "false",
    }


def _addresses(ports: Mapping[str, int]) -> list[str]:
    return [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports of 127.0.0.1.

    Another process may take one before the caller binds it, so the caller must be ready to retry.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


class KafkaServer:
    """A running broker, until `stop()`, the end of the `with` block, or the end of this process.

    Its data stay in `data_dir`, and a later start continues with them. Attributes:
    `bootstrap_servers` ("127.0.0.1:PORT", plaintext), `port`, `listeners` (the addresses of the
    additional listeners by name), `log_path`.
    """

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        owner: IO[bytes],
        ports: Mapping[str, int],
        data_dir: Path,
    ) -> None:
        self._process = process
        self._owner = owner
        self._data_dir = data_dir
        self.port = ports[CLIENT]
        self.log_path = data_dir / "broker.log"
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self.listeners = {
            name: f"127.0.0.1:{port}"
            for name, port in ports.items()
            if name not in (CLIENT, CONTROLLER)
        }

    @classmethod
    def start(
        cls,
        data_dir: Path,
        *,
        port: int | None = None,
        heap_mb: int = 1024,
        listeners: Mapping[str, str] | None = None,
        advertised: Mapping[str, int] | None = None,
        properties: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> "KafkaServer":
        """Start a broker and return once it answers.

        Without a `port`, a free one is chosen. `listeners` adds listeners on free ports, by
        upper-case name with their protocol, such as {"SECURE": "SASL_SSL"}. `advertised` has the
        ports that clients connect to where a proxy is in front of a listener. `properties` are
        added to the broker's, such as those that the listeners need. Raises JavaMissing,
        JarsUnavailable, BrokerStartFailed.
        """
        java, jars = find_java(), fetch_jars(kafka_jars(), on_progress)
        data_dir.mkdir(parents=True, exist_ok=True)
        protocols = {CLIENT: "PLAINTEXT", **(listeners or {}), CONTROLLER: "PLAINTEXT"}
        attempts = _PORT_ATTEMPTS if port is None else 1
        for attempt in range(1, attempts + 1):
            ports = dict(zip(protocols, free_ports(len(protocols)), strict=True))
            ports[CLIENT] = port or ports[CLIENT]
            own = broker_properties(data_dir, protocols, ports, advertised or {})
            server = None
            try:
                server = cls._launch(
                    [str(java), *java_options(data_dir, heap_mb), "-cp", f"{jars}/*"],
                    data_dir,
                    ports,
                    own | dict(properties or {}),
                )
                server.wait_until_ready()
            except BaseException as error:
                if server is not None:
                    server.stop()
                # Another process took the free port: retry with another one.
                taken = isinstance(error, BrokerStartFailed) and "already in use" in str(error)
                if attempt == attempts or not taken:
                    raise
            else:
                return server
        raise AssertionError("unreachable")

    @classmethod
    def _launch(
        cls,
        java: list[str],
        data_dir: Path,
        ports: Mapping[str, int],
        configuration: Mapping[str, str],
    ) -> "KafkaServer":
        (data_dir / "broker.log").unlink(missing_ok=True)
        properties = data_dir / "server.properties"
        # In ASCII with JSON's escapes: Java reads Latin-1, where a backslash begins an escape.
        escaped = {name: json.dumps(value)[1:-1] for name, value in configuration.items()}
        properties.write_text("".join(f"{k}={v}\n" for k, v in escaped.items()))
        if not (data_dir / "log" / "meta.properties").exists():
            _format(java, properties)
        with (data_dir / "broker.out").open("wb") as output:
            # Not Popen's pipe, which would stay open if an interrupt arrives before it is assigned.
            read_end, write_end = os.pipe()
            owner = os.fdopen(write_end, "wb")
            try:
                process = subprocess.Popen(
                    [
                        # Without site-packages, so that Python starts at once.
                        *(sys.executable, "-IS", supervisor.__file__, str(data_dir / "broker.pid")),
                        *java,
                        *("kafka.Kafka", str(properties)),
                    ],
                    stdin=read_end,
                    stdout=output,
                    stderr=output,
                )
                return cls(process, owner, ports, data_dir)
            except BaseException:
                owner.close()
                raise
            finally:
                os.close(read_end)

    @property
    def pid(self) -> int:
        """The process id of the broker itself, once it has answered."""
        return int((self._data_dir / "broker.pid").read_text())

    def stop(self) -> None:
        """Stop the broker, by force after 40 s. Its data stay. May be called again."""
        self._owner.close()
        try:
            self._process.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def running(self) -> bool:
        """Whether the broker's process runs."""
        return self._process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        """Wait until the broker answers. Raises BrokerStartFailed if it exits or takes 90 s."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (self._listens() and self._answers()):
            if not self.running():
                raise BrokerStartFailed(f"The Kafka broker exited while starting:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise BrokerStartFailed(
                    f"The Kafka broker did not answer within {_START_TIMEOUT_S} s:\n{self._tail()}"
                )
            time.sleep(_POLL_S)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _answers(self) -> bool:
        """Whether this broker answers, and not another one on the same port."""
        quiet = logging.getLogger("sluiceway.embedded.quiet")
        quiet.disabled = True
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers}, logger=quiet)
        try:
            metadata = admin.list_topics(timeout=2)
        except KafkaException:
            return False
        return bool(metadata.brokers) and metadata.cluster_id == self.cluster_id

    @property
    def cluster_id(self) -> str:
        """The id of this broker's cluster."""
        lines = (self._data_dir / "log" / "meta.properties").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]

    def _tail(self) -> str:
        """Return the last lines of the broker's log and output."""
        paths = (self.log_path, self._data_dir / "broker.out")
        texts = [path.read_text(errors="replace") for path in paths if path.exists()]
        return "\n".join("".join(texts).splitlines()[-15:])


def _format(java: list[str], properties: Path) -> None:
    tool = [*java, *SHORT_LIVED, "kafka.tools.StorageTool"]
    try:
        done = subprocess.run(
            [*tool, "format", "--cluster-id", _new_cluster_id(), "--config", str(properties)],
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerStartFailed(
            f"Kafka's storage tool did not end within {_START_TIMEOUT_S} s; start it again on a "
            "machine that is less busy."
        ) from error
    if done.returncode != 0:
        raise BrokerStartFailed(f"Kafka's storage tool failed:\n{done.stdout}{done.stderr}")


def _new_cluster_id() -> str:
    """Return a random id in Kafka's format, without the JVM start of Kafka's own tool."""
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # Kafka avoids ids that look like an option on a command line.
        if not cluster_id.startswith("-"):
            return cluster_id
