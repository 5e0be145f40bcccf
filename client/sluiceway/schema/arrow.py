"""Conversion between schemas and Arrow schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from pyarrow import types as arrow_types

from sluiceway.errors import InvalidSchema, SchemaError, UnsupportedType
from sluiceway.schema import avro
from sluiceway.schema import types as t


def any_of(*conditions: Callable[[pa.DataType], bool]) -> Callable[[pa.DataType], bool]:
    """Return the condition that at least one of `conditions` holds for an Arrow type."""
    return lambda type_: any(condition(type_) for condition in conditions)


is_list: Final = any_of(
    arrow_types.is_list,
    arrow_types.is_large_list,
    arrow_types.is_fixed_size_list,
    arrow_types.is_list_view,
    arrow_types.is_large_list_view,
)


def _scalar_type(kind: t.Kind, alias: str) -> pa.DataType:
    type_ = pa.type_for_alias(alias)
    return pa.timestamp(type_.unit, tz="UTC") if kind.traits.instant else type_


_ARROW: Final = {kind: _scalar_type(kind, kind.arrow[0]) for kind in t.Kind}
_DIGITS_OF_128_BITS: Final = 38
AVRO: Final = b"sluiceway.avro"
"""Metadata key of Arrow fields: Avro JSON of a type that Arrow does not fully describe."""

UNION: Final = b"sluiceway.union"
"""Metadata key of Arrow fields: the names of the branches of a union, in JSON.

