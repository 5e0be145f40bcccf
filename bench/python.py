"""ChannelWriter and ChannelReader compared with a bare loop of confluent-kafka and a codec.

The codec of the bare loop is fastavro, orjson for the format `json`, and `google.protobuf` with a
generated class for `protobuf`.

All sides transfer the same records, in one process each, over one broker that this program starts,
with the client's Kafka properties. The bare loop is optimized code: a parsed schema, large
`consume` calls for the remaining records, no callback per record.
"""

import io
import struct
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pyarrow as pa
from bench.measure import Measured, Ratio, in_own_process, measure, report
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from sluiceway.api.models import Connection
from sluiceway.kafka.config import consumer_config, producer_config
from sluiceway.reader import ChannelReader
from sluiceway.records import to_batches
from sluiceway.schema import Schema
from sluiceway.schema.protobuf import numbered
from sluiceway.schema.schema import bytes_schema
from sluiceway.writer import ChannelWriter
from sluiceway_gateway.dev.embedded import KafkaServer

RECORDS = 2_000_000
FLUSHES = 3_000
PORTION = 100_000
PARTITIONS = 4
ROUNDS = 3
MAX_MESSAGE_BYTES = 1_048_588
SCHEMA_ID = 1
SCHEMA = {
    "type": "record",
    "name": "Measurement",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "station", "type": "string"},
        {"name": "celsius", "type": "double"},
        {"name": "pascal", "type": "double"},
        {"name": "sensor", "type": "int"},
    ],
}
RATIOS = {
    "dict_write_to_bare": Ratio(side="dict_write", to="bare_write", goal=0.9),
    "dict_read_to_bare": Ratio(side="dict_read", to="bare_read", goal=0.9),
    "record_write_to_bare": Ratio(side="record_write", to="bare_write", goal=0.8),
    "record_read_to_bare": Ratio(side="record_read", to="bare_read", goal=0.8),
    "batch_write_to_bare": Ratio(side="batch_write", to="bare_write", goal=10),
    "batch_read_to_bare": Ratio(side="batch_read", to="bare_read", goal=10),
    "json_dict_write_to_bare": Ratio(side="json_dict_write", to="json_bare_write", goal=None),
    "json_dict_read_to_bare": Ratio(side="json_dict_read", to="json_bare_read", goal=None),
    "json_batch_write_to_bare": Ratio(side="json_batch_write", to="json_bare_write", goal=3),
    "json_encoded_write_to_bare": Ratio(side="json_encoded_write", to="json_bare_write", goal=None),
    "json_batch_read_to_bare": Ratio(side="json_batch_read", to="json_bare_read", goal=1.3),
    "protobuf_dict_write_to_bare": Ratio(
        side="protobuf_dict_write", to="protobuf_bare_write", goal=None
    ),
    "protobuf_dict_read_to_bare": Ratio(
        side="protobuf_dict_read", to="protobuf_bare_read", goal=None
    ),
    "protobuf_batch_write_to_bare": Ratio(
        side="protobuf_batch_write", to="protobuf_bare_write", goal=5
    ),
    "protobuf_encoded_write_to_bare": Ratio(
        side="protobuf_encoded_write", to="protobuf_bare_write", goal=None
    ),
    "protobuf_batch_read_to_bare": Ratio(
        side="protobuf_batch_read", to="protobuf_bare_read", goal=5
    ),
    "flushes_to_bare": Ratio(side="flushes", to="bare_flushes", goal=None),
}


def portion() -> list[dict[str, Any]]:
    """Return the records that are written repeatedly, about 40 bytes each."""
    return [
        {
            "id": 10_000_000 + i,
            "station": f"station-{i % 10_000:06d}",
            "celsius": i / 7,
            "pascal": 1e5 + i,
            "sensor": i % 5_000,
        }
        for i in range(PORTION)
    ]


def producer_properties(bootstrap_servers: str) -> dict[str, Any]:
    """Return the properties of the writers' producers."""
    return producer_config(
        {"bootstrap.servers": bootstrap_servers},
        delivery_timeout_ms=120_000,
        max_message_bytes=MAX_MESSAGE_BYTES,
    )


