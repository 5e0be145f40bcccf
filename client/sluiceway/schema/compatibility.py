"""Compatibility of schemas by the rules of Avro's schema resolution, and their differences.

The rules are those of Avro 1.12 ("Schema Resolution"), with two additions:

- A nullable type can only be read as a nullable type. Avro would fail at the first null.
- A logical type can only be read as itself. Avro leaves a date read as an int undefined, and would
  read milliseconds as microseconds.

Fields are matched by their names, else by the reader's aliases. Names of records, enums and fixed
are ignored, as the path of a type identifies it. Only in a union of several types, branches with
names are matched by them or by the reader's aliases, without the namespace.

A value of a union is read as the reader's branch of the same type, else as the first branch that
can read it. So a new branch does not change the type of other branches' values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from sluiceway.schema import types as t

if TYPE_CHECKING:
    from sluiceway.schema import Schema


def differences(ours: t.Type, theirs: t.Type, path: str = "") -> list[str]:
    """Return the differences between two types at `path`, one message each."""
    match ours, theirs:
        case t.Nullable(), t.Nullable():
            return differences(ours.item, theirs.item, path)
        case t.Union(), t.Union():
            return _compare_branches(ours, theirs, path)
        case t.Record(), t.Record():
            return _compare_fields(ours, theirs, path)
        case t.Array(), t.Array():
            return differences(ours.items, theirs.items, f"{path}[]")
        case t.Map(), t.Map():
            return differences(ours.values, theirs.values, f"{path}{{}}")
        case t.Enum(), t.Enum() if ours.symbols == theirs.symbols:
            return []
    if _same_leaf(ours, theirs):
        return []
    return [f"{t.field_at(path)} is {shown(ours)} here and {shown(theirs)} there"]


def _compare_fields(ours: t.Record, theirs: t.Record, path: str) -> list[str]:
    here = {field.name: field.type for field in ours.fields}
    there = {field.name: field.type for field in theirs.fields}
    mismatches = []
    for name in [*here, *(name for name in there if name not in here)]:
        where = t.join_path(path, name)
        if name not in there:
            mismatches.append(f"{t.field_at(where)} is missing there")
        elif name not in here:
            mismatches.append(f"{t.field_at(where)} is unknown here")
        else:
            mismatches += differences(here[name], there[name], where)
    if not mismatches and list(here) != list(there):
        mismatches.append(
            f"{t.field_at(path)} has its fields in another order: {', '.join(here)} here"
        )
    return mismatches


def _compare_branches(ours: t.Union, theirs: t.Union, path: str) -> list[str]:
    here, there = _by_name(ours), _by_name(theirs)
    if here.keys() != there.keys():
        return [f"{t.field_at(path)} is {shown(ours)} here and {shown(theirs)} there"]
    return [
        difference
        for name, branch in here.items()
        for difference in differences(branch, there[name], path)
    ]


def _by_name(union: t.Union) -> dict[str, t.Branch]:
    """Return the branches by their names without the namespace, if these are distinct."""
    branches = {_short_name(branch): branch for branch in union.branches}
    if len(branches) < len(union.branches):
        return {t.branch_name(branch): branch for branch in union.branches}
    return branches


def _short_name(branch: t.Branch) -> str:
    """Return the branch's name in its union without the namespace."""
    return t.branch_name(branch).rpartition(".")[2]


def _same_leaf(one: t.Type, other: t.Type) -> bool:
    match one, other:
        case t.Scalar(), t.Scalar():
            return one == other
        case t.Fixed(), t.Fixed():
            return one.size == other.size
        case t.Decimal(), t.Decimal():
            return (one.precision, one.scale) == (other.precision, other.scale)
        case t.Uuid(), t.Uuid():
            return (one.fixed is None) is (other.fixed is None)
    return False


def shown(type_: t.Type) -> str:
    """Name a type in a message."""
    match type_:
        case t.Scalar(kind=kind):
            return kind.value
        case t.Fixed(size=size):
            return f"fixed of {size} bytes"
        case t.Decimal(precision=precision, scale=scale):
            return f"decimal({precision}, {scale})"
        case t.Uuid(fixed=fixed):
            return "uuid" if fixed is None else "uuid in 16 bytes"
        case t.Enum(symbols=symbols):
            return f"enum of {', '.join(symbols)}"
        case t.Nullable(item=item):
            return f"{shown(item)} or null"
        case t.Union(branches=branches):
            return f"union of {', '.join(map(shown, branches))}"
        case t.Array(items=items):
            return f"array of {shown(items)}"
        case t.Map(values=values):
            return f"map of {shown(values)}"
        case t.Record():
            return "record"


