"""Schemas from dataclasses: the annotations are the types."""

from __future__ import annotations

import dataclasses
import types
import typing
from datetime import date, datetime
from typing import Annotated, Any, Final, Union, get_args, get_origin

from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema import defaults
from sluiceway.schema.parsing import NAME, default_text, name_advice
from sluiceway.schema.types import (
    MAX_DEPTH,
    Array,
    Field,
    Kind,
    Map,
    Nullable,
    Present,
    Record,
    Scalar,
    Type,
    at,
    below,
)

_KINDS: Final[dict[object, Kind]] = {
    bool: Kind.BOOLEAN,
    int: Kind.LONG,
    float: Kind.DOUBLE,
    str: Kind.STRING,
    bytes: Kind.BYTES,
    date: Kind.DATE,
    datetime: Kind.TIMESTAMP,
}
_NARROWER: Final[dict[Kind, Kind]] = {
    Kind.INT: Kind.LONG,
    Kind.FLOAT: Kind.DOUBLE,
    Kind.LOCAL_TIMESTAMP: Kind.TIMESTAMP,
}
"""What `Annotated[..., "int"]` may say instead of the annotation's own kind."""

_ADVICE: Final = (
    "use bool, int, float, str, bytes, date, datetime, X | None, list[X], dict[str, X] "
    "or another dataclass"
)


def from_class(cls: type) -> Record:
    """Make the record whose instances are those of the dataclass `cls`.

    int is Avro's long and float its double, unless `Annotated[int, "int"]`,
    `Annotated[float, "float"]` or `Annotated[datetime, "local-timestamp-micros"]` says otherwise.
    A field's default is Avro's default where it is a value that Avro can express. Raises
    UnsupportedType or InvalidSchema, naming the field's path.
    """
    record = _Reading().record(cls, "", 0)
    if not record.fields:
        raise InvalidSchema(f"the dataclass {cls.__name__} has no fields; records need one")
    return record


class _Reading:
    def __init__(self) -> None:
        self.classes: dict[str, type] = {}
        self.records: dict[str, Record | None] = {}  # None: still being read

    def record(self, cls: type, path: str, depth: int) -> Record:
        name = cls.__name__
        if not NAME.fullmatch(name):
            raise InvalidSchema(f"{at(path)}: the class name {name_advice(name)}")
        if self.classes.setdefault(name, cls) is not cls:
            raise InvalidSchema(f"{at(path)}: two dataclasses are called {name!r}; rename one")
        if name in self.records:
            if (known := self.records[name]) is None:
                hint = "records cannot hold themselves"
                raise UnsupportedType(path=path, type_name=f"{name} (recursive)", hint=hint)
            return known
        self.records[name] = None
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except (NameError, TypeError) as error:
            raise InvalidSchema(f"the annotations of {name} cannot be read: {error}") from error
        fields = []
        for member in dataclasses.fields(cls):
            where = below(path, member.name)
            if not NAME.fullmatch(member.name):
                raise InvalidSchema(f"{at(where)}: {name_advice(member.name)}")
            fields.append(self.field(member, hints[member.name], where, depth))
        if not fields and path:
            raise InvalidSchema(f"{at(path)}: the dataclass {name} has no fields; records need one")
        self.records[name] = record = Record(name=name, fields=tuple(fields))
        return record

    def field(self, member: dataclasses.Field[Any], hint: object, path: str, depth: int) -> Field:
        type_ = self.type(hint, path, depth + 1)
        value = member.default
        if member.default_factory in (list, dict):
            value = member.default_factory()
        if value is dataclasses.MISSING or dataclasses.is_dataclass(value):
            return Field(name=member.name, type=type_)
        if isinstance(type_, Nullable) and value is not None:
            type_ = Nullable(item=type_.item, null_first=False)  # the default's branch comes first
        text = default_text(defaults.as_json(value, type_), type_, path)
        return Field(name=member.name, type=type_, default=text)

    def type(self, hint: object, path: str, depth: int) -> Type:
        if get_origin(hint) in (Union, types.UnionType):
            branches = [branch for branch in get_args(hint) if branch is not type(None)]
            if len(branches) != 1:
                advice = "a field may be of one type, or of one type or None"
                raise UnsupportedType(path=path, type_name=str(hint), hint=advice)
            return Nullable(item=self.present(branches[0], path, depth + 1))
        return self.present(hint, path, depth)

    def present(self, hint: object, path: str, depth: int) -> Present:
        if depth > MAX_DEPTH:
            raise InvalidSchema(f"{at(path)} is nested deeper than {MAX_DEPTH} levels")
        if kind := _KINDS.get(hint):
            return Scalar(kind=kind)
        match get_origin(hint), get_args(hint):
            case (origin, (base, *extras)) if origin is Annotated:
                return self.annotated(base, extras, path, depth)
            case (origin, (item,)) if origin is list:
                return Array(items=self.type(item, f"{path}[]", depth + 1))
            case (origin, (key, item)) if origin is dict and key is str:
                return Map(values=self.type(item, f"{path}{{}}", depth + 1))
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self.record(hint, path, depth)
        name = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
        raise UnsupportedType(path=path, type_name=name, hint=_ADVICE)

    def annotated(self, base: object, extras: list[object], path: str, depth: int) -> Present:
        plain = self.present(base, path, depth)
        for extra in extras:
            if not isinstance(extra, str):
                continue
            kind = next((kind for kind in _NARROWER if kind.value == extra), None)
            if not isinstance(plain, Scalar) or kind is None or _NARROWER[kind] is not plain.kind:
                allowed = ", ".join(repr(kind.value) for kind in _NARROWER)
                raise InvalidSchema(
                    f"{at(path)}: Annotated[…, {extra!r}] does not go with its type; the words "
                    f"allowed are {allowed}, on int, float and datetime"
                )
            return Scalar(kind=kind)
        return plain