def new_topic(bootstrap_servers: str, format_: str, *, partitions: int = PARTITIONS) -> Connection:
    """Create an empty topic and return its connection."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 4})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    deadline_s = time.monotonic() + 30
    while len(admin.list_topics(name, timeout=30).topics[name].partitions) < partitions:
        assert time.monotonic() < deadline_s
    return Connection(
        channel_name="bench",
        channel_uid="0" * 32,
        generation=1,
        format=format_,
        schema_id=SCHEMA_ID,
        schema_definition=numbered(Schema.parse(SCHEMA)).definition,
        topic_name=name,
        topic_id=topic_id(admin, name),
        partitions=partitions,
        max_message_bytes=MAX_MESSAGE_BYTES,
        kafka={"bootstrap.servers": bootstrap_servers},
    )


def topic_id(admin: AdminClient, name: str) -> str:
    """Return the topic's id, with which a writer compares the topic of its records."""
    described = admin.describe_topics(TopicCollection([name]))[name].result(30)
    return str(described.topic_id)


def bare_write(bootstrap_servers: str, format_: str) -> Measured:
    connection, records = new_topic(bootstrap_servers, format_), portion()
    loops = {"avro": bare_loop, "json": bare_json_loop, "protobuf": bare_protobuf_loop}
    loop = loops[format_]
    started_s = time.perf_counter()
    loop(connection, records, RECORDS // PORTION)
    return Measured(records=RECORDS, seconds=time.perf_counter() - started_s)


def bare_json_loop(connection: Connection, records: Sequence[dict[str, Any]], times: int) -> None:
    """Write the records as `bare_loop` does, as JSON objects."""
    producer = Producer(producer_properties(connection.kafka["bootstrap.servers"]))
    produce, topic, dumps = producer.produce, connection.topic_name, orjson.dumps
    partitions = connection.partitions
    for _ in range(times):
        for number, record in enumerate(records):
            value = dumps(record)
            while True:
                try:
                    produce(topic, value, partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
    assert producer.flush(120) == 0


def measurement_class() -> Any:
    """Return the class that protoc generates for the message of SCHEMA."""
    types = {"long": "TYPE_INT64", "string": "TYPE_STRING", "double": "TYPE_DOUBLE"}
    file = FileDescriptorProto(name="measurement.proto", syntax="proto3")
    message = file.message_type.add(name="Measurement")
    for number, field in enumerate(SCHEMA["fields"], 1):
        message.field.add(
            name=field["name"],
            number=number,
            type=types.get(field["type"], "TYPE_INT32"),
            label="LABEL_OPTIONAL",
        )
    described = DescriptorPool().AddSerializedFile(file.SerializeToString())
    return GetMessageClass(described.message_types_by_name["Measurement"])


def bare_protobuf_loop(
    connection: Connection, records: Sequence[dict[str, Any]], times: int
) -> None:
    """Write the records as `bare_loop` does, as messages of Protobuf."""
    measurement = measurement_class()
    prefix = struct.pack(">bIb", 0, SCHEMA_ID, 0)
    producer = Producer(producer_properties(connection.kafka["bootstrap.servers"]))
    produce, topic, partitions = producer.produce, connection.topic_name, connection.partitions
    for _ in range(times):
        for number, record in enumerate(records):
            message = measurement()
            message.id = record["id"]
            message.station = record["station"]
            message.celsius = record["celsius"]
            message.pascal = record["pascal"]
            message.sensor = record["sensor"]
            value = prefix + message.SerializeToString()
            while True:
                try:
                    produce(topic, value, partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
    assert producer.flush(120) == 0


def bare_loop(connection: Connection, records: Sequence[dict[str, Any]], times: int) -> None:
    """Write the records `times` times, one message each, and wait for Kafka."""
    schema = fastavro.parse_schema(SCHEMA)
    prefix = struct.pack(">bI", 0, SCHEMA_ID)
    producer = Producer(producer_properties(connection.kafka["bootstrap.servers"]))
    produce, topic, write = producer.produce, connection.topic_name, fastavro.schemaless_writer
    partitions = connection.partitions
    for _ in range(times):
        for number, record in enumerate(records):
            out = io.BytesIO()
            out.write(prefix)
            write(out, schema, record)
            while True:
                try:
                    produce(topic, out.getvalue(), partition=number % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
    assert producer.flush(120) == 0


def client_write(bootstrap_servers: str, format_: str, kind: str) -> Measured:
    """Write dicts or batches, by `kind`."""
    connection, records = new_topic(bootstrap_servers, format_), portion()
    data: Any = records
    if kind == "batches":
        data = to_batches(records, Schema.parse(SCHEMA))
    started_s = time.perf_counter()
    with ChannelWriter(connection) as writer:
        for _ in range(RECORDS // PORTION):
            if kind == "batches":
                for batch in data:
                    writer.write(batch)
            else:
                writer.write(data)
    return Measured(records=RECORDS, seconds=time.perf_counter() - started_s)


def encoded_write(bootstrap_servers: str, format_: str) -> Measured:
    """Write values of a format that are encoded before: what is left to Kafka and its clients."""
    connection = replace(
        new_topic(bootstrap_servers, "bytes"), schema_definition=bytes_schema().definition
    )
    if format_ == "json":
        values = list(map(orjson.dumps, portion()))
    else:
        measurement, prefix = measurement_class(), struct.pack(">bIb", 0, SCHEMA_ID, 0)
        values = [prefix + measurement(**record).SerializeToString() for record in portion()]
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    started_s = time.perf_counter()
    with ChannelWriter(connection) as writer:
        for _ in range(RECORDS // PORTION):
            writer.write(batch)
    return Measured(records=RECORDS, seconds=time.perf_counter() - started_s)


def record_write(bootstrap_servers: str) -> Measured:
    connection, records = new_topic(bootstrap_servers, "avro"), portion()
    started_s = time.perf_counter()
    with ChannelWriter(connection) as writer:
        for _ in range(RECORDS // PORTION):
            for record in records:
                writer.write(record)
    return Measured(records=RECORDS, seconds=time.perf_counter() - started_s)


def bare_flushes(bootstrap_servers: str) -> Measured:
    """Write one record at a time, and wait for Kafka each time."""
    connection, records = new_topic(bootstrap_servers, "avro"), portion()
    schema = fastavro.parse_schema(SCHEMA)
    producer = Producer(producer_properties(bootstrap_servers))
    started_s = time.perf_counter()
    for record in records[:FLUSHES]:
        out = io.BytesIO(struct.pack(">bI", 0, SCHEMA_ID))
        out.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(out, schema, record)
        producer.produce(connection.topic_name, out.getvalue(), partition=0)
        assert producer.flush(120) == 0
    return Measured(records=FLUSHES, seconds=time.perf_counter() - started_s)


def flushes(bootstrap_servers: str) -> Measured:
    connection, records = new_topic(bootstrap_servers, "avro"), portion()
    with ChannelWriter(connection) as writer:
        started_s = time.perf_counter()
        for record in records[:FLUSHES]:
            writer.write(record)
            writer.flush()
        return Measured(records=FLUSHES, seconds=time.perf_counter() - started_s)


def bare_read(connection: Connection) -> Measured:
    started_s = time.perf_counter()
    read = bare_reader(connection.format)
    consumer = Consumer(consumer_config(connection.kafka))
    topic = connection.topic_name
    parts = [TopicPartition(topic, p, 0) for p in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(part, timeout=10)[1] for part in parts]
    consumer.assign(parts)
    left, total = sum(ends), 0
    while left:
        for message in consumer.consume(min(left, 10_000), 1.0):
            if message.error() is not None:
                continue
            total += read(message.value())["id"]
            left -= 1
    seconds = time.perf_counter() - started_s
    consumer.close()
    return checked(total, seconds)


def bare_reader(format_: str) -> Callable[[bytes], dict[str, Any]]:
    """Return the function that reads a message's record."""
    if format_ == "json":
        return orjson.loads
    if format_ == "avro":
        schema = fastavro.parse_schema(SCHEMA)
        schemaless = fastavro.schemaless_reader

        def read_avro(value: bytes) -> Any:
            body = io.BytesIO(value)
            body.seek(5)
            return schemaless(body, schema)

        return read_avro
    parse = measurement_class().FromString

    def read_protobuf(value: bytes) -> dict[str, Any]:
        message = parse(value[6:])
        return {
            "id": message.id,
            "station": message.station,
            "celsius": message.celsius,
            "pascal": message.pascal,
            "sensor": message.sensor,
        }

    return read_protobuf


def client_read(connection: Connection, kind: str) -> Measured:
    """Read dicts or batches, by `kind`."""
    started_s = time.perf_counter()
    total = 0
    with ChannelReader(connection, until="now") as reader:
        if kind == "batches":
            for batch in reader.batches():
                total += int(batch.column("id").to_numpy().sum())
        else:
            while records := reader.read(PORTION):
                for record in records:
                    total += record["id"]
        seconds = time.perf_counter() - started_s
    return checked(total, seconds)


def record_read(connection: Connection) -> Measured:
    started_s = time.perf_counter()
    total = 0
    with ChannelReader(connection, until="now") as reader:
        for record in reader:
            total += record["id"]
        seconds = time.perf_counter() - started_s
    return checked(total, seconds)


def checked(total: int, seconds: float) -> Measured:
    """Return the result of a read, after checking that it has every record."""
    expected = RECORDS // PORTION * sum(10_000_000 + i for i in range(PORTION))
    assert total == expected, f"the sum of the ids read is {total}, not {expected}"
    return Measured(records=RECORDS, seconds=seconds)


def fill(bootstrap_servers: str, format_: str) -> Connection:
    """Create the topic for the reading sides."""
    connection, records = new_topic(bootstrap_servers, format_), portion()
    with ChannelWriter(connection) as writer:
        for _ in range(RECORDS // PORTION):
            writer.write(records)
    return connection


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        KafkaServer.start(Path(directory)) as kafka,
    ):
        servers = kafka.bootstrap_servers
        avro, arrow, json, protobuf = (
            fill(servers, format_) for format_ in ("avro", "arrow", "json", "protobuf")
        )
        measured = measure(
            {
                "bare_write": in_own_process(bare_write, servers, "avro"),
                "dict_write": in_own_process(client_write, servers, "avro", "dicts"),
                "record_write": in_own_process(record_write, servers),
                "batch_write": in_own_process(client_write, servers, "arrow", "batches"),
                "json_bare_write": in_own_process(bare_write, servers, "json"),
                "json_dict_write": in_own_process(client_write, servers, "json", "dicts"),
                "json_batch_write": in_own_process(client_write, servers, "json", "batches"),
                "json_encoded_write": in_own_process(encoded_write, servers, "json"),
                "protobuf_bare_write": in_own_process(bare_write, servers, "protobuf"),
                "protobuf_dict_write": in_own_process(client_write, servers, "protobuf", "dicts"),
                "protobuf_batch_write": in_own_process(
                    client_write, servers, "protobuf", "batches"
                ),
                "protobuf_encoded_write": in_own_process(encoded_write, servers, "protobuf"),
                "bare_flushes": in_own_process(bare_flushes, servers),
                "flushes": in_own_process(flushes, servers),
                "bare_read": in_own_process(bare_read, avro),
                "dict_read": in_own_process(client_read, avro, "dicts"),
                "record_read": in_own_process(record_read, avro),
                "batch_read": in_own_process(client_read, arrow, "batches"),
                "json_bare_read": in_own_process(bare_read, json),
                "json_dict_read": in_own_process(client_read, json, "dicts"),
                "json_batch_read": in_own_process(client_read, json, "batches"),
                "protobuf_bare_read": in_own_process(bare_read, protobuf),
                "protobuf_dict_read": in_own_process(client_read, protobuf, "dicts"),
                "protobuf_batch_read": in_own_process(client_read, protobuf, "batches"),
            },
            rounds=ROUNDS,
        )
        settings = {
            "records": RECORDS,
            "partitions": PARTITIONS,
            "rounds": ROUNDS,
            "brokers": 1,
            "processes_per_side": 1,
            "producer": producer_properties("(the same)"),
            "consumer": consumer_config({"bootstrap.servers": "(the same)"}),
        }
    report(
        "python",
        measured,
        RATIOS,
        title=f"Python, {RECORDS:,} records of five fields, {PARTITIONS} partitions, one broker",
        settings=settings,
    )


if __name__ == "__main__":
    main()
