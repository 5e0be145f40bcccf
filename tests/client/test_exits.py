"""Programs that exit inside of `with`: `sys.exit(0)` is success, any other exit a failure."""

import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from broker_calls import broker_at, encode, produce_values
from faults import at_call
from sluiceway import Channel, Gateway, Heartbeat, OutputPort
from sluiceway.confluent import Producer
from sluiceway.errors import DeliveryFailed, WriterFailed, cause_of
from sluiceway.kafka.producer import IdempotentProducer
from topics import DEFINITION, readings
from waiting import until


@pytest.fixture
def make(gateway: Gateway) -> Callable[..., Channel]:
    def make(**options: Any) -> Channel:
        heartbeat = Heartbeat(interval_ms=200, timeout_ms=60_000)
        name = f"exits-{uuid.uuid4().hex[:8]}"
        return gateway.channel(name, DEFINITION, heartbeat=heartbeat, **options)

    return make


def write_and_exit(kind: str, url: str, channel: Channel, code: object) -> None:
    """Write three records without `flush`, and exit inside of `with`."""
    with ExitStack() as block:
        if kind == "writer":
            block.enter_context(channel.writer()).write(readings(3))
        elif kind == "port":
            block.enter_context(OutputPort([channel])).write(readings(3))
        elif kind == "confluent":
            producer = block.enter_context(Producer({"bootstrap.servers": url}))
            for value in encode(channel, 3):
                producer.produce(channel.name, value)
        else:
            broker = block.enter_context(broker_at(url))
            produce_values(broker, channel, encode(channel, 3), required_acks=0)
        sys.exit(code)  # type: ignore[arg-type]


def ends(channel: Channel) -> list[tuple[str, str | None]]:
    return [
        (endpoint.state, endpoint.cause)
        for endpoint in channel.endpoints()
        if endpoint.role == "writer"
    ]


@pytest.mark.parametrize("kind", ["writer", "port", "confluent", "broker"])
@pytest.mark.parametrize("code", [None, 0])
def test_a_successful_exit_closes_what_it_leaves(
    make: Callable[..., Channel], gateway_url: str, kind: str, code: object
) -> None:
    channel = make()
    with pytest.raises(SystemExit):
        write_and_exit(kind, gateway_url, channel, code)
    assert ends(channel) == [("closed", None)]
    assert list(channel.reader()) == readings(3)


@pytest.mark.sample
@pytest.mark.parametrize("kind", ["writer", "port", "confluent", "broker"])
@pytest.mark.parametrize("code", [1, "a reason"])
def test_any_other_exit_is_a_failure(
    make: Callable[..., Channel], gateway_url: str, kind: str, code: object
) -> None:
    channel = make()
    with pytest.raises(SystemExit):
        write_and_exit(kind, gateway_url, channel, code)
    assert ends(channel) == [("error", cause_of(SystemExit(code)))]


def test_a_successful_exit_commits_the_records_of_an_exactly_once_channel(
    make: Callable[..., Channel],
) -> None:
    channel = make(delivery="exactly_once")
    with pytest.raises(SystemExit):
        write_and_exit("writer", "", channel, None)
    assert list(channel.reader()) == readings(3)


@pytest.mark.sample
@pytest.mark.usefixtures("brief_replacement")
@pytest.mark.parametrize("block", ["batch", "transaction"])
def test_an_exit_within_a_batch_aborts_it_and_is_a_failure(
    make: Callable[..., Channel], gateway: Gateway, block: str
) -> None:
    channel, source = make(delivery="exactly_once"), make()

    def run() -> None:
        with source.reader(group="g") as reader, channel.writer() as writer:
            writer.write(readings(3))
            writer.flush()
            with writer.batch("b") if block == "batch" else gateway.transaction(reader, writer):
                writer.write(readings(3, 3))
                sys.exit(0)

    with pytest.raises(SystemExit):
        run()
    assert ends(channel) == [("error", cause_of(SystemExit(0)))]
    with channel.reader() as following:
        assert following.read(3, timeout=None) == readings(3)
        with pytest.raises(WriterFailed):
            following.read(1, timeout=None)


@pytest.mark.long
def test_a_writer_that_outlives_an_exit_within_a_batch_can_finish(
    make: Callable[..., Channel],
) -> None:
    channel = make(delivery="exactly_once")

    def run() -> None:
        with channel.writer() as writer:
            with pytest.raises(SystemExit), writer.batch("b"):
                sys.exit(0)
            writer.write(readings(3))
            sys.exit(0)

    with pytest.raises(SystemExit):
        run()
    assert list(channel.reader()) == readings(3)


PROGRAM = """
import signal, sys
from sluiceway import Gateway
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with Gateway(sys.argv[1]) as gateway, gateway.channel(sys.argv[2]).writer() as writer:
    writer.write([{"id": n, "station": "s", "celsius": 0.0} for n in range(100)])
    print("written", flush=True)
    signal.pause()
"""


