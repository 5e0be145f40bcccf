"""librdkafka's batch interface: messages from Arrow's buffers, reports as events.

confluent-kafka makes one call and one object for each message and for each report. These functions
of librdkafka's public header `rdkafka.h` take many at once. They are found through the extension
module of confluent-kafka, which loads the library.
"""

import ctypes
import logging
from collections.abc import Iterator, Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any, Final

import confluent_kafka
import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from sluiceway.kafka.messages import DeliveryReport, Messages, Numbers

__all__ = ["BatchProducer", "is_supported", "is_tested"]

_TESTED: Final = ((2, 16), (2, 17))
"""The first tested version, and the first untested one. Others get a call for each message."""

_MESSAGE: Final = np.dtype(
    {
        "names": ["err", "rkt", "partition", "payload", "len", "key", "key_len", "offset", "count"],
        "formats": ["i4", "u8", "i4", "u8", "u8", "u8", "u8", "i8", "u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)
"""`rd_kafka_message_t`. The application's field `_private` has the number of records."""


class _Message(ctypes.Structure):
    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("count", c_size_t),
    )


class _TopicMetadata(ctypes.Structure):
    _fields_ = (
        ("topic", c_char_p),
        ("partition_count", c_int),
        ("partitions", c_void_p),
        ("err", c_int),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("broker_count", c_int),
        ("brokers", c_void_p),
        ("topic_count", c_int),
        ("topics", POINTER(_TopicMetadata)),
        ("orig_broker_id", c_int32),
        ("orig_broker_name", c_char_p),
    )


_FUNCTIONS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "version": (c_int, ()),
    "conf_new": (c_void_p, ()),
    "conf_destroy": (None, (c_void_p,)),
    "conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "conf_set_events": (None, (c_void_p, c_int)),
    "new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "name": (c_char_p, (c_void_p,)),
    "destroy": (None, (c_void_p,)),
    "set_log_queue": (c_int, (c_void_p, c_void_p)),
    "topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "topic_destroy": (None, (c_void_p,)),
    "metadata": (c_int, (c_void_p, c_int, c_void_p, POINTER(POINTER(_Metadata)), c_int)),
    "metadata_destroy": (None, (POINTER(_Metadata),)),
    "produce_batch": (c_int, (c_void_p, c_int32, c_int, c_void_p, c_int)),
    "flush": (c_int, (c_void_p, c_int)),
    "purge": (c_int, (c_void_p, c_int)),
    "outq_len": (c_int, (c_void_p,)),
    "fatal_error": (c_int, (c_void_p, c_char_p, c_size_t)),
    "message_produce_errstr": (c_char_p, (POINTER(_Message),)),
    "queue_new": (c_void_p, (c_void_p,)),
    "queue_get_main": (c_void_p, (c_void_p,)),
    "queue_destroy": (None, (c_void_p,)),
    "queue_poll": (c_void_p, (c_void_p, c_int)),
    "queue_yield": (None, (c_void_p,)),
    "event_type": (c_int, (c_void_p,)),
    "event_destroy": (None, (c_void_p,)),
    "event_message_array": (c_size_t, (c_void_p, POINTER(POINTER(_Message)), c_size_t)),
    "event_log": (
        c_int,
        (c_void_p, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_int)),
    ),
}
"""Result and arguments of the functions, by their names in `rdkafka.h` without the prefix."""

_PRODUCER: Final = 0
_OK: Final = 0
_EVENT_REPORTS, _EVENT_LOG = 0x1, 0x4
_COPY, _BLOCK, _PER_MESSAGE_PARTITION = 0x2, 0x4, 0x8
_PURGE_QUEUED, _PURGE_IN_FLIGHT, _PURGE_NONBLOCKING = 0x1, 0x2, 0x4
_ERROR_BYTES: Final = 512
_MESSAGES_PER_EVENT: Final = 10_000
_LEVELS: Final = (50, 50, 50, 40, 30, 20, 20, 10)
"""Levels of `logging` for those of syslog."""


def is_tested(version: int) -> bool:
    """Whether a version of librdkafka, such as 0x021000ff for 2.16.0, is one of the tested ones."""
    first, end = _TESTED
    return first <= (version >> 24, version >> 16 & 0xFF) < end


@cache
def _library() -> Any:
    """Return an object with `_FUNCTIONS`, or None if this build cannot be used."""
    version = confluent_kafka.libversion()[1]
    if not is_tested(version) or _MESSAGE.itemsize != ctypes.sizeof(_Message):
        return None
    try:
        library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return library if library.rd_kafka_version() == version else None


