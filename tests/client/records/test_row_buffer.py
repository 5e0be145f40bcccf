"""Single records, checked one at a time and converted together."""

import copy
import dataclasses
import itertools
import json
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults import AS_SIGNALS, interrupted_at_call
from generated import same, schema_of, with_rows, without_branches
from sluiceway.codecs import codec
from sluiceway.records import to_batches, to_records
from sluiceway.records.row_buffer import FULL, RowBuffer
from sluiceway.schema import Schema

ROOMY = 10**9
FIXED = {"type": "fixed", "name": "f", "size": 4}
ENUM = {"type": "enum", "name": "e", "symbols": ["RED", "green"]}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
UUID_TEXT = {"type": "string", "logicalType": "uuid"}
TIME = {"type": "long", "logicalType": "time-micros"}
TIME_MS = {"type": "int", "logicalType": "time-millis"}
MS = {"type": "long", "logicalType": "timestamp-millis"}
NS = {"type": "long", "logicalType": "timestamp-nanos"}
LOCAL_NS = {"type": "long", "logicalType": "local-timestamp-nanos"}


def buffer_of(schema: Schema, max_row_bytes: int = ROOMY) -> RowBuffer:
    return RowBuffer(schema, max_row_bytes=max_row_bytes)


@given(st.one_of(with_rows(least=1), with_rows(least=1, with_unions=True)), st.booleans())
def test_accepted_records_convert_as_in_one_write_and_keep_to_their_size(given_rows, by_value):
    schema, records = given_rows
    if by_value:  # of unions, not by the branch's name
        records = [without_branches(record) for record in records]
    buffer = buffer_of(schema)
    accepted = []
    for record in records:
        rows = buffer.check(record)
        if rows is not None:
            assert buffer.add(rows) == len(accepted) + 1
            accepted.append(record)
            (batch,) = to_batches(record, schema)
            (value,) = codec("avro", schema, 7).encode(batch, limit_bytes=2**31).values.to_pylist()
            assert len(value) <= rows.size_bytes + 64
    read_rows = [row for batch in buffer.drain() for row in to_records(batch)]
    expected = [row for batch in to_batches(accepted, schema) for row in to_records(batch)]
    assert same(read_rows, expected)
    assert buffer.drain() == []


@pytest.mark.parametrize("format_", ["avro", "arrow"])
@pytest.mark.parametrize(
    ("items", "value"),
    [(UUID_TEXT, UUID(int=1)), ({**ENUM, "symbols": ["A", "B" * 200]}, "B" * 200)],
)
def test_text_of_other_types_counts_in_the_size_of_a_row(format_, items, value):
    schema = schema_of({"type": "array", "items": items})
    rows = buffer_of(schema).check({"x": [value] * 1000})
    (batch,) = to_batches({"x": [value] * 1000}, schema)
    (message,) = codec(format_, schema, 7).encode(batch, limit_bytes=2**31).values.to_pylist()
    overhead_bytes = 64 if format_ == "avro" else 64 + 3 * 512
    assert rows.size_bytes + overhead_bytes >= len(message)


USUAL = {
    "id": 1,
    "name": "ä",
    "tags": ["a", "b"],
    "sizes": {"x": 1.5},
    "inner": {"flag": True, "at": datetime(2020, 1, 1, tzinfo=UTC)},
    "note": None,
}
SCHEMA = Schema.parse(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": "string"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "sizes", "type": {"type": "map", "values": "double"}},
            {
                "name": "inner",
                "type": {
                    "type": "record",
                    "name": "Inner",
                    "fields": [
                        {"name": "flag", "type": "boolean"},
                        {
                            "name": "at",
                            "type": {"type": "long", "logicalType": "timestamp-micros"},
                        },
                    ],
                },
            },
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)


@dataclasses.dataclass
class Inner:
    flag: bool
    at: datetime


@dataclasses.dataclass
class Usual:
    id: int
    name: str
    tags: list[str]
    sizes: dict[str, float]
    inner: dict[str, Any]


def drained(buffer: RowBuffer) -> list[dict[str, Any]]:
    return [row for batch in buffer.drain() for row in to_records(batch)]


@pytest.mark.parametrize(
    "records",
    [
        USUAL,
        [USUAL],
        (USUAL, USUAL),
        {name: value for name, value in USUAL.items() if name != "note"},
        Usual(**{name: value for name, value in USUAL.items() if name != "note"}),
    ],
    ids=["dict", "list", "tuple", "default", "dataclass"],
)
def test_usual_records_are_accepted(records: Any) -> None:
    buffer = buffer_of(SCHEMA)
    rows = buffer.check(records)
    assert rows is not None
    buffer.add(rows)
    assert drained(buffer) == [USUAL] * len(rows.values)


