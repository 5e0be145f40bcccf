"""sluiceway.confluent.Consumer with manual assignment: reading, offsets, commits."""

import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from confluent_facade import (
    Facade,
    KafkaError,
    at,
    codes,
    error_code_of,
    offsets,
    poll_messages,
    poll_until,
)
from faults import AS_SIGNALS, interrupted_at_call
from sluiceway.confluent import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    Message,
    TopicPartition,
)
from waiting import until


@contextmanager
def interrupted_when(condition: Callable[[], object]) -> Iterator[None]:
    """Send SIGINT to the main thread, which runs the block, once another thread sees a condition.

    The interrupt is expected from the block.
    """
    main, ended = threading.get_ident(), threading.Event()

    def press() -> None:
        until(lambda: ended.is_set() or condition())
        if not ended.is_set():
            signal.pthread_kill(main, signal.SIGINT)

    # The test's runner may ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressing = threading.Thread(target=press, daemon=True)
    pressing.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        # Otherwise the signal of a test that fails would end all tests.
        ended.set()
        pressing.join(60)
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def name(site: Facade) -> str:
    """A channel of two partitions, with ten messages in each."""
    return site.channel(filled=10)


def test_messages_of_assigned_partitions_have_the_channels_name_as_topic(
    consumer: Callable[..., Consumer], name: str
) -> None:
    reader = consumer()
    reader.assign([at(name, 0, 3), at(name, 1, OFFSET_BEGINNING)])
    messages = poll_messages(reader, 17)
    assert {message.topic() for message in messages} == {name}
    assert offsets(messages) == {0: [*range(3, 10)], 1: [*range(10)]}
    one = messages[0]
    assert isinstance(one, Message)
    assert (one.value(), one.key()) == (f"{one.partition()}-{one.offset()}".encode(), b"k")
    assert (one.headers(), one.error(), one.timestamp()[0]) == ([("h", b"1")], None, 1)
    assert reader.poll(0) is None


def test_consume_returns_as_many_messages_as_requested(
    consumer: Callable[..., Consumer], name: str
) -> None:
    reader = consumer()
    assert reader.consume(5, 0) == []
    reader.assign([at(name, 0, 0)])
    assert [message.topic() for message in reader.consume(4, 20)] == [name] * 4
    assert [message.offset() for message in reader.consume(100, 0.3)] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(ValueError, match="num_messages"):
        reader.consume(-1)


@pytest.mark.sample
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_messages_of_an_interrupted_consume_are_returned_again(
    consumer: Callable[..., Consumer], site: Facade, delivery: str
) -> None:
    name = site.channel(partitions=1, delivery=delivery)
    with site.producer() as producer:
        for number in range(10):
            producer.produce(name, str(number), partition=0)
    reader = consumer(**{"group.id": "interrupted"})
    reader.assign([at(name, 0, 0)])
    assert [message.offset() for message in reader.consume(3, 20)] == [0, 1, 2]
    with interrupted_when(lambda: reader.position([at(name, 0)])[0].offset == 10):
        # More than exist, so it holds those that it has taken.
        reader.consume(100, 300)
    (committed,) = reader.commit(asynchronous=False) or ()
    assert committed.offset == 3
    assert [message.offset() for message in reader.consume(7, 20)] == [3, 4, 5, 6, 7, 8, 9]


# An interrupt within a generator's end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("other", [None, "at_least_once", "exactly_once"])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_an_interrupt_of_any_call_of_poll_or_consume_loses_no_message(
    consumer: Callable[..., Consumer], site: Facade, delivery: str, other: str | None
) -> None:
    count = 1000
    names = [site.channel(partitions=1, delivery=kind) for kind in (delivery, other) if kind]
    with site.producer() as producer:
        for number in range(count):
            for name in names:
                producer.produce(name, str(number), partition=0)
    # After a seek, librdkafka waits for its last request to the broker.
    reader = consumer(**{"group.id": "interrupted", "fetch.wait.max.ms": 10})
    reader.assign([at(name, 0, 0) for name in names])
    messages: list[Message] = []

    def poll() -> None:
        messages.extend(filter(None, [reader.poll(20)]))

    def consume() -> None:
        messages.extend(reader.consume(7, 20))

    for take in (poll, consume):
        # A call that fetches makes many; one with messages of an earlier fetch makes few.
        for first, stride in ((lambda: None, 29), (take, 1)):
            number = 1
            first()
            while interrupted_at_call(number, take, AS_SIGNALS):
                number += stride
                first()
            assert number > 5
    messages += poll_messages(reader, count * len(names) - len(messages))
    for name in names:
        assert [m.offset() for m in messages if m.topic() == name] == [*range(count)]


