"""Avro JSON of the types that have no types within: named bytes, enums and logical types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema.names import NAME, name_advice
from sluiceway.schema.types import (
    LOGICAL,
    MAX_DIGITS,
    MAX_FIXED_BYTES,
    Decimal,
    Enum,
    Fixed,
    Leaf,
    Scalar,
    Uuid,
    at,
)

UUID_BYTES: Final = 16

_KINDS: Final = {kind.value: kind for kind in LOGICAL}
_HINTS: Final = {
    "duration": "use a long of microseconds, or fields for months, days and milliseconds",
    "big-decimal": "use a decimal with a precision and a scale, or a string",
}


def leaf(source: Mapping[str, Any], name: str, path: str) -> Leaf:
    """Read a fixed, an enum or a logical type; `name` is the full name of the first two.

    Raises InvalidSchema for what is no such type, UnsupportedType for one that no channel carries.
    """
    inner: object = source["type"]
    logical: Any = source.get("logicalType")
    if logical == "duration":
        raise UnsupportedType(path=path, type_name=f"{inner} (duration)", hint=_HINTS["duration"])
    if inner == "enum" and not logical:
        return enum(name, source.get("symbols"), source.get("default"), path)
    bytes_ = fixed(name, source.get("size"), path) if inner == "fixed" else None
    if bytes_ is not None and not logical:
        return bytes_
    if logical == "decimal":
        _require(path, logical, inner, "bytes", "fixed")
        return decimal(source.get("precision"), source.get("scale", 0), path, fixed=bytes_)
    if logical == "uuid":
        _require(path, logical, inner, "string", "fixed")
        if bytes_ is not None and bytes_.size != UUID_BYTES:
            raise InvalidSchema(f"{at(path)}: a uuid takes a fixed of 16 bytes, not {bytes_.size}")
        return Uuid(fixed=bytes_)
    kind = _KINDS.get(logical) if isinstance(logical, str) else None
    if kind is None:
        hint = _HINTS.get(str(logical), "leave the logicalType out to carry the plain type")
        raise UnsupportedType(path=path, type_name=f"{inner} ({logical})", hint=hint)
    _require(path, logical, inner, LOGICAL[kind].value)
    return Scalar(kind=kind)


def decimal(precision: object, scale: object, path: str, *, fixed: Fixed | None = None) -> Decimal:
    """Make a decimal type, in the bytes of `fixed` if given; raises as `leaf` does."""
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision != 0:
        raise InvalidSchema(
            f"{at(path)} is a decimal with the precision {precision!r} and the scale {scale!r}: "
            "give a precision of 1 or more, and a scale from 0 to the precision"
        )
    if precision > MAX_DIGITS:
        raise UnsupportedType(
            path=path,
            type_name=f"decimal({precision}, {scale})",
            hint=f"a decimal has at most {MAX_DIGITS} digits: use fewer, or a string",
        )
    if fixed is not None and 10**precision > 1 << (8 * fixed.size - 1):
        raise InvalidSchema(
            f"{at(path)}: {precision} digits do not fit into a fixed of {fixed.size} bytes: make "
            "it longer, or the precision smaller"
        )
    return Decimal(precision=precision, scale=scale, fixed=fixed)


def fixed(name: str, size: object, path: str) -> Fixed:
    """Make the type of exactly `size` bytes; raises as `leaf` does."""
    if type(size) is not int or size < 1:
        # No bytes at all would let a few bytes say that there are millions of items.
        raise InvalidSchema(f"{at(path)}: the fixed {name!r} needs a size in bytes, from 1 on")
    if size > MAX_FIXED_BYTES:
        raise UnsupportedType(
            path=path,
            type_name=f"fixed of {size} bytes",
            hint=f"a fixed has at most {MAX_FIXED_BYTES} bytes: use bytes",
        )
    return Fixed(name=name, size=size)


def enum(name: str, symbols: object, default: object, path: str) -> Enum:
    """Make the type of one of `symbols`; raises as `leaf` does."""
    if not isinstance(symbols, list | tuple) or not symbols:
        raise InvalidSchema(f"{at(path)}: the enum {name!r} needs a list of symbols, not empty")
    met: set[str] = set()
    for symbol in symbols:
        if isinstance(symbol, str) and len(symbol) > MAX_FIXED_BYTES:
            raise InvalidSchema(f"{at(path)} has a symbol of more than {MAX_FIXED_BYTES} letters")
        if not isinstance(symbol, str) or not NAME.fullmatch(symbol):
            raise InvalidSchema(f"{at(path)}: the symbol {name_advice(str(symbol))}")
        if symbol in met:
            raise InvalidSchema(f"{at(path)}: the enum {name!r} has the symbol {symbol!r} twice")
        met.add(symbol)
    if default is not None and not (isinstance(default, str) and default in met):
        raise InvalidSchema(
            f"{at(path)}: the default {default!r} of the enum {name!r} is none of its symbols: "
            f"give one of {', '.join(symbols)}"
        )
    return Enum(name=name, symbols=tuple(symbols), default=default)


def _require(path: str, logical: str, inner: object, *allowed: str) -> None:
    if inner not in allowed:
        raise InvalidSchema(
            f"{at(path)}: the logical type {logical} belongs on {' or '.join(allowed)}"
        )
