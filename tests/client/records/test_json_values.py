"""Records as JSON, and back by the schema."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given

from generated import same, schema_of, with_rows
from sluiceway.errors import InvalidRecord, ValueOutOfRange
from sluiceway.records import to_batches, to_records
from sluiceway.records.json_values import json_value, records_from_json
from sluiceway.schema import Schema

INSTANT = {"type": "long", "logicalType": "timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}


def test_every_type_has_a_json_form() -> None:
    record = {
        "when": datetime(2013, 1, 1, 5, 15, tzinfo=UTC),
        "day": date(2013, 1, 1),
        "at": time(5, 15, 0, 1),
        "price": [Decimal("12.50"), Decimal("-1E-10"), Decimal("1E+2")],
        "id": UUID(int=15),
        "raw": b"\x00\xff",
        "numbers": [1, 1.5, float("nan"), float("inf"), -float("inf"), None, True],
        "inner": {"map": {"key": b"x"}},
    }
    assert json.loads(json.dumps(json_value(record), allow_nan=False)) == {
        "when": "2013-01-01T05:15:00+00:00",
        "day": "2013-01-01",
        "raw": "AP8=",
        "at": "05:15:00.000001",
        "price": ["12.50", "-0.0000000001", "100"],
        "id": "00000000-0000-0000-0000-00000000000f",
        "numbers": [1, 1.5, "NaN", "Infinity", "-Infinity", None, True],
        "inner": {"map": {"key": "eA=="}},
    }


@given(with_rows())
def test_json_gives_the_same_records_back(case) -> None:
    schema, rows = case
    records = [record for batch in to_batches(rows, schema) for record in to_records(batch)]
    text = json.dumps(json_value(records), allow_nan=False)

    again = records_from_json(json.loads(text), schema)

    read = [record for batch in to_batches(again, schema) for record in to_records(batch)]
    assert same(read, records)


def test_dates_and_times_that_python_does_not_have_are_texts() -> None:
    fields = {"at": {"type": "long", "logicalType": "timestamp-nanos"}, "day": DATE, "local": LOCAL}
    listed = [{"name": name, "type": ["null", type_]} for name, type_ in fields.items()]
    schema = Schema.parse({"type": "record", "name": "R", "fields": listed})
    arrays = [
        pa.array([1_767_225_600_123_456_789, None], pa.int64()).cast(schema.arrow.field(0).type),
        pa.array([None, 3_000_000], pa.int32()).cast(pa.date32()),
        pa.array([-(2**62), 0], pa.int64()).cast(schema.arrow.field(2).type),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)

    with pytest.raises(ValueOutOfRange):
        to_records(batch)
    first, second = json_value(to_records(batch, out_of_range_as_text=True))
    assert first["at"] == "2026-01-01T00:00:00.123456789+00:00"
    assert (first["day"], second["day"]) == (None, "10183-09-21")
    assert second["local"] == "1970-01-01T00:00:00.000000"


UNION = schema_of(["null", "long", "string", DATE])


@pytest.mark.parametrize(
    ("given_json", "read"),
    [
        (None, None),
        (7, 7),
        ("2026-01-31", "2026-01-31"),
        ({"int": "2026-01-31"}, date(2026, 1, 31)),
    ],
)
def test_a_union_takes_a_value_alone_or_with_its_branch(given_json, read) -> None:
    (batch,) = to_batches(records_from_json([{"x": given_json}], UNION), UNION)
    assert to_records(batch) == [{"x": read}]


@pytest.mark.parametrize(
    ("type_", "value", "advice"),
    [
        ("bytes", "a", "must be base64"),
        (INSTANT, "yesterday", "a time with its zone"),
        (INSTANT, "2026-01-31T00:00:00.1234567Z", "a time with its zone"),
        (INSTANT, "2026-01-31T00:00:00", "no time zone"),
        (CENTS, 1.25, "may be rounded"),
        (CENTS, "1,25", "a decimal as text"),
        ("long", "7", "must be"),
    ],
)
def test_a_text_of_another_type_is_refused_with_the_field(type_, value, advice) -> None:
    records = [{"x": None}, {"x": value}]
    nullable = schema_of(["null", type_])
    with pytest.raises(InvalidRecord, match=advice) as caught:
        to_batches(records_from_json(records, nullable), nullable)
    assert (caught.value.index, caught.value.field) == (1, "x")
