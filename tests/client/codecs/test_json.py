"""The format `json`: its columnar and its strict reader agree on any bytes, and each on its rules.

The forms of values are tested by the table in `docs/types.md` (`test_types_document.py`).
"""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generated import same, schema, schema_of, with_rows
from sluiceway.api.models import Connection
from sluiceway.codecs import Decoder
from sluiceway.codecs.json_codec import JsonCodec
from sluiceway.errors import InvalidRecord, RecordTooLarge, UnsupportedType
from sluiceway.kafka.accumulator import certain_row_bytes
from sluiceway.records import to_batches, to_records
from sluiceway.records.row_buffer import RowBuffer

NO_LIMIT = 2**31


class Columns(JsonCodec):
    """The codec that decodes also a few messages in columns."""

    few_messages = 0


class OneByOne(JsonCodec):
    """The strict reader alone, on the standard library."""

    few_messages = 2**31


def encoded(schema_, rows):
    codec_ = JsonCodec(schema_)
    batches = to_batches(rows, schema_)
    return [v for b in batches for v in codec_.encode(b, limit_bytes=NO_LIMIT).values.to_pylist()]


def rows_of(decoded):
    return [row for batch in decoded.batches for row in to_records(batch)]


def decoded_alike(schema_, values):
    """Decode with both readers, which must agree; return the records and the corrupt indices."""
    columns, strict = (made(schema_).decode(values) for made in (Columns, OneByOne))
    assert columns.corrupt == strict.corrupt
    assert columns.counts == strict.counts
    assert same(rows_of(columns), rows_of(strict))
    for batch in (*columns.batches, *strict.batches):
        batch.validate(full=True)
        assert batch.schema.equals(schema_.arrow, check_metadata=True)
    return rows_of(columns), [corrupt.index for corrupt in columns.corrupt]


@given(with_rows())
def test_both_readers_read_what_is_written(given_):
    schema_, rows = given_
    messages = encoded(schema_, rows)
    names = [field.name for field in schema_.record.fields]
    assert all([*json.loads(message)] == names for message in messages)
    read, corrupt = decoded_alike(schema_, messages)
    assert corrupt == []
    assert same(read, rows)


TEXTS = [
    *("null", "true", "0", "-0", "1.0", "1.5", "1e2", "123456789012345678", "9223372036854775808"),
    *("2147483648", "1e400", "3.5e38", "0e999", "5e-325", "16777217", "1.230", "999.99", "12345"),
    *(
        "NaN",
        "-Infinity",
        "-Infinitye-3",
        "Infi",
        '"NaN"',
        '"-Infinity"',
        '"1.5"',
        '"+.5"',
        '"5."',
        '"1e1"',
        '" 1"',
        '""',
    ),
    *("0x10", "01", "+1", ".5", "1_0", "1e", "True", "'a'", '"A"', '"AAAA"', '"AAA="', '"AAA"'),
    *('"\\u0041"', '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"é"', '"a\nb"', "[]", "[1]"),
    *("[1,null]", "[[]]", "{}", '{"p":1}', '{"p":1,"p":2}', '{"p":1,"z":[{}]}', '{"p":null}'),
    *('"2020-01-01"', '"0000-01-01"', '"9999-12-31"', '"2020-02-30"', '"10000-01-01"'),
    *('"00:00:00"', '"24:00:00"', '"23:59:60"', '"12:00"', '"12:00:00.1230000000"', '"12:00:00Z"'),
    *('"2020-01-01T00:00:00Z"', '"2020-01-01 00:00:00.5+09:00"', '"2020-01-01T00:00:00"'),
    *('"2020-01-01T00:00:00.123456789Z"', '"2020-01-01T00:00:00+24:00"', '"2020-01-01T00:00Z"'),
    *('"0001-01-01T00:00:00+01:00"', '"9999-12-31T23:59:59-01:00"', '"1600-01-01T00:00:00Z"'),
    '"0000-12-31T23:59:59-01:00"',
    *('"2262-04-11T23:47:16.854775808Z"', '"12345678-90ab-cdef-1234-567890abcdef"'),
]
"""JSON of each kind, and what is none."""


