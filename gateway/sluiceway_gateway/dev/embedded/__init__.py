"""Embedded Kafka broker for development, tests and `sluiceway up`."""

from sluiceway_gateway.dev.embedded.broker import BrokerStartFailed, KafkaServer, free_ports
from sluiceway_gateway.dev.embedded.jars import JarsUnavailable, JavaMissing, OnProgress, find_java

__all__ = [
    "BrokerStartFailed",
    "JarsUnavailable",
    "JavaMissing",
    "KafkaServer",
    "OnProgress",
    "find_java",
    "free_ports",
]
