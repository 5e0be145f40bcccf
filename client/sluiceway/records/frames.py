"""Dataframes of pandas and polars, made of Arrow tables without loss."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sluiceway.errors import OptionError
from sluiceway.records.to_python import to_records

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

__all__ = ["require_library", "to_pandas", "to_polars"]


def require_library(name: str, method: str) -> None:
    """Raise OptionError unless a library can be imported."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise OptionError(
            f"{method}() needs {name}, which cannot be imported ({error}): pip install {name}"
        ) from error


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """Return a dataframe; integers and booleans of nullable fields have pandas' nullable types."""
    import pandas as pd

    nullable = {
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }

    def series(field: pa.Field) -> Any:
        if pa.types.is_nested(field.type):
            # pandas would make arrays of NumPy, and round integers beside nulls.
            batches = table.select([field.name]).to_batches()
            records = [record for batch in batches for record in to_records(batch)]
            return pd.Series([record[field.name] for record in records], dtype=object)
        return table.column(field.name).to_pandas(
            types_mapper=nullable.get if field.nullable else None
        )

    return pd.DataFrame({field.name: series(field) for field in table.schema})


def to_polars(table: pa.Table) -> pl.DataFrame:
    """Return a dataframe of polars."""
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)  # noqa: S101 - of a table
    return frame
