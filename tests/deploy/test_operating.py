"""docs/operating.md names only existing reasons, settings, commands and files."""

import re
from pathlib import Path

import click

from processes import CLIENT, GATEWAY
from sluiceway_gateway.cli.entry import sluiceway
from sluiceway_gateway.core.kafka.model import Reason

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text()


def test_documented_reasons_exist_and_actionable_ones_are_documented() -> None:
    table = PAGE.partition("| reason |")[2].partition("\n\n")[0]
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert named <= {str(reason) for reason in Reason}
    at_rest = {"Provisioning", "TopicCreated", "TopicAdopted", "Closed", "UpToDate", "Deleting"}
    assert len(named) >= 8
    assert not named & at_rest


def test_every_documented_variable_is_a_setting() -> None:
    named = set(re.findall(r"SLUICEWAY_[A-Z_]+", PAGE))
    assert named
    assert named <= GATEWAY | CLIENT


def test_every_documented_command_exists() -> None:
    context = click.Context(sluiceway)
    for line in re.findall(r"`sluiceway ((?:[a-z]+\s*)+)", PAGE):
        first, *rest = line.split()
        command = sluiceway.get_command(context, first)
        assert command is not None, line
        if isinstance(command, click.Group):
            assert rest[0] in command.commands, line


def test_every_documented_file_exists() -> None:
    named = re.findall(r"(?:deploy|gateway)/[\w./-]+", PAGE)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
