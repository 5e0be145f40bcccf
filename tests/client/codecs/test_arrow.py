import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generated import same
from sluiceway.codecs import Envelope
from sluiceway.codecs.arrow import ArrowCodec
from sluiceway.errors import RecordTooLarge
from sluiceway.records import to_batches, to_records
from sluiceway.schema import Schema

NO_LIMIT = 2**31
SCHEMA = Schema.parse(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "i", "type": "int"},
            {"name": "s", "type": ["null", "string"]},
            {"name": "b", "type": "boolean"},
            {"name": "l", "type": {"type": "array", "items": ["null", "string"]}},
            {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
            {
                "name": "r",
                "type": [
                    "null",
                    {
                        "type": "record",
                        "name": "q",
                        "fields": [
                            {"name": "a", "type": "string"},
                            {"name": "z", "type": ["null", "float"]},
                        ],
                    },
                ],
            },
        ],
    }
)
CODEC = ArrowCodec(SCHEMA, 7)


def row(number):
    return {
        "i": number,
        "s": None if number % 3 else "ü" * (number % 7),
        "b": number % 2 == 0,
        "l": ["a", None, "b"][: number % 4],
        "m": {f"k{key}": [1, 2][:key] for key in range(number % 3)},
        "r": None if number % 3 == 0 else {"a": "x" * (number % 5), "z": None},
    }


def rows(count):
    return [row(number) for number in range(count)]


def message(count=5):
    (batch,) = to_batches(rows(count), SCHEMA)
    (value,) = CODEC.encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
    return value


def reason(value, codec_=CODEC):
    decoded = codec_.decode([value])
    assert decoded.batches == []
    assert decoded.counts == [0]
    (corrupt,) = decoded.corrupt
    assert corrupt.index == 0
    return corrupt.reason


def enveloped(batch, schema_id=7, records=None):
    count = batch.num_rows if records is None else records
    head = Envelope(schema_id=schema_id, records=count).pack()
    return head + batch.serialize().to_pybytes()


def ids_codec(type_="long"):
    schema = Schema.parse({"type": "record", "name": "r", "fields": [{"name": "x", "type": type_}]})
    return ArrowCodec(schema, 7)


def test_a_value_is_an_envelope_and_one_ipc_message():
    value = message()
    assert value[:16] == b"SLWA\x01\x00\x00\x00" + struct.pack(">II", 7, 5)
    batch = pa.ipc.read_record_batch(pa.py_buffer(value[16:]), SCHEMA.arrow)
    assert same(to_records(batch), rows(5))


@given(st.binary(min_size=56, max_size=56), st.integers(0, 2**32 - 1))
def test_provenance_in_the_envelope_is_skipped(provenance, schema_id):
    value = struct.pack(">4sBBHII", b"SLWA", 1, 1, 0, schema_id, 5) + provenance + message()[16:]
    assert Envelope.unpack(value) == Envelope(schema_id=schema_id, records=5, size_bytes=72)
    (batch,) = ArrowCodec(SCHEMA, schema_id).decode([value]).batches
    assert same(to_records(batch), rows(5))


def test_batches_are_split_under_the_limit_in_order():
    (batch,) = to_batches(rows(1000), SCHEMA)
    encoded = CODEC.encode(batch, limit_bytes=4000).values.to_pylist()
    assert len(encoded) > 10
    assert max(map(len, encoded)) <= 4000
    counts = [Envelope.unpack(value).records for value in encoded]
    assert sum(counts) == 1000
    decoded = CODEC.decode(encoded)
    assert decoded.counts == counts
    assert same([r for b in decoded.batches for r in to_records(b)], rows(1000))


def test_a_record_beyond_the_message_limit_is_reported():
    made = rows(100)
    made[70]["s"] = "a" * 10_000
    (batch,) = to_batches(made, SCHEMA)
    with pytest.raises(RecordTooLarge) as caught:
        CODEC.encode(batch, limit_bytes=5000)
    assert caught.value.index == 70
    assert caught.value.size_bytes > 10_000
    assert caught.value.limit_bytes == 5000


@pytest.mark.long
def test_a_slice_encodes_only_its_own_rows():
    (batch,) = to_batches(rows(10_000), SCHEMA)
    for begin in (0, 1, 7, 4321, 9990):
        (value,) = CODEC.encode(batch.slice(begin, 10), limit_bytes=NO_LIMIT).values.to_pylist()
        (alone,) = CODEC.encode(
            to_batches(rows(10_000)[begin : begin + 10], SCHEMA)[0], limit_bytes=NO_LIMIT
        ).values.to_pylist()
        assert len(value) < len(alone) + 200
        (decoded,) = CODEC.decode([value]).batches
        assert same(to_records(decoded), rows(10_000)[begin : begin + 10])


def test_no_records_give_no_messages():
    empty = pa.RecordBatch.from_pylist([], SCHEMA.arrow)
    assert CODEC.encode(empty, limit_bytes=10).values.to_pylist() == []
    decoded = CODEC.decode([enveloped(empty), message(1)])
    assert decoded.counts == [0, 1]
    assert decoded.corrupt == []
    assert [batch.num_rows for batch in decoded.batches] == [1]