PROMOTIONS: Final = {
    t.Kind.INT: (t.Kind.LONG, t.Kind.FLOAT, t.Kind.DOUBLE),
    t.Kind.LONG: (t.Kind.FLOAT, t.Kind.DOUBLE),
    t.Kind.FLOAT: (t.Kind.DOUBLE,),
    t.Kind.STRING: (t.Kind.BYTES,),
    t.Kind.BYTES: (t.Kind.STRING,),
}
"""The kinds as which values may be read, besides their own."""


def incompatibilities(reader: Schema, writer: Schema) -> tuple[str, ...]:
    """Return the reasons why `reader` cannot read records of `writer`, with field and remedy.

    Without a reason, only bytes that are read as a string may still fail, if they are not UTF-8.
    """
    return tuple(_broken(reader.record, writer.record, ""))


def reasons_by_version(reasons: Mapping[int, Iterable[str]]) -> list[tuple[str, str]]:
    """Return each reason once, before it the versions that it holds for: "versions 1 to 3"."""
    numbers: dict[str, list[int]] = {}
    for version, texts in reasons.items():
        for text in texts:
            numbers.setdefault(text, []).append(version)
    return [(_versions(sorted(versions)), text) for text, versions in numbers.items()]


def _versions(numbers: list[int]) -> str:
    first, *rest = numbers
    if not rest:
        return f"version {first}"
    if len(rest) > 1 and rest[-1] - first == len(rest):
        return f"versions {first} to {rest[-1]}"
    return f"versions {', '.join(map(str, numbers[:-1]))} and {rest[-1]}"


def _broken(reader: t.Type, writer: t.Type, path: str) -> list[str]:
    match reader, writer:
        case t.Nullable(), t.Nullable():
            return _broken(reader.item, writer.item, path)
        case t.Nullable(), _:
            return _broken(reader.item, writer, path)
        case _, t.Nullable():
            reasons = [
                f"{t.field_at(path)} is nullable where it is written, but not where it is read: "
                "make it nullable in both"
            ]
            return reasons + _broken(reader, writer.item, path)
        case (t.Union(), _) | (_, t.Union()):
            return [
                reason
                for branch in branches_of(writer)
                for reason in _match(reader, branch, path)[1]
            ]
        case t.Record(), t.Record():
            return _broken_fields(reader, writer, path)
        case t.Array(), t.Array():
            return _broken(reader.items, writer.items, f"{path}[]")
        case t.Map(), t.Map():
            return _broken(reader.values, writer.values, f"{path}{{}}")
        case t.Enum(), t.Enum():
            return _broken_symbols(reader, writer, path)
    promoted = (
        isinstance(reader, t.Scalar)
        and isinstance(writer, t.Scalar)
        and reader.kind in PROMOTIONS.get(writer.kind, ())
    )
    if promoted or _same_leaf(reader, writer):
        return []
    return [
        f"{t.field_at(path)} is written as {shown(writer)} and cannot be read as {shown(reader)}: "
        f"{_advice(writer)}"
    ]


def possible_renames(new: Schema, old: Schema) -> tuple[str, ...]:
    """Return a warning for each field of `new` that may be a renamed field of `old`.

    Such a field has a default, so that readers of `new` get this instead of the values written
    with `old`, and its type reads that of a field which `new` lacks.
    """
    return tuple(_renames(new.record, old.record, ""))


def _renames(new: t.Type, old: t.Type, path: str) -> Iterator[str]:
    match t.present(new), t.present(old):
        case t.Record(fields=fields) as record, t.Record() as before:
            there = {field.name: field for field in before.fields}
            read = {t.written_name(field, there) for field in fields}
            gone = [field for field in before.fields if field.name not in read]
            for field in record.fields:
                where = t.join_path(path, field.name)
                name = t.written_name(field, there)
                if name is not None:
                    yield from _renames(field.type, there[name].type, where)
                    continue
                names = [lost.name for lost in gone if not _broken(field.type, lost.type, where)]
                if names and field.default is not None:
                    lost_names = ", ".join(map(repr, names))
                    yield (
                        f"{t.field_at(where)} is new, and {lost_names} of its type is gone: "
                        f"records written before are read with the default "
                        f'{field.default}. If it was renamed, add "aliases": ["{names[0]}"] to it'
                    )
        case t.Array(items=items), t.Array(items=before_items):
            yield from _renames(items, before_items, f"{path}[]")
        case t.Map(values=values), t.Map(values=before_values):
            yield from _renames(values, before_values, f"{path}{{}}")


def base64_changes(new: Schema, old: Schema) -> tuple[str, ...]:
    """Return a reason for each field that is text in one schema and bytes in the other.

    Avro converts them. In JSON, bytes are base64: read with the other schema, they would be text.
    """
    return tuple(_base64_changes(new.record, old.record, ""))


