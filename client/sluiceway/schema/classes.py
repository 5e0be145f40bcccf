"""Record classes: classes whose fields are those of records.

Dataclasses, pydantic models, `msgspec.Struct`s, attrs classes, NamedTuples and TypedDicts. No
library is imported for it: a class of one comes with its library.
"""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final, Union, get_args, get_origin

from sluiceway.errors import InvalidSchema, OptionError

__all__ = ["MISSING", "RECORD_CLASSES", "ClassField", "RecordClass", "record_class", "unwrapped"]

MISSING: Final[Any] = object()
"""The default of a field without one."""

RECORD_CLASSES: Final = (
    "a dataclass, a pydantic model, a msgspec.Struct, an attrs class, a NamedTuple or a TypedDict"
)


@dataclass(frozen=True, kw_only=True)
class ClassField:
    """A field of a record class.

    `name` is its name in records, and `key` the argument that makes an instance, or None if there
    is none. `default` is MISSING without one, and for one that a function makes. An instance needs
    the value of a field that is `required`. The key of one that is `omittable` may be left out of
    a TypedDict, which is null in a record.
    """

    name: str
    key: str | None
    hint: Any
    default: Any = MISSING
    required: bool = True
    omittable: bool = False


class RecordClass:
    """A class whose instances are records; its subclasses are the kinds of such classes."""

    validates = False
    """Whether its instances check the types of their values when they are made."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.attributes: Mapping[str, str] = self._attributes()
        """The attributes of an instance by the names of fields in records."""

    @staticmethod
    def matches(cls: type) -> bool:
        """Return whether a class is of this kind."""
        raise NotImplementedError

    @cached_property
    def fields(self) -> tuple[ClassField, ...]:
        """The fields in order. Raises InvalidSchema if the annotations cannot be read."""
        try:
            return tuple(self._fields())
        except NameError as error:
            raise self._unreadable(error) from error

    def values(self, instance: Any) -> dict[str, Any]:
        """Return the values of an instance by the names of their fields."""
        return {name: getattr(instance, at) for name, at in self.attributes.items()}

    def make(self, values: dict[str, Any]) -> Any:
        """Return the instance with values by key; raises what the class raises."""
        return self.cls(**values)

    def require_makeable(self) -> None:
        """Raise OptionError for a class of which its library makes no instances."""

    def with_values(self, instance: Any, values: Mapping[str, Any]) -> Any:
        """Return a copy with other values, by attribute; it is not validated again."""
        changed = copy.copy(instance)
        for attribute, value in values.items():
            # It may be frozen.
            object.__setattr__(changed, attribute, value)
        return changed

    @property
    def hints(self) -> dict[str, Any]:
        """The annotations by attribute. Raises InvalidSchema."""
        try:
            return typing.get_type_hints(self.cls, include_extras=True)
        except (NameError, TypeError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: object) -> InvalidSchema:
        return InvalidSchema(f"the annotations of {self.cls.__name__} cannot be read: {error}")

    def _attributes(self) -> Mapping[str, str]:
        raise NotImplementedError

    def _fields(self) -> Iterable[ClassField]:
        raise NotImplementedError


class _Dataclass(RecordClass):
    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        # Of pydantic's own dataclasses.
        self.validates = hasattr(cls, "__pydantic_validator__")

    @staticmethod
    def matches(cls: type) -> bool:
        return dataclasses.is_dataclass(cls)

    def _attributes(self) -> Mapping[str, str]:
        return {field.name: field.name for field in dataclasses.fields(self.cls)}

    def _fields(self) -> Iterable[ClassField]:
        hints = self.hints
        for field in dataclasses.fields(self.cls):
            absent = dataclasses.MISSING
            factory = None if field.default_factory is absent else field.default_factory
            yield ClassField(
                name=field.name,
                key=field.name if field.init else None,
                hint=hints[field.name],
                default=_default(MISSING if field.default is absent else field.default, factory),
                required=field.default is absent and factory is None,
            )


class _PydanticModel(RecordClass):
    validates = True

    @staticmethod
    def matches(cls: Any) -> bool:
        return hasattr(cls, "model_fields") and hasattr(cls, "__pydantic_validator__")

    def make(self, values: dict[str, Any]) -> Any:
        return self.cls.model_validate(values)  # type: ignore[attr-defined]

    @property
    def _members(self) -> Mapping[str, Any]:
        members: Mapping[str, Any] = self.cls.model_fields  # type: ignore[attr-defined]
        return {name: member for name, member in members.items() if not member.exclude}

    def _attributes(self) -> Mapping[str, str]:
        members = self._members.items()
        return {member.serialization_alias or name: name for name, member in members}

    def _fields(self) -> Iterable[ClassField]:
        by_alias = self.cls.model_config.get("validate_by_alias")  # type: ignore[attr-defined]
        for name, member in self._members.items():
            alias = member.validation_alias
            for choice in getattr(alias, "choices", ()):
                alias = choice
                break
            metadata = tuple(member.metadata)
            default = MISSING if member.is_required() else member.default
            yield ClassField(
                name=member.serialization_alias or name,
                key=alias if isinstance(alias, str) and by_alias is not False else name,
                hint=Annotated[(member.annotation, *metadata)] if metadata else member.annotation,
                default=_default(default, member.default_factory),
                required=member.is_required(),
            )


class _MsgspecStruct(RecordClass):
    validates = True

    @staticmethod
    def matches(cls: type) -> bool:
        return hasattr(cls, "__struct_fields__") and hasattr(cls, "__struct_encode_fields__")

    def make(self, values: dict[str, Any]) -> Any:
        import msgspec

        # The class itself would check nothing.
        return msgspec.convert(values, self.cls)

    def require_makeable(self) -> None:
        try:
            self.make({})
        except TypeError as error:
            raise OptionError(f"msgspec does not read {self.cls.__name__}: {error}") from error
        except ValueError:
            pass  # it has required fields

    def with_values(self, instance: Any, values: Mapping[str, Any]) -> Any:
        import msgspec

        changed = copy.copy(instance)
        for attribute, value in values.items():
            msgspec.structs.force_setattr(changed, attribute, value)
        return changed

    def _attributes(self) -> Mapping[str, str]:
        names, attributes = self.cls.__struct_encode_fields__, self.cls.__struct_fields__  # type: ignore[attr-defined]
        return dict(zip(names, attributes, strict=True))

    def _fields(self) -> Iterable[ClassField]:
        import msgspec

        for field in msgspec.structs.fields(self.cls):
            default = MISSING if field.default is msgspec.NODEFAULT else field.default
            factory = None if field.default_factory is msgspec.NODEFAULT else field.default_factory
            yield ClassField(
                name=field.encode_name,
                key=field.encode_name,
                hint=field.type,
                default=_default(default, factory),
                required=field.required,
            )


class _AttrsClass(RecordClass):
    @staticmethod
    def matches(cls: type) -> bool:
        return hasattr(cls, "__attrs_attrs__")

    def _attributes(self) -> Mapping[str, str]:
        return {member.name: member.name for member in self.cls.__attrs_attrs__}  # type: ignore[attr-defined]

    def _fields(self) -> Iterable[ClassField]:
        import attr

        hints = self.hints
        for member in self.cls.__attrs_attrs__:  # type: ignore[attr-defined]
            # `attr.Factory` makes a default by a function.
            factory = getattr(member.default, "factory", None)
            default = MISSING if factory or member.default is attr.NOTHING else member.default
            yield ClassField(
                name=member.name,
                key=member.alias if member.init else None,
                hint=hints.get(member.name, member.type),
                default=_default(default, factory),
                required=member.default is attr.NOTHING,
            )


class _NamedTuple(RecordClass):
    @staticmethod
    def matches(cls: type) -> bool:
        # Other libraries' rows have it as a property.
        return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)

    def with_values(self, instance: Any, values: Mapping[str, Any]) -> Any:
        return instance._replace(**values)

    def _attributes(self) -> Mapping[str, str]:
        return {name: name for name in self.cls._fields}  # type: ignore[attr-defined]

    def _fields(self) -> Iterable[ClassField]:
        hints, defaults = self.hints, self.cls._field_defaults  # type: ignore[attr-defined]
        for name in self.attributes:
            if name not in hints:
                raise self._unreadable(f"{name} has none; use typing.NamedTuple")
            yield ClassField(
                name=name,
                key=name,
                hint=hints[name],
                default=defaults.get(name, MISSING),
                required=name not in defaults,
            )


class _TypedDict(RecordClass):
    """Its instances are dicts, so they are written as such."""

    @staticmethod
    def matches(cls: type) -> bool:
        # Also of typing_extensions, which `typing.is_typeddict` does not know.
        return issubclass(cls, dict) and hasattr(cls, "__required_keys__")

    def make(self, values: dict[str, Any]) -> Any:
        return values

    def _attributes(self) -> Mapping[str, str]:
        return {}

    def _fields(self) -> Iterable[ClassField]:
        required = self.cls.__required_keys__  # type: ignore[attr-defined]
        for name, annotated in self.hints.items():
            hint, needed = annotated, name in required
            # By name, as typing_extensions has forms of its own.
            while (qualifier := str(get_origin(hint)).rpartition(".")[2]) in _QUALIFIERS:
                told = _QUALIFIERS[qualifier]
                needed = needed if told is None else told
                (hint,) = get_args(hint)
            if needed:
                yield ClassField(name=name, key=name, hint=hint)
                continue
            yield ClassField(
                name=name,
                key=name,
                hint=Union[hint, None],  # noqa: UP007 - a value, not an annotation
                default=None,
                required=False,
                omittable=type(None) not in get_args(unwrapped(hint)[0]),
            )


_QUALIFIERS: Final = {"Required": True, "NotRequired": False, "ReadOnly": None}
"""The qualifiers of a TypedDict's annotations: whether the key is needed, if they tell."""

