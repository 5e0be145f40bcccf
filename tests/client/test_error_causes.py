"""Public causes of failed endpoints contain no values of records."""

import datetime
import json
import pickle
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer

from broker_calls import broker_at
from gateways import all_responses
from sluiceway import Channel, Gateway, InputPort, OutputPort, Schema
from sluiceway.broker import Message, ProduceRequest
from sluiceway.codecs import Corrupt
from sluiceway.codecs.decoder import corrupt_error
from sluiceway.confluent import Consumer
from sluiceway.confluent import Producer as FacadeProducer
from sluiceway.errors import (
    CorruptMessage,
    DeliveryFailed,
    InvalidRecord,
    OptionError,
    PortError,
    SchemaMismatch,
    cause_of,
)
from sluiceway.records import to_batches

SECRET = "SENTINEL-4711"
NUMBER = 86_400_471_100_007
"""A secret too, where there are numbers alone; no time of a day."""
SECRETS = (SECRET[:4], str(NUMBER))
"""As messages show them, which may be cut short."""
NEVER = datetime.datetime(1847, 11, 4, 1, 2, 3)  # noqa: DTZ001 - that is what is wrong with it

SCHEMA = {
    "type": "record",
    "name": "Everything",
    "fields": [
        {"name": "id", "type": "int", "default": 0},
        {"name": "name", "type": "string", "default": ""},
        {"name": "size", "type": "float", "default": 0},
        {"name": "raw", "type": {"type": "fixed", "name": "F", "size": 4}, "default": "0000"},
        {
            "name": "kind",
            "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            "default": "A",
        },
        {
            "name": "clock",
            "type": {"type": "long", "logicalType": "time-micros"},
            "default": 0,
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 0},
        {"name": "tags", "type": {"type": "map", "values": "int"}, "default": {}},
        {
            "name": "list",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "I",
                    "fields": [{"name": "n", "type": "int"}],
                },
            },
            "default": [],
        },
        {
            "name": "uid",
            "type": {"type": "string", "logicalType": "uuid"},
            "default": "00000000-0000-0000-0000-000000000000",
        },
    ],
}


@dataclass
class Strange:
    """A record class whose `repr` shows its values."""

    id: str


UNFIT: dict[str, tuple[Any, str]] = {
    "integer": ([{"id": 1}, {"id": SECRET}], "record 1, field 'id': it must be a 32-bit integer"),
    "string": ({"name": NUMBER}, "record 0, field 'name': it must be a str"),
    "bytes": ({"raw": SECRET.encode()}, "field 'raw': it must be bytes of length 4; it is bytes"),
    "symbol": ({"kind": SECRET}, "field 'kind': it must be one of the symbols A, B; it is str"),
    "overflow": ({"id": NUMBER}, "field 'id': it must be a 32-bit integer; it is int"),
    "float": ({"size": float(f"{NUMBER}e60")}, "field 'size': it must be a number"),
    "uuid": (
        {"uid": SECRET},
        "field 'uid': it must be a uuid.UUID, or the text of one; it is str",
    ),
    "no time zone": ({"at": NEVER}, "field 'at': it has no time zone"),
    "key of a map": ({"tags": {SECRET: "x"}}, "field 'tags{}': it must be a 32-bit integer"),
    "in a map": ({"tags": {"k": SECRET}}, "field 'tags{}': it must be a 32-bit integer"),
    "no str key": ({"tags": {NUMBER: 1}}, "field 'tags{}': it must be a str"),
    "in a list": ({"list": [{"n": SECRET}]}, "field 'list[].n': it must be a 32-bit integer"),
    "no list": ({"list": SECRET}, "field 'list': it must be a list; it is str"),
    "no record": (
        {"list": [SECRET]},
        "field 'list[]': it must be a dict, or an instance of a dataclass or another record class; "
        "it is str",
    ),
    "unknown field": ({SECRET: 1}, "record 0: it has a field that is not in the schema"),
    "unknown inside": (
        {"list": [{"n": 1, SECRET: 1}]},
        "field 'list[]': it has a field that is not in the schema",
    ),
    "dataclass": (Strange(SECRET), "field 'id': it must be a 32-bit integer; it is str"),
    "not a record": ([{"id": 1}, SECRET], "record 1: it must be a dict, or an instance"),
    "arrow": (pa.table({"id": pa.array([NUMBER])}), "field 'id': it cannot be converted to int32"),
    "arrow float": (
        pa.table({"size": pa.array([float(f"{NUMBER}e60")])}),
        "field 'size': it is too large for a float",
    ),
    "arrow text": (
        pa.table({"id": [1, 2], "uid": ["00000000-0000-0000-0000-000000000000", SECRET]}),
        "record 1, field 'uid': it must be a uuid.UUID, or the text of one; it is str",
    ),
    "broken arrow": (
        pa.table({"clock": pa.array([1, NUMBER]).view(pa.time64("us"))}),
        "record 1, field 'clock': the Arrow data is invalid",
    ),
    "pandas": (
        pd.DataFrame({"name": pd.Series(["a", NUMBER], dtype=object)}),
        "record 1, field 'name': it must be a str without lone surrogates; it is int",
    ),
}


