"""Protobuf: the types and numbers of a schema's fields, and the rules of their evolution.

A field has the attribute `protobuf`, such as `{"number": 3, "type": "sint64", "oneof": "payment"}`,
and an enum that of its symbols' numbers, such as `{"NEW": 0, "PAID": 1}`. `numbered` adds what is
missing. In a channel, a name keeps its number and a number its form on the wire for ever, so the
names of a version determine its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from typing import Any, Final, TypeAlias

from sluiceway.errors import UnsupportedType
from sluiceway.schema import types as t
from sluiceway.schema.schema import Schema

__all__ = [
    *("DATE", "DECIMAL", "TIME", "TIMESTAMP", "ProtoField"),
    *("message_place", "number_changes", "numbered", "proto_field", "row_check", "symbol_numbers"),
]

ATTRIBUTE: Final = "protobuf"
TIMESTAMP: Final = "google.protobuf.Timestamp"
DATE: Final = "google.type.Date"
TIME: Final = "google.type.TimeOfDay"
DECIMAL: Final = "confluent.type.Decimal"

_LAST_NUMBER: Final = 2**29 - 1
_RESERVED: Final = range(19_000, 20_000)
_LAST_SYMBOL: Final = 2**31 - 1
_LAST_INDEX: Final = 2**31 - 1
_MAX_ITEM_TYPES: Final = 128
"""The most types within an item: an empty message of two bytes takes memory for each of them."""

_TYPES: Final = {
    t.Kind.BOOLEAN: ("bool",),
    t.Kind.INT: ("int32", "sint32", "sfixed32"),
    t.Kind.LONG: ("int64", "sint64", "sfixed64", "uint32", "fixed32"),
    t.Kind.FLOAT: ("float",),
    t.Kind.DOUBLE: ("double",),
    t.Kind.STRING: ("string",),
    t.Kind.BYTES: ("bytes",),
}
"""The Protobuf types of each kind, the one of a field without the attribute first."""

_MOMENTS: Final = {date: DATE, time: TIME, datetime: TIMESTAMP}

_UNSIGNED: Final = (20, 0)
"""Precision and scale of the decimals that may be unsigned 64-bit integers."""

_WIRE_FORMS: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool", "enum"), "varint"),
    **dict.fromkeys(("sint32", "sint64"), "zigzag"),
    **dict.fromkeys(("fixed32", "sfixed32"), "32 bits"),
    **dict.fromkeys(("fixed64", "sfixed64"), "64 bits"),
    **dict.fromkeys(("string", "bytes"), "text or bytes"),
}
"""Types of which Protobuf reads one as another; all others are read as themselves only."""


@dataclass(frozen=True, kw_only=True)
class ProtoField:
    """A field of a Protobuf message."""

    number: int
    type: str
    """A scalar type, `enum`, `message`, or the full name of a well-known message."""
    label: str
    """`singular` if it is never null, `optional`, `repeated`, or `map`, whose keys are strings."""
    oneof: str | None
    value: t.Leaf | t.Record
    """The type of its values, items, or map values."""

    @property
    def wire_form(self) -> tuple[str, str]:
        """The encoding of a value; readers of another version need the same one."""
        # A value of another version may be null.
        many = self.label if self.label in ("repeated", "map") else ""
        return _WIRE_FORMS.get(self.type, self.type), many


def proto_field(field: t.Field, path: str) -> ProtoField:
    """Return the Protobuf field of a numbered `field`.

    Raises UnsupportedType for a type that Protobuf does not have, and InvalidSchema for an
    attribute that does not fit the type.
    """
    attribute = _attribute(field, path)
    label, value = _shape(field.type, path)
    types = _types(value, path)
    type_ = attribute.get("type", types[0])
    if type_ not in types:
        raise t.invalid_schema(
            path, f"its Protobuf type is {type_!r}, but its Avro type allows {', '.join(types)}"
        )
    oneof = attribute.get("oneof")
    if oneof is not None and not (isinstance(field.type, t.Nullable) and _is_name(oneof)):
        raise t.invalid_schema(path, "a member of a oneof must be nullable, and the oneof a name")
    if "number" not in attribute:
        raise t.invalid_schema(path, 'it has no number, such as "protobuf": {"number": 1}')
    return ProtoField(number=attribute["number"], type=type_, label=label, oneof=oneof, value=value)


def _attribute(field: t.Field, path: str) -> Mapping[str, Any]:
    attribute = (field.attributes or {}).get(ATTRIBUTE, {})
    if not isinstance(attribute, Mapping) or attribute.keys() - {"number", "type", "oneof"}:
        raise t.invalid_schema(
            path,
            'its attribute protobuf must be an object such as {"number": 1}, with "type" '
            'and "oneof" where they are needed',
        )
    number = attribute.get("number")
    if number is None:
        return attribute
    if type(number) is not int or not 1 <= number <= _LAST_NUMBER or number in _RESERVED:
        raise t.invalid_schema(
            path,
            f"its number {number!r} is not one that Protobuf allows: 1 to {_LAST_NUMBER} without "
            "19000 to 19999",
        )
    return attribute


def message_place(schema: Schema) -> tuple[int, ...]:
    """Return the place that the message of `schema` has in its file; empty for the first.

    It is the number of the message, or of an outer one and then those within. Raises InvalidSchema.
    """
    attribute = (schema.record.attributes or {}).get(ATTRIBUTE)
    if attribute is None:
        return ()
    indexes = attribute.get("indexes") if isinstance(attribute, Mapping) else None
    if (
        not isinstance(indexes, list)
        or attribute.keys() != {"indexes"}
        or not 0 < len(indexes) <= t.MAX_DEPTH
        or not all(type(index) is int and 0 <= index <= _LAST_INDEX for index in indexes)
    ):
        raise t.invalid_schema(
            "",
            "its attribute protobuf must be the place of the message in its file, such as "
            '{"indexes": [1]}',
        )
    return () if indexes == [0] else tuple(indexes)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and t.NAME.fullmatch(value) is not None


def _shape(type_: t.Type, path: str) -> tuple[str, t.Leaf | t.Record]:
    """Return the label of a field of `type_`, and the type of its values."""
    match type_:
        case t.Nullable(item=t.Array() | t.Map()):
            raise UnsupportedType(
                path=path,
                type_name="nullable array or map",
                hint="in Protobuf it cannot be null: leave null out, or make it a nullable record "
                "with the array or map",
            )
        case t.Nullable(item=item):
            return "optional", _value(item, path)
        case t.Array(items=items):
            value = _value(items, f"{path}[]")
            _require_narrow(value, f"{path}[]")
            return "repeated", value
        case t.Map(values=values):
            value = _value(values, f"{path}{{}}")
            _require_narrow(value, f"{path}{{}}")
            return "map", value
    return "singular", _value(type_, path)


def _value(type_: t.Type, path: str) -> t.Leaf | t.Record:
    match type_:
        case t.Union():
            raise UnsupportedType(
                path=path,
                type_name="union of several types",
                hint="make its types nullable fields of one oneof",
            )
        case t.Nullable() | t.Array() | t.Map():
            kind = {t.Nullable: "nullable item", t.Array: "array", t.Map: "map"}[type(type_)]
            raise UnsupportedType(
                path=path,
                type_name=f"{kind} in an array or map",
                hint="Protobuf has none: make it a field of a record, which is the item",
            )
        case _:
            return type_


def _require_narrow(value: t.Leaf | t.Record, path: str) -> None:
    if sum(1 for _ in t.walk(value)) > _MAX_ITEM_TYPES:
        raise UnsupportedType(
            path=path,
            type_name=f"record of more than {_MAX_ITEM_TYPES} fields in an array or map",
            hint="a few bytes of a message could take megabytes: leave fields out, or use avro",
        )


def _types(value: t.Leaf | t.Record, path: str) -> tuple[str, ...]:
    match value:
        case t.Scalar(kind=kind) if kind in _TYPES:
            return _TYPES[kind]
        case t.Scalar(kind=kind) if kind.traits.instant or kind.traits.python is not datetime:
            return (_MOMENTS[kind.traits.python],)
        case t.Scalar(kind=kind):
            raise UnsupportedType(
                path=path,
                type_name=kind.value,
                hint="Protobuf has no timestamps without a time zone: use timestamp-micros, or a "
                "string",
            )
        case t.Decimal(fixed=None) if (value.precision, value.scale) == _UNSIGNED:
            return DECIMAL, "uint64", "fixed64"
        case t.Decimal():
            return (DECIMAL,)
        case t.Fixed() | t.Uuid(fixed=t.Fixed()):
            return ("bytes",)
        case t.Uuid():
            return ("string",)
        case t.Enum():
            return ("enum",)
        case t.Record():
            return ("message",)


_UNSIGNED_BITS: Final = {"uint32": 32, "fixed32": 32, "uint64": 64, "fixed64": 64}


_Fits: TypeAlias = Callable[[Any], bool]


def row_check(record: t.Record) -> _Fits | None:
    """Return a check that the valid values of a record's fields are a message; None: all are.

    Nested records are dicts. Numbers outside of an unsigned type are valid in Avro, and so are
    several members of a oneof.
    """
    fits = _record_check(record)
    names = [field_.name for field_ in record.fields]
    return fits and (lambda values: fits(dict(zip(names, values, strict=True))))


def _record_check(record: t.Record) -> _Fits | None:
    checks: dict[str, _Fits] = {}
    oneofs: dict[str, list[str]] = {}
    for field_ in record.fields:
        proto = proto_field(field_, field_.name)
        if proto.oneof is not None:
            oneofs.setdefault(proto.oneof, []).append(field_.name)
        if (check := _value_check(proto)) is not None:
            checks[field_.name] = check

    def fits(row: Mapping[str, Any]) -> bool:
        for names in oneofs.values():
            if sum(row[name] is not None for name in names) > 1:
                return False
        return all(row[name] is None or check(row[name]) for name, check in checks.items())

    return fits if checks or oneofs else None


def _value_check(proto: ProtoField) -> _Fits | None:
    if isinstance(proto.value, t.Record):
        fits = _record_check(proto.value)
    else:
        end = 1 << _UNSIGNED_BITS.get(proto.type, 0)
        fits = (lambda value: 0 <= value < end) if end > 1 else None
    if fits is None or proto.label not in ("repeated", "map"):
        return fits
    if proto.label == "map":
        return lambda entries: all(map(fits, entries.values()))
    return lambda items: all(map(fits, items))


def symbol_numbers(enum: t.Enum, path: str) -> dict[str, int]:
    """Return the numbers of the symbols of `enum` that have one. Raises InvalidSchema."""
    numbers = (enum.attributes or {}).get(ATTRIBUTE, {})
    if not isinstance(numbers, Mapping) or not all(
        type(number) is int and -_LAST_SYMBOL - 1 <= number <= _LAST_SYMBOL
        for number in numbers.values()
    ):
        raise t.invalid_schema(path, "the attribute protobuf of an enum must be its numbers")
    own = {symbol: numbers[symbol] for symbol in enum.symbols if symbol in numbers}
    _require_distinct(own, path)
    return own


def _require_distinct(numbers: Mapping[str, int], path: str) -> None:
    names: dict[int, str] = {}
    for name, number in numbers.items():
        if number in names:
            problem = f"{names[number]!r} and {name!r} both have the number {number}"
            raise t.invalid_schema(path, f"{problem}: give one of them another")
        names[number] = name


@dataclass
class _History:
    """The numbers of a record's fields, or of an enum's symbols, in earlier versions."""

    numbers: dict[str, int] = field(default_factory=dict)
    names: dict[int, list[str]] = field(default_factory=dict)
    attributes: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """By number, the attributes of its field in the newest version that has it."""
    elsewhere: dict[str, int] = field(default_factory=dict)
    """Numbers of the record's fields at all places."""

    def add(self, named: t.Record | t.Enum) -> None:
        for name, number in _numbers(named).items():
            self.numbers.setdefault(name, number)
            names = self.names.setdefault(number, [])
            if name not in names:
                names.append(name)
        if isinstance(named, t.Record):
            for field_ in named.fields:
                attribute = _attribute(field_, field_.name)
                self.attributes[attribute["number"]] = attribute


