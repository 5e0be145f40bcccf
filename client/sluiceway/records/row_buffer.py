"""Row buffer: checks single records one at a time, and converts them to Arrow columns together."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, time, timezone
from decimal import Decimal as Number
from operator import itemgetter
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from sluiceway.records.from_python import column, copied
from sluiceway.records.unions import candidates
from sluiceway.schema import Schema
from sluiceway.schema import types as t
from sluiceway.schema.classes import record_class
from sluiceway.schema.defaults import default_value

__all__ = ["FULL", "RowBuffer", "Rows"]

FULL: Final = 1_000
"""The number of rows at which columnar conversion reaches its speed."""
_MAX_BYTES: Final = 1_000_000
_MAX_SHORT_LIST: Final = 16
"""Longer lists are faster to convert to columns than to check row by row."""
_VALUE_BYTES: Final = 16
"""An upper bound of the encoded size of a value without text or bytes, or of a length."""
_MAX_KIND_SETS: Final = 1_000
_TEXT: Final = t.Scalar(kind=t.Kind.STRING)
_UNCERTAIN: Final = -1

_Check = Callable[[Any], int]
"""Returns an upper bound of a value's variable size in bytes, or _UNCERTAIN."""


class Rows:
    """Records that `RowBuffer.check` has accepted, or the key of a delete.

    `values` has a tuple for each record, in the order of the schema's fields, or the key's bytes;
    `size_bytes` is an upper bound of their encoded size.
    """

    __slots__ = ("size_bytes", "values")

    def __init__(self, deleted_key: bytes | None = None) -> None:
        self.values: list[Any] = [] if deleted_key is None else [deleted_key]
        self.size_bytes = 0 if deleted_key is None else len(deleted_key) + _VALUE_BYTES


