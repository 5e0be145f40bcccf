import struct
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generated import FAST, PREFIX, ColumnCodec, RowCodec, number, schema_of, schemas, with_rows
from sluiceway.codecs import codec
from sluiceway.codecs.avro import AvroCodec
from sluiceway.codecs.physical import avro_form
from sluiceway.errors import OptionError, RecordTooLarge
from sluiceway.records import to_batches, to_records
from sluiceway.schema import Schema

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 1}
NO_LIMIT = 2**31


def avro(type_):
    return ColumnCodec(schema_of(type_), 7)


def both(type_):
    return [avro(type_), RowCodec(schema_of(type_), 7)]


def rows_of(codec_, values):
    decoded = codec_.decode(values)
    return [row["x"] for batch in decoded.batches for row in to_records(batch)]


def test_a_value_is_the_registry_prefix_and_the_record():
    (batch,) = to_batches([{"x": "ab"}, {"x": ""}], schema_of("string"))
    encoded = (
        ColumnCodec(schema_of("string"), 0x01020304)
        .encode(batch, limit_bytes=NO_LIMIT)
        .values.to_pylist()
    )
    assert encoded == [b"\x00\x01\x02\x03\x04\x04ab", b"\x00\x01\x02\x03\x04\x00"]


@pytest.mark.long
@settings(max_examples=settings.default.max_examples // 2)
@given(schemas(FAST))
def test_most_types_use_the_columnar_codec(schema):
    assert ColumnCodec(schema, 7).columnar is not None


def test_a_fixed_of_a_size_not_divisible_by_four_is_encoded_by_fastavro():
    for size in (1, 5, 18, 68):
        assert avro({"type": "fixed", "name": "f", "size": size}).columnar is None
        items = ["null", {"type": "fixed", "name": "f", "size": size}]
        assert avro({"type": "array", "items": items}).columnar is None


@pytest.mark.parametrize("count", [1, 16, 17])
def test_few_records_have_the_same_messages_as_many(count):
    schema = schema_of("long")
    (batch,) = to_batches([{"x": number} for number in range(count)], schema)
    usual, columnar = AvroCodec(schema, 7), ColumnCodec(schema, 7)
    values = usual.encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
    assert values == columnar.encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
    assert usual.decode(values).batches == columnar.decode(values).batches == [batch]


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_only_the_codecs_schema_id_is_accepted(schema_id, other):
    schema = schema_of("int")
    (batch,) = to_batches({"x": 5}, schema)
    values = ColumnCodec(schema, schema_id).encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
    assert values == [b"\x00" + struct.pack(">I", schema_id) + b"\x0a"]
    assert bool(ColumnCodec(schema, other).decode(values).corrupt) is (schema_id != other)


CORRUPT = [
    ("int", b"", "truncated"),
    ("int", number(2**31), "more than 32 bits"),
    ("int", number(-(2**31) - 1), "more than 32 bits"),
    ("int", number(3 * 2**32 + 2**30), "more than 32 bits"),
    ("int", b"\x80\x80\x80\x80\x80\x00", "more than 32 bits"),
    ("int", b"\x02\x02", "1 bytes follow"),
    ("long", b"\xff" * 10, "more than 64 bits"),
    ("long", b"\x80" * 10 + b"\x00", "more than 64 bits"),
    ("long", b"\x80", "truncated"),
    ("boolean", b"\x02", "not a boolean"),
    ("double", b"1234567", "truncated"),
    ("float", b"12345", "bytes follow"),
    ("string", b"\x04a", "truncated"),
    ("string", b"\x02\xff", "not UTF-8"),
    ("string", b"\x06\xed\xa0\x80", "not UTF-8"),
    ("string", b"\x01", "negative length"),
    ("string", number(2**62) + b"a", "truncated"),
    ("bytes", b"\x03", "negative length"),
    (["null", "int"], b"\x04\x02", "branch 2"),
    (["null", "int"], b"\x01\x02", "branch -1"),
    (["int", "null"], b"\x02\x02", "bytes follow"),
    ({"type": "array", "items": "int"}, b"\x02\x02", "truncated"),
    ({"type": "array", "items": "int"}, b"\x04\x02", "more than it has bytes"),
    ({"type": "array", "items": "int"}, number(2**62), "more than it has bytes"),
    ({"type": "array", "items": "int"}, number(-(2**63)) + b"\x00", "more than it has bytes"),
    ({"type": "array", "items": "int"}, b"\x01\x04\x02\x00", "size is wrong"),
    ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x04\x00", "duplicate key"),
    ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\x00", "not UTF-8"),
]


@pytest.mark.parametrize(("type_", "body", "expected"), CORRUPT)
def test_malformed_records_are_reported_among_good_ones(type_, body, expected):
    for codec_ in both(type_):
        schema = schema_of(type_)
        good = {
            "int": 1,
            "long": 1,
            "boolean": True,
            "double": 1.0,
            "float": 1.0,
            "string": "é",
            "bytes": b"\xff",
        }.get(str(type_))
        if isinstance(type_, dict):
            good = [1, 2] if type_["type"] == "array" else {"a": 1}
        (batch,) = to_batches([{"x": good}] * 30, schema)
        values = codec_.encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
        values[3:3] = [PREFIX + body]
        values.append(PREFIX + body)
        decoded = codec_.decode(values)
        assert [corrupt.index for corrupt in decoded.corrupt] == [3, 31]
        assert all(expected in corrupt.reason for corrupt in decoded.corrupt), decoded.corrupt
        assert decoded.counts == [1, 1, 1, 0, *[1] * 27, 0]
        assert rows_of(codec_, values) == [good] * 30


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "tombstone"),
        (b"", "it begins with"),
        (b"\x00\x00\x00\x00", "it begins with"),
        (b"\x01\x00\x00\x00\x07\x02", "it begins with"),
        (b"\x00\x00\x00\x00\x08\x02", "schema id is 8, the channel's is 7"),
        (b'{"x": 1}', "it begins with"),
    ],
)
def test_foreign_messages_are_reported(value, expected):
    for codec_ in both("int"):
        decoded = codec_.decode([PREFIX + b"\x02", value])
        assert [corrupt.index for corrupt in decoded.corrupt] == [1]
        assert expected in decoded.corrupt[0].reason
        assert decoded.counts == [1, 0]


