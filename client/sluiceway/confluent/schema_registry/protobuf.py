"""confluent_kafka.schema_registry.protobuf: its serializers and deserializers."""

from confluent_kafka.schema_registry.protobuf import *  # noqa: F403
