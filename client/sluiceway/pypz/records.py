"""Completion of records that pypz's encoder, the library avro, accepts as they are."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sluiceway.schema import types as t

__all__ = ["Completion", "completion"]

Completion = Callable[[Any], Any]
"""Returns a completed copy of a value, or the value itself."""

_NUMBERS: Final = (t.Kind.INT, t.Kind.LONG, t.Kind.FLOAT, t.Kind.DOUBLE)


def completion(record: t.Record) -> Completion:
    """Return a function that completes a record, and the records within it.

    A missing field without a default is None if its type admits null; True and False are 1 and 0
    in a field of numbers. Everything else stays as it is, to be refused if it is invalid.
    """
    nullable = [f for f in record.fields if isinstance(f.type, t.Nullable) and f.default is None]
    absent = dict.fromkeys(field.name for field in nullable)
    inner = [
        (field.name, complete)
        for field in record.fields
        if (complete := _completion(field.type)) is not None
    ]

    def completed(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        found = {**absent, **value}
        for name, complete in inner:
            if name in found:
                found[name] = complete(found[name])
        return found

    return completed


def _completion(type_: t.Type) -> Completion | None:
    """Return the completion of a type's values; None where there is nothing to complete."""
    match type_:
        case t.Nullable(item=item):
            return _completion(item)
        case t.Scalar(kind=kind) if kind in _NUMBERS:
            return _number
        case t.Array(items=items):
            return _each_item(_completion(items))
        case t.Map(values=values):
            return _each_value(_completion(values))
        case t.Record():
            return completion(type_)
    return None


def _each_item(complete: Completion | None) -> Completion | None:
    if complete is None:
        return None
    return lambda value: list(map(complete, value)) if isinstance(value, list | tuple) else value


def _each_value(complete: Completion | None) -> Completion | None:
    if complete is None:
        return None
    return lambda value: (
        {key: complete(item) for key, item in value.items()}
        if isinstance(value, Mapping)
        else value
    )


def _number(value: Any) -> Any:
    return int(value) if value is True or value is False else value
