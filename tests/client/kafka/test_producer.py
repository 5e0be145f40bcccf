"""The producer of writers, tasks and ports: order, reports and failures of columns of messages."""

import ctypes
import gc
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from faults import at_call, no_threads
from sluiceway.api.models import Connection
from sluiceway.errors import DeliveryFailed, OptionError
from sluiceway.kafka import producer as producer_module
from sluiceway.kafka.librdkafka import BatchProducer, is_supported, is_tested
from sluiceway.kafka.messages import DeliveryReport, Messages
from sluiceway.kafka.producer import IdempotentProducer
from sluiceway.ledger.intervals import DeliveredIntervals
from topics import Topics, messages_of
from waiting import until


@pytest.fixture(params=["batches", "one by one"])
def each_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client for tested builds of librdkafka, and that for others."""
    if request.param == "one by one":
        # An untested build cannot be installed beside the tested one.
        monkeypatch.setattr(producer_module, "is_supported", lambda: False)


def messages(
    values: Sequence[bytes | None],
    partitions: Sequence[int],
    keys: Sequence[bytes | None] | None = None,
    counts: Sequence[int] | None = None,
) -> Messages:
    half = len(values) // 2
    return Messages(
        # In two chunks, of which the second one has an offset.
        values=pa.chunked_array(
            [pa.array(values, pa.binary())[a:b] for a, b in ((0, half), (half, None))]
        ),
        partitions=np.array(partitions, np.int32),
        keys=None if keys is None else pa.chunked_array([pa.array(keys, pa.binary())]),
        counts=None if counts is None else np.array(counts),
    )


def open_producer(
    connection: Connection,
    intervals: DeliveredIntervals | None = None,
    *,
    delivery_timeout_s: float = 60,
    **config: object,
) -> IdempotentProducer:
    return IdempotentProducer(
        connection,
        {name.replace("_", "."): value for name, value in config.items()},
        connect_timeout_s=30,
        delivery_timeout_s=delivery_timeout_s,
        on_delivery=None if intervals is None else intervals.add,
    )


def test_the_installed_build_of_librdkafka_is_tested() -> None:
    assert is_supported()
    assert is_tested(confluent_kafka.libversion()[1])
    assert not is_tested(0x020F00FF)
    assert not is_tested(0x021100FF)


@pytest.mark.usefixtures("each_client")
def test_values_keys_and_offsets_arrive_as_they_are_sent(topics: Topics) -> None:
    connection = topics.connect("bytes", partitions=3)
    intervals = DeliveredIntervals()
    producer = open_producer(connection, intervals)
    values = [b"", None, b"a", b"x" * 100_000, b"\x00\xff", *(b"%d" % n for n in range(95))]
    keys = [None, b"", b"key", *[None, b"k"] * 48, b"last"]
    partitions = [n % 3 for n in range(100)]
    producer.send(messages(values, partitions, keys))
    producer.send(messages([], []))
    producer.send(messages([b"end"], [2]))
    producer.flush()
    sent: dict[int, list[Any]] = defaultdict(list)
    for partition, value, key in zip(partitions, values, keys, strict=True):
        sent[partition].append((value, key))
    sent[2].append((b"end", None))
    read: dict[int, list[Any]] = defaultdict(list)
    for message in messages_of(connection):
        read[message.partition()].append((message.value(), message.key()))
    assert read == sent
    written = intervals.take()
    assert {p: [*map(tuple, runs)] for p, runs in written.manifest.items()} == {
        p: [(0, len(pairs))] for p, pairs in sent.items()
    }
    assert written.counts == {p: len(pairs) for p, pairs in sent.items()}
    assert producer.accepted_records == written.records == 101
    assert [producer.may_have_written_to(p) for p in range(4)] == [True, True, True, False]


@pytest.mark.usefixtures("each_client")
def test_records_of_messages_are_counted(topics: Topics) -> None:
    connection = topics.connect("bytes", partitions=2)
    intervals = DeliveredIntervals()
    producer = open_producer(connection, intervals)
    producer.send(messages([b"a", b"b", b"c"], [0, 0, 0], counts=[1, 5000, 1]))
    producer.send(messages([b"d"], [1], counts=[7]))
    producer.flush()
    assert intervals.take().counts == {0: 5002, 1: 7}
    assert producer.accepted_records == 5009


@pytest.mark.usefixtures("each_client")
def test_a_message_is_missing_until_its_report_was_read(topics: Topics) -> None:
    arrived, read = threading.Event(), threading.Event()

    def on_delivery(_report: DeliveryReport) -> None:
        arrived.set()
        assert read.wait(60)

    producer = IdempotentProducer(
        topics.connect("bytes"),
        {},
        connect_timeout_s=30,
        delivery_timeout_s=60,
        on_delivery=on_delivery,
    )
    producer.send(messages([b"a"], [0]))
    assert arrived.wait(60)
    assert producer.flush_briefly() == 1
    read.set()
    producer.flush()


def test_a_producer_that_could_not_start_its_thread_can_be_opened_later(topics: Topics) -> None:
    connection = topics.connect("bytes")
    with no_threads("sluiceway-reports"), pytest.raises(RuntimeError, match="new thread"):
        open_producer(connection)
    producer = open_producer(connection)
    producer.send(messages([b"a"], [0]))
    producer.flush()


@pytest.mark.usefixtures("each_client")
def test_a_full_queue_delays_messages_and_keeps_their_order(topics: Topics) -> None:
    connection = topics.connect("bytes", partitions=2)
    intervals = DeliveredIntervals()
    producer = open_producer(connection, intervals, queue_buffering_max_messages=50)
    values = [b"%05d" % n for n in range(3000)]
    producer.send(messages(values, [n % 2 for n in range(3000)]))
    producer.flush()
    # Ordered by partition, then by offset.
    assert [message.value() for message in messages_of(connection)] == [*values[::2], *values[1::2]]
    assert intervals.take().records == 3000


@pytest.mark.usefixtures("each_client")
def test_a_message_that_is_larger_than_the_queue_fails_at_once(topics: Topics) -> None:
    producer = open_producer(topics.connect("bytes"), queue_buffering_max_kbytes=10)
    with pytest.raises(
        DeliveryFailed, match=r"20,000 bytes is larger than queue\.buffering"
    ) as raised:
        producer.send(messages([b"a", b"x" * 20_000], [0, 0]))
    assert (raised.value.written_records, raised.value.failed_records) == (0, 2)


@pytest.mark.usefixtures("each_client")
def test_an_unknown_partition_fails_at_once_and_added_ones_are_used(topics: Topics) -> None:
    connection = topics.connect("bytes", partitions=2)
    producer = open_producer(connection)
    topics.grow(connection.topic_name, 3)
    until(lambda: producer.discover_partitions() == 3)
    producer.send(messages([b"a", b"b"], [0, 2]))
    producer.flush()
    with pytest.raises(DeliveryFailed, match="_UNKNOWN_PARTITION") as raised:
        producer.send(messages([b"c", b"d"], [1, 3]))
    assert raised.value.partition == 3
    assert (raised.value.written_records, raised.value.failed_records) == (2, 2)


@pytest.mark.usefixtures("each_client")
def test_a_refused_message_fails_with_the_counts_of_records(topics: Topics) -> None:
    # The connection has a larger message limit than the topic.
    connection = topics.connect("bytes", partitions=1)
    topics.limit_messages(connection.topic_name)
    before = len(messages_of(connection))
    producer = open_producer(connection, compression_type="none")
    producer.send(messages([b"a", b"b"], [0, 0], counts=[10, 10]))
    producer.flush()
    producer.send(messages([b"x" * 500], [0], counts=[3]))
    with pytest.raises(DeliveryFailed, match="MSG_SIZE_TOO_LARGE") as raised:
        producer.flush()
    assert raised.value.partition == 0
    assert (raised.value.written_records, raised.value.failed_records) == (20, 3)
    assert len(messages_of(connection)) == before + 2
    with pytest.raises(DeliveryFailed):
        producer.send(messages([b"after"], [0]))


@pytest.mark.usefixtures("each_client")
def test_two_producers_of_a_partition_report_their_own_offsets(topics: Topics) -> None:
    connection = topics.connect("bytes", partitions=1)
    collected = [DeliveredIntervals(), DeliveredIntervals()]
    producers = [open_producer(connection, intervals) for intervals in collected]
    for _ in range(5):
        for number, producer in enumerate(producers):
            producer.send(messages([b"%d" % number] * 20, [0] * 20))
            producer.flush()
    read = messages_of(connection)
    for number, intervals in enumerate(collected):
        (runs,) = intervals.take().manifest.values()
        offsets = [offset for first, end in runs for offset in range(first, end)]
        assert offsets == [m.offset() for m in read if m.value() == b"%d" % number]


def test_a_property_that_librdkafka_refuses_is_named(topics: Topics) -> None:
    with pytest.raises(OptionError, match=r'"zip" for configuration property "compression'):
        open_producer(topics.connect("bytes"), compression_type="zip")


def test_an_abandoned_producer_is_destroyed_by_its_thread_and_touched_by_no_other(
    topics: Topics,
) -> None:
    before = {*threading.enumerate()}
    producer = open_producer(topics.connect("bytes"))
    (own,) = {*threading.enumerate()} - before
    producer.send(messages([b"a"], [0]))
    callers: list[str] = []

    def record(*_: object) -> None:
        callers.append(threading.current_thread().name)

    with ExitStack() as stack:
        for name in ("wake", "purge", "missing", "close"):
            # Another thread may come when the client is destroyed, a moment that no test can time.
            stack.enter_context(at_call(BatchProducer, name, record))
        del producer
        gc.collect()
        own.join(60)
    assert not own.is_alive()
    # Those of earlier tests may be destroyed meanwhile, by threads of this name, too.
    assert {*callers} == {own.name}


def test_the_debug_log_ends_with_the_work(
    topics: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SLUICEWAY_KAFKA_CREDENTIALS", '{"debug": "all"}')
    caplog.set_level(logging.DEBUG)
    producer = open_producer(topics.connect("bytes"))
    producer.send(messages([b"a"], [0]))
    producer.flush()
    producer.discard()
    lines: list[int] = []

    def is_quiet() -> bool:
        lines.append(len(caplog.records))
        return len(lines) > 5 and len({*lines[-5:]}) == 1

    until(is_quiet)
    assert "ProduceRequest" in caplog.text


class Mock:
    """A producer on librdkafka's mock cluster, which fails requests as it is told."""

    def __init__(self, **config: object) -> None:
        properties = {
            "test.mock.num.brokers": 3,
            "enable.idempotence": True,
            "retry.backoff.ms": 10,
            "linger.ms": 1,
            **{name.replace("_", "."): value for name, value in config.items()},
        }
        self.producer = BatchProducer("mock", properties, producer_module.LOGGER)
        self._library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
        self._library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        # There is no public way to the client's cluster.
        handle = self.producer._handle
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_handle_mock_cluster(handle))
        self._library.rd_kafka_mock_topic_create(self._cluster, b"mock", 4, 3)
        until(lambda: self.producer.partitions(30) == 4)

    def fail_requests(self, *codes: int) -> None:
        """Answer the next requests to produce with these errors."""
        errors = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(0), ctypes.c_size_t(len(codes)), errors
        )

    def move_leader(self, partition: int, broker: int) -> None:
        self._library.rd_kafka_mock_partition_set_leader(self._cluster, b"mock", partition, broker)

    def reports(self) -> list[DeliveryReport]:
        """Read reports until none is missing."""
        reports: list[DeliveryReport] = []

        def is_done() -> bool:
            reports.extend(self.producer.reports(0.1))
            return not self.producer.flush(0)

        until(is_done)
        return reports


