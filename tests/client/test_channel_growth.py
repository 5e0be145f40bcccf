"""Channels that grow under running writers of every kind."""

import itertools
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_calls import broker_at
from sluiceway import Channel, Gateway
from sluiceway.broker import Message, ProduceRequest
from sluiceway.confluent import Producer

SCHEMA = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "key", "type": "string"}, {"name": "n", "type": "long"}],
}
KEYS = [f"key-{number}" for number in range(12)]
EVENTS_A_STEP = 36

Event = tuple[str, int]


class Writing(ABC):
    """A writer of one kind at a channel; `keeps_order`: of each key's events."""

    format = "bytes"
    keeps_order = True

    def __init__(self, channel: Channel, url: str, open_until: ExitStack) -> None:
        self.channel = channel
        self.url = url
        self.start(open_until)

    @abstractmethod
    def start(self, open_until: ExitStack) -> None:
        """Open the writer."""

    @abstractmethod
    def write(self, events: list[Event], partitions: int) -> None:
        """Write events, and wait until Kafka has acknowledged them.

        `partitions` is the number of partitions that the writer's client knows.
        """

    @abstractmethod
    def meet_partitions(self) -> None:
        """Refresh librdkafka's metadata, which otherwise takes up to five minutes."""


class Native(Writing):
    wishes: dict[str, Any]

    def start(self, open_until: ExitStack) -> None:
        self.writer = open_until.enter_context(self.channel.writer(**self.wishes))

    def write(self, events: list[Event], partitions: int) -> None:
        del partitions
        if self.format == "bytes":
            self.writer.write([{"value": packed(event)} for event in events])
        else:
            self.writer.write([{"key": key, "n": n} for key, n in events])
        self.writer.flush()

    def meet_partitions(self) -> None:
        self.writer.producer.discover_partitions()


class Facade(Writing):
    keyed: bool

    def start(self, open_until: ExitStack) -> None:
        self.keeps_order = self.keyed
        self.facade = open_until.enter_context(Producer({"bootstrap.servers": self.url}))

    def write(self, events: list[Event], partitions: int) -> None:
        del partitions
        for event in events:
            key = event[0] if self.keyed else None
            self.facade.produce(self.channel.name, packed(event), key)
        assert self.facade.flush(60) == 0

    def meet_partitions(self) -> None:
        # Its own refresh follows a heartbeat, and the message after that, at an unknown time.
        (producer,) = self.facade._deliveries.producers
        producer.list_topics(self.channel.connection("write").topic_name, timeout=20)


class ToPartitions(Facade):
    """A custom partitioner over the current partitions."""

    keyed = False

    def write(self, events: list[Event], partitions: int) -> None:
        for event in events:
            self.facade.produce(self.channel.name, packed(event), None, event[1] % partitions)
        assert self.facade.flush(60) == 0


class ByBroker(Writing):
    keeps_order = False

    def start(self, open_until: ExitStack) -> None:
        self.broker = open_until.enter_context(broker_at(self.url))

    def write(self, events: list[Event], partitions: int) -> None:
        request = ProduceRequest()
        for event in events:
            message = Message(packed(event))
            request.add_message(message, self.channel.name.encode(), event[1] % partitions)
        responses = self.broker.produce_messages(request).topics[self.channel.name]
        assert {response.err for response in responses.values()} == {0}

    def meet_partitions(self) -> None:
        """Leave it to the next request, which refreshes the metadata for an unknown partition."""


def native(format_: str, *, keeps_order: bool = True, **wishes: Any) -> type[Writing]:
    made = {"format": format_, "keeps_order": keeps_order, "wishes": wishes}
    return type("Native", (Native,), made)


def facade(*, keyed: bool) -> type[Writing]:
    return type("Facade", (Facade,), {"keyed": keyed})


def key_of(record: Any) -> str:
    return str(record["value"].split()[0].decode() if "value" in record else record["key"])


KINDS = {
    **{
        f"{format_} {how}": native(format_, keeps_order=how != "turns", **wishes)
        for format_ in ("avro", "arrow", "bytes")
        for how, wishes in {
            "turns": {},
            "key": {"key": key_of},
            "partitioner": {"partitioner": lambda record, n: KEYS.index(key_of(record)) % n},
        }.items()
    },
    "avro field": native("avro", key="key"),
    "confluent key": facade(keyed=True),
    "confluent": facade(keyed=False),
    "confluent partition": ToPartitions,
    "broker partition": ByBroker,
}
ONE_OF_EACH = ("avro turns", "arrow key", "bytes partitioner", "confluent key", "broker partition")


def packed(event: Event) -> bytes:
    return b"%s %d" % (event[0].encode(), event[1])


def event_of(record: dict[str, Any]) -> Event:
    if "value" not in record:
        return record["key"], record["n"]
    key, n = record["value"].split()
    return key.decode(), int(n)


@pytest.fixture
def made(gateway_url: str) -> Iterator[Callable[[str], Channel]]:
    with Gateway(gateway_url) as gateway:

        def make(format_: str) -> Channel:
            schema = {} if format_ == "bytes" else {"schema": SCHEMA}
            name = f"growing-{uuid.uuid4().hex[:8]}"
            return gateway.channel(name, format=format_, partitions=2, **schema)

        yield make


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in ONE_OF_EACH else [pytest.mark.long]) for kind in KINDS],
)
@settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(between=st.lists(st.sampled_from(["write", "grow", "grow, unseen"]), max_size=4))
def test_acknowledged_records_are_all_read_and_keys_keep_their_order(
    made: Callable[[str], Channel], gateway_url: str, kind: str, between: list[str]
) -> None:
    channel, numbers = made(KINDS[kind].format), itertools.count()
    partitions = seen = 2
    written = []
    with ExitStack() as open_until:
        writing = KINDS[kind](channel, gateway_url, open_until)
        for step in ("write", *between, "grow", "write"):
            if step == "write":
                events = [(KEYS[n % 12], n) for n in itertools.islice(numbers, EVENTS_A_STEP)]
                writing.write(events, seen)
                written += events
                continue
            partitions += 3
            channel.update(partitions=partitions)
            if step == "grow":
                writing.meet_partitions()
                seen = partitions
    with channel.reader() as reader:
        events = [event_of(record) for record in reader]
    assert sorted(events) == sorted(written)
    if writing.keeps_order:
        for key in KEYS:
            assert [e for e in events if e[0] == key] == [e for e in written if e[0] == key]
