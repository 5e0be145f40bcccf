"""The format `protobuf`: written and read as `google.protobuf` does, strict with any bytes."""

import struct
import tracemalloc
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from generated import PREFIX, one_batch, same, schema, with_protobuf_rows
from sluiceway.api.models import Connection
from sluiceway.codecs import Decoder
from sluiceway.codecs.physical import avro_form
from sluiceway.codecs.protobuf import ProtobufCodec
from sluiceway.codecs.protobuf_columnar import ColumnarProtobufReader, wire_fields
from sluiceway.codecs.protobuf_strict import message_class
from sluiceway.errors import InvalidRecord, InvalidSchema, RecordTooLarge, UnsupportedType
from sluiceway.kafka.accumulator import certain_row_bytes
from sluiceway.records import to_batches, to_records
from sluiceway.records.row_buffer import RowBuffer
from sluiceway.schema import Schema, protobuf
from sluiceway.schema.proto_files import compiled, proto_file
from sluiceway.schema.protobuf import numbered

NO_LIMIT = 2**31
HEAD = PREFIX + b"\0"


class Columns(ProtobufCodec):
    """The codec that decodes also a few messages in columns."""

    few_messages = 0


class OneByOne(ProtobufCodec):
    """The strict reader alone, on `google.protobuf`."""

    few_messages = 2**31


def encoded(schema_, rows, **options):
    codec = ProtobufCodec(schema_, 7)
    limit = options.get("limit_bytes", NO_LIMIT)
    batches = to_batches(rows, schema_)
    return [v for b in batches for v in codec.encode(b, limit_bytes=limit).values.to_pylist()]


def agreed(schema_, messages, columns=None):
    """Decode with both readers, which must agree."""
    results, stored = [], []
    for codec in (Columns(schema_, 7, columns), OneByOne(schema_, 7, columns)):
        result = codec.decode(messages)
        form = avro_form(codec.decoded_schema.record)
        for batch in result.batches:
            batch.validate(full=True)
            assert batch.schema.equals(codec.decoded_schema.arrow, check_metadata=True)
        results.append(result)
        stored.append([row for b in result.batches for row in to_records(form.to_physical(b))])
    columnar, strict = results
    assert same(*stored)
    assert (columnar.counts, columnar.corrupt) == (strict.counts, strict.corrupt)
    return columnar


def decoded(schema_, messages, columns=None):
    """Decode with both readers; return the records, and reasons by index."""
    result = agreed(schema_, messages, columns)
    rows = [row for batch in result.batches for row in to_records(batch)]
    return rows, {corrupt.index: corrupt.reason for corrupt in result.corrupt}


def generated_class(schema_):
    """The class of the message in the schema's `.proto` file, compiled by protoc."""
    file = proto_file(schema_)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "generated.proto"
        path.write_text(file.text)
        pool: DescriptorPool = compiled(path, [path.parent])
    name = f"{file.package}.{next(iter(file.messages))}".lstrip(".")
    return GetMessageClass(pool.FindMessageTypeByName(name))


@given(with_protobuf_rows())
def test_what_is_written_is_read(given_):
    schema_, rows = given_
    messages = encoded(schema_, rows)
    read, corrupt = decoded(schema_, messages)
    assert corrupt == {}
    assert same(read, rows)
    (first, *_) = schema_.record.fields
    some, _ = decoded(schema_, messages, [first.name])
    assert same(some, [{first.name: row[first.name]} for row in rows])


@given(with_protobuf_rows())
def test_what_is_written_needs_no_strict_reader(given_):
    schema_, rows = given_
    record = schema_.record
    reader = ColumnarProtobufReader(wire_fields(record), (HEAD, PREFIX + b"\2\2"), record)
    messages = encoded(schema_, rows)
    elsewhere = [PREFIX + b"\2\2" + message[len(HEAD) :] for message in messages]
    batch, suspect = reader.decode([*messages, *elsewhere])
    assert suspect == []
    assert batch.num_rows == 2 * len(rows)