@pytest.mark.long
def test_changes_by_another_thread_repeat_and_lose_no_message(
    consumer: Callable[..., Consumer], site: Facade
) -> None:
    name = site.channel(partitions=1, filled=2_000)
    reader = consumer(**{"group.id": "changed", "fetch.wait.max.ms": 10})
    reader.assign([at(name, 0, 0)])
    offsets: list[int] = []
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            before = len(offsets)
            reader.pause([at(name, 0)])
            reader.resume([at(name, 0)])
            until(lambda b=before: len(offsets) > b or ended.is_set())  # type: ignore[misc]

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            while len(offsets) < 2_000:
                offsets += [message.offset() for message in reader.consume(3, 20)]
        finally:
            sys.setswitchinterval(interval_s)
            ended.set()
        changing.result(60)
    assert offsets == [*range(2_000)]


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_an_interrupt_of_any_call_of_pause_or_resume_loses_no_message(
    consumer: Callable[..., Consumer], site: Facade, delivery: str
) -> None:
    name = site.channel(partitions=1, delivery=delivery)
    with site.producer() as producer:
        for _ in range(1000):
            producer.produce(name, b"", partition=0)
    reader = consumer(**{"group.id": "interrupted", "fetch.wait.max.ms": 10})
    reader.assign([at(name, 0, 0)])
    offsets: list[int] = []
    for change in (reader.pause, reader.resume):
        number = 1
        while interrupted_at_call(number, partial(change, [at(name, 0)]), AS_SIGNALS):
            reader.pause([at(name, 0)])
            reader.resume([at(name, 0)])
            offsets += [message.offset() for message in reader.consume(1, 20)]
            number += 1
        assert number > 3
    assert offsets == [*range(len(offsets))]


def test_after_an_interrupt_each_partition_continues_after_its_returned_messages(
    consumer: Callable[..., Consumer], site: Facade
) -> None:
    names = [site.channel(partitions=2), site.channel(partitions=1)]
    places = [(names[0], 0), (names[0], 1), (names[1], 0)]
    with site.producer() as producer:
        for number in range(100):
            for name, partition in places:
                producer.produce(name, str(number), partition=partition)
    reader = consumer(**{"group.id": "interrupted", "enable.partition.eof": True})
    reader.assign([at(name, partition, 10) for name, partition in places])
    messages: list[Message] = []

    def read(count: int) -> None:
        def has_read() -> bool:
            taken = [*reader.consume(7, 1), *filter(None, [reader.poll(1)])]
            messages.extend(message for message in taken if message.error() is None)
            return len(messages) >= count

        until(has_read)

    def has_taken_all() -> bool:
        positions = reader.position([at(name, partition) for name, partition in places])
        return [position.offset for position in positions] == [100, 100, 100]

    read(50)
    reader.seek(at(*places[0], 10))
    messages = [m for m in messages if (m.topic(), m.partition()) != places[0]]
    with interrupted_when(has_taken_all):
        reader.consume(1000, 300)
    read(270)
    by_place = {place: [] for place in places}
    for message in messages:
        by_place[message.topic(), message.partition()].append(message.offset())
    assert by_place == {place: [*range(10, 100)] for place in places}


def test_the_channels_of_a_consumer_share_a_kafka_client(
    consumer: Callable[..., Consumer], site: Facade
) -> None:
    def clients() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "sluiceway-consumer"}

    names = [site.channel(partitions=1, filled=3) for _ in range(3)]
    reader, before = consumer(), clients()
    reader.assign([at(name, 0, 0) for name in names])
    assert {message.topic() for message in poll_messages(reader, 9)} == {*names}
    assert len(clients() - before) == 1


def test_callbacks_of_kafkas_client_run_in_the_thread_that_polls(
    consumer: Callable[..., Consumer], name: str
) -> None:
    threads: list[int] = []
    failing = False

    def stats(text: str) -> None:
        assert '"type": "consumer"' in text
        threads.append(threading.get_ident())
        if failing:
            raise LookupError

    reader = consumer(stats_cb=stats, **{"statistics.interval.ms": 20})
    reader.assign([at(name, 0, 0)])
    poll_messages(reader, 10)
    until(lambda: reader.poll(0.01) is None and threads != [])
    # Also while nothing is read.
    reader.pause([at(name, 0)])
    failing = True
    with pytest.raises(LookupError):
        until(lambda: reader.poll(0.01) is not None)
    assert {*threads} == {threading.get_ident()}


