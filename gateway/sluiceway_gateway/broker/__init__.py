"""Kafka's admin interface: the only place of the gateway that knows librdkafka."""

from sluiceway_gateway.broker.admin import Kafka
from sluiceway_gateway.broker.client import check_for_clients
from sluiceway_gateway.broker.observation import Observation

__all__ = ["Kafka", "Observation", "check_for_clients"]
