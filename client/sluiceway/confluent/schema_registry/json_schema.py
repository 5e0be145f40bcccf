"""confluent_kafka.schema_registry.json_schema: its serializers and deserializers."""

from confluent_kafka.schema_registry.json_schema import *  # noqa: F403
