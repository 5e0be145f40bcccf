"""Interrupts, as by Ctrl-C in a notebook: no record is lost without an error."""

import gc
import itertools
import random
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

import sluiceway
from faults import (
    AS_SIGNALS,
    OF_FUNCTIONS,
    at_call,
    failing_call,
    interrupted_at_call,
    no_threads,
)
from sluiceway import Channel, Endpoint
from sluiceway.api.channels import Control
from sluiceway.api.endpoints import EndpointCalls, Role
from sluiceway.api.models import Connection
from sluiceway.api.transport import Transport
from sluiceway.endpoint.attached import AttachedEndpoint
from sluiceway.endpoint.heartbeat import HeartbeatSession
from sluiceway.errors import DeliveryFailed, EndpointClosed, OptionError
from sluiceway.kafka.consumer import MessageStream
from sluiceway.kafka.producer import IdempotentProducer
from sluiceway.kafka.topic import TopicIdentity
from sluiceway.reader import ChannelReader
from sluiceway.records.row_buffer import RowBuffer
from sluiceway.writer import ChannelWriter
from topics import Topics, readings
from waiting import until

CLIENT = str(Path(sluiceway.__file__).parent)


def written(topics: Topics, format_: str, count: int) -> Connection:
    connection = topics.connect(format_, partitions=1)
    with ChannelWriter(connection, batch_records=10) as writer:
        writer.write(readings(count))
    return connection


