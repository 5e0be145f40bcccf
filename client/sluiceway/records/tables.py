"""Arrow tables and batches brought to the types of a schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sluiceway.errors import SchemaMismatch
from sluiceway.records.casts import cast
from sluiceway.records.columns import column
from sluiceway.records.offsets import with_offsets
from sluiceway.records.unfit import TooMuch, Unfit
from sluiceway.schema.defaults import as_python
from sluiceway.schema.labels import relabelled
from sluiceway.schema.types import Field

if TYPE_CHECKING:
    from sluiceway.schema import Schema


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
        unfit = Unfit(0, "", f"{public}: {error}", public_reason=public)
        raise unfit.in_write(start) from error
    try:
        arrays = [_column(batch, field) for field in schema.record.fields]
    except Unfit as error:
        raise error.in_write(start) from error
    except TooMuch:
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
