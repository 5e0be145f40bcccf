"""Records as JSON, and back by the schema."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given

from generated import same, schema_of, with_rows
from sluiceway.errors import InvalidRecord
from sluiceway.records import to_batches, to_records
from sluiceway.records.json_values import json_value, records_from_json

INSTANT = {"type": "long", "logicalType": "timestamp-micros"}
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
    records = [each for batch in to_batches(rows, schema) for each in to_records(batch)]
    text = json.dumps(json_value(records), allow_nan=False)

    again = records_from_json(json.loads(text), schema)

    read = [each for batch in to_batches(again, schema) for each in to_records(batch)]
    assert same(read, records)


UNION = schema_of(["null", "long", "string", INSTANT | {"logicalType": "date", "type": "int"}])


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