def test_records_of_an_interrupted_read_are_read_again(topics: Topics, each_format: str) -> None:
    connection = written(topics, each_format, 25)

    def interrupt_when_it_waits() -> None:
        # A message that is fetched after the records before it were taken.
        topics.produce(connection.topic_name, 0, [b"none of ours"])
        until(lambda: reader.corrupt_messages == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with ChannelReader(connection, until=None, on_corrupt="skip") as reader:
            assert reader.read(5, timeout=None) == readings(5)
            position = reader.position()
            interrupting = threading.Thread(target=interrupt_when_it_waits)
            interrupting.start()
            with pytest.raises(KeyboardInterrupt):
                reader.read(100, timeout=None)
            interrupting.join()
            assert reader.position() == position
            assert reader.read(20, timeout=None) == readings(20, 5)
    finally:
        signal.signal(signal.SIGUSR1, before)


def ids_of(taken: Any) -> list[int]:
    """Return the ids of records, of one record, or of a batch."""
    if isinstance(taken, pa.RecordBatch):
        taken = taken.to_pylist()
    records = [taken] if isinstance(taken, dict) else taken
    return [record["id"] for record in records or ()]


# An interrupt within a generator's end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", ["read", "next", "batches"])
def test_an_interrupt_of_any_call_of_a_read_loses_no_record(
    new_channel: Callable[..., Channel], call: str
) -> None:
    channel = new_channel(partitions=1)
    with channel.writer() as writer:
        writer.write(readings(300))
    taken: Any = None
    ids: list[int] = []
    with channel.reader(until=None) as reader:

        def take() -> None:
            # Without calls of its own, after which it would lose what it got.
            nonlocal taken
            if call == "read":
                taken = reader.read(3, timeout=20)
                return
            for item in reader.batches() if call == "batches" else reader:
                taken = item
                break

        # A call that fetches makes many; one with records of an earlier fetch makes few.
        for fetches, stride in ((False, 1), (True, 29)):
            number, interrupted, taken = 1, True, None
            # A batch takes all records.
            while interrupted and not isinstance(taken, pa.RecordBatch):
                if fetches:
                    reader.seek(reader.position())
                else:
                    ids.append(next(iter(reader))["id"])
                taken = None
                interrupted = interrupted_at_call(number, take, AS_SIGNALS)
                ids += ids_of(taken)
                number += stride
            assert number > 10
            if call == "batches":
                reader.seek({0: len(ids) // 2})
                del ids[len(ids) // 2 :]
    assert ids == [*range(len(ids))]


@pytest.mark.long
def test_single_records_are_sent_after_an_interrupt_at_any_step_of_a_write(topics: Topics) -> None:
    numbers = itertools.count()
    with ChannelWriter(topics.connect("avro", partitions=1)) as writer:

        def write() -> None:
            writer.write(readings(1, next(numbers))[0])

        def sends_after(step: int) -> bool:
            """Check it; return whether the write has so many steps."""
            interrupted = interrupted_at_call(step, write, OF_FUNCTIONS)
            write()
            # Nothing calls `flush`.
            until(lambda: writer.end_offsets() == {0: writer.accepted_records})
            return interrupted

        assert next(step for step in itertools.count(1) if not sends_after(step)) > 3


# Of generators that are interrupted while they are collected.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_writer_that_is_interrupted_at_any_step_of_closing_loses_nothing_in_silence(
    topics: Topics, each_format: str
) -> None:
    connection = topics.connect(each_format, partitions=1)
    closed: list[int] = []
    refused = 0

    def came_at(step: int) -> bool:
        """Check it; return whether closing has so many steps."""
        nonlocal refused
        writer = ChannelWriter(connection)
        for record in readings(3, 3 * step):
            writer.write(record)
        interrupted = interrupted_at_call(step, writer.close, OF_FUNCTIONS)
        try:
            writer.close()
        except EndpointClosed:
            refused += 1
        else:
            closed.append(step)
        with pytest.raises(EndpointClosed):
            writer.write(readings(1)[0])
        return interrupted

    assert not all(map(came_at, itertools.count(1, 11)))
    assert refused > 3
    with ChannelReader(connection, until="now") as reader:
        ids = {record["id"] for record in reader}
    assert {3 * step + n for step in closed for n in range(3)} <= ids


def test_a_writer_whose_close_was_interrupted_says_so_by_each_further_close(
    new_channel: Callable[..., Channel],
) -> None:
    writer = new_channel().writer()
    writer.write(readings(1))
    with failing_call(IdempotentProducer, "flush", KeyboardInterrupt(), arrives=False):
        writer.close()
    for _ in range(2):
        with pytest.raises(EndpointClosed, match="KeyboardInterrupt ended a writer before it"):
            writer.close()


def test_a_close_that_was_interrupted_after_its_report_succeeds(
    new_channel: Callable[..., Channel],
) -> None:
    channel = new_channel()
    writer = channel.writer()
    writer.write(readings(1))
    with failing_call(AttachedEndpoint, "detach", KeyboardInterrupt(), arrives=True):
        writer.close()
    writer.close()
    assert [endpoint.state for endpoint in channel.endpoints()] == ["closed"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("again", ["abort", "close"])
def test_a_writer_whose_abort_was_interrupted_has_failed(
    new_channel: Callable[..., Channel], delivery: str, again: str
) -> None:
    channel = new_channel(delivery=delivery)
    writer = channel.writer()
    writer.write(readings(10_000))
    with failing_call(IdempotentProducer, "discard", KeyboardInterrupt(), arrives=False):
        writer.abort(ValueError())
    if again == "abort":
        writer.abort(ValueError())
    with pytest.raises(EndpointClosed, match="ValueError ended a writer before it was closed"):
        writer.close()
    assert [endpoint.state for endpoint in channel.endpoints()] == ["error"]
    if delivery == "exactly_once":
        assert not channel.commits().open


def test_a_reader_whose_abort_was_interrupted_has_failed(
    new_channel: Callable[..., Channel],
) -> None:
    channel = new_channel()
    reader = channel.reader(group="g", until=None)
    with failing_call(MessageStream, "close", KeyboardInterrupt(), arrives=False):
        reader.abort(ValueError())
    reader.close()
    assert [endpoint.state for endpoint in channel.endpoints()] == ["error"]


def test_a_failed_delivery_is_raised_after_interrupts_of_any_call_of_a_flush(
    topics: Topics,
) -> None:
    # The gateway had a larger message limit than the topic.
    connection = topics.connect("avro", partitions=1, config={"max.message.bytes": "2000"})
    writer = ChannelWriter(connection)
    noise = random.Random(1).randbytes(4000).hex()  # noqa: S311
    writer.write({"id": 1, "station": noise, "celsius": 0.0})

    def flush() -> None:
        for number in itertools.count(1):
            interrupted_at_call(number, writer.flush)

    with pytest.raises((DeliveryFailed, EndpointClosed), match="MSG_SIZE_TOO_LARGE"):
        flush()
    writer.close()


def test_an_unexpected_error_in_the_background_is_logged_and_raised_by_the_next_call(
    topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    writer = ChannelWriter(topics.connect("avro", partitions=1))
    with at_call(RowBuffer, "drain", Mock(side_effect=MemoryError())):
        writer.write(readings(1)[0])
        until(lambda: writer.failure is not None)
    with pytest.raises(EndpointClosed, match="MemoryError interrupted a writer"):
        writer.close()
    until(lambda: "records of a writer were not sent in the background" in caplog.text)


def test_rows_prepared_by_another_writer_are_refused_by_their_own_call(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=2)
    with (
        ChannelWriter(connection) as one,
        ChannelWriter(connection, partitioner=lambda record, _: int(record["id"])) as other,
    ):
        with pytest.raises(OptionError, match="the partitioner returned 5 for record 1"):
            other.write_prepared(one.prepare([*readings(1), *readings(1, 5)]))
        assert other.write_prepared(one.prepare(readings(2))) == 2
    with ChannelReader(connection, until="now") as reader:
        assert sorted(record["id"] for record in reader) == [0, 1]


def test_without_a_new_thread_single_records_are_sent_at_once(topics: Topics) -> None:
    with ChannelWriter(topics.connect("avro", partitions=1)) as writer, no_threads():
        writer.write(readings(1)[0])
        until(lambda: writer.end_offsets() == {0: 1})


IMPORTING = """
import sys, threading
from sluiceway import Gateway

class Finder:
    def find_spec(self, name, *_):
        if name == "pandas":
            print(threading.current_thread() is threading.main_thread())

sys.meta_path.insert(0, Finder())
channel = Gateway(sys.argv[1]).channel(sys.argv[2])
channel.writer() if sys.argv[3] == "writer" else channel.reader(until="now")
"""


@pytest.mark.parametrize("role", ["reader", "writer"])
def test_pandas_is_imported_where_no_interrupt_comes(
    gateway_url: str, channel: Channel, role: str
) -> None:
    command = [sys.executable, "-c", IMPORTING, gateway_url, channel.name, role]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"


# Of connections whose request was interrupted.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_as_a_writer_connects_leaves_no_client(topics: Topics) -> None:
    connection = topics.connect("avro", partitions=1)
    before = count_clients()

    def open_at(number: int) -> bool:
        return interrupted_at_call(
            number,
            partial(
                IdempotentProducer, connection, {}, connect_timeout_s=20, delivery_timeout_s=20
            ),
        )

    assert not all(map(open_at, itertools.count(1, 5)))
    until(lambda: gc.collect() >= 0 and count_clients() <= before)


def count_clients() -> int:
    """Return the number of this process's clients of librdkafka."""
    count = 0
    for file in Path("/proc/self/task").glob("*/comm"):
        # A thread may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            count += file.read_text() == "rdk:main\n"
    return count


# Of connections whose request was interrupted.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("role", ["reader", "writer"])
def test_an_endpoint_whose_opening_was_interrupted_ends(channel: Channel, role: str) -> None:
    # The gateway has the request, and the response is on its way.
    with interrupted_wait(EndpointCalls, "attach") as raised:
        channel.writer() if role == "writer" else channel.reader(group="g", dynamic=True)
    # As in a notebook, the traceback has its frames.
    until(lambda: [endpoint.state for endpoint in channel.endpoints()] == ["error"])
    with channel.writer() as writer:
        writer.write(readings(3))
    # A writer that wrote nothing fails no reader.
    assert sorted(channel.reader(), key=itemgetter("id")) == readings(3)
    del raised


# Of connections whose request was interrupted.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("owner", "name"), [(HeartbeatSession, "wait_idle"), (EndpointCalls, "detach")]
)
def test_an_endpoint_whose_opening_is_interrupted_again_as_it_ends_ends(
    channel: Channel, owner: object, name: str
) -> None:
    # The first interrupt comes as the member requests its partitions.
    with interrupting(owner, name), interrupted_wait(EndpointCalls, "sync") as raised:
        channel.reader(group="g", dynamic=True)
    until(lambda: [endpoint.state for endpoint in channel.endpoints()] == ["error"])
    del raised


@pytest.mark.long
# Of connections whose request was interrupted.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("role", ["reader", "writer"])
def test_an_endpoint_ends_after_two_interrupts_at_any_steps_of_its_opening(
    new_channel: Callable[..., Channel], gateway_url: str, role: Role
) -> None:
    channel = new_channel()

    def open_endpoint() -> None:
        AttachedEndpoint(
            control,
            channel=channel.name,
            uid=channel.uid,
            role=role,
            membership=None,
            close_timeout_s=60,
        ).attach(60).detach()

    with closing(Transport(gateway_url)) as transport:
        control = Control(transport)
        for step in itertools.count(1):
            if not interrupted_twice(step, 1 + step % 11, open_endpoint):
                break
        assert step > 20
        until(lambda: gc.collect() >= 0 and all(map(has_ended, channel.endpoints())))
        assert channel.endpoints()


def has_ended(endpoint: Endpoint) -> bool:
    return endpoint.state in ("closed", "error")


def interrupted_twice(first: int, second: int, work: Callable[[], object]) -> bool:
    """Interrupt `work` at its n-th call, and again some calls of the client after that.

    Return whether it had so many calls. Only at calls: between the lines of a `with` statement,
    where a tracer can raise, Python handles no signal, and a lock would stay held.
    """
    left = 0

    def trace(frame: Any, event: str, _argument: object) -> Any:
        nonlocal left
        if left and event == "call" and frame.f_code.co_filename.startswith(CLIENT):
            left -= 1
            if not left:
                raise KeyboardInterrupt
        return trace

    def interrupt() -> None:
        nonlocal left
        left = second
        raise KeyboardInterrupt

    sys.settrace(trace)
    try:
        return interrupted_at_call(first, work, action=interrupt)
    finally:
        sys.settrace(None)


def test_an_admin_client_that_is_replaced_is_destroyed_where_no_interrupt_comes(
    topics: Topics,
) -> None:
    earlier = {id(client) for client in admin_clients()}
    identity = TopicIdentity(topics.connect("avro"), {"client.id": "replaced"})
    (client,) = (client for client in admin_clients() if id(client) not in earlier)
    threads: list[threading.Thread] = []
    weakref.finalize(client, lambda: threads.append(threading.current_thread()))
    del client
    with interrupted_wait(AdminClient, "describe_topics"):
        identity.verify(timeout_s=20)
    identity.verify(timeout_s=20)
    until(lambda: gc.collect() >= 0 and threads)
    assert threads[0] is not threading.main_thread()


@contextmanager
def interrupted_wait(owner: object, name: str) -> Iterator[pytest.ExceptionInfo[KeyboardInterrupt]]:
    """Interrupt the main thread as another one calls this function; expect it from the block."""
    with interrupting(owner, name), pytest.raises(KeyboardInterrupt) as raised:
        yield raised


@contextmanager
def interrupting(owner: object, name: str) -> Iterator[None]:
    """Interrupt the main thread as another one calls this function."""

    def interrupt(*_: object, **__: object) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with at_call(owner, name, interrupt):
            yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def admin_clients() -> list[AdminClient]:
    return [client for client in gc.get_objects() if isinstance(client, AdminClient)]
