"""One Kafka broker for development, tests and `sluiceway up`: fetched, checked, run, stopped."""

from sluiceway_gateway.embedded.broker import KafkaServer, free_ports
from sluiceway_gateway.embedded.errors import (
    BrokerStartFailed,
    EmbeddedError,
    JarsUnavailable,
    JavaMissing,
)
from sluiceway_gateway.embedded.jars import (
    KAFKA_VERSION,
    JarSet,
    Module,
    fetch_jars,
    kafka_jars,
    read_sums,
)
from sluiceway_gateway.embedded.java import find_java

__all__ = [
    "KAFKA_VERSION",
    "BrokerStartFailed",
    "EmbeddedError",
    "JarSet",
    "JarsUnavailable",
    "JavaMissing",
    "KafkaServer",
    "Module",
    "fetch_jars",
    "find_java",
    "free_ports",
    "kafka_jars",
    "read_sums",
]
