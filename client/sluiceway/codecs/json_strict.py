"""Strict JSON decoder: reads one message exactly, and gives the reason why it is malformed.

It reads the messages that the columnar reader does not accept. Numbers stay text until their type
is known, so none is rounded on the way.
"""

from __future__ import annotations

import base64
import decimal
import json
import re
from collections.abc import Callable
from datetime import date, time
from typing import Any, Final, TypeAlias
from uuid import UUID

import pyarrow as pa

from sluiceway.codecs.avro_strict import (
    BUDGET_PER_BYTE,
    CELL_BYTES,
    FREE_ITEMS,
    widest,
    width,
)
from sluiceway.codecs.record_messages import MalformedMessage
from sluiceway.records.from_python import column
from sluiceway.schema import types as t
from sluiceway.schema.defaults import default_value
from sluiceway.schema.json_schema import NOT_FINITE, moment_text

_DECIMAL_TEXT: Final = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([Ee][+-]?[0-9]+)?"
"""The regular expression of a decimal as text; numbers of JSON are a part of these."""

_PREFIX_BYTES: Final = 5
_MOST_SHOWN: Final = 40


def without_prefix(value: bytes) -> bytes:
    """Return the JSON text of a message, without the prefix of schema registries.

    No JSON text begins with the byte 0. The schema id is not needed, as JSON names its fields.
    """
    return value if value[:1] != b"\0" else value[_PREFIX_BYTES:]


class _Number(str):
    """The text of a number of JSON."""

    __slots__ = ()


class _Constant(str):
    """NaN, Infinity or -Infinity without quotes, which is no JSON."""

    __slots__ = ()


