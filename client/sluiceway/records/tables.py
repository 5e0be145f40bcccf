"""Conversion of records in any form to validated record batches."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

from sluiceway.errors import OptionError, SchemaMismatch
from sluiceway.records.casts import cast
from sluiceway.records.from_python import column, row_batches
from sluiceway.records.validation import TOO_LARGE, ArrayOverflow, ValueMismatch, describe
from sluiceway.schema import Schema
from sluiceway.schema.arrow import any_of
from sluiceway.schema.defaults import default_to_python
from sluiceway.schema.types import Field, Nullable, Record, find_union


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
        return _table_batches([records], schema)
    if isinstance(records, pa.Table):
        return _table_batches(records.to_batches(), schema, like=records.schema)
    if _is_frame(records):
        return _frame_batches(records, schema)
    if isinstance(records, Mapping) or (is_dataclass(records) and not isinstance(records, type)):
        return row_batches([records], schema)
    if isinstance(records, Iterable) and not isinstance(records, str | bytes | bytearray):
        return row_batches(records if isinstance(records, list | tuple) else list(records), schema)
    raise OptionError(
        f"{describe(records)} is not a record: give a dict, a dataclass instance, an iterable of "
        "them, a pyarrow table or batch, or a pandas dataframe"
    )


def with_valid_offsets(array: pa.Array) -> pa.Array:
    """Return `array` with the offset 0 in every empty text, list and map array within.

    Java's Arrow, and so Spark, omits the only offset of an empty array. Arrow's C interface does
    not know the sizes of buffers, and would read the offset from adjacent memory.
    """
    if not _lacks_offsets(array):
        return array
    # `take` builds a new array.
    return array.take(pa.array(range(len(array)), pa.int64()))


def _lacks_offsets(array: pa.Array) -> bool:
    kind = array.type
    if types.is_struct(kind):
        return any(_lacks_offsets(array.field(i)) for i in range(kind.num_fields))
    width = 8 if _has_wide_offsets(kind) else 4 if _has_offsets(kind) else 0
    if not width:
        return False
    offsets = array.buffers()[1]
    if offsets is None or offsets.size < width * (array.offset + len(array) + 1):
        return True
    if not len(array) and any(memoryview(offsets)[width * array.offset :][:width]):
        return True  # Arrow does not validate the offset of an empty array
    if types.is_map(kind):
        return _lacks_offsets(array.keys) or _lacks_offsets(array.items)
    if types.is_list(kind) or types.is_large_list(kind):
        return _lacks_offsets(array.values)
    return False


_has_wide_offsets = any_of(types.is_large_string, types.is_large_binary, types.is_large_list)
_has_offsets = any_of(types.is_string, types.is_binary, types.is_list, types.is_map)


class _BatchWithSchema:
    """A batch's buffers with another schema, for the Arrow C data interface."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self.batch = batch
        self.schema = schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        _, array = self.batch.__arrow_c_array__()
        return self.schema.__arrow_c_schema__(), array


