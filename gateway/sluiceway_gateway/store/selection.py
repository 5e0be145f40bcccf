"""Selectors and name prefixes as SQL, and long lists of keys in parts."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from sqlalchemy import ColumnElement, and_, not_, or_, true

from sluiceway_gateway.channels.selector import Requirement, Selector

#: A statement has only so many parameters: 65,535 with PostgreSQL, 32,766 with SQLite.
KEYS_AT_ONCE = 500

Key = TypeVar("Key")


def chunks(keys: Sequence[Key], size: int | None = None) -> Iterator[Sequence[Key]]:
    """Cut keys into parts of `size`, in their order; without one, as many as a statement takes."""
    size = size or KEYS_AT_ONCE
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


def starts_with(column: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    """Whether the text begins with `prefix`, as a range, which an index serves."""
    if not prefix:
        return true()
    return and_(column >= prefix, column < prefix[:-1] + chr(ord(prefix[-1]) + 1))


def matches(labels: ColumnElement[object], selector: Selector) -> list[ColumnElement[bool]]:
    """Whether the labels meet every part of the selector."""
    return [_met(labels, requirement) for requirement in selector.requirements]


def _met(labels: ColumnElement[object], requirement: Requirement) -> ColumnElement[bool]:
    value: ColumnElement[str] = labels[requirement.key].as_string()
    if requirement.operator == "exists":
        return value.is_not(None)
    if requirement.operator == "absent":
        return value.is_(None)
    if requirement.operator == "in":
        return value.in_(requirement.values)
    return or_(value.is_(None), not_(value.in_(requirement.values)))
