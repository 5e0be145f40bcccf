"""Arrow tables and pandas dataframes to record batches of a schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from sluiceway.errors import SchemaMismatch
from sluiceway.records.casts import cast
from sluiceway.records.columns import column
from sluiceway.records.validation import ArrayOverflow, ValueMismatch
from sluiceway.schema.defaults import as_python
from sluiceway.schema.types import Field, Nullable

if TYPE_CHECKING:
    from sluiceway.schema import Schema


def with_offsets(array: pa.Array) -> pa.Array:
    """Return `array` with a zero for offset in every empty text, list and map that it holds.

    An array of no items may come without its only offset, as Java's Arrow (and so Spark) writes
    it. Arrow's C interface, which knows no lengths of buffers, would read one all the same, from
    whatever memory comes next.
    """
    if not _lacks_offsets(array):
        return array
    # Taking every row builds the array anew.
    return array.take(pa.array(range(len(array)), pa.int64()))


def _lacks_offsets(array: pa.Array) -> bool:
    kind = array.type
    if types.is_struct(kind):
        return any(_lacks_offsets(array.field(i)) for i in range(kind.num_fields))
    width = _offset_bytes(kind)
    if not width:
        return False
    offsets = array.buffers()[1]
    if offsets is None or offsets.size < width * (array.offset + len(array) + 1):
        return True
    if not len(array) and any(memoryview(offsets)[width * array.offset :][:width]):
        return True  # Arrow does not validate what an array without items says they are
    if types.is_map(kind):
        return _lacks_offsets(array.keys) or _lacks_offsets(array.items)
    if types.is_list(kind) or types.is_large_list(kind):
        return _lacks_offsets(array.values)
    return False


def _offset_bytes(kind: pa.DataType) -> int:
    if types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind):
        return 8
    plain = (types.is_string, types.is_binary, types.is_list, types.is_map)
    return 4 if any(is_kind(kind) for is_kind in plain) else 0


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


def table_batches(
    batches: Sequence[pa.RecordBatch], schema: Schema, *, like: pa.Schema | None = None
) -> list[pa.RecordBatch]:
    """Make `batches`, all of the Arrow schema `like`, into batches of `schema.arrow`.

    Columns are found by name. Raises SchemaMismatch where the columns cannot be the schema's, and
    InvalidRecord (its index counts over all batches) where a value does not fit.
    """
    like = batches[0].schema if like is None else like
    check_names(like.names, schema)
    start = 0
    made = []
    for batch in batches:
        if batch.num_rows:
            made += _adapted(batch, start, schema)
            start += batch.num_rows
    if not made:
        _adapted(
            like.empty_table().combine_chunks(), 0, schema
        )  # the types are checked all the same
    return made


def check_names(names: Sequence[str], schema: Schema) -> None:
    """Raise SchemaMismatch unless columns called `names` can fill the fields of `schema`."""
    fields = {field.name: field for field in schema.record.fields}
    for name in names:
        if name not in fields:
            known = ", ".join(list(fields)[:20])
            raise SchemaMismatch(f"the schema has no field {name!r}: drop the column ({known})")
        if list(names).count(name) > 1:
            raise SchemaMismatch(f"there are two columns {name!r}: drop or rename one")
    for field in schema.record.fields:
        if field.default is None and field.name not in names:
            raise SchemaMismatch(f"the column {field.name!r} is missing; the schema asks for it")


def _adapted(batch: pa.RecordBatch | pa.Table, start: int, schema: Schema) -> list[pa.RecordBatch]:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        public = "the Arrow data is broken"
        unfit = ValueMismatch(0, "", f"{public}: {error}", public_reason=public)
        raise unfit.in_write(start) from error
    try:
        arrays = [_column(batch, field) for field in schema.record.fields]
    except ValueMismatch as error:
        raise error.in_write(start) from error
    except ArrayOverflow:
        half = batch.num_rows // 2
        first = _adapted(batch.slice(0, half), start, schema)
        return first + _adapted(batch.slice(half), start + half, schema)
    plain = pa.RecordBatch.from_arrays(arrays, names=schema.arrow.names)
    return [relabelled(plain, schema.arrow)]


def _column(batch: pa.RecordBatch | pa.Table, field: Field) -> pa.Array:
    if field.name not in batch.schema.names:
        default = as_python(json.loads(field.default or "null"), field.type)
        return column([default] * batch.num_rows, field.type, field.name)
    array = batch.column(field.name)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return cast(with_offsets(array), field.type, field.name)


def is_frame(value: object) -> bool:
    """Whether `value` is a pandas.DataFrame or of a class derived from it.

    Its classes' own names tell. `sys.modules` would not: another thread may be importing pandas at
    this moment, and a half-imported module has no DataFrame yet.
    """
    return any(
        kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"
        for kind in type(value).__mro__
    )


def frame_batches(frame: Any, schema: Schema) -> list[pa.RecordBatch]:
    """Make the columns of a pandas dataframe into batches of `schema`; the index is left out.

    Columns of Python objects are checked like records; there, and wherever the field may be null,
    what pandas calls missing (NaN, NaT, NA) is null. Raises as `to_batches` does.
    """
    names = [str(name) for name in frame.columns]
    check_names(names, schema)
    fields = {field.name: field for field in schema.record.fields}
    arrays = [_array(frame.iloc[:, number], fields[name]) for number, name in enumerate(names)]
    table = pa.Table.from_arrays(arrays, names=names)
    return table_batches(table.to_batches(), schema, like=table.schema)


def _array(series: Any, field: Field) -> Any:
    if series.dtype == object:
        missing = series.isna()
        values = series.astype(object).where(~missing, None).tolist()
        try:
            return column(values, field.type, field.name)
        except ValueMismatch as error:
            raise error.in_write() from error
        except ArrayOverflow:
            return pa.array(series, from_pandas=True)
    return pa.array(series, from_pandas=isinstance(field.type, Nullable))
