"""Producers that serialize keys and values, and consumers that deserialize them."""

import contextlib
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from confluent_kafka import Message
from confluent_kafka.error import (
    ConsumeError,
    KeyDeserializationError,
    KeySerializationError,
    ValueDeserializationError,
    ValueSerializationError,
)
from confluent_kafka.serialization import MessageField, SerializationContext

from sluiceway.confluent.consumer import Consumer
from sluiceway.confluent.local_queue import OnDelivery
from sluiceway.confluent.producer import Producer
from sluiceway.spi import MaskedProperties

__all__ = ["DeserializingConsumer", "SerializingProducer"]

LOGGER = logging.getLogger("sluiceway.confluent")

Serde = Callable[[Any, SerializationContext], Any]


class _Serdes:
    """The serializers, or deserializers, of a client's configuration; `rest` is without them.

    Those that a builder has made are closed with the client.
    """

    def __init__(self, config: MaskedProperties, kind: str) -> None:
        """Take `key.{kind}`, `value.{kind}` and their builders. Raises ValueError."""
        self.rest = MaskedProperties(config)
        self._own: list[Any] = []
        builders = {}
        serdes: dict[str, Serde | None] = {}
        for part in ("key", "value"):
            name = f"{part}.{kind}"
            serdes[part] = self.rest.pop(name, None)
            builders[part] = self.rest.pop(f"{name}.builder", None)
            if serdes[part] is not None and builders[part] is not None:
                raise ValueError(
                    f"Cannot configure both {name} and {name}.builder; use one or the other"
                )
        properties = MaskedProperties(self.rest)
        try:
            for part, builder in builders.items():
                if builder is not None:
                    # It returns the properties that are not its own.
                    serdes[part], left = builder.build(MaskedProperties(properties), part == "key")
                    self._own.append(serdes[part])
                    for name in self.rest.keys() - left:
                        del self.rest[name]
        except BaseException:
            self.close()
            raise
        self.key, self.value = serdes["key"], serdes["value"]

    def resolve_cluster_id(self, client: Any) -> None:
        """Let serializers that need the id of the Kafka cluster request it from the client."""
        reference = weakref.ref(client)
        for serde in (self.key, self.value):
            set_resolver = getattr(serde, "set_cluster_id_resolver", None)
            if callable(set_resolver):
                set_resolver(lambda: reference().cluster_id(timeout=60))  # type: ignore[union-attr]

    def close(self) -> None:
        """Close those that were built here; errors are logged."""
        own, self._own = self._own, []
        for serde in own:
            try:
                getattr(serde, "close", lambda: None)()
            except Exception:
                LOGGER.exception("a serializer was not closed")


class SerializingProducer(Producer):
    """A Producer that serializes keys and values, as confluent-kafka's.

    `key.serializer` and `value.serializer` are callables, or `….builder` builds them.
    """

    def __init__(self, conf: Mapping[str, Any]) -> None:
        # Masked, because error reporters show the arguments of frames.
        conf = MaskedProperties(conf)
        self._serdes = _Serdes(conf, "serializer")
        try:
            super().__init__(self._serdes.rest)
        except BaseException:
            self._serdes.close()
            raise
        self._serdes.resolve_cluster_id(self)

    def produce(  # type: ignore[override]
        self,
        topic: str,
        key: Any = None,
        value: Any = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Serialize key and value, and send them as `Producer.produce` does.

        Raises KeySerializationError, ValueSerializationError, and what that raises.
        """
        self._require_open()
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a str, not {type(topic).__name__}")
        context = SerializationContext(topic, MessageField.KEY, headers)
        if self._serdes.key is not None:
            try:
                key = self._serdes.key(key, context)
            except Exception as error:
                raise KeySerializationError(error) from error
        context.field = MessageField.VALUE
        if self._serdes.value is not None:
            try:
                value = self._serdes.value(value, context)
            except Exception as error:
                raise ValueSerializationError(error) from error
        super().produce(topic, value, key, partition, None, on_delivery, timestamp, headers)

    def close(self, *arguments: float, **named: float) -> bool:
        """Close the producer, and then the serializers that it has built."""
        closed = super().close(*arguments, **named)
        self._serdes.close()
        return closed

    def __exit__(self, *exception: Any) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._serdes.close)
            super().__exit__(*exception)


class DeserializingConsumer(Consumer):
    """A Consumer that deserializes keys and values, as confluent-kafka's.

    `key.deserializer` and `value.deserializer` are callables, or `….builder` builds them.
    """

    def __init__(self, conf: Mapping[str, Any]) -> None:
        # Masked, because error reporters show the arguments of frames.
        conf = MaskedProperties(conf)
        self._serdes = _Serdes(conf, "deserializer")
        try:
            super().__init__(self._serdes.rest)
        except BaseException:
            self._serdes.close()
            raise
        self._serdes.resolve_cluster_id(self)

    def poll(self, timeout: float | None = -1) -> Message | None:
        """Return a message with deserialized key and value, or None after `timeout` seconds.

        Raises ConsumeError for an event, KeyDeserializationError, ValueDeserializationError.
        """
        message = super().poll(timeout)
        if message is None:
            return None
        if message.error() is not None:
            raise ConsumeError(message.error(), kafka_message=message)
        context = SerializationContext(message.topic(), MessageField.KEY, message.headers())
        key, value = message.key(), message.value()
        if self._serdes.key is not None:
            try:
                key = self._serdes.key(key, context)
            except Exception as error:
                raise KeyDeserializationError(exception=error, kafka_message=message) from error
        if self._serdes.value is not None:
            context.field = MessageField.VALUE
            try:
                value = self._serdes.value(value, context)
            except Exception as error:
                raise ValueDeserializationError(exception=error, kafka_message=message) from error
        message.set_key(key)
        message.set_value(value)
        return message

    def consume(self, num_messages: int = 1, timeout: float = -1) -> NoReturn:
        """Not available, as in confluent-kafka: use `poll`."""
        raise NotImplementedError("consume() does not deserialize: use poll()")

    def close(self) -> None:
        """Close the consumer, and then the deserializers that it has built."""
        super().close()
        self._serdes.close()