def test_the_first_and_the_last_timestamps_of_64_bits_are_read():
    nanos = one({"type": "long", "logicalType": "timestamp-nanos"})
    stored = pa.array([-(2**63), 2**63 - 1]).view(nanos.arrow.field(0).type)
    batch = pa.record_batch([stored], schema=nanos.arrow)
    first, last = ProtobufCodec(nanos, 7).encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
    assert first[-4:] == bytes.fromhex("80 e4 9f 45")
    assert last[-5:] == bytes.fromhex("ff af cb 97 03")
    # A nanosecond less, and one more.
    less, more = bytes.fromhex("ff e3 9f 45"), bytes.fromhex("80 b0 cb 97 03")
    beyond = [first[:-4] + less, last[:-5] + more]
    result = agreed(nanos, [first, last, *beyond])
    assert result.batches[0].equals(batch)
    assert [corrupt.index for corrupt in result.corrupt] == [2, 3]


@given(with_protobuf_rows(), st.data())
def test_slices_have_the_messages_of_their_rows(given_, data):
    schema_, rows = given_
    begin = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(begin, len(rows)))
    batch = one_batch(rows, schema_).slice(begin, end - begin)
    values = ProtobufCodec(schema_, 7).encode(batch, limit_bytes=NO_LIMIT).values
    assert values.to_pylist() == encoded(schema_, rows)[begin:end]


@given(with_protobuf_rows())
def test_the_bytes_are_those_of_google_protobuf(given_):
    schema_, rows = given_
    class_ = message_class(schema_.record)
    for message in encoded(schema_, rows):
        parsed = class_.FromString(message[len(HEAD) :])
        assert HEAD + parsed.SerializeToString() == message
        size_bytes = parsed.ByteSize()
        parsed.DiscardUnknownFields()
        assert parsed.ByteSize() == size_bytes


@settings(max_examples=20)
@given(with_protobuf_rows())
def test_generated_classes_read_what_is_written_and_write_what_is_read(given_):
    schema_, rows = given_
    generated = generated_class(schema_)
    messages = []
    for message in encoded(schema_, rows):
        assert message.startswith(HEAD)
        parsed = generated.FromString(message[len(HEAD) :])
        size_bytes = parsed.ByteSize()
        parsed.DiscardUnknownFields()
        assert parsed.ByteSize() == size_bytes
        messages.append(HEAD + parsed.SerializeToString())
    read, corrupt = decoded(schema_, messages)
    assert corrupt == {}
    assert same(read, rows)


def field(name, type_, **protobuf):
    return {"name": name, "type": type_} | ({"protobuf": protobuf} if protobuf else {})


def one(type_, **protobuf):
    """The schema of one field, `x`."""
    return numbered(schema(field("x", type_, **protobuf)))


UNSIGNED = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
AT = {"type": "long", "logicalType": "timestamp-micros"}
DAY = {"type": "int", "logicalType": "date"}
CLOCK = {"type": "long", "logicalType": "time-micros"}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"], "protobuf": {"A": 0, "B": 5}}
POINT = {"type": "record", "name": "P", "fields": [{"name": "a", "type": "long"}]}


