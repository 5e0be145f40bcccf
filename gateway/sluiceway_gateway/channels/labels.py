"""Labels of channels, and label selectors in Kubernetes' syntax."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

MAX_LABELS = 64

_PREFIX = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")


def check_key(key: str) -> str:
    """Return a valid label key; raises ValueError naming the broken rule."""
    prefix, slash, word = key.rpartition("/")
    if not _WORD.match(word) or (slash and not _PREFIX.match(prefix)):
        raise ValueError(
            f"{key[:100]!r} is not a label's key: up to 63 letters, digits, '-', '_' and '.', "
            "beginning and ending with a letter or a digit, after an optional prefix such as "
            "'example.com/'"
        )
    return key


def check_value(value: str) -> str:
    """Return a valid label value; raises ValueError naming the broken rule."""
    if value and not _WORD.match(value):
        raise ValueError(
            f"{value[:100]!r} is not a label's value: empty, or up to 63 letters, digits, '-', '_' "
            "and '.', beginning and ending with a letter or a digit"
        )
    return value


def check_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return valid labels; raises ValueError naming the broken rule."""
    if len(labels) > MAX_LABELS:
        raise ValueError(f"a channel has at most {MAX_LABELS} labels, not {len(labels)}")
    for key, value in labels.items():
        check_key(key)
        check_value(value)
    return labels


MAX_REQUIREMENTS = 32
"""Per selector."""
MAX_VALUES = 64
"""Per set of a selector."""

_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)\Z")
_EQUALITY = re.compile(r"([^=!\s]+)\s*(==|=|!=)\s*([^=!\s]*)\Z")


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One requirement of a selector."""

    key: str
    operator: Literal["in", "notin", "exists", "absent"]
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels match."""
        value = labels.get(self.key)
        if self.operator == "exists":
            return value is not None
        if self.operator == "absent":
            return value is None
        return (value in self.values) == (self.operator == "in")


@dataclass(frozen=True, kw_only=True)
class Selector:
    """A label selector in Kubernetes' syntax: a conjunction of requirements.

    `a=b`, `a==b`, `c!=d`, `e`, `!f`, `g in (x,y)`, `h notin (z)`, joined by commas. As in
    Kubernetes, `!=` and `notin` also match channels without the label.
    """

    requirements: tuple[Requirement, ...]

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels match all requirements."""
        return all(requirement.holds(labels) for requirement in self.requirements)

    @classmethod
    def parse(cls, text: str) -> "Selector":
        """Parse a selector; raises ValueError naming the invalid part."""
        parts = _parts(text)
        if len(parts) > MAX_REQUIREMENTS:
            raise ValueError(f"a selector has at most {MAX_REQUIREMENTS} parts")
        return cls(requirements=tuple(_requirement(part) for part in parts))


def _parts(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    cuts, inside = [-1], False
    for match in re.finditer("[(),]", text):
        if match[0] != ",":
            inside = match[0] == "("
        elif not inside:
            cuts.append(match.start())
    return [text[cut + 1 : end].strip() for cut, end in pairwise([*cuts, len(text)])]


def _requirement(text: str) -> Requirement:
    match = _SET.match(text)
    if match:
        values = tuple(value.strip() for value in match[3].split(","))
        if len(values) > MAX_VALUES:
            raise ValueError(f"a selector's set has at most {MAX_VALUES} values")
        return _checked(match[1], "in" if match[2] == "in" else "notin", values)
    match = _EQUALITY.match(text)
    if match:
        return _checked(match[1], "notin" if match[2] == "!=" else "in", (match[3],))
    if text.startswith("!"):
        return _checked(text[1:].strip(), "absent", ())
    if text and not re.search(r"[\s=!()]", text):
        return _checked(text, "exists", ())
    raise ValueError(
        f"{text[:100]!r} is not a part of a selector: "
        "expected key, !key, key=value, key!=value, key in (a,b) or key notin (a,b)"
    )


def _checked(
    key: str, operator: Literal["in", "notin", "exists", "absent"], values: tuple[str, ...]
) -> Requirement:
    return Requirement(
        key=check_key(key), operator=operator, values=tuple(check_value(value) for value in values)
    )
