"""Producer: confluent-kafka's interface on channels."""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from sluiceway.confluent.channel_producer import ChannelProducer
from sluiceway.confluent.config import configuration_of, producer_settings
from sluiceway.confluent.errors import (
    INVALID_ARG,
    QUEUE_FULL,
    STATE,
    kafka_exceptions,
    refused,
    require_same_process,
)
from sluiceway.confluent.local_queue import OnDelivery, PendingMessage, checked_headers
from sluiceway.confluent.metadata import cluster_metadata
from sluiceway.confluent.sender import CLOSE_TIMEOUT_S, MessageSender
from sluiceway.confluent.transactions import Transactions
from sluiceway.spi import is_success, this_process

__all__ = ["Producer"]

_LONGEST_S: Final = 86_400.0
_LEAST_COMMIT_S: Final = 1.0


class Producer:
    """Writes messages into channels as confluent-kafka's Producer writes into topics.

    The configuration has librdkafka's names; the gateway's address is set as for Consumer. Values
    are the messages' bytes: any bytes in channels of the format `bytes`, in other formats bytes
    with the channel's header. The producer is a writer of each channel from its first message
    until it is closed: native readers that read until writers have finished wait for it. A producer
    that is not closed is closed when it is garbage-collected, or at exit.

    On exactly-once channels, messages are invisible until they are committed: by `flush`, by
    `close`, and every 5 s. With `transactional.id`, transactions commit them.

    Only `flush`, `close`, `list_topics` and the calls of transactions wait for the gateway.
    Messages wait in a queue until their channel is attached, for `message.timeout.ms` at most;
    `error_cb` is called once per outage of the gateway. Errors of attaching, such as an unknown
    channel, are the errors of these messages.

    Raises KafkaException with librdkafka's codes, BufferError when its queue is full, and
    RuntimeError once it is closed.
    """

    # A subclass that does not call the constructor is a closed producer, as in confluent-kafka.
    _closed = True
    _default: OnDelivery | None = None
    _by_name: Mapping[str, ChannelProducer] = MappingProxyType({})
    _transactions: Transactions | None = None

    def __init__(self, config: object = None, /, **named: Any) -> None:
        # Masked, because error reporters show the arguments of frames.
        config = named = configuration_of(config, named)
        self._settings = producer_settings(named)
        self._default = self._settings.on_delivery
        self._timeout_s = self._settings.delivery_timeout_s
        self._sender = MessageSender(self._settings)
        self._deliveries = self._sender.deliveries
        self._by_name = self._sender.by_name
        self._transactions = None
        if self._settings.transactional_id is not None:
            self._transactions = Transactions(self._sender, self._settings)
        self._closed = False
        self._process = this_process()
        self._finalizer = self._process.finalize_in_thread(self, self._sender.close_abandoned)

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Send a message in the background; `poll` and `flush` call `on_delivery(error, message)`.

        Raises BufferError while the queue is full: poll, and try again. Raises KafkaException
        _INVALID_ARG for a value that is invalid in the channel, if the channel is attached.
        """
        on_delivery = on_delivery or callback or self._default
        try:
            channel = self._by_name[topic]
        except KeyError:
            self._queue(topic, value, key, partition, on_delivery, timestamp, headers, forced=False)
            return
        if value is None and self._settings.hpe:
            self._refuse_tombstone(topic, key, on_delivery)
            return
        if channel.validates:
            if channel.may_refresh(value):
                self._queue(
                    topic, value, key, partition, on_delivery, timestamp, headers, forced=True
                )
                return
            channel.require_valid(value)
        if key is not None and partition == -1:
            partition = channel.partition_of_key(key)
        # The hot path: no keywords, and no new objects for the garbage collector.
        if on_delivery is not None and not self._sender.reports_all:
            self._queue(topic, value, key, partition, on_delivery, timestamp, headers, forced=True)
            return
        if timestamp or headers is not None:
            named = channel.optional(on_delivery, timestamp, headers)
            channel.produce(channel.topic, value, key, partition, **named)
        elif on_delivery is None:
            channel.produce(channel.topic, value, key, partition)
        else:
            wrapper = channel.latest()
            if wrapper is None or wrapper.__wrapped__ is not on_delivery:
                wrapper = channel.wrapped(on_delivery)
            channel.produce(channel.topic, value, key, partition, wrapper)
        channel.records += 1
        if partition >= channel.partitions_used:
            channel.partitions_used = partition + 1

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> int:
        """Send messages, dicts of value, key, partition and callback; return the accepted number.

        The others get their error as `_error`. Raises TypeError for a wrong dict, and sends none.
        """
        if not isinstance(topic, str):
            raise TypeError(f"topic must be str, not {type(topic).__name__}")
        if not isinstance(messages, list):
            raise TypeError("messages must be a list")
        if not isinstance(partition, int):
            raise TypeError(f"partition must be int, not {type(partition).__name__}")
        self._require_open()
        for index, message in enumerate(messages):
            _check_message(index, message)
        taken = 0
        for message in messages:
            try:
                self.produce(
                    topic,
                    message.get("value"),
                    message.get("key"),
                    message.get("partition", partition),
                    on_delivery=message.get("callback") or on_delivery or callback,
                )
            except BufferError:
                message["_error"] = KafkaError(QUEUE_FULL)
            except KafkaException as error:
                message["_error"] = error.args[0]
            else:
                taken += 1
        return taken

    def poll(self, timeout: float = -1) -> int:
        """Call delivery callbacks for up to `timeout` seconds, and return their number."""
        self._require_open()
        return self._deliveries.poll(_limit_s(timeout))

    def flush(self, timeout: float = -1) -> int:
        """Wait until all messages are delivered or have failed; return the number left.

        If none is left, those of exactly-once channels are committed, per channel all or none, but
        not within a transaction. Raises KafkaException if nothing was committed, retriable if the
        outcome is unknown: flush again; and UNKNOWN_TOPIC_OR_PART if the channel's topic was
        created again, so that messages which were reported as delivered may be in another topic.
        """
        self._require_open()
        deadline_s = time.monotonic() + min(_limit_s(timeout), _LONGEST_S)
        with kafka_exceptions():
            self._sender.commits.repeat(max(_LEAST_COMMIT_S, deadline_s - time.monotonic()))
        left = self._deliveries.flush(max(0.0, deadline_s - time.monotonic()))
        if not left and self._transactions is None:
            with kafka_exceptions():
                self._sender.commit(max(_LEAST_COMMIT_S, deadline_s - time.monotonic()))
        return left

    def init_transactions(self, timeout: float = -1) -> None:
        """Prepare for transactions; needs `transactional.id`.

        The first message of a transaction fences other producers with this id in its channel.
        Raises KafkaException.
        """
        self._require_transactions().init(_limit_s(timeout))

    def begin_transaction(self) -> None:
        """Begin a transaction: the messages of one exactly-once channel, visible together."""
        self._require_transactions().begin()

    def send_offsets_to_transaction(
        self, positions: Sequence[TopicPartition], group_metadata: Any, timeout: float = -1
    ) -> None:
        """Commit a consumer's offsets with the transaction.

        `group_metadata` is the result of `Consumer.consumer_group_metadata` of a consumer in this
        process that is subscribed to the channel. Raises KafkaException.
        """
        del timeout
        self._require_transactions().send_offsets(positions, group_metadata)

    def commit_transaction(self, timeout: float = -1) -> None:
        """Commit the transaction: its messages and offsets, all or none.

        Raises KafkaException: `retriable()` if the outcome is unknown and it must be called again;
        `txn_requires_abort()` if nothing was committed; `fatal()` for a fenced producer.
        """
        self._require_transactions().commit(_limit_s(timeout))

    def abort_transaction(self, timeout: float = -1) -> None:
        """Drop the transaction's messages and offsets. Raises KafkaException."""
        self._require_transactions().abort(_limit_s(timeout))

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drop messages that are not delivered yet; `on_delivery` gets them as failures."""
        self._require_open()
        self._deliveries.purge(in_queue=in_queue, in_flight=in_flight, blocking=blocking)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return a confluent_kafka.admin.ClusterMetadata with channels as its topics.

        Raises KafkaException.
        """
        self._require_open()
        return cluster_metadata(self._settings, topic, timeout)

    def cluster_id(self, timeout: float = -1) -> str | None:
        """Return the id of the Kafka cluster."""
        cluster_id: str | None = self.list_topics(timeout=timeout).cluster_id
        return cluster_id

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Flush, and report the end offsets to the gateway. May be repeated.

        After `timeout` seconds without a delivery, the remaining messages fail, with callbacks. If
        messages failed, the writer has failed. Raises KafkaException in this case, if messages
        without a callback failed before their channel was attached, and if the gateway does not
        answer. Then the end is reported later, and a repeated call tries it again; it raises any
        other failure again. Raises the exception of a callback after everything else.
        """
        self._end()
        failure = self._sender.close(None, timeout_s=min(_limit_s(timeout), _LONGEST_S))
        if failure is not None:
            raise KafkaException(failure)
        return True

    def __len__(self) -> int:
        """Return the number of undelivered messages and unserved delivery reports."""
        return len(self._deliveries)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close; after an exception flush, and report that the writer failed.

        `sys.exit(0)` is no failure, except within a transaction, which is aborted.
        """
        if error is not None and not is_success(error) and self._end():
            self._sender.close(error, timeout_s=CLOSE_TIMEOUT_S)
            return
        self.close()

    def _end(self) -> bool:
        """Refuse further messages; return False if it was closed before."""
        require_same_process(self._process, "producer")
        with self._sender.lock:
            if self._closed:
                return False
            self._closed = True
            self._sender.refuse_more()
        self._finalizer.detach()
        return True

    def _queue(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int,
        on_delivery: OnDelivery | None,
        timestamp: int,
        headers: Any,
        *,
        forced: bool,
    ) -> None:
        """Queue a message until its channel is ready; `forced`: also if it is ready.

        Raises TypeError, BufferError.
        """
        self._require_open()
        if value is None and self._settings.hpe:
            self._refuse_tombstone(topic, key, on_delivery)
            return
        message = PendingMessage(
            topic=topic,
            value=value,
            key=key,
            partition=partition,
            on_delivery=on_delivery,
            timestamp=timestamp,
            headers=None if headers is None else checked_headers(headers),
            due_s=time.monotonic() + self._timeout_s,
        )
        message.check()
        channel = self._sender.attached(topic)
        if channel is not None and channel.batches is not None and not channel.may_refresh(value):
            # An invalid value of an exactly-once channel would fail the batch.
            channel.require_valid(value)
        with self._sender.lock:
            if self._closed:
                raise RuntimeError("Producer has been closed")
            # If it has become ready, messages must not queue behind each other any more.
            if forced or topic not in self._by_name:
                if self._transactions is None:
                    self._sender.add(message)
                else:
                    self._transactions.add(message)
                return
        self.produce(topic, value, key, partition, None, on_delivery, timestamp, headers)

    def _refuse_tombstone(self, topic: str, key: Any, on_delivery: OnDelivery | None) -> None:
        error = KafkaError(INVALID_ARG, "HPE's client does not send messages without a value")
        if on_delivery is not None:
            message = Message(topic=topic, key=key, error=error)
            self._deliveries.queue.calls.append(partial(on_delivery, error, message))

    def _require_transactions(self) -> Transactions:
        self._require_open()
        if self._transactions is None:
            raise refused(STATE, "this producer has no transactional.id: set one for transactions")
        return self._transactions

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("Producer has been closed")
        require_same_process(self._process, "producer")


def _limit_s(timeout: float) -> float:
    return math.inf if timeout < 0 else timeout


def _check_message(index: int, message: Any) -> None:
    """Raise TypeError, with confluent-kafka's text, for a wrong message of a batch."""
    if not isinstance(message, dict):
        raise TypeError(f"Message at index {index} must be a dict")
    for name in ("value", "key"):
        if not isinstance(message.get(name), str | bytes | None):
            raise TypeError(f"Message {name} at index {index} must be bytes or str")
    if not isinstance(message.get("partition", -1), int):
        raise TypeError(f"Message partition at index {index} must be int")
    if message.get("timestamp"):
        raise NotImplementedError(
            "Message timestamps are not currently supported in batches: use produce()"
        )