def numbered(schema: Schema, kept: Sequence[Schema] = ()) -> Schema:
    """Return `schema` with numbers for all fields and symbols.

    Numbers that `schema` has are kept. Other fields get the number under which one of the `kept`
    versions, all numbered and the oldest first, has their name or an alias, else the next that no
    version has used. A field of a number that had another name before gets this name as an alias.
    A field without the attribute also has the type and the oneof of the newest version that has its
    number, as far as its Avro type allows, and a schema without it the place that its message has
    in the same version, else in the newest one.

    Raises UnsupportedType for a type that Protobuf does not have, and InvalidSchema for numbers
    that are invalid or repeated. `number_changes` checks what this does not: that numbers stay.
    """
    histories: dict[str, _History] = {}
    for version in kept:
        for new, old in _pairs(schema.record, version.record):
            histories.setdefault(new.name, _History()).add(old)
        for named in {
            r.name: r for r in t.walk(version.record) if isinstance(r, t.Record)
        }.values():
            elsewhere = histories.setdefault(named.name, _History()).elsewhere
            elsewhere.update(_numbers(named) | elsewhere)
    record = _Numbering(histories).record(schema.record, "")
    place = message_place(schema)
    if kept and not place:
        place = message_place(next((v for v in kept if v == schema), kept[-1]))
    if place:
        record = replace(record, attributes=_with(record.attributes, {"indexes": [*place]}))
    return Schema(record)