@st.composite
def with_messages(draw):
    """Draw a schema, messages of it, and texts that resemble such messages."""
    schema_, rows = draw(with_rows(least=1))
    messages = st.sampled_from(encoded(schema_, rows))
    names = st.sampled_from(["unknown", *schema_.arrow.names])
    members = st.tuples(names, st.sampled_from(TEXTS)).map(lambda pair: f'"{pair[0]}":{pair[1]}')
    objects = st.lists(members, max_size=4).map(lambda texts: f"{{{','.join(texts)}}}".encode())
    parts = st.sampled_from(["{", "}", "[", "]", ",", '"', "\\", "\0", "\n", "//", *TEXTS])
    spliced = st.tuples(messages, parts, st.integers(0, 60), st.integers(0, 4)).map(
        lambda drawn: drawn[0][: drawn[2]] + drawn[1].encode() + drawn[0][sum(drawn[2:]) :]
    )
    values = st.one_of(messages, messages, objects, spliced, st.binary(max_size=4), st.none())
    return schema_, draw(st.lists(values, max_size=30))


@given(with_messages())
def test_both_readers_agree_on_any_bytes(given_):
    decoded_alike(*given_)


def test_both_readers_refuse_the_year_0() -> None:
    moment = schema({"name": "x", "type": {"type": "long", "logicalType": "timestamp-micros"}})
    # In UTC it is in the year 1.
    assert decoded_alike(moment, [b'{"x":"0000-12-31T23:59:59-01:00"}'] * 2) == ([], [0, 1])


MEASURE = schema(
    {"name": "a", "type": "long"},
    {"name": "b", "type": ["null", {"type": "array", "items": "double"}]},
    {"name": "c", "type": ["null", "string"]},
)
GOOD = b'{"a":1,"b":[0.5],"c":"x"}'
READ = {"a": 1, "b": [0.5], "c": "x"}


@pytest.mark.parametrize(
    "odd",
    [
        (None,),
        (b"",),
        (b"null",),
        (b"5",),
        (b"[]",),
        (b'{"a":1,}',),
        (b'{"a":1} 2',),
        (b'{"a":1}{"a":2}',),
        (b'{"a":1}\n{"a":2}',),
        (b'{"a":1},{"a":2}',),
        (b'{"a":1},{"a":2}', b""),
        (b'{"a":1}', b""),
        (b'{"a":1', b',"c":"x"}'),
        (b'{"a":1,"c":"', b'"}'),
        (b'{"a":1,"b":[', b"]}"),
        (b'{"a":1},"q":{"a":5}',),
        (b'{"a":1}],"q":[{"a":5}',),
        (b'{"a":1}]]]]]],"q":[[[[[[{"a":5}',),
        (b'{"a":1}] ]\n]\t]\r] ],"q":[[[[[[{"a":5}',),
        (b'{"a":1},{"q":[[[[[[',),
        (b'{"a":NaN}',),
        (b'{"a":1,"b":[NaN]}',),
        (b'{"a":1,"unknown":-Infinitye-3}',),
        (b'{"a":1,"b":[1e400]}',),
        (b'{"a":null}',),
        (b"{}",),
        (b'{"a":1,"b":[null]}',),
        (b'{"a":1,"a":1}',),
        (b'{"a":1,"\\u0061":1}',),
        (b'{"a":"1"}',),
        (b'{"a":0x10}',),
        (b'{"a":9223372036854775808}',),
        (b'{"a":1,"c":"\xff"}',),
        (b'{"a":1,"c":"\\ud800"}',),
        (b'{"a":1,"c":"\n"}',),
        (b'\xef\xbb\xbf{"a":1}',),
        ('{"a":1}'.encode("utf-16"),),
        (b"\0\0\0\0\x07",),
        (b"\0\0\0\0\x07\0\0\0\0\x07" + GOOD,),
        (b'{"a":1,"z":' + b"[" * 100_000 + b"]" * 100_000,),
    ],
    ids=lambda odd: str(odd)[:50],
)
def test_malformed_messages_are_found_by_index_among_good_ones(odd):
    values = [GOOD, *odd, *[GOOD] * 40, *odd, GOOD]
    read, corrupt = decoded_alike(MEASURE, values)
    good = [index for index, value in enumerate(values) if value == GOOD]
    rest = [index for index in range(len(values)) if index not in good]
    # The first part of some is a record by itself.
    assert set(corrupt) <= set(rest)
    assert corrupt
    assert read.count(READ) == len(good)
    assert len(read) + len(corrupt) == len(values)