@pytest.mark.parametrize(
    ("type_", "protobuf", "value", "body"),
    [
        ("boolean", {}, True, "08 01"),
        ("long", {}, -1, "08 ff ff ff ff ff ff ff ff ff 01"),
        ("long", {}, 0, ""),
        ("double", {}, -0.0, "09 00 00 00 00 00 00 00 80"),
        ("float", {}, -0.0, "0d 00 00 00 80"),
        ("long", {"type": "sint64"}, -1, "08 01"),
        ("long", {"type": "sfixed64"}, -2, "09 fe ff ff ff ff ff ff ff"),
        ("long", {"type": "uint32"}, 2**32 - 1, "08 ff ff ff ff 0f"),
        ("long", {"number": 20}, 1, "a0 01 01"),
        (UNSIGNED, {"type": "uint64"}, Decimal(2**64 - 1), "08 ff ff ff ff ff ff ff ff ff 01"),
        (UNSIGNED, {"type": "fixed64"}, Decimal(1), "09 01 00 00 00 00 00 00 00"),
        (["null", "long"], {}, 0, "08 00"),
        (["null", "long"], {}, None, ""),
        (["null", "string"], {"oneof": "one"}, "", "0a 00"),
        (ENUM, {}, "B", "08 05"),
        ({"type": "array", "items": "long"}, {}, [1, 2], "0a 02 01 02"),
        ({"type": "array", "items": "string"}, {}, ["a", ""], "0a 01 61 0a 00"),
        ({"type": "map", "values": "long"}, {}, {"k": 1}, "0a 05 0a 01 6b 10 01"),
        (POINT, {}, {"a": 0}, "0a 00"),
        (MONEY, {}, Decimal("-1.00"), "0a 07 0a 01 9c 10 05 18 02"),
        (AT, {}, datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
         "0a 0e 08 ff ff ff ff ff ff ff ff ff 01 10 e8 07"),
        (AT, {}, datetime(1970, 1, 1, tzinfo=UTC), "0a 00"),
        (DAY, {}, date(2026, 1, 31), "0a 07 08 ea 0f 10 01 18 1f"),
        (CLOCK, {}, time(23, 59, 58, 1), "0a 09 08 17 10 3b 18 3a 20 e8 07"),
    ],
)  # fmt: skip
def test_values_have_the_form_of_protobuf(type_, protobuf, value, body):
    schema_ = one(type_, **protobuf)
    message = HEAD + bytes.fromhex(body)
    assert encoded(schema_, [{"x": value}]) == [message]
    assert decoded(schema_, [message]) == ([{"x": value}], {})


@pytest.mark.parametrize(
    ("type_", "protobuf", "body", "value"),
    [
        # Lists of numbers may be packed or not, in any parts.
        ({"type": "array", "items": "long"}, {}, "08 01 0a 01 02 08 03", [1, 2, 3]),
        # Of a field that is there twice the last one counts; messages are merged.
        ("long", {}, "08 01 08 02", 2),
        ({"type": "map", "values": "long"}, {}, "0a 05 0a 01 6b 10 01 0a 03 0a 01 6b", {"k": 0}),
        # Of numbers, the bits of their type count.
        ("int", {}, "08 ff ff ff ff 1f", -1),
        ("int", {"type": "sint32"}, "08 ff ff ff ff 1f", -(2**31)),
        ("long", {"type": "uint32"}, "08 ff ff ff ff 1f", 2**32 - 1),
        ("long", {}, "08 ff ff ff ff ff ff ff ff ff 7f", -1),
        ("boolean", {}, "08 82 80 80 80 10", True),
        # Unknown fields are ignored.
        ("long", {}, "08 01 12 01 61 1d 00 00 00 00", 1),
        # A decimal with other digits, if these are zeros.
        (MONEY, {}, "0a 02 0a 00 0a 06 0a 02 03 e8 18 03", Decimal("1.00")),
        (MONEY, {}, "0a 03 0a 01 07", Decimal("7.00")),
        ({**ENUM, "default": "A"}, {}, "08 09", "A"),
    ],
)
def test_other_forms_are_read(type_, protobuf, body, value):
    assert decoded(one(type_, **protobuf), [HEAD + bytes.fromhex(body)]) == ([{"x": value}], {})


