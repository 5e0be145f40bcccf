"""Columnar JSON decoder on pyarrow's reader, for schemas without maps.

pyarrow reads many objects at once, but not one text a message. So each message is put into arrays
of its own, and must be their only item. If pyarrow ignores unknown fields, it does so also beside
the arrays: a message could close them, and open others under another name. It would have to close
as many arrays as there are around it, so there are more than messages close in a row.

All messages that pyarrow reads otherwise than the strict reader are reported as suspect: NaN and
Infinity without quotes, values that its types do not exclude, and nulls, which it does not
distinguish from missing fields.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import time
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from sluiceway.codecs.avro_strict import BUDGET_PER_BYTE, CELL_BYTES, width
from sluiceway.codecs.base import RUN_BYTES
from sluiceway.codecs.json_strict import (
    default_of,
    text_parser,
    without_prefix,
)
from sluiceway.codecs.record_messages import NotDecodable
from sluiceway.records.validation import invalid_values
from sluiceway.schema import types as t
from sluiceway.schema.arrow import arrow_type
from sluiceway.schema.json_schema import moment_text

_DIGITS_OF_128_BITS: Final = 38
_ARRAYS: Final = 6
"""The number of arrays around a message that may have unknown fields."""
_CLOSED_ARRAYS: Final = re.compile(rb"\](?:[ \t\r\n]*\]){%d}" % (_ARRAYS - 1))

_SCALED: Final = r'[:,\[" \t\r\n][+-]?[0-9.]+[Ee][+-]?[0-9]+[" \t\r\n,\]}]|\.[0-9]{39}|\\u'
"""Numbers with an exponent or more than 38 digits behind the point, or an escape that may be a part
of one: pyarrow reads beyond a table of powers of ten when it makes decimals of some, and may crash.
"""

_NOT_FINITE: Final = r"[:,\[ \t\r\n]-?(NaN|Inf)"
"""What pyarrow reads as numbers that JSON does not have, such as `Infinit1`."""

_Rows = np.ndarray[Any, Any]


def supports(record: t.Record) -> bool:
    """Return whether pyarrow reads messages of `record`, in memory proportional to their bytes."""
    expansion = 0
    for type_ in t.walk(record):
        if isinstance(type_, t.Map | t.Union):
            return False
        if isinstance(type_, t.Decimal) and type_.precision + type_.scale > t.MAX_DIGITS:
            return False
        if isinstance(type_, t.Array):
            # An item has two bytes at least: one digit and a comma.
            expansion += CELL_BYTES * width(type_.items) // 2
    return expansion <= BUDGET_PER_BYTE


class ColumnarJsonReader:
    """Decoder for messages of `record`."""

    def __init__(self, record: t.Record, schema: pa.Schema) -> None:
        self._record = record
        self._schema = schema
        type_ = _read_type(record)
        self._exact = _Wrapping(type_, 1, unknown_fields="error")
        self._tolerant = _Wrapping(type_, _ARRAYS, unknown_fields="ignore")
        self._unknown_fields = False
        leaves = [type_ for type_ in t.walk(record) if isinstance(type_, t.Leaf)]
        self._has_floats = any(leaf.python is float for leaf in leaves)
        self._has_decimals = any(isinstance(leaf, t.Decimal) for leaf in leaves)

    def decode(self, values: Sequence[bytes | None]) -> tuple[pa.RecordBatch, list[int]]:
        """Decode a row from each message; return also the rows that need the strict reader.

        Raises NotDecodable.
        """
        messages = _Messages(values)
        try:
            together = b"\n".join(messages.texts)
        except TypeError:  # a tombstone
            messages.set_aside([value is None for value in values])
            together = b"\n".join(messages.texts)
        if len(together) > RUN_BYTES:
            raise NotDecodable
        if b"\0" in together:
            messages.texts = [*map(without_prefix, messages.texts)]
            together = b"\n".join(messages.texts)
        if not together.isascii():
            try:
                together.decode()
            except UnicodeDecodeError as error:
                raise NotDecodable from error
        if self._has_decimals:
            messages.set_aside(messages.matches(_SCALED))
        try:
            rows = self._read(messages, together)
        except NotDecodable:
            # The texts of floats that are no numbers, which pyarrow does not read as floats.
            not_finite = [b'"NaN"' in text or b'Infinity"' in text for text in messages.texts]
            if not self._has_floats or not any(not_finite):
                raise
            messages.set_aside(not_finite)
            rows = self._read(messages, together)
        columns = _fields(rows, self._record, np.arange(len(values)), messages)
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return batch, sorted(messages.suspect)

    def _read(self, messages: _Messages, together: bytes) -> pa.StructArray:
        """Return the objects; `together` has the texts of all messages. Raises NotDecodable."""
        if not self._unknown_fields:
            try:
                return self._exact.read(messages.texts)
            except NotDecodable:
                pass  # for instance because of an unknown field
        if _CLOSED_ARRAYS.search(together):
            raise NotDecodable
        # The search for one letter is much faster.
        if any(word[:1] in together and word in together for word in (b"NaN", b"Inf")):
            messages.set_aside(messages.matches(_NOT_FINITE))
        rows = self._tolerant.read(messages.texts)
        self._unknown_fields = True
        return rows


class _Wrapping:
    """Messages in so many arrays each."""

    def __init__(self, type_: pa.DataType, depth: int, *, unknown_fields: str) -> None:
        for _ in range(depth):
            type_ = pa.list_(type_)
        self._depth = depth
        self._before, self._after = b'{"m":' + b"[" * depth, b"]" * depth + b"}\n"
        self._options = arrow_json.ParseOptions(
            explicit_schema=pa.schema([("m", type_)]), unexpected_field_behavior=unknown_fields
        )

    def read(self, values: Sequence[Any]) -> pa.StructArray:
        """Return the objects, one a message. Raises NotDecodable."""
        between = self._after + self._before
        text = b"".join((self._before, between.join(values), self._after))
        try:
            table = arrow_json.read_json(
                pa.py_buffer(text),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=self._options,
            )
        except pa.ArrowInvalid as error:
            raise NotDecodable from error
        array = table.column(0).combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0)
        for _ in range(self._depth):
            # One item in each array: neither none, nor one of another message.
            if len(array) != len(values) or array.null_count:
                raise NotDecodable
            if (np.diff(array.offsets.to_numpy()) != 1).any():
                raise NotDecodable
            array = array.flatten()
        if len(array) != len(values) or array.null_count:
            raise NotDecodable
        return array


class _Messages:
    """The messages being decoded, and the indices of the suspect ones."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.suspect: set[int] = set()
        self.texts = values
        self._array: pa.Array | None = None

    def set_aside(self, chosen: Sequence[bool] | _Rows) -> None:
        """Suspect the chosen messages, and replace them by an object that pyarrow reads."""
        indices = np.flatnonzero(chosen).tolist()
        if indices:
            self.suspect.update(indices)
            self.texts = list(self.texts)
            for index in indices:
                self.texts[index] = b"{}"
            self._array = None

    def matches(self, pattern: str) -> _Rows:
        """Return which messages match a regular expression of RE2."""
        return np.asarray(pc.match_substring_regex(self._binary(), pattern))

    def suspect_rows(self, rows: _Rows) -> None:
        """Suspect the messages with these indices; -1 is none."""
        self.suspect.update(rows[rows >= 0].tolist())

    def mention(self, name: str) -> _Rows:
        """Return which messages may have a field of this name: no other does."""
        # A name may be written with escapes.
        mentions = (pc.match_substring(self._binary(), text) for text in (f'"{name}"', "\\u"))
        named, escaped = (np.asarray(mention) for mention in mentions)
        either: _Rows = named | escaped
        return either

    def _binary(self) -> pa.Array:
        if self._array is None:
            self._array = pa.array(self.texts, pa.binary())
        return self._array


