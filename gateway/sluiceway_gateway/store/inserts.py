"""Inserts that say what becomes of rows that are there already; each database has its own."""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy.dialects import postgresql, sqlite


def by_dialect(put_together: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Return a statement for each database; `put_together` is given the `insert` that it has."""
    return {
        "sqlite": put_together(sqlite.insert),
        "postgresql": put_together(postgresql.insert),
    }
