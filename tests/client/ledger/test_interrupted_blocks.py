"""Interrupts at every event of entering and leaving blocks: nothing is acknowledged and lost."""

import gc
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

import sluiceway
from ledger_view import LedgerView
from sluiceway import Channel, ChannelReader, ChannelWriter, Gateway
from sluiceway.errors import OptionError, SluicewayError
from topics import readings

NewChannel = Callable[..., Channel]

# Of connections whose request was interrupted.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
CLIENT = str(Path(sluiceway.__file__).parent)
BYTECODE = {"writer_batches.py", "transaction.py", "channel_endpoint.py"}
"""Files in which each instruction is an event; in others, each call and return is one."""


@pytest.fixture(autouse=True)
def connections_are_closed() -> Iterator[None]:
    """Collect connections whose request was interrupted, without their warnings."""
    yield
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


class Interrupt:
    """Raises KeyboardInterrupt at one event while it is armed, as a signal handler does."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.armed = False

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    @property
    def came(self) -> bool:
        return self.left < 0

    def _trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        file = frame.f_code.co_filename
        if not (file.startswith(CLIENT) or file == __file__ or "contextlib" in file):
            return None
        everything = Path(file).name in BYTECODE or file == __file__
        frame.f_trace_opcodes = frame.f_trace_lines = everything
        if self.armed and event != "exception":
            self.left -= 1
            if self.left < 0:
                self.armed = False
                raise KeyboardInterrupt
        return self._trace


@pytest.fixture(params=[151, pytest.param(13, marks=pytest.mark.long)])
def numbers(request: pytest.FixtureRequest) -> Iterator[int]:
    """The numbers of the events to interrupt: the first ones, and then every some."""
    step: int = request.param
    return itertools.chain(range(0, 60, 1 + step // 20), itertools.count(60, step))


def write_batch(writer: ChannelWriter, key: str, record: Any, interrupt: Interrupt) -> None:
    interrupt.armed = True
    with writer.batch(key):
        interrupt.armed = False
        writer.write(record)
        interrupt.armed = True
    interrupt.armed = False


def write_batch_while_leaving(
    writer: ChannelWriter, key: str, record: Any, interrupt: Interrupt
) -> None:
    with writer.batch(key):
        writer.write(record)
        interrupt.armed = True
    interrupt.armed = False


def copy_one(
    transaction: Any, reader: ChannelReader, writer: ChannelWriter, interrupt: Interrupt
) -> None:
    interrupt.armed = True
    with transaction:
        interrupt.armed = False
        writer.write(reader.read(1, timeout=None))
        interrupt.armed = True
    interrupt.armed = False


def copy_one_while_leaving(
    transaction: Any, reader: ChannelReader, writer: ChannelWriter, interrupt: Interrupt
) -> None:
    with transaction:
        writer.write(reader.read(1, timeout=None))
        interrupt.armed = True
    interrupt.armed = False


def reading(number: int) -> Any:
    return readings(1, number)[0]


@pytest.mark.long
@pytest.mark.parametrize("write", [write_batch, write_batch_while_leaving])
def test_an_interrupt_of_a_batch_loses_nothing_that_flush_acknowledges(
    new_ledgered: NewChannel, ledger: LedgerView, numbers: Iterator[int], write: Callable[..., None]
) -> None:
    channel = new_ledgered(partitions=1)
    acknowledged: set[int] = set()
    refused = usable = 0
    writer = channel.writer()
    for number in numbers:
        interrupt = Interrupt(number)
        try:
            with interrupt:
                write(writer, f"batch-{number}", reading(2 * number), interrupt)
            acknowledged.add(2 * number)
        except KeyboardInterrupt:
            # The traceback still holds the frames of the block.
            try:
                writer.write(reading(2 * number + 1))
                writer.flush()
                acknowledged.add(2 * number + 1)
                usable += 1
            except SluicewayError as error:
                refused += 1
                writer.abort(error)
                writer = channel.writer()
        if not interrupt.came:
            break
    with suppress(SluicewayError):
        writer.close()
    visible = ledger.ids(channel)
    assert len(visible) == len(set(visible))
    assert acknowledged <= set(visible)
    assert not {id_ for id_ in visible if id_ % 2} - acknowledged
    assert usable > refused
    assert ledger.open_keys(channel) == []


@pytest.mark.long
@pytest.mark.parametrize("copy", [copy_one, copy_one_while_leaving])
def test_an_interrupt_of_a_transaction_copies_each_record_once(
    new_channel: NewChannel,
    new_ledgered: NewChannel,
    ledger: LedgerView,
    gateway: Gateway,
    numbers: Iterator[int],
    copy: Callable[..., None],
) -> None:
    source, sink = new_channel(partitions=1), new_ledgered(partitions=1)
    with source.writer() as feeder:
        feeder.write(readings(2_000))
    with ExitStack() as opened:
        reader = writer = None
        for number in numbers:
            if reader is None or writer is None:
                reader, writer = source.reader(group="r", until=None), sink.writer(group="w")
                transaction = gateway.transaction(reader, writer)
            interrupt = Interrupt(number)
            try:
                with interrupt:
                    copy(transaction, reader, writer, interrupt)
            except KeyboardInterrupt:
                try:
                    with transaction:
                        writer.write(reader.read(1, timeout=None))
                except SluicewayError as error:
                    reader.abort(error)
                    writer.abort(error)
                    reader = writer = None
            if not interrupt.came:
                break
        if reader is not None and writer is not None:
            opened.callback(writer.close)
            opened.callback(reader.close)
    copied = ledger.ids(sink)
    assert copied == list(range(len(copied)))
    with source.reader(group="r", until=None) as successor:
        assert successor.read(1, timeout=None) == [reading(len(copied))]
    assert ledger.open_keys(sink) == []


def close(writer: ChannelWriter, number: int, interrupt: Interrupt) -> None:
    with writer:
        writer.write(reading(number))
        interrupt.armed = True
    interrupt.armed = False


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_an_interrupt_of_closing_a_writer_loses_nothing_that_it_acknowledges(
    new_channel: NewChannel, numbers: Iterator[int], delivery: str
) -> None:
    channel = new_channel(partitions=1, delivery=delivery)
    acknowledged = set()
    for number in numbers:
        interrupt = Interrupt(number)
        writer = channel.writer()
        try:
            with interrupt:
                close(writer, number, interrupt)
            acknowledged.add(number)
        except KeyboardInterrupt:
            with suppress(SluicewayError, KeyboardInterrupt):
                writer.flush()
                acknowledged.add(number)
            with suppress(SluicewayError, KeyboardInterrupt):
                writer.close()
                acknowledged.add(number)
        if not interrupt.came:
            break
    with channel.reader(until="now") as reader:
        visible = [record["id"] for record in reader]
    assert len(visible) == len(set(visible))
    assert acknowledged <= set(visible)


@pytest.mark.long
def test_an_interrupt_of_closing_a_reader_keeps_its_commit(
    new_channel: NewChannel, numbers: Iterator[int]
) -> None:
    channel = new_channel(partitions=1)
    with channel.writer() as writer:
        writer.write(readings(1_000))

    def read_one(reader: ChannelReader, interrupt: Interrupt) -> Any:
        with reader:
            (record,) = reader.read(1, timeout=None)
            reader.commit()
            interrupt.armed = True
        interrupt.armed = False
        return record

    for position, number in enumerate(numbers):
        interrupt = Interrupt(number)
        reader = channel.reader(group="r", until=None)
        assert next(iter(reader.position().values())).offset == position
        with suppress(KeyboardInterrupt), interrupt:
            read_one(reader, interrupt)
        reader.close()
        if not interrupt.came:
            break
    states = [endpoint.state for endpoint in channel.endpoints() if endpoint.role == "reader"]
    assert set(states) <= {"closed", "error"}


def test_flush_is_refused_in_a_block_that_no_statement_holds(
    new_ledgered: NewChannel, ledger: LedgerView
) -> None:
    channel = new_ledgered(partitions=1)
    with channel.writer() as writer:
        with ExitStack() as blocks:
            blocks.enter_context(writer.batch("k"))
            writer.write(reading(1))
            with pytest.raises(OptionError, match="not begun by a `with` statement"):
                writer.flush()
        assert ledger.ids(channel) == [1]


@contextmanager
def entered(writer: ChannelWriter) -> Iterator[None]:
    with writer.batch("k"):
        yield


@pytest.mark.long
def test_flush_delivers_in_a_block_within_a_generator(
    new_ledgered: NewChannel, ledger: LedgerView
) -> None:
    channel = new_ledgered(partitions=1)
    with channel.writer() as writer:
        with entered(writer):
            writer.write(reading(1))
            writer.flush()
            assert ledger.ids(channel) == []
        assert ledger.ids(channel) == [1]
