"""Embedded Kafka broker for development, tests and `sluiceway up`."""

from sluiceway_gateway.embedded.broker import BrokerStartFailed, KafkaServer, free_ports
from sluiceway_gateway.embedded.jars import (
    KAFKA_VERSION,
    EmbeddedError,
    JarSet,
    JarsUnavailable,
    JavaMissing,
    Module,
    OnProgress,
    fetch_jars,
    find_java,
    kafka_jars,
    read_sums,
)

__all__ = [
    "KAFKA_VERSION",
    "BrokerStartFailed",
    "EmbeddedError",
    "JarSet",
    "JarsUnavailable",
    "JavaMissing",
    "KafkaServer",
    "Module",
    "OnProgress",
    "fetch_jars",
    "find_java",
    "free_ports",
    "kafka_jars",
    "read_sums",
]
