"""The tables of `docs/types.md`, row by row."""

import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from generated import values
from sluiceway.codecs import codec
from sluiceway.errors import SchemaMismatch, UnsupportedType
from sluiceway.records import to_batches, to_records
from sluiceway.schema import Schema
from sluiceway.schema import types as t
from sluiceway.spark.types import struct_of

PAGE = (Path(__file__).parents[3] / "docs" / "types.md").read_text()
NONE = "–"


@dataclass
class Point:
    a: int


WORDS = {
    **{word.__name__: word for word in (date, datetime, time, Decimal, UUID, Point)},
    **{name: getattr(spark, name) for name in dir(spark) if name.endswith("Type")},
    "Annotated": Annotated,
    "Literal": Literal,
    "pa": pa,
}


def table(title):
    """The rows of the table under a heading, each a list of cells."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    assert rows
    return [[cell.strip().replace("\\|", "|") for cell in row] for row in rows]


def code(cell):
    return re.findall(r"`([^`]*)`", cell)


def of_avro(source):
    return Schema.parse(
        {"type": "record", "name": "r", "fields": [{"name": "x", "type": json.loads(source)}]}
    )


def of_python(source):
    """The schema of one field: an Avro type, or an Arrow, Spark or Python one."""
    if source.startswith(("{", "[", '"')):
        return of_avro(source)
    made = eval(source, WORDS)  # noqa: S307 - our own page
    if isinstance(made, pa.DataType):
        return Schema.of(pa.schema([pa.field("x", made, nullable=made == pa.null())]))
    if isinstance(made, spark.DataType):
        return Schema.of(spark.StructType([spark.StructField("x", made, nullable=False)]))
    return Schema.of(dataclass(type("r", (), {"__annotations__": {"x": made}})))


@pytest.mark.sample
@pytest.mark.parametrize("row", table("Supported types"), ids=lambda row: row[0])
@settings(max_examples=5)
@given(data=st.data())
def test_supported_types_keep_their_values(row, data):
    (avro,), (arrow,), spark_, annotation, (python,) = map(code, row)
    schema = of_avro(avro)
    assert str(schema.arrow.field("x").type).replace(" ('item')", "") == arrow
    if spark_:
        (field,) = struct_of(schema.arrow).fields
        assert [field.dataType.simpleString()] == spark_
    else:
        assert row[2] == NONE
        with pytest.raises(SchemaMismatch):
            struct_of(schema.arrow)
    if annotation:
        assert not of_python(annotation[0]).differences(schema)
    else:
        assert row[3] == NONE
    value = data.draw(values(schema.record.fields[0].type))
    (batch,) = to_batches([{"x": value}], schema)
    for format_ in ("avro", "arrow", "json"):
        codec_ = codec(format_, schema, 7)
        (read,) = codec_.decode(codec_.encode(batch, limit_bytes=2**31).values.to_pylist()).batches
        ((decoded_value,),) = (record.values() for record in to_records(read))
        assert decoded_value is None or type(decoded_value).__name__ == python


@pytest.mark.parametrize("kind", t.Kind)
def test_the_page_has_a_row_of_the_table_of_types(kind):
    traits = kind.traits
    logical = {"type": traits.physical, "logicalType": kind.value}
    avro = json.dumps(logical if traits.physical else kind.value)
    (row,) = [row for row in table("Supported types") if code(row[0]) == [avro]]
    python = traits.python.__name__
    annotation = python if traits.plain else f'Annotated[{python}, "{kind.value}"]'
    assert [code(cell) for cell in row[3:]] == [[annotation], [python]]


@pytest.mark.parametrize("row", table("JSON"), ids=lambda row: " ".join(row[:2]))
@pytest.mark.parametrize("times", [1, 100])
def test_values_are_written_and_read_as_json(row, times):
    ((avro,), (source,), (written,), also) = map(code, row)
    schema = of_avro(avro)
    value = eval(source, WORDS | {"UTC": UTC})  # noqa: S307 - our own page
    codec_ = codec("json", schema, 7)
    (batch,) = to_batches([{"x": value}] * times, schema)
    messages = codec_.encode(batch, limit_bytes=2**31).values.to_pylist()
    assert messages == [f'{{"x":{written}}}'.encode()] * times
    for text in (written, *also):
        decoded = codec_.decode([f'{{"x":{text}}}'.encode()] * times)
        assert not decoded.corrupt
        assert [r for b in decoded.batches for r in to_records(b)] == [{"x": value}] * times


def test_the_page_has_the_json_form_of_each_type():
    kinds = {type(type_).__name__ for row in table("Supported types") for type_ in walked(row[0])}
    names = {
        type_.kind
        for row in table("JSON")
        for type_ in walked(row[0])
        if isinstance(type_, t.Scalar)
    }
    assert kinds == {type(type_).__name__ for row in table("JSON") for type_ in walked(row[0])}
    assert names == set(t.Kind)


@pytest.mark.parametrize("row", table("Protobuf"), ids=lambda row: row[0])
def test_fields_of_protobuf_messages_have_their_type(row, tmp_path):
    (declared,), (avro,), (default,), (attribute,) = map(code, row)
    imports = [
        f'import "google/{name}.proto";'
        for name in ("protobuf/timestamp", "type/date", "type/timeofday")
    ]
    path = tmp_path / "m.proto"
    path.write_text(f'syntax = "proto3"; {" ".join(imports)} message M {{ {declared} }}')
    assert Schema.from_proto(path).definition["fields"][0] == {
        "name": "x",
        "type": json.loads(avro),
        "default": json.loads(default),
        "protobuf": json.loads(attribute),
    }


def walked(cell):
    (avro,) = code(cell)
    return t.walk(of_avro(avro).record)


@pytest.mark.parametrize("row", table("Unions of several types"), ids=lambda row: " ".join(row))
def test_values_of_unions_take_their_branch(row):
    ((avro,), (value,), (branch,), (read,)) = map(code, row)
    schema = of_avro(avro)
    codec_ = codec("avro", schema, 7)
    (batch,) = to_batches([{"x": literal(value)}], schema)
    (decoded,) = codec_.decode(codec_.encode(batch, limit_bytes=100).values.to_pylist()).batches
    assert to_records(decoded, with_branches=True) == [{"x": (branch, literal(read))}]
    (record,) = to_records(decoded)
    assert repr(record["x"]) == repr(literal(read))


def literal(source):
    return eval(source, {})  # noqa: S307 - our own page


@pytest.mark.parametrize(
    ("given_", "converted"),
    [(source, code(row[1])[0]) for row in table("Converted types") for source in code(row[0])],
)
def test_other_types_are_converted(given_, converted):
    assert str(of_python(given_).arrow.field("x").type) == converted


@pytest.mark.parametrize(
    "given_", [source for row in table("Unsupported types") for source in code(row[0])]
)
def test_unsupported_types_are_rejected(given_):
    with pytest.raises(UnsupportedType, match=r"field 'x'.*; "):
        of_python(given_)
