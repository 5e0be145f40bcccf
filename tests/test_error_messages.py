"""The sentences of all errors, warnings and logged warnings, read from the source.

`.venv/bin/python -m pytest -s tests/test_error_messages.py` prints each of them once, so that they
can be read in one go. What a sentence gets at run time is in braces.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluiceway import errors
from sluiceway_gateway.core import errors as gateway_errors

ROOT = Path(__file__).parents[1]
PACKAGES = ("client/sluiceway", "gateway/sluiceway_gateway")
MOST_WORDS = 60

_KINDS = {
    name
    for module in (errors, gateway_errors)
    for name, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, Exception)
} | {"ValueMismatch", "Violation"}
_LOGGING = {"log", "warning", "error", "exception", "warn"}
_MARK = re.compile(r"\{[^{}]*\}")
_SLIPS = {
    "two full stops": re.compile(r"(?<![.'])\.\.(?![.'])"),
    "a full stop before other punctuation": re.compile(r"(?<!\.)\.[;:,]"),
    "two spaces": re.compile(r"  "),
    "a space before punctuation": re.compile(r" [;,:.](?!\w|\.)"),
}


def sentence(node: ast.expr) -> str | None:
    """Return the text of an expression that is a string, with values in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                str(part.value)
                if isinstance(part, ast.Constant)
                else f"{{{ast.unparse(part.value)}}}"
                for part in parts
                if isinstance(part, ast.Constant | ast.FormattedValue)
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = [sentence(left), sentence(right)]
            if any(texts):
                return "".join(text or "{…}" for text in texts)
    return None


def name_of(function: ast.expr) -> str:
    """Return the last name of what a call calls."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def makers(trees: dict[str, ast.Module]) -> set[str]:
    """Return the names of the exceptions, and of the functions that return one."""
    functions = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and set(re.findall(r"\w+", ast.unparse(node.returns))) & (_KINDS | {"NoReturn"})
    }
    # Some choose the class first.
    return _KINDS | functions | {"kind"}


def sentences(tree: ast.Module, names: set[str]) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of the sentences that errors and logs of a module are made of."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for scope in functions:
        assigned: dict[str, list[ast.expr]] = {}
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assigned.setdefault(node.targets[0].id, []).append(node.value)
        for node in ast.walk(scope):
            if not isinstance(node, ast.Call):
                continue
            name = name_of(node.func)
            logs = name in _LOGGING and "LOGGER" in ast.unparse(node.func)
            if not logs and name not in names:
                continue
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            for argument in arguments:
                alternatives = [argument]
                if isinstance(argument, ast.IfExp):
                    alternatives = [argument.body, argument.orelse]
                elif isinstance(argument, ast.Name):
                    alternatives = assigned.get(argument.id, [])
                for alternative in alternatives:
                    text = sentence(alternative)
                    if text is not None and " " in text:
                        yield alternative.lineno, "log" if logs else name, text


@pytest.fixture(scope="module")
def messages() -> list[tuple[str, str, str]]:
    """Place, kind and text of each sentence, once."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}
    names = makers(trees)
    unique = {
        text: (f"{path}:{line}", kind, text)
        for path, tree in trees.items()
        for line, kind, text in sentences(tree, names)
    }
    return sorted(unique.values())


def test_every_message_of_the_package_is_printed_and_reads_as_a_sentence(
    messages: list[tuple[str, str, str]],
) -> None:
    slips = []
    for place, kind, text in messages:
        print(f"{place} {kind}\n    {text}")
        plain = _MARK.sub("X", text)
        slips += [
            f"{place} {slip}: {text}" for slip, wrong in _SLIPS.items() if wrong.search(plain)
        ]
        if len(plain.split()) > MOST_WORDS:
            slips.append(f"{place} {len(plain.split())} words: {text}")
    assert slips == []
    kinds = {kind for _, kind, _ in messages}
    assert {"OptionError", "InvalidSchema", "ValueMismatch", "Violation", "log"} <= kinds