@pytest.mark.parametrize(
    ("type_", "body", "reason"),
    [
        ("long", "0a 01 61", "'x' has another form than int64"),
        ("string", "08 01", "'x' has another form than string"),
        ("string", "0a 01 ff", "not a Protobuf message"),
        ("long", "08", "not a Protobuf message"),
        ({"type": "array", "items": "float"}, "0a 03 00 00 00", "not a Protobuf message"),
        ({"type": "array", "items": "long"}, "0a 02 01 80", "not a Protobuf message"),
        (
            {"type": "array", "items": "long"},
            "0a 0c 05 80 80 80 80 80 80 80 80 80 80 01",
            "not a Pro",
        ),
        ("long", "08 ff ff ff ff ff ff ff ff ff ff 01", "not a Protobuf message"),
        (ENUM, "08 01", "'x' is 1, which is none of the enum's numbers 0, 5"),
        (POINT, "", "'x' is missing, and cannot be null"),
        (POINT, "0a 02 0a 00", "'x.a' has another form than int64"),
        ({"type": "map", "values": "long"}, "0a 05 0a 01 6b 12 00", "'x{}' has another form"),
        (MONEY, "0a 02 10 05", "not a number of at most 5 digits"),
        (MONEY, "0a 04 0a 02 03 e9 0a 02 18 03", "not a number of at most 5 digits"),
        (MONEY, "0a 06 0a 03 01 86 a0 18 02", "not a Protobuf message"),
        (MONEY, "0a 07 0a 03 01 86 a0 18 02", "not a number of at most 5 digits"),
        (MONEY, "0a 0e 0a 01 01 18 81 80 80 80 f8 ff ff ff ff 01", "not a number of at most"),
        (AT, "0a 02 10 01", "'x' is not a timestamp-micros"),
        (AT, "0a 0b 10 80 80 80 80 f8 ff ff ff ff 01", "'x' is not a timestamp-micros"),
        (AT, "0a 07 08 80 80 80 80 80 20", "'x' is outside of the range"),
        (AT, "0a 02 0a 00", "'x.seconds' has another form than int64"),
        (DAY, "0a 05 08 ea 0f 10 01", "'x' is not a date"),
        (DAY, "0a 07 08 ea 0f 10 0d 18 01", "'x' is not a date"),
        (DAY, "0a 07 08 ea 0f 10 02 18 1d", "'x' is not a date"),
        (CLOCK, "0a 02 08 18", "'x' is not a time-micros"),
        (CLOCK, "0a 02 10 3c", "'x' is not a time-micros"),
        (CLOCK, "0a 02 18 3c", "'x' is not a time-micros"),
        ({"type": "string", "logicalType": "uuid"}, "", "'x' is not the text of a UUID"),
        ({"type": "fixed", "name": "f", "size": 2}, "0a 01 61", "'x' is not 2 bytes"),
    ],
)
def test_malformed_messages_have_a_reason(type_, body, reason):
    rows, corrupt = decoded(one(type_), [HEAD + bytes.fromhex(body)])
    assert rows == []
    assert reason in corrupt[0]


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"", "does not begin with the byte 0"),
        (PREFIX, "does not begin with the byte 0"),
        (b"\1" + PREFIX[1:] + b"\0", "does not begin with the byte 0"),
        (b"\0\0\0\0\x08\0", "has the schema id 8, not 7"),
        (PREFIX + b"\2\2", r"is the message [1] of its file, not the channel's, [4, 0]"),
        (PREFIX + b"\2", "cut off"),
        (PREFIX + b"\1", "has -1 numbers"),
        (PREFIX + b"\xfe\xff\xff\xff\x0f" + b"\0" * 9, "has 2147483647 numbers"),
        (PREFIX + b"\x80" * 9, "cut off, or too long"),
    ],
)
def test_another_message_of_the_file_is_not_read(head, reason):
    definition = one("long").definition | {"protobuf": {"indexes": [4, 0]}}
    schema_ = Schema.parse(definition)
    rows, corrupt = decoded(schema_, [head])
    assert rows == []
    assert reason in corrupt[0]
    for own in (b"\0", b"\2\0", b"\4\10\0"):
        assert decoded(schema_, [PREFIX + own + b"\10\5"]) == ([{"x": 5}], {})


def test_a_message_deep_within_its_file_is_read_also_beside_short_values():
    indexes = [3] * 31
    numbers = (len(indexes), *indexes)
    record = {"type": "record", "name": "R", "fields": [field("x", "int")]}
    deep = numbered(Schema.parse(record | {"protobuf": {"indexes": indexes}}))
    head = PREFIX + bytes(2 * number for number in numbers)
    rows, corrupt = decoded(deep, [head + b"\x08\1", HEAD])
    assert (rows, corrupt) == ([{"x": 1}, {"x": 0}], {})


@pytest.mark.parametrize(("size", "rows"), [(5, [{"x": "a"}]), (6, [])])
def test_lengths_have_up_to_five_bytes_in_both_readers(size, rows):
    length = b"\x81" + b"\x80" * (size - 2) + b"\0"
    assert decoded(one("string"), [HEAD + b"\n" + length + b"a"])[0] == rows


