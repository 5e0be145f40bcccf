"""confluent-kafka's Consumer and Producer on channels: change the import and the address.

    from sluiceway.confluent import Consumer, KafkaError

    with Consumer({"bootstrap.servers": "http://127.0.0.1:8900", "group.id": "delays"}) as consumer:
        consumer.subscribe(["flights"])
        message = consumer.poll(1.0)

Messages, partitions and errors are confluent-kafka's classes. docs/coming-from.md lists every name,
and the deliberate differences.
"""

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from sluiceway.confluent.consumer import Consumer
from sluiceway.confluent.producer import Producer

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "Consumer",
    "KafkaError",
    "KafkaException",
    "Message",
    "Producer",
    "TopicPartition",
]