@pytest.mark.parametrize(
    ("type_", "body", "value"),
    [
        ("int", b"\x80\x00", 0),
        ("long", b"\x82\x80\x00", 1),
        ("string", b"\x82\x00a", "a"),
        (["null", "int"], b"\x82\x00\x02", 1),
        ({"type": "array", "items": "int"}, b"\x01\x02\x02\x00", [1]),
        ({"type": "array", "items": "int"}, b"\x02\x02\x04\x04\x06\x00", [1, 2, 3]),
        ({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x00", [1, 2]),
        ({"type": "map", "values": "int"}, b"\x02\x02a\x02\x01\x06\x02b\x04\x00", {"a": 1, "b": 2}),
    ],
)
def test_rarer_forms_of_avro_are_decoded(type_, body, value):
    for codec_ in both(type_):
        plain = to_batches([{"x": value}], schema_of(type_))[0]
        usual = codec_.encode(plain, limit_bytes=NO_LIMIT).values.to_pylist()
        assert usual != [PREFIX + body]
        assert rows_of(codec_, [*usual, PREFIX + body, *usual]) == [value] * 3
        assert rows_of(codec_, [PREFIX + body] * 20) == [value] * 20


_BYTE = st.one_of(st.sampled_from([0, 1, 2, 3, 4, 0x7F, 0x80, 0xFE, 0xFF]), st.integers(0, 255))
_INSERTS = st.one_of(
    st.binary(min_size=1, max_size=12),
    st.sampled_from(
        [b"\x80\x00", b"\xff" * 9 + b"\x01", b"\xff" * 10, number(-(2**63)), b"\x01\x02"]
    ),
)


@st.composite
def damaged(draw, message):
    """A message: valid, changed, truncated, with inserted bytes, or random."""
    message = bytearray(message)
    match draw(st.integers(0, 4)):
        case 1:
            for _ in range(draw(st.integers(1, 3))):
                message[draw(st.integers(0, len(message) - 1))] = draw(_BYTE)
        case 2:
            del message[draw(st.integers(0, len(message))) :]
        case 3:
            place = draw(st.integers(5, len(message)))
            message[place:place] = draw(_INSERTS)
        case 4:
            message[5:] = draw(st.binary(max_size=30))
    return bytes(message)


@pytest.mark.long
@given(with_rows(FAST, least=1), st.data())
def test_the_columnar_codec_and_the_strict_reader_agree(given_, data):
    schema, rows = given_
    fast, strict = ColumnCodec(schema, 7), RowCodec(schema, 7)
    (batch,) = to_batches(rows, schema)
    written = fast.encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
    values = [data.draw(damaged(value)) for value in written]
    left, right = fast.decode(values), strict.decode(values)
    assert [c.index for c in left.corrupt] == [c.index for c in right.corrupt]
    assert left.counts == right.counts
    for decoded in (left, right):
        for made in decoded.batches:
            made.validate(full=True)
            assert made.schema.equals(schema.arrow)
    # Compared as encoded numbers, because Python cannot represent some dates.
    form = avro_form(schema.record)
    plain = [
        [row for batch in decoded.batches for row in form.to_physical(batch).to_pylist()]
        for decoded in (left, right)
    ]
    assert repr(plain[0]) == repr(plain[1])


@pytest.mark.long
@given(
    st.one_of(with_rows(least=1), with_rows(least=1, with_unions=True)),
    st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=8),
)
def test_random_bytes_never_raise_and_hide_no_valid_message(given_, garbage):
    schema, rows = given_
    codec_ = ColumnCodec(schema, 7)
    (batch,) = to_batches(rows, schema)
    values = codec_.encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
    decoded = codec_.decode([*garbage, *values])
    counts = decoded.counts or [1] * (len(garbage) + len(values))
    assert counts[len(garbage) :] == [1] * len(values)
    assert sum(counts) == sum(batch.num_rows for batch in decoded.batches)
    assert [corrupt.index for corrupt in decoded.corrupt] == [
        index for index, count in enumerate(counts) if not count
    ]


@pytest.mark.parametrize("type_", [DECIMAL, {"type": "enum", "name": "e", "symbols": ["A"]}])
def test_values_below_nulls_are_valid_for_their_type(type_):
    record = {"type": "record", "name": "inner", "fields": [{"name": "y", "type": type_}]}
    for codec_ in both({"type": "map", "values": [record, "null"]}):
        decoded = codec_.decode([PREFIX + b"\x02\x00\x02\x00"])
        assert decoded.corrupt == []
        decoded.batches[0].validate(full=True)
        assert to_records(decoded.batches[0]) == [{"x": {"": None}}]


def test_each_of_many_corrupt_messages_is_reported():
    codec_ = avro("string")
    values = [PREFIX + b"\x02a" if number % 3 else PREFIX + b"\x02" for number in range(3000)]
    decoded = codec_.decode(values)
    assert [corrupt.index for corrupt in decoded.corrupt] == list(range(0, 3000, 3))
    assert sum(batch.num_rows for batch in decoded.batches) == 2000


@pytest.mark.parametrize("odd", [0, 700, 1499])
def test_one_odd_message_is_found_among_many_of_a_thousand_characters(odd):
    schema = Schema.of(pa.schema([pa.field("n", pa.int64(), nullable=False), ("s", pa.string())]))
    codec_ = codec("avro", schema, 7)
    rows = [{"n": n, "s": "x" * (1000 + n % 7)} for n in range(1500)]
    (batch,) = to_batches(rows, schema)
    values = codec_.encode(batch, limit_bytes=10_000).values.to_pylist()
    values[odd] += b"!"

    decoded = codec_.decode(values)

    assert [corrupt.index for corrupt in decoded.corrupt] == [odd]
    assert [row for decoded_batch in decoded.batches for row in to_records(decoded_batch)] == (
        rows[:odd] + rows[odd + 1 :]
    )


def test_a_record_beyond_the_message_limit_is_reported():
    rows = [{"x": "a"}, {"x": "a" * 100}, {"x": "a" * 200}]
    (batch,) = to_batches(rows, schema_of("string"))
    for codec_ in both("string"):
        with pytest.raises(RecordTooLarge) as caught:
            codec_.encode(batch, limit_bytes=106)
        error = caught.value
        assert (error.index, error.size_bytes, error.limit_bytes) == (1, 107, 106)
        assert len(codec_.encode(batch.slice(0, 2), limit_bytes=107).values) == 2


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"\x06\x02", "field 'x' has the branch 3 of a union of 3"),
        (b"\x01\x02", "field 'x' has the branch -1 of a union of 3"),
        (b"\x04\x04", "field 'x' is 2, which is not the number of a symbol"),
        (b"\x02", "field 'x' is truncated"),
    ],
)
def test_malformed_values_of_a_union_are_reported(body, expected):
    codec_ = avro(["null", "string", {"type": "enum", "name": "e", "symbols": ["A", "B"]}])
    assert codec_.columnar is None
    decoded = codec_.decode([PREFIX + b"\x04\x02", PREFIX + body, PREFIX + b"\x00"])
    assert [corrupt.index for corrupt in decoded.corrupt] == [1]
    assert expected in decoded.corrupt[0].reason
    assert [row for batch in decoded.batches for row in to_records(batch)] == [
        {"x": "B"},
        {"x": None},
    ]


