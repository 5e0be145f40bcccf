"""Message sender of a Producer: attaches its channels, and sends the queued messages."""

import contextlib
import logging
import threading
import time
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sluiceway import Connection
from sluiceway.confluent.channel_producer import BatchCommits, ChannelProducer, reason_of
from sluiceway.confluent.config import ProducerSettings
from sluiceway.confluent.errors import FAIL, INVALID_ARG, kafka_error, require_same_kafka
from sluiceway.confluent.local_queue import (
    SHORT_WAIT_S,
    Deliveries,
    LocalQueue,
    PendingMessage,
    encoded,
)
from sluiceway.confluent.statistics import channel_statistics
from sluiceway.errors import Forbidden, GatewayError, KafkaFailure, SluicewayError, TopicGone
from sluiceway.spi import call, create_client, producer_config

__all__ = ["CLOSE_TIMEOUT_S", "MessageSender"]

LOGGER = logging.getLogger("sluiceway.confluent")

# Limits of the first request for a channel: the first one detects an outage soon, the later one
# allows for a slow gateway.
_FIRST_PROBE_S: Final = 1.0
_LAST_PROBE_S: Final = 30.0
_RETRY_S: Final = 0.25
_CONFIRM_TIMEOUT_S: Final = 30.0
_LEAST_DETACH_S: Final = 2.0
CLOSE_TIMEOUT_S: Final = 10.0
_MAX_SENT: Final = 1000


