"""The documentation agrees with the code."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sluiceway import errors, spi
from sluiceway.endpoint import attached
from sluiceway.ledger import write_batch
from sluiceway_gateway.channels import model as channels_model
from sluiceway_gateway.core.settings import SECRETS, Settings
from sluiceway_gateway.endpoints import model as endpoints_model
from sluiceway_gateway.ledger import model as ledger_model

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def _diagram(first: str, transitions: Mapping[Any, frozenset[Any]]) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    for state, targets in transitions.items():
        lines += [f"    {state} --> {target}" for target in sorted(targets)]
        lines += [] if targets else [f"    {state} --> [*]"]
    return "\n".join(lines)


def test_the_diagrams_of_states_are_the_transition_tables() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    shown = re.findall(r"```mermaid\n(stateDiagram-v2.*?)\n```", text, re.DOTALL)
    assert shown == [
        _diagram(channels_model.Phase.PROVISIONING, channels_model.TRANSITIONS),
        _diagram(endpoints_model.State.OPENED, endpoints_model.TRANSITIONS),
        _diagram(attached.EndpointState.NEW, attached.ENDPOINT_TRANSITIONS),
        _diagram(ledger_model.BatchState.OPEN, ledger_model.BATCH_TRANSITIONS),
        _diagram(write_batch.BatchState.NEW, write_batch.BATCH_TRANSITIONS),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_internal_links_resolve(page: Path) -> None:
    targets = re.findall(r"\]\((?!\w+:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, without the comments of its code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_sections_resolve(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:)([^)#\s]*)#([^)\s]+)\)", page.read_text())
    assert [
        (file, anchor)
        for file, anchor in links
        if anchor not in _anchors(page.parent / file if file else page)
    ] == []


def test_every_row_of_coming_from_names_an_existing_test() -> None:
    lines = (ROOT / "docs" / "coming-from.md").read_text().splitlines()
    rows = [line for line in lines if re.match(r"\| (?!---|in )", line)]
    assert len(rows) > 40
    for row in rows:
        shown = re.fullmatch(r"\| .+ \| .+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|", row)
        assert shown, f"names no test: {row}"
        assert f"def {shown[2]}(" in (ROOT / shown[1]).read_text(), f"no such test: {row}"


def test_every_guarantee_names_tests_that_exist() -> None:
    lines = (ROOT / "docs" / "guarantees.md").read_text().splitlines()
    rows = [line for line in lines if re.match(r"\| (?!---|failure|interface)", line)]
    assert len(rows) > 25
    for row in rows:
        shown = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
        assert shown, f"names no test: {row}"
        for path, name in shown:
            source = (ROOT / path).read_text()
            assert not name or f"def {name}(" in source, f"{path} has no {name}"


def test_the_files_of_the_walks_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    walks = text.partition("## Walks through the code")[2].partition("\n## ")[0]
    roots = (ROOT / "gateway" / "sluiceway_gateway", ROOT / "client" / "sluiceway")
    named = re.findall(r"`([\w/]+\.py)`", walks)
    assert len(named) > 60
    assert [path for path in named if not any((root / path).exists() for root in roots)] == []


def test_the_files_to_change_exist() -> None:
    roots = (ROOT, ROOT / "gateway" / "sluiceway_gateway", ROOT / "client" / "sluiceway")
    named = re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "contributing.md").read_text())
    assert len(named) > 20
    assert [file for file in named if not any((root / file).exists() for root in roots)] == []


def test_every_setting_is_in_its_table_with_its_default() -> None:
    page = (ROOT / "docs" / "gateway.md").read_text()
    section = page.partition("\n## Settings\n")[2].partition("\n## ")[0]
    shown: dict[str, str] = {}
    files = set()
    for names, mark, defaults in re.findall(
        r"^\| ((?:`[A-Z_]+`(?:, )?)+)( \*)? \|(.*?)\| .+ \|$", section, re.MULTILINE
    ):
        fields = [setting.lower() for setting in re.findall(r"`(\w+)`", names)]
        shown |= dict(zip(fields, [*defaults.strip().split(", "), ""], strict=False))
        files |= set(fields) if mark else set()
    assert shown.keys() == Settings.model_fields.keys()
    assert files == set(SECRETS)
    for name, default in shown.items():
        expected = Settings.model_fields[name].default
        if isinstance(expected, int | float | str) and expected != "":
            assert default.strip("`") == str(expected).lower(), name


def test_every_error_of_the_client_is_in_its_table() -> None:
    page = (ROOT / "docs" / "client.md").read_text().partition("\n## Errors\n")[2]
    rows = re.findall(r"^\| (`.+`) \| .+ \| .+ \|$", page, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    bases = {"SluicewayError", "CounterpartError", "GatewayError"}
    bases |= {"KafkaFailure", "RecordError", "SchemaError"}
    assert set(listed) == set(errors.__all__) - bases - {"cause_of"}
    assert len(listed) == len(set(listed))


def test_the_names_of_spi_are_in_its_table() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("\n### What facades and Spark use of the core\n")[2].partition(
        "\n## "
    )[0]
    rows = re.findall(r"^\| [^`|]+ \| (.+) \|$", section, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(names) == sorted(spi.__all__)


RECORDS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))


def test_the_index_of_decisions_has_every_record_with_its_title_and_date() -> None:
    listed = re.findall(
        r"^\| \[(\d+)\]\((.+)\) \| (.+) \| (.+) \|$",
        (ROOT / "docs" / "decisions" / "README.md").read_text(),
        re.MULTILINE,
    )
    shown = {f"# {number}. {title}": (name, date) for number, name, title, date in listed}
    recorded = {}
    for record in RECORDS:
        title, _, status, *_ = record.read_text().splitlines()
        recorded[title] = (record.name, status.partition("Accepted, ")[2][:10])
    assert shown == recorded


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_decision_is_short_and_names_tests_that_exist(record: Path) -> None:
    text = record.read_text()
    assert len(text.splitlines()) <= 40
    assert "**Alternatives.**" in text
    held_by = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert held_by, "a decision names the test that holds it"
    for path, name in held_by:
        source = (ROOT / path).read_text()
        assert not name or f"def {name}(" in source, f"{path} has no {name}"
