"""Embedded Kafka broker for development, tests and `sluiceway up`."""

from sluiceway_gateway.embedded.broker import BrokerStartFailed, KafkaServer, free_ports
from sluiceway_gateway.embedded.jars import (
    EmbeddedError,
    JarsUnavailable,
    JavaMissing,
    OnProgress,
    find_java,
)

__all__ = [
    "BrokerStartFailed",
    "EmbeddedError",
    "JarsUnavailable",
    "JavaMissing",
    "KafkaServer",
    "OnProgress",
    "find_java",
    "free_ports",
]
