"""Tests use public names: what replaces or reads internals is rare, and says why."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
MOST = 60
"""The number of accesses to private names and of replaced attributes in all tests."""

_PUBLIC = re.compile(r"__\w+__|_(asdict|replace|fields|make|exit|getframe|current_frames|on_\w+)")
"""Special names, and those of named tuples, of the standard library, and of hooks of pypz."""
_REASON = re.compile(r"# (?!noqa|type:)")
_REPLACING = {"setattr", "delattr", "setitem", "delitem"}


def internals(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """Yield accesses to other objects' private names, and replacements of attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls" | "KafkaError")):
                continue
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=name) if _is_private(name):
                yield node
            case ast.ImportFrom(module=str(module), names=names):
                if module.startswith("sluiceway") and any(
                    _is_private(alias.name) for alias in names
                ):
                    yield node
            case ast.Call(func=ast.Attribute(attr=name)) if name in _REPLACING:
                yield node
            case ast.Call(
                func=ast.Name(id="at_call" | "failing_call"),
                args=[_, ast.Constant(value=str(name)), *_],
            ) if _is_private(name):
                yield node


def _is_private(name: str) -> bool:
    return name.startswith("_") and not _PUBLIC.fullmatch(name)


def test_private_names_and_replaced_attributes_are_few_and_have_reasons() -> None:
    places, without_reason = [], []
    for path in sorted(TESTS.rglob("*.py")):
        if path == TESTS / "model" / "mutants.py":
            # It replaces the code that it changes.
            continue
        text = path.read_text()
        lines = ["", *text.split("\n")]
        for node in internals(ast.parse(text)):
            places.append(f"{path.relative_to(TESTS)}:{node.lineno}")
            if not any(map(_REASON.search, lines[node.lineno - 1 : node.lineno + 1])):
                without_reason.append(places[-1])
    assert without_reason == []
    assert len(places) <= MOST
