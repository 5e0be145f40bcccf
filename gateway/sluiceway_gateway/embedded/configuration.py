"""What an embedded broker is told: its properties, its log, and Java's options."""

from collections.abc import Mapping
from pathlib import Path

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