class _Numbering:
    """The state of one numbering: the named types that are already numbered."""

    def __init__(self, histories: Mapping[str, _History]) -> None:
        self._histories = histories
        self._named: dict[str, Any] = {}

    def record(self, record: t.Record, path: str) -> t.Record:
        if record.name not in self._named:
            self._named[record.name] = self._record(record, path)
        numbered: t.Record = self._named[record.name]
        return numbered

    def _record(self, record: t.Record, path: str) -> t.Record:
        history = self._histories.get(record.name, _History())
        own: dict[str, int] = {}
        for field_ in record.fields:
            number = _attribute(field_, t.join_path(path, field_.name)).get("number")
            if number is None:
                spellings = (field_.name, *field_.aliases)
                number = next((history.numbers[s] for s in spellings if s in history.numbers), None)
            if number is not None:
                own[field_.name] = number
        _require_distinct(own, path)
        names = {field_.name for field_ in record.fields}
        # It may come back to the other places, where its other numbers are of other fields.
        taken = {*own.values(), *history.names}
        for field_ in record.fields:
            number = history.elsewhere.get(field_.name)
            if number is not None and field_.name not in own and number not in taken:
                own[field_.name] = number
                taken.add(number)
        last = max((*taken, *history.elsewhere.values()), default=0)
        fields = []
        for field_ in record.fields:
            where = t.join_path(path, field_.name)
            if (number := own.get(field_.name)) is None:
                number = last = _RESERVED.stop if last + 1 in _RESERVED else last + 1
            # First, as they are of the number: other aliases may be of others.
            earlier = [name for name in history.names.get(number, ()) if name not in names]
            others = [alias for alias in field_.aliases if alias not in earlier]
            numbered = replace(
                field_,
                type=self._type(field_.type, where),
                aliases=(*earlier, *others),
                attributes=_with(
                    field_.attributes,
                    _attribute(field_, where) or _inherited(field_, history, number, where),
                    number=number,
                ),
            )
            if proto_field(numbered, where).oneof in names:
                raise t.invalid_schema(where, "its oneof has the name of a field: rename the oneof")
            fields.append(numbered)
        return replace(record, fields=tuple(fields))

    def _type(self, type_: t.Type, path: str) -> Any:
        match type_:
            case t.Nullable(item=item):
                return replace(type_, item=self._type(item, path))
            case t.Array(items=items):
                return replace(type_, items=self._type(items, f"{path}[]"))
            case t.Map(values=values):
                return replace(type_, values=self._type(values, f"{path}{{}}"))
            case t.Record():
                return self.record(type_, path)
            case t.Enum():
                if type_.name not in self._named:
                    self._named[type_.name] = self._enum(type_, path)
                return self._named[type_.name]
        return type_

    def _enum(self, enum: t.Enum, path: str) -> t.Enum:
        history = self._histories.get(enum.name, _History())
        numbers = {
            **{s: history.numbers[s] for s in enum.symbols if s in history.numbers},
            **symbol_numbers(enum, path),
        }
        last = max((*numbers.values(), *history.names), default=-1)
        for symbol in enum.symbols:
            if symbol not in numbers:
                numbers[symbol] = last = last + 1
        if last > _LAST_SYMBOL:
            raise t.invalid_schema(
                path, f"no number is left after {_LAST_SYMBOL}: give each of its symbols one"
            )
        _require_distinct(numbers, path)
        if 0 not in numbers.values():
            raise t.invalid_schema(
                path,
                "none of its symbols has the number 0, which Protobuf's enums need: give it to one "
                "of them, and keep that symbol",
            )
        ordered = {symbol: numbers[symbol] for symbol in enum.symbols}
        return replace(enum, attributes=_with(enum.attributes, ordered))