@pytest.mark.parametrize(("records", "reported"), UNFIT.values(), ids=UNFIT)
def test_the_cause_of_an_invalid_record_is_its_field_and_type(records: Any, reported: str) -> None:
    with pytest.raises(InvalidRecord) as raised:
        to_batches(records, Schema.of(SCHEMA))
    cause = cause_of(raised.value)
    assert cause.startswith("InvalidRecord: record ")
    assert reported in cause
    assert not shows(cause)
    assert cause_of(pickle.loads(pickle.dumps(raised.value))) == cause  # noqa: S301


def failed_cause(channel: Channel, role: str) -> str:
    """Return the cause of the channel's only failed endpoint of a role."""
    failed = [endpoint for endpoint in channel.endpoints() if endpoint.state == "error"]
    (cause,) = (endpoint.cause for endpoint in failed if endpoint.role == role)
    assert cause is not None
    return cause


def test_the_exception_in_the_job_shows_the_values() -> None:
    shown = []
    for name, (records, _) in UNFIT.items():
        with pytest.raises(InvalidRecord) as raised:
            to_batches(records, Schema.of(SCHEMA))
        shown += [name] if shows(str(raised.value)) else []
    # Floats and datetimes have a different text there.
    assert set(UNFIT) - set(shown) == {"no time zone", "float", "arrow float"}


def test_the_cause_of_objects_without_records_is_the_type() -> None:
    for records in (SECRET, NUMBER, SECRET.encode(), b"x"):
        with pytest.raises(OptionError) as raised:
            to_batches(records, Schema.of(SCHEMA))
        assert cause_of(raised.value) == (
            "OptionError: an argument is invalid; the program's log says which"
        )


def test_the_cause_of_foreign_exceptions_is_the_qualified_type() -> None:
    class Own(Exception):
        pass

    assert cause_of(ValueError(SECRET)) == "ValueError"
    assert cause_of(json.JSONDecodeError(SECRET, SECRET, 0)) == "json.decoder.JSONDecodeError"
    assert cause_of(ExceptionGroup(SECRET, [ValueError(SECRET)])) == "ExceptionGroup"
    assert cause_of(Own(SECRET)).endswith(".Own")


def test_the_cause_of_the_end_of_a_program_is_its_exit_code() -> None:
    assert cause_of(SystemExit(75)) == "SystemExit: the program has exited with the code 75"
    assert cause_of(SystemExit()) == "SystemExit: the program has exited with the code 0"
    assert cause_of(SystemExit(SECRET)) == (
        "SystemExit: the program has exited with an error message, which its log has"
    )
    assert cause_of(KeyboardInterrupt(SECRET)) == "KeyboardInterrupt: the program was interrupted"


def test_the_cause_of_kafka_and_gateway_errors_is_the_message() -> None:
    refused = DeliveryFailed(
        partition=1, reason="MSG_SIZE_TOO_LARGE", written_records=7, failed_records=1
    )
    assert cause_of(refused) == f"DeliveryFailed: {refused}"
    unfit = InvalidRecord(index=3, field="a", reason=SECRET)
    both = PortError("writing", errors={"x": refused, "y": unfit}, channels=2)
    assert cause_of(both) == (
        "PortError: writing failed for 2 of the 2 channels of an output port: "
        f"x: {cause_of(refused)}; y: InvalidRecord: record 3"
    )


def test_the_cause_of_a_corrupt_message_is_its_offset() -> None:
    corrupt = CorruptMessage(channel="c", partition=1, offset=5, reason=f"it begins with {SECRET}")
    assert cause_of(corrupt) == (
        "CorruptMessage: channel 'c', partition 1, offset 5: it cannot be decoded"
    )


def test_the_cause_of_an_incompatible_schema_is_the_message() -> None:
    reason = "it has the channel's schema 7, which this reader's schema cannot read"
    error = corrupt_error("c", 1, 5, Corrupt(index=0, reason=reason, skippable=False))
    assert cause_of(error) == f"SchemaMismatch: {error}"
    assert cause_of(SchemaMismatch(f"the schema has no field {SECRET!r}")) == "SchemaMismatch"


def shows(text: str) -> bool:
    return any(secret in text for secret in SECRETS)


# Failures of each kind of endpoint, by a record or by the code around it.

Fail = Callable[[Channel], None]


def written(channel: Channel) -> None:
    with channel.writer(group="w") as writer:
        writer.write({"id": SECRET} if channel.format != "bytes" else {"value": NUMBER})


def raised_while_writing(channel: Channel) -> None:
    with channel.writer(group="w") as writer:
        writer.write({"name": SECRET} if channel.format != "bytes" else {"value": b"x"})
        raise ValueError(f"what to do with {SECRET}?")