class RowBuffer:
    """Rows that are certain to convert and to fit into one message each.

    `check` accepts common types of values, which it can validate without conversion. Anything else
    (a subclass, a NumPy scalar, a text for a UUID, a value that does not fit) is left to
    `to_batches`, which converts it or raises. So an accepted record cannot be refused later.

    Thread-safe. Rows are drained in the order in which they were added.
    """

    def __init__(
        self,
        schema: Schema,
        *,
        max_row_bytes: int,
        accepts: Callable[[Sequence[Any]], bool] | None = None,
    ) -> None:
        """Accept rows of at most `max_row_bytes` when encoded, and of values that `accepts` allows.

        `accepts` gets the valid values of the schema's fields; None allows all.
        """
        record = schema.record
        self._schema = schema
        self._fields = record.fields
        self._names = frozenset(field.name for field in record.fields)
        self._values_of = _getter([field.name for field in record.fields])
        self._defaults = {
            field.name: default_value(field) for field in record.fields if field.default is not None
        }
        self._max_row_bytes = max_row_bytes
        self._accepts = accepts
        self._allowed = [_allowed(field.type) for field in record.fields]
        self._known_kinds: set[tuple[type, ...]] = set()
        # Integers and text, the most frequent fields, are checked without a call.
        self._integers: list[tuple[int, int, int]] = []
        self._texts: list[int] = []
        self._checks: list[tuple[int, _Check]] = []
        self._nested: list[int] = []
        for index, field in enumerate(record.fields):
            present = t.present(field.type)
            if isinstance(present, t.Scalar) and present.python is int:
                self._integers.append((index, *present.kind.range))
            elif present == _TEXT:
                self._texts.append(index)
            elif (check := _check(present)) is not None:
                self._checks.append((index, check))
            if isinstance(present, t.Array | t.Map | t.Record | t.Union):
                self._nested.append(index)
        self._fixed_bytes = _VALUE_BYTES * len(record.fields)
        # No call is made with it held: a signal's handler that writes or flushes may come there.
        self._lock = threading.Lock()
        self._rows: list[Any] = []
        self._count = self._size_bytes = 0
        self.added = 0
        """The number of rows added so far."""
        self._closed = False

    def check(self, records: object) -> Rows | None:
        """Return the rows of one record or a short list; None unless all are certain to convert.

        The rows are copies: the caller may change its records afterwards.
        """
        # A NamedTuple is one record.
        several = type(records) is tuple or isinstance(records, list)
        items: Sequence[Any] = records if several else (records,)  # type: ignore[assignment]
        if len(items) > _MAX_SHORT_LIST:
            return None
        rows = Rows()
        for record in items:
            if not self._check_into(rows, record):
                return None
        return rows

    def add(self, rows: Rows) -> int:
        """Append rows that `check` has returned, and return the number of buffered rows.

        Returns 0 if the buffer is closed, and at least FULL if the size of the rows requires a
        drain.
        """
        count = len(rows.values)
        with self._lock:
            if self._closed:
                return 0
            self._rows += rows.values
            self._count += count
            self._size_bytes += rows.size_bytes
            self.added += count
            return self._count if self._size_bytes < _MAX_BYTES else FULL

    def close(self) -> None:
        """Accept no more rows; buffered ones can still be drained."""
        with self._lock:
            self._closed = True

    def drain(self) -> list[pa.RecordBatch | list[bytes]]:
        """Remove all rows and return them as batches, and deletes between them as lists of keys."""
        with self._lock:
            rows, self._rows, self._count, self._size_bytes = self._rows, [], 0, 0
        if bytes not in set(map(type, rows)):
            return [*self.to_batches(rows)]
        drained: list[pa.RecordBatch | list[bytes]] = []
        for kind, group in itertools.groupby(rows, type):
            run = list(group)
            drained += [run] if kind is bytes else self.to_batches(run)
        return drained

    def to_batches(self, rows: Sequence[tuple[Any, ...]]) -> list[pa.RecordBatch]:
        """Convert the values of rows that `check` has returned."""
        if not rows:
            return []
        arrays = [
            column(values, field.type, field.name)
            for values, field in zip(zip(*rows, strict=True), self._fields, strict=True)
        ]
        return [pa.RecordBatch.from_arrays(arrays, schema=self._schema.arrow)]

    def _check_into(self, rows: Rows, record: Any) -> bool:
        """Append a record to `rows` if it is certain to convert; return whether it is."""
        if type(record) is not dict:
            cls = None if isinstance(record, Mapping) else record_class(type(record))
            if cls is None:
                return False
            record = cls.values(record)
        try:
            values = self._values_of(record)
        except KeyError:
            record = self._defaults | record
            if record.keys() != self._names:
                return False
            values = self._values_of(record)
        if len(record) != len(values):
            return False
        kinds = tuple(map(type, values))
        if kinds not in self._known_kinds and not self._learn(kinds):
            return False
        size = self._fixed_bytes
        for index, low, high in self._integers:
            value = values[index]
            if value is not None and not low <= value <= high:
                return False
        for index in self._texts:
            value = values[index]
            if value is not None:
                if value.isascii():
                    size += len(value)
                elif (encoded := _text_bytes(value)) >= 0:
                    size += encoded
                else:
                    return False
        for index, check in self._checks:
            value = values[index]
            if value is not None:
                extra = check(value)
                if extra < 0:
                    return False
                size += extra
        if size > self._max_row_bytes or not (self._accepts is None or self._accepts(values)):
            return False
        if self._nested:
            changed = list(values)
            for index in self._nested:
                changed[index] = copied(changed[index])
            values = tuple(changed)
        rows.values.append(values)
        rows.size_bytes += size
        return True

    def _learn(self, kinds: tuple[type, ...]) -> bool:
        """Whether the fields accept values of these types; remembered if so."""
        if not all(map(frozenset.__contains__, self._allowed, kinds)):
            return False
        if len(self._known_kinds) < _MAX_KIND_SETS:
            self._known_kinds.add(kinds)
        return True


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda record: tuple(record[name] for name in names)


def _allowed(type_: t.Type) -> frozenset[type]:
    """Return the types of values that a field accepts without conversion."""
    kinds: set[type]
    match t.present(type_):
        case t.Array():
            kinds = {list, tuple}
        case t.Map() | t.Record():
            kinds = {dict}
        case t.Union() as union:
            kinds = set(_certain_branches(union))
        case leaf:
            kinds = {leaf.python}
    return frozenset(kinds | {type(None)} if isinstance(type_, t.Nullable) else kinds)


def _certain_branches(union: t.Union) -> dict[type, t.Branch]:
    """Return the branch by type of value, where the type determines it."""
    branches: dict[type, t.Branch] = {}
    kinds = {kind for branch in union.branches for kind in _allowed(branch)}
    for kind in kinds - {tuple}:  # a tuple may name a branch
        first, *others = candidates(kind, union)
        branch = union.branches[first]
        # With several branches, the first one that fits takes a value, except for records.
        if kind in _allowed(branch) and not (others and isinstance(branch, t.Map | t.Record)):
            branches[kind] = branch
    return branches