# Pydantic's dataclasses are dataclasses, and a NamedTuple may be nothing else.
_KINDS: Final[tuple[type[RecordClass], ...]] = (
    _Dataclass,
    _PydanticModel,
    _MsgspecStruct,
    _AttrsClass,
    _NamedTuple,
    _TypedDict,
)


def record_class(cls: object) -> RecordClass | None:
    """Return the record class of a class; None for others."""
    return _record_class(cls) if isinstance(cls, type) else None


@lru_cache(maxsize=1024)
def _record_class(cls: type) -> RecordClass | None:
    return next((kind(cls) for kind in _KINDS if kind.matches(cls)), None)


def _default(value: Any, factory: Callable[..., Any] | None) -> Any:
    """Return a default; MISSING for one that a function makes, except an empty list or dict."""
    if factory in (list, dict):
        return factory()
    if factory is not None:
        return MISSING
    nested = record_class(type(value))
    return MISSING if nested is not None else value


def unwrapped(hint: Any) -> tuple[Any, tuple[str, ...]]:
    """Split `Annotated` into the annotation and the words that are for Sluiceway.

    The digits of pydantic's decimals are such a word.
    """
    if get_origin(hint) is not Annotated:
        return hint, ()
    inner, *extras = get_args(hint)
    return inner, tuple(_words(extras))


def _words(extras: Iterable[Any]) -> Iterable[str]:
    for extra in extras:
        digits, places = (getattr(extra, name, None) for name in ("max_digits", "decimal_places"))
        if isinstance(extra, str):
            yield extra
        elif isinstance(digits, int) and isinstance(places, int):
            yield f"decimal({digits}, {places})"
        else:
            # Of pydantic's Field.
            yield from _words(getattr(extra, "metadata", None) or ())
