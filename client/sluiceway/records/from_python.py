"""Records of any form to validated record batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sluiceway.errors import OptionError
from sluiceway.records.columns import columns
from sluiceway.records.tables import frame_batches, is_frame, table_batches
from sluiceway.records.validation import ArrayOverflow, ValueMismatch, shown

if TYPE_CHECKING:
    from sluiceway.schema import Schema

_ROWS: Final = 16_384
"""Records are made into batches of so many rows: few enough to stay in the processor's caches."""


def to_batches(records: object, schema: Schema) -> list[pa.RecordBatch]:
    """Make `records` into batches whose schema is `schema.arrow`, all of them or none.

    `records` is a dict or a dataclass instance, an iterable of such, a pyarrow.Table, a
    pyarrow.RecordBatch or a pandas.DataFrame (whose index is not looked at). Order is kept; an
    empty input gives an empty list. A field that is left out takes its default.

    Raises InvalidRecord with the index of a record (from 0), the path of its field and the reason:
    a value of another type or out of range, a null where none may be, a field that is missing or
    unknown, an instant without a time zone. Raises SchemaMismatch where a whole column is of
    another type, missing or unknown, and OptionError for what is no records at all.
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
        f"{shown(records)} is no record: give a dict, a dataclass instance, an iterable of them, "
        "a pyarrow table or batch, or a pandas dataframe"
    )


def _batches(rows: Sequence[Any], start: int, schema: Schema) -> list[pa.RecordBatch]:
    kinds = set(map(type, rows))
    for kind in kinds:
        if not issubclass(kind, Mapping) and not is_dataclass(kind):
            position = next(i for i, row in enumerate(rows) if type(row) is kind)
            unfit = ValueMismatch.of_value(
                position, "", "a dict or a dataclass instance", rows[position]
            )
            raise unfit.in_write(start)
    try:
        arrays = columns(rows, kinds, schema.record, "")
    except ValueMismatch as error:
        raise error.in_write(start) from error
    except ArrayOverflow:
        if len(rows) == 1:
            reason = "it is larger than 2 GiB, which no message can hold; make it smaller"
            raise ValueMismatch(0, "", reason).in_write(start) from None
        half = len(rows) // 2
        first = _batches(rows[:half], start, schema)
        return first + _batches(rows[half:], start + half, schema)
    return [pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)]


def _is_instance(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type)