def _inherited(field_: t.Field, history: _History, number: int, path: str) -> Mapping[str, Any]:
    """Return the type and the oneof of a number in earlier versions, where they fit a field."""
    earlier = history.attributes.get(number, {})
    _, value = _shape(field_.type, path)
    fits = {
        "type": earlier.get("type") in _types(value, path),
        "oneof": isinstance(field_.type, t.Nullable),
    }
    return {name: earlier[name] for name in fits if fits[name] and name in earlier}


def _with(
    attributes: Mapping[str, Any] | None, attribute: Mapping[str, Any], **more: Any
) -> Mapping[str, Any]:
    return {**(attributes or {}), ATTRIBUTE: {**attribute, **more}}


def _numbers(named: t.Record | t.Enum) -> dict[str, int]:
    """Return the numbers of a record's fields, or an enum's symbols; those that have one."""
    if isinstance(named, t.Enum):
        return symbol_numbers(named, "")
    numbers = {f.name: _attribute(f, f.name).get("number") for f in named.fields}
    return {name: number for name, number in numbers.items() if number is not None}


def _pairs(new: t.Type, old: t.Type) -> Iterator[tuple[Any, Any]]:
    """Yield the records and enums that stand at the same place in two versions."""
    for _, *pair in _places(new, old, "", set()):
        if isinstance(pair[0], t.Record | t.Enum):
            yield pair[0], pair[1]


