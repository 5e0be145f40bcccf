"""A program that catches each KeyboardInterrupt, and goes on with the same objects.

`python interrupted_program.py TASK`. It writes a byte to standard output for each SIGINT that it
wants, the next one in the handler of the last one, and ends by itself. What it was told about its
records is in its journal. It exits with 1 if a record or an object is not as promised.
"""

import faulthandler
import gc
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import confluent_kafka

import sluiceway
from pypz_rig import AnyChannel, QuickReader, QuickWriter, StandinPort
from sluiceway import Channel, ChannelReader, ChannelWriter, Gateway
from sluiceway.broker import Broker, Message, PartitionFetchRequest, ProduceRequest
from sluiceway.confluent import Consumer, Producer
from sluiceway.errors import EndpointClosed
from sluiceway.pypz import KafkaChannelReader, KafkaChannelWriter
from waiting import until

T = TypeVar("T")

_CLIENT = str(Path(sluiceway.__file__).parent)
_END_S = 60.0
"""The limit of what is left to do after the interrupts."""
_TOTAL_S = 240.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """Work on a channel, and on the `source` that it copies or reads.

    In the source, partition p has records with the ids from 0 to `filled[p]` - 1.
    """

    kind: str
    url: str
    channel: str
    source: str
    filled: list[int]
    interrupts: int
    seed: int
    journal: str