def routed(channel: Channel) -> None:
    """Return an invalid key made of the record."""
    with channel.writer(key=lambda _record: [SECRET], group="w") as writer:  # type: ignore[arg-type,return-value]
        writer.write({"id": 1} if channel.format != "bytes" else {"value": b"x"})


def by_a_port(channel: Channel) -> None:
    with OutputPort([channel]) as port:
        port.write({"id": SECRET} if channel.format != "bytes" else {"value": NUMBER})


def filled(channel: Channel, *values: bytes) -> None:
    connection = channel.connection("write")
    producer = Producer(dict(connection.kafka))
    for value in values:
        producer.produce(connection.topic_name, value, partition=0)
    assert producer.flush(30) == 0


def broken(channel: Channel) -> bytes:
    """Return an invalid message with a secret in a part that the reason quotes."""
    if channel.format == "arrow":
        return SECRET.encode()
    body = bytearray(b"\0" + channel.connection("read").schema_id.to_bytes(4, "big"))
    body += b"\0\0" + bytes(4) + b"0000" + b"\0"
    number = NUMBER << 1
    while number > 0x7F:
        body.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*body, number, 0, 0, 0])


def read(channel: Channel) -> None:
    filled(channel, broken(channel))
    with channel.reader(group="r", until="now") as reader:
        list(reader)


def raised_while_reading(channel: Channel) -> None:
    filled(channel, b"x")
    with channel.reader(group="r", until=None) as reader:
        raise LookupError(f"no station {SECRET}, {reader.partitions}")


def raised_in_a_port(channel: Channel) -> None:
    with InputPort(channel, group="r") as port:
        raise LookupError(f"no station {SECRET}, {port.finished}")


WAYS: list[tuple[Fail, str, tuple[str, ...], str]] = [
    (written, "writer", ("avro", "arrow", "bytes"), "InvalidRecord: record 0, field '"),
    (by_a_port, "writer", ("avro", "arrow", "bytes"), "InvalidRecord: record 0, field '"),
    (raised_while_writing, "writer", ("avro", "arrow", "bytes"), "ValueError"),
    (routed, "writer", ("avro", "bytes"), "OptionError"),
    (read, "reader", ("avro", "arrow"), "CorruptMessage: channel "),
    (raised_while_reading, "reader", ("bytes",), "LookupError"),
    (raised_in_a_port, "reader", ("avro",), "LookupError"),
]


@pytest.mark.parametrize(
    ("fail", "role", "format_", "begins"),
    [
        pytest.param(fail, role, format_, begins, id=f"{fail.__name__}-{format_}")
        for fail, role, formats, begins in WAYS
        for format_ in formats
    ],
)
def test_causes_of_endpoints_contain_no_values(
    gateway_url: str,
    make: Callable[[str], Channel],
    fail: Fail,
    role: str,
    format_: str,
    begins: str,
) -> None:
    channel = make(format_)
    with pytest.raises(Exception) as raised:
        fail(channel)
    assert shows(str(raised.value)), "the job itself sees the value"
    assert failed_cause(channel, role).startswith(begins)
    assert not shows(all_responses(gateway_url, channel.name))


def test_causes_of_confluent_producers_and_consumers_contain_no_values(
    gateway_url: str, make: Callable[[str], Channel]
) -> None:
    channel = make("avro")

    def produce() -> None:
        with FacadeProducer({"bootstrap.servers": gateway_url}) as producer:
            producer.produce(channel.name, SECRET.encode())

    def consume() -> None:
        with Consumer({"bootstrap.servers": gateway_url, "group.id": "c"}) as consumer:
            consumer.subscribe([channel.name])
            consumer.poll(0)
            raise KeyError(SECRET)

    with pytest.raises(KafkaException):
        produce()
    cause = failed_cause(channel, "writer")
    assert SECRET not in cause
    assert "no schema id" in cause
    assert "; 0 records of this writer are written, 1 may not be" in cause
    with pytest.raises(KeyError):
        consume()
    assert not shows(all_responses(gateway_url, channel.name))


@pytest.mark.long
def test_causes_of_pykafka_brokers_contain_no_values(
    gateway_url: str, make: Callable[[str], Channel]
) -> None:
    channel = make("avro")

    def produce() -> None:
        with broker_at(gateway_url) as broker:
            request = ProduceRequest()
            request.add_message(Message(SECRET.encode()), channel.name.encode(), 0)
            response = broker.produce_messages(request)
            raise RuntimeError(f"{SECRET}: {response}")

    with pytest.raises(RuntimeError):
        produce()
    assert not shows(all_responses(gateway_url, channel.name))


@pytest.fixture
def make(gateway_url: str) -> Iterator[Callable[[str], Channel]]:
    """Create a channel of a format."""
    with Gateway(gateway_url) as gateway:

        def made(format_: str) -> Channel:
            name = f"causes-{uuid.uuid4().hex[:8]}"
            if format_ == "bytes":
                return gateway.channel(name, format="bytes")
            return gateway.channel(name, SCHEMA, format=format_)

        yield made
