"""Avro's default values: checked when a schema is read, turned into Python values for records."""

from __future__ import annotations

import json
from typing import Any

from sluiceway.errors import InvalidSchema
from sluiceway.schema import literals
from sluiceway.schema.types import Array, Map, Nullable, Record, Type, at, below


class DefaultDoesNotFit(ValueError):
    """The default at `path` is none of its type's values; `reason` says why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


def normal(value: object, type_: Type, path: str) -> object:
    """`value` (parsed JSON) as the default of a field of type `type_`, in its one normal form.

    Raises DefaultDoesNotFit. The default of a nullable field belongs to the first branch, as Avro
    wants it.
    """
    match type_:
        case Nullable(null_first=True):
            if value is not None:
                raise DefaultDoesNotFit(path, "only null can be the default where null comes first")
            return None
        case Nullable(item=item):
            return normal(value, item, path)
        case Array(items=items):
            if not isinstance(value, list):
                raise DefaultDoesNotFit(path, "it must be a JSON array")
            return [normal(item, items, f"{path}[]") for item in value]
        case Map(values=values):
            if not isinstance(value, dict):
                raise DefaultDoesNotFit(path, "it must be a JSON object")
            return {key: normal(value[key], values, f"{path}{{}}") for key in sorted(value)}
        case Record(fields=fields):
            return _normal_record(value, fields, path)
        case leaf:
            try:
                return literals.normal(value, leaf)
            except literals.NoLiteral as error:
                raise DefaultDoesNotFit(path, str(error)) from error


def _normal_record(value: object, fields: tuple[Any, ...], path: str) -> object:
    if not isinstance(value, dict):
        raise DefaultDoesNotFit(path, "it must be a JSON object")
    if unknown := sorted(set(value) - {field.name for field in fields}):
        raise DefaultDoesNotFit(path, f"the record has no field {unknown[0]!r}")
    whole: dict[str, object] = {}
    for field in fields:
        if field.name in value:
            whole[field.name] = normal(value[field.name], field.type, below(path, field.name))
        elif field.default is not None:
            whole[field.name] = json.loads(field.default)
        else:
            raise DefaultDoesNotFit(below(path, field.name), "the default leaves this field out")
    return whole


def default_text(value: object, type_: Type, path: str) -> str:
    """Write the default `value` (parsed JSON) as canonical text; raise InvalidSchema."""
    try:
        whole = normal(value, type_, path)
    except DefaultDoesNotFit as error:
        raise InvalidSchema(
            f"{at(error.path)} has a default that does not fit: {error.reason}"
        ) from error
    return json.dumps(whole, separators=(",", ":"))


def as_json(value: Any, type_: Type) -> object:
    """Turn a Python value into the JSON form of a default; the inverse of `as_python`.

    Values of other types come back as they are, for `normal` to judge.
    """
    match type_:
        case Nullable(item=item):
            return None if value is None else as_json(value, item)
        case Array(items=items):
            return [as_json(item, items) for item in value] if isinstance(value, list) else value
        case Map(values=values):
            if not isinstance(value, dict):
                return value
            return {key: as_json(item, values) for key, item in value.items()}
        case Record():
            return value
        case leaf:
            return literals.from_python(value, leaf)


def as_python(default: Any, type_: Type) -> object:
    """Turn a default in normal form into the Python value that a record would hold."""
    match type_:
        case Nullable(item=item):
            return None if default is None else as_python(default, item)
        case Array(items=items):
            return [as_python(item, items) for item in default]
        case Map(values=values):
            return {key: as_python(item, values) for key, item in default.items()}
        case Record(fields=fields):
            return {f.name: as_python(default[f.name], f.type) for f in fields}
        case leaf:
            return literals.to_python(default, leaf)