def _read_type(type_: t.Type) -> pa.DataType:
    """Return the Arrow type as which pyarrow reads `type_`: text where JSON has no such type."""
    match t.present(type_):
        case t.Record(fields=fields):
            types: dict[str, pa.DataType] = {}
            for field in fields:
                for name in (field.name, *field.aliases):
                    types.setdefault(name, _read_type(field.type))
            return pa.struct([pa.field(name, kind) for name, kind in types.items()])
        case t.Array(items=items):
            return pa.list_(_read_type(items))
        case t.Scalar(kind=kind) as scalar if kind.physical is kind and kind is not t.Kind.BYTES:
            return arrow_type(scalar)
        case t.Decimal(precision=precision, scale=scale):
            # pyarrow checks the digits of the text only, and then multiplies without a check: the
            # type must have room for as many digits, and the scale behind them.
            if precision + scale <= _DIGITS_OF_128_BITS:
                return pa.decimal128(_DIGITS_OF_128_BITS - scale, scale)
            return pa.decimal256(t.MAX_DIGITS - scale, scale)
    return pa.string()


def _fields(
    array: pa.StructArray, record: t.Record, rows: _Rows, messages: _Messages
) -> list[pa.Array]:
    """Return the columns of `record`; `rows` are the messages of the objects, -1 below a null."""
    columns = dict(zip(array.type.names, array.flatten(), strict=True))
    return [
        _field([columns[name] for name in (field.name, *field.aliases)], field, rows, messages)
        for field in record.fields
    ]


