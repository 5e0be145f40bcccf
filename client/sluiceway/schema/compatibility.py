"""Compatibility of two schemas by Avro's schema resolution, and their differences.

The rules are those of the specification of Avro 1.12 ("Schema Resolution"), and a little stricter:

- Null that may be written must be allowed where it is read. Avro would fail at the first null.
- A logical type is read as itself only. Avro leaves it open what a date read as an int is, and
  would take milliseconds for microseconds.

Names of records, enums and fixed do not count here, as they never do in a channel: with unions of
null and one type alone, the place of a type in the schema says which one it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    at,
    below,
)

if TYPE_CHECKING:
    from sluiceway.schema import Schema


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


PROMOTIONS: Final = {
    Kind.INT: (Kind.LONG, Kind.FLOAT, Kind.DOUBLE),
    Kind.LONG: (Kind.FLOAT, Kind.DOUBLE),
    Kind.FLOAT: (Kind.DOUBLE,),
    Kind.STRING: (Kind.BYTES,),
    Kind.BYTES: (Kind.STRING,),
}
"""What values of a kind may be read as, besides their own kind."""


def incompatibilities(reader: Schema, writer: Schema) -> tuple[str, ...]:
    """Say why `reader` cannot read all that `writer` may have written, a sentence for each reason.

    Each names the field and what to do. None: it can, but for bytes read as a string that are no
    UTF-8, which only the values tell.
    """
    return tuple(_broken(reader.record, writer.record, ""))


def _broken(reader: Type, writer: Type, path: str) -> list[str]:
    match reader, writer:
        case Nullable(), Nullable():
            return _broken(reader.item, writer.item, path)
        case Nullable(), _:
            return _broken(reader.item, writer, path)
        case _, Nullable():
            found = [
                f"{at(path)} may be null where it is written and not where it is read: "
                "let it be null in both"
            ]
            return found + _broken(reader, writer.item, path)
        case Record(), Record():
            return _broken_fields(reader, writer, path)
        case Array(), Array():
            return _broken(reader.items, writer.items, f"{path}[]")
        case Map(), Map():
            return _broken(reader.values, writer.values, f"{path}{{}}")
        case Enum(), Enum():
            return _broken_symbols(reader, writer, path)
    if _readable(reader, writer):
        return []
    return [
        f"{at(path)} is written as {shown(writer)} and cannot be read as {shown(reader)}: "
        f"{_advice(writer)}"
    ]


def _readable(reader: Type, writer: Type) -> bool:
    match reader, writer:
        case Scalar(), Scalar():
            return reader == writer or reader.kind in PROMOTIONS.get(writer.kind, ())
        case Fixed(), Fixed():
            return reader.size == writer.size
        case Decimal(), Decimal():
            return (reader.precision, reader.scale) == (writer.precision, writer.scale)
        case Uuid(), Uuid():
            return (reader.fixed is None) is (writer.fixed is None)
    return False


def _broken_symbols(reader: Enum, writer: Enum, path: str) -> list[str]:
    unknown = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
    if not unknown or reader.default is not None:
        return []
    return [
        f"{at(path)} is written with symbols that its reader does not know, {', '.join(unknown)}: "
        "add them to the reader's, or give its enum a default"
    ]


def _broken_fields(reader: Record, writer: Record, path: str) -> list[str]:
    written = {field.name: field.type for field in writer.fields}
    found: list[str] = []
    for field in reader.fields:
        where = below(path, field.name)
        if field.name in written:
            found += _broken(field.type, written[field.name], where)
        elif field.default is None:
            found.append(
                f"{at(where)} is needed where it is read and missing where it is written: "
                "give it a default, or write it"
            )
    return found


def _advice(writer: Type) -> str:
    if isinstance(writer, Scalar) and (kinds := PROMOTIONS.get(writer.kind)):
        others = " or ".join(kind.value for kind in kinds)
        return f"leave its type as it is, make it {others}, or take a new name for the new type"
    return "leave its type as it is, or take a new name for the new type"
