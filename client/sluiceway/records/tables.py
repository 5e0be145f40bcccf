"""Conversion of records in any form to validated record batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal as Number
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from sluiceway.errors import OptionError, SchemaMismatch
from sluiceway.records.from_python import (
    column,
    copies,
    is_record,
    row_batches,
    row_of,
    scatter,
)
from sluiceway.records.validation import (
    NULL,
    ArrayOverflow,
    ValueMismatch,
    arrow_mismatch,
    check_column,
    describe,
    first_failing,
    in_batches,
    list_contents,
)
from sluiceway.runtime.threads import call
from sluiceway.schema import Schema
from sluiceway.schema import types as t
from sluiceway.schema.arrow import any_of, arrow_type, is_list
from sluiceway.schema.defaults import default_value


@functools.cache
def import_pandas() -> None:
    """Let Arrow import pandas, as it does under a lock when it first converts values.

    It drops an interrupt that comes meanwhile, and further imports of pandas fail. A process that
    is forked meanwhile finds the lock held, and waits forever.
    """
    call(lambda: pa.array(()))


def to_batches(records: object, schema: Schema) -> list[pa.RecordBatch]:
    """Convert `records` to batches of the schema `schema.arrow`, all of them or none.

    `records` is a dict, an instance of a record class, an iterable of them, a pandas.DataFrame
    without its index, or anything with Arrow's C stream or array interface: pyarrow's tables,
    batches and readers, dataframes of polars, relations of DuckDB, … The order is kept. Missing
    fields have their defaults. No records give an empty list.

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
    if is_record(type(records)):
        return row_batches([records], schema)
    if hasattr(type(records), "__arrow_c_stream__"):
        return _stream_batches(records, schema)
    if hasattr(type(records), "__arrow_c_array__"):
        return _table_batches([_records_of(pa.record_batch, records)], schema)
    if hasattr(type(records), "columns") and hasattr(type(records), "dtypes"):
        name = _full_name(records)
        raise OptionError(f"a {name} is not written as it is: {_conversion(records)}")
    if isinstance(records, Iterable) and not isinstance(records, str | bytes | bytearray):
        return row_batches(
            records if isinstance(records, list | tuple) else copies(records), schema
        )
    raise OptionError(f"{describe(records)} is not a record: give {RECORDS}")


RECORDS: Final = (
    "a dict, an instance of a dataclass or another record class, an iterable of them, or a table "
    "or dataframe"
)


def _full_name(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]} {kind.__name__}"


def _conversion(frame: object) -> str:
    """Advise about a frame without Arrow's interface, by the methods that it has."""
    if type(frame).__module__.partition(".")[0] == "pyspark":
        return 'write it in Spark, with df.write.format("channel").mode("append").save(NAME)'
    methods = ("collect", "compute", "to_arrow", "to_pandas")
    method = next((name for name in methods if hasattr(frame, name)), None)
    return "convert it to Arrow or pandas" if method is None else f"write its .{method}()"


def _records_of(import_: Callable[[Any], Any], records: object) -> Any:
    """Return the Arrow data of a foreign object. Raises OptionError unless it is of records."""
    try:
        return import_(records)
    except (pa.ArrowException, TypeError) as error:
        raise OptionError(
            f"a {_full_name(records)} has no records with named fields ({error}): give {RECORDS}"
        ) from error


def _stream_batches(records: object, schema: Schema) -> list[pa.RecordBatch]:
    with _records_of(pa.RecordBatchReader.from_stream, records) as reader:
        like: pa.Schema = reader.schema
        # Names first: reading may take long.
        _check_names(like.names, schema)
        batches = _read_all(reader, records).to_batches()
    return _table_batches(batches, schema, like=like)


def _read_all(reader: pa.RecordBatchReader, records: object) -> pa.Table:
    try:
        return reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise OptionError(
            f"the records of a {_full_name(records)} could not be read, and none was written: "
            f"{error}"
        ) from error


