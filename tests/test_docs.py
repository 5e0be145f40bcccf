"""What the documentation shows is what the code says."""

import re
from pathlib import Path

import pytest

from sluiceway_gateway.domain.channel import TRANSITIONS, Phase

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def _diagram() -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.PROVISIONING}"]
    for phase, targets in TRANSITIONS.items():
        lines += [f"    {phase} --> {target}" for target in sorted(targets)]
        lines += [] if targets else [f"    {phase} --> [*]"]
    return "\n".join(lines)


def test_the_diagram_of_phases_is_the_transition_table() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    shown = re.search(r"```mermaid\n(stateDiagram-v2.*?)\n```", text, re.DOTALL)
    assert shown is not None
    assert shown.group(1) == _diagram()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!\w+:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("record", sorted((ROOT / "docs" / "decisions").glob("*.md")))
def test_a_decision_is_short_and_names_tests_that_exist(record: Path) -> None:
    text = record.read_text()
    assert len(text.splitlines()) <= 40
    held_by = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert held_by, "a decision names the test that holds it"
    for path, name in held_by:
        source = (ROOT / path).read_text()
        assert not name or f"def {name}(" in source, f"{path} has no {name}"
