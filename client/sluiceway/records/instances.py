"""Instances of record classes, made of record batches.

The values of a record get the types of the class's annotations: members of enums, instances of
nested classes. Whether they are valid is up to the class.
"""

from __future__ import annotations

import collections.abc
import enum
import re
import types
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Literal, TypeAlias, Union, get_args, get_origin

import pyarrow as pa

from sluiceway.errors import OptionError, SchemaMismatch, ValidationFailed
from sluiceway.records.to_python import to_records
from sluiceway.schema import Schema
from sluiceway.schema import types as t
from sluiceway.schema.classes import (
    MISSING,
    RECORD_CLASSES,
    ClassField,
    RecordClass,
    record_class,
    unwrapped,
)
from sluiceway.schema.defaults import symbol

__all__ = ["Instances", "InvalidInstance"]

_Maker: TypeAlias = Callable[[Any], Any]
"""Makes a value of a class of a value of a record. None stands for one that changes nothing."""


class InvalidInstance(Exception):
    """A record that its class refuses: the path of the field, if it is known, and the reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


class Instances:
    """Instances of a class for the records of a schema.

    Raises OptionError for a class without fields, and SchemaMismatch if records of the schema
    cannot be its instances: they lack a field without a default, or have values of other types,
    which the class does not check itself.
    """

    def __init__(self, cls: type, schema: Schema, channel: str) -> None:
        made_of = record_class(cls)
        if made_of is None:
            raise OptionError(f"as_ is {cls!r}; it takes {RECORD_CLASSES}")
        self._class, self._channel = cls.__name__, channel
        self._make = _record_maker(made_of, schema.record, "")
        self._with_branches = t.find_union(schema.record) is not None

    def of(self, batch: pa.RecordBatch) -> tuple[list[Any], InvalidInstance | None]:
        """Return the instances before the first invalid record, and what is wrong with that."""
        instances: list[Any] = []
        make = self._make
        try:
            for record in to_records(batch, with_branches=self._with_branches):
                # No comprehension, which would lose the valid ones.
                instances.append(make(record))  # noqa: PERF401
        except InvalidInstance as invalid:
            return instances, invalid
        return instances, None

    def error(
        self, invalid: InvalidInstance, *, partition: int, offset: int, record: int, following: Any
    ) -> ValidationFailed:
        """Return the exception for an invalid record; see ValidationFailed for the arguments."""
        error = ValidationFailed(
            channel=self._channel,
            partition=partition,
            offset=offset,
            record=record,
            field=invalid.path,
            reason=invalid.reason,
            class_name=self._class,
            following=following,
        )
        error.__cause__ = invalid.__cause__
        return error


def _record_maker(cls: RecordClass, record: t.Record, path: str) -> _Maker:
    name = cls.cls.__name__
    cls.require_makeable()
    fields = {field.name: field for field in cls.fields}
    names = {field.name for field in record.fields}
    for field in cls.fields:
        if field.required and field.key is not None and field.name not in names:
            raise SchemaMismatch(
                f"{name} needs the field {t.join_path(path, field.name)!r}, which the channel's "
                "records do not have: give it a default"
            )
    # The name of a field in records, the key of its value, and its maker.
    steps: list[tuple[str, str, _Maker | None]] = []
    omittable: list[str] = []
    for member in record.fields:
        field_ = fields.get(member.name)
        where = t.join_path(path, member.name)
        if field_ is None and cls.validates:
            # Such classes decide what further fields mean.
            steps.append((member.name, member.name, _maker(member.type, Any, where, None)))
        elif field_ is not None and field_.key is not None:
            owner = None if cls.validates else (name, field_)
            maker = _maker(member.type, field_.hint, where, owner)
            steps.append((member.name, field_.key, maker))
            if field_.omittable:
                omittable.append(field_.key)
    unchanged = len(steps) == len(record.fields) and not omittable
    unchanged = unchanged and all(key == at and not maker for at, key, maker in steps)

    def make(row: dict[str, Any]) -> Any:
        values = row
        if not unchanged:
            values = {key: maker(row[at]) if maker else row[at] for at, key, maker in steps}
        for key in omittable:
            if values[key] is None:
                del values[key]
        try:
            return cls.make(values)
        except Exception as error:
            raise _invalid(error, path) from error

    return make


_Owner: TypeAlias = tuple[str, ClassField] | None
"""The class that does not check its values, and the field; None for a class that does."""


def _maker(type_: t.Type, hint: Any, path: str, owner: _Owner) -> _Maker | None:
    """Return the maker of a field's values. Raises SchemaMismatch for the field's `owner`."""
    options = [unwrapped(option)[0] for option in _options(hint)]
    if isinstance(type_, t.Nullable):
        if owner is not None and not {type(None), Any, object}.intersection(_hashable(options)):
            raise _misfit(owner, path, "may be null")
        inner = _maker(type_.item, hint, path, owner)
        return None if inner is None else partial(_unless_none, inner)
    if isinstance(type_, t.Union):
        makers = {
            t.branch_name(branch): _branch_maker(branch, options, path, owner)
            for branch in type_.branches
        }
        return partial(_of_branch, makers)
    return _branch_maker(type_, options, path, owner)


def _branch_maker(branch: t.Branch, options: list[Any], path: str, owner: _Owner) -> _Maker | None:
    option = _option(branch, options)
    if option is MISSING:
        if owner is not None:
            raise _misfit(owner, path, f"are {_shown(branch)}")
        option = Any
    arguments = get_args(option)
    match branch:
        case t.Record() if (cls := record_class(option)) is not None:
            return _record_maker(cls, branch, path)
        case t.Record(fields=fields):
            inner = {
                field.name: maker
                for field in fields
                if (maker := _maker(field.type, Any, t.join_path(path, field.name), None))
            }
            return partial(_changed, inner) if inner else None
        case t.Array(items=items):
            item = _maker(items, arguments[0] if arguments else Any, f"{path}[]", owner)
            return None if item is None else lambda values: list(map(item, values))
        case t.Map(values=values):
            entry = _maker(
                values, arguments[1] if len(arguments) == 2 else Any, f"{path}{{}}", owner
            )
            return None if entry is None else partial(_mapped, entry)
    if isinstance(option, type) and issubclass(option, enum.Enum):
        members = {symbol(member): member for member in option}
        return partial(_member, members, option.__name__, path)
    return None


def _options(hint: Any) -> tuple[Any, ...]:
    hint = unwrapped(hint)[0]
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _option(branch: t.Branch, options: Iterable[Any]) -> Any:
    """Return the annotation for the values of a branch, or MISSING."""
    name = (t.own_name(branch) or "").rpartition(".")[2]
    fitting = [option for option in options if _suits(option, branch)]
    named = [option for option in fitting if getattr(option, "__name__", "") == name]
    return next(iter([*named, *fitting]), MISSING)


_LISTS: Final = (list, collections.abc.Sequence, collections.abc.Iterable)
_DICTS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _suits(hint: Any, branch: t.Branch) -> bool:
    if hint in (Any, object):
        return True
    origin = get_origin(hint) or hint
    match branch:
        case t.Record():
            return record_class(hint) is not None or origin in _DICTS
        case t.Array():
            return origin in _LISTS
        case t.Map():
            return origin in _DICTS and record_class(hint) is None
    if origin is Literal:
        return branch.python is str
    if not isinstance(origin, type):
        # Of a form that is unknown here, such as a NewType.
        return hint is not None
    if issubclass(origin, enum.Enum):
        return branch.python is str
    return issubclass(branch.python, origin) or (branch.python is int and origin is float)


def _hashable(options: Iterable[Any]) -> set[Any]:
    return {option for option in options if isinstance(option, collections.abc.Hashable)}


def _shown(branch: t.Branch) -> str:
    match branch:
        case t.Record():
            return "records"
        case t.Array():
            return "lists"
        case t.Map():
            return "dicts"
    return f"of the type {branch.python.__name__}"


def _misfit(owner: tuple[str, ClassField], path: str, what: str) -> SchemaMismatch:
    name, field = owner
    hint = getattr(field.hint, "__name__", None) if isinstance(field.hint, type) else None
    return SchemaMismatch(
        f"{name}.{field.name} is annotated as {hint or field.hint}, but the channel's values of "
        f"{path!r} {what}: change the annotation"
    )


def _unless_none(inner: _Maker, value: Any) -> Any:
    return None if value is None else inner(value)


def _of_branch(makers: Mapping[str, _Maker | None], pair: tuple[str, Any]) -> Any:
    name, value = pair
    maker = makers[name]
    return value if maker is None else maker(value)


def _changed(inner: Mapping[str, _Maker], row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: maker(row[name]) for name, maker in inner.items()}


def _mapped(entry: _Maker, values: dict[str, Any]) -> dict[str, Any]:
    return {key: entry(value) for key, value in values.items()}


def _member(members: Mapping[str, enum.Enum], name: str, path: str, text: str) -> enum.Enum:
    member = members.get(text)
    if member is None:
        raise InvalidInstance(path, f"{text!r} is no member of {name}")
    return member


_MSGSPEC_PATH: Final = re.compile(r"(.*) - at `\$\.?(.*)`", re.DOTALL)


def _invalid(error: Exception, path: str) -> InvalidInstance:
    """Return what a class has refused, by the error of its library."""
    library = type(error).__module__.partition(".")[0]
    if library == "pydantic_core" and hasattr(error, "errors"):
        first, *more = error.errors(include_url=False)
        place = ""
        for part in first["loc"]:
            place = f"{place}[{part}]" if isinstance(part, int) else t.join_path(place, part)
        others = f", and {len(more)} more" if more else ""
        return InvalidInstance(_joined(path, place), f"{first['msg']}{others}")
    if library == "msgspec" and (match := _MSGSPEC_PATH.fullmatch(str(error))):
        return InvalidInstance(_joined(path, match[2]), match[1])
    return InvalidInstance(path, f"{type(error).__name__}: {error}")


def _joined(path: str, place: str) -> str:
    return t.join_path(path, place) if place else path
