"""Shapes of records in the benchmarks with Spark: SQL expressions over `id`, and a schema."""

import json
from dataclasses import dataclass

import pyarrow as pa

from sluiceway.schema import Schema


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A shape of records: `columns` computes them from a row's `id`, `schema` is their schema."""

    title: str
    rows: int
    columns: tuple[str, ...]
    schema: pa.Schema

    @property
    def avro(self) -> str:
        """The schema for the connector's functions."""
        return json.dumps(Schema.of(self.schema).definition)


def _required(name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, nullable=False)


_POINT = pa.struct([_required("latitude", pa.float64()), _required("longitude", pa.float64())])
_SAMPLE = pa.struct([_required("at", pa.int64()), _required("celsius", pa.float64())])

FLAT = Shape(
    title="5 fields",
    rows=5_000_000,
    columns=(
        "id",
        "concat('station-', cast(id % 10000 as string)) station",
        "id * 0.001D celsius",
        "id * 0.01D + 1000D pascal",
        "cast(id % 100 as int) sensor",
    ),
    schema=pa.schema(
        [
            _required("id", pa.int64()),
            _required("station", pa.string()),
            _required("celsius", pa.float64()),
            _required("pascal", pa.float64()),
            _required("sensor", pa.int32()),
        ]
    ),
)
WIDE = Shape(
    title="100 fields",
    rows=250_000,
    columns=(
        "id",
        *(f"id + {n} long_{n}" for n in range(39)),
        *(f"id * 0.5D + {n} double_{n}" for n in range(30)),
        *(f"cast(id % {n + 1000} as int) int_{n}" for n in range(10)),
        *(f"concat('value-', cast(id % {n + 100} as string)) string_{n}" for n in range(20)),
    ),
    schema=pa.schema(
        [
            _required("id", pa.int64()),
            *(_required(f"long_{n}", pa.int64()) for n in range(39)),
            *(_required(f"double_{n}", pa.float64()) for n in range(30)),
            *(_required(f"int_{n}", pa.int32()) for n in range(10)),
            *(_required(f"string_{n}", pa.string()) for n in range(20)),
        ]
    ),
)
TEXT = Shape(
    title="a string of 1,000 characters",
    rows=500_000,
    columns=("id", "rpad(cast(id as string), 1000, 'the quick brown fox ') text"),
    schema=pa.schema([_required("id", pa.int64()), _required("text", pa.string())]),
)
NESTED = Shape(
    title="a record and a list of three records within",
    rows=1_000_000,
    columns=(
        "id",
        "named_struct('latitude', id * 0.0001D, 'longitude', id * 0.0002D) place",
        "array("
        + ", ".join(f"named_struct('at', id + {n}, 'celsius', id * 0.1D + {n})" for n in range(3))
        + ") samples",
    ),
    schema=pa.schema(
        [
            _required("id", pa.int64()),
            _required("place", _POINT),
            _required("samples", pa.list_(_required("item", _SAMPLE))),
        ]
    ),
)
NULLS = Shape(
    title="10 fields, each null in every second to eleventh record",
    rows=2_000_000,
    columns=(
        "id",
        *(f"if(id % {n + 2} = 0, null, id + {n}) long_{n}" for n in range(4)),
        *(f"if(id % {n + 6} = 0, null, id * 0.5D) double_{n}" for n in range(4)),
        *(f"if(id % {n + 10} = 0, null, cast(id % 1000 as string)) string_{n}" for n in range(2)),
    ),
    schema=pa.schema(
        [
            _required("id", pa.int64()),
            *(pa.field(f"long_{n}", pa.int64()) for n in range(4)),
            *(pa.field(f"double_{n}", pa.float64()) for n in range(4)),
            *(pa.field(f"string_{n}", pa.string()) for n in range(2)),
        ]
    ),
)

SHAPES = {"flat": FLAT, "wide": WIDE, "text": TEXT, "nested": NESTED, "nulls": NULLS}