def repeatable(records: Any) -> Any:
    """Return records that can be converted more than once: of iterators and streams a copy."""
    streams = hasattr(type(records), "__arrow_c_stream__") and not _is_frame(records)
    if streams and not isinstance(records, pa.Table | pa.RecordBatch):
        with _records_of(pa.RecordBatchReader.from_stream, records) as reader:
            return _read_all(reader, records)
    return copies(records) if isinstance(records, Iterator) else records


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
    width = 8 if _has_wide_offsets(kind) else 4 if has_offsets(kind) else 0
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
has_offsets = any_of(types.is_string, types.is_binary, types.is_list, types.is_map)
"""Return True for an Arrow type whose arrays contain 32-bit offsets."""


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
    if batch.schema.equals(schema, check_metadata=True):
        return batch
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
    there: set[str] = set()
    for name in names:
        if name not in fields:
            field_names = ", ".join(list(fields)[:20])
            raise SchemaMismatch(
                f"the schema has no field {name!r}: drop the column ({field_names})"
            )
        if name in there:
            raise SchemaMismatch(f"the column {name!r} exists twice: drop or rename one")
        there.add(name)
    for field in schema.record.fields:
        if field.default is None and field.name not in there:
            raise SchemaMismatch(
                f"the column {field.name!r} is missing, and has no default in the schema"
            )


def _adapted(batch: pa.RecordBatch | pa.Table, start: int, schema: Schema) -> list[pa.RecordBatch]:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise arrow_mismatch(batch, error).to_invalid_record(start) from error
    names = frozenset(batch.schema.names)

    def convert(begin: int, end: int) -> pa.RecordBatch:
        part = batch.slice(begin - start, end - begin)
        arrays = [_column(part, names, field) for field in schema.record.fields]
        plain = pa.RecordBatch.from_arrays(arrays, names=schema.arrow.names)
        return with_schema(plain, schema.arrow)

    return in_batches(convert, start, start + batch.num_rows)


def _column(batch: pa.RecordBatch | pa.Table, names: Collection[str], field: t.Field) -> pa.Array:
    """Return the column of `field`, or its defaults; `names` are the column names."""
    if field.name not in names:
        return column([default_value(field)] * batch.num_rows, field.type, field.name)
    if path := t.find_union(t.Record(name=field.name, fields=(field,))):
        raise SchemaMismatch(
            f"the field {path!r} is a union of several types, which tables and dataframes do not "
            "support: write records, such as dicts, instead"
        )
    array = batch.column(field.name)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return _cast(with_valid_offsets(array), field.type, field.name)


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
    fields = {field.name: field for field in schema.record.fields}
    for name in frame.index.names:
        if name in fields and name not in names:
            raise SchemaMismatch(
                f"the field {name!r} is the index of the dataframe, which is not written: make it "
                "a column, with frame.reset_index()"
            )
    _check_names(names, schema)
    arrays = [_array(frame.iloc[:, number], fields[name]) for number, name in enumerate(names)]
    table = pa.Table.from_arrays(arrays, names=names)
    return _table_batches(table.to_batches(), schema, like=table.schema)


def _array(series: Any, field: t.Field) -> Any:
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
        return pa.array(series, from_pandas=isinstance(field.type, t.Nullable))
    except pa.ArrowException as error:
        raise SchemaMismatch(
            f"the column {field.name!r} is {series.dtype}, which Arrow does not have: cast it, for "
            f"instance with frame[{field.name!r}].astype(…)"
        ) from error


_FLOAT: Final = t.Scalar(kind=t.Kind.FLOAT)
_is_text: Final = any_of(types.is_string, types.is_large_string, types.is_string_view)
_is_bytes: Final = any_of(
    types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary
)
_is_wide_text: Final = any_of(types.is_large_string, types.is_large_binary)
_is_number: Final = any_of(types.is_integer, types.is_floating)
_MAX_OFFSET: Final = 2**31 - 1


_SOURCES: Final[dict[type, Callable[[pa.DataType], bool]]] = {
    bool: types.is_boolean,
    int: _is_number,
    float: _is_number,
    str: _is_text,
    bytes: _is_bytes,
    date: types.is_date,
    time: types.is_time,
    Number: any_of(types.is_decimal, types.is_integer),
    UUID: any_of(_is_text, _is_bytes),
}
"""The Arrow types that are accepted for a Python class."""


