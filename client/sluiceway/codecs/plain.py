"""Schemas without logical types, which is what travels: the Avro codecs read and write these."""

from __future__ import annotations

from itertools import count

from sluiceway.schema.types import (
    LOGICAL,
    Array,
    Decimal,
    Enum,
    Field,
    Fixed,
    Kind,
    Map,
    Nullable,
    Present,
    Record,
    Scalar,
    Type,
    Uuid,
)


def plain(record: Record) -> Record:
    """Make `record` plain: no logical types, no defaults, everything named under its own name.

    An enum is an int, the number of its symbol: that is what Avro writes.
    """
    names = (f"r{number}" for number in count())

    def present(type_: Present) -> Present:
        match type_:
            case Scalar(kind=kind):
                return Scalar(kind=LOGICAL.get(kind, kind))
            case Fixed(size=size) | Decimal(fixed=Fixed(size=size)) | Uuid(fixed=Fixed(size=size)):
                return Fixed(name=next(names), size=size)
            case Decimal():
                return Scalar(kind=Kind.BYTES)
            case Uuid():
                return Scalar(kind=Kind.STRING)
            case Enum():
                return Scalar(kind=Kind.INT)
            case Array(items=items):
                return Array(items=any_(items))
            case Map(values=values):
                return Map(values=any_(values))
            case Record(fields=fields):
                return root(fields)

    def any_(type_: Type) -> Type:
        if isinstance(type_, Nullable):
            return Nullable(item=present(type_.item), null_first=type_.null_first)
        return present(type_)

    def root(fields: tuple[Field, ...]) -> Record:
        name = next(names)
        return Record(
            name=name, fields=tuple(Field(name=f.name, type=any_(f.type)) for f in fields)
        )

    return root(record.fields)