def _places(
    new: t.Type, old: t.Type, path: str, yielded: set[tuple[str, str]]
) -> Iterator[tuple[str, t.Type, t.Type]]:
    """Yield the types at the same place in two versions, with their path in the new one.

    Two types that are `yielded` are left out at other places: an enum may have many symbols.
    """
    new, old = t.present(new), t.present(old)
    if isinstance(new, t.Record | t.Enum) and isinstance(old, t.Record | t.Enum):
        if (new.name, old.name) in yielded:
            return
        yielded.add((new.name, old.name))
    match new, old:
        case t.Record() as record, t.Record() as before:
            yield path, record, before
            for field_, earlier in _matching(record, before):
                where = t.join_path(path, field_.name)
                yield from _places(field_.type, earlier.type, where, yielded)
        case t.Array(items=items), t.Array(items=before_items):
            yield from _places(items, before_items, f"{path}[]", yielded)
        case t.Map(values=values), t.Map(values=before_values):
            yield from _places(values, before_values, f"{path}{{}}", yielded)
        case t.Enum() as enum, t.Enum() as before_enum:
            yield path, enum, before_enum


def _matching(new: t.Record, old: t.Record) -> Iterator[tuple[t.Field, t.Field]]:
    """Yield the fields of two versions that have one number, or else one name."""
    numbers = {number: name for name, number in _numbers(old).items()}
    there = {field_.name: field_ for field_ in old.fields}
    own = _numbers(new)
    for field_ in new.fields:
        name = numbers.get(own.get(field_.name, 0)) or t.written_name(field_, there)
        if name is not None:
            yield field_, there[name]


