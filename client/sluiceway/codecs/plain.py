"""Schemas without logical types, which is what travels: the Avro codecs read and write these.

A date is an int and a timestamp a long, in Avro and in Arrow alike, so that a batch of one is
relabelled as the other (`sluiceway.schema.labels`) without a copy.
"""

from __future__ import annotations

from itertools import count

from sluiceway.schema.types import (
    LOGICAL,
    Array,
    Field,
    Map,
    Nullable,
    Present,
    Record,
    Scalar,
    Type,
)


def plain(record: Record) -> Record:
    """Make `record` plain: no logical types, no defaults, each nested record under its own name."""
    names = (f"r{number}" for number in count())

    def present(type_: Present) -> Present:
        match type_:
            case Scalar(kind=kind):
                return Scalar(kind=LOGICAL.get(kind, kind))
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