def _check(type_: t.Present) -> _Check | None:
    """Return the check of values of an allowed type; None if every value fits."""
    match type_:
        case t.Scalar(kind=kind):
            return _scalar_check(kind)
        case t.Fixed(size=size):
            return lambda value: size if len(value) == size else _UNCERTAIN
        case t.Decimal(precision=precision, scale=scale):
            return _decimal_check(precision, scale)
        case t.Uuid():
            return lambda _: t.UUID_TEXT_BYTES  # its longest form
        case t.Enum(symbols=symbols):
            # Text in Arrow messages, an index in Avro.
            sizes = {symbol: len(symbol) for symbol in symbols}
            return lambda value: sizes.get(value, _UNCERTAIN)
        case t.Array(items=items):
            item = _item_check(items)
            return lambda value: _sum_of(map(item, value))
        case t.Map(values=items):
            return _map_check(_item_check(items))
        case t.Record():
            return _record_check(type_)
        case t.Union():
            return _union_check(type_)


def _union_check(union: t.Union) -> _Check:
    checks = {kind: _check(branch) for kind, branch in _certain_branches(union).items()}

    def check(value: Any) -> int:
        certain = checks[type(value)]
        return 0 if certain is None else certain(value)

    return check


def _scalar_check(kind: t.Kind) -> _Check | None:
    python = kind.traits.python
    if python is int:
        low, high = kind.range
        return lambda value: 0 if low <= value <= high else _UNCERTAIN
    if kind is t.Kind.FLOAT:
        return lambda value: (
            0 if -t.FLOAT_MAX <= value <= t.FLOAT_MAX or not math.isfinite(value) else _UNCERTAIN
        )
    if kind is t.Kind.STRING:
        return _text_bytes
    if kind is t.Kind.BYTES:
        return len
    if python is time:
        step = t.MICROSECONDS // min(kind.ticks, t.MICROSECONDS)
        return lambda value: (
            0 if value.tzinfo is None and not value.microsecond % step else _UNCERTAIN
        )
    return _timestamp_check(kind) if python is datetime else None


def _text_bytes(value: str) -> int:
    if value.isascii():
        return len(value)
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        return _UNCERTAIN


def _timestamp_check(kind: t.Kind) -> _Check:
    step = t.MICROSECONDS // min(kind.ticks, t.MICROSECONDS)
    # Inside the range in every time zone; years near the limits are converted first.
    first, last = (1700, 2200) if kind.ticks > t.MICROSECONDS else (2, 9998)
    zones = (timezone, ZoneInfo) if kind.traits.instant else (type(None),)

    def check(value: datetime) -> int:
        fits = (
            type(value.tzinfo) in zones
            and first <= value.year <= last
            and not value.microsecond % step
        )
        return 0 if fits else _UNCERTAIN

    return check


def _decimal_check(precision: int, scale: int) -> _Check:
    def check(value: Number) -> int:
        _, digits, exponent = value.as_tuple()
        fits = (
            isinstance(exponent, int)
            and exponent >= -scale
            and len(digits) + exponent <= precision - scale
        )
        return precision if fits else _UNCERTAIN

    return check


def _item_check(type_: t.Type) -> _Check:
    """Return a check of values of any type, which also counts their fixed size."""
    allowed = _allowed(type_)
    check = _check(t.present(type_))

    def item(value: Any) -> int:
        if type(value) not in allowed:
            return _UNCERTAIN
        extra = 0 if check is None or value is None else check(value)
        return extra if extra < 0 else extra + _VALUE_BYTES

    return item


def _sum_of(sizes: Any) -> int:
    total = 0
    for size in sizes:
        if size < 0:
            return _UNCERTAIN
        total += size
    return total


def _map_check(item: _Check) -> _Check:
    key = _item_check(t.Scalar(kind=t.Kind.STRING))

    def check(value: dict[Any, Any]) -> int:
        keys = _sum_of(map(key, value))
        items = _sum_of(map(item, value.values()))
        return _UNCERTAIN if keys < 0 or items < 0 else keys + items

    return check


def _record_check(record: t.Record) -> _Check:
    checks = {field.name: _item_check(field.type) for field in record.fields}

    def check(value: dict[Any, Any]) -> int:
        if value.keys() != checks.keys():
            return _UNCERTAIN
        return _sum_of(checks[name](item) for name, item in value.items())

    return check