@pytest.mark.long
def test_a_program_that_exits_on_sigterm_finishes_its_writers(
    make: Callable[..., Channel], gateway_url: str
) -> None:
    channel = make()
    command = [sys.executable, "-c", PROGRAM, gateway_url, channel.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "written\n"
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
    assert len(list(channel.reader())) == 100


WRITING = """
import signal, sys
import pyarrow as pa
from sluiceway import Gateway
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
rows = [{"id": n, "station": "s", "celsius": 0.0} for n in range(int(sys.argv[4]))]
written = 0
try:
    with Gateway(sys.argv[1]) as gateway, gateway.channel(sys.argv[2]).writer() as writer:
        records = rows if sys.argv[3] == "rows" else pa.Table.from_pylist(rows, writer.schema.arrow)
        while True:
            writer.write(records)
            written += 1
            if written == 10:
                print("writing", flush=True)
finally:
    print(written, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize(("kind", "size"), [("rows", 1), ("table", 30_000)])
def test_sigterm_while_a_program_writes_finishes_its_writer_with_whole_writes(
    make: Callable[..., Channel], gateway_url: str, kind: str, size: int, delivery: str
) -> None:
    channel = make(delivery=delivery)
    command = [sys.executable, "-c", WRITING, gateway_url, channel.name, kind, str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "writing\n"
        program.send_signal(signal.SIGTERM)
        written = int(program.stdout.readline())
        assert program.wait(60) == 0
    assert ends(channel) == [("closed", None)]
    count = sum(batch.num_rows for batch in channel.reader().batches())
    assert count in (written * size, (written + 1) * size)


@pytest.fixture
def on_signal() -> Iterator[Callable[[BaseException], None]]:
    """Set what SIGTERM raises in the main thread."""
    before = signal.getsignal(signal.SIGTERM)

    def set_error(error: BaseException) -> None:
        def handler(*_: object) -> None:
            raise error

        signal.signal(signal.SIGTERM, handler)

    yield set_error
    signal.signal(signal.SIGTERM, before)


def send_signal(*_: object) -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGTERM)


@pytest.mark.sample
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("call", ["write", "flush"])
def test_an_exit_while_records_are_sent_finishes_the_writer_with_all_of_them(
    make: Callable[..., Channel],
    on_signal: Callable[[BaseException], None],
    delivery: str,
    call: str,
) -> None:
    # Only messages of Arrow wait for more records of further writes.
    channel = make(delivery=delivery, format="avro" if call == "write" else "arrow")

    def run() -> None:
        with channel.writer() as writer:
            table = pa.Table.from_pylist(readings(50), writer.schema.arrow)
            if call == "flush":
                writer.write(table)
            with at_call(IdempotentProducer, "send", send_signal):
                if call == "write":
                    writer.write(table)
                writer.flush()

    on_signal(SystemExit(0))
    with pytest.raises(SystemExit):
        run()
    assert ends(channel) == [("closed", None)]
    assert list(channel.reader()) == readings(50)


def test_a_failure_that_an_exit_kept_from_the_program_is_raised_by_closing(
    make: Callable[..., Channel],
    on_signal: Callable[[BaseException], None],
) -> None:
    channel = make()
    interrupted: list[BaseException] = []

    def fail_after_signal(*_: object, **__: object) -> None:
        send_signal()
        until(lambda: interrupted)
        raise DeliveryFailed(partition=0, reason="refused", written_records=0, failed_records=50)

    def run() -> None:
        with (
            channel.writer() as writer,
            at_call(IdempotentProducer, "send", fail_after_signal),
        ):
            try:
                writer.write(pa.Table.from_pylist(readings(50), writer.schema.arrow))
            except SystemExit as error:
                interrupted.append(error)
                raise

    on_signal(SystemExit(0))
    with pytest.raises(DeliveryFailed):
        run()
    assert [state for state, _ in ends(channel)] == ["error"]


def test_a_write_that_was_interrupted_before_its_turn_is_left_out(
    make: Callable[..., Channel], on_signal: Callable[[BaseException], None]
) -> None:
    """Else the records of an aborted batch would be in the next one."""
    channel = make(delivery="exactly_once")
    on_signal(KeyboardInterrupt())
    held = threading.Event()
    with channel.writer() as writer, ThreadPoolExecutor() as threads:
        turn = writer.turn

        def hold() -> None:
            with turn:
                held.set()
                until(lambda: turn.contended)
                send_signal()
                # The write, and the end of the batch.
                until(lambda: turn.waiting == 2)

        def run() -> None:
            with writer.batch("b"):
                holding.append(threads.submit(hold))
                assert held.wait(60)
                writer.write(pa.Table.from_pylist(readings(50), writer.schema.arrow))

        holding: list[Future[None]] = []
        with pytest.raises(KeyboardInterrupt):
            run()
        holding[0].result(60)
        writer.write(readings(3))
    assert list(channel.reader()) == readings(3)