def is_supported() -> bool:
    """Whether this process can use the batch interface."""
    return _library() is not None


class BatchProducer:
    """A producer of one topic whose reports are events.

    One thread calls `reports`; the other methods are thread-safe, but the order of messages is that
    of the calls of `produce`.
    """

    def __init__(self, topic: str, config: Mapping[str, object], logger: logging.Logger) -> None:
        """Create the client. Raises KafkaException for invalid properties."""
        self._logger = logger
        self._lib = _library()
        assert self._lib is not None  # noqa: S101 - by `is_supported`
        self._handle = self._created(config)
        self._name = self._lib.rd_kafka_name(self._handle).decode()
        self._queue = c_void_p(self._lib.rd_kafka_queue_get_main(self._handle))
        # Apart from the reports, which count as missing while they are in their queue.
        self._logs = c_void_p(self._lib.rd_kafka_queue_new(self._handle))
        self._lib.rd_kafka_set_log_queue(self._handle, self._logs)
        self._topic = c_void_p(self._lib.rd_kafka_topic_new(self._handle, topic.encode(), None))
        self._pointers = (POINTER(_Message) * _MESSAGES_PER_EVENT)()
        # Whether any message may have more or fewer records than one.
        self._counted = False

    def _created(self, config: Mapping[str, object]) -> c_void_p:
        lib, text = self._lib, ctypes.create_string_buffer(_ERROR_BYTES)
        conf = c_void_p(lib.rd_kafka_conf_new())
        # A message is freed with its report. Without one, the thread that sends would free it.
        own = {"log.queue": True, "delivery.report.only.error": False}
        for name, value in {**config, **own}.items():
            setting = str(value).lower() if isinstance(value, bool) else str(value)
            if lib.rd_kafka_conf_set(conf, name.encode(), setting.encode(), text, _ERROR_BYTES):
                lib.rd_kafka_conf_destroy(conf)
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode()))
        lib.rd_kafka_conf_set_events(conf, _EVENT_REPORTS | _EVENT_LOG)
        handle = lib.rd_kafka_new(_PRODUCER, conf, text, _ERROR_BYTES)
        if not handle:
            lib.rd_kafka_conf_destroy(conf)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode()))
        return c_void_p(handle)

    def partitions(self, timeout_s: float) -> int:
        """Request the topic's number of partitions; 0 without a topic. Raises KafkaException."""
        lib, metadata = self._lib, POINTER(_Metadata)()
        timeout_ms = round(timeout_s * 1000)
        code = lib.rd_kafka_metadata(self._handle, 0, self._topic, byref(metadata), timeout_ms)
        if code:
            raise KafkaException(KafkaError(code))
        try:
            return int(metadata.contents.topics[0].partition_count)
        finally:
            lib.rd_kafka_metadata_destroy(metadata)

    def produce(self, messages: Messages) -> tuple[int, KafkaError | None]:
        """Copy messages into the queue, in order; wait while it is full.

        Returns the number of records in refused messages, and the error of the first of them. Each
        partition must exist, and each message fit into the queue: librdkafka would wait for ever.
        """
        batch = np.zeros(len(messages), _MESSAGE)
        batch["partition"] = messages.partitions
        batch["payload"], batch["len"] = _addresses(messages.values)
        if messages.keys is not None:
            batch["key"], batch["key_len"] = _addresses(messages.keys)
        batch["count"] = 1
        if messages.counts is not None:
            batch["count"] = messages.counts
            self._counted = True
        flags = _COPY | _BLOCK | _PER_MESSAGE_PARTITION
        accepted = self._lib.rd_kafka_produce_batch(
            self._topic, 0, flags, batch.ctypes.data, len(batch)
        )
        if accepted == len(batch):
            return 0, None
        refused = batch[batch["err"] != 0]
        code = int(refused["err"][0])
        error = self._fatal_error() if code == KafkaError._FATAL else KafkaError(code)
        return int(refused["count"].sum()), error

    def flush(self, timeout_s: float) -> int:
        """Send what lingers, and wait for the reports; return the number of missing ones.

        Another thread must read the reports.
        """
        self._lib.rd_kafka_flush(self._handle, round(timeout_s * 1000))
        return self.missing()

    def missing(self) -> int:
        """Return the number of messages without a report that was read."""
        return int(self._lib.rd_kafka_outq_len(self._handle))

    def purge(self) -> None:
        """Fail the messages that are queued or in flight."""
        flags = _PURGE_QUEUED | _PURGE_IN_FLIGHT | _PURGE_NONBLOCKING
        self._lib.rd_kafka_purge(self._handle, flags)

    def reports(self, timeout_s: float) -> Iterator[DeliveryReport]:
        """Wait for an event, and yield its reports. They count as missing until the end.

        Logs what librdkafka has to log.
        """
        while log := self._lib.rd_kafka_queue_poll(self._logs, 0):
            self._log(log)
            self._lib.rd_kafka_event_destroy(log)
        event = self._lib.rd_kafka_queue_poll(self._queue, round(timeout_s * 1000))
        if not event:
            return
        try:
            if self._lib.rd_kafka_event_type(event) == _EVENT_REPORTS:
                yield from self._runs(event)
        finally:
            self._lib.rd_kafka_event_destroy(event)

    def wake(self) -> None:
        """End the wait of `reports`."""
        self._lib.rd_kafka_queue_yield(self._queue)

    def close(self) -> None:
        """Destroy the client; only the thread of `reports` may call it, once, at its end."""
        self.purge()
        while self.missing() and any(True for _ in self.reports(1.0)):
            pass
        self._lib.rd_kafka_topic_destroy(self._topic)
        self._lib.rd_kafka_set_log_queue(self._handle, None)
        for queue in (self._queue, self._logs):
            self._lib.rd_kafka_queue_destroy(queue)
        self._lib.rd_kafka_destroy(self._handle)

    def _runs(self, event: int) -> Iterator[DeliveryReport]:
        """Yield an event's reports: one for all its messages, or one for each."""
        # The function gives a part of a long event, then the next one, and 0 at the end.
        while size := self._lib.rd_kafka_event_message_array(
            event, self._pointers, _MESSAGES_PER_EVENT
        ):
            first, last = self._pointers[0].contents, self._pointers[size - 1].contents
            span = last.offset - first.offset
            if first.err or last.err or last.partition != first.partition or span != size - 1:
                for index in range(size):
                    yield self._single(self._pointers[index])
                continue
            records = size
            if self._counted:
                records = sum(self._pointers[index].contents.count for index in range(size))
            yield DeliveryReport(
                partition=first.partition, first=first.offset, messages=size, records=records
            )

    def _single(self, pointer: Any) -> DeliveryReport:
        message, error = pointer.contents, None
        if message.err:
            text = self._lib.rd_kafka_message_produce_errstr(pointer)
            error = KafkaError(message.err, None if text is None else text.decode())
        return DeliveryReport(
            partition=message.partition,
            first=message.offset,
            messages=1,
            records=message.count,
            error=error,
        )

    def _log(self, event: int) -> None:
        facility, text, level = c_char_p(), c_char_p(), c_int()
        if self._lib.rd_kafka_event_log(event, byref(facility), byref(text), byref(level)) == _OK:
            words = [(part.value or b"").decode(errors="replace") for part in (facility, text)]
            self._logger.log(_LEVELS[level.value], "%s [%s] %s", words[0], self._name, words[1])

    def _fatal_error(self) -> KafkaError:
        text = ctypes.create_string_buffer(_ERROR_BYTES)
        code = self._lib.rd_kafka_fatal_error(self._handle, text, _ERROR_BYTES)
        return KafkaError(code or KafkaError._FATAL, text.value.decode())


# Empty values have an address too, because that of a null is 0.
_EMPTY: Final = ctypes.create_string_buffer(1)
_EMPTY_ADDRESS: Final = ctypes.addressof(_EMPTY)


def _addresses(values: pa.ChunkedArray) -> tuple[Numbers, Numbers]:
    """Return the addresses and lengths of binary values; the address of a null is 0."""
    addresses, lengths = np.zeros(len(values), np.uint64), np.zeros(len(values), np.uint64)
    start = 0
    for chunk in values.chunks:
        end = start + len(chunk)
        if end == start:
            continue
        validity, offsets, data = chunk.buffers()
        bounds = np.frombuffer(offsets, np.int32, len(chunk) + 1, 4 * chunk.offset)
        base = data.address if data is not None and data.size else _EMPTY_ADDRESS
        addresses[start:end] = bounds[:-1].astype(np.uint64) + np.uint64(base)
        lengths[start:end] = np.diff(bounds)
        if validity is not None and chunk.null_count:
            nulls = chunk.is_null().to_numpy(zero_copy_only=False)
            addresses[start:end][nulls] = lengths[start:end][nulls] = 0
        start = end
    return addresses, lengths
