"""How much memory a message may stand for, by its schema: cells of Arrow beside bytes of Avro."""

from __future__ import annotations

from typing import Final

from sluiceway.schema.types import (
    Array,
    Decimal,
    Enum,
    Fixed,
    Kind,
    Map,
    Nullable,
    Record,
    Scalar,
    Type,
    Uuid,
)

CELL_BYTES: Final = 8
BUDGET_PER_BYTE: Final = 1024
"""How many bytes of Arrow memory one byte of a message may come to."""

_UUID_TEXT_BYTES: Final = 36


def width(type_: Type) -> int:
    """Count the Arrow cells that one value of `type_` fills in its own row, null or not."""
    match type_:
        case Nullable(item=item):
            return 1 + width(item)
        case Record(fields=fields):
            return 1 + sum(width(field.type) for field in fields)
        case Fixed(size=size) | Uuid(fixed=Fixed(size=size)):
            return _cells(size)
        case Decimal():
            return 4
        case Enum(symbols=symbols):
            return 1 + _cells(max(map(len, symbols)))
        case _:
            return 1


def _cells(size_bytes: int) -> int:
    return -(-size_bytes // CELL_BYTES)


def expansion(type_: Type) -> int:
    """Bound the Arrow bytes that one byte of a message can come to inside arrays and maps."""
    match type_:
        case Nullable(item=item):
            return expansion(item)
        case Record(fields=fields):
            return sum(expansion(field.type) for field in fields)
        case Array(items=item):
            return CELL_BYTES * width(item) // _least(item) + expansion(item)
        case Map(values=item):
            return CELL_BYTES * (2 + width(item)) // (1 + _least(item)) + expansion(item)
        case _:
            return 0


def widest(type_: Type) -> int:
    """Count the cells of the widest item of an array or a map within `type_`."""
    match type_:
        case Nullable(item=item):
            return widest(item)
        case Record(fields=fields):
            return max(widest(field.type) for field in fields)
        case Array(items=item) | Map(values=item):
            return max(2 + width(item), widest(item))
        case _:
            return 0


def _least(type_: Type) -> int:
    """Count the bytes that a value of `type_` takes at the least."""
    match type_:
        case Record(fields=fields):
            return sum(_least(field.type) for field in fields)
        case Scalar(kind=Kind.FLOAT):
            return 4
        case Scalar(kind=Kind.DOUBLE):
            return 8
        case Fixed(size=size) | Decimal(fixed=Fixed(size=size)) | Uuid(fixed=Fixed(size=size)):
            return size
        case Uuid():
            return 1 + _UUID_TEXT_BYTES
        case _:
            return 1