def _field(arrays: list[pa.Array], field: t.Field, rows: _Rows, messages: _Messages) -> pa.Array:
    """Return the values of `field`, or its default where it is missing.

    `arrays` are the values under its name and its aliases.
    """
    default = default_of(field)
    nullable = isinstance(field.type, t.Nullable)
    array = arrays[0]
    if not array.null_count:
        return _values(array, field.type, rows, messages)
    absent = np.asarray(array.is_null()) & (rows >= 0)
    if len(arrays) == 1 and (default is None or not default[0].is_valid):
        # Null and missing are the same, or both malformed.
        if not nullable:
            messages.suspect_rows(rows[absent])
        return _values(array, field.type, rows, messages)
    for name, spelled in zip((field.name, *field.aliases), arrays, strict=True):
        if spelled is not array:
            array = pc.coalesce(array, spelled)
            absent &= np.asarray(spelled.is_null())
        mentioned = absent & messages.mention(name)[rows]
        messages.suspect_rows(rows[mentioned])
        absent &= ~mentioned
    made = _values(array, field.type, np.where(absent, -1, rows), messages)
    if default is None:
        messages.suspect_rows(rows[absent])
        return made
    places = np.where(absent, len(made), np.arange(len(made)))
    return pa.concat_arrays([made, default]).take(pa.array(places))


def _values(array: pa.Array, type_: t.Type, rows: _Rows, messages: _Messages) -> pa.Array:
    """Convert `array` to the Arrow type of `type_`; suspect the messages of other values."""
    if array.null_count:
        nulls = np.asarray(array.is_null())
        if not isinstance(type_, t.Nullable):
            messages.suspect_rows(rows[nulls])
        rows = np.where(nulls, -1, rows)
    target = arrow_type(type_)
    match t.present(type_):
        case t.Record() as record:
            mask = array.is_null() if array.null_count else None
            columns = _fields(array, record, rows, messages)
            return pa.StructArray.from_arrays(columns, fields=list(target), mask=mask)
        case t.Array(items=items):
            lengths = np.asarray(pc.list_value_length(array).fill_null(0))
            values = _values(array.flatten(), items, np.repeat(rows, lengths), messages)
            offsets = np.zeros(len(array) + 1, np.int32)
            np.cumsum(lengths, out=offsets[1:])
            mask = array.is_null() if array.null_count else None
            return pa.ListArray.from_arrays(pa.array(offsets), values, type=target, mask=mask)
        case leaf:
            made, invalid = _leaves(array, leaf)
            if len(invalid):
                messages.suspect_rows(rows[invalid])
            return made