def with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` with the names and types of `schema`, without a copy.

    Both must have the same layout in memory, field by field.
    """
    relabeled = pa.record_batch(_BatchWithSchema(batch, schema))
    # The import of pyarrow 18 drops the metadata of map fields.
    return pa.RecordBatch.from_arrays(relabeled.columns, schema=schema)


def _table_batches(
    batches: Sequence[pa.RecordBatch], schema: Schema, *, like: pa.Schema | None = None
) -> list[pa.RecordBatch]:
    """Convert `batches` of the Arrow schema `like` to batches of `schema.arrow`.

    Columns are matched by name. Raises SchemaMismatch for columns that do not fit the schema, and
    InvalidRecord, with an index over all batches, for a value that does not fit.
    """
    like = batches[0].schema if like is None else like
    _check_names(like.names, schema)
    start = 0
    converted = []
    for batch in batches:
        if batch.num_rows:
            converted += _adapted(batch, start, schema)
            start += batch.num_rows
    if not converted:
        _adapted(like.empty_table().combine_chunks(), 0, schema)  # to check the types
    return converted


def _check_names(names: Sequence[str], schema: Schema) -> None:
    """Raise SchemaMismatch unless columns with these names provide all fields of `schema`."""
    fields = {field.name: field for field in schema.record.fields}
    for name in names:
        if name not in fields:
            known = ", ".join(list(fields)[:20])
            raise SchemaMismatch(f"the schema has no field {name!r}: drop the column ({known})")
        if list(names).count(name) > 1:
            raise SchemaMismatch(f"the column {name!r} exists twice: drop or rename one")
    for field in schema.record.fields:
        if field.default is None and field.name not in names:
            raise SchemaMismatch(
                f"the column {field.name!r} is missing, and has no default in the schema"
            )


def _adapted(batch: pa.RecordBatch | pa.Table, start: int, schema: Schema) -> list[pa.RecordBatch]:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        public = "the Arrow data is invalid"
        mismatch = ValueMismatch(0, "", f"{public}: {error}", public_reason=public)
        raise mismatch.to_invalid_record(start) from error
    names = frozenset(batch.schema.names)
    try:
        arrays = [_column(batch, names, field) for field in schema.record.fields]
    except ValueMismatch as error:
        raise error.to_invalid_record(start) from error
    except ArrayOverflow:
        if batch.num_rows == 1:
            raise ValueMismatch(0, "", TOO_LARGE).to_invalid_record(start) from None
        half = batch.num_rows // 2
        first = _adapted(batch.slice(0, half), start, schema)
        return first + _adapted(batch.slice(half), start + half, schema)
    plain = pa.RecordBatch.from_arrays(arrays, names=schema.arrow.names)
    return [with_schema(plain, schema.arrow)]


def _column(batch: pa.RecordBatch | pa.Table, names: Collection[str], field: Field) -> pa.Array:
    """Return the column of `field`, or its defaults; `names` are the column names."""
    if field.name not in names:
        default = default_to_python(json.loads(field.default or "null"), field.type)
        return column([default] * batch.num_rows, field.type, field.name)
    if path := find_union(Record(name=field.name, fields=(field,))):
        raise SchemaMismatch(
            f"the field {path!r} is a union of several types, which tables and dataframes do not "
            "support: write records, such as dicts, instead"
        )
    array = batch.column(field.name)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return cast(with_valid_offsets(array), field.type, field.name)


def _is_frame(value: object) -> bool:
    """Return whether `value` is a pandas.DataFrame, by the names of its classes.

    `sys.modules` is not reliable: while another thread imports pandas, the module has no DataFrame.
    """
    return any(
        kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"
        for kind in type(value).__mro__
    )


def _frame_batches(frame: Any, schema: Schema) -> list[pa.RecordBatch]:
    """Convert a pandas dataframe, without its index, to batches of `schema`.

    Columns of Python objects are checked like records. In these, and in nullable fields, missing
    values of pandas (NaN, NaT, NA) are null. Raises as `to_batches` does.
    """
    names = [str(name) for name in frame.columns]
    _check_names(names, schema)
    fields = {field.name: field for field in schema.record.fields}
    arrays = [_array(frame.iloc[:, number], fields[name]) for number, name in enumerate(names)]
    table = pa.Table.from_arrays(arrays, names=names)
    return _table_batches(table.to_batches(), schema, like=table.schema)


def _array(series: Any, field: Field) -> Any:
    if series.dtype == object:
        missing = series.isna()
        values = series.astype(object).where(~missing, None).tolist()
        try:
            return column(values, field.type, field.name)
        except ValueMismatch as error:
            raise error.to_invalid_record() from error
        except ArrayOverflow:
            return pa.array(series, from_pandas=True)
    try:
        return pa.array(series, from_pandas=isinstance(field.type, Nullable))
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"the column {field.name!r} is {series.dtype}, which Arrow does not have: cast it, for "
            f"instance with frame[{field.name!r}].astype(…)"
        ) from error