@pytest.mark.parametrize("indexes", [[], ["a"], "1", [-1], [2**31], [True], [0] * 33, {"a": 1}])
def test_a_schema_whose_place_in_its_file_cannot_be_is_refused(indexes):
    record = {"type": "record", "name": "R", "fields": [field("x", "int", number=1)]}
    misplaced = Schema.parse(record | {"protobuf": {"indexes": indexes}})
    for use in (numbered, lambda schema_: ProtobufCodec(schema_, 7)):
        with pytest.raises(InvalidSchema, match="must be the place of the message in its file"):
            use(misplaced)


def test_a_record_may_have_the_name_of_a_message_of_protobuf():
    own = {"type": "record", "name": "google.protobuf.Timestamp", "fields": [field("q", "string")]}
    schema_ = numbered(schema(field("own", own), field("at", AT)))
    rows = [{"own": {"q": "x"}, "at": datetime(2026, 1, 31, tzinfo=UTC)}]
    assert decoded(schema_, encoded(schema_, rows)) == (rows, {})


def test_malformed_messages_are_found_by_index_among_good_ones():
    schema_ = one("long")
    good = HEAD + b"\10\5"
    rows, corrupt = decoded(schema_, [good, None, good, HEAD + b"\10", good])
    assert rows == [{"x": 5}] * 3
    assert list(corrupt) == [1, 3]
    assert "tombstone" in corrupt[1]


HEX = ("80", "ff" * 9 + "01", "ff" * 9 + "02", "80 00", "ff ff ff ff 0f", "00", "08 01", "0a 00")
PIECES = st.one_of(st.binary(max_size=3), st.sampled_from(HEX).map(bytes.fromhex))


@st.composite
def with_messages(draw):
    """Draw a numbered schema, messages of it, and messages that others resemble."""
    schema_, rows = draw(with_protobuf_rows())
    messages = encoded(schema_, rows)

    def edited(drawn):
        message, edits = bytearray(drawn[0][len(HEAD) :]), drawn[1]
        for place, cut, piece in edits:
            message[place : place + cut] = piece
        return HEAD + bytes(message)

    edits = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), PIECES), max_size=3)
    own = st.sampled_from(messages)
    merged = st.tuples(own, own).map(lambda pair: pair[0] + pair[1][len(HEAD) :])
    spoilt = st.tuples(own | merged, edits).map(edited)
    other = st.one_of(st.binary(max_size=12).map(HEAD.__add__), st.binary(max_size=8), st.none())
    return schema_, draw(st.lists(st.one_of(own, merged, spoilt, spoilt, other), max_size=30))


@given(with_messages())
def test_any_bytes_are_records_or_corrupt(given_):
    schema_, messages = given_
    result = agreed(schema_, messages)
    count = sum(batch.num_rows for batch in result.batches)
    assert count + len(result.corrupt) == len(messages)
    # What is read is a record that is written.
    for batch in result.batches:
        again = ProtobufCodec(schema_, 7).encode(batch, limit_bytes=NO_LIMIT).values
        assert agreed(schema_, again.to_pylist()).corrupt == []


EITHER = {"oneof": "either"}
KINDS = [
    field("truth", "boolean"),
    field("i32", "int"),
    field("s32", "int", type="sint32"),
    field("i64", ["null", "long"]),
    field("s64", "long", type="sint64"),
    field("u32", "long", type="uint32"),
    field("u64", UNSIGNED, type="uint64"),
    field("f32", "float"),
    field("f64", "double"),
    field("text", ["null", "string"], **EITHER),
    field("raw", ["null", "bytes"], **EITHER),
    field("odd", ["null", {"type": "fixed", "name": "O", "size": 2}]),
    field("id", ["null", {"type": "string", "logicalType": "uuid"}]),
    field("symbol", ENUM),
    field("money", ["null", MONEY]),
    field("at", ["null", AT]),
    field("day", ["null", DAY]),
    field("clock", ["null", CLOCK]),
    field("point", ["null", POINT], number=200),
    field("points", {"type": "array", "items": "P"}, number=201),
    field("numbers", {"type": "array", "items": "long"}),
    field("singles", {"type": "array", "items": "float"}),
    field("texts", {"type": "array", "items": "string"}),
    field("symbols", {"type": "array", "items": "E"}),
    field("stock", {"type": "map", "values": "long"}),
    field("places", {"type": "map", "values": "P"}),
]