@pytest.mark.parametrize(
    ("precision", "scale", "text", "value"),
    [
        (38, 18, "9223372036854775167772178", None),
        (
            38,
            18,
            "-99999999999999999999.999999999999999999",
            "-99999999999999999999.999999999999999999",
        ),
        (20, 19, "12345", None),
        (38, 0, "5.4554418815937744612e-40", None),
        (38, 0, "1e37", "1e37"),
        (38, 38, "1E-38", "1E-38"),
        (50, 10, "2147485e-3253648", None),
        (50, 10, '"2147485\\u0065-3253648"', None),
        (50, 10, "0." + "0" * 60 + "1", None),
        (50, 10, "0." + "0" * 60, "0"),
        (76, 76, "0.5", "0.5"),
        (5, 2, "0e-99999999", "0"),
        (5, 2, "1e999999999999999999999", None),
    ],
)
def test_decimals_of_any_scale_are_exact_or_malformed(precision, scale, text, value):
    type_ = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    values = [b'{"x":0.1}' if scale else b'{"x":1}', f'{{"x": {text}}}'.encode()] * 40
    rows, corrupt = decoded_alike(schema_of(type_), values)
    if value is None:
        assert corrupt == [*range(1, 80, 2)]
    else:
        assert corrupt == []
        assert {row["x"] for row in rows[1::2]} == {Decimal(value)}


def test_decimals_are_written_without_exponents():
    type_ = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 18}
    values = [Decimal(0), Decimal("1E-18"), Decimal("-1E-7"), Decimal(10**19)]
    assert encoded(schema_of(type_), [{"x": value} for value in values]) == [
        b'{"x":0.000000000000000000}',
        b'{"x":0.000000000000000001}',
        b'{"x":-0.000000100000000000}',
        b'{"x":10000000000000000000.000000000000000000}',
    ]


def test_reasons_name_the_field_and_what_was_expected():
    values = [b'{"a":1.5}', b'{"a":1,"b":["x"]}', b"{}", b'{"a":1,"a":2}', b"{", b"[1]", None]
    reasons = [corrupt.reason for corrupt in JsonCodec(MEASURE).decode(values).corrupt]
    assert reasons[:4] == [
        "field 'a' is the number 1.5, not a whole number of 64 bits",
        "field 'b[]' is a text, not a number in the range of a double, nor one of NaN, Infinity, "
        "-Infinity",
        "field 'a' is missing, and has no default",
        "field 'a' is there twice",
    ]
    assert reasons[4].startswith("it is not JSON: ")
    assert reasons[5:] == [
        "it is an array, not a JSON object",
        "it is a tombstone, which is not a record; deletes=True returns it as a delete",
    ]


@pytest.mark.parametrize("times", [1, 30])
def test_unknown_fields_and_the_prefix_are_skipped(times):
    deep = b'{"z":{"a":[[[[[[]]]]]],"b":NaN,"b":"\\u00e9"}, "a":2,"y":[{"a":3},"]]]]]]"]}\n'
    values = [GOOD, b"\0\0\0\xff\x07" + GOOD, deep, '{"a":3,"é":"é"}'.encode()] * times
    read, corrupt = decoded_alike(MEASURE, values)
    assert corrupt == []
    assert [row["a"] for row in read] == [1, 1, 2, 3] * times


