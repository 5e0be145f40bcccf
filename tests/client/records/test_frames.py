"""Frames of other libraries, written by Arrow's C interface."""

from collections.abc import Iterator
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sluiceway.errors import InvalidRecord, OptionError, SchemaMismatch
from sluiceway.records import repeatable, to_batches, to_records
from sluiceway.schema import Schema

FARE = Schema.parse(
    {
        "type": "record",
        "name": "Fare",
        "fields": [
            {"name": "carrier", "type": "string"},
            {"name": "cabin", "type": {"type": "enum", "name": "Cabin", "symbols": ["Y", "J"]}},
            {"name": "sold", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2},
            },
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
SOLD = datetime(2026, 11, 30, 8, tzinfo=UTC)
ROWS = [
    {"carrier": "AA", "cabin": "Y", "sold": SOLD, "price": Decimal("1.50"), "tags": ["a", "b"]},
    {"carrier": "UA", "cabin": "J", "sold": SOLD, "price": Decimal("2.00"), "tags": []},
]
FRAME = pl.DataFrame(
    # In another order than the schema's.
    {
        "price": pl.Series([row["price"] for row in ROWS], dtype=pl.Decimal(12, 2)),
        "cabin": pl.Series(["Y", "J"], dtype=pl.Enum(["J", "Y"])),
        "carrier": pl.Series(["AA", "UA"], dtype=pl.Categorical),
        "sold": pl.Series([SOLD, SOLD], dtype=pl.Datetime("ns", "UTC")),
        "tags": [row["tags"] for row in ROWS],
    }
)


def written(records: Any, schema: Schema = FARE) -> list[dict[str, Any]]:
    return [row for batch in to_batches(records, schema) for row in to_records(batch)]


EXPECTED = [row | {"note": None} for row in ROWS]


def test_a_frame_of_polars_is_written_column_by_name() -> None:
    assert written(FRAME) == EXPECTED
    assert written(pl.concat([FRAME, FRAME], rechunk=False)) == EXPECTED * 2
    assert written(FRAME.clear()) == []


def test_a_relation_of_duckdb_is_written() -> None:
    relation = duckdb.sql(
        "SELECT 'AA' AS carrier, 'Y'::ENUM ('Y', 'J') AS cabin, 1.5::DECIMAL(8, 2) AS price, "
        "'2026-11-30 08:00:00+00'::TIMESTAMPTZ AS sold, ['a', 'b'] AS tags"
    )
    assert written(relation) == EXPECTED[:1]


def test_a_reader_of_batches_and_an_array_of_structs_are_written() -> None:
    (batch,) = to_batches(ROWS, FARE)
    assert written(pa.RecordBatchReader.from_batches(batch.schema, [batch, batch])) == EXPECTED * 2
    assert written(batch.to_struct_array()) == EXPECTED


@pytest.mark.parametrize(
    ("frame", "error", "field"),
    [
        (FRAME.with_columns(carrier=None), InvalidRecord, "carrier"),
        (FRAME.drop("price"), SchemaMismatch, "'price' is missing"),
        (FRAME.with_columns(fee=1), SchemaMismatch, "no field 'fee'"),
        (FRAME.drop("price").clear(), SchemaMismatch, "'price' is missing"),
        (
            FRAME.with_columns(sold=pl.col("sold") + pl.duration(nanoseconds=1)),
            InvalidRecord,
            "sold",
        ),
        (FRAME.with_columns(price=pl.lit("1.5")), SchemaMismatch, "price"),
    ],
)
def test_frames_that_do_not_fit_are_refused(frame: Any, error: type[Exception], field: str) -> None:
    with pytest.raises(error, match=field):
        to_batches(frame, FARE)


CLOCK = Schema.parse(
    {
        "type": "record",
        "name": "Clock",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "time-micros"}},
            {"name": "nanos", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
        ],
    }
)


def test_nanoseconds_are_kept_or_refused() -> None:
    nanos = pl.Series([1_000_000_001], dtype=pl.Datetime("ns", "UTC"))
    frame = pl.DataFrame({"at": [time(1, 2, 3)], "nanos": nanos})
    (batch,) = to_batches(frame, CLOCK)
    assert batch.column("nanos").cast(pa.int64()).to_pylist() == [1_000_000_001]
    with pytest.raises(InvalidRecord, match="at"):
        to_batches(frame.with_columns(at=pl.Series([1], dtype=pl.Time)), CLOCK)


NUMBER = Schema.parse(
    {
        "type": "record",
        "name": "Number",
        "fields": [
            {"name": "number", "type": "long"},
            {"name": "origin", "type": ["null", "string"], "default": None},
        ],
    }
)


def test_the_index_of_pandas_is_not_written_and_not_lost() -> None:
    frame = pd.DataFrame({"number": [1, 2], "origin": ["a", "b"]})
    assert written(frame[frame.number > 1], NUMBER) == [{"number": 2, "origin": "b"}]
    assert written(frame.set_index("number").reset_index(), NUMBER) == written(frame, NUMBER)
    for name in ("origin", "number"):
        with pytest.raises(SchemaMismatch, match=rf"{name}' is the index .* frame.reset_index\(\)"):
            to_batches(frame.set_index(name), NUMBER)


class Spark:
    """A dataframe of a library without Arrow's interface."""

    columns: Any = property(lambda _: ["number"])
    dtypes: Any = columns


Spark.__module__ = "pyspark.sql.dataframe"


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (pl.Series([1, 2]), "a polars Series has no records with named fields .*: give a dict"),
        (pd.Series([1, 2]), "a pandas Series has no records|record 0"),
        (pa.array([1, 2]), "a pyarrow Int64Array has no records"),
        (FRAME.lazy(), r"a polars LazyFrame is not written as it is: write its \.collect\(\)"),
        (Spark(), r'write it in Spark, with df\.write\.format\("channel"\)'),
        (duckdb.connect(), "is not a record: give a dict, an instance of a dataclass"),
        ([FRAME], "record 0: it is a DataFrame, which holds many values: write tables one by one"),
        ({"number": FRAME["cabin"]}, "'number': it must be a 64-bit integer; it is Series"),
    ],
)
def test_what_is_no_frame_gets_a_sentence_that_says_what_to_write(
    records: Any, message: str
) -> None:
    with pytest.raises((OptionError, InvalidRecord), match=message):
        to_batches(records, NUMBER)


def test_a_stream_that_fails_writes_nothing() -> None:
    (batch,) = to_batches([{"number": 1}], NUMBER)

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch
        raise ValueError("out of disk")

    stream = pa.RecordBatchReader.from_batches(batch.schema, batches())
    with pytest.raises(OptionError, match=r"records of a pyarrow .* could not be read.*disk"):
        to_batches(stream, NUMBER)
    with pytest.raises(duckdb.Error, match="out of disk"):
        to_batches(duckdb.sql("SELECT error('out of disk') AS number FROM range(1)"), NUMBER)


def test_a_stream_for_several_channels_is_read_once() -> None:
    (batch,) = to_batches([{"number": 1}], NUMBER)
    stream = repeatable(pa.RecordBatchReader.from_batches(batch.schema, [batch]))
    assert written(stream, NUMBER) == written(stream, NUMBER) == [{"number": 1, "origin": None}]
    one_by_one = repeatable(iter([{"number": 1}]))
    assert written(one_by_one, NUMBER) == written(one_by_one, NUMBER)
    assert repeatable(batch) is batch


def test_numpys_numbers_are_values_of_records() -> None:
    records = [{"number": np.int32(5)}, {"number": np.uint64(7)}]
    assert [row["number"] for row in written(records, NUMBER)] == [5, 7]
