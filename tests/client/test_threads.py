"""Writers and readers shared by threads."""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import pytest

from faults import OF_FUNCTIONS, interrupted_at_call
from relay import Relay
from sluiceway import (
    Channel,
    ChannelReader,
    ChannelWriter,
    InputPort,
    OutputPort,
    Position,
)
from sluiceway.api.models import Connection
from sluiceway.concurrency import FairLock
from sluiceway.errors import CommitBeyondRead, DeliveryFailed, EndpointClosed
from topics import Topics, readings
from waiting import until

NewChannel = Callable[..., Channel]

THREADS = 32
PLAIN_BYTES = {
    "type": "record",
    "name": "Message",
    "fields": [{"name": "value", "type": "bytes"}],
}
PLACEMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "bytes": {
        "unkeyed": {},
        "keyed": {"key": "value"},
        "partitioner": {"partitioner": lambda record, total: len(record["value"]) % total},
    },
    "other": {
        "unkeyed": {},
        "keyed": {"key": "station"},
        "partitioner": {"partitioner": lambda record, total: record["id"] % total},
    },
}


class Threads:
    """Threads that start together; `join` raises their exceptions."""

    def __init__(self, work: Callable[[int], object], number: int = THREADS) -> None:
        self._together = threading.Barrier(number)
        self._work = work
        self._raised: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(number)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        self._together.wait()
        try:
            self._work(number)
        except BaseException as error:
            self._raised.append(error)

    def join(self, seconds: float = 120) -> None:
        deadline_s = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            assert not thread.is_alive(), "a thread did not end in time"
        if self._raised:
            raise self._raised[0]


def in_threads(work: Callable[[int], object], number: int = THREADS) -> None:
    Threads(work, number).join()


def made(format_: str, ids: Iterable[int]) -> list[dict[str, Any]]:
    if format_ == "bytes":
        return [{"value": b"%d" % i} for i in ids]
    return [record for i in ids for record in readings(1, i)]


def id_of(record: Mapping[str, Any]) -> int:
    return int(record.get("id", record.get("value")))


def connected(topics: Topics, format_: str) -> Connection:
    if format_ == "bytes":
        return topics.connect("bytes", partitions=4, schema_definition=PLAIN_BYTES)
    return topics.connect(format_, partitions=4)


