"""Columns in the form that Avro stores them in, and back: logical types and plain ones.

Most logical types are their plain ones under another label, in Avro and in Arrow alike: a date is
an int, the text of a UUID a string. Such columns are relabelled without a copy. Decimals and enums
are made anew, whole columns at a time, wherever in a column they are; the columns beside them are
left alone.

Nothing here raises for what the values are. A stored value that stands for none becomes one that
`sluiceway.records.validation` refuses.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.codecs.plain import plain
from sluiceway.codecs.remaking import Remaking
from sluiceway.codecs.unscaled import (
    decimals_of_bytes,
    decimals_of_fixed,
    fixed_of_decimals,
    shortest_of_decimals,
)
from sluiceway.schema.arrow import to_arrow
from sluiceway.schema.types import Decimal, Enum, Fixed, Leaf, Record

NO_SYMBOL: Final = ""
"""What the number of no symbol is read as."""


class Storage:
    """Batches of `record` to batches of its plain form, and back."""

    def __init__(self, record: Record) -> None:
        self.record = plain(record)
        self.arrow = to_arrow(self.record)
        self._store = Remaking(record, self.arrow, _is_made, _stored)
        self._load = Remaking(record, to_arrow(record), _is_made, _loaded)

    def store(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Turn a batch of the record's Arrow form into one of the plain record's, `arrow`."""
        return self._store.of(batch)

    def load(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Turn a batch of the plain record into one of the record's form, not yet checked."""
        return self._load.of(batch)


def _is_made(leaf: Leaf) -> bool:
    return isinstance(leaf, Decimal | Enum)


def _stored(array: pa.Array, leaf: Leaf) -> pa.Array:
    match leaf:
        case Enum(symbols=symbols):
            return pc.index_in(array, value_set=pa.array(symbols))
        case Decimal(fixed=Fixed(size=size)):
            return fixed_of_decimals(array, size)
        case Decimal():
            return shortest_of_decimals(array)
    raise AssertionError(leaf)


def _loaded(array: pa.Array, leaf: Leaf) -> pa.Array:
    match leaf:
        case Enum(symbols=symbols):
            numbers: Any = pc.fill_null(array, 0).to_numpy()
            known = (numbers >= 0) & (numbers < len(symbols))
            places = np.where(known, numbers, len(symbols))
            mask = np.asarray(array.is_null()) if array.null_count else None
            return pa.array([*symbols, NO_SYMBOL]).take(pa.array(places, mask=mask))
        case Decimal(fixed=None):
            return decimals_of_bytes(array, leaf)
        case Decimal():
            return decimals_of_fixed(array, leaf)
    raise AssertionError(leaf)
