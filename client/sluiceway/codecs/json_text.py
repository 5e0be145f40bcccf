"""Columnar JSON encoder: assembles the texts of many objects from columns by Arrow's kernels."""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable
from datetime import time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluiceway.codecs.base import NotRepresentable
from sluiceway.codecs.physical import array_like, convert_valid
from sluiceway.records.validation import list_contents
from sluiceway.schema import types as t
from sluiceway.schema.json_schema import NOT_FINITE


def objects(batch: pa.RecordBatch, record: t.Record) -> pa.Array:
    """Return the JSON object of each row of a valid `batch`, as text.

    Raises NotRepresentable for a date or timestamp outside of the years 1 to 9999, as RFC 3339 has
    years of four digits only, and pyarrow.ArrowCapacityError
    for more than 2 GiB.
    """
    return _objects(batch.columns, record, "")


def _objects(columns: list[pa.Array], record: t.Record, path: str) -> pa.Array:
    parts: list[Any] = []
    before = "{"
    for array, field in zip(columns, record.fields, strict=True):
        where = t.join_path(path, field.name)
        parts += [f'{before}"{field.name}":', _values(array, field.type, where)]
        before = ","
    return _joined(*parts, "}")


def _joined(*parts: Any) -> pa.Array:
    """Join arrays of text and constants, element by element; an element with a null is null."""
    return pc.binary_join_element_wise(*parts, "")


def _values(array: pa.Array, type_: t.Type, path: str) -> pa.Array:
    """Return the JSON text of each value."""
    texts = _texts(array, t.present(type_), path)
    return texts.fill_null("null") if texts.null_count else texts


def _texts(array: pa.Array, type_: t.Present, path: str) -> pa.Array:
    """Return the JSON text of each value that is not null."""
    match type_:
        case t.Record():
            # `flatten` makes fields null below a null record; there, values may be anything.
            texts = _objects(array.flatten(), type_, path)
            return pc.if_else(array.is_valid(), texts, None) if array.null_count else texts
        case t.Array(items=items):
            return convert_valid(array, lambda lists: _arrays(lists, items, path))
        case t.Map(values=values):
            return convert_valid(array, lambda maps: _maps(maps, values, path))
        case t.Union():
            raise AssertionError(type_)
        case t.Scalar(kind=t.Kind.FLOAT | t.Kind.DOUBLE):
            return _floats(array)
        case t.Scalar(kind=t.Kind.STRING):
            return _quoted(array)
        case t.Scalar(kind=t.Kind.BYTES) | t.Fixed():
            return _converted(array, lambda value: binascii.b2a_base64(value, newline=False))
        case t.Scalar(kind=kind) if kind.physical is not kind:
            return _moments(array, kind, path)
        case t.Uuid(fixed=t.Fixed()):
            return _converted(array, lambda value: str(UUID(bytes=value)))
        case t.Uuid() | t.Enum():
            return _joined('"', array, '"')
        case t.Decimal():
            return _decimals(array)
    return array.cast(pa.string())


def _arrays(array: pa.Array, items: t.Type, path: str) -> pa.Array:
    offsets, (values,) = list_contents(array)
    return _joined("[", _lists(offsets, _values(values, items, f"{path}[]")), "]")


def _maps(array: pa.Array, values: t.Type, path: str) -> pa.Array:
    offsets, (keys, items) = list_contents(array)
    entries = _joined(_quoted(keys), ":", _values(items, values, f"{path}{{}}"))
    return _joined("{", _lists(offsets, entries), "}")


def _lists(offsets: np.ndarray[Any, Any], texts: pa.Array) -> pa.Array:
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), texts)
    return pc.binary_join(lists, ",")


def _floats(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.string())
    if pc.all(pc.is_finite(array)).as_py() in (True, None):
        return texts
    for spelling, text in zip(("nan", "inf", "-inf"), NOT_FINITE, strict=True):
        texts = pc.if_else(pc.equal(texts, spelling), f'"{text}"', texts)
    return texts


def _decimals(array: pa.Array) -> pa.Array:
    """Return numbers without exponents, which Arrow gives small ones."""
    texts = array.cast(pa.string())
    scaled = pc.match_substring(texts, "E").fill_null(False)
    if pc.any(scaled).as_py():
        plain = [f"{Decimal(text):f}" for text in texts.filter(scaled).to_pylist()]
        texts = pc.replace_with_mask(texts, scaled, pa.array(plain, pa.string()))
    return texts


_quote: Final = json.encoder.encode_basestring
"""Escapes quotes, backslashes and control characters; all else stays UTF-8."""


def _quoted(array: pa.Array) -> pa.Array:
    """Quote and escape text."""
    quoted = _joined('"', array, '"')
    if _has_specials(array):
        special = pc.match_substring_regex(array, r'["\\\x00-\x1f]').fill_null(False)
        escaped = [_quote(text) for text in array.filter(special).to_pylist()]
        quoted = pc.replace_with_mask(quoted, special, pa.array(escaped, pa.string()))
    return quoted


def _has_specials(array: pa.Array) -> bool:
    """Return whether a text may contain a character to escape; this costs little per byte."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return False
    bounds = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
    text = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    return bool(((text < 0x20) | (text == ord('"')) | (text == ord("\\"))).any())


def _converted(array: pa.Array, convert: Callable[[bytes], bytes | str]) -> pa.Array:
    """Return texts that need no escapes, made one by one."""
    texts = [None if value is None else convert(value) for value in array.to_pylist()]
    return _joined('"', pa.array(texts, pa.string()), '"')


_INTEGERS: Final = {32: pa.int32(), 64: pa.int64()}


def _moments(array: pa.Array, kind: t.Kind, path: str) -> pa.Array:
    """Return dates, times and timestamps as in RFC 3339."""
    low, high = kind.range
    if kind.traits.python is not time and len(array):
        ends = pc.min_max(array.view(_INTEGERS[kind.physical.traits.bits])).as_py()
        if ends["min"] is not None and not low <= ends["min"] <= ends["max"] <= high:
            reason = "it is outside of the years 1 to 9999, which JSON's dates (RFC 3339) have"
            raise NotRepresentable(path, reason)
    if not kind.traits.units or kind.traits.python is time:
        return _joined('"', array.cast(pa.string()), '"')
    # Arrow's cast of values with a time zone is 30 times as slow.
    texts = array.cast(pa.timestamp(array.type.unit)).cast(pa.string())
    texts = texts if texts.offset == 0 else pa.concat_arrays([texts])
    _, offsets, data = texts.buffers()
    if data is not None:
        # The only space of each text is before its time.
        characters = np.frombuffer(data, np.uint8).copy()
        characters[characters == ord(" ")] = ord("T")
        texts = array_like(pa.string(), texts, [offsets, pa.py_buffer(characters)])
    return _joined('"', texts, 'Z"' if kind.traits.instant else '"')