class MessageSender:
    """Sender of one Producer: its attached channels, and their librdkafka producer.

    A channel is attached in its own thread. Until then its messages are in a local queue, so
    `produce` never waits; `by_name` has the channels whose messages go directly to librdkafka.
    Until a message has a callback, librdkafka reports failures only, which takes a third of the
    work; `reports_all` is set when it reports all deliveries. Every failure is counted.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._names: dict[str, str] = {}
        self._connection: Connection | None = None
        queue = LocalQueue(
            max_messages=settings.max_queue_messages, max_bytes=settings.max_queue_bytes
        )
        self.deliveries = Deliveries(queue, self.report)
        self._callbacks = self.deliveries.unless_abandoned(settings.callbacks)
        stats_cb = self._callbacks.get("stats_cb")
        if stats_cb is not None:
            names = self._names
            self._callbacks["stats_cb"] = lambda text: stats_cb(channel_statistics(text, names))
        self.lock = self.deliveries.lock
        self._changed = self.deliveries.changed
        self._queue = queue
        self.reports_all = False
        self.by_name: dict[str, ChannelProducer] = {}
        self._attached: dict[str, ChannelProducer] = {}
        self.commits = BatchCommits(
            self.deliveries, self._attached, transactional=settings.transactional_id is not None
        )
        # The threads that serve a channel's messages. One that was not started serves none.
        self._servers: dict[str, threading.Thread] = {}
        self._outage = False
        self._switching = False
        self._reports_delivered = False
        self._stopped = False
        self._refuses = False
        # The channels whose end is to be reported, and the failure that is none of reporting.
        self._ending: dict[str, ChannelProducer] = {}
        self._failure: KafkaError | None = None
        # The program's exception that ended the producer.
        self._error: BaseException | None = None

    def add(self, message: PendingMessage) -> None:
        """Queue a message until its channel is attached; the caller holds `lock`.

        Raises BufferError, and RuntimeError without a thread to attach it; then it is not queued.
        """
        name = message.topic
        server = self._servers.get(name)
        if server is None or server.ident is None:
            # Before the message is queued: after an interrupt, no message waits without a thread.
            server = self._servers[name] = threading.Thread(
                target=self._serve, args=(name,), name=f"sluiceway-attach-{name}", daemon=True
            )
            call(server.start)
        self.by_name.pop(name, None)
        self._queue.add(message, others=self.deliveries.in_librdkafka)

    def refuse_more(self) -> None:
        """Refuse further messages; the caller holds `lock`.

        From here on no thread sends a message: between the lookup of `produce` and its call, a
        thread runs nothing that lets other threads run.
        """
        self._refuses = True
        self.by_name.clear()
        for channel in self._attached.values():
            channel.produce = closed

    def report(self) -> None:
        """Update the counts for heartbeats, unless another thread holds the lock."""
        if self.lock.acquire(blocking=False):
            try:
                for name, channel in self._attached.items():
                    channel.report()
                    at_least_once = channel.connection.delivery == "at_least_once"
                    if at_least_once and self.deliveries.producers:
                        # Batches have the partitions with which they opened.
                        producer = self.deliveries.producers[-1]
                        channel.discover_partitions(producer, channel.handle.partitions)
                    channel.check_existence(partial(self._end_deleted, name, channel))
            finally:
                self.lock.release()

    def commit(self, timeout_s: float) -> None:
        """Confirm the topics of delivered messages, and commit those of exactly-once channels.

        Raises SluicewayError, TopicGone for a topic that was created again.
        """
        first: SluicewayError | None = None
        for name, channel in list(self._attached.items()):
            if channel.batches is not None or channel.failure is not None:
                continue
            try:
                channel.confirm_delivery(timeout_s=min(_CONFIRM_TIMEOUT_S, timeout_s))
            except SluicewayError as error:
                if isinstance(error, TopicGone):
                    self._end_deleted(name, channel, error)
                first = first or error
        self.commits.commit(timeout_s)
        if first is not None:
            raise first

    def close(self, error: BaseException | None, *, timeout_s: float) -> KafkaError | None:
        """Flush, and report the end offsets, or `error`; return the first failure.

        After `timeout_s` without a delivery, the remaining messages fail. It may be repeated after
        an interrupt, which reports the first `error`, and for channels whose end is not reported
        yet. Raises the exception of a callback after everything else.
        """
        error = self._error = self._error or error
        deadline_s, raised = time.monotonic() + timeout_s, None
        if not self._stopped:
            self.commits.stopped = True
            with contextlib.suppress(SluicewayError):  # the last commit raises it
                self.commits.repeat(timeout_s)
            failure, raised, idle_s = self.deliveries.flush_or_fail(timeout_s)
            left_s = timeout_s - idle_s
            if error is None and failure is None and self._settings.transactional_id is None:
                try:
                    self.commit(max(_LEAST_DETACH_S, left_s))
                except SluicewayError as uncommitted:
                    failure = kafka_error(uncommitted)
                except KafkaException as uncommitted:
                    failure = uncommitted.args[0]
            with self.lock:
                self._stopped = True
                self.refuse_more()
                self._failure = failure
                self._ending = dict(self._attached)
                self._attached.clear()
                self._changed.notify_all()
            deadline_s = time.monotonic() + left_s
        outage = self._report_ends(error, deadline_s)
        self._settings.control.close()
        if raised is not None:
            raise raised
        return self._failure or outage

    def _report_ends(self, error: BaseException | None, deadline_s: float) -> KafkaError | None:
        """Report the ends of channels, or `error`; return the error of ends to report later."""
        outage: KafkaError | None = None
        for name, channel in list(self._ending.items()):
            left_s = max(_LEAST_DETACH_S, deadline_s - time.monotonic())
            try:
                channel.report()
                if isinstance(channel.failure, TopicGone):
                    self._failure = self._failure or kafka_error(channel.failure)
                cause = error or channel.failure
                if channel.batches is not None and cause is None:
                    cause = self.commits.unended(channel, self._failure)
                channel.close(cause, timeout_s=left_s, detach_timeout_s=left_s)
            except SluicewayError as unreported:
                if isinstance(unreported, GatewayError) and not unreported.is_final:
                    LOGGER.warning("the end of %s is reported later: %s", name, unreported)
                    outage = outage or kafka_error(unreported)
                    continue
                LOGGER.warning("the end of %s is not reported: %s", name, unreported)
                if isinstance(unreported, KafkaFailure):
                    channel.handle.fail(unreported)
                self._failure = self._failure or kafka_error(unreported)
            self._ending.pop(name, None)
        return outage

    def close_abandoned(self) -> None:
        """Close an abandoned producer, with delivery callbacks only."""
        self.deliveries.abandoned = True
        try:
            failure = self.close(None, timeout_s=CLOSE_TIMEOUT_S)
            if failure is not None:
                LOGGER.error("a producer was not closed: %s", failure.str())
        except Exception:
            LOGGER.exception("a callback failed at the end of a producer that was not closed")

    def attached(self, name: str) -> ChannelProducer | None:
        """Return a channel that is attached."""
        return self._attached.get(name)

    def purge(self) -> None:
        """Drop the messages in the local queue, which are no lost ones."""
        with self.lock:
            self._queue.purge()
            self._changed.notify_all()

    def _end_deleted(self, name: str, channel: ChannelProducer, error: TopicGone) -> None:
        """Fail the messages of a deleted channel, which librdkafka retries until they time out."""
        with self.lock:
            channel.failure = channel.failure or error
            self.by_name.pop(name, None)
            # librdkafka can only purge the messages of all topics.
            if all(attached.failure is not None for attached in self._attached.values()):
                for producer in self.deliveries.producers:
                    producer.purge(blocking=False)
            self._changed.notify_all()

    def _open_batch(self, name: str, channel: ChannelProducer) -> None:
        """Open the next batch of a channel for its queued messages."""
        try:
            opened = self.commits.open(channel, lambda: self._queue.first(name) is not None)
        except SluicewayError as error:
            with self.lock:
                if _may_pass(error):
                    self._report_outage(name, kafka_error(error))
                    self._changed.wait(_RETRY_S)
                    return
                if self._settings.transactional_id is None:
                    channel.failure = error
                self._fail(name, kafka_error(error))
            return
        if not opened:
            with self.lock:
                self._changed.wait(_RETRY_S)

    def _refusal(self, channel: ChannelProducer) -> KafkaError | None:
        """Return the reason why a channel accepts no messages, or None."""
        if channel.failure is not None:
            return kafka_error(channel.failure, fatal=True)
        if channel.batches is None and self._settings.transactional_id is not None:
            return KafkaError(
                INVALID_ARG,
                f"the channel {channel.handle.channel!r} has the delivery at_least_once, which has "
                "no transactions: create one with delivery exactly_once, or omit transactional.id",
                txn_requires_abort=True,
            )
        return None

    def _serve(self, name: str) -> None:
        """Attach a channel if needed, and pass its messages to librdkafka; runs in a thread."""
        with self.lock:
            if self._servers.get(name) is not threading.current_thread():
                # Replaced after an interrupt of its start.
                return
        try:
            channel = self._attached.get(name) or self._attach(name)
            while channel is not None and self._send_queued(name, channel):
                pass
        except Exception as error:
            LOGGER.exception("the messages to %s have failed", name)
            with self.lock:
                self._fail(name, KafkaError(FAIL, f"{type(error).__name__}: {error}"))

    def _attach(self, name: str) -> ChannelProducer | None:
        """Attach, with retries while messages are queued; None if the messages have failed."""
        probe_s = _FIRST_PROBE_S
        while True:
            try:
                channel = self._attached_once(name, probe_s)
                break
            except (SluicewayError, KafkaException) as error:
                fault = kafka_error(error) if isinstance(error, SluicewayError) else error.args[0]
            with self.lock:
                if not fault.retriable():
                    self._fail(name, fault)
                    return None
                self._report_outage(name, fault)
                self._queue.expire()
                if self._stopped or self._queue.first(name) is None:
                    self._servers.pop(name, None)
                    self._changed.notify_all()
                    return None
                self._changed.wait(_RETRY_S)
            probe_s = min(2 * probe_s, _LAST_PROBE_S)
        with self.lock:
            self._outage = False
            if not self._stopped:
                self._names[channel.topic] = name
                self._attached[name] = channel
                return channel
        channel.close(timeout_s=_LAST_PROBE_S)
        return None

    def _attached_once(self, name: str, probe_s: float) -> ChannelProducer:
        """Return an attached channel with a librdkafka producer."""
        channel = ChannelProducer(self._settings, name, probe_s=probe_s, calls=self._queue.calls)
        with channel.handle.reporting_failure(), self.lock:
            if self._connection is not None:
                require_same_kafka(self._connection.kafka, channel.connection, "producer")
            if not self.deliveries.producers:
                self._connection = channel.connection
                reports_all = self._queue.has_callback(name)
                reports_all = reports_all and not self._settings.only_errors
                self._create(reports_all=reports_all or channel.batches is not None)
            self._connect(channel)
        return channel

    def _send_queued(self, name: str, channel: ChannelProducer) -> bool:
        """Pass messages to librdkafka; return False if none is left or it has to stop."""
        with self.lock:
            if self._switching or channel.turn is not None:
                self._changed.wait(SHORT_WAIT_S)
                return True
            opens = unreported = False
            # Many per lock: if `produce` could add one for each, the queue would never be empty.
            for _ in range(_MAX_SENT):
                message = None if self._stopped else self._queue.first(name)
                if message is None:
                    # Messages of batches always use the queue, which a commit can pause.
                    direct = channel.batches is None and self._settings.transactional_id is None
                    if direct and not self._refuses:
                        self.by_name[name] = channel
                    self._servers.pop(name, None)
                    self._changed.notify_all()
                    return False
                refusal = self._refusal(channel)
                if refusal is not None:
                    self._fail(name, refusal)
                    return False
                if channel.batches is None:
                    unreported = message.on_delivery is not None and not self.reports_all
                else:
                    unreported = not self._reports_delivered
                    opens = not channel.batches.is_open
                if unreported or opens or channel.may_refresh(message.value):
                    break
                if not self._send(channel, message):
                    return True
            else:
                return True
        if unreported:
            self._report_all()
        elif opens:
            self._open_batch(name, channel)
        else:
            self._refresh(name, channel, message)
        return True

    def _refresh(self, name: str, channel: ChannelProducer, message: PendingMessage) -> None:
        """Request the channel's schemas to check a message's schema id."""
        try:
            channel.validator.error(encoded(message.value))
        except SluicewayError as error:
            with self.lock:
                if _may_pass(error):
                    self._report_outage(name, kafka_error(error))
                    self._changed.wait(_RETRY_S)
                else:
                    self._refuse(channel, message, kafka_error(error))

    def _send(self, channel: ChannelProducer, message: PendingMessage) -> bool:
        """Pass a message to librdkafka, or wait for room in its queue; the caller holds `lock`."""
        error: KafkaError | None = None
        try:
            if channel.validates:
                channel.require_valid(message.value)
            channel.send(message)
        except BufferError:
            self._changed.wait(SHORT_WAIT_S)
            if channel.batches is not None:
                self.commits.poll_reports(0)
            return False
        except KafkaException as refusal:
            error = refusal.args[0]
        except (TypeError, ValueError) as refusal:
            error = KafkaError(FAIL, str(refusal))
        if error is None:
            self._queue.remove(message)
        else:
            self._refuse(channel, message, error)
        return True

    def _refuse(self, channel: ChannelProducer, message: PendingMessage, error: KafkaError) -> None:
        """Remove a queued message as refused; the caller holds `lock`.

        Without a callback it is reported only by `close`, so its writer has failed.
        """
        if not self._queue.remove(message, error):
            return
        if message.on_delivery is None:
            channel.records += 1
            channel.add_failure(reason_of(error))
        self._changed.notify_all()

    def _report_all(self) -> None:
        """Report all deliveries from now on, after the messages in flight."""
        with self.lock:
            if self._reports_delivered or self._switching:
                return
            self._switching = True
            self.by_name.clear()
        try:
            before = self.deliveries.producers[-1]
            self._wait_until_empty(before)
            with self.lock:
                self._create(reports_all=True)
                for channel in self._attached.values():
                    self._connect(channel)
            # Another thread may have been in `produce` meanwhile.
            self._wait_until_empty(before)
        finally:
            with self.lock:
                self._switching = False
                self._changed.notify_all()

    def _wait_until_empty(self, producer: Any) -> None:
        with self.lock:
            while len(producer) and not self._stopped:
                self._changed.wait(SHORT_WAIT_S)

    def _fail(self, name: str, error: KafkaError) -> None:
        """Fail the messages of a channel that cannot be attached; the caller holds `lock`."""
        count = self._queue.fail(name, error)
        self._servers.pop(name, None)
        if count:
            LOGGER.error("%d messages to %s are not delivered: %s", count, name, error.str())
        self._changed.notify_all()

    def _report_outage(self, name: str, error: KafkaError) -> None:
        """Report an outage once, until a channel is attached; the caller holds `lock`."""
        self._queue.explain(name, error.str())
        if self._outage:
            return
        self._outage = True
        LOGGER.warning("messages to %s are delayed: %s", name, error.str())
        error_cb = self._callbacks.get("error_cb")
        if error_cb is not None:
            self._queue.calls.append(lambda: error_cb(error))
            self._changed.notify_all()

    def _connect(self, channel: ChannelProducer) -> None:
        """Connect a channel to the current librdkafka producer; the caller holds `lock`."""
        channel.connect(self.deliveries.producers[-1].produce)
        if self._refuses:
            channel.produce = closed

    def _create(self, *, reports_all: bool) -> None:
        assert self._connection is not None  # noqa: S101 - set by the first channel
        settings = self._settings
        limits = (self._connection.max_message_bytes, settings.max_message_bytes)
        config = producer_config(
            self._connection.kafka,
            settings.kafka,
            delivery_timeout_ms=settings.delivery_timeout_ms,
            max_message_bytes=min(filter(None, limits)),
        )
        own: dict[str, Any] = {
            **self._callbacks,
            "on_delivery": self._count,
            "delivery.report.only.error": not reports_all,
        }
        producer = create_client(Producer, config.over(own))
        # If the caller wants errors only, callbacks need no other producer.
        self.reports_all = reports_all or settings.only_errors
        self._reports_delivered = reports_all
        self.deliveries.producers = (*self.deliveries.producers, producer)
        self._changed.notify_all()

    def _count(self, error: KafkaError | None, message: Message) -> None:
        """Count an undelivered message without a callback."""
        channel = self._attached.get(self._names.get(message.topic(), ""))
        if channel is not None and (error is not None or channel.batches is not None):
            channel.record_delivery(error, message)


def _may_pass(error: SluicewayError) -> bool:
    """Whether messages wait for the end of an error; Forbidden fails them at once."""
    return not error.is_final and not isinstance(error, Forbidden)


def closed(*_: object, **__: object) -> None:
    """Refuse messages of a closed producer."""
    raise RuntimeError("Producer has been closed")
