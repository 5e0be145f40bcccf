"""Schema resolution of batches, compared with fastavro."""

import pyarrow as pa
import pytest

from generated import one_batch, resolve, same, schema
from sluiceway.records import to_records
from sluiceway.schema import Schema
from sluiceway.schema.compatibility import incompatibilities


def test_a_value_of_a_union_is_read_as_its_own_branch_or_the_first_that_can_read_it():
    point = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
    place = {**point, "name": "Place"}
    wide = {**point, "name": "a.Point", "fields": [{"name": "x", "type": ["double", "long"]}]}
    writer = schema({"name": "a", "type": ["int", "string", "null", "bytes", point, place]})
    reader = schema({"name": "a", "type": ["null", "bytes", "double", "long", place, wide]})
    rows = [1, "a", None, b"b", ("Point", {"x": 3}), ("Place", {"x": 4})]
    batch = one_batch([{"a": value} for value in rows], writer)
    resolved = resolve(batch, writer, reader)
    branches = [row["a"] for row in to_records(resolved, with_branches=True)]
    assert same(
        [list(branch) if branch else branch for branch in branches],
        [
            ["double", 1.0],
            ["bytes", b"a"],
            None,
            ["bytes", b"b"],
            ["a.Point", {"x": ("double", 3.0)}],
            ["Place", {"x": 4}],
        ],
    )


def test_renamed_fields_and_branches_are_read_by_their_aliases():
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": "int"}]}
    renamed = {
        **inner,
        "name": "Within",
        "aliases": ["Inner"],
        "fields": [{"name": "m", "type": ["null", "long"], "default": None, "aliases": ["k", "n"]}],
    }
    writer = schema(
        {"name": "a", "type": ["null", "int"], "default": None},
        {"name": "b", "type": ["string", inner]},
        {"name": "c", "type": "int"},
    )
    reader = schema(
        {"name": "c", "type": "int", "aliases": ["d"]},
        {"name": "z", "type": ["null", "int"], "default": None, "aliases": ["a"]},
        {"name": "y", "type": ["string", renamed], "aliases": ["b"]},
    )
    assert incompatibilities(reader, writer) == ()
    batch = one_batch([{"a": 7, "b": ("Inner", {"n": 3}), "c": 1}], writer)
    assert to_records(resolve(batch, writer, reader)) == [{"c": 1, "z": 7, "y": {"m": 3}}]


def test_a_field_is_read_by_its_own_name_before_its_aliases():
    writer = schema({"name": "a", "type": "int"}, {"name": "b", "type": "int"})
    reader = schema({"name": "b", "type": "int", "aliases": ["a"]})
    assert to_records(resolve(one_batch([{"a": 1, "b": 2}], writer), writer, reader)) == [{"b": 2}]


def test_a_union_is_read_as_a_single_type_and_back():
    several = schema({"name": "a", "type": ["int", "null", "long", "float"]})
    single = schema({"name": "a", "type": ["null", "double"]})
    batch = one_batch([{"a": 1}, {"a": None}, {"a": 2**40}, {"a": 0.5}], several)
    assert to_records(resolve(batch.slice(1), several, single)) == [
        {"a": None},
        {"a": float(2**40)},
        {"a": 0.5},
    ]
    wider = schema({"name": "a", "type": ["string", "null", "double"]})
    assert to_records(resolve(one_batch([{"a": 0.5}, {"a": None}], single), single, wider)) == [
        {"a": 0.5},
        {"a": None},
    ]


def test_the_same_schema_returns_the_batch():
    one = schema({"name": "a", "type": "int"})
    batch = one_batch([{"a": 1}], one)
    assert resolve(batch, one, Schema.parse(one.canonical)).equals(batch)


def test_promoted_numbers_are_rounded():
    writer = schema({"name": "a", "type": "long"}, {"name": "b", "type": "int"})
    reader = schema({"name": "a", "type": "double"}, {"name": "b", "type": "float"})
    batch = one_batch([{"a": 2**53 + 1, "b": 2**24 + 1}], writer)
    assert to_records(resolve(batch, writer, reader)) == [{"a": 2.0**53, "b": 2.0**24}]


TEXTS = {"name": "texts", "type": {"type": "array", "items": ["null", "bytes"]}}
STRINGS = {"name": "texts", "type": {"type": "array", "items": ["null", "string"]}}


def test_bytes_that_are_not_utf8_are_reported_by_record_and_field():
    writer, reader = schema(TEXTS), schema(STRINGS)
    rows = [{"texts": [b"a", None]}, {"texts": []}, {"texts": [b"b", b"\xff"]}]
    with pytest.raises(ValueError, match=r"record 2: field 'texts\[\]' .* read it as bytes"):
        resolve(one_batch(rows, writer), writer, reader)


def test_bytes_outside_of_a_slice_or_below_a_null_are_ignored():
    writer, reader = schema(TEXTS), schema(STRINGS)
    batch = one_batch([{"texts": [b"\xff"]}, {"texts": [b"a"]}], writer)
    assert to_records(resolve(batch.slice(1), writer, reader)) == [{"texts": ["a"]}]

    inner = {"type": "record", "name": "Inner", "fields": [{"name": "b", "type": "bytes"}]}
    other = {**inner, "fields": [{"name": "b", "type": "string"}]}
    writer = schema({"name": "n", "type": ["null", inner]})
    reader = schema({"name": "n", "type": ["null", other]})
    hidden = pa.StructArray.from_arrays(
        [pa.array([b"\xff", b"a"])],
        fields=list(writer.arrow.field("n").type),
        mask=pa.array([True, False]),
    )
    batch = pa.RecordBatch.from_arrays([hidden], schema=writer.arrow)
    assert to_records(resolve(batch, writer, reader)) == [{"n": None}, {"n": {"b": "a"}}]
