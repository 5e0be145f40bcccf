"""confluent_kafka.serialization: serializers of keys and values."""

from confluent_kafka.serialization import *  # noqa: F403