@pytest.fixture
def new_mock() -> Iterator[Callable[..., Mock]]:
    mocks: list[Mock] = []

    def create(**config: object) -> Mock:
        mocks.append(Mock(**config))
        return mocks[-1]

    yield create
    for mock in mocks:
        mock.producer.close()


def offsets_of(reports: Sequence[DeliveryReport]) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = defaultdict(list)
    for report in reports:
        assert report.error is None, report
        offsets[report.partition] += range(report.first, report.first + report.messages)
    return dict(offsets)


def test_errors_that_are_retried_and_a_leader_that_moves_lose_no_report(
    new_mock: Callable[..., Mock],
) -> None:
    # One request at a time: the mock cluster does not check sequence numbers, by which a broker
    # refuses a request that overtakes a failed one.
    mock = new_mock(max_in_flight_requests_per_connection=1)
    mock.fail_requests(
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_ENOUGH_REPLICAS,
    )
    values = [b"%d" % n for n in range(2000)]
    assert mock.producer.produce(messages(values, [n % 4 for n in range(2000)])) == (0, None)
    mock.move_leader(2, 1)
    mock.move_leader(2, 3)
    assert offsets_of(mock.reports()) == {p: [*range(500)] for p in range(4)}


def test_offsets_after_a_duplicate_sequence_number_count_as_unknown(
    new_mock: Callable[..., Mock],
) -> None:
    mock = new_mock()
    mock.fail_requests(KafkaError.DUPLICATE_SEQUENCE_NUMBER)
    mock.producer.produce(messages([b"a"] * 10, [1] * 10))
    reports = mock.reports()
    assert sum(report.messages for report in reports) == 10
    assert all(report.first < 0 for report in reports)
    error = DeliveredIntervals().add(reports[0])
    assert error is not None
    assert error.str() == "the delivery report has no offset"