def test_no_records_give_no_messages():
    codec_ = avro("int")
    empty = pa.RecordBatch.from_pylist([], codec_.decoded_schema.arrow)
    assert codec_.encode(empty, limit_bytes=10).values.to_pylist() == []
    decoded = codec_.decode([])
    assert (decoded.batches, decoded.counts, decoded.corrupt) == ([], None, [])


def test_user_fields_may_have_the_names_of_the_prefix():
    fields = [{"name": f"prefix_{number}", "type": "int"} for number in range(3)]
    schema = Schema.parse({"type": "record", "name": "r0", "fields": fields})
    row = {f"prefix_{number}": number for number in range(3)}
    codec_ = ColumnCodec(schema, 7)
    (batch,) = to_batches(row, schema)
    (made,) = codec_.decode(codec_.encode(batch, limit_bytes=99).values.to_pylist()).batches
    assert to_records(made) == [row]


def test_instants_outside_of_pythons_years_round_trip():
    timestamp = {"type": "long", "logicalType": "timestamp-micros"}
    for codec_ in both(timestamp):
        (batch,) = codec_.decode([PREFIX + number(2**62)]).batches
        assert batch.column(0).cast(pa.int64()).to_pylist() == [2**62]
        (batch,) = codec_.decode([PREFIX + number(0)]).batches
        assert to_records(batch) == [{"x": datetime(1970, 1, 1, tzinfo=UTC)}]


def test_an_unknown_format_is_rejected():
    with pytest.raises(OptionError, match="'avro', 'arrow', 'json', 'protobuf' or 'bytes'"):
        codec("xml", schema_of("int"), 7)
