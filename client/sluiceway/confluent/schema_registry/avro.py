"""confluent_kafka.schema_registry.avro: its serializers and deserializers."""

from confluent_kafka.schema_registry.avro import *  # noqa: F403
