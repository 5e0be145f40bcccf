"""The branch of a union that a Python value takes."""

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from generated import same, schema_of
from sluiceway.errors import InvalidRecord, SchemaMismatch
from sluiceway.records import to_batches, to_records
from sluiceway.records.row_buffer import RowBuffer
from sluiceway.schema import Schema

DATE = {"type": "int", "logicalType": "date"}
INSTANT = {"type": "long", "logicalType": "timestamp-micros"}
UUID_TEXT = {"type": "string", "logicalType": "uuid"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
LONGS = {"type": "array", "items": "long"}
TEXTS = {"type": "map", "values": "string"}


def record(name: str, **fields: object) -> dict[str, Any]:
    members = [{"name": field, "type": type_} for field, type_ in fields.items()]
    return {"type": "record", "name": name, "fields": members}


POINT = record("geo.Point", x="double")
CIRCLE = record("geo.Circle", x="double", r="double")
MADE, LOST = record("Made", id="long"), record("Lost", id="long")


@dataclass
class Lost:
    id: int


class Colour(enum.Enum):
    RED = "RED"


def branch_of(value: object, *branches: object) -> Any:
    """Return the name of the branch of `value`, and the value read back."""
    (batch,) = to_batches([{"x": None}, {"x": value}, {"x": value}], schema_of([*branches, "null"]))
    batch.validate(full=True)
    empty, first, second = (row["x"] for row in to_records(batch, with_branches=True))
    assert empty is None
    assert first == second
    return first


@pytest.mark.parametrize(
    ("value", "branches", "name"),
    [
        (1, ["string", "int"], "int"),
        (1, ["double", "long"], "long"),
        (2**40, ["int", "long"], "long"),
        (5, ["int", "long"], "int"),
        (5, ["long", "int"], "long"),
        (True, ["int", "boolean"], "boolean"),
        (0.1, ["float", "double"], "double"),
        (0.5, ["long", "float"], "float"),
        ("a", ["bytes", "string"], "string"),
        ("RED", [COLOUR, "string"], "Colour"),
        ("GREEN", [COLOUR, "string"], "string"),
        (date(2024, 1, 1), [DATE, INSTANT], "int"),
        (datetime(2024, 1, 1, tzinfo=UTC), [DATE, INSTANT], "long"),
        (UUID(int=5), [UUID_TEXT, "bytes"], "string"),
        (Decimal("1.25"), [CENTS, "double"], "bytes"),
        ([1, 2], ["long", LONGS], "array"),
        ({"k": "v"}, ["string", TEXTS], "map"),
        ({"x": 1.0}, [CIRCLE, POINT], "geo.Point"),
        ({"x": 1.0, "r": 2.0}, [POINT, CIRCLE], "geo.Circle"),
        ({"x": 1.0, "y": 2.0}, [POINT, {"type": "map", "values": "double"}], "map"),
    ],
)
def test_a_value_takes_the_branch_of_its_type(value, branches, name):
    assert same(list(branch_of(value, *branches)), [name, value])


@pytest.mark.parametrize(
    ("value", "branches", "comes_back"),
    [
        (1, ["string", "float", "double"], ("double", 1.0)),
        (np.int32(7), ["string", "double", "long"], ("long", 7)),
        (1, ["string", CENTS], ("bytes", Decimal("1.00"))),
        (Colour.RED, ["string", COLOUR], ("Colour", "RED")),
        (str(UUID(int=5)), [UUID_TEXT, "long"], ("string", UUID(int=5))),
        (Lost(id=5), [MADE, LOST], ("Lost", {"id": 5})),
        (("Lost", {"id": 5}), [MADE, LOST], ("Lost", {"id": 5})),
        (("Lost", Lost(id=5)), [MADE, LOST], ("Lost", {"id": 5})),
        (("double", 1), ["long", "double"], ("double", 1.0)),
        (("string", "RED"), [COLOUR, "string"], ("string", "RED")),
        (("array", (1, 2)), [LONGS, "string"], ("array", [1, 2])),
        ((1, 2), [LONGS, "string"], ("array", [1, 2])),
    ],
)
def test_values_of_related_types_and_named_branches_are_accepted(value, branches, comes_back):
    assert branch_of(value, *branches) == comes_back


@pytest.mark.parametrize(
    ("value", "branches", "field", "expected"),
    [
        (1.5, ["int", "string"], "x", "one of the union's branches int, string; it is float 1.5"),
        (True, ["int", "string"], "x", "one of the union's branches int, string; it is bool True"),
        (2**40, ["int", "string"], "x", "a 32-bit integer; .* the union has the branches int, str"),
        (2**70, ["int", "long"], "x", "one of the union's branches int, long; it is int"),
        (
            {"id": 5},
            [MADE, LOST],
            "x",
            "fits several branches of the union, Made, Lost: give a tup",
        ),
        ({"x": "a"}, ["string", POINT], "x.x", "it must be a number"),
        (
            {"x": "a"},
            [POINT, CIRCLE],
            "x",
            r"no branch of the union fits: geo.Point \(x.x: .*\), geo.Circle \(x.r: it is missing",
        ),
        (
            ("Gone", {"id": 5}),
            [MADE, LOST],
            "x",
            "one of the union's branches Made, Lost; .* tuple",
        ),
        (("Lost", None), [MADE, LOST], "x", "it is null, but the field is not nullable; the union"),
        ([1, None], ["string", LONGS], "x[]", "null"),
    ],
)
def test_a_value_without_a_branch_is_refused_with_the_field_and_the_branches(
    value, branches, field, expected
):
    schema = schema_of(branches)
    good = {"x": ("string", "a") if "string" in branches else value}
    with pytest.raises(InvalidRecord, match=expected) as caught:
        to_batches([good, {"x": value}], schema)
    assert caught.value.field.replace("[1]", "[]") == field
    assert caught.value.index == (1 if "string" in branches else 0)
    assert RowBuffer(schema, max_row_bytes=1000).check({"x": value}) is None


def test_reasons_without_values_name_the_branches_only():
    with pytest.raises(InvalidRecord) as caught:
        to_batches([{"x": {"x": "secret"}}], schema_of([POINT, CIRCLE]))
    assert "secret" in str(caught.value)
    assert "secret" not in caught.value.public_reason
    assert "geo.Point" in caught.value.public_reason


def test_single_records_are_buffered_if_the_type_of_a_value_decides():
    schema = schema_of(["null", "int", "string", POINT, LONGS])
    buffer = RowBuffer(schema, max_row_bytes=1000)
    values = [None, 1, "a", {"x": 1.5}, [1, 2]]
    for value in values:
        rows = buffer.check({"x": value})
        assert rows is not None
        buffer.add(rows)
    assert [row["x"] for batch in buffer.drain() for row in to_records(batch)] == values


def test_a_missing_field_has_the_default_of_the_first_branch():
    schema = Schema.parse(
        {
            "type": "record",
            "name": "r",
            "fields": [
                {"name": "a", "type": ["double", "long"], "default": 1},
                {"name": "b", "type": [COLOUR, "string"], "default": "RED"},
                {"name": "c", "type": [MADE, LOST, "null"], "default": {"id": 5}},
                {"name": "d", "type": ["null", "int", "string"], "default": None},
            ],
        }
    )
    (batch,) = to_batches([{}], schema)
    (row,) = to_records(batch, with_branches=True)
    assert row == {
        "a": ("double", 1.0),
        "b": ("Colour", "RED"),
        "c": ("Made", {"id": 5}),
        "d": None,
    }


@pytest.mark.parametrize("inside", [False, True])
def test_tables_and_dataframes_are_refused_for_a_union(inside):
    union: Any = ["int", "string"]
    schema = schema_of({"type": "array", "items": union} if inside else union)
    path = r"x\[\]" if inside else "x"
    values = [[1]] if inside else [1]
    for table in (pa.table({"x": values}), pd.DataFrame({"x": values})):
        with pytest.raises(SchemaMismatch, match=f"{path}.* union .* write records"):
            to_batches(table, schema)
    batches = to_batches([{"x": values[0]}], schema)
    with pytest.raises(SchemaMismatch, match="write records"):
        to_batches(batches[0], schema)