EVOLVED = schema(
    {"name": "a", "type": "long", "default": 7},
    {"name": "b", "type": ["string", "null"], "default": "none", "aliases": ["older", "old"]},
    {"name": "c", "type": ["null", "long"]},
    {
        "name": "d",
        "type": {
            "type": "record",
            "name": "inner",
            "fields": [{"name": "e", "type": {"type": "array", "items": "int"}, "default": [1]}],
        },
        "default": {},
    },
)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("{}", (7, "none", None, [1])),
        ('{"a":1,"b":"x","c":2,"d":{"e":[]}}', (1, "x", 2, [])),
        ('{"b":null,"d":{}}', (7, None, None, [1])),
        ('{"old":"o"}', (7, "o", None, [1])),
        ('{"old":"o","older":"r"}', (7, "r", None, [1])),
        ('{"old":"o","older":null}', (7, None, None, [1])),
        ('{"old":"o","b":null}', (7, None, None, [1])),
        ('{"\\u0062":null}', (7, None, None, [1])),
        ('{"c":3,"unknown":"b"}', (7, "none", 3, [1])),
        ('{"a":null}', None),
        ('{"d":null}', None),
        ('{"d":{"e":null}}', None),
        ('{"old":1}', None),
        ('{"b":"x","old":1}', (7, "x", None, [1])),
    ],
)
def test_missing_fields_have_defaults_and_null_is_null(text, read):
    values = [b"{}", text.encode(), b"{}"] * 20
    rows, corrupt = decoded_alike(EVOLVED, values)
    default = {"a": 7, "b": "none", "c": None, "d": {"e": [1]}}
    assert rows[0] == default
    if read is None:
        assert corrupt == [*range(1, 60, 3)]
    else:
        a, b, c, e = read
        assert rows[1::3] == [{"a": a, "b": b, "c": c, "d": {"e": e}}] * 20
        assert corrupt == []


def test_unknown_symbols_are_read_as_the_default_of_the_enum():
    symbols = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
    values = [b'{"x":"A"}', b'{"x":"C"}'] * 20
    assert decoded_alike(schema_of(symbols), values)[1] == [*range(1, 40, 2)]
    rows, corrupt = decoded_alike(schema_of(symbols | {"default": "B"}), values)
    assert (rows, corrupt) == ([{"x": "A"}, {"x": "B"}] * 20, [])


def test_only_the_selected_columns_are_read():
    codec_ = JsonCodec(MEASURE, ["c"])
    for values in ([b'{"a":"text","c":"x"}'], [b'{"a":"text","c":"x"}', GOOD] * 20):
        decoded = codec_.decode(values)
        assert rows_of(decoded) == [{"c": "x"}] * len(values)
        assert decoded.corrupt == []


def test_values_beyond_the_years_of_rfc_3339_are_refused_with_their_record():
    days = schema_of({"type": "array", "items": {"type": "int", "logicalType": "date"}})
    ends = [[date.min], [], [date.max]]
    (batch,) = to_batches([{"x": x} for x in ends], days)
    assert rows_of(JsonCodec(days).decode(encoded(days, [{"x": x} for x in ends]))) == [
        {"x": x} for x in ends
    ]
    beyond = pa.record_batch(
        [pa.array([[1], [2, 10_000_000]], batch.schema.field(0).type)], schema=batch.schema
    )
    with pytest.raises(InvalidRecord, match="years 1 to 9999") as caught:
        JsonCodec(days).encode(beyond, limit_bytes=NO_LIMIT)
    assert (caught.value.index, caught.value.field) == (1, "x[]")


def test_texts_are_escaped_and_stay_utf_8():
    texts = ["plain", 'a"b', "back\\slash", "\x00\x1f\x7f\u2028é😀", None, "\n"]
    nullable = schema_of(["null", "string"])
    messages = encoded(nullable, [{"x": text} for text in texts])
    assert [json.loads(message)["x"] for message in messages] == texts
    assert "é😀".encode() in messages[3]


def test_slices_and_nulls_in_nested_columns():
    leaf = {"type": "map", "values": {"type": "array", "items": ["null", "string"]}}
    nested = schema_of(["null", leaf])
    rows = [{"x": None}, {"x": {}}, {"x": {"k": [], "l": [None, '"']}}, {"x": None}] * 3
    (batch,) = to_batches(rows, nested)
    part = JsonCodec(nested).encode(batch.slice(2, 7), limit_bytes=NO_LIMIT).values.to_pylist()
    assert [json.loads(message) for message in part] == rows[2:9]


def test_a_message_over_the_limit_is_reported_with_its_record():
    (batch,) = to_batches([{"x": ""}, {"x": "12345"}], schema_of("string"))
    with pytest.raises(RecordTooLarge) as caught:
        JsonCodec(schema_of("string")).encode(batch, limit_bytes=12)
    assert (caught.value.index, caught.value.size_bytes) == (1, 13)