def damaged(random, messages):
    """A message with a few bytes that are changed, added, left out, or of another message."""
    body = bytearray(random.choice(messages)[len(HEAD) :])
    if random.random() < 0.2:
        body += random.choice(messages)[len(HEAD) :]
    for _ in range(random.randrange(3)):
        place, cut = random.randrange(len(body) + 1), random.randrange(4)
        other = random.choice(messages)
        begin = random.randrange(len(HEAD), len(other) + 1)
        pieces = [random.randbytes(1), bytes.fromhex(random.choice(HEX)), b""]
        body[place : place + cut] = random.choice([*pieces, other[begin : begin + cut]])
    return HEAD + bytes(body)


def test_both_readers_agree_on_damaged_messages():
    schema_, random = numbered(schema(*KINDS)), Random(7)  # noqa: S311
    zero = {f["name"]: None for f in KINDS} | {"text": "", "symbol": "A", "stock": {}, "places": {}}
    zero |= {name: [] for name in ("points", "numbers", "singles", "texts", "symbols")}
    zero |= dict.fromkeys(("i32", "s32", "s64", "u32"), 0)
    zero |= {"truth": False, "u64": Decimal(0), "f32": 0.0, "f64": -0.0}
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    full = zero | {"truth": True, "i32": -1, "s32": -1, "i64": 2**63 - 1, "s64": -(2**63)}
    full |= {"u32": 2**32 - 1, "u64": Decimal(2**64 - 1), "f32": 0.5, "f64": 1e300, "odd": b"ab"}
    full |= {"id": UUID(int=2**128 - 1), "symbol": "B", "money": Decimal("-999.99"), "at": noon}
    full |= {"day": noon.date(), "clock": time(23, 59, 59), "point": {"a": 0}}
    full |= {"points": [{"a": 1}, {"a": 0}], "numbers": [0, -1, 300], "singles": [0.0, 1.5]}
    full |= {"texts": ["", "\u00e9"], "symbols": ["A", "B"], "stock": {"": 0, "k": 1}}
    messages = encoded(schema_, [zero, full | {"places": {"k": {"a": 1}, "l": {"a": 0}}}])
    result = agreed(schema_, [damaged(random, messages) for _ in range(600)])
    assert 100 < len(result.corrupt) < 500


def test_items_of_few_bytes_take_a_bounded_part_of_memory():
    fixed = [{"type": "fixed", "name": f"f{n}", "size": 1024} for n in range(40)]
    wide = [{"name": f["name"], "type": ["null", f]} for f in fixed]
    item = {"type": "record", "name": "W", "fields": wide}
    schema_ = one({"type": "array", "items": item})
    rows, corrupt = decoded(schema_, [HEAD + b"\n\0" * 10, HEAD + b"\n\0" * 10_000])
    assert [len(row["x"]) for row in rows] == [10]
    assert "would take more than 1024 times its size" in corrupt[1]


@pytest.mark.parametrize("count", [63, 64, 65, 500])
@pytest.mark.parametrize("times", [1, 40])
def test_lists_of_any_length_are_read(count, times):
    schema_ = one({"type": "array", "items": POINT})
    row = {"x": [{"a": number} for number in range(count)]}
    rows = [{"x": []}, row, {"x": [{"a": 0}]}] * times
    assert decoded(schema_, encoded(schema_, rows)) == (rows, {})


def test_a_null_record_with_a_decimal_is_valid_for_arrow():
    item = {"type": "record", "name": "Item", "fields": [field("price", MONEY)]}
    schema_ = one(["null", item])
    rows = [{"x": None}, {"x": {"price": Decimal("1.50")}}]
    assert decoded(schema_, encoded(schema_, rows)) == (rows, {})


