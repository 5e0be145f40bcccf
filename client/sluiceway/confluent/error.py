"""confluent_kafka.error: the exceptions of serializing clients."""

from confluent_kafka.error import *  # noqa: F403
