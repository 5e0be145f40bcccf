"""The producers of a Producer, one per channel."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from sluiceway.codecs.wire import WireFormatValidator
from sluiceway.confluent.config import ProducerSettings
from sluiceway.confluent.errors import CONFLICT, STATE, TIMED_OUT, kafkas_names, refused
from sluiceway.confluent.members import attached
from sluiceway.errors import DeliveryFailed, KafkaFailure, SluicewayError
from sluiceway.kafka.config import producer_config
from sluiceway.kafka.errors import create_client
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.rest.models import Connection

__all__ = ["Outlet", "Outlets"]

OnDelivery = Callable[[KafkaError | None, Message], object]

LOGGER = logging.getLogger("sluiceway.confluent")

_TIMEOUT_S: Final = 30.0
_GRACE_S: Final = 10.0


class Outlet:
    """A channel that is written to, as an endpoint of its own."""

    def __init__(self, settings: ProducerSettings, channel: str) -> None:
        control = settings.control
        self.attachment = attached(control, channel, None, "writer")
        try:
            self.connection: Connection = self.attachment.attached.connection
            self.topic = self.connection.topic_name
            self.records = 0
            # Keys are placed within these, also when the channel grows: so they stay in order.
            self.partitions = self.connection.partitions
            # One more than the highest partition that a message may have gone to.
            self.reach = self.partitions
            # Who is told of deliveries, and what calls him: the first who wanted to be, mostly for
            # all messages. Put here once, as several threads may produce; then the latest other.
            self.told: OnDelivery | None = None
            self.telling: OnDelivery | None = None
            self.latest: tuple[OnDelivery | None, OnDelivery | None] = (None, None)
            self.failed: KafkaError | None = None
            self.failures = 0
            self.identity = TopicIdentity(self.connection, settings.kafka)
            self.identity.verify(timeout_s=_TIMEOUT_S)
            self.wire = WireFormatValidator(
                self.connection, refresh=lambda: control.connection(channel, "write")
            )
            self.checks = not self.wire.takes_any
        except BaseException as error:
            self.attachment.fail(error)
            raise

    def finish(self, error: BaseException | None) -> None:
        """Tell the gateway where its messages end, or that there is more amiss."""
        attachment = self.attachment
        attachment.record_cycle(self.records)
        if error is not None:
            attachment.fail(error)
            return
        if self.failed is not None:
            attachment.fail(
                DeliveryFailed(
                    partition=None,
                    reason=f"{self.failed.name()}, {self.failed.str()}",
                    written_records=self.records - self.failures,
                    failed_records=self.failures,
                )
            )
            return
        ends: Mapping[int, int] | None = None
        if self.records:
            # The channel may have grown, and messages without a key go to any partition.
            found = self.identity.all_ends(timeout_s=_TIMEOUT_S, least=self.reach)
            ends = {partition: end for partition, end in found.items() if end}
        attachment.detach(ends=ends)


class Outlets:
    """All channels of one producer.

    Until somebody wants to hear of deliveries, librdkafka reports failures alone, which is a third
    of the work; `full` says that it reports all. Every failure is counted, whoever listens. Who
    opens one holds `turn`.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._names: dict[str, str] = {}
        self._kafka: Mapping[str, str] | None = None
        self._max_message_bytes = 0
        self._process = os.getpid()
        self.turn = threading.RLock()
        self._before: list[Any] = []
        self.made = threading.Event()
        self.raw: Any = None
        self.full = False
        self.by_name: dict[str, Outlet] = {}

    def require_here(self) -> None:
        """Raise KafkaException _STATE in a process that was forked: nothing is sent from there."""
        if os.getpid() != self._process:
            raise refused(
                STATE,
                f"this producer was made by the process {self._process}, and what is given to it "
                "in one that was forked from it is not sent: make one here",
            )

    def open(self, channel: str, *, full: bool) -> Outlet:
        """Attach to a channel, by one thread at a time; it is to be put `by_name`.

        Raises KafkaException.
        """
        with kafkas_names():
            outlet = Outlet(self._settings, channel)
            connection = outlet.connection
            try:
                self._require_same_way(connection)
                if self.raw is None:
                    self._kafka = connection.kafka
                    self._max_message_bytes = connection.max_message_bytes
                    self._make(full=full)
            except BaseException as error:
                outlet.attachment.fail(error)
                raise
        self._names[outlet.topic] = channel
        return outlet

    def widen(self) -> None:
        """Have all deliveries reported from now on; what is under way is waited for."""
        with self.turn:
            if not self.full:
                self.raw.flush(self._patience_s)
                # Another thread may be giving a message to it.
                self._before.append(self.raw)
                self._make(full=True)

    def telling(self, outlet: Outlet, told: OnDelivery) -> OnDelivery:
        """Return what is called for a delivery in the place of `told`, and calls it."""
        name = outlet.attachment.channel

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.noted(error, message)
            message.set_topic(name)
            told(error, message)

        return delivered

    def noted(self, error: KafkaError | None, message: Message) -> None:
        """Count what was not delivered, and give the message its channel's name."""
        name = self._names.get(message.topic())
        if name is None:
            return
        message.set_topic(name)
        if error is not None:
            outlet = self.by_name[name]
            outlet.failed = outlet.failed or error
            outlet.failures += 1

    def tell(self) -> None:
        """Let beats say how much was written, unless another thread does or opens a channel."""
        if self.turn.acquire(blocking=False):
            try:
                for outlet in self.by_name.values():
                    outlet.attachment.record_cycle(outlet.records)
            finally:
                self.turn.release()

    def finish(self, error: BaseException | None = None) -> SluicewayError | None:
        """Wait for what is under way, tell the gateway of the ends; return what went wrong.

        `error` is what the producer was left by. Raises what a callback raised, when all is done.
        """
        raised: Exception | None = None
        for each in [*self._before, *([] if self.raw is None else [self.raw])]:
            left, told = self._flushed(each)
            raised = raised or told
            for outlet in self.by_name.values() if left else ():
                outlet.failed = outlet.failed or KafkaError(TIMED_OUT)
                outlet.failures += 1
        failure: SluicewayError | None = None
        with self.turn:
            for name in list(self.by_name):
                outlet = self.by_name.pop(name)
                try:
                    outlet.finish(error)
                except SluicewayError as untold:
                    LOGGER.warning("the end of the messages to %s is not told: %s", name, untold)
                    if isinstance(untold, KafkaFailure):
                        outlet.attachment.fail(untold)
                    failure = failure or untold
        self._settings.control.close()
        if raised is not None:
            raise raised
        return failure

    def _flushed(self, raw: Any) -> tuple[int, Exception | None]:
        """Wait for what is under way; return how much is left, and what a callback raised."""
        raised: Exception | None = None
        while True:
            try:
                return raw.flush(self._patience_s), raised
            except Exception as error:
                # The others are called, too, and readers hear of the end.
                raised = raised or error

    @property
    def _patience_s(self) -> float:
        return self._settings.delivery_timeout_ms / 1000 + _GRACE_S

    def _require_same_way(self, connection: Connection) -> None:
        if self._kafka is not None and dict(self._kafka) != dict(connection.kafka):
            raise refused(
                CONFLICT,
                f"the channel {connection.channel_name!r} is reached over Kafka in another way "
                "than those that this producer has already: use another one for it",
            )

    def _make(self, *, full: bool) -> None:
        settings = self._settings
        config = producer_config(
            self._kafka or {},
            settings.kafka,
            delivery_timeout_ms=settings.delivery_timeout_ms,
            max_message_bytes=self._max_message_bytes,
        )
        self.full = full
        own = {"on_delivery": self.noted, "delivery.report.only.error": not full}
        self.raw = create_client(Producer, config.over({**settings.callbacks, **own}))
        self.made.set()


def finish_quietly(outlets: Outlets) -> None:
    """End a producer that was forgotten, or that the process ends with."""
    began_s = time.monotonic()
    try:
        outlets.finish()
    except Exception:
        LOGGER.exception("a callback failed at the end of a producer that was not closed")
    LOGGER.debug("a producer that was not closed was ended in %.1f s", time.monotonic() - began_s)