def test_slices_and_nulls_in_nested_columns():
    lists = {
        "type": "record",
        "name": "L",
        "fields": [field("l", {"type": "array", "items": POINT})],
    }
    schema_ = numbered(
        schema(field("x", ["null", lists]), field("y", {"type": "map", "values": AT}))
    )
    at = datetime(2026, 1, 31, tzinfo=UTC)
    rows = [
        {"x": None, "y": {}},
        {"x": {"l": []}, "y": {"": at}},
        {"x": {"l": [{"a": 1}, {"a": 0}]}, "y": {"k": at, "l": at}},
    ] * 3
    (batch,) = to_batches(rows, schema_)
    part = ProtobufCodec(schema_, 7).encode(batch.slice(1, 7), limit_bytes=NO_LIMIT)
    assert decoded(schema_, part.values.to_pylist()) == (rows[1:8], {})


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("uint32", -1, "not a number of the type uint32"),
        ("fixed32", 2**32, "not a number of the type fixed32"),
    ],
)
def test_numbers_outside_of_an_unsigned_type_are_refused(type_, value, reason):
    with pytest.raises(InvalidRecord, match=f"record 1, field 'x'.*{reason}"):
        encoded(one("long", type=type_), [{"x": 0}, {"x": value}])
    with pytest.raises(InvalidRecord, match=r"record 0, field 'x'.*uint64"):
        encoded(one(UNSIGNED, type="uint64"), [{"x": Decimal(2**64)}])


@pytest.mark.parametrize(("type_", "beyond"), [(DAY, 3_000_000), (AT, 2**60), (AT, -(2**60))])
def test_values_beyond_the_years_of_dates_are_refused_with_their_record(type_, beyond):
    days = one({"type": "array", "items": type_})
    field_ = days.arrow.field(0)
    stored = pa.array([[1], [2, beyond]], pa.list_(pa.int64()))
    narrow = pa.int32() if type_ is DAY else pa.int64()
    column = stored.cast(pa.list_(narrow)).cast(field_.type)
    batch = pa.record_batch([column], schema=days.arrow)
    with pytest.raises(InvalidRecord, match=r"record 1, field 'x.*years 1 to 9999"):
        ProtobufCodec(days, 7).encode(batch, limit_bytes=NO_LIMIT)


def test_rows_are_accepted_only_if_they_are_certainly_messages():
    small, number = field("x", ["null", "long"], type="uint32"), field("y", UNSIGNED, type="uint64")
    either = [field(name, ["null", "long"], oneof="choice") for name in ("a", "b")]
    row = {"x": 1, "y": Decimal(0), "a": 1, "b": None}

    def accepts(fields, row):
        schema_ = numbered(schema(*fields))
        accepts = protobuf.row_check(schema_.record)
        return RowBuffer(schema_, max_row_bytes=1000, accepts=accepts).check(row) is not None

    fields = [small, number, *either]
    for change in ({}, {"x": None, "y": Decimal(2**64 - 1)}, {"a": None}):
        assert accepts(fields, row | change)
    for change in ({"x": -1}, {"x": 2**32}, {"y": Decimal(2**64)}, {"y": Decimal(-1)}, {"b": 0}):
        assert not accepts(fields, row | change)
    nested = {"type": "record", "name": "N", "fields": [small, *either]}
    array, map_ = {"type": "array", "items": nested}, {"type": "map", "values": nested}
    for change, good in (({}, True), ({"x": -1}, False), ({"a": 0}, False)):
        item = {"x": 1, "a": None, "b": 2} | change
        for type_, value in ((nested, item), (array, [item]), (map_, {"k": item})):
            assert accepts([field("z", type_)], {"z": value}) == good
    lists = field("z", {"type": "array", "items": "long"}, type="uint32")
    assert [accepts([lists], {"z": items}) for items in ([0, 1], [0, -1])] == [True, False]
    assert protobuf.row_check(one("long").record) is None


def test_two_members_of_a_oneof_are_refused():
    schema_ = numbered(
        schema(*(field(name, ["null", "long"], oneof="choice") for name in ("a", "b", "c")))
    )
    assert encoded(schema_, [{"a": None, "b": 0, "c": None}]) == [HEAD + b"\x10\0"]
    with pytest.raises(InvalidRecord, match=r"field 'c'.*beside 'b'.* oneof 'choice'"):
        encoded(schema_, [{"a": None, "b": 1, "c": 2}])
    # Of several in a message, the last one counts, as in Protobuf.
    assert decoded(schema_, [HEAD + b"\x10\1\x18\2"])[0] == [{"a": None, "b": None, "c": 2}]


