"""confluent-kafka's Consumer and Producer on channels: change the import and the address.

    from sluiceway.confluent import Consumer, KafkaError

    with Consumer({"bootstrap.servers": "http://127.0.0.1:8900", "group.id": "delays"}) as consumer:
        consumer.subscribe(["flights"])
        message = consumer.poll(1.0)

Every public name of `confluent_kafka` can be imported from here, also from the modules `admin`,
`aio`, `error`, `schema_registry` and `serialization`: clients are those of this package, and
messages, partitions and errors are confluent-kafka's classes. docs/coming-from.md lists every name,
and the deliberate differences.
"""

import importlib
from typing import Any, NoReturn

import confluent_kafka
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
from sluiceway.confluent.errors import refused
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
    "DeserializingConsumer",
    "DeserializingShareConsumer",
    "KafkaError",
    "KafkaException",
    "Message",
    "Producer",
    "SerializingProducer",
    "ShareConsumer",
    "TopicPartition",
    "admin",
    "aio",
]

_MODULES = ("admin", "aio", "error", "schema_registry", "serialization")
_SERIALIZING = ("DeserializingConsumer", "SerializingProducer")


class ShareConsumer:
    """Not available: channels have no share groups."""

    def __init__(self, *_: object, **__: object) -> NoReturn:
        raise refused(
            KafkaError._UNSUPPORTED_FEATURE,
            "channels have no share groups: use a Consumer, whose group's members share the "
            "partitions, or the class of confluent_kafka with Kafka's address",
        )


class DeserializingShareConsumer(ShareConsumer):
    """Not available: channels have no share groups."""


def __getattr__(name: str) -> Any:
    # On first use: serializers, registry clients and the admin client take time to import.
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _SERIALIZING:
        return getattr(importlib.import_module(f"{__name__}.serializing"), name)
    if name in confluent_kafka.__all__ and not hasattr(confluent_kafka, name):
        importlib.import_module(f"confluent_kafka.{name}")
    if not name.startswith("_") and hasattr(confluent_kafka, name):
        return getattr(confluent_kafka, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, *confluent_kafka.__all__})
