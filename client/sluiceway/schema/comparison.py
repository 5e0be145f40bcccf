"""Two schemas compared for what their records may hold."""

from __future__ import annotations

from sluiceway.schema.types import (
    Array,
    Decimal,
    Enum,
    Fixed,
    Map,
    Nullable,
    Record,
    Scalar,
    Type,
    Uuid,
    at,
    below,
)


def differences(ours: Record, theirs: Record) -> tuple[str, ...]:
    """Say where the records of `theirs` differ from those of `ours`, a sentence each."""
    return tuple(_compare(ours, theirs, ""))


def _compare(ours: Type, theirs: Type, path: str) -> list[str]:
    match ours, theirs:
        case Nullable(), Nullable():
            return _compare(ours.item, theirs.item, path)
        case Record(), Record():
            return _compare_fields(ours, theirs, path)
        case Array(), Array():
            return _compare(ours.items, theirs.items, f"{path}[]")
        case Map(), Map():
            return _compare(ours.values, theirs.values, f"{path}{{}}")
        case Fixed(), Fixed() if ours.size == theirs.size:
            return []
        case Decimal(), Decimal() if (ours.precision, ours.scale) == (
            theirs.precision,
            theirs.scale,
        ):
            return []
        case Uuid(), Uuid() if (ours.fixed is None) is (theirs.fixed is None):
            return []
        case Enum(), Enum() if ours.symbols == theirs.symbols:
            return []
        case Scalar(), Scalar() if ours == theirs:
            return []
    return [f"{at(path)} is {shown(ours)} here and {shown(theirs)} there"]


def _compare_fields(ours: Record, theirs: Record, path: str) -> list[str]:
    here = {field.name: field.type for field in ours.fields}
    there = {field.name: field.type for field in theirs.fields}
    found = [f"{at(below(path, name))} is missing there" for name in here if name not in there]
    found += [f"{at(below(path, name))} is not known here" for name in there if name not in here]
    for name in here:
        if name in there:
            found += _compare(here[name], there[name], below(path, name))
    if not found and list(here) != list(there):
        found.append(f"{at(path)} has its fields in another order: {', '.join(here)} here")
    return found


def shown(type_: Type) -> str:
    """Name `type_` in a message."""
    match type_:
        case Scalar(kind=kind):
            return kind.value
        case Fixed(size=size):
            return f"fixed of {size} bytes"
        case Decimal(precision=precision, scale=scale):
            return f"decimal({precision}, {scale})"
        case Uuid(fixed=fixed):
            return "uuid" if fixed is None else "uuid in 16 bytes"
        case Enum(symbols=symbols):
            return f"enum of {', '.join(symbols)}"
        case Nullable(item=item):
            return f"{shown(item)} or null"
        case Array(items=items):
            return f"array of {shown(items)}"
        case Map(values=values):
            return f"map of {shown(values)}"
        case Record():
            return "record"