def test_a_row_that_certainly_fits_is_short_in_protobuf():
    schema_ = one({"type": "array", "items": AT}, number=2**29 - 1)
    longest = datetime(1900, 1, 1, microsecond=999_999, tzinfo=UTC)
    rows = [{"x": [longest] * count} for count in range(200)]
    connection = Connection(
        channel_name="c",
        channel_uid="0" * 32,
        generation=1,
        format="protobuf",
        schema_id=7,
        schema_definition=schema_.definition,
        topic_name="t",
        topic_id="i",
        partitions=1,
        max_message_bytes=4000,
        kafka={},
    )
    buffer = RowBuffer(schema_, max_row_bytes=certain_row_bytes(connection, schema_))
    fitting = [row for row in rows if buffer.check(row) is not None]
    assert 20 < len(fitting) < 200
    assert len(encoded(schema_, fitting)[-1]) <= 4000 // 2


def test_a_record_that_is_too_long_is_named():
    with pytest.raises(RecordTooLarge, match="record 1 takes 108 bytes"):
        encoded(one("string"), [{"x": "a"}, {"x": "a" * 100}], limit_bytes=50)


def test_a_write_of_long_lists_takes_memory_for_a_part_of_them_at_a_time():
    schema_ = one({"type": "array", "items": "long"})
    rows, length = 500, 10_000
    offsets = pa.array(range(0, rows * length + 1, length), pa.int32())
    items = pa.array(np.full(rows * length, -1))
    lists = pa.ListArray.from_arrays(offsets, items).cast(schema_.arrow.field(0).type)
    batch = pa.record_batch([lists], schema=schema_.arrow)
    tracemalloc.start()
    try:
        values = ProtobufCodec(schema_, 7).encode(batch, limit_bytes=NO_LIMIT).values
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {len(value) for value in values.to_pylist()} == {len(HEAD) + 4 + 10 * length}
    assert peak_bytes < 8 * batch.nbytes, peak_bytes / batch.nbytes


def test_schemas_without_numbers_and_of_other_types_are_refused():
    with pytest.raises(InvalidSchema, match="field 'x': it has no number"):
        ProtobufCodec(schema(field("x", "long")), 7)
    with pytest.raises(UnsupportedType):
        ProtobufCodec(schema(field("x", ["long", "string"], number=1)), 7)
    partly = {**ENUM, "protobuf": {"A": 0}}
    with pytest.raises(InvalidSchema, match="field 'x': its symbol 'B' has no number"):
        ProtobufCodec(schema(field("x", partly, number=1)), 7)


def test_messages_of_earlier_versions_are_read_by_numbers_and_defaults(tmp_path):
    def version(body):
        path = tmp_path / "m.proto"
        path.write_text(f'syntax = "proto3"; message M {{ {body} }}')
        return Schema.from_proto(path)

    first = numbered(version("int32 a = 1; string gone = 2; E e = 3; enum E { ON = 0; }"))
    body = "int64 renamed = 1; E e = 3; enum E { ON = 0; OFF = 1; } repeated string new = 4;"
    second = numbered(version(body), [first])
    decoder = Decoder("protobuf", second, {7: first, 8: second})
    old = encoded(first, [{"a": 5, "gone": "x", "e": "ON"}])
    new = [PREFIX[:-1] + b"\x08\0" + b"\x08\x06\x18\x01\x22\x01n"]
    result = decoder.decode([*old, *new, *old])
    assert result.corrupt == []
    rows = [row for batch in result.batches for row in to_records(batch)]
    earlier = {"renamed": 5, "e": "ON", "new": []}
    assert rows == [earlier, {"renamed": 6, "e": "OFF", "new": ["n"]}, earlier]


def test_the_prefix_is_that_of_schema_registries():
    (message,) = encoded(one("long"), [{"x": 1}])
    assert struct.unpack(">bIb2s", message) == (0, 7, 0, b"\10\1")