def _base64_changes(new: t.Type, old: t.Type, path: str) -> Iterator[str]:
    match t.present(new), t.present(old):
        case t.Record(fields=fields), t.Record() as before:
            there = {field.name: field.type for field in before.fields}
            for field in fields:
                if (name := t.written_name(field, there)) is not None:
                    where = t.join_path(path, field.name)
                    yield from _base64_changes(field.type, there[name], where)
        case t.Array(items=items), t.Array(items=before_items):
            yield from _base64_changes(items, before_items, f"{path}[]")
        case t.Map(values=values), t.Map(values=before_values):
            yield from _base64_changes(values, before_values, f"{path}{{}}")
        case t.Scalar(kind=kind), t.Scalar(kind=before_kind):
            if {kind, before_kind} == {t.Kind.STRING, t.Kind.BYTES}:
                yield (
                    f"{t.field_at(path)} is {kind.value} here and {before_kind.value} there, and "
                    "bytes are base64 in JSON: keep its type, or use a new name for the new type"
                )


def branches_of(type_: t.Type) -> tuple[t.Branch, ...]:
    """Return the branches of a union, or the one type of a field, without null."""
    present = t.present(type_)
    return present.branches if isinstance(present, t.Union) else (present,)


def matching_branch(reader: t.Type, written: t.Branch, path: str) -> int:
    """Return the number of the branch of `reader` that reads `written`."""
    number, reasons = _match(reader, written, path)
    assert number is not None and not reasons, reasons  # noqa: S101, PT018 - they are compatible
    return number


def _match(reader: t.Type, written: t.Branch, path: str) -> tuple[int | None, list[str]]:
    """Return the branch of `reader` that reads `written`, or the reasons why there is none."""
    branches = branches_of(reader)
    if not isinstance(reader, t.Union):
        return 0, _broken(branches[0], written, path)
    # The branch of the same name is tried first, and has the best explanation.
    distances = [_name_distance(branch, written) for branch in branches]
    order = sorted(range(len(branches)), key=distances.__getitem__)
    reasons: list[str] = []
    for place, number in enumerate(order):
        same_name = distances[number] < _OTHER_NAME
        if t.own_name(branches[number]) and t.own_name(written) and (place or not same_name):
            continue  # so a type with a name is compared with one other at most
        broken = _broken(branches[number], written, path)
        if not broken:
            return number, []
        if same_name:
            reasons = broken
    return None, reasons or [
        f"{t.field_at(path)} is written as {shown(written)} and cannot be read as any branch of "
        f"the {shown(reader)}: add it to the reader's union"
    ]


_OTHER_NAME: Final = 2


def _name_distance(reader: t.Branch, written: t.Branch) -> int:
    if t.branch_name(reader) == t.branch_name(written):
        return 0
    names = {_short_name(reader), *(alias.rpartition(".")[2] for alias in t.aliases_of(reader))}
    return 1 if _short_name(written) in names else _OTHER_NAME


_MOST_SYMBOLS: Final = 20
"""The most symbols in a reason: an enum of many may stand in thousands of fields."""


@lru_cache(maxsize=16)
def _unknown_symbols(reader: tuple[str, ...], writer: tuple[str, ...]) -> tuple[str, ...]:
    readable = set(reader)
    return tuple(symbol for symbol in writer if symbol not in readable)


def _broken_symbols(reader: t.Enum, writer: t.Enum, path: str) -> list[str]:
    if reader.default is not None:
        return []
    unknown = _unknown_symbols(reader.symbols, writer.symbols)
    if not unknown:
        return []
    shown = ", ".join(unknown[:_MOST_SYMBOLS])
    more = len(unknown) - _MOST_SYMBOLS
    return [
        f"{t.field_at(path)} is written with symbols unknown to the reader, {shown}"
        f"{f' and {more} more' if more > 0 else ''}: add them to the reader's enum, or give it a "
        "default"
    ]


def _broken_fields(reader: t.Record, writer: t.Record, path: str) -> list[str]:
    written = {field.name: field.type for field in writer.fields}
    reasons: list[str] = []
    for field in reader.fields:
        where = t.join_path(path, field.name)
        name = t.written_name(field, written)
        if name is not None:
            reasons += _broken(field.type, written[name], where)
        elif field.default is None:
            reasons.append(
                f"{t.field_at(where)} is read but not written, and has no default: "
                "give it a default, write it, or give it an alias if it was renamed"
            )
    return reasons


def _advice(writer: t.Type) -> str:
    if isinstance(writer, t.Scalar) and (kinds := PROMOTIONS.get(writer.kind)):
        others = " or ".join(kind.value for kind in kinds)
        return f"keep its type, make it {others}, or use a new name for the new type"
    return "keep its type, or use a new name for the new type"
