"""Conversion of records in any form to validated record batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final

import pyarrow as pa

from sluiceway.errors import OptionError
from sluiceway.records.columns import columns
from sluiceway.records.tables import frame_batches, is_frame, table_batches
from sluiceway.records.validation import ArrayOverflow, ValueMismatch, describe
from sluiceway.schema import Schema

_ROWS: Final = 16_384
"""The rows of a batch: few enough for the processor's caches."""


def to_batches(records: object, schema: Schema) -> list[pa.RecordBatch]:
    """Convert `records` to batches of the schema `schema.arrow`, all of them or none.

    `records` is a dict or a dataclass instance, an iterable of them, a pyarrow.Table, a
    pyarrow.RecordBatch or a pandas.DataFrame, without its index. The order is kept. Missing fields
    have their defaults. No records give an empty list.

    Raises InvalidRecord with the index of the record from 0, the path of the field and the reason:
    a value of another type or out of range, a null in a field that is not nullable, a missing or
    unknown field, an instant without a time zone. Raises SchemaMismatch for a column that has
    another type, is missing or is unknown, and OptionError for any other object.
    """
    if isinstance(records, pa.RecordBatch):
        return table_batches([records], schema)
    if isinstance(records, pa.Table):
        return table_batches(records.to_batches(), schema, like=records.schema)
    if is_frame(records):
        return frame_batches(records, schema)
    rows = _listed(records)
    return [
        batch
        for start in range(0, len(rows), _ROWS)
        for batch in _batches(rows[start : start + _ROWS], start, schema)
    ]


def _listed(records: object) -> Sequence[Any]:
    if isinstance(records, Mapping) or _is_instance(records):
        return [records]
    if isinstance(records, list | tuple):
        return records
    if isinstance(records, Iterable) and not isinstance(records, str | bytes | bytearray):
        return list(records)
    raise OptionError(
        f"{describe(records)} is not a record: give a dict, a dataclass instance, an iterable of "
        "them, a pyarrow table or batch, or a pandas dataframe"
    )


def _batches(rows: Sequence[Any], start: int, schema: Schema) -> list[pa.RecordBatch]:
    kinds = set(map(type, rows))
    for kind in kinds:
        if not issubclass(kind, Mapping) and not is_dataclass(kind):
            position = next(i for i, row in enumerate(rows) if type(row) is kind)
            mismatch = ValueMismatch.of_value(
                position, "", "a dict or a dataclass instance", rows[position]
            )
            raise mismatch.to_invalid_record(start)
    try:
        arrays = columns(rows, kinds, schema.record, "")
    except ValueMismatch as error:
        raise error.to_invalid_record(start) from error
    except ArrayOverflow:
        if len(rows) == 1:
            reason = "it is larger than 2 GiB, the limit of a message; make it smaller"
            raise ValueMismatch(0, "", reason).to_invalid_record(start) from None
        half = len(rows) // 2
        first = _batches(rows[:half], start, schema)
        return first + _batches(rows[half:], start + half, schema)
    return [pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)]


def _is_instance(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type)
