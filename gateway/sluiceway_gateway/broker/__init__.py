"""Kafka's admin interface: the only place of the gateway that knows librdkafka."""

from sluiceway_gateway.kafka.admin import Kafka
from sluiceway_gateway.kafka.calls import Observation
from sluiceway_gateway.kafka.client import check_for_clients

__all__ = ["Kafka", "Observation", "check_for_clients"]
