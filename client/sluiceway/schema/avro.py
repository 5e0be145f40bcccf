"""Avro JSON: parses schemas, rejects unsupported types, renders canonical JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

from sluiceway.errors import InvalidSchema, UnsupportedType
from sluiceway.schema import types as t
from sluiceway.schema.defaults import default_text

_KINDS: Final = {kind.value: kind for kind in t.Kind if kind.traits.physical}
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
        if bytes_ is not None and bytes_.size != t.UUID_BYTES:
            raise t.invalid_schema(path, f"a uuid takes a fixed of 16 bytes, not {bytes_.size}")
        return t.Uuid(fixed=bytes_)
    kind = _KINDS.get(logical) if isinstance(logical, str) else None
    if kind is None:
        hint = _HINTS.get(str(logical), "leave the logicalType out to carry the plain type")
        raise UnsupportedType(path=path, type_name=f"{inner} ({logical})", hint=hint)
    _require(path, logical, inner, kind.traits.physical)
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
    distinct: set[str] = set()
    for symbol in symbols:
        if not isinstance(symbol, str):
            raise t.invalid_schema(
                path, f"the symbol {symbol!r} is not text; in YAML, quote words such as yes and no"
            )
        if len(symbol) > t.MAX_FIXED_BYTES:
            raise t.invalid_schema(path, f"a symbol has more than {t.MAX_FIXED_BYTES} letters")
        if not t.NAME.fullmatch(symbol):
            raise t.invalid_schema(path, f"the symbol {t.name_advice(symbol)}")
        if symbol in distinct:
            raise t.invalid_schema(path, f"the enum {name!r} has the symbol {symbol!r} twice")
        distinct.add(symbol)
    if default is not None and not (isinstance(default, str) and default in distinct):
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


_PLAIN: Final = {kind.value: kind for kind in t.Kind if not kind.traits.physical}
_COMPLEX: Final = frozenset({"record", "error", "enum", "fixed", "array", "map", "union", "null"})
_NULL_HINT: Final = "null is only a branch of a union: give the other types of the field"


def parse(source: str | Mapping[str, Any]) -> t.Record:
    """Parse an Avro record schema, given as JSON text or as the object.

    Raises InvalidSchema or UnsupportedType, with the path of the field.
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
        type_ = self._type(source, path, namespace, depth)
        attributes = _attributes(source, type_, path)
        if not attributes or isinstance(type_, t.Nullable | t.Union):
            return type_
        annotated = replace(type_, attributes={**(type_.attributes or {}), **attributes})
        defines = isinstance(source, Mapping) and "name" in source
        if defines and isinstance(annotated, t.Record | t.Leaf) and (name := t.own_name(annotated)):
            # Where the type is used again, it has the same attributes.
            self.named[name] = annotated
        return annotated

    def _type(self, source: object, path: str, namespace: str, depth: int) -> t.Type:
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
        leaf = parse_leaf(source, full, path)
        aliases = _aliases(source, path, full.rpartition(".")[0])
        match leaf:
            case t.Enum() | t.Fixed():
                leaf = replace(leaf, aliases=aliases)
            case t.Decimal(fixed=t.Fixed() as fixed_) | t.Uuid(fixed=t.Fixed() as fixed_):
                leaf = replace(leaf, fixed=replace(fixed_, aliases=aliases))
        self.named[full] = leaf
        return leaf

    def _claimed(self, source: Mapping[str, Any], path: str, namespace: str) -> str:
        """Return the full name of the type in `source`, which must be unique."""
        full = _full_name(source, path, namespace)
        if full in self.named or full in _PLAIN or full in _COMPLEX:
            raise t.invalid_schema(path, f"the name {full!r} is taken; name each type once")
        return full

    def _union(self, declared: list[object], path: str, namespace: str, depth: int) -> t.Type:
        if None in declared:
            raise t.invalid_schema(path, 'the union has null instead of "null": quote it')
        if declared.count("null") > 1:
            raise t.invalid_schema(path, "the union has null twice; keep one of them")
        sources = [source for source in declared if source != "null"]
        if len(sources) > 1:
            self.limits.count(len(sources), depth, path)
        branches = []
        for source in sources:
            branch = self.type(source, path, namespace, depth + 1)
            if isinstance(branch, t.Nullable | t.Union):
                raise t.invalid_schema(path, "a union cannot be a branch of a union")
            branches.append(branch)
        if not branches:
            raise UnsupportedType(path=path, type_name=json.dumps(declared), hint=_NULL_HINT)
        if "null" not in declared:
            return t.checked_union(tuple(branches), path)
        item = branches[0] if len(branches) == 1 else t.checked_union(tuple(branches), path)
        return t.Nullable(item=item, null_at=declared.index("null"))

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
        _require_distinct_aliases(fields.values(), path)
        record = t.Record(
            name=full, fields=tuple(fields.values()), aliases=_aliases(source, path, inside)
        )
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
        default = None
        if "default" in member:
            default = default_text(member["default"], type_, where)
        return t.Field(
            name=name,
            type=type_,
            default=default,
            aliases=_aliases(member, where),
            attributes=_others(member, where, "name", "type", "default", "aliases"),
        )


def _require_distinct_aliases(fields: Collection[t.Field], path: str) -> None:
    taken = {field.name: field.name for field in fields}
    for field in fields:
        for alias in field.aliases:
            other = taken.setdefault(alias, field.name)
            if other != field.name:
                raise t.invalid_schema(
                    t.join_path(path, field.name),
                    f"its alias {alias!r} is a name or an alias of the field {other!r}: an alias "
                    "belongs to one field",
                )


