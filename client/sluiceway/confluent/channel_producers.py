"""Channels of a Producer: one writer endpoint each, and one librdkafka producer for all."""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from sluiceway.confluent.config import ProducerSettings
from sluiceway.confluent.errors import CONFLICT, STATE, TIMED_OUT, kafka_exceptions, refused
from sluiceway.endpoint.writer_endpoint import WriterEndpoint
from sluiceway.errors import KafkaFailure, SluicewayError
from sluiceway.fork_guard import ForkGuard
from sluiceway.kafka.config import producer_config
from sluiceway.kafka.errors import create_client
from sluiceway.rest.models import Connection

__all__ = ["ChannelProducer", "ChannelProducers", "OnDelivery"]

OnDelivery = Callable[[KafkaError | None, Message], object]

LOGGER = logging.getLogger("sluiceway.confluent")

_TIMEOUT_S: Final = 30.0


class ChannelProducer(WriterEndpoint):
    """A channel that is written to. Its fields are for `Producer.produce`, the hot path."""

    def __init__(self, settings: ProducerSettings, channel: str) -> None:
        super().__init__(
            settings.control,
            channel,
            uid=settings.control.channel(channel).uid,
            timeout_s=_TIMEOUT_S,
            config=settings.kafka,
        )
        self.topic = self.connection.topic_name
        self.validates = not self.validator.accepts_any
        # Keys go to these, also when the channel grows: so each key's messages stay in order.
        self.partitions = self.connection.partitions
        # The first callback, which mostly is that of all messages, and its wrapper. Both are set
        # once, as several threads may produce. Then the latest other callback and its wrapper.
        self.on_delivery: OnDelivery | None = None
        self.wrapper: OnDelivery | None = None
        self.latest: tuple[OnDelivery | None, OnDelivery | None] = (None, None)


class ChannelProducers:
    """The channels of one Producer, and their librdkafka producer.

    Until a message has a callback, librdkafka reports failures only, which takes a third of the
    work; `reports_all` is set when it reports everything. Every failure is counted.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._flush_timeout_s = settings.delivery_timeout_ms / 1000 + 10
        self._fork_guard = ForkGuard()
        self._names: dict[str, str] = {}
        self._connection: Connection | None = None
        self.lock = threading.RLock()
        self.created = threading.Event()
        # The current one, and all: another thread may be in a call of one that was replaced.
        self.producer: Any = None
        self.producers: list[Any] = []
        self.reports_all = False
        self.by_name: dict[str, ChannelProducer] = {}

    def require_same_process(self) -> None:
        """Raise KafkaException _STATE in a forked child, which has no threads to send messages."""
        if self._fork_guard.forked:
            raise refused(
                STATE,
                f"this producer was created by the process {self._fork_guard.pid} and sends "
                "nothing from a process forked from it: create one here",
            )

    def open(self, name: str, *, reports_all: bool) -> ChannelProducer:
        """Open a channel; the caller holds `lock` and adds it to `by_name`.

        Raises KafkaException.
        """
        with kafka_exceptions():
            channel = ChannelProducer(self._settings, name)
            connection = channel.connection
            try:
                self._check_kafka(connection)
                if self.producer is None:
                    self._connection = connection
                    self._create(reports_all=reports_all)
            except BaseException as error:
                channel.handle.fail(error)
                raise
        self._names[channel.topic] = name
        return channel

    def report_all(self) -> None:
        """Report all deliveries from now on, after messages under way. The caller holds `lock`."""
        if not self.reports_all:
            self.producer.flush(self._flush_timeout_s)
            self._create(reports_all=True)

    def wrapped(self, channel: ChannelProducer, on_delivery: OnDelivery) -> OnDelivery:
        """Return a delivery callback that counts failures and sets the channel's name.

        The same callback as the latest one gets the same wrapper.
        """
        latest, wrapper = channel.latest
        if wrapper is not None and latest == on_delivery:
            return wrapper
        name = channel.handle.channel

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.count(error, message)
            message.set_topic(name)
            on_delivery(error, message)

        channel.latest = (on_delivery, delivered)
        if channel.on_delivery is None:
            # In this order: a thread that sees the callback also finds its wrapper.
            channel.wrapper = delivered
            channel.on_delivery = on_delivery
        return delivered

    def count(self, error: KafkaError | None, message: Message) -> None:
        """Count a message that was not delivered, and set the channel's name."""
        name = self._names.get(message.topic())
        if name is None:
            return
        message.set_topic(name)
        if error is not None:
            self.by_name[name].add_failure(_reason(error))

    def report(self) -> None:
        """Let heartbeats report counts, unless another thread holds the lock."""
        if self.lock.acquire(blocking=False):
            try:
                for channel in self.by_name.values():
                    channel.report()
            finally:
                self.lock.release()

    def close(self, error: BaseException | None = None) -> SluicewayError | None:
        """Flush, and report the ends, or `error`; return the first failure.

        Raises the exception of a callback after all of that.
        """
        raised: Exception | None = None
        for producer in self.producers:
            left, caught = self._flush(producer)
            raised = raised or caught
            for channel in self.by_name.values() if left else ():
                channel.add_failure(_reason(KafkaError(TIMED_OUT)))
        failure: SluicewayError | None = None
        with self.lock:
            for name in list(self.by_name):
                channel = self.by_name.pop(name)
                try:
                    channel.report()
                    channel.close(error, timeout_s=_TIMEOUT_S)
                except SluicewayError as unreported:
                    LOGGER.warning("the end of %s is not reported: %s", name, unreported)
                    if isinstance(unreported, KafkaFailure):
                        channel.handle.fail(unreported)
                    failure = failure or unreported
        self._settings.control.close()
        if raised is not None:
            raise raised
        return failure

    def close_abandoned(self) -> None:
        """Close, for a producer that was not closed."""
        try:
            self.close()
        except Exception:
            LOGGER.exception("a callback failed at the end of a producer that was not closed")

    def _flush(self, producer: Any) -> tuple[int, Exception | None]:
        """Flush; return the number of messages left, and the exception of a callback."""
        raised: Exception | None = None
        while True:
            try:
                return producer.flush(self._flush_timeout_s), raised
            except Exception as error:
                # The other callbacks run as well, and the ends are reported.
                raised = raised or error

    def _check_kafka(self, connection: Connection) -> None:
        if self._connection and dict(self._connection.kafka) != dict(connection.kafka):
            raise refused(
                CONFLICT,
                f"the channel {connection.channel_name!r} has other Kafka connection properties "
                "than the channels of this producer: use another producer for it",
            )

    def _create(self, *, reports_all: bool) -> None:
        assert self._connection is not None  # noqa: S101 - set by the first channel
        settings = self._settings
        config = producer_config(
            self._connection.kafka,
            settings.kafka,
            delivery_timeout_ms=settings.delivery_timeout_ms,
            max_message_bytes=self._connection.max_message_bytes,
        )
        own: dict[str, Any] = {
            "on_delivery": self.count,
            "delivery.report.only.error": not reports_all,
        }
        self.reports_all = reports_all
        self.producer = create_client(Producer, config.over({**settings.callbacks, **own}))
        self.producers.append(self.producer)
        self.created.set()


def _reason(error: KafkaError) -> str:
    return f"{error.name()}, {error.str()}"
