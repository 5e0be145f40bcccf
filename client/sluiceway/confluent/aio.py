"""confluent-kafka's asynchronous clients on channels."""

import types
from collections.abc import Callable
from typing import Any

import confluent_kafka.aio

from sluiceway.confluent.consumer import Consumer
from sluiceway.confluent.producer import Producer

__all__ = ["AIOConsumer", "AIOProducer", "AsyncDeserializingConsumer", "AsyncSerializingProducer"]


def _creating(original: type, **classes: Any) -> Callable[..., Any]:
    """Return the constructor of an asynchronous client that creates clients of these classes.

    It has no parameter for them: it takes them from the names of its module.
    """
    constructor: Any = original.__init__  # type: ignore[misc]
    created = types.FunctionType(
        constructor.__code__,
        {**constructor.__globals__, **classes},
        constructor.__name__,
        constructor.__defaults__,
        constructor.__closure__,
    )
    created.__kwdefaults__ = constructor.__kwdefaults__
    return created


_CLIENTS = types.SimpleNamespace(Consumer=Consumer, Producer=Producer)


class AIOConsumer(confluent_kafka.aio.AIOConsumer):  # type: ignore[misc]
    """confluent-kafka's AIOConsumer on a Consumer of channels."""

    __init__ = _creating(confluent_kafka.aio.AIOConsumer, confluent_kafka=_CLIENTS)


class AIOProducer(confluent_kafka.aio.AIOProducer):  # type: ignore[misc]
    """confluent-kafka's AIOProducer on a Producer of channels."""

    __init__ = _creating(confluent_kafka.aio.AIOProducer, confluent_kafka=_CLIENTS)


class AsyncDeserializingConsumer(confluent_kafka.aio.AsyncDeserializingConsumer):  # type: ignore[misc]
    """confluent-kafka's AsyncDeserializingConsumer on a Consumer of channels."""

    __init__ = _creating(confluent_kafka.aio.AsyncDeserializingConsumer, AIOConsumer=AIOConsumer)


class AsyncSerializingProducer(confluent_kafka.aio.AsyncSerializingProducer):  # type: ignore[misc]
    """confluent-kafka's AsyncSerializingProducer on a Producer of channels."""

    __init__ = _creating(confluent_kafka.aio.AsyncSerializingProducer, AIOProducer=AIOProducer)