def test_corrupt_messages_are_reported_among_good_ones():
    good = message()
    decoded = CODEC.decode([good, None, good, good[:-1], good])
    assert [corrupt.index for corrupt in decoded.corrupt] == [1, 3]
    assert decoded.counts == [5, 0, 5, 0, 5]
    assert len(decoded.batches) == 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "tombstone"),
        (b"", "begins with b''"),
        (b"\x00\x00\x00\x00\x07\x02", "not with b'SLWA'"),
        (b"SLWA\x01", "within the envelope"),
        (b"SLWA\x02" + b"\x00" * 20, "version 2"),
        (b"SLWA\x01\x02" + b"\x00" * 20, "flags 0x02"),
        (b"SLWA\x01\x00\x01" + b"\x00" * 20, "unknown to this client"),
        (b"SLWA\x01\x01" + b"\x00" * 20, "within the provenance"),
        (Envelope(schema_id=7, records=1).pack(), "no Arrow message"),
        (Envelope(schema_id=7, records=1).pack() + b"\xff" * 8, "malformed"),
        (
            Envelope(schema_id=7, records=1).pack() + b"\xff\xff\xff\xff\x00\x00\x00\x00",
            "malformed",
        ),
        (message() + b"\x00", "length is not"),
        (message()[:-8], "malformed"),
    ],
)
def test_foreign_messages_are_reported(value, expected):
    assert expected in reason(value)


def test_another_schema_id_is_reported():
    assert "schema id is 7, the channel's is 8" in reason(message(), ArrowCodec(SCHEMA, 8))


def test_the_envelope_must_have_the_number_of_records():
    (batch,) = to_batches(rows(5), SCHEMA)
    assert "holds 5 records, but its envelope says 6" in reason(enveloped(batch, records=6))


def stream_messages(batch, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return list(pa.ipc.MessageReader.open_stream(sink.getvalue()))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_bodies_are_rejected_without_decompression(compression):
    batch = pa.record_batch({"x": np.zeros(100_000, np.int64)})
    _, squeezed = stream_messages(batch, compression=compression)
    head = Envelope(schema_id=7, records=100_000).pack()
    value = head + squeezed.serialize().to_pybytes()
    assert len(value) < 20_000
    assert "compressed" in reason(value, ids_codec())


def test_schema_and_dictionary_messages_are_rejected():
    batch = pa.record_batch({"x": pa.array(["a"]).dictionary_encode()})
    schema, dictionary, indices = stream_messages(batch)
    head = Envelope(schema_id=7, records=1).pack()
    for ipc_message, expected in ((schema, "a schema"), (dictionary, "a dictionary")):
        assert expected in reason(head + ipc_message.serialize().to_pybytes(), ids_codec())
    assert "the schema has 1 in 3" in reason(
        head + indices.serialize().to_pybytes(), ids_codec("string")
    )


@pytest.mark.parametrize(
    ("batch", "type_", "expected"),
    [
        (pa.record_batch({"x": [1], "y": [2]}), "long", "2 columns in 4 buffers"),
        (pa.record_batch({"x": ["a"]}), "long", "1 columns in 3 buffers"),
        (pa.record_batch({"x": pa.array([1, 2, 3], pa.int8())}), "long", "malformed"),
        (pa.record_batch({"x": pa.array([b"\xff"])}), "string", "malformed"),
        (pa.record_batch({"x": pa.array([1, None])}), "long", "record 1, field 'x'"),
        (
            pa.record_batch({"x": pa.array([[1], [2, None]])}),
            {"type": "array", "items": "long"},
            "record 1, field 'x[]'",
        ),
        (
            pa.record_batch(
                {"x": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))}
            ),
            {"type": "map", "values": "long"},
            "duplicate key",
        ),
    ],
)
def test_batches_of_another_layout_are_rejected(batch, type_, expected):
    assert expected in reason(enveloped(batch), ids_codec(type_))


def test_columns_may_not_share_their_buffers():
    names = [f"x{number}" for number in range(20)]
    fields = [{"name": name, "type": "boolean"} for name in names]
    schema = Schema.parse({"type": "record", "name": "r", "fields": fields})
    flags = pa.array(np.ones(4096, np.bool_))
    batch = pa.RecordBatch.from_arrays([flags] * 20, names=names)
    value = bytearray(enveloped(batch))
    message_ = pa.ipc.read_message(pa.py_buffer(bytes(value[16:])))
    body = message_.body.size
    metadata_end = len(value) - body
    # Let every column's buffer be the first one's, and cut the others off.
    for number in range(1, 20):
        old = struct.pack("<qq", number * 512, 512)
        place = bytes(value).index(old, 0, metadata_end)
        value[place : place + 8] = struct.pack("<q", 0)
    place = bytes(value).index(struct.pack("<q", body), 0, metadata_end)
    value[place : place + 8] = struct.pack("<q", 512)
    assert "claim" in reason(bytes(value[: metadata_end + 512]), ArrowCodec(schema, 7))


def test_mutated_messages_are_rejected_or_valid():
    luck = random.Random(2)  # noqa: S311
    whole = [message(count) for count in (1, 5, 40)]
    accepted = 0
    for _ in range(3000):
        value = bytearray(luck.choice(whole))
        for _ in range(luck.choice([1, 1, 2, 4])):
            place = luck.randrange(len(value))
            if luck.random() < 0.5:
                value[place] = luck.choice([0, 1, 0x7F, 0x80, 0xFF, luck.randrange(256)])
            else:
                place &= ~7
                number = luck.choice([0, 1, -1, 2**31, 2**40, 2**62, -(2**63), len(value)])
                value[place : place + 8] = struct.pack("<q", number)
        decoded = CODEC.decode([bytes(value)])
        assert bool(decoded.corrupt) is (decoded.counts == [0])
        for batch in decoded.batches:
            accepted += 1
            to_records(batch)
            again = CODEC.encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
            assert not CODEC.decode(again).corrupt
            assert sum(made.num_rows for made in to_batches(batch, SCHEMA)) == batch.num_rows
    assert accepted > 100
