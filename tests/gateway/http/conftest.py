"""HTTP runs on SQLite in `make test`, and on PostgreSQL too in `make test-all`."""

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


# Before markers select tests.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests on PostgreSQL; stores and races, in other folders, run on both."""
    for item in items:
        chosen = getattr(item, "callspec", None)
        if item.path.is_relative_to(_HERE) and chosen and "postgres" in chosen.params.values():
            item.add_marker(pytest.mark.long)