def test_position_is_past_the_last_returned_message(
    consumer: Callable[..., Consumer], name: str
) -> None:
    for like, nothing in (("confluent", OFFSET_INVALID), ("hpe", 0)):
        reader = consumer(**{"sluiceway.behaves.like": like})
        reader.assign([at(name, 0, 4)])
        (before,) = reader.position([at(name)])
        assert (before.topic, before.partition, before.offset) == (name, 0, nothing)
        poll_messages(reader, 2)
        assert [place.offset for place in reader.position([at(name)])] == [6]


def test_the_next_consumer_continues_at_the_committed_offsets(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    first = consumer(**{"group.id": "commits"})
    first.assign([at(name, 0, 0), at(name, 1, 0)])
    messages = poll_messages(first, 20)
    fourth = next(m for m in messages if (m.partition(), m.offset()) == (0, 4))
    assert [place.offset for place in first.committed([at(name), at(name, 1)])] == [
        -1001,
        -1001,
    ]
    assert [place.offset for place in first.commit(message=fourth, asynchronous=False)] == [5]
    done = first.commit(offsets=[at(name, 1, 7)], **{"async": False})
    assert [(place.topic, place.partition, place.offset) for place in done] == [(name, 1, 7)]
    assert [place.offset for place in first.committed([at(name), at(name, 1)])] == [5, 7]
    assert site.gateway.channel(name).committed("commits")[1].offset == 7
    first.close()
    second = consumer(**{"group.id": "commits"})
    second.assign([at(name), at(name, 1)])
    assert offsets(poll_messages(second, 8)) == {0: [5, 6, 7, 8, 9], 1: [7, 8, 9]}
    kept = second.commit(asynchronous=False)
    assert {place.partition: place.offset for place in kept} == {0: 10, 1: 10}


def test_poll_reports_an_asynchronous_commit(consumer: Callable[..., Consumer], name: str) -> None:
    reported: list[tuple[Any, list[TopicPartition]]] = []
    reader = consumer(on_commit=lambda error, parts: reported.append((error, parts)))
    reader.assign([at(name, 0, 0)])
    (message, *_) = poll_messages(reader, 3)
    assert reader.commit(message=message) is None
    reader.commit(offsets=[at(name, 0, 3)])
    reader.commit(offsets=[at(name, 0, 99)])
    while len(reported) < 3:
        reader.poll(0.05)
    assert [[place.offset for place in parts] for _, parts in reported] == [[1], [3], [99]]
    *_, (error, _) = reported
    assert error is not None
    assert error.code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_invalid_commits_are_refused(consumer: Callable[..., Consumer], name: str) -> None:
    reader = consumer()
    assert reader.commit() is None
    assert error_code_of(reader.commit, asynchronous=False) == KafkaError._NO_OFFSET
    reader.assign([at(name, 0, 2)])
    assert error_code_of(reader.commit, asynchronous=False) == KafkaError._NO_OFFSET
    assert error_code_of(reader.commit, offsets=[at(name, 1, 1)]) == KafkaError._STATE
    messages = poll_messages(reader, 3)
    now = {"asynchronous": False}
    assert (
        error_code_of(reader.commit, offsets=[at(name, 0, 6)], **now)
        == KafkaError.OFFSET_OUT_OF_RANGE
    )
    reader.commit(asynchronous=False)
    assert (
        error_code_of(reader.commit, offsets=[at(name, 0, 1)], **now) == KafkaError.INVALID_REQUEST
    )
    with pytest.raises(ValueError, match="mutually exclusive"):
        reader.commit(message=messages[0], offsets=[])
    for wrong in ({"message": 1}, {"offsets": [1]}, {"offsets": 1}, {"later": True}):
        with pytest.raises(TypeError):
            reader.commit(**wrong)  # type: ignore[arg-type]


def test_of_two_consumers_of_one_partition_the_second_commit_is_refused(
    consumer: Callable[..., Consumer], name: str
) -> None:
    both = [consumer(**{"group.id": "two"}) for _ in range(2)]
    for reader in both:
        reader.assign([at(name, 0, 0)])
        poll_messages(reader, 4)
    both[0].commit(asynchronous=False)
    with_offset = {"offsets": [at(name, 0, 2)], "asynchronous": False}
    assert error_code_of(both[1].commit, **with_offset) == KafkaError._CONFLICT
    # Another group or partition does not conflict.
    other = consumer(**{"group.id": "two"})
    other.assign([at(name, 1, 0)])
    poll_messages(other, 1)
    other.commit(asynchronous=False)


@pytest.mark.long
def test_automatic_commits_are_made_at_intervals_and_on_close(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    config = {"group.id": "auto", "enable.auto.commit": True, "auto.commit.interval.ms": 50}
    reader = consumer(**config)
    reader.assign([at(name, 0, 0), at(name, 1, 0)])
    poll_messages(reader, 12)
    channel = site.gateway.channel(name)
    while sum(position.offset for position in channel.committed("auto").values()) < 12:
        reader.poll(0)
    poll_messages(
        reader, 20 - sum(place.offset for place in reader.position([at(name), at(name, 1)]))
    )
    reader.close()
    assert {p: position.offset for p, position in channel.committed("auto").items()} == {
        0: 10,
        1: 10,
    }


def test_stored_offsets_are_committed_without_automatic_storing(
    consumer: Callable[..., Consumer], name: str
) -> None:
    reader = consumer(**{"group.id": "stores", "enable.auto.offset.store": False})
    reader.assign([at(name, 0, 0)])
    messages = poll_messages(reader, 6)
    assert error_code_of(reader.commit, asynchronous=False) == KafkaError._NO_OFFSET
    reader.store_offsets(message=messages[1])
    assert [place.offset for place in reader.commit(asynchronous=False)] == [2]
    reader.store_offsets(offsets=[at(name, 0, 5)])
    assert [place.offset for place in reader.commit(asynchronous=False)] == [5]
    with pytest.raises(TypeError):
        reader.store_offsets()
    unread = [at(name, 1, 5)]
    assert error_code_of(reader.store_offsets, offsets=unread) == KafkaError._UNKNOWN_PARTITION
    assert error_code_of(consumer().store_offsets, offsets=unread) == KafkaError._INVALID_ARG


def test_a_message_without_an_offset_commits_nothing(
    consumer: Callable[..., Consumer], name: str
) -> None:
    reader = consumer(**{"group.id": "made", "enable.auto.offset.store": False})
    reader.assign([at(name, 0, 0)])
    made = Message(topic=name, partition=0)
    reader.store_offsets(message=made)
    assert reader.commit(message=made) is None
    assert error_code_of(reader.commit, message=made, asynchronous=False) == KafkaError._NO_OFFSET
    assert [place.offset for place in reader.committed([at(name)])] == [OFFSET_INVALID]


def test_seek_pause_and_resume(consumer: Callable[..., Consumer], name: str) -> None:
    reader = consumer()
    reader.assign([at(name, 0, 0), at(name, 1, 0)])
    poll_messages(reader, 20)
    reader.pause([at(name, 1)])
    reader.seek(at(name, 0, 8))
    reader.seek(at(name, 1, OFFSET_BEGINNING))
    assert offsets(poll_messages(reader, 2)) == {0: [8, 9]}
    assert reader.poll(0.2) is None
    reader.resume([at(name, 1)])
    assert offsets(poll_messages(reader, 10)) == {1: [*range(10)]}
    # Messages read before a seek may be committed after it.
    reader.seek(at(name, 0, 1))
    assert reader.commit(offsets=[at(name, 0, 10)], asynchronous=False)
    for call in (
        reader.seek,
        lambda part: reader.pause([part]),
        lambda part: reader.resume([part]),
    ):
        assert error_code_of(call, at(name, 7, 0)) == KafkaError._UNKNOWN_PARTITION
    assert error_code_of(reader.seek, at(name, 0, -7)) == KafkaError._INVALID_ARG


def test_watermarks_and_offsets_of_times(consumer: Callable[..., Consumer], name: str) -> None:
    reader = consumer()
    assert reader.get_watermark_offsets(at(name), timeout=20) == (0, 10)
    reader.assign([at(name, 0, 0)])
    (first, *_) = poll_messages(reader, 1)
    low, high = reader.get_watermark_offsets(at(name), cached=True) or (0, 0)
    assert (low, high) in ((0, 10), (-1001, 10))
    times = reader.offsets_for_times([at(name, 0, first.timestamp()[1]), at(name, 1, 2**45)])
    assert [(place.topic, place.offset) for place in times] == [(name, 0), (name, -1)]


def test_assign_and_unassign_change_the_assignment(
    consumer: Callable[..., Consumer], name: str
) -> None:
    reader = consumer()
    assert reader.assignment() == []
    reader.assign([at(name, 0, 5)])
    reader.incremental_assign([at(name, 1, 8)])
    assert [(place.topic, place.partition) for place in reader.assignment()] == [
        (name, 0),
        (name, 1),
    ]
    assert offsets(poll_messages(reader, 7)) == {0: [5, 6, 7, 8, 9], 1: [8, 9]}
    reader.incremental_unassign([at(name, 0)])
    assert [place.partition for place in reader.assignment()] == [1]
    assert isinstance(reader.memberid(), str)
    reader.unassign()
    assert (reader.assignment(), reader.memberid()) == ([], None)
    assert reader.poll(0) is None


def test_an_event_reports_the_end_of_a_partition(
    consumer: Callable[..., Consumer], name: str
) -> None:
    reader = consumer(**{"enable.partition.eof": True})
    reader.assign([at(name, 0, OFFSET_END)])
    (event,) = poll_messages(reader, 1)
    assert (event.topic(), event.partition(), event.offset()) == (name, 0, 10)
    assert codes([event]) == [KafkaError._PARTITION_EOF]
    assert error_code_of(reader.commit, message=event) == KafkaError._INVALID_ARG


@pytest.mark.sample
@pytest.mark.parametrize(("policy", "expected"), [("earliest", 0), ("latest", 10)])
def test_an_offset_out_of_range_is_reset_by_the_policy(
    consumer: Callable[..., Consumer], name: str, policy: str, expected: int
) -> None:
    reader = consumer(**{"auto.offset.reset": policy, "enable.partition.eof": True})
    for begin in (999, OFFSET_INVALID):
        reader.assign([at(name, 0, begin)])
        (first,) = poll_messages(reader, 1)
        assert (first.error() is None, first.offset()) == (expected == 0, expected)


def test_without_a_policy_an_offset_out_of_range_is_an_event(
    consumer: Callable[..., Consumer], name: str
) -> None:
    reader = consumer(**{"auto.offset.reset": "error"})
    for begin in (999, OFFSET_INVALID):
        reader.assign([at(name, 0, begin)])
        (event,) = poll_messages(reader, 1)
        assert (event.topic(), event.partition()) == (name, 0)
        assert codes([event]) == [KafkaError._AUTO_OFFSET_RESET]


def test_assigning_unknown_channels_and_partitions_raises(
    consumer: Callable[..., Consumer], name: str
) -> None:
    reader = consumer()
    unknown = KafkaError.UNKNOWN_TOPIC_OR_PART
    for call in (
        lambda part: reader.assign([part]),
        reader.get_watermark_offsets,
    ):
        assert error_code_of(call, at("nowhere", 0)) == unknown
    for call in (lambda part: reader.assign([part]), reader.get_watermark_offsets):
        assert error_code_of(call, at(name, 2)) == KafkaError._UNKNOWN_PARTITION
    assert error_code_of(reader.assign, [at(name, 0, -7)]) == KafkaError._INVALID_ARG
    for wrong in ("flights", [1], None):
        with pytest.raises(TypeError):
            reader.assign(wrong)  # type: ignore[arg-type]


def test_a_closed_consumer_raises(site: Facade, name: str) -> None:
    with site.consumer() as reader:
        reader.assign([at(name, 0, 0)])
    reader.close()
    for call in (
        reader.poll,
        reader.consume,
        reader.commit,
        reader.assignment,
        reader.unassign,
        reader.unsubscribe,
        lambda: reader.assign([]),
        lambda: reader.subscribe([name]),
        lambda: reader.committed([]),
        lambda: reader.position([]),
        lambda: reader.seek(at(name, 0, 0)),
        lambda: reader.pause([]),
        lambda: reader.resume([]),
        lambda: reader.get_watermark_offsets(at(name)),
    ):
        with pytest.raises(RuntimeError, match="Consumer closed"):
            call()
    with reader as entered:
        assert entered is reader


@pytest.mark.long
def test_a_consumer_is_listed_with_its_positions(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    reader = consumer()
    reader.assign([at(name, 0, 0)])
    poll_messages(reader, 10)
    assert reader.poll(1) is None
    channel = site.gateway.channel(name)
    # Its calls still return messages, like those of an open consumer.
    poll_until(lambda: {endpoint.state for endpoint in channel.endpoints()} == {"started"}, reader)
    (seen,) = channel.wait_for(readers=1, state="started", timeout_s=20)
    assert (seen.id, seen.group) == (reader.memberid(), None)
    reader.close()
    assert not [endpoint for endpoint in channel.endpoints() if endpoint.lives]


def test_avro_messages_are_returned_as_encoded(
    consumer: Callable[..., Consumer], site: Facade
) -> None:
    name = site.typed()
    reader = consumer()
    reader.assign([at(name, 0, 0)])
    (message,) = poll_messages(reader, 1)
    schema_id = site.gateway.channel(name).schemas()[0].id
    assert message.value() == b"\0" + schema_id.to_bytes(4, "big") + b"\x0a"


@pytest.mark.long
def test_metadata_is_stored_with_committed_offsets(
    consumer: Callable[..., Consumer], name: str
) -> None:
    for group, start in (("members", "subscribe"), ("manual", "assign")):
        reader = consumer(**{"group.id": group, "auto.offset.reset": "EARLIEST"})
        if start == "subscribe":
            reader.subscribe([name])
        else:
            reader.assign([at(name, 0, 0), at(name, 1, 0)])
        poll_messages(reader, 20)
        for metadata in ("from the test", "again"):
            place = TopicPartition(name, 0, 3, metadata)
            (done,) = reader.commit(offsets=[place], asynchronous=False) or []
            assert (done.offset, done.metadata) == (3, metadata)
            (committed, none) = reader.committed([at(name, 0), at(name, 1)])
            assert (committed.offset, committed.metadata) == (3, metadata)
            assert (none.offset, none.metadata) == (OFFSET_INVALID, None)
        reader.commit(asynchronous=False)
        assert {place.metadata for place in reader.committed([at(name, 0)])} == {None}
        reader.close()


def test_partitions_of_unknown_channels_have_no_committed_offset(
    consumer: Callable[..., Consumer], name: str
) -> None:
    places = consumer().committed([at("nobody-made-it"), at(name)])
    assert [place.offset for place in places] == [OFFSET_INVALID, OFFSET_INVALID]
    assert [place.topic for place in places] == ["nobody-made-it", name]


@pytest.mark.long
def test_on_commit_gets_the_error_of_each_partition(
    consumer: Callable[..., Consumer], site: Facade, name: str
) -> None:
    reports: list[Any] = []
    other = site.channel(partitions=1, filled=2)
    reader = consumer(on_commit=lambda error, parts: reports.append((error, parts)))
    reader.assign([at(name, 0, 0), at(other, 0, 0)])
    poll_messages(reader, 12)
    reader.commit(offsets=[at(name, 0, 5), at(other, 0, 1000)])
    poll_until(lambda: reports, reader)
    ((error, (kept, refused)),) = reports
    assert error.code() == refused.error.code() == KafkaError.OFFSET_OUT_OF_RANGE
    assert (kept.error, kept.topic, kept.offset) == (None, name, 5)


def test_an_asynchronous_commit_without_read_messages_does_nothing(
    consumer: Callable[..., Consumer], site: Facade
) -> None:
    empty = site.channel()
    revoked: list[Any] = []
    reader = consumer()
    reader.subscribe([empty], on_revoke=lambda reader, _: revoked.append(reader.commit()))
    poll_until(lambda: len(reader.assignment()) == 2, reader)
    reader.close()
    assert revoked == [None]


def test_a_missing_channel_is_created_on_request(site: Facade) -> None:
    name = f"confluent-{uuid.uuid4().hex[:8]}"
    config = {"auto.offset.reset": "earliest", "allow.auto.create.topics": "true"}
    with site.consumer(**config) as consumer:
        consumer.subscribe([name])
        poll_until(lambda: consumer.assignment(), consumer)
        with site.producer() as producer:
            producer.produce(name, b"x")
        (message,) = poll_messages(consumer, 1)
        assert (message.topic(), message.value()) == (name, b"x")


def test_the_event_of_a_missing_channel_says_how_to_create_it(site: Facade) -> None:
    with site.consumer() as consumer:
        consumer.subscribe(["nowhere"])
        (event,) = poll_messages(consumer, 1)
        assert event.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        for advice in ("gateway.channel('nowhere'", "channels create", "auto.create.topics"):
            assert advice in event.error().str()
        # As in confluent-kafka; some programs test `if not message` instead of `is None`.
        assert event
        assert event.value() == event.error().str().encode()


def test_an_empty_subscription_is_refused(site: Facade) -> None:
    with site.consumer() as consumer:
        assert error_code_of(consumer.subscribe, []) == KafkaError._INVALID_ARG
