"""Avro JSON: parses schemas, rejects unsupported types, renders canonical JSON."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any, Final, NoReturn

from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema import types as t
from sluiceway.schema.defaults import default_text

UUID_BYTES: Final = 16

_KINDS: Final = {kind.value: kind for kind in t.LOGICAL}
_HINTS: Final = {
    "duration": "use a long of microseconds, or fields for months, days and milliseconds",
    "big-decimal": "use a decimal with a precision and a scale, or a string",
}


def parse_leaf(source: Mapping[str, Any], name: str, path: str) -> t.Leaf:
    """Parse a fixed, an enum or a logical type; `name` is the full name of the first two.

    Raises InvalidSchema, or UnsupportedType.
    """
    inner: object = source["type"]
    logical: Any = source.get("logicalType")
    if logical == "duration":
        raise UnsupportedType(path=path, type_name=f"{inner} (duration)", hint=_HINTS["duration"])
    if inner == "enum" and not logical:
        return enum(name, source.get("symbols"), source.get("default"), path)
    bytes_ = fixed(name, source.get("size"), path) if inner == "fixed" else None
    if bytes_ is not None and not logical:
        return bytes_
    if logical == "decimal":
        _require(path, logical, inner, "bytes", "fixed")
        return decimal(source.get("precision"), source.get("scale", 0), path, fixed=bytes_)
    if logical == "uuid":
        _require(path, logical, inner, "string", "fixed")
        if bytes_ is not None and bytes_.size != UUID_BYTES:
            raise t.invalid_schema(path, f"a uuid takes a fixed of 16 bytes, not {bytes_.size}")
        return t.Uuid(fixed=bytes_)
    kind = _KINDS.get(logical) if isinstance(logical, str) else None
    if kind is None:
        hint = _HINTS.get(str(logical), "leave the logicalType out to carry the plain type")
        raise UnsupportedType(path=path, type_name=f"{inner} ({logical})", hint=hint)
    _require(path, logical, inner, t.LOGICAL[kind].value)
    return t.Scalar(kind=kind)


def decimal(
    precision: object, scale: object, path: str, *, fixed: t.Fixed | None = None
) -> t.Decimal:
    """Return a decimal type, stored in `fixed` if given. Raises the errors of `parse_leaf`."""
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision != 0:
        raise t.invalid_schema(
            path,
            f"a decimal with precision {precision!r} and scale {scale!r}: "
            "give a precision of 1 or more, and a scale from 0 to the precision",
        )
    if precision > t.MAX_DIGITS:
        raise UnsupportedType(
            path=path,
            type_name=f"decimal({precision}, {scale})",
            hint=f"a decimal has at most {t.MAX_DIGITS} digits: use fewer, or a string",
        )
    if fixed is not None and 10**precision > 1 << (8 * fixed.size - 1):
        raise t.invalid_schema(
            path,
            f"{precision} digits do not fit into a fixed of {fixed.size} bytes: make "
            "it longer, or lower the precision",
        )
    return t.Decimal(precision=precision, scale=scale, fixed=fixed)


def fixed(name: str, size: object, path: str) -> t.Fixed:
    """Return the type of exactly `size` bytes. Raises the errors of `parse_leaf`."""
    if type(size) is not int or size < 1:
        # With a size of 0, a message of a few bytes could have millions of items.
        raise t.invalid_schema(path, f"the fixed {name!r} needs a size of at least 1 byte")
    if size > t.MAX_FIXED_BYTES:
        raise UnsupportedType(
            path=path,
            type_name=f"fixed of {size} bytes",
            hint=f"a fixed has at most {t.MAX_FIXED_BYTES} bytes: use bytes",
        )
    return t.Fixed(name=name, size=size)


def enum(name: str, symbols: object, default: object, path: str) -> t.Enum:
    """Return the enum of `symbols`. Raises the errors of `parse_leaf`."""
    if not isinstance(symbols, list | tuple) or not symbols:
        raise t.invalid_schema(path, f"the enum {name!r} needs a list of symbols, not empty")
    known: set[str] = set()
    for symbol in symbols:
        if not isinstance(symbol, str):
            raise t.invalid_schema(
                path, f"the symbol {symbol!r} is not text; in YAML, quote words such as yes and no"
            )
        if len(symbol) > t.MAX_FIXED_BYTES:
            raise t.invalid_schema(path, f"a symbol has more than {t.MAX_FIXED_BYTES} letters")
        if not t.NAME.fullmatch(symbol):
            raise t.invalid_schema(path, f"the symbol {t.name_advice(symbol)}")
        if symbol in known:
            raise t.invalid_schema(path, f"the enum {name!r} has the symbol {symbol!r} twice")
        known.add(symbol)
    if default is not None and not (isinstance(default, str) and default in known):
        raise t.invalid_schema(
            path,
            f"the default {default!r} of the enum {name!r} is not one of its symbols: "
            f"give one of {', '.join(symbols)}",
        )
    return t.Enum(name=name, symbols=tuple(symbols), default=default)


def _require(path: str, logical: str, inner: object, *allowed: str) -> None:
    if inner not in allowed:
        raise t.invalid_schema(
            path, f"the logical type {logical} belongs on {' or '.join(allowed)}"
        )


_PLAIN: Final = {kind.value: kind for kind in t.Kind if kind not in t.LOGICAL}
_COMPLEX: Final = frozenset({"record", "error", "enum", "fixed", "array", "map", "union", "null"})
_NULL_HINT: Final = "null is only a branch of a union: give the other types of the field"


def parse(source: str | Mapping[str, Any]) -> t.Record:
    """Parse an Avro record schema, given as JSON text or as the object.

    Documentation, aliases and unknown attributes are dropped: they affect neither bytes nor
    values. Raises InvalidSchema or UnsupportedType, with the path of the field.
    """
    definition = _loaded(source) if isinstance(source, str) else source
    if not isinstance(definition, Mapping):
        raise InvalidSchema("the schema must be a JSON object with an Avro record")
    root = _Parser().type(definition, "", "", 0)
    if not isinstance(root, t.Record):
        raise UnsupportedType(
            path="",
            type_name=str(definition.get("type")),
            hint="a channel needs an Avro record: make it a field of one",
        )
    return root


def _loaded(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidSchema(f"the schema is nested deeper than {t.MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidSchema(f"the schema is not JSON: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class _Parser:
    """The state of one parse: the named types, and the size of the schema so far."""

    def __init__(self) -> None:
        self.named: dict[str, t.Record | t.Leaf | None] = {}  # None: being parsed
        self.sizes: dict[str, tuple[int, int]] = {}  # fields within, levels below
        self.limits = t.SchemaLimits()

    def type(self, source: object, path: str, namespace: str, depth: int) -> t.Type:
        self.limits.count(0, depth, path)
        if isinstance(source, str):
            return self._named(source, path, namespace, depth)
        if isinstance(source, list):
            return self._union(source, path, namespace, depth)
        if not isinstance(source, Mapping) or "type" not in source:
            raise t.invalid_schema(path, "has no Avro type: give a name, a list or an object")
        if source.get("logicalType") and isinstance(inner := source["type"], Mapping):
            # {"type": {"type": "int"}, "logicalType": "date"} is one type, not two.
            source = {**inner, **source, "type": inner.get("type")}
        inner = source["type"]
        if source.get("logicalType") or inner in ("enum", "fixed"):
            return self._leaf(source, path, namespace)
        match inner:
            case "record":
                return self._record(source, path, namespace, depth)
            case "array":
                item = self.type(source.get("items"), f"{path}[]", namespace, depth + 1)
                return t.Array(items=item)
            case "map":
                item = self.type(source.get("values"), f"{path}{{}}", namespace, depth + 1)
                return t.Map(values=item)
            case "error":
                raise UnsupportedType(path=path, type_name=inner, hint="make it a record")
        return self.type(inner, path, namespace, depth + 1)

    def _named(self, name: str, path: str, namespace: str, depth: int) -> t.Type:
        if kind := _PLAIN.get(name):
            return t.Scalar(kind=kind)
        if name in _COMPLEX:
            if name in ("null", "union", "error"):
                raise UnsupportedType(path=path, type_name=name, hint=_NULL_HINT)
            raise t.invalid_schema(path, f'{name!r} must be an object {{"type": "{name}"}}')
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self.named:
            raise t.invalid_schema(path, f"unknown type {name!r}")
        type_ = self.named[full]
        if type_ is None:
            raise UnsupportedType(
                path=path, type_name=f"{full} (recursive)", hint="records cannot hold themselves"
            )
        fields, levels = self.sizes.get(full, (0, 0))
        self.limits.count(fields, depth + levels, path)
        return type_

    def _leaf(self, source: Mapping[str, Any], path: str, namespace: str) -> t.Leaf:
        if source["type"] not in ("enum", "fixed"):
            return parse_leaf(source, "", path)
        full = self._claimed(source, path, namespace)
        self.named[full] = leaf = parse_leaf(source, full, path)
        return leaf

    def _claimed(self, source: Mapping[str, Any], path: str, namespace: str) -> str:
        """Return the full name of the type in `source`, which must be unique."""
        full = _full_name(source, path, namespace)
        if full in self.named or full in _PLAIN or full in _COMPLEX:
            raise t.invalid_schema(path, f"the name {full!r} is taken; name each type once")
        return full

    def _union(self, given: list[object], path: str, namespace: str, depth: int) -> t.Type:
        if None in given:
            raise t.invalid_schema(path, 'the union has null instead of "null": quote it')
        if given.count("null") > 1:
            raise t.invalid_schema(path, "the union has null twice; keep one of them")
        sources = [source for source in given if source != "null"]
        if len(sources) > 1:
            self.limits.count(len(sources), depth, path)
        branches = []
        for source in sources:
            branch = self.type(source, path, namespace, depth + 1)
            if isinstance(branch, t.Nullable | t.Union):
                raise t.invalid_schema(path, "a union cannot be a branch of a union")
            branches.append(branch)
        if not branches:
            raise UnsupportedType(path=path, type_name=json.dumps(given), hint=_NULL_HINT)
        if "null" not in given:
            return t.checked_union(tuple(branches), path)
        item = branches[0] if len(branches) == 1 else t.checked_union(tuple(branches), path)
        return t.Nullable(item=item, null_at=given.index("null"))

    def _record(
        self, source: Mapping[str, Any], path: str, namespace: str, depth: int
    ) -> t.Present:
        full = self._claimed(source, path, namespace)
        members = source.get("fields")
        if not isinstance(members, list) or not members:
            # An empty record takes no bytes: a message of a few bytes could have millions.
            raise t.invalid_schema(path, f"the record {full!r} needs a list of fields, not empty")
        self.named[full] = None
        limits = self.limits
        fields_before, depth_before, limits.depth = limits.fields, limits.depth, depth
        limits.count(len(members), depth, path)
        inside = full.rpartition(".")[0]
        fields: dict[str, t.Field] = {}
        for member in members:
            field = self._field(member, path, inside, depth, fields)
            fields[field.name] = field
        record = t.Record(name=full, fields=tuple(fields.values()))
        self.named[full] = record
        self.sizes[full] = (limits.fields - fields_before, limits.depth - depth)
        limits.depth = max(limits.depth, depth_before)
        return record

    def _field(
        self, member: object, path: str, namespace: str, depth: int, taken: Container[str]
    ) -> t.Field:
        if not isinstance(member, Mapping) or not isinstance(name := member.get("name"), str):
            raise t.invalid_schema(path, "every field must be an object with a name")
        where = t.checked_field(path, name, taken)
        type_ = self.type(member.get("type"), where, namespace, depth + 1)
        if "default" not in member:
            return t.Field(name=name, type=type_)
        return t.Field(name=name, type=type_, default=default_text(member["default"], type_, where))


def _full_name(source: Mapping[str, Any], path: str, namespace: str) -> str:
    name, own = source.get("name"), source.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(own, str):
        raise t.invalid_schema(
            path, f"the {source['type']} needs a name, and its namespace must be text"
        )
    full = name if "." in name or not own else f"{own}.{name}"
    for part in full.split("."):
        if not t.NAME.fullmatch(part):
            raise t.invalid_schema(path, t.name_advice(part))
    if namespace and "." not in full:
        # Its rendered name would be read as a name in the enclosing namespace.
        raise t.invalid_schema(
            path, f"give the {source['type']} {full!r} a namespace, as its parent has one"
        )
    return full


def definition(type_: t.Type, named: set[str] | None = None) -> Any:
    """Return the Avro JSON of `type_`: an object, for some types a list or a name.

    Names are full names. A named type is defined at its first use, and then referenced by name;
    `named` are the types that are already defined.
    """
    named = set() if named is None else named
    match type_:
        case t.Nullable(item=item, null_at=null_at):
            inner = definition(item, named)
            branches = inner if isinstance(item, t.Union) else [inner]
            return [*branches[:null_at], "null", *branches[null_at:]]
        case t.Union(branches=several):
            return [definition(branch, named) for branch in several]
        case t.Array(items=items):
            return {"type": "array", "items": definition(items, named)}
        case t.Map(values=values):
            return {"type": "map", "values": definition(values, named)}
        case t.Record(name=name, fields=fields):
            if name in named:
                return name
            named.add(name)
            members = []
            for field in fields:
                member = {"name": field.name, "type": definition(field.type, named)}
                if field.default is not None:
                    member["default"] = json.loads(field.default)
                members.append(member)
            return {"type": "record", "name": name, "fields": members}
        case t.Scalar(kind=kind) if kind in t.LOGICAL:
            return {"type": t.LOGICAL[kind].value, "logicalType": kind.value}
        case t.Scalar(kind=kind):
            return kind.value
        case t.Fixed():
            return _fixed(type_, named, {})
        case t.Enum(name=name, symbols=symbols, default=default):
            shown = {"type": "enum", "name": name, "symbols": list(symbols)}
            return _once(name, named, shown | ({} if default is None else {"default": default}))
        case t.Decimal(precision=precision, scale=scale, fixed=fixed):
            logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
            return {"type": "bytes"} | logical if fixed is None else _fixed(fixed, named, logical)
        case t.Uuid(fixed=fixed):
            logical = {"logicalType": "uuid"}
            return {"type": "string"} | logical if fixed is None else _fixed(fixed, named, logical)


def _fixed(fixed: t.Fixed, named: set[str], logical: dict[str, Any]) -> Any:
    shown = {"type": "fixed", "name": fixed.name, "size": fixed.size}
    return _once(fixed.name, named, shown | logical)


def _once(name: str, named: set[str], shown: dict[str, Any]) -> Any:
    if name in named:
        return name
    named.add(name)
    return shown
