"""Dataframes of pandas made into record batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sluiceway.records.columns import column
from sluiceway.records.tables import check_names, table_batches
from sluiceway.records.unfit import TooMuch, Unfit
from sluiceway.schema.types import Field, Nullable

if TYPE_CHECKING:
    from sluiceway.schema import Schema


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
        except Unfit as error:
            raise error.in_write() from error
        except TooMuch:
            return pa.array(series, from_pandas=True)
    return pa.array(series, from_pandas=isinstance(field.type, Nullable))