@pytest.fixture(params=["avro", "arrow", "bytes"])
def every_format(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.sample
@pytest.mark.parametrize("placement", ["unkeyed", "keyed", "partitioner"])
def test_threads_that_share_a_writer_write_each_record_once_and_read_each_once(
    topics: Topics, every_format: str, placement: str
) -> None:
    connection = connected(topics, every_format)
    wishes = PLACEMENTS["bytes" if every_format == "bytes" else "other"][placement]
    per_thread = 60
    writer = ChannelWriter(connection, batch_records=7, **wishes)

    def write(number: int) -> None:
        ids = range(number * per_thread, (number + 1) * per_thread)
        for i in ids[: per_thread // 2]:
            assert writer.write(made(every_format, [i])[0]) == 1
        assert writer.write(made(every_format, ids[per_thread // 2 :])) == per_thread // 2
        if number % 4 == 0:
            writer.flush()

    in_threads(write)
    writer.close()
    assert writer.accepted_records == THREADS * per_thread

    read_ids: list[int] = []
    with ChannelReader(connection, until="now") as reader:

        def read(number: int) -> None:
            if number % 3 == 0:
                read_ids.extend(id_of(record) for record in reader)
            elif number % 3 == 1:
                for batch in reader.batches():
                    read_ids.extend(map(id_of, batch.to_pylist()))
            else:
                while not reader.finished:
                    read_ids.extend(map(id_of, reader.read(5, timeout=0.1)))

        in_threads(read)
        assert reader.finished
    assert sorted(read_ids) == list(range(THREADS * per_thread))


@pytest.mark.long
@pytest.mark.parametrize("share_connection", [False, True])
def test_threads_that_seek_meanwhile_lose_no_record_of_other_partitions(
    topics: Topics, share_connection: bool
) -> None:
    connection = topics.connect("avro", partitions=2)
    with ChannelWriter(connection, partitioner=lambda record, _: record["id"] % 2) as writer:
        writer.write(readings(4000))
    ids: list[int] = []
    with ChannelReader(connection, until="now", share_connection=share_connection) as reader:

        def work(number: int) -> None:
            if number == 0:
                for _ in range(20):
                    reader.seek({1: 1990})
                return
            while not reader.finished:
                ids.extend(record["id"] for record in reader.read(50, timeout=0.1))

        in_threads(work, 8)
        ids.extend(record["id"] for record in reader)
    times = Counter(ids)
    assert {i for i in times if i % 2 == 0} == set(range(0, 4000, 2))
    assert {times[i] for i in range(0, 4000, 2)} == {1}


@pytest.mark.long
def test_close_during_writes_loses_no_write_silently(topics: Topics, every_format: str) -> None:
    connection = connected(topics, every_format)
    writer = ChannelWriter(connection, batch_records=50)
    numbers = count()
    written: list[int] = []
    refused = threading.Semaphore(0)

    def write(_: int) -> None:
        while True:
            number = next(numbers)
            try:
                writer.write(made(every_format, [number]))
            except EndpointClosed:
                refused.release()
                return
            written.append(number)

    threads = Threads(write)
    until(lambda: len(written) > 500)
    writer.close()
    threads.join()
    with ChannelReader(connection, until="now") as reader:
        assert sorted(map(id_of, reader)) == sorted(written)


@pytest.mark.long
def test_a_flush_ends_while_other_threads_keep_writing(topics: Topics) -> None:
    connection = topics.connect("avro")
    stop = threading.Event()
    with ChannelWriter(connection) as writer:

        def write(number: int) -> None:
            while not stop.is_set():
                writer.write(readings(50, number))

        threads = Threads(write, 4)
        try:
            for _ in range(3):
                writer.flush()
        finally:
            stop.set()
            threads.join()


def test_leaving_by_an_exception_ends_a_write_that_waits_for_kafka(
    fragile_topics: Topics, fragile_kafka: Relay
) -> None:
    connection = fragile_topics.connect("bytes", schema_definition=PLAIN_BYTES)
    few = {"queue.buffering.max.messages": 10}
    writer = ChannelWriter(connection, config=few, delivery_timeout_s=60)
    fragile_kafka.cut()
    writing = Threads(lambda _: writer.write([{"value": b"x" * 100}] * 1000), 1)
    until(lambda: writer.accepted_records == 1000)
    with pytest.raises(ZeroDivisionError), writer:
        raise ZeroDivisionError
    with pytest.raises(DeliveryFailed) as raised:
        writing.join(30)
    assert (raised.value.written_records, raised.value.failed_records) == (0, 1000)


def test_every_thread_gets_a_failed_delivery_with_correct_counts(
    topics: Topics, each_format: str
) -> None:
    connection = topics.connect(each_format, partitions=1, config={"max.message.bytes": "2000"})
    writer = ChannelWriter(connection, batch_records=10)
    writer.write(readings(10))
    writer.flush()
    received: list[BaseException] = []

    def write(number: int) -> None:
        # Random digits do not compress below the topic's message limit.
        noise = random.Random(number).randbytes(4000).hex()  # noqa: S311
        try:
            while len(received) < 100:
                writer.write([{"id": number, "station": noise, "celsius": 0.0}] * 10)
                writer.flush()
        except (DeliveryFailed, EndpointClosed) as error:
            received.append(error)

    in_threads(write, 8)
    failures = [error for error in received if isinstance(error, DeliveryFailed)]
    assert failures
    assert len(received) == 8
    assert {failure.written_records for failure in failures} == {10}


@pytest.mark.long
def test_a_reader_that_waits_lets_other_threads_commit_seek_and_close(
    new_channel: NewChannel,
) -> None:
    channel = new_channel(partitions=1)
    with channel.writer() as writer:
        writer.write(readings(10))
        writer.flush()
        reader = channel.reader(group="g", index=0, size=1)
        records = reader.read(10, timeout=None)
        waiting = Threads(lambda _: records.extend(reader.read(10, timeout=None)), 1)
        iterating = Threads(lambda _: list(reader), 1)
        began_s = time.monotonic()
        reader.commit()
        assert reader.committed() == {0: Position(offset=10)}
        reader.seek({0: 10})
        assert reader.lag() == {0: 0}
        reader.close()
        assert time.monotonic() - began_s < 30
        for threads in (waiting, iterating):
            with pytest.raises(EndpointClosed):
                threads.join()
        assert records == readings(10)


@pytest.mark.long
def test_records_not_yet_returned_are_not_committed_by_another_thread(
    new_channel: NewChannel, topics: Topics
) -> None:
    channel = new_channel(partitions=1)
    with channel.writer() as writer:
        writer.write(readings(10))
        writer.flush()
        with channel.reader(group="g", index=0, size=1, on_corrupt="skip") as reader:
            records = reader.read(4, timeout=None)
            waiting = Threads(lambda _: records.extend(reader.read(20, timeout=None)), 1)
            # A message that is fetched after the records before it were taken.
            topics.produce(reader.connection.topic_name, 0, [b"none of ours"])
            until(lambda: reader.corrupt_messages == 1)
            reader.commit()
            assert reader.committed() == {0: Position(offset=4)}
            with pytest.raises(CommitBeyondRead):
                reader.commit({0: 7})
            writer.write(readings(14, 10))
            writer.flush()
            waiting.join()
            reader.commit()
            assert reader.committed() == {0: Position(offset=25)}
    assert records == readings(24)


@pytest.mark.long
def test_commits_of_threads_do_not_go_back(new_channel: NewChannel) -> None:
    channel = new_channel(partitions=2)
    with channel.writer() as writer:
        writer.write(readings(400))
    ids: list[int] = []
    with channel.reader(group="g", index=0, size=1) as reader:

        def work(_: int) -> None:
            while not reader.finished:
                ids.extend(record["id"] for record in reader.read(5, timeout=0.1))
                reader.commit()

        in_threads(work, 8)
        assert reader.committed() == reader.position()
    assert sorted(ids) == list(range(400))


@pytest.mark.sample
@pytest.mark.usefixtures("each_stream")
def test_dynamic_members_shared_by_threads_release_partitions(
    new_channel: NewChannel,
) -> None:
    channel = new_channel(partitions=4)
    with channel.writer(batch_records=10) as writer:
        writer.write(readings(3000))
    ids: list[int] = []
    lock = threading.Lock()
    with (
        channel.reader(group="d", dynamic=True, on_revoke=lambda _: first.commit()) as first,
        channel.reader(group="d", dynamic=True, on_revoke=lambda _: second.commit()) as second,
    ):

        def read(number: int) -> None:
            reader = (first, second)[number % 2]
            if number < 4:
                for record in reader:
                    with lock:
                        ids.append(record["id"])
            # A member that stopped reading releases nothing, so the other may wait for it.
            while not (first.finished and second.finished):
                records = reader.read(7, timeout=0.1)
                with lock:
                    ids.extend(record["id"] for record in records)

        in_threads(read, 8)
    assert sorted(ids) == list(range(3000))


@pytest.mark.long
def test_threads_share_the_ports_of_a_job(new_channel: NewChannel) -> None:
    channels = [new_channel(partitions=2), new_channel(partitions=2, format="arrow")]
    with OutputPort(channels) as port:
        in_threads(lambda number: port.write(readings(20, 20 * number)), 16)
        port.flush()
    for channel in channels:
        ids: list[int] = []
        with InputPort(channel) as inputs:
            in_threads(lambda _: ids.extend(r["id"] for r in inputs), 16)  # noqa: B023
        assert sorted(ids) == list(range(320))


def test_the_fair_lock_serves_urgent_requests_first_then_in_order() -> None:
    lock, order = FairLock(), []

    def ask(name: str, *, urgent: bool) -> Threads:
        def work(_: int) -> None:
            with lock.urgent() if urgent else lock:
                order.append(name)

        return Threads(work, 1)

    with lock, lock:
        asked = []
        for number, name in enumerate(("a", "b", "c!", "d!"), 1):
            asked.append(ask(name, urgent=name.endswith("!")))
            until(lambda: lock.waiting == number)  # noqa: B023
        assert lock.urgently_contended
    for threads in asked:
        threads.join()
    assert order == ["c!", "d!", "a", "b"]
    assert not lock.contended


def test_a_request_becomes_urgent_at_its_deadline_and_precedes_a_yielding_thread() -> None:
    lock, order = FairLock(), []

    def work(_: int) -> None:
        lock.acquire(time.monotonic())
        order.append("late")
        lock.release()

    lock.acquire()
    other = Threads(work, 1)
    until(lambda: lock.urgently_contended)
    lock.yield_to_waiters(float("-inf"))
    order.append("first")
    lock.release()
    other.join()
    assert order == ["late", "first"]
    with pytest.raises(RuntimeError):
        lock.release()


class InterruptedGuard:
    """A lock that an interrupt follows once, `at` its next entry or exit."""

    at = ""

    def __init__(self) -> None:
        self._guard = threading.RLock()

    def __enter__(self) -> None:
        self._interrupt("entry")
        self._guard.acquire()

    def __exit__(self, *_: object) -> None:
        self._guard.release()
        self._interrupt("exit")

    def _interrupt(self, at: str) -> None:
        if self.at == at:
            self.at = ""
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", ["entry", "exit"])
@pytest.mark.parametrize("call", ["acquire", "release"])
def test_after_an_interrupted_call_other_threads_get_the_lock(
    call: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, got = InterruptedGuard(), threading.Event()
    with monkeypatch.context() as patched:
        # No signal can be sent between two steps of a `with`.
        patched.setattr(threading, "Lock", lambda: guard)
        lock = FairLock()

    def work(_: int) -> None:
        with lock:
            got.set()

    if call == "release":
        lock.acquire()
        waiting = Threads(work, 1)
        until(lambda: lock.contended)
    guard.at = at
    with pytest.raises(KeyboardInterrupt):
        getattr(lock, call)()
    if call == "acquire":
        waiting = Threads(work, 1)
    waiting.join(60)
    assert got.is_set()
    lock.acquire()
    lock.release()


def test_a_lock_that_is_interrupted_at_any_step_while_it_yields_is_held_once() -> None:
    def is_held_after(step: int) -> bool:
        """Check it; return whether the call has so many steps."""
        lock = FairLock()
        lock.acquire()
        interrupted = interrupted_at_call(
            step, lambda: lock.yield_to_waiters(float("-inf")), OF_FUNCTIONS
        )
        lock.release()
        with pytest.raises(RuntimeError):
            lock.release()
        return interrupted

    assert next(step for step in count(1) if not is_held_after(step)) > 3


@pytest.mark.parametrize("urgent", [True, False])
def test_an_interrupt_of_any_call_of_a_statement_leaves_the_lock_free(*, urgent: bool) -> None:
    lock = FairLock()

    def hold() -> None:
        with lock.urgent() if urgent else lock:
            pass

    assert next(n for n in count(1) if not interrupted_at_call(n, hold) or lock.held) > 10
    assert not lock.held


def test_an_interrupt_leaves_the_lock_with_the_thread_that_had_released_it() -> None:
    lock, held, main = FairLock(), threading.Event(), threading.get_ident()

    def interrupt(_: int) -> None:
        with lock:
            held.set()
            # The main thread waits for the lock again, as after a callback.
            until(lambda: lock.contended)
            signal.pthread_kill(main, signal.SIGUSR1)
            until(lambda: lock.urgently_contended)

    def release_for_a_while() -> None:
        with lock, lock, lock.released():
            others.append(Threads(interrupt, 1))
            assert held.wait(60)

    others: list[Threads] = []
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            release_for_a_while()
    finally:
        signal.signal(signal.SIGUSR1, before)
    others[0].join()
    with lock:
        assert not lock.contended
