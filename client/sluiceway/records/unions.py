"""Union branches: the branch for a Python value.

A value takes the branch of its own type: an int in `["double", "long"]` is a long. Without one, it
takes a branch that represents it exactly, such as a double for an int. An instance of a record
class takes the record with its class's name, a dict the record with its fields. A tuple of a branch
name and a value selects the branch.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sluiceway.records.validation import INTEGERS, ValueMismatch, accepts, describe, expected
from sluiceway.schema import types as t
from sluiceway.schema.classes import record_class

__all__ = ["LISTS", "Assignment", "assign", "branch_mismatch", "candidates"]

LISTS: Final = (list, tuple, np.ndarray)
"""The Python types of arrays."""

_Convert = Callable[[Sequence[Any], t.Type, str], pa.Array]

Assignment = list[tuple[list[int], list[Any]]]
"""For each branch of a union, the positions and the values that it takes."""


def candidates(kind: type, union: t.Union) -> list[int]:
    """Return the numbers of the branches that may take values of the type `kind`, best first."""
    ranks = [(_rank(kind, branch), number) for number, branch in enumerate(union.branches)]
    numbers = [number for rank, number in sorted(ranked for ranked in ranks if ranked[0] >= 0)]
    if not issubclass(kind, Mapping) and record_class(kind) is not None:
        own = [number for number in numbers if _class_name(union.branches[number]) == kind.__name__]
        return own or numbers
    return numbers


def assign(values: Sequence[Any], union: t.Union, path: str, convert: _Convert) -> Assignment:
    """Assign `values`, except None, to the branches of `union`.

    `convert` is called if several branches may take a value. The caller converts values with only
    one possible branch. Raises ValueMismatch for a value that fits no branch, or several records.
    """
    assignment: Assignment = [([], []) for _ in union.branches]
    named = {t.branch_name(branch): number for number, branch in enumerate(union.branches)}
    possible: dict[type, list[int]] = {}
    for position, value in enumerate(values):
        if value is None:
            continue
        kind = type(value)
        if kind is tuple and len(value) == 2 and type(value[0]) is str and value[0] in named:
            number, value = named[value[0]], value[1]
        else:
            numbers = possible.get(kind)
            if numbers is None:
                numbers = possible[kind] = candidates(kind, union)
            if not numbers:
                raise ValueMismatch.of_value(position, path, expected(union), value)
            if len(numbers) == 1:
                number = numbers[0]
            else:
                number = _chosen(value, numbers, union, position, path, convert)
        positions, taken = assignment[number]
        positions.append(position)
        taken.append(value)
    return assignment


def branch_mismatch(
    error: ValueMismatch, position: int, union: t.Union, path: str
) -> ValueMismatch:
    """Return the `error` of a branch's value with its position in the column, and all branches."""
    if error.path != path:
        return error.at_position(position)  # it is about a value within
    more = f"; the union has the branches {t.branch_names(union)}"
    return ValueMismatch(
        position,
        error.path,
        error.reason + more,
        public_reason=error.public_reason + more,
        schema_path=error.schema_path,
    )


def _rank(kind: type, branch: t.Branch) -> int:
    """Return 0 if `branch` is the type of values of `kind`, more if they change, -1 if not."""
    match branch:
        case t.Array():
            return 0 if issubclass(kind, LISTS) and record_class(kind) is None else -1
        case t.Map():
            return 0 if issubclass(kind, Mapping) else -1
        case t.Record():
            return 0 if issubclass(kind, Mapping) or record_class(kind) is not None else -1
        case leaf if not accepts(kind, leaf):
            return -1
        case t.Scalar(kind=t.Kind.DOUBLE):
            return 2 if issubclass(kind, INTEGERS) else 0
        case t.Scalar(kind=t.Kind.FLOAT):
            return 3 if issubclass(kind, INTEGERS) else 1
        case t.Decimal():
            return 4 if issubclass(kind, INTEGERS) else 0
        case t.Uuid():
            return 1 if issubclass(kind, str) else 0
        case t.Scalar(kind=t.Kind.STRING):
            return 1 if issubclass(kind, enum.Enum) else 0
    return 0


def _class_name(branch: t.Branch) -> str | None:
    return branch.name.rpartition(".")[2] if isinstance(branch, t.Record) else None


def _chosen(
    value: Any, numbers: list[int], union: t.Union, position: int, path: str, convert: _Convert
) -> int:
    fitting: list[int] = []
    errors: dict[int, ValueMismatch] = {}
    for number in numbers:
        branch = union.branches[number]
        try:
            convert([value], branch, path)
        except ValueMismatch as error:
            errors[number] = error
            continue
        if not isinstance(branch, t.Map | t.Record):
            return number
        fitting.append(number)
    if not fitting:
        raise _none_fits(value, errors, union, position, path)
    if len(fitting) > 1 and isinstance(value, Mapping):
        fitting = [n for n in fitting if _has_all_fields(value, union.branches[n])] or fitting
    if len(fitting) > 1:
        several = ", ".join(t.branch_name(union.branches[number]) for number in fitting)
        reason = (
            f"it fits several branches of the union, {several}: give a tuple of the branch's name "
            "and the value"
        )
        raise ValueMismatch(position, path, reason)
    return fitting[0]


def _has_all_fields(value: Mapping[Any, Any], branch: t.Branch) -> bool:
    return isinstance(branch, t.Record) and len(branch.fields) == len(value)


def _none_fits(
    value: Any, errors: dict[int, ValueMismatch], union: t.Union, position: int, path: str
) -> ValueMismatch:
    """Return the exception with the reason of each branch, if they are about values within."""
    if all(error.path == path for error in errors.values()):
        return ValueMismatch.of_value(position, path, expected(union), value)

    def why(shown: Callable[[ValueMismatch], str]) -> str:
        names = [t.branch_name(union.branches[number]) for number in errors]
        parts = [f"{n} ({shown(e)})" for n, e in zip(names, errors.values(), strict=True)]
        return f"no branch of the union fits: {', '.join(parts)}"

    return ValueMismatch(
        position,
        path,
        f"{describe(value)}: {why(lambda e: f'{e.path}: {e.reason}')}",
        public_reason=why(lambda e: f"{e.schema_path}: {e.public_reason}"),
    )
