"""The fields of many records, one list of values for each."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

from sluiceway.records.unfit import Unfit
from sluiceway.schema.defaults import as_python
from sluiceway.schema.types import Field, Record, below

_MISSING: Final = object()


def field_values(
    rows: Sequence[Any], kinds: set[type], record: Record, path: str
) -> list[list[Any]]:
    """Take the values of each field of `record` out of `rows`: mappings, dataclass instances.

    A field that a row leaves out has its default. Raises Unfit for a field that is missing and
    has none, and for one that the record does not know.
    """
    if len(kinds) == 1 and not issubclass(kind := next(iter(kinds)), Mapping):
        return _attributes(rows, kind, record, path)
    if not all(issubclass(kind, Mapping) for kind in kinds):
        rows = [row if isinstance(row, Mapping) else _shallow(row) for row in rows]
    try:
        found = [list(map(itemgetter(field.name), rows)) for field in record.fields]
    except KeyError:
        found = [_with_default(rows, field, path) for field in record.fields]
    else:
        if set(map(len, rows)) <= {len(record.fields)}:
            return found
    known = {field.name for field in record.fields}
    for position, row in enumerate(rows):
        if unknown := [name for name in row if name not in known]:
            raise _unknown(position, unknown[0], record, path)
    return found


def _with_default(rows: Sequence[Any], field: Field, path: str) -> list[Any]:
    default: object = _MISSING
    if field.default is not None:
        default = as_python(json.loads(field.default), field.type)
    values = [row.get(field.name, default) for row in rows]
    if field.default is None:
        for position, value in enumerate(values):
            if value is _MISSING:
                raise _missing(position, below(path, field.name))
    return values


def _attributes(rows: Sequence[Any], kind: type, record: Record, path: str) -> list[list[Any]]:
    there = {member.name for member in dataclasses.fields(kind)}
    known = {field.name for field in record.fields}
    for name in sorted(there - known):
        raise _unknown(0, name, record, path)
    found = []
    for field in record.fields:
        if field.name in there:
            found.append(list(map(attrgetter(field.name), rows)))
        elif field.default is None:
            raise _missing(0, below(path, field.name))
        else:
            found.append([as_python(json.loads(field.default), field.type)] * len(rows))
    return found


def _shallow(row: Any) -> dict[str, Any]:
    return {member.name: getattr(row, member.name) for member in dataclasses.fields(row)}


def _missing(position: int, path: str) -> Unfit:
    return Unfit(position, path, "it is missing, and the schema has no default for it; add it")


def _unknown(position: int, name: object, record: Record, path: str) -> Unfit:
    known = ", ".join(field.name for field in record.fields[:20])
    return Unfit(
        position,
        below(path, str(name)),
        f"the schema has no such field; it has {known}",
        public_reason=f"it has a field that the schema does not have; that has {known}",
        schema_path=path,
    )