def _accepts(leaf: t.Leaf, type_: pa.DataType) -> bool:
    if isinstance(leaf, t.Scalar) and leaf.python is datetime:
        return types.is_timestamp(type_) and (type_.tz is not None) == leaf.kind.traits.instant
    return _SOURCES[leaf.python](type_)


def _advice(type_: t.Present) -> str:
    if isinstance(type_, t.Scalar) and type_.python is datetime:
        if type_.kind.traits.instant:
            return "attach their time zone (pyarrow.compute.assume_timezone)"
        return f"cast to {arrow_type(type_)} without a time zone"
    return "cast it"


def _cast(array: pa.Array, type_: t.Type, path: str) -> pa.Array:
    """Cast a valid `array` to the Arrow type of `type_` without loss, and check its values.

    Numbers may have another width or kind, text and bytes other offsets, times and timestamps
    another unit, decimals other digits; dictionaries are decoded. Names and nullability of nested
    types may still differ from the schema's. Raises
    SchemaMismatch for an array of another type, ValueMismatch for a value that does not fit, and
    ArrayOverflow.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if types.is_dictionary(array.type):
        array = _decoded(array)
    present = t.present(type_)
    target = arrow_type(present)
    if array.type.equals(target):
        check_column(array, type_, path)
        return array
    if array.null_count and not isinstance(type_, t.Nullable):
        raise ValueMismatch(int(np.flatnonzero(array.is_null())[0]), path, NULL)
    if types.is_null(array.type):
        return pa.nulls(len(array), target)
    if not isinstance(present, t.Record | t.Array | t.Map | t.Union):
        return _leaves(array, present, path)
    if not array.null_count:
        return _nested(array, present, path)
    valid = np.flatnonzero(array.is_valid())
    places = valid.tolist()
    try:
        return scatter(_nested(array.take(pa.array(valid)), present, path), places, len(array))
    except ValueMismatch as error:
        raise error.at_position(places[error.position]) from error


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    kind = array.type.value_type
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # Earlier versions of Arrow cannot take values from views, which polars exports.
        plain = pa.string() if types.is_string_view(kind) else pa.binary()
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(plain))
    return array.dictionary_decode()


def _leaves(array: pa.Array, leaf: t.Leaf, path: str) -> pa.Array:
    if not _accepts(leaf, array.type):
        raise _mismatch(path, array.type, leaf)
    target = arrow_type(leaf)
    if isinstance(leaf, t.Decimal) and types.is_integer(array.type):
        array = array.cast(pa.decimal128(20, 0))  # 64 bits have up to 20 digits
    if _is_wide_text(array.type):
        array = _with_narrow_offsets(array)
    try:
        cast_array = _uuids(array, leaf, path) if isinstance(leaf, t.Uuid) else array.cast(target)
    except pa.ArrowInvalid as error:
        position, why = _find_failure(array, pa.binary(16) if isinstance(leaf, t.Uuid) else target)
        public = f"it cannot be converted to {target}"
        raise ValueMismatch(position, path, f"{public}: {why}", public_reason=public) from error
    if isinstance(cast_array, pa.ChunkedArray):
        raise ArrayOverflow
    if leaf == _FLOAT and pc.any(pc.is_inf(cast_array)).as_py():
        finite = pc.is_finite(array.cast(pa.float64()))
        lost = pc.fill_null(pc.and_(pc.is_inf(cast_array), finite), False)
        for position in np.flatnonzero(lost).tolist():
            problem = "is too large for a float"
            reason = f"{describe(array[position].as_py())} {problem}"
            raise ValueMismatch(position, path, reason, public_reason=f"it {problem}")
    check_column(cast_array, t.Nullable(item=leaf), path)
    return cast_array


def _with_narrow_offsets(array: pa.Array) -> pa.Array:
    """Return a text or binary array whose offsets fit in 32 bits. Raises ArrayOverflow.

    Arrow's cast refuses larger offsets, also of a short slice behind 2 GiB of other values.
    """
    if not len(array):
        return array
    offsets = np.frombuffer(array.buffers()[1], np.int64, array.offset + len(array) + 1)
    begin, end = offsets[array.offset], offsets[-1]
    if end - begin > _MAX_OFFSET:
        raise ArrayOverflow
    # `take` builds a new array.
    return array if end <= _MAX_OFFSET else array.take(pa.array(np.arange(len(array))))


def _uuids(array: pa.Array, leaf: t.Uuid, path: str) -> pa.Array:
    """Convert text to bytes or bytes to text, the storage type of `leaf`."""
    target = arrow_type(leaf)
    if _is_text(array.type) is _is_text(target):
        return array.cast(target)
    if _is_text(array.type):
        text = array.cast(pa.string())
        check_column(text, t.Nullable(item=t.Uuid()), path)
        return pa.array([value and UUID(value).bytes for value in text.to_pylist()], target)
    values = array.cast(pa.binary(16)).to_pylist()
    return pa.array([value and str(UUID(bytes=value)) for value in values], target)


def _find_failure(array: pa.Array, target: pa.DataType) -> tuple[int, str]:
    """Return the position of a value that cannot be cast to `target`, and the reason.

    Raises ArrayOverflow if each value can be cast, but together they are too large.
    """

    def is_cast(begin: int, count: int) -> bool:
        try:
            array.slice(begin, count).cast(target)
        except pa.ArrowInvalid:
            return False
        return True

    position = first_failing(len(array), is_cast)
    try:
        array.slice(position, 1).cast(target)
    except pa.ArrowInvalid as error:
        return position, str(error)
    raise ArrayOverflow


def _nested(array: pa.Array, type_: t.Present, path: str) -> pa.Array:
    """Cast a nested array without nulls."""
    match type_:
        case t.Record() if types.is_struct(array.type):
            return _structs(array, type_, path)
        case t.Array(items=items) if is_list(array.type):
            offsets, (values,) = _contents_of_any_list(array)
            made = _inside(values, items, f"{path}[]", offsets)
            return pa.ListArray.from_arrays(_narrow(offsets), made)
        case t.Map(values=items) if types.is_map(array.type):
            offsets, (keys, values) = list_contents(array)
            key_array = _inside(keys, t.Scalar(kind=t.Kind.STRING), f"{path}{{}}", offsets)
            made = _inside(values, items, f"{path}{{}}", offsets)
            maps = pa.MapArray.from_arrays(_narrow(offsets), key_array, made)
            check_column(maps, type_, path)
            return maps
    raise _mismatch(path, array.type, type_)


def _contents_of_any_list(array: pa.Array) -> tuple[Any, list[pa.Array]]:
    """Return the `list_contents` of any of Arrow's list types."""
    if types.is_list(array.type):
        return list_contents(array)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(pc.list_value_length(array).to_numpy(), out=offsets[1:])
    return offsets, [pc.list_flatten(array)]


def _structs(array: pa.Array, record: t.Record, path: str) -> pa.Array:
    there = [field.name for field in array.type]
    wanted = [field.name for field in record.fields]
    if sorted(there) != sorted(wanted):
        raise SchemaMismatch(
            f"the field {path!r} has the fields {', '.join(there)}, but the schema has "
            f"{', '.join(wanted)}"
        )
    made = [
        _cast(array.field(there.index(field.name)), field.type, t.join_path(path, field.name))
        for field in record.fields
    ]
    return pa.StructArray.from_arrays(made, names=wanted)


def _inside(values: pa.Array, type_: t.Type, path: str, offsets: Any) -> pa.Array:
    try:
        return _cast(values, type_, path)
    except ValueMismatch as error:
        raise error.at_position(row_of(offsets, error.position)) from error


def _narrow(offsets: Any) -> pa.Array:
    if offsets[-1] > _MAX_OFFSET:
        raise ArrayOverflow
    return pa.array(offsets.astype(np.int32))


def _mismatch(path: str, actual: pa.DataType, wanted: t.Present) -> SchemaMismatch:
    return SchemaMismatch(
        f"the field {path!r} is {actual}, but the schema has {arrow_type(wanted)}; "
        f"{_advice(wanted)}"
    )
