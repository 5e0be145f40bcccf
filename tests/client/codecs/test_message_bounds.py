"""Untrusted bytes: memory stays proportional to their length, and the process never crashes."""

import multiprocessing
import os
import random
import resource
import signal
import struct
import traceback

import numpy as np
import pyarrow as pa
import pytest

from generated import PREFIX, ColumnCodec, RowCodec, number, schema_of
from sluiceway.codecs import Envelope, codec
from sluiceway.records import to_batches

LIMIT_BYTES = 2 << 30
PATIENCE_S = 480

# Processes are forked from one that has imported the slow modules without using them.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["pandas", "pytest", "sluiceway.codecs", "sluiceway.records"])


def survives(work, *arguments, most_mb=100):
    """Run `work` in a new process, which must survive and grow by at most `most_mb`."""
    receiver, sender = FORKING.Pipe(duplex=False)
    process = FORKING.Process(target=bounded, args=(sender, most_mb, work, *arguments))
    process.start()
    sender.close()
    with receiver:
        try:
            reported = receiver.recv() if receiver.poll(PATIENCE_S) else "does not end"
        except EOFError:
            reported = "ended without a result"
    if reported != "survived":
        process.kill()
    process.join(PATIENCE_S)
    assert reported == "survived", reported
    assert process.exitcode == 0


def bounded(sender, most_mb, work, *arguments):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    try:
        work(*arguments)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < most_mb * 1024, f"{grown // 1024} MB"
    except BaseException:
        sender.send(traceback.format_exc())
    else:
        sender.send("survived")


def both(type_):
    return ColumnCodec(schema_of(type_), 7), RowCodec(schema_of(type_), 7)


def wide(fields):
    members = [{"name": f"f{n}", "type": ["null", "long"]} for n in range(fields)]
    return ["null", {"type": "record", "name": "w", "fields": members}]


@pytest.mark.sample
@pytest.mark.parametrize(
    "type_",
    [
        {"type": "array", "items": "boolean"},
        {"type": "array", "items": ["null", "string"]},
        {"type": "map", "values": "int"},
        {"type": "array", "items": {"type": "array", "items": "int"}},
        "string",
        "bytes",
    ],
)
def test_huge_claimed_counts_and_lengths_allocate_nothing(type_):
    survives(huge_counts_and_lengths, type_)


def huge_counts_and_lengths(type_):
    for codec_ in both(type_):
        for announced in (10**8, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), -(10**8)):
            for rest in (b"", b"\x00", b"\x02" * 9):
                decoded = codec_.decode([PREFIX + number(announced) + rest])
                assert len(decoded.corrupt) == 1


def test_items_without_bytes_are_rejected_in_schemas():
    survives(arrays_of_nothing)


def arrays_of_nothing():
    for items in ("null", {"type": "record", "name": "e", "fields": []}):
        with pytest.raises(Exception, match=r"x\[\]"):
            schema_of({"type": "array", "items": items})


@pytest.mark.long
def test_nulls_of_wide_records_are_limited():
    survives(nulls_for_wide_records, most_mb=200)


def nulls_for_wide_records():
    items = wide(5000)
    for type_ in ({"type": "array", "items": items}, {"type": "map", "values": items}):
        for codec_ in both(type_):
            for count in (1, 16, 100_000):
                if type_["type"] == "array":
                    body = b"\x00" * count
                else:
                    body = b"".join(b"\x06%03x\x00" % (n % 4096) for n in range(count))
                value = PREFIX + number(count) + body + b"\x00"
                decoded = codec_.decode([value])
                assert bool(decoded.corrupt) is (count > 16), (count, decoded.corrupt)
            assert "times its size" in decoded.corrupt[0].reason


def test_many_items_take_memory_in_proportion():
    survives(a_million_items, most_mb=150)


def a_million_items():
    for codec_ in both({"type": "array", "items": ["null", "long"]}):
        value = PREFIX + number(10**6) + b"\x00" * 10**6 + b"\x00"
        (batch,) = codec_.decode([value]).batches
        assert batch.nbytes < 10 * len(value)


def test_wide_values_of_one_byte_are_limited_by_the_message():
    survives(long_values_of_one_byte)


def long_values_of_one_byte():
    fixed = {"type": "fixed", "name": "f", "size": 1024}
    enum = {"type": "enum", "name": "e", "symbols": ["A" * 1024]}
    money = {"type": "bytes", "logicalType": "decimal", "precision": 76}
    for item in (["null", fixed], enum, ["null", money]):
        codec_ = ColumnCodec(schema_of({"type": "array", "items": item}), 7)
        value = PREFIX + number(20_000) + b"\x00" * 20_000 + b"\x00"
        for batch in codec_.decode([value]).batches:
            assert batch.nbytes < 1100 * len(value)


def test_a_compressed_body_that_claims_gigabytes_is_not_decompressed():
    survives(a_body_that_claims_gigabytes)


def a_body_that_claims_gigabytes():
    batch = pa.record_batch({"x": np.zeros(100_000, np.int64)})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    _, squeezed = pa.ipc.MessageReader.open_stream(sink.getvalue())
    value = bytearray(squeezed.serialize().to_pybytes())
    place = value.index(struct.pack("<q", 800_000))
    value[place : place + 8] = struct.pack("<q", 2**33)
    head = Envelope(schema_id=7, records=100_000).pack()
    decoded = codec("arrow", schema_of("long"), 7).decode([head + bytes(value)])
    assert "compressed" in decoded.corrupt[0].reason


def test_mutated_messages_do_not_crash_the_process():
    survives(changed_messages)


def changed_messages():
    luck = random.Random(1)  # noqa: S311 - the same changes each time
    items = {"type": "map", "values": {"type": "array", "items": ["null", "string"]}}
    record = {"type": "record", "name": "q", "fields": [{"name": "l", "type": items}]}
    schema = schema_of(["null", record])
    rows = [{"x": {"l": {"a": ["b", None] * n, "c": []}}} for n in range(5)]
    for format_ in ("avro", "arrow"):
        codec_ = codec(format_, schema, 7)
        (batch,) = to_batches(rows, schema)
        values = codec_.encode(batch, limit_bytes=10**6).values.to_pylist()
        for _ in range(5000):
            value = bytearray(luck.choice(values))
            for _ in range(luck.choice([1, 1, 2, 5])):
                value[luck.randrange(len(value))] = luck.randrange(256)
            for made in codec_.decode([bytes(value)]).batches:
                codec_.encode(made, limit_bytes=10**6)


def test_a_forked_child_can_encode_and_decode():
    survives(forked_after_writing)


def forked_after_writing():
    codec_ = ColumnCodec(schema_of("long"), 7)
    (batch,) = to_batches([{"x": n} for n in range(100)], schema_of("long"))
    values = codec_.encode(batch, limit_bytes=99).values.to_pylist()
    child = os.fork()
    if not child:
        signal.alarm(60)
        assert codec_.columnar is None
        assert codec_.encode(batch, limit_bytes=99).values.to_pylist() == values
        assert codec_.decode(values).batches[0].equals(batch)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert codec_.columnar is not None