def number_changes(new: Schema, old: Schema) -> tuple[str, ...]:
    """Return the reasons why messages of two numbered versions of a channel would be confused."""
    return (*_changed_places(new, old), *_changes(new, old))


def _changed_places(new: Schema, old: Schema) -> Iterator[str]:
    """Yield a reason if messages of one schema id would have two places; all may have the first."""
    place, before = message_place(new), message_place(old)
    if new == old and before not in ((), place):
        yield (
            f"the message has the place {[*place]} in its file here and {[*before]} there, and its "
            "schema id does not tell which: leave it where it was, or make it the first"
        )


def _changes(new: Schema, old: Schema) -> Iterator[str]:
    for path, type_, before in _places(new.record, old.record, "", set()):
        if isinstance(type_, t.Record | t.Enum) and isinstance(before, t.Record | t.Enum):
            yield from _moved(path, _numbers(type_), _numbers(before), type_)
        if isinstance(type_, t.Record) and isinstance(before, t.Record):
            yield from _changed_forms(path, type_, before)
            yield from _changed_oneofs(path, type_, before)


def _moved(
    path: str, numbers: Mapping[str, int], before: Mapping[str, int], named: t.Record | t.Enum
) -> Iterator[str]:
    noun = "symbol" if isinstance(named, t.Enum) else "field"
    for name, number in numbers.items():
        if (earlier := before.get(name, number)) != number:
            yield (
                f"{t.field_at(path)}: the {noun} {name!r} has the number {number} here and "
                f"{earlier} there: keep its number, or use a new name"
            )
    if isinstance(named, t.Enum):
        symbols = {number: symbol for symbol, number in before.items()}
        for symbol, number in numbers.items():
            if (earlier_symbol := symbols.get(number, symbol)) != symbol:
                yield (
                    f"{t.field_at(path)}: the number {number} is {symbol!r} here and "
                    f"{earlier_symbol!r} there: give {symbol!r} a new number"
                )


def _changed_forms(path: str, new: t.Record, old: t.Record) -> Iterator[str]:
    for field_, earlier in _matching(new, old):
        where = t.join_path(path, field_.name)
        one, other = proto_field(field_, where), proto_field(earlier, where)
        # Versions that differ in their attributes only have one schema id.
        changed = one.value == other.value and one.type != other.type
        if one.number == other.number and (changed or one.wire_form != other.wire_form):
            yield (
                f"{t.field_at(where)}: the number {one.number} is {_shown(one)} here and "
                f"{_shown(other)} there, so readers of one could misread the other: keep its type, "
                "or use a new name, which gets a new number"
            )


def _shown(proto: ProtoField) -> str:
    return f"{proto.label} {proto.type}" if proto.label in ("repeated", "map") else proto.type


def _changed_oneofs(path: str, new: t.Record, old: t.Record) -> Iterator[str]:
    """Yield a reason for each oneof that takes fields which could both be set before."""
    oneofs = {_oneof(field_) for field_ in old.fields}
    moved: dict[str, list[str]] = {}
    for field_, earlier in _matching(new, old):
        oneof = _oneof(field_)
        if oneof is not None and oneof != _oneof(earlier):
            moved.setdefault(oneof, []).append(field_.name)
    for oneof, names in moved.items():
        if len(names) > 1 or oneof in oneofs:
            yield (
                f"{t.field_at(path)}: the oneof {oneof!r} takes {_listed(names)}, which could be "
                "set beside its other members before: add a new field to it instead"
            )


def _oneof(field_: t.Field) -> str | None:
    oneof: str | None = _attribute(field_, field_.name).get("oneof")
    return oneof


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