class Cells:
    """The number of Arrow cells that the items of a message may still fill."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int, path: str) -> None:
        """Fill `count` cells with items of the field at `path`. Raises MalformedMessage."""
        self.left -= count
        if self.left < 0:
            raise MalformedMessage(
                f"field {path!r} would take more than {BUDGET_PER_BYTE} times its size"
            )


_Reader: TypeAlias = Callable[[Any, Cells], Any]
"""Reads a parsed value. Objects are tuples of pairs, as names may be repeated; arrays are lists."""


class StrictJsonReader:
    """Decoder for messages of `record`; the values are those that Arrow converts."""

    def __init__(self, record: t.Record) -> None:
        self._read = _record(record, "")
        self._cells = width(record) + FREE_ITEMS * widest(record)
        self._parse = json.JSONDecoder(
            object_pairs_hook=tuple,
            parse_float=_Number,
            parse_int=_Number,
            parse_constant=_Constant,
        ).decode

    def read(self, value: bytes) -> dict[str, Any]:
        """Decode a message of one JSON object. Raises MalformedMessage."""
        try:
            parsed = self._parse(without_prefix(value).decode())
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"it is not UTF-8: {error.reason}") from error
        except json.JSONDecodeError as error:
            raise MalformedMessage(f"it is not JSON: {error}") from error
        except RecursionError as error:
            raise MalformedMessage("it is nested too deeply") from error
        if not isinstance(parsed, tuple):
            raise MalformedMessage(f"it is {_shown(parsed)}, not a JSON object")
        cells = Cells(self._cells + len(value) * BUDGET_PER_BYTE // CELL_BYTES)
        record: dict[str, Any] = self._read(parsed, cells)
        return record


def _shown(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case tuple():
            return "an object"
        case list():
            return "an array"
        case _Number():
            kind = "the number"
        case _Constant():
            kind = "the bare word"
        case _:
            return "a text"
    return f"{kind} {value if len(value) <= _MOST_SHOWN else value[:_MOST_SHOWN] + '…'}"


def _unexpected(value: Any, path: str, expected: str) -> MalformedMessage:
    return MalformedMessage(f"field {path!r} is {_shown(value)}, not {expected}")


def _reader(type_: t.Type, path: str) -> _Reader:
    match type_:
        case t.Nullable(item=item):
            read = _reader(item, path)
            return lambda value, cells: None if value is None else read(value, cells)
        case t.Record():
            return _record(type_, path)
        case t.Array(items=items):
            return _array(items, path)
        case t.Map(values=values):
            return _map(values, path)
        case t.Union():
            raise AssertionError(type_)
        case leaf:
            read_leaf = _leaf(leaf, path)
            return lambda value, _: read_leaf(value)


def _record(record: t.Record, path: str) -> _Reader:
    names = frozenset(name for field in record.fields for name in (field.name, *field.aliases))
    fields = []
    for field in record.fields:
        where = t.join_path(path, field.name)
        spellings = (field.name, *field.aliases)
        fields.append((field.name, spellings, where, _reader(field.type, where), default_of(field)))

    def read(value: Any, cells: Cells) -> dict[str, Any]:
        if type(value) is not tuple:
            raise _unexpected(value, path, "an object")
        there: dict[str, Any] = {}
        for name, item in value:
            if name in names:
                if name in there:
                    raise MalformedMessage(f"field {t.join_path(path, name)!r} is there twice")
                there[name] = item
        row = {}
        for name, spellings, where, read_field, default in fields:
            for spelling in spellings:
                if spelling in there:
                    row[name] = read_field(there[spelling], cells)
                    break
            else:
                if default is None:
                    raise MalformedMessage(f"field {where!r} is missing, and has no default")
                row[name] = default[0].as_py()
        return row

    return read


def default_of(field: t.Field) -> pa.Array | None:
    """Return what a missing field is read as, in an array; None if it must not be missing."""
    if field.default is None and not isinstance(field.type, t.Nullable):
        return None
    return column([default_value(field)], field.type, field.name)


def _array(items: t.Type, path: str) -> _Reader:
    read_item, item_cells = _reader(items, f"{path}[]"), width(items)

    def read(value: Any, cells: Cells) -> list[Any]:
        if not isinstance(value, list):
            raise _unexpected(value, path, "an array")
        cells.take(len(value) * item_cells, path)
        return [read_item(item, cells) for item in value]

    return read


def _map(values: t.Type, path: str) -> _Reader:
    read_value, entry_cells = _reader(values, f"{path}{{}}"), 2 + width(values)
    read_key = _leaf(t.Scalar(kind=t.Kind.STRING), f"{path}{{}}")

    def read(value: Any, cells: Cells) -> list[tuple[str, Any]]:
        if type(value) is not tuple:
            raise _unexpected(value, path, "an object")
        cells.take(len(value) * entry_cells, path)
        if len({key for key, _ in value}) < len(value):
            raise MalformedMessage(f"field {path!r} has a duplicate key")
        return [(read_key(key), read_value(item, cells)) for key, item in value]

    return read


def _leaf(leaf: t.Leaf, path: str) -> Callable[[Any], Any]:
    match leaf:
        case t.Scalar(kind=t.Kind.BOOLEAN):
            return _boolean(path)
        case t.Scalar(kind=t.Kind.INT | t.Kind.LONG as kind):
            return _whole(kind, path)
        case t.Scalar(kind=t.Kind.FLOAT | t.Kind.DOUBLE as kind):
            return _float(kind, path)
        case t.Decimal():
            return _decimal(leaf, path)
        case _:
            return _parsed(text_parser(leaf), path, _expected_text(leaf))


def _expected_text(leaf: t.Leaf) -> str:
    match leaf:
        case t.Scalar(kind=t.Kind.STRING):
            return "a text without lone surrogates"
        case t.Scalar(kind=t.Kind.BYTES):
            return "base64"
        case t.Scalar(kind=kind):
            return f"a {kind.value} as in RFC 3339"
        case t.Fixed(size=size):
            return f"{size} bytes in base64"
        case t.Enum(symbols=symbols):
            return f"one of the symbols {', '.join(symbols)}"
    return "the text of a UUID"


def text_parser(leaf: t.Leaf) -> Callable[[str], Any]:
    """Return the parser of values of `leaf` that are text; it raises ValueError for other texts."""
    match leaf:
        case t.Scalar(kind=t.Kind.STRING):
            return _without_surrogates
        case t.Scalar(kind=t.Kind.BYTES):
            return _bytes
        case t.Scalar(kind=kind):
            return _moment_parser(kind)
        case t.Fixed(size=size):
            return lambda text: _sized(_bytes(text), size)
        case t.Uuid(fixed=fixed):
            return lambda text: _uuid(text, fixed)
        case t.Enum(symbols=symbols, default=default):
            return lambda text: text if text in symbols else _required(default)
    raise AssertionError(leaf)


def _parsed(parse: Callable[[str], Any], path: str, expected: str) -> Callable[[Any], Any]:
    """Return the reader of a text that `parse` converts, or refuses with ValueError."""

    def read(value: Any) -> Any:
        if type(value) is not str:
            raise _unexpected(value, path, f"{expected}, as text")
        try:
            return parse(value)
        except ValueError as error:
            raise MalformedMessage(f"field {path!r} is not {expected}") from error

    return read


def _boolean(path: str) -> Callable[[Any], bool]:
    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise _unexpected(value, path, "true or false")
        return value

    return read


def _without_surrogates(text: str) -> str:
    if not text.isascii():
        text.encode()
    return text


_EXACT: Final = decimal.Context(
    prec=t.MAX_DIGITS,
    traps=[decimal.Inexact, decimal.InvalidOperation],
)


def _whole(kind: t.Kind, path: str) -> Callable[[Any], int]:
    low, high = kind.range
    expected = f"a whole number of {kind.traits.bits} bits"

    def read(value: Any) -> int:
        if type(value) is not _Number:
            raise _unexpected(value, path, expected)
        try:
            number = decimal.Decimal(value).quantize(decimal.Decimal(1), context=_EXACT)
        except decimal.DecimalException as error:
            raise _unexpected(value, path, expected) from error
        if not low <= number <= high:
            raise _unexpected(value, path, expected)
        return int(number)

    return read


def _float(kind: t.Kind, path: str) -> Callable[[Any], float]:
    expected = f"a number in the range of a {kind.value}, nor one of {', '.join(NOT_FINITE)}"

    def read(value: Any) -> float:
        if type(value) is str and value in NOT_FINITE:
            return float(value)
        if type(value) is not _Number:
            raise _unexpected(value, path, expected)
        number = float(value)
        if kind is t.Kind.FLOAT and abs(number) < float("inf"):
            # From the text, as the rounded double could be rounded again to another float.
            number = pa.array([value], pa.string()).cast(pa.float32())[0].as_py()
        if abs(number) == float("inf"):
            raise _unexpected(value, path, expected)
        return number

    return read


def _decimal(leaf: t.Decimal, path: str) -> Callable[[Any], decimal.Decimal]:
    context = decimal.Context(
        prec=leaf.precision, traps=[decimal.Inexact, decimal.InvalidOperation]
    )
    last_digit = decimal.Decimal(1).scaleb(-leaf.scale)
    expected = f"a number of at most {leaf.precision} digits, {leaf.scale} behind the point"
    matches = re.compile(_DECIMAL_TEXT).fullmatch

    def read(value: Any) -> decimal.Decimal:
        if type(value) not in (_Number, str):
            raise _unexpected(value, path, expected)
        if not matches(value):
            raise MalformedMessage(f"field {path!r} is not {expected}")
        try:
            return decimal.Decimal(value).quantize(last_digit, context=context)
        except decimal.DecimalException as error:
            raise MalformedMessage(f"field {path!r} is not {expected}") from error

    return read


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _sized(value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise ValueError(value)
    return value


_matches_uuid: Final = re.compile(t.UUID_TEXT).fullmatch


def _uuid(text: str, fixed: t.Fixed | None) -> str | bytes:
    if not _matches_uuid(text):
        raise ValueError(text)
    return text if fixed is None else UUID(text).bytes


def _required(default: str | None) -> str:
    if default is None:
        raise ValueError
    return default


_EPOCH: Final = date(1970, 1, 1).toordinal()


def _moment_parser(kind: t.Kind) -> Callable[[str], int]:
    """Return the parser of a date, time or timestamp to the stored number.

    It raises ValueError also for values between two ticks or out of range.
    """
    matches = re.compile(moment_text(kind)).fullmatch
    has_day, has_clock = kind.traits.python is not time, bool(kind.ticks)
    most_digits = len(str(kind.ticks)) - 1
    low, high = kind.range

    def parse(text: str) -> int:
        if not matches(text):
            raise ValueError(text)
        days = date.fromisoformat(text[:10]).toordinal() - _EPOCH if has_day else 0
        if not has_clock:
            return days
        clock = text[11:] if has_day else text
        seconds = days * t.DAY + _seconds(clock)
        fraction = clock[9:]
        if kind.traits.instant:
            fraction, zone = (fraction[:-1], "") if text[-1] == "Z" else (clock[9:-6], text[-6:])
            seconds -= int(f"{zone[0]}1") * _seconds(f"{zone[1:]}:00") if zone else 0
        fraction = fraction.rstrip("0")
        if len(fraction) > most_digits:
            raise ValueError(text)
        ticks = seconds * kind.ticks + int(fraction.ljust(most_digits, "0") or 0)
        if not low <= ticks <= high:
            raise ValueError(text)
        return ticks

    return parse


def _seconds(clock: str) -> int:
    """Return the seconds of a text that begins with hh:mm:ss."""
    hours, minutes, seconds = int(clock[:2]), int(clock[3:5]), int(clock[6:8])
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(clock)
    return (hours * 60 + minutes) * 60 + seconds
