"""Empty columns without offsets, as written by Spark's JVM but never by pyarrow."""

import pyarrow as pa
import pytest

from sluiceway.codecs import codec
from sluiceway.records import to_batches
from sluiceway.schema import Schema

NOTHING = pa.py_buffer(b"")
MAP = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.float64()))


def text_without_offsets(offsets: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), 0, [None, offsets, NOTHING])


def map_of_nulls(offsets: pa.Buffer | None) -> pa.Array:
    """Return one null whose empty keys have no offsets."""
    keys = text_without_offsets(offsets)
    values = pa.Array.from_buffers(pa.float64(), 0, [None, NOTHING])
    entries = pa.Array.from_buffers(
        pa.struct([MAP.key_field, MAP.item_field]), 0, [None], children=[keys, values]
    )
    bits, zeros = pa.py_buffer(b"\0"), pa.py_buffer(b"\0" * 8)
    return pa.Array.from_buffers(MAP, 1, [bits, zeros], children=[entries])


@pytest.mark.parametrize("offsets", [NOTHING, None])
@pytest.mark.parametrize("format_", ["avro", "arrow"])
def test_an_empty_column_without_offsets_is_encoded_and_decoded(
    offsets: pa.Buffer | None, format_: str
) -> None:
    column = map_of_nulls(offsets)
    batch = pa.record_batch([column, pa.array([7])], names=["m", "n"])
    schema = Schema.of(batch.schema)
    carrying = codec(format_, schema, 1)

    (made,) = to_batches(batch, schema)
    decoded = carrying.decode(carrying.encode(made, limit_bytes=10_000).values.to_pylist())

    made.validate(full=True)
    assert decoded.corrupt == []
    assert decoded.batches[0].to_pylist() == [{"m": None, "n": 7}]
    keys = made.column("m").keys
    assert keys.buffers()[1].size >= 4