class Interrupts:
    """The interrupts of the program: where they were raised, and who caught them.

    A signal outside of `call` comes as the program notes what a call has returned. It is late: it
    raises nothing, and the next one is requested.
    """

    def __init__(self, number: int) -> None:
        self.left = number
        self.late = self.raised = self.inside = self.ignored = 0
        self._counted: set[tuple[Any, ...]] = set()
        self._armed = self._handling = False
        self.last: BaseException | None = None
        """As in a notebook, which keeps the traceback of the last one."""

    @property
    def caught(self) -> int:
        return len(self._counted)

    def start(self) -> None:
        # A shell may start background processes with interrupts ignored.
        signal.signal(signal.SIGINT, self._handle)
        sys.unraisablehook = self._ignore
        _request()

    def call(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, a function of Python, which may be interrupted."""
        self._armed = True
        # From the end of a function of Python to the line after its call, no handler runs.
        try:
            result = work()
            self._armed = False
        except BaseException as error:
            self._armed = False
            self._count(error)
            raise
        return result

    def _handle(self, *_: object) -> None:
        if self._handling or not self._armed:
            self.late += 1
            _request()
            return
        self._handling = True
        try:
            self.raised += 1
            self.left -= 1
            if self.left:
                _request()
            raise KeyboardInterrupt(self.raised)
        finally:
            self._handling = False

    def _count(self, error: BaseException | None) -> None:
        """Count the interrupts that came while others, or errors, were handled, too."""
        self.last = error
        for cause in _chain(error):
            if isinstance(cause, KeyboardInterrupt) and cause.args not in self._counted:
                self._counted.add(cause.args)
                self.inside += _was_inside(cause)

    def _ignore(self, unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            self.ignored += 1
        else:
            sys.__unraisablehook__(unraisable)
            note("unraisable", error=repr(unraisable.exc_value))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    if error is not None:
        yield error
        yield from _chain(error.__context__)
        if error.__cause__ is not error.__context__:
            yield from _chain(error.__cause__)


def _request() -> None:
    os.write(1, b".")


def _was_inside(error: BaseException) -> bool:
    frames, trace = set(), error.__traceback__
    while trace is not None:
        frames.add(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return any(file.startswith(_CLIENT) for file in frames)


_journal = -1


def note(state: str, **fields: Any) -> None:
    os.write(_journal, json.dumps({"state": state, **fields}).encode() + b"\n")


class Work(ABC):
    """Some kind of work, in steps; `finish` runs in another thread, after the interrupts."""

    def __init__(self, task: Task, interrupts: Interrupts) -> None:
        self.task = task
        self.call = interrupts.call
        self.random = random.Random(task.seed)  # noqa: S311
        self.gateway = Gateway(task.url)
        self.channel: Channel = self.gateway.channel(task.channel)
        self.refused = 0
        """The number of objects that an interrupt has ended, as documented."""

    @abstractmethod
    def step(self) -> None:
        """Do some calls. An interrupt ends it, and the next step goes on."""

    @abstractmethod
    def finish(self) -> None:
        """Do the rest, and close everything but the gateway."""


class Units:
    """Numbered records in units, of which all or none may become visible."""

    def __init__(self) -> None:
        self._next = 0
        self._pending: list[tuple[str, range]] = []

    def new(self, count: int) -> range:
        ids = range(self._next, self._next + count)
        self._next = ids.stop
        return ids

    def written(self, ids: range) -> None:
        """Note that a call with these records has returned."""
        self._pending.append(("acknowledged", ids))

    def unknown(self, ids: range) -> None:
        """Note that a call with these records was interrupted."""
        self._pending.append(("unknown", ids))

    def end(self, state: str | None = None) -> None:
        """Note that the records so far were acknowledged, or have all this state."""
        for own, ids in self._pending:
            note(state or own, ids=[ids.start, ids.stop])
        self._pending.clear()


def records_of(ids: Iterable[int], part: int = 0) -> list[dict[str, int]]:
    return [{"id": id_, "part": part} for id_ in ids]


class Writes(Work):
    """Writes of one and many records, with flushes; the writer is closed from time to time."""

    writer: ChannelWriter | None = None
    closing = False
    units = Units()

    def step(self) -> None:
        if self.writer is None:
            self.writer = self.call(lambda: self.channel.writer(group="load", commit_every_s=0.3))
            self.closing = False
        writer, roll = self.writer, self.random.random()
        if self.closing or roll < 0.02:
            self._close(writer)
        elif roll < 0.8:
            ids = self.units.new(1 if roll < 0.5 else self.random.randint(2, 60))
            records = records_of(ids)
            try:
                self.call(lambda: writer.write(records if len(ids) > 1 else records[0]))
            except BaseException:
                self.units.unknown(ids)
                raise
            self.units.written(ids)
        else:
            self.call(writer.flush)
            self.units.end()

    def _close(self, writer: ChannelWriter) -> None:
        self.closing = True
        try:
            self.call(writer.close)
        except EndpointClosed:
            self.refused += 1
            self.units.end("unknown" if self.channel.delivery == "exactly_once" else "loose")
        else:
            self.units.end()
        self.writer = None

    def finish(self) -> None:
        if self.writer is not None:
            self._close(self.writer)
        with self.channel.writer(group="load") as writer:
            ids = self.units.new(5)
            writer.write(records_of(ids))
            self.units.written(ids)
        self.units.end()


class Batches(Work):
    """Batches with keys; a batch whose block was interrupted is repeated with the same key."""

    writer: ChannelWriter | None = None
    number = 0
    units = Units()
    ids = range(0)

    def step(self) -> None:
        if self.writer is None:
            self.writer = self.call(lambda: self.channel.writer(group="load"))
        try:
            self._write(self.writer)
        except EndpointClosed:
            self.refused += 1
            self.writer = None

    def _write(self, writer: ChannelWriter) -> None:
        if not self.ids:
            self.ids = self.units.new(self.random.randint(1, 40))
        ids = self.ids

        def write() -> None:
            with writer.batch(f"batch-{self.number}"):
                writer.write(records_of(ids[:1])[0])
                if len(ids) % 3 == 0:
                    writer.flush()
                writer.write(records_of(ids[1:]))

        self.call(write)
        self.units.written(ids)
        self.units.end()
        self.number += 1
        self.ids = range(0)

    def finish(self) -> None:
        if self.ids:
            self.step()
        if self.ids:
            # The last interrupt may have ended the writer.
            self.step()
        self.step()
        assert self.writer is not None
        self.writer.close()


class Copies(Work):
    """Transactions, which copy the source."""

    reader: ChannelReader | None = None
    writer: ChannelWriter | None = None

    def step(self) -> None:
        source = self.gateway.channel(self.task.source)
        if self.reader is None:
            self.reader = self.call(lambda: source.reader(group="copy"))
        if self.writer is None:
            self.writer = self.call(lambda: self.channel.writer(group="copy", partition=0))
        try:
            self._copy(self.reader, self.writer, self.random.randint(1, 40))
        except EndpointClosed as error:
            self.refused += 1
            # Which of the two has ended is in the text only.
            self.writer.abort(error)
            self.reader.abort(error)
            self.reader = self.writer = None

    def _copy(self, reader: ChannelReader, writer: ChannelWriter, count: int) -> None:
        def copy() -> None:
            with self.gateway.transaction(reader, writer):
                writer.write(reader.read(count, timeout=0.2))

        self.call(copy)

    def finish(self) -> None:
        self.step()
        if self.reader is None:
            self.step()
        assert self.reader is not None
        assert self.writer is not None
        while not self.reader.finished:
            self._copy(self.reader, self.writer, 5000)
        self.reader.close()
        self.writer.close()


class Places:
    """The possible places of a reader: the next id of each partition."""

    def __init__(self, partitions: int) -> None:
        self.possible = [[0] * partitions]

    @property
    def certain(self) -> list[int]:
        """The place, if there is one only."""
        (place,) = self.possible
        return place

    def take(self, records: Iterable[tuple[int, int]]) -> None:
        """Check that these records, as partition and id, come next; remember the place after."""
        for part, id_ in records:
            rest = [place for place in self.possible if place[part] == id_]
            assert rest, f"partition {part} continued at {id_} after {self.possible}"
            for place in rest:
                place[part] += 1
            self.possible = rest


class Reads(Work):
    """Reads in every way, commits and seeks of one reader."""

    options: ClassVar[dict[str, Any]] = {"group": "g"}
    reader: ChannelReader | None = None

    def __init__(self, task: Task, interrupts: Interrupts) -> None:
        super().__init__(task, interrupts)
        self.source = self.gateway.channel(task.source)
        self.places = Places(len(task.filled))
        self.saved: list[tuple[Any, list[int]]] = []
        self.committed = [0] * len(task.filled)

    def _open(self) -> ChannelReader:
        return self.source.reader(until=None, **self.options)

    def step(self) -> None:
        if self.reader is None:
            self.reader = self.call(self._open)
        reader, places = self.reader, self.places
        if len(places.possible) > 1 or not self._has_all(reader):
            # After an interrupted seek, and as a dynamic member before its partitions are assigned.
            self._read(reader, 20)
            return
        left = sum(self.task.filled) - sum(places.certain)
        roll, count = self.random.random(), self.random.randint(1, 300)
        if roll < 0.1 or not left:
            self._seek(reader)
        elif roll < 0.4:
            self._read(reader, count)
        elif roll < 0.6:
            self._iterate(reader, min(count, left))
        elif roll < 0.7:
            self._read_batch(reader)
        elif roll < 0.8:
            place = list(places.certain)
            self.saved.append((self.call(reader.position), place))
            if self.task.kind == "read":
                offsets = [at.offset for _, at in sorted(self.saved[-1][0].items())]
                assert offsets == place, (offsets, place)
        else:
            self._commit(reader)

    def _read(self, reader: ChannelReader, count: int) -> None:
        wait_s = self.random.choice([0.0, 0.05, 0.5])
        self._take(self.call(lambda: reader.read(count, timeout=wait_s)))

    def _take(self, records: Iterable[Any]) -> None:
        self.places.take((record["part"], record["id"]) for record in records)

    def _iterate(self, reader: ChannelReader, count: int) -> None:
        records: list[Any] = []

        def iterate() -> None:
            for record in reader:
                records.append(record)
                if len(records) == count:
                    break

        try:
            self.call(iterate)
        finally:
            self._take(records)

    def _read_batch(self, reader: ChannelReader) -> None:
        batches: list[Any] = []

        def read() -> None:
            for batch in reader.batches():
                batches.append(batch)
                break

        try:
            self.call(read)
        finally:
            for batch in batches:
                self._take(batch.to_pylist())

    def _seek(self, reader: ChannelReader) -> None:
        target: Any = dict.fromkeys(range(len(self.task.filled)), 0)
        place = [0] * len(self.task.filled)
        if self.saved:
            target, place = self.random.choice(self.saved[-5:])
        before = self.places.certain
        self.places.possible = [list(before), list(place)]
        if before == place:
            self.places.possible.pop()
        self.call(lambda: reader.seek(target))
        self.places.possible = [list(place)]

    def _has_all(self, reader: ChannelReader) -> bool:
        return len(reader.partitions) == len(self.task.filled)

    def _commit(self, reader: ChannelReader) -> None:
        place = self.places.certain
        if all(next_ >= done for next_, done in zip(place, self.committed, strict=True)):
            # An interrupted commit may have been stored.
            self.committed = list(place)
            self.call(reader.commit)

    def finish(self) -> None:
        self.saved.clear()
        reader = self.reader or self._open()
        total = sum(self.task.filled)
        with reader:
            until(lambda: [reader.read(1, timeout=0.1)] and self._has_all(reader), _END_S)
            reader.seek(dict.fromkeys(range(len(self.task.filled)), 0))
            self.places.possible = [[0] * len(self.task.filled)]
            self._take(reader.read(total, timeout=_END_S))
            assert self.places.certain == self.task.filled
            reader.commit()
        with self._open() as successor:
            assert successor.read(1, timeout=0.5) == []


class SharedReads(Reads):
    options: ClassVar[dict[str, Any]] = {"group": "g", "share_connection": True}


class MemberReads(Reads):
    options: ClassVar[dict[str, Any]] = {"group": "g", "dynamic": True}


class Produces(Work):
    """Messages of a Producer of sluiceway.confluent, with flushes; it is closed at times."""

    producer: Producer | None = None
    closing = False
    units = Units()

    def step(self) -> None:
        if self.producer is None:
            self.producer = self.call(lambda: Producer({"bootstrap.servers": self.task.url}))
            self.closing = False
        producer, roll = self.producer, self.random.random()
        if self.closing or roll < 0.02:
            self.closing = True
            self.call(producer.close)
            self.units.end()
            self.producer = None
        elif roll < 0.8:
            ids = self.units.new(1)
            value = b"%d" % ids[0]
            report = _on_delivery if roll < 0.6 else None
            try:
                self.call(lambda: producer.produce(self.task.channel, value, on_delivery=report))
            except BaseException:
                self.units.unknown(ids)
                raise
            self.units.written(ids)
        elif roll < 0.9:
            self.call(lambda: producer.poll(0.002))
        else:
            self._flush(producer)

    def _flush(self, producer: Producer) -> None:
        if not self.call(lambda: producer.flush(_END_S)):
            self.units.end()

    def finish(self) -> None:
        if self.producer is not None:
            self.closing = True
            self.step()
        producer = Producer({"bootstrap.servers": self.task.url})
        ids = self.units.new(1)
        producer.produce(self.task.channel, b"%d" % ids[0])
        self.units.written(ids)
        self._flush(producer)
        producer.close()


class CommittedProduces(Produces):
    """The same on an exactly-once channel, where a lost delivery report ends the channel."""

    def step(self) -> None:
        try:
            super().step()
        except confluent_kafka.KafkaException as error:
            note("refused", error=str(error))
            self.refused += 1
            self.units.end("unknown")
            if self.producer is not None:
                with suppress(confluent_kafka.KafkaException):
                    self.producer.close()
            self.producer = None


def _on_delivery(error: Any, message: Any) -> None:
    if error is not None:
        note("failed", error=str(error), value=message.value().decode())


class Transactions(Work):
    """Transactions of a Producer of sluiceway.confluent, which copy the source."""

    producer: Producer | None = None
    ready = recovered = False

    def __init__(self, task: Task, interrupts: Interrupts) -> None:
        super().__init__(task, interrupts)
        self.consumer = Consumer(_group(task))
        self.consumer.subscribe([task.source])

    def step(self) -> None:
        if self.producer is None:
            config = {"bootstrap.servers": self.task.url, "transactional.id": "copy"}
            self.producer = self.call(lambda: Producer(config))
        producer = self.producer
        if not self.ready:
            self.call(producer.init_transactions)
            self.ready = True
        if not self.recovered:
            self.call(lambda: self._recover(producer))
            self.recovered = True
        count = self.random.randint(1, 40)
        self.recovered = False
        try:
            self.call(lambda: self._copy(producer, count))
        except confluent_kafka.KafkaException as error:
            note("refused", error=str(error))
            self.refused += 1
            if error.args[0].fatal():
                raise
            return
        self.recovered = True

    def _copy(self, producer: Producer, count: int) -> int:
        consumer = self.consumer
        messages = consumer.consume(count, 0.2)
        if not messages:
            return 0
        producer.begin_transaction()
        for message in messages:
            assert message.error() is None, message.error()
            producer.produce(self.task.channel, message.value(), partition=0)
        positions = [at for at in consumer.position(consumer.assignment()) if at.offset >= 0]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction()
        return len(messages)

    def _recover(self, producer: Producer) -> None:
        """Abort the transaction, if there is one, and go back to the committed offsets."""
        with suppress(confluent_kafka.KafkaException):
            producer.abort_transaction()
        for partition in self.consumer.committed(self.consumer.assignment()):
            partition.offset = max(partition.offset, 0)
            self.consumer.seek(partition)

    def finish(self) -> None:
        for _ in range(3):
            self.step()
        producer = self.producer
        assert producer is not None
        assert self.recovered
        until(lambda: self._copy(producer, 2000) == 0 and self._at_end(), _END_S)
        producer.close()
        self.consumer.close()

    def _at_end(self) -> bool:
        partitions = self.consumer.assignment()
        committed = self.consumer.committed(partitions)
        ends = [self.consumer.get_watermark_offsets(partition)[1] for partition in partitions]  # type: ignore[index]
        # The program may end before the consumer has its partitions.
        return len(partitions) == len(self.task.filled) and [at.offset for at in committed] == ends


def _group(task: Task) -> dict[str, Any]:
    return {
        "bootstrap.servers": task.url,
        "group.id": "g",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }


class Consumes(Work):
    """Polls, commits and seeks of a Consumer of sluiceway.confluent."""

    def __init__(self, task: Task, interrupts: Interrupts) -> None:
        super().__init__(task, interrupts)
        self.places = Places(len(task.filled))
        self.committed = [0] * len(task.filled)
        self.offsets: list[dict[int, int]] = [{} for _ in task.filled]
        self.taken = False
        self.consumer = Consumer(_group(task))
        self.consumer.subscribe([task.source])

    def step(self) -> None:
        consumer, places = self.consumer, self.places
        roll, count = self.random.random(), self.random.randint(1, 300)
        if len(places.possible) > 1 or (roll >= 0.8 and not self.taken):
            roll = 0.5
        elif places.certain == self.task.filled:
            roll = 0.0
        if roll < 0.1:
            self._seek()
        elif roll < 0.4:
            message = self.call(lambda: consumer.poll(0.05))
            self._take([] if message is None else [message])
        elif roll < 0.8:
            wait_s = self.random.choice([0.0, 0.05, 0.2])
            self._take(self.call(lambda: consumer.consume(count, wait_s)))
        else:
            self._commit()

    def _take(self, messages: Iterable[Any]) -> None:
        for message in messages:
            self.taken = True
            assert message.error() is None, message.error()
            id_ = int(message.value())
            self.places.take([(message.partition(), id_)])
            self.offsets[message.partition()][id_] = message.offset()

    def _seek(self) -> None:
        part = self.random.randrange(len(self.task.filled))
        if not self.offsets[part]:
            return
        id_ = self.random.choice([*self.offsets[part]])
        partition = confluent_kafka.TopicPartition(self.task.source, part, self.offsets[part][id_])
        before = self.places.certain
        place = [*before[:part], id_, *before[part + 1 :]]
        self.places.possible = [list(before), place]
        if before == place:
            self.places.possible.pop()
        self.taken = False
        self.sought = partition
        self.call(lambda: self.consumer.seek(partition))
        self.places.possible = [place]

    def _commit(self) -> None:
        place = self.places.certain
        if place != self.committed and all(
            next_ >= done for next_, done in zip(place, self.committed, strict=True)
        ):
            self.committed = list(place)
            self.call(lambda: self.consumer.commit(asynchronous=False))

    def finish(self) -> None:
        consumer = self.consumer
        if len(self.places.possible) > 1:
            # The last interrupt hit a seek.
            consumer.seek(self.sought)
            del self.places.possible[:-1]
        while self.places.certain != self.task.filled:
            self._take(consumer.consume(5000, 0.2))
        if self.committed != self.task.filled:
            consumer.commit(asynchronous=False)
        consumer.close()
        successor = Consumer(_group(self.task))
        successor.subscribe([self.task.source])
        assert successor.consume(1, 0.5) == []
        successor.close()


class BrokerCalls(Work):
    """Requests of a Broker of sluiceway.broker: it produces messages, and fetches the source."""

    units = Units()

    def __init__(self, task: Task, interrupts: Interrupts) -> None:
        super().__init__(task, interrupts)
        self.broker = Broker(1, "", 1, url=task.url)
        self.next_offset = [0] * len(task.filled)
        self.places = Places(len(task.filled))

    def step(self) -> None:
        if self.random.random() < 0.5:
            self._produce()
        else:
            self._fetch()

    def _produce(self) -> None:
        ids = self.units.new(self.random.randint(1, 20))
        request = ProduceRequest()
        for id_ in ids:
            request.add_message(Message(b"%d" % id_), self.task.channel.encode(), 0)
        try:
            response = self.call(lambda: self.broker.produce_messages(request))
        except BaseException:
            exactly_once = self.channel.delivery == "exactly_once"
            note("unknown" if exactly_once else "loose", ids=[ids.start, ids.stop])
            raise
        result = response.topics[self.task.channel][0]
        if result.err:
            self.refused += 1
            note("refused", error=str(result.reason))
            note("dropped", ids=[ids.start, ids.stop])
        else:
            note("acknowledged", ids=[ids.start, ids.stop])

    def _fetch(self) -> None:
        parts = range(len(self.task.filled))
        if self.places.certain == self.task.filled:
            self.places, self.next_offset = Places(len(parts)), [0 for _ in parts]
        size = self.random.choice([2_000, 100_000])
        name = self.task.source.encode()
        requests = [PartitionFetchRequest(name, p, self.next_offset[p], size) for p in parts]
        response = self.call(lambda: self.broker.fetch_messages(requests, timeout=100))
        for part in parts:
            result = response.topics[self.task.source][part]
            assert result.err == 0, result.reason
            for message in result.messages:
                self.places.take([(part, int(message.value))])
                self.next_offset[part] = message.offset + 1

    def finish(self) -> None:
        refused = self.refused
        self._produce()
        assert self.refused == refused
        until(lambda: self._fetch() or self.places.certain == self.task.filled, _END_S)
        self.broker.close()


class Ports(Work):
    """Calls of a reader and a writer of pypz's ports, which are closed from time to time."""

    units = Units()
    reader: KafkaChannelReader | None = None
    writer: KafkaChannelWriter | None = None
    closing = rewinding = leaving = False
    """An interrupted call to repeat: the end of the writer, a seek, the end of the reader."""

    def __init__(self, task: Task, interrupts: Interrupts) -> None:
        super().__init__(task, interrupts)
        self.places = Places(len(task.filled))
        self.committed = [[0] * len(task.filled)]
        """The place that is committed; two after an interrupted commit."""

    def _port(self, kind: type[AnyChannel], channel: str) -> AnyChannel:
        schema = self.channel.schemas()[-1].definition
        port = kind(channel, StandinPort(f"pipeline.{kind.__name__}.port", schema))
        port.set_location(self.task.url)
        return port

    def step(self) -> None:
        if self.random.random() < 0.5:
            self._write()
        else:
            self._read()

    def _write(self) -> None:
        writer, roll = self.writer, self.random.random()
        if writer is None:
            self.closing = False
            self.writer = self._port(QuickWriter, self.task.channel)
        elif self.closing or roll < 0.05:
            self.closing = True
            self._close_writer(writer)
        elif not writer.is_channel_open():
            self.call(writer.invoke_open_channel)
        elif roll < 0.8:
            ids = self.units.new(self.random.randint(1, 60))
            try:
                self.call(lambda: writer.invoke_write_records(records_of(ids)))
            except BaseException:
                self.units.unknown(ids)
                raise
            self.units.written(ids)
        elif writer.is_channel_started():
            self.call(writer.stop_channel)
            self.units.end()
        else:
            self.call(writer.start_channel)

    def _close_writer(self, writer: KafkaChannelWriter) -> None:
        try:
            if not self.call(writer.invoke_close_channel):
                return
        except EndpointClosed:
            self.refused += 1
            self.units.end("loose")
        else:
            self.units.end()
        self.writer = None

    def _read(self) -> None:
        reader, roll = self.reader, self.random.random()
        if reader is None:
            config = {"max_poll_records": 100}
            self.reader = self._port(QuickReader, self.task.source)
            self.reader.invoke_configure_channel(config)
        elif self.leaving:
            if self.call(reader.invoke_close_channel):
                self.reader, self.leaving = None, False
        elif not reader.is_channel_open():
            self.places.possible = [list(place) for place in self.committed]
            self.call(reader.invoke_open_channel)
        elif self.rewinding or roll < 0.1:
            self.rewinding = True
            self.call(reader.set_initial_record_offset_auto)
            self.rewinding = False
            self.places.possible = [list(place) for place in self.committed]
        elif len(self.places.possible) > 1 or roll < 0.8:
            self._take(self.call(reader.invoke_read_records))
        elif roll < 0.9 and sum(self.places.certain) < 500:
            place = list(self.places.certain)
            if place not in self.committed:
                self.committed.append(place)
            self.call(reader.invoke_commit_current_read_offset)
            self.committed = [place]
        else:
            self.leaving = roll > 0.95

    def _take(self, records: list[Any]) -> None:
        self.places.take((record["part"], record["id"]) for record in records)

    def finish(self) -> None:
        if self.writer is not None:
            writer = self.writer
            until(lambda: self._close_writer(writer) or self.writer is None, _END_S)
        writer = self._port(QuickWriter, self.task.channel)
        until(writer.invoke_open_channel, _END_S)
        ids = self.units.new(5)
        writer.invoke_write_records(records_of(ids))
        self.units.written(ids)
        until(writer.invoke_close_channel, _END_S)
        self.units.end()
        if self.reader is not None:
            until(self.reader.invoke_close_channel, _END_S)
        reader = self._port(QuickReader, self.task.source)
        until(reader.invoke_open_channel, _END_S)
        self.places.possible = [list(place) for place in self.committed]
        while len(self.places.possible) > 1 or self.places.certain != self.task.filled:
            self._take(reader.invoke_read_records())
        reader.invoke_commit_current_read_offset()
        until(reader.invoke_close_channel, _END_S)
        with self.gateway.channel(self.task.source).reader(
            group=f"pipeline.{QuickReader.__name__}.port", until=None
        ) as successor:
            assert successor.read(1, timeout=0.5) == []


WORKS: dict[str, type[Work]] = {
    "write": Writes,
    "write-committed": Writes,
    "batch": Batches,
    "transaction": Copies,
    "read": Reads,
    "read-shared": SharedReads,
    "read-member": MemberReads,
    "confluent-produce": Produces,
    "confluent-produce-committed": CommittedProduces,
    "confluent-transaction": Transactions,
    "confluent-consume": Consumes,
    "confluent-consume-committed": Consumes,
    "broker": BrokerCalls,
    "broker-committed": BrokerCalls,
    "pypz": Ports,
}


class _ErrorLog(logging.Handler):
    """Notes errors in the log."""

    def emit(self, record: logging.LogRecord) -> None:
        note("error", message=record.getMessage()[:500])


def left_over() -> list[str]:
    """Return the threads of the client, but idle workers, and of librdkafka."""
    tasks = Path("/proc/self/task")
    # Python keeps an entry of a thread that has ended if a finalizer ran at its very end.
    threads = [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.main_thread()
        and thread.name not in _IDLE
        and (tasks / str(thread.native_id)).exists()
    ]
    for file in tasks.glob("*/comm"):
        with suppress(OSError):
            name = file.read_text().strip()
            threads += [name] * name.startswith("rdk:")
    return threads


_IDLE = ("sluiceway-worker",)


def main(text: str) -> None:
    global _journal
    task = Task(**json.loads(text))
    faulthandler.dump_traceback_later(_TOTAL_S, exit=True)
    _journal = os.open(task.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    logging.getLogger().addHandler(_ErrorLog(logging.ERROR))
    threading.excepthook = lambda hooked: note("thread", error=repr(hooked.exc_value))
    interrupts = Interrupts(task.interrupts)
    summary = run(task, interrupts)
    interrupts.last = None
    until(lambda: gc.collect() >= 0 and not left_over(), 30, state=left_over)
    for name in ("raised", "caught", "inside", "ignored", "late"):
        summary[name] = getattr(interrupts, name)
    note("ended", **summary)


def run(task: Task, interrupts: Interrupts) -> dict[str, float]:
    """Do the work under interrupts, and then its rest; return what to report of it."""
    work = WORKS[task.kind](task, interrupts)
    steps, started_s = 0, time.monotonic()
    interrupts.start()
    while interrupts.left:
        steps += 1
        with suppress(KeyboardInterrupt):
            work.step()
    interrupted_s = time.monotonic() - started_s
    failures: list[BaseException] = []

    def finish() -> None:
        try:
            work.finish()
            work.gateway.close()
        except BaseException as error:
            failures.append(error)

    # A lock that the main thread still holds would stop another one only.
    finishing = threading.Thread(target=finish, name="finishing", daemon=True)
    finishing.start()
    finishing.join(2 * _END_S)
    if failures:
        raise failures[0]
    if finishing.is_alive():
        faulthandler.dump_traceback()
        raise AssertionError("the work does not end after the interrupts")
    return {"steps": steps, "seconds": round(interrupted_s, 1), "refused": work.refused}


if __name__ == "__main__":
    main(sys.argv[1])