def test_failed_messages_are_reported_one_by_one_with_their_records(
    new_mock: Callable[..., Mock],
) -> None:
    mock = new_mock()
    mock.fail_requests(KafkaError.INVALID_RECORD)
    counts = [*range(1, 21)]
    mock.producer.produce(messages([b"a"] * 20, [3] * 20, counts=counts))
    reports = mock.reports()
    failed = [report for report in reports if report.error is not None]
    assert failed
    assert sum(report.records for report in reports) == sum(counts)
    assert {report.error.code() for report in failed if report.error} == {KafkaError.INVALID_RECORD}


def test_a_purge_reports_each_message_of_each_partition(new_mock: Callable[..., Mock]) -> None:
    mock = new_mock(linger_ms=60_000)
    mock.producer.produce(messages([b"a"] * 30_000, [n % 4 for n in range(30_000)]))
    mock.producer.purge()
    reports = mock.reports()
    assert sum(report.messages for report in reports) == 30_000
    assert {report.partition for report in reports} == {0, 1, 2, 3}
    assert {report.error.code() for report in reports if report.error} == {KafkaError._PURGE_QUEUE}


def test_a_fatal_error_names_its_cause(new_mock: Callable[..., Mock]) -> None:
    mock = new_mock()
    mock.fail_requests(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    mock.producer.produce(messages([b"a"] * 5, [0] * 5))
    assert all(report.error for report in mock.reports())
    refused, error = mock.producer.produce(messages([b"b"] * 5, [0] * 5, counts=[2] * 5))
    assert refused == 10
    assert error is not None
    assert error.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