def test_later_changes_of_a_record_do_not_count() -> None:
    buffer, record = buffer_of(SCHEMA), copy.deepcopy(USUAL)
    rows = buffer.check(record)
    assert rows is not None
    buffer.add(rows)
    record["id"] = 2
    record["tags"].append("c")
    record["sizes"]["y"] = 0.0
    record["inner"]["flag"] = False
    assert drained(buffer) == [USUAL]


class Strange(tzinfo):
    def utcoffset(self, _moment: datetime | None) -> timedelta | None:
        return None


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("int", 2**31),
        ("int", -(2**31) - 1),
        ("long", 2**63),
        ("long", True),
        ("long", np.int64(1)),
        ("long", 1.0),
        ("long", None),
        ("float", 1e39),
        ("double", 1),
        ("string", "\ud800"),
        ("string", b"a"),
        ("bytes", bytearray(b"a")),
        ("boolean", 1),
        (FIXED, b"123"),
        (ENUM, "red"),
        (MONEY, Decimal("0.001")),
        (MONEY, Decimal(1000)),
        (MONEY, Decimal("1E+3")),
        (MONEY, Decimal("NaN")),
        (MONEY, Decimal("-Infinity")),
        (UUID_TEXT, "12345678-90ab-cdef-1234-567890abcdef"),
        (TIME, datetime(2020, 1, 1, 1, tzinfo=UTC).timetz()),
        (TIME_MS, datetime(2020, 1, 1, 1, 0, 0, 1, tzinfo=UTC).time()),
        (MS, datetime(2020, 1, 1)),  # noqa: DTZ001
        (MS, datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        (MS, datetime(2020, 1, 1, tzinfo=Strange())),
        (MS, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))),
        (NS, datetime(1600, 1, 1, tzinfo=UTC)),
        (LOCAL_NS, datetime(2300, 1, 1)),  # noqa: DTZ001
        ({"type": "array", "items": "int"}, [1, 2**31]),
        ({"type": "array", "items": "int"}, [1, None]),
        ({"type": "array", "items": "int"}, np.array([1])),
        ({"type": "map", "values": "int"}, {1: 1}),
        ({"type": "map", "values": "int"}, {"a": "b"}),
        ({"type": "map", "values": "int"}, {"\ud800": 1}),
    ],
)
def test_uncertain_values_are_left_to_the_conversion(type_: Any, value: Any) -> None:
    assert buffer_of(schema_of(type_)).check({"x": value}) is None
    nested = schema_of({"type": "array", "items": json.loads(json.dumps(type_))})
    assert buffer_of(nested).check({"x": [value]}) is None


@pytest.mark.parametrize(
    "records",
    [
        {},
        {"x": 1, "y": 2},
        {"y": 1},
        [{"x": 1}, {"x": "a"}],
        [{"x": 1}] * 17,
        iter([{"x": 1}]),
        "x",
        None,
        5,
    ],
    ids=["empty", "unknown", "other", "bad in list", "long list", "iterator", "str", "None", "int"],
)
def test_other_records_and_long_lists_are_left_to_the_conversion(records: Any) -> None:
    assert buffer_of(schema_of("long")).check(records) is None


def test_rows_over_the_size_are_left_to_the_conversion() -> None:
    buffer = buffer_of(schema_of("string"), max_row_bytes=100)
    assert buffer.check({"x": "a" * 50}) is not None
    assert buffer.check({"x": "ä" * 50}) is None
    nested = buffer_of(schema_of({"type": "array", "items": "int"}), max_row_bytes=100)
    assert nested.check({"x": [1] * 3}) is not None
    assert nested.check({"x": [1] * 10}) is None


def test_a_buffer_is_full_by_rows_or_by_bytes() -> None:
    by_rows = buffer_of(schema_of("long"))
    row = by_rows.check({"x": 1})
    assert row is not None
    assert [by_rows.add(row) for _ in range(FULL)][-1] == FULL
    by_bytes = buffer_of(schema_of("string"))
    large = by_bytes.check({"x": "a" * 600_000})
    assert large is not None
    assert [by_bytes.add(large) for _ in range(2)] == [1, FULL]


def test_a_closed_buffer_accepts_nothing_and_keeps_its_rows() -> None:
    buffer = buffer_of(schema_of("long"))
    row = buffer.check({"x": 1})
    assert row is not None
    buffer.add(row)
    buffer.close()
    assert buffer.add(row) == 0
    assert buffer.added == 1
    assert drained(buffer) == [{"x": 1}]


def test_a_signal_handler_may_take_the_rows_at_any_call_of_an_addition() -> None:
    buffer = buffer_of(schema_of("long"))
    row = buffer.check({"x": 1})
    assert row is not None
    taken: list[Any] = []

    def take() -> None:
        taken.extend(drained(buffer))

    added = itertools.count(1)
    while interrupted_at_call(next(added), lambda: buffer.add(row), AS_SIGNALS, action=take):
        pass
    take()
    assert len(taken) == next(added) - 1 > 2
