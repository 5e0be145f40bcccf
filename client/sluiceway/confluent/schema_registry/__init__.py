"""confluent_kafka.schema_registry: registry clients and their serializers.

The gateway has the reading interface of a registry below `/registry`.
"""

from confluent_kafka.schema_registry import *  # noqa: F403