Its values are structs with one field for each branch, by its number; all but one are null.
"""


def to_arrow(record: t.Record) -> pa.Schema:
    """Return the Arrow schema of `record`; fields without null are not nullable."""
    return pa.schema([_field(field.name, field.type) for field in record.fields])


def arrow_type(type_: t.Type) -> pa.DataType:
    """Return the Arrow type of the values of `type_`."""
    match type_:
        case t.Scalar(kind=kind):
            return _ARROW[kind]
        case t.Fixed(size=size) | t.Uuid(fixed=t.Fixed(size=size)):
            return pa.binary(size)
        case t.Decimal(precision=precision, scale=scale):
            wide = precision > _DIGITS_OF_128_BITS
            return (pa.decimal256 if wide else pa.decimal128)(precision, scale)
        case t.Uuid() | t.Enum():
            return pa.string()
        case t.Nullable(item=item):
            return arrow_type(item)
        case t.Array(items=items):
            return pa.list_(_field("item", items))
        case t.Map(values=values):
            return pa.map_(pa.string(), _field("value", values))
        case t.Record(fields=fields):
            return pa.struct([_field(field.name, field.type) for field in fields])
        case t.Union(branches=branches):
            return pa.struct(
                [
                    _field(str(number), t.Nullable(item=branch))
                    for number, branch in enumerate(branches)
                ]
            )


def _field(name: str, type_: t.Type) -> pa.Field:
    leaf = t.present(type_)
    note = None
    if isinstance(leaf, t.Union):
        names = [t.branch_name(branch) for branch in leaf.branches]
        note = {UNION: json.dumps(names, separators=(",", ":"))}
    elif isinstance(leaf, t.Fixed | t.Uuid | t.Enum) or (
        isinstance(leaf, t.Decimal) and leaf.fixed
    ):
        note = {AVRO: json.dumps(avro.definition(leaf), separators=(",", ":"))}
    return pa.field(name, arrow_type(type_), nullable=isinstance(type_, t.Nullable), metadata=note)


def union_branches(field: pa.Field) -> list[str] | None:
    """Return the names of the branches of a field of a union; None for other types."""
    note = (field.metadata or {}).get(UNION)
    if note is None:
        return None
    names: list[str] = json.loads(note)
    return names


def type_in_metadata(field: pa.Field, name: str) -> t.Leaf | None:
    """Return the type in the metadata of `field`, under the full name `name`, or None.

    Metadata that does not fit the Arrow type is ignored: the type may have been changed since.
    """
    note = (field.metadata or {}).get(AVRO)
    if note is None:
        return None
    try:
        leaf = avro.parse_leaf(json.loads(note), name, field.name)
    except (KeyError, TypeError, ValueError, SchemaError):
        return None
    return leaf if arrow_type(leaf).equals(field.type) else None


_KINDS: Final = {_scalar_type(kind, alias): kind for kind in t.Kind for alias in kind.arrow}
_HINTS: Final = (
    (arrow_types.is_uint64, "cast it to int64 if its values fit, or to decimal128(20, 0)"),
    (arrow_types.is_date64, "cast it to date32"),
    (arrow_types.is_time, 'cast it to time64("us")'),
    (arrow_types.is_duration, "cast it to int64"),
    (arrow_types.is_null, "cast it to the type it should have"),
    (arrow_types.is_fixed_size_binary, f"it has 1 to {t.MAX_FIXED_BYTES} bytes: cast it to binary"),
    (arrow_types.is_run_end_encoded, "decode it with pyarrow.compute.run_end_decode"),
    (lambda type_: isinstance(type_, pa.BaseExtensionType), "cast it to its storage type"),
)


def from_arrow(schema: pa.Schema) -> t.Record:
    """Return the record for batches of the Arrow `schema`.

    Narrow integers widen to int and long, large types become the plain ones, seconds a unit of
    Avro, and dictionaries their values. Nullable fields become unions with null as the default.
    Raises UnsupportedType or InvalidSchema with the path of the field.
    """
    if not len(schema):
        raise InvalidSchema("the Arrow schema has no fields; a channel's records need at least one")
    return t.Record(name=t.ROOT, fields=_fields(schema, "", t.ROOT, 0, t.SchemaLimits()))


def _fields(
    members: Any, path: str, name: str, depth: int, limits: t.SchemaLimits
) -> tuple[t.Field, ...]:
    fields: dict[str, t.Field] = {}
    for member in members:
        where = t.checked_field(path, member.name, fields)
        type_ = _type(member, where, f"{name}.{member.name}", depth + 1, limits)
        default = "null" if isinstance(type_, t.Nullable) else None
        fields[member.name] = t.Field(name=member.name, type=type_, default=default)
    limits.count(len(fields), depth, path)
    return tuple(fields.values())


def _type(field: pa.Field, path: str, name: str, depth: int, limits: t.SchemaLimits) -> t.Type:
    depth += field.nullable
    if (branches := union_branches(field)) is not None:
        hint = "Arrow has no such type: give the schema as Avro JSON, or as a dataclass"
        raise UnsupportedType(path=path, type_name=f"union of {', '.join(branches)}", hint=hint)
    present = type_in_metadata(field, name) or _present(field.type, path, name, depth, limits)
    return t.Nullable(item=present) if field.nullable else present


def _present(
    type_: pa.DataType, path: str, name: str, depth: int, limits: t.SchemaLimits
) -> t.Present:
    limits.count(0, depth, path)
    if arrow_types.is_timestamp(type_) and type_.tz is not None:
        type_ = pa.timestamp(type_.unit, tz="UTC")
    if kind := _KINDS.get(type_):
        return t.Scalar(kind=kind)
    if arrow_types.is_decimal(type_):
        return _decimal(type_, path)
    if arrow_types.is_fixed_size_binary(type_) and 0 < type_.byte_width <= t.MAX_FIXED_BYTES:
        return t.Fixed(name=name, size=type_.byte_width)
    if getattr(type_, "extension_name", None) == "arrow.uuid":
        return t.Uuid(fixed=t.Fixed(name=name, size=t.UUID_BYTES))
    if arrow_types.is_dictionary(type_):
        return _present(type_.value_type, path, name, depth, limits)
    if is_list(type_):
        item = _type(type_.value_field, f"{path}[]", f"{name}.item", depth + 1, limits)
        return t.Array(items=item)
    if arrow_types.is_map(type_):
        if _KINDS.get(type_.key_type) is not t.Kind.STRING:
            hint = "map keys must be strings: cast them"
            raise UnsupportedType(path=path, type_name=str(type_), hint=hint)
        item = _type(type_.item_field, f"{path}{{}}", f"{name}.value", depth + 1, limits)
        return t.Map(values=item)
    if arrow_types.is_struct(type_) and type_.num_fields:
        return t.Record(name=name, fields=_fields(type_, path, name, depth, limits))
    hint = next((hint for applies, hint in _HINTS if applies(type_)), "leave the field out")
    raise UnsupportedType(path=path, type_name=str(type_), hint=hint)


def _decimal(type_: pa.DataType, path: str) -> t.Decimal:
    if not 0 <= type_.scale <= type_.precision:
        hint = (
            f"cast it to one whose scale lies between 0 and the precision, at most {t.MAX_DIGITS}"
        )
        raise UnsupportedType(path=path, type_name=str(type_), hint=hint)
    return t.Decimal(precision=type_.precision, scale=type_.scale)
