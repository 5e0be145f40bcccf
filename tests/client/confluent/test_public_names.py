"""docs/coming-from.md has every public name of sluiceway.confluent, with a test that calls it."""

import inspect
import re
from pathlib import Path

import pytest

from sluiceway import confluent
from sluiceway.confluent import Consumer, Producer

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "coming-from.md").read_text()
SECTION = PAGE.partition("## confluent-kafka and HPE's streams client\n")[2]
ROWS = re.findall(
    r"^\| (.+) \| .+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|$",
    re.split(r"^## ", SECTION, flags=re.MULTILINE)[0],
    flags=re.MULTILINE,
)


def public(kind: type) -> set[str]:
    return {
        f"{kind.__name__}.{name}"
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_every_public_name_is_on_the_page() -> None:
    named = set(re.findall(r"(?:Consumer|Producer)\.\w+", " ".join(row[0] for row in ROWS)))
    assert public(Consumer) | public(Producer) == named
    reported = " ".join(row[0] for row in ROWS)
    assert [name for name in confluent.__all__ if name not in reported] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].replace("`", "")[:60])
def test_each_row_names_a_test_that_uses_its_names(row: tuple[str, str, str]) -> None:
    names, path, test = row
    source = (ROOT / path).read_text()
    body = re.split(r"\n(?=def |@)", source.partition(f"def {test}(")[2])[0]
    called = re.findall(r"(?:Consumer|Producer)\.(\w+)", names)
    helpers = source + (ROOT / "tests/support/confluent_facade.py").read_text()
    for name in called:
        called_there = re.search(rf"\.{name}\b", body) is not None
        assert called_there or (f".{name}(" in helpers and name in ("poll", "close")), name
