"""The table of types: a kind is one row."""

import re
import subprocess
import sys
from pathlib import Path

from sluiceway.schema import types as t

ROW = '    TIME_NANOS = Traits(name="time-nanos", physical="long", python=time, units=("ns",))\n'
PROGRAM = """
import json, sys
from dataclasses import dataclass
from datetime import time
from importlib.machinery import SourceFileLoader
from typing import Annotated

before, row = sys.argv[1:]

class WithRow(SourceFileLoader):
    def path_stats(self, path):
        raise OSError("without cached bytecode")

    def get_data(self, path):
        text = super().get_data(path).decode()
        assert text.count(before) == 1
        return text.replace(before, row + before).encode()

class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "sluiceway.schema.types":
            from importlib.util import spec_from_file_location
            file = path[0] + "/types.py"
            return spec_from_file_location(name, file, loader=WithRow(name, file))

sys.meta_path.insert(0, Finder)

import pyarrow as pa
from pyspark.sql import types as spark

from sluiceway.codecs import codec
from sluiceway.codecs.avro_strict import StrictReader
from sluiceway.codecs.physical import avro_form
from sluiceway.errors import InvalidRecord
from sluiceway.records import to_batches, to_records
from sluiceway.records.json_values import records_from_json
from sluiceway.records.row_buffer import RowBuffer
from sluiceway.schema import Schema, types as t
from sluiceway.spark.types import require_writable, spark_transform, struct_of

moment = time(1, 2, 3, 4)
avro = {"type": "long", "logicalType": "time-nanos"}
fields = [
    {"name": "x", "type": avro, "default": 5000},
    {"name": "nullable", "type": ["null", avro]},
    {"name": "list", "type": {"type": "array", "items": avro}},
    {"name": "map", "type": {"type": "map", "values": avro}},
]
schema = Schema.parse({"type": "record", "name": "r", "fields": fields})
record = {"x": moment, "nullable": None, "list": [moment], "map": {"a": moment}}
rows = RowBuffer(schema, max_row_bytes=1_000).check(record)
batches = to_batches([record], schema)
assert RowBuffer(schema, max_row_bytes=1_000).to_batches(rows.values) == batches
assert to_batches(batches[0], schema) == batches
for format in ("avro", "arrow"):
    values = codec(format, schema, 7).encode(batches[0], limit_bytes=1_000).values.to_pylist()
    assert codec(format, schema, 7).decode(values).batches == batches
    if format == "avro":
        StrictReader(avro_form(schema.record).record, 7).read(values[0])
assert to_records(batches[0]) == [record]
assert records_from_json([{"x": "01:02:03.000004"}], schema) == [{"x": moment}]
del record["x"]
assert to_records(*to_batches([record], schema))[0]["x"] == time(0, 0, 0, 5)

@dataclass
class Clock:
    x: Annotated[time, "time-nanos"] = time(0, 0, 0, 5)

one = Schema.of(Clock)
assert one.record.fields[0] == schema.record.fields[0]
assert Schema.parse(one.canonical) == one
assert not Schema.of(pa.schema([pa.field("x", pa.time64("ns"), False)])).differences(one)
assert struct_of(one.arrow).simpleString() == "struct<x:time(6)>"
assert to_records(spark_transform(schema)(batches[0])) == to_records(batches[0])
require_writable(spark.StructType([spark.StructField("x", spark.TimeType(6))]), "c", one)
several = {"name": "x", "type": ["string", avro]}
union = Schema.parse({"type": "record", "name": "r", "fields": [several]})
(batch,) = to_batches([{"x": moment}], union)
assert to_records(batch, with_branches=True) == [{"x": ("long", moment)}]
try:
    to_batches([{"x": 5}], one)
except InvalidRecord as error:
    assert "a datetime.time without a time zone" in str(error)
else:
    raise AssertionError
"""


def test_a_new_kind_is_one_row_of_the_table() -> None:
    (first,) = [line for line in Path(t.__file__).read_text().splitlines() if "BOOLEAN = " in line]
    command = [sys.executable, "-c", PROGRAM, first, ROW]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_the_table_names_logical_types() -> None:
    named = re.compile(
        rf"Kind\.({'|'.join(kind.name for kind in t.Kind if kind.traits.physical)})\b"
    )
    table = Path(t.__file__)
    files = table.parents[1].rglob("*.py")
    assert [file.name for file in files if file != table and named.search(file.read_text())] == []
