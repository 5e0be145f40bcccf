"""confluent_kafka.schema_registry.error: the errors of a registry."""

from confluent_kafka.schema_registry.error import *  # noqa: F403
