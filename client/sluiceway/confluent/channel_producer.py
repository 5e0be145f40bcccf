"""Channel of a Producer: a writer endpoint, validation and delivery callbacks."""

import collections
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, Message

from sluiceway.confluent.config import ProducerSettings, partition_of_key
from sluiceway.confluent.errors import INVALID_ARG, kafka_exceptions, refused
from sluiceway.confluent.local_queue import OnDelivery, PendingMessage
from sluiceway.errors import SluicewayError
from sluiceway.ledger.message_batches import BatchedEndpoint

__all__ = ["ChannelProducer"]

_TIMEOUT_S: Final = 30.0


def _nothing() -> None:
    return None


class ChannelProducer(BatchedEndpoint):
    """A channel that is written to. Its fields are for `Producer.produce`, the hot path.

    `probe_s` limits the first request, which finds out whether the gateway answers. Of an
    exactly-once channel, reports may be served by any thread: callbacks are added to `calls`.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        channel: str,
        *,
        probe_s: float,
        calls: collections.deque[Callable[[], object]],
    ) -> None:
        super().__init__(
            settings.control,
            channel,
            uid=settings.control.channel(channel, timeout_s=probe_s).uid,
            timeout_s=_TIMEOUT_S,
            config=settings.kafka,
            owner=settings.transactional_id,
        )
        # Readers need no replacement of a writer that fails before its first message.
        self.handle.pristine = True
        self.topic = self.connection.topic_name
        # While one thread has it, batches are neither opened nor ended, and nothing is produced.
        self.held = False
        self.failure: SluicewayError | None = None
        self._calls = calls
        self._only_errors = settings.only_errors
        self.validates = not self.validator.accepts_any
        # Keys go to these, also when the channel grows: so each key's messages stay in order.
        # 0: librdkafka's partitioner chooses.
        self.partitions = 0 if settings.partitioner_of_librdkafka else self.connection.partitions
        # Also after the producer refuses further messages, `_send` takes those of the queue.
        self.produce: Callable[..., None]
        self._send: Callable[..., None]
        # The latest wrapper of a delivery callback. librdkafka holds it while messages are under
        # way; a reference of ours would keep the callback's objects afterwards.
        self.latest: Callable[[], Any] = _nothing

    def may_refresh(self, value: Any) -> bool:
        """Whether validation of a value needs a request to the gateway."""
        return self.validates and self.validator.may_refresh(_encoded(value))

    def require_valid(self, value: Any) -> None:
        """Raise KafkaException for a value that is invalid in the channel, TypeError."""
        with kafka_exceptions():
            reason = self.validator.error(_encoded(value))
        if reason is not None:
            raise refused(INVALID_ARG, reason)

    def wrapped(self, on_delivery: OnDelivery) -> OnDelivery:
        """Return a delivery callback that counts failures and sets the channel's name.

        While messages are under way, the same callback as the latest one gets the same wrapper.
        """
        latest = self.latest()
        if latest is not None and latest.__wrapped__ == on_delivery:
            return latest  # type: ignore[no-any-return]
        if not callable(on_delivery):
            raise TypeError("on_delivery must be callable")
        name = self.handle.channel

        batches, calls, only_errors = self.batches, self._calls, self._only_errors

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None or batches is not None:
                self.note_delivery(error, message)
            if error is None and only_errors:
                return
            message.set_topic(name)
            if batches is None:
                on_delivery(error, message)
            else:
                calls.append(partial(on_delivery, error, message))

        delivered.__wrapped__ = on_delivery  # type: ignore[attr-defined]
        self.latest = weakref.ref(delivered)
        return delivered

    def note_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Count a failed message, and note the offset of one that belongs to a batch."""
        if self.batches is None:
            if error is not None:
                self.add_failure(reason_of(error))
        elif error is not None:
            self.batches.add_failure(reason_of(error))
        else:
            self.batches.add_delivered(message.partition(), message.offset())

    def connect(self, produce: Callable[..., None]) -> None:
        """Hand messages to this function of librdkafka's producer from now on."""
        self.produce = self._send = produce

    def send(self, message: PendingMessage) -> None:
        """Hand a message of the local queue to librdkafka. Raises BufferError, KafkaException."""
        partition = message.partition
        if message.key is not None and partition == -1:
            partition = partition_of_key(message.key, self.partitions)
        named: dict[str, Any] = {}
        if message.on_delivery is not None:
            named["on_delivery"] = self.wrapped(message.on_delivery)
        if message.timestamp:
            named["timestamp"] = message.timestamp
        if message.headers is not None:
            named["headers"] = message.headers
        self.handle.pristine = False
        self._send(self.topic, message.value, message.key, partition, **named)
        if self.batches is not None:
            self.batches.admitted += 1
        self.records += 1
        self.partitions_used = max(self.partitions_used, partition + 1)


def reason_of(error: KafkaError) -> str:
    """Return an error for the cause of a failed writer."""
    return f"{error.name()}, {error.str()}"


def _encoded(value: Any) -> bytes | None:
    given = value.encode() if isinstance(value, str) else value
    if given is not None and not isinstance(given, bytes):
        raise TypeError(f"a value is str or bytes, not {type(value).__name__}")
    return given
