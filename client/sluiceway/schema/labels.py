"""Batches under other labels: names, nullability and logical types changed, buffers kept."""

from __future__ import annotations

import pyarrow as pa


class _Relabelled:
    """A batch's buffers under another schema, by the Arrow C data interface."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self.batch = batch
        self.schema = schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        _, array = self.batch.__arrow_c_array__()
        return self.schema.__arrow_c_schema__(), array


def relabelled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give the columns of `batch` the names and types of `schema`, without a copy.

    The caller vouches that both have the same layout in memory, field by field.
    """
    made = pa.record_batch(_Relabelled(batch, schema))
    # pyarrow 18 forgets on the way in what the fields of a map had noted.
    return pa.RecordBatch.from_arrays(made.columns, schema=schema)