def test_unions_of_several_types_are_refused_by_name():
    with pytest.raises(UnsupportedType, match=r"'x\[\]'.*union.*avro"):
        JsonCodec(schema_of({"type": "array", "items": ["int", "string"]}))


def test_wide_items_do_not_take_more_memory_than_their_message_allows():
    fields = [{"name": f"f{number}", "type": ["null", "long"]} for number in range(300)]
    wide = schema_of({"type": "array", "items": {"type": "record", "name": "w", "fields": fields}})
    few, many = (b'{"x":[' + b",".join([b"{}"] * count) + b"]}" for count in (10, 10_000))
    decoded = JsonCodec(wide).decode([few, many] * 20)
    assert [corrupt.index for corrupt in decoded.corrupt] == [*range(1, 40, 2)]
    assert "more than 1024 times its size" in decoded.corrupt[0].reason


OLD = schema({"name": "at", "type": "long"}, {"name": "place", "type": "string"})
NEW = schema({"name": "at", "type": "long"}, {"name": "town", "type": "string"})


def test_records_of_other_schemas_of_the_channel_are_never_skippable():
    looked_up = []

    def look_up(ids):
        looked_up.append(ids)
        return {8: NEW}

    now_s = [0.0]
    decoder = Decoder("json", OLD, {7: OLD}, look_up=look_up, clock=lambda: now_s[0])
    old = b'{"at":1,"place":"p"}'
    assert rows_of(decoder.decode([old])) == [{"at": 1, "place": "p"}]
    assert looked_up == []
    decoded = decoder.decode([old, b'{"at":2,"town":"t"}', b'{"at":3}', None])
    assert rows_of(decoded) == [{"at": 1, "place": "p"}]
    assert [(corrupt.index, corrupt.skippable) for corrupt in decoded.corrupt] == [
        (1, False),
        (2, True),
        (3, True),
    ]
    assert "the channel's schema 8" in decoded.corrupt[0].reason
    assert len(looked_up) == 1
    # Texts that no schema can read need no request, and other messages one a second.
    junk = [b"x", None, b"{}"]
    for now_s[0], requests in ((0.9, 1), (1.0, 2), (1.9, 2)):
        assert all(corrupt.skippable for corrupt in decoder.decode(junk).corrupt)
        assert len(looked_up) == requests
    now_s[0] = 9
    decoder.decode(junk[:2])
    assert len(looked_up) == 2


def test_instants_are_read_in_utc():
    kind = {"type": "long", "logicalType": "timestamp-micros"}
    values = [b'{"x":"2026-01-01T00:30:00.5+01:00"}'] * 20
    rows, _ = decoded_alike(schema_of(kind), values)
    assert rows == [{"x": datetime(2025, 12, 31, 23, 30, 0, 500_000, tzinfo=UTC)}] * 20


LONG_TEXTS = st.text(st.characters(max_codepoint=0x7F), max_size=300)


@given(st.lists(LONG_TEXTS, max_size=4), st.binary(max_size=300), st.floats(), st.booleans())
def test_rows_that_are_certain_to_fit_are_within_the_limit_as_json(texts, raw, number, nested):
    record = schema(
        {"name": "t" * 60, "type": {"type": "array", "items": "string"}},
        {"name": "raw", "type": "bytes"},
        {"name": "n", "type": {"type": "map", "values": "double"}},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
    )
    connection = Connection(
        channel_name="c",
        channel_uid="0" * 32,
        generation=1,
        format="json",
        schema_id=7,
        schema_definition=record.definition,
        topic_name="t",
        topic_id="i",
        partitions=1,
        max_message_bytes=4000,
        kafka={},
    )
    buffer = RowBuffer(record, max_row_bytes=certain_row_bytes(connection, record))
    row = {
        "t" * 60: texts,
        "raw": raw,
        "n": {"\0" * 40: number} if nested else {},
        "u": UUID(int=0),
    }
    rows = buffer.check(row)
    if rows is None:
        return
    (batch,) = buffer.to_batches(rows.values)
    (message,) = JsonCodec(record).encode(batch, limit_bytes=NO_LIMIT).values.to_pylist()
    assert len(message) <= 4000 // 2