def _aliases(source: Mapping[str, Any], path: str, namespace: str | None = None) -> tuple[str, ...]:
    """Return the aliases in `source`; with `namespace`, of a named type, as full names."""
    aliases = source.get("aliases", ())
    if not isinstance(aliases, list | tuple) or not all(isinstance(a, str) for a in aliases):
        raise t.invalid_schema(path, "the aliases must be a list of names")
    for alias in aliases:
        for part in [alias] if namespace is None else alias.split("."):
            if not t.NAME.fullmatch(part):
                raise t.invalid_schema(path, f"the alias {t.name_advice(part)}")
    if namespace:
        aliases = [alias if "." in alias else f"{namespace}.{alias}" for alias in aliases]
    return tuple(dict.fromkeys(aliases))


_STRUCTURE: Final = {
    t.Record: ("name", "namespace", "aliases", "fields"),
    t.Enum: ("name", "namespace", "aliases", "symbols", "default"),
    t.Fixed: ("name", "namespace", "aliases", "size"),
    t.Decimal: ("name", "namespace", "aliases", "size", "logicalType", "precision", "scale"),
    t.Uuid: ("name", "namespace", "aliases", "size", "logicalType"),
    t.Array: ("items",),
    t.Map: ("values",),
    t.Scalar: ("logicalType",),
}
"""The attributes of a type's definition that define it; all others are kept as they are."""


def _attributes(source: object, type_: t.Type, path: str) -> Mapping[str, Any] | None:
    """Return the further attributes of a type that `source` defines."""
    if not isinstance(source, Mapping):
        return None
    return _others(source, path, "type", *_STRUCTURE.get(type(type_), ()))


def _others(source: Mapping[str, Any], path: str, *names: str) -> Mapping[str, Any] | None:
    others = {name: value for name, value in source.items() if name not in names}
    try:
        json.dumps(others, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise t.invalid_schema(path, f"an attribute is not a JSON value: {error}") from error
    return others or None


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


def definition(type_: t.Type, *, annotated: bool = False) -> Any:
    """Return the Avro JSON of `type_`: an object, for some types a list or a name.

    Names are full names. A named type is defined at its first use, and then referenced by name.
    With `annotated`, it has aliases, documentation and other attributes.
    """
    return _Renderer(annotated=annotated).type(type_)


class _Renderer:
    """The state of one rendering: the named types that are already defined."""

    def __init__(self, *, annotated: bool) -> None:
        self._annotated = annotated
        self._named: set[str] = set()

    def type(self, type_: t.Type) -> Any:
        match type_:
            case t.Nullable(item=item, null_at=null_at):
                inner = self.type(item)
                branches = inner if isinstance(item, t.Union) else [inner]
                return [*branches[:null_at], "null", *branches[null_at:]]
            case t.Union(branches=several):
                return [self.type(branch) for branch in several]
            case t.Array(items=items):
                shown = {"type": "array", "items": self.type(items)}
                return shown | self._annotations(type_)
            case t.Map(values=values):
                shown = {"type": "map", "values": self.type(values)}
                return shown | self._annotations(type_)
            case t.Record(name=name, fields=fields):
                if name in self._named:
                    return name
                self._named.add(name)
                members = [self._field(field) for field in fields]
                shown = {"type": "record", "name": name, "fields": members}
                return shown | self._annotations(type_)
            case t.Scalar(kind=kind) if physical := kind.traits.physical:
                shown = {"type": physical, "logicalType": kind.value}
                return shown | self._annotations(type_)
            case t.Scalar(kind=kind):
                annotations = self._annotations(type_)
                return {"type": kind.value} | annotations if annotations else kind.value
            case t.Enum(name=name, symbols=symbols, default=default):
                shown = {"type": "enum", "name": name, "symbols": list(symbols)}
                return self._once(type_, shown | ({} if default is None else {"default": default}))
            case t.Fixed(name=name, size=size):
                return self._once(type_, {"type": "fixed", "name": name, "size": size})
            case t.Decimal(precision=precision, scale=scale, fixed=fixed):
                logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
                return self._logical(type_, "bytes", fixed, logical)
            case t.Uuid(fixed=fixed):
                return self._logical(type_, "string", fixed, {"logicalType": "uuid"})

    def _field(self, field: t.Field) -> dict[str, Any]:
        member = {"name": field.name, "type": self.type(field.type)}
        if field.default is not None:
            member["default"] = json.loads(field.default)
        return member | self._annotations(field)

    def _logical(
        self, type_: t.Decimal | t.Uuid, inner: str, fixed: t.Fixed | None, logical: dict[str, Any]
    ) -> Any:
        if fixed is None:
            return {"type": inner} | logical | self._annotations(type_)
        shown = {"type": "fixed", "name": fixed.name, "size": fixed.size} | logical
        return self._once(type_, shown)

    def _once(self, type_: t.Leaf, shown: dict[str, Any]) -> Any:
        name = shown["name"]
        if name in self._named:
            return name
        self._named.add(name)
        return shown | self._annotations(type_)

    def _annotations(self, node: t.Branch | t.Field) -> dict[str, Any]:
        if not self._annotated:
            return {}
        aliases = node.aliases if isinstance(node, t.Field) else t.aliases_of(node)
        return ({"aliases": list(aliases)} if aliases else {}) | dict(node.attributes or {})
