"""An embedded Kafka broker (KRaft) as a child process on loopback."""

import base64
import logging
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sluiceway_gateway.embedded import keeper
from sluiceway_gateway.embedded.errors import BrokerStartFailed
from sluiceway_gateway.embedded.jars import Progress, fetch_jars, kafka_jars
from sluiceway_gateway.embedded.java import find_java

CLIENT, CONTROLLER = "CLIENT", "CONTROLLER"
"""The names of the listeners that every broker has."""

SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Java's options where to optimise would cost more than it saves."""

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


def java_options(data_dir: Path, heap_mb: int) -> list[str]:
    """Return the options of a broker whose log goes into `data_dir`."""
    logging_file = data_dir / "log4j2.properties"
    logging_file.write_text(_LOGGING)
    # A small broker has little to do: the optimising compiler would cost more than it saves.
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
    """Return a broker's properties; clients are told the `advertised` ports of its listeners."""
    told = {each: port for each, port in ports.items() if each != CONTROLLER} | dict(advertised)
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{ports[CONTROLLER]}",
        "listeners": ",".join(_addresses(ports)),
        "advertised.listeners": ",".join(_addresses(told)),
        "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
        "inter.broker.listener.name": CLIENT,
        "controller.listener.names": CONTROLLER,
        "log.dirs": str(data_dir / "log"),
        # Kafka's own 128 MiB are allocated at the start, and half of what a small heap has.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # Twice a second Kafka would note that nothing happened, a quarter of what an idle one does.
        "metadata.max.idle.interval.ms": "10000",
        # A topic exists because somebody asked for it by name, never by a typing error.
        "auto.create.topics.enable": "false",
    }


def _addresses(ports: Mapping[str, int]) -> list[str]:
    return [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of 127.0.0.1 that nothing listened on just now.

    Somebody else may take one before it is used: whoever binds it must be ready to ask again.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


_START_TIMEOUT_S = 90
_STOP_TIMEOUT_S = 40
_POLL_S = 0.05
_PORT_ATTEMPTS = 5


class KafkaServer:
    """A running broker. Its data stay in `data_dir`, so a later start goes on with them.

    Attributes: `bootstrap_servers` ("127.0.0.1:PORT", without encryption), `port`, `listeners`
    (the addresses of the further listeners by name), `pid` (the broker's own process),
    `log_path`. It ends with `stop()`, with the `with` block, or with this process.
    """

    def __init__(
        self,
        *,
        keeper: "subprocess.Popen[bytes]",
        pid: int,
        ports: Mapping[str, int],
        log_path: Path,
    ) -> None:
        self._keeper = keeper
        self.pid = pid
        self.port = ports[CLIENT]
        self.log_path = log_path
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
        on_progress: Progress | None = None,
    ) -> "KafkaServer":
        """Start a broker and return once it answers.

        Without a `port` a free one is chosen. `listeners` are further ones on free ports, each
        a name in capitals with its protocol, such as {"SECURE": "SASL_SSL"}; clients are sent to
        the port in `advertised`, where something stands before a listener. `properties` are added
        to the broker's own, among them what those listeners need.
        Raises JavaMissing, JarsUnavailable, BrokerStartFailed.
        """
        java, jars = find_java(), fetch_jars(kafka_jars(), on_progress)
        data_dir.mkdir(parents=True, exist_ok=True)
        protocols = {CLIENT: "PLAINTEXT", **(listeners or {}), CONTROLLER: "PLAINTEXT"}
        attempts = _PORT_ATTEMPTS if port is None else 1
        for attempt in range(1, attempts + 1):
            ports = dict(zip(protocols, free_ports(len(protocols)), strict=True))
            ports[CLIENT] = port or ports[CLIENT]
            own = broker_properties(data_dir, protocols, ports, advertised or {})
            server = cls._launch(
                [str(java), *java_options(data_dir, heap_mb), "-cp", f"{jars}/*"],
                data_dir,
                ports,
                own | dict(properties or {}),
            )
            try:
                server.wait_until_ready()
            except BrokerStartFailed as error:
                server.stop()
                # A free port was taken by somebody else in between: ask for another one.
                if attempt == attempts or "Address already in use" not in str(error):
                    raise
            except BaseException:
                server.stop()
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
        log_path = data_dir / "broker.log"
        log_path.unlink(missing_ok=True)
        properties = data_dir / "server.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in configuration.items()))
        if not (data_dir / "log" / "meta.properties").exists():
            _format(java, properties)
        with (data_dir / "broker.out").open("wb") as output:
            keeping = subprocess.Popen(
                [
                    # It needs nothing but Python, and starts at once when it looks for no more.
                    *(sys.executable, "-IS", keeper.__file__),
                    *java,
                    *("kafka.Kafka", str(properties)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
            )
        assert keeping.stdout is not None  # noqa: S101 - asked for above
        try:
            pid = int(keeping.stdout.readline() or 0)
        except BaseException:
            # Interrupted before anybody else knows of it.
            _end(keeping)
            raise
        return cls(keeper=keeping, pid=pid, ports=ports, log_path=log_path)

    def stop(self) -> None:
        """Stop the broker cleanly, by force after 40 s; its data stay. May be repeated."""
        _end(self._keeper)

    def running(self) -> bool:
        """Tell whether the broker's process is there."""
        return self._keeper.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        """Return once this broker answers; raises BrokerStartFailed if it ends or takes 90 s."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (self._listens() and self._answers()):
            if not self.running():
                raise BrokerStartFailed(f"The Kafka broker ended at its start:\n{self._tail()}")
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
        """Tell whether it is this broker that answers, and not another one on the same port."""
        quiet = logging.getLogger("sluiceway.embedded.quiet")
        quiet.disabled = True
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers}, logger=quiet)
        try:
            metadata = admin.list_topics(timeout=2)
        except KafkaException:
            return False
        return bool(metadata.brokers) and metadata.cluster_id == self._cluster_id()

    def _cluster_id(self) -> str:
        lines = (self.log_path.parent / "log" / "meta.properties").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]

    def _tail(self, lines: int = 15) -> str:
        """Return the last lines of the broker's log and output."""
        texts = [
            path.read_text(errors="replace")
            for path in (self.log_path, self.log_path.with_suffix(".out"))
            if path.exists()
        ]
        return "\n".join("".join(texts).splitlines()[-lines:])


def _end(keeper: "subprocess.Popen[bytes]") -> None:
    """Have the keeper end its broker, and itself; by force after 40 s."""
    if keeper.stdin is not None:
        keeper.stdin.close()
    try:
        keeper.wait(timeout=_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()
    if keeper.stdout is not None:
        keeper.stdout.close()


def _format(java: list[str], properties: Path) -> None:
    tool = [*java, *SHORT_LIVED, "kafka.tools.StorageTool"]
    done = subprocess.run(
        [*tool, "format", "--cluster-id", _cluster_id(), "--config", str(properties)],
        capture_output=True,
        text=True,
        timeout=_START_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise BrokerStartFailed(f"Kafka's storage tool failed:\n{done.stdout}{done.stderr}")


def _cluster_id() -> str:
    """Return a new id as Kafka's own tool makes them, which would take a JVM of its own."""
    while True:
        made = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # Kafka has none that a command would take for an option.
        if not made.startswith("-"):
            return made