_NONE: Final = np.empty(0, np.int64)


def _leaves(array: pa.Array, leaf: Any) -> tuple[pa.Array, _Rows]:
    """Return the values of `leaf`, and the positions of those that are none."""
    match leaf:
        case t.Scalar(kind=t.Kind.FLOAT | t.Kind.DOUBLE):
            finite = pc.is_finite(array)
            return array, _positions(finite)
        case t.Scalar(kind=t.Kind.BYTES) | t.Fixed() | t.Uuid(fixed=t.Fixed()):
            return _parsed(array, leaf)
        case t.Scalar(kind=kind) if kind.physical is not kind:
            return _moments(array, leaf)
        case t.Decimal():
            invalid = invalid_values(array, leaf)
            if len(invalid):
                valid = np.ones(len(array), np.bool_)
                valid[invalid] = False
                array = pc.if_else(pa.array(valid), array, None)
            return array.cast(arrow_type(leaf)), invalid
        case t.Enum(symbols=symbols, default=str(default)):
            is_symbol = pc.is_in(array, value_set=pa.array(symbols))
            return pc.if_else(pc.or_(is_symbol, array.is_null()), array, default), _NONE
    return array, invalid_values(array, leaf)


def _positions(good: pa.Array) -> _Rows:
    """Return the positions of False."""
    return _NONE if pc.all(good).as_py() is not False else np.flatnonzero(pc.invert(good))


def _parsed(array: pa.Array, leaf: t.Leaf) -> tuple[pa.Array, _Rows]:
    """Parse texts one by one."""
    parse = text_parser(leaf)
    values: list[Any] = []
    invalid = []
    for position, text in enumerate(array.to_pylist()):
        try:
            values.append(None if text is None else parse(text))
        except ValueError:
            values.append(None)
            invalid.append(position)
    return pa.array(values, arrow_type(leaf)), np.array(invalid, np.int64)


def _moments(array: pa.Array, scalar: t.Scalar) -> tuple[pa.Array, _Rows]:
    """Parse dates, times and timestamps."""
    kind, target = scalar.kind, arrow_type(scalar)
    # Arrow's cast is lenient, for instance about seconds and spaces.
    texts = pc.match_substring_regex(array, rf"\A{moment_text(kind)}\z")
    if kind.traits.python is not time:
        # An offset may lead from there into the year 1.
        texts = pc.and_not(texts, pc.starts_with(array, "0000"))
    if kind.ticks > t.MICROSECONDS:
        # That of pyarrow 18 returns another time for one that 64 bits of nanoseconds do not hold.
        years = pc.utf8_slice_codeunits(array, 0, 4)
        for beyond in (pc.less(years, "1678"), pc.greater(years, "2261")):
            texts = pc.and_not(texts, beyond)
    invalid = _positions(texts)
    if len(invalid):
        array = pc.if_else(texts, array, None)
    try:
        made = _times(array, target) if kind.traits.python is time else array.cast(target)
    except pa.ArrowInvalid:
        # One of them is no date, or between two ticks.
        made, others = _parsed(array, scalar)
    else:
        low, high = kind.range
        numbers = made.view(arrow_type(t.Scalar(kind=kind.physical)))
        others = _positions(pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high)))
    return made, np.concatenate([invalid, others])


def _times(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast texts to times, for which Arrow has no cast, by the timestamp of that time in 1970."""
    moments = pc.binary_join_element_wise("1970-01-01T", array, "").cast(pa.timestamp(target.unit))
    ticks = moments.view(pa.int64())
    return (ticks.cast(pa.int32()) if target.bit_width == 32 else ticks).view(target)
