"""Round trips of any schema and record through the formats."""

import io
import struct
from datetime import datetime, timedelta
from decimal import Context, Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from generated import (
    FAST,
    ColumnCodec,
    RowCodec,
    same,
    schema_of,
    schemas,
    values,
    with_rows,
    without_branches,
)
from sluiceway.codecs import codec
from sluiceway.records import to_batches, to_records
from sluiceway.schema import types as t

IDS = st.integers(0, 2**32 - 1)
NO_LIMIT = 2**31


def oracle(schema, schema_id, rows):
    """Return the bytes that fastavro writes."""
    parsed = fastavro.parse_schema(schema.definition)
    written = []
    for row in rows:
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, parsed, for_fastavro(row, schema.record))
        written.append(struct.pack(">BI", 0, schema_id) + sink.getvalue())
    return written


def for_fastavro(value, type_):
    """Return the stored form of logical types that fastavro does not support, or writes longer."""
    match type_:
        case t.Nullable(item=item):
            if value is None:
                return None
            stored = for_fastavro(value, item)
            # With the name, because fastavro does not find the branch of a value with other unions.
            return stored if isinstance(item, t.Union) else (t.branch_name(item), stored)
        case t.Union(branches=branches):
            name, inner = value
            (branch,) = (candidate for candidate in branches if t.branch_name(candidate) == name)
            return name, for_fastavro(inner, branch)
        case t.Array(items=items):
            return [for_fastavro(item, items) for item in value]
        case t.Map(values=items):
            return {key: for_fastavro(item, items) for key, item in value.items()}
        case t.Record(fields=fields):
            return {field.name: for_fastavro(value[field.name], field.type) for field in fields}
        case t.Uuid(fixed=t.Fixed()):
            return value.bytes
        case t.Decimal(scale=scale, fixed=None):
            # fastavro writes a byte more than needed for -128, -32768 and the like.
            unscaled = int(value.scaleb(scale, Context(prec=100)))
            size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
            return unscaled.to_bytes(size, "big", signed=True)
        case t.Scalar(kind=t.Kind.TIMESTAMP_NANOS | t.Kind.LOCAL_TIMESTAMP_NANOS):
            epoch = datetime(1970, 1, 1, tzinfo=value.tzinfo)
            return (value - epoch) // timedelta(microseconds=1) * 1000
    return value


WITH_UNIONS = with_rows(with_unions=True)
DECIMALS = schema_of({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 1})
NULLABLE_MAP = {"type": "map", "values": [{"type": "fixed", "name": "f", "size": 1}, "string"]}
NULLABLE_RECORD = {
    "type": "record",
    "name": "inner",
    "fields": [{"name": "map", "type": ["null", NULLABLE_MAP]}],
}
UNIONS_IN_NULLABLE = (
    schema_of(["null", NULLABLE_RECORD]),
    [{"x": {"map": {"a": ("f", b"1"), "b": ("string", "2")}}}, {"x": {"map": None}}, {"x": None}],
)
LEAST_DECIMALS = DECIMALS, [{"x": Decimal(x)} for x in ("-12.8", "12.7", "-3276.8", "0.0", "-0.1")]


def encoded(codec_, batches):
    return [v for b in batches for v in codec_.encode(b, limit_bytes=NO_LIMIT).values.to_pylist()]


def decoded_rows(codec_, messages):
    decoded = codec_.decode(messages)
    assert decoded.corrupt == []
    return [row for batch in decoded.batches for row in to_records(batch)]


@given(WITH_UNIONS, IDS)
@example(LEAST_DECIMALS, 7)
@example(UNIONS_IN_NULLABLE, 7)
def test_unions_round_trip_through_avro_as_by_fastavro(given_, schema_id):
    schema, rows = given_
    codec_ = codec("avro", schema, schema_id)
    batches = to_batches(rows, schema)
    for batch in batches:
        batch.validate(full=True)
    read = [without_branches(row) for row in rows]
    assert same([row for batch in batches for row in to_records(batch)], read)
    messages = encoded(codec_, batches)
    assert messages == oracle(schema, schema_id, rows)
    decoded = codec_.decode(messages)
    for batch in decoded.batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema.arrow, check_metadata=True)
    assert same(decoded_rows(codec_, messages), read)


@pytest.mark.long
@given(with_rows())
def test_records_round_trip_through_batches(given_):
    schema, rows = given_
    batches = to_batches(rows, schema)
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(schema.arrow)
    assert same([row for batch in batches for row in to_records(batch)], rows)
    again = [b for batch in batches for b in to_batches(batch, schema)]
    assert same([row for batch in again for row in to_records(batch)], rows)


@pytest.mark.sample
@pytest.mark.parametrize("format_", ["avro", "arrow", "json"])
@given(given_=with_rows(), schema_id=IDS)
def test_records_round_trip_through_codecs(format_, given_, schema_id):
    schema, rows = given_
    codec_ = codec(format_, schema, schema_id)
    messages = encoded(codec_, to_batches(rows, schema))
    decoded = codec_.decode(messages)
    assert all(batch.schema.equals(schema.arrow) for batch in decoded.batches)
    for batch in decoded.batches:
        batch.validate(full=True)
    assert same(decoded_rows(codec_, messages), rows)


@pytest.mark.long
@given(with_rows(), IDS)
def test_avro_is_encoded_as_by_fastavro(given_, schema_id):
    schema, rows = given_
    messages = encoded(ColumnCodec(schema, schema_id), to_batches(rows, schema))
    assert messages == oracle(schema, schema_id, rows)


@given(with_rows(FAST, least=1), IDS)
def test_pyruhvro_and_fastavro_encode_the_same_bytes(given_, schema_id):
    schema, rows = given_
    fast, slow = ColumnCodec(schema, schema_id), RowCodec(schema, schema_id)
    assert fast.columnar is not None
    (batch,) = to_batches(rows, schema)
    assert encoded(fast, [batch]) == encoded(slow, [batch])


@given(st.one_of(with_rows(least=2), with_rows(least=2, with_unions=True)), IDS, st.data())
def test_slices_round_trip_like_whole_batches(given_, schema_id, data):
    schema, rows = given_
    read = [without_branches(row) for row in rows]
    (batch,) = to_batches(rows, schema)
    begin = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(begin, len(rows)))
    formats = ("avro",) if t.find_union(schema.record) else ("avro", "arrow", "json")
    for format_ in formats:
        codec_ = codec(format_, schema, schema_id)
        messages = encoded(codec_, [batch.slice(begin, end - begin)])
        assert same(decoded_rows(codec_, messages), read[begin:end])


@pytest.mark.long
@given(schemas(), st.data())
def test_a_table_gives_the_same_batches_as_its_records(schema, data):
    rows = data.draw(st.lists(values(schema.record), min_size=1, max_size=4))
    (batch,) = to_batches(rows, schema)
    shuffled = data.draw(st.permutations(schema.arrow.names))
    table = pa.Table.from_batches([batch, batch.slice(1)]).select(shuffled)
    made = to_batches(table, schema)
    assert same([row for b in made for row in to_records(b)], rows + rows[1:])
