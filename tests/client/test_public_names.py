"""Public names of `import sluiceway`."""

import ast
import importlib
import inspect
import pkgutil

import pytest

import sluiceway
from sluiceway import ChannelReader


def test_the_package_exports_exactly_its_public_names() -> None:
    """Type checkers see the same names, from the same modules."""
    seen = {
        alias.name: node.module
        for node in ast.walk(ast.parse(inspect.getsource(sluiceway)))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sluiceway")
        for alias in node.names
    }
    assert sorted([*seen, "__version__"]) == sorted(sluiceway.__all__) == dir(sluiceway)
    for name, module in seen.items():
        assert getattr(sluiceway, name) is getattr(importlib.import_module(str(module)), name)
    with pytest.raises(AttributeError, match="'sluiceway' has no attribute 'Chanel'"):
        _ = sluiceway.Chanel  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "package",
    [name for _, name, is_package in pkgutil.iter_modules(sluiceway.__path__) if is_package],
)
def test_every_package_declares_its_public_names(package: str) -> None:
    module = importlib.import_module(f"sluiceway.{package}")
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_a_reader_of_a_connection_requires_until() -> None:
    until = inspect.signature(ChannelReader.__init__).parameters["until"]
    assert until.kind is inspect.Parameter.KEYWORD_ONLY
    assert until.default is inspect.Parameter.empty
