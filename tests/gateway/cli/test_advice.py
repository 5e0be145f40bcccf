"""Each command that an advice, a message or a page names is accepted by the command line's parser.

Commands stand in backticks, in `<code>` of the dashboard, and in the shell blocks of pages.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import yaml

from sluiceway_gateway.cli.entry import COMMANDS, sluiceway
from sluiceway_gateway.status import problems

ROOT = Path(__file__).parents[3]
SOURCES = [*(ROOT / "client").rglob("*.py"), *(ROOT / "gateway").rglob("*.py")]
MODULES = (ROOT / "gateway" / "sluiceway_gateway" / "ui" / "static").glob("*.js")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"

#: Values for the words that stand for one.
VALUES = {"SIZE": "3", "SECONDS": "60", "TIME": "2026-01-31T12:00:00Z", "SCOPE": "read"}
_VARIABLE = re.compile(r"\{\{.*?\}\}|\$?\{[^{}]*\}")
#: A span, or a line of its own in a text of several lines.
_SPAN = re.compile(r"`(sluiceway(?: [^`]*)?)`|(?<=\n) +(sluiceway .*)")
_COMMAND = re.compile(rf"(?<![`\w/.-])sluiceway (?:{'|'.join(COMMANDS)})\b")


def texts_of(source: str) -> Iterator[str]:
    """Yield the texts of a module, with a value in place of each variable."""
    parts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(value) for value in node.values}
            yield "".join(
                str(value.value) if isinstance(value, ast.Constant) else "1"
                for value in node.values
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield node.value


@cache
def source_texts() -> list[tuple[str, str]]:
    """Return the file and the text of each text in the sources that names the command."""
    return [
        (path.name, text)
        for path in sorted(SOURCES)
        if "sluiceway " in (source := path.read_text())
        for text in texts_of(source)
        if "sluiceway " in text
    ]


def spans(text: str) -> list[str]:
    return [span or line for span, line in _SPAN.findall(text)]


def named() -> Iterator[tuple[str, str]]:
    """Yield the file and the command of each place that names one."""
    for file, text in source_texts():
        yield from ((file, command) for command in spans(text))
    for path in sorted(MODULES):
        for command in re.findall(r"<code>(sluiceway [^<]+)</code>", path.read_text()):
            yield path.name, command
    for path in sorted(PAGES):
        text = path.read_text()
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            lines = block.replace("\\\n", " ").splitlines()
            yield from ((path.name, line) for line in lines if line.startswith("sluiceway "))
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        yield from ((path.name, command) for command in spans(prose))
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            for text in rule.get("annotations", {}).values():
                yield from ((ALERTS.name, command) for command in spans(text))


def parse(command: str) -> None:
    """Parse a command as its program does; raises UsageError.

    A name alone, such as `sluiceway channels list`, only has to exist.
    """
    text = _VARIABLE.sub("1", command).replace("[", "").replace("]", "")
    words = [word for word in shlex.split(text, comments=True)[1:] if word != "…"]
    words = [VALUES.get(word, word) for word in words]
    command_: click.Command = sluiceway
    while isinstance(command_, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        following = command_.get_command(click.Context(command_), name)
        if following is None:
            raise click.UsageError(f"No such command {name!r}.")
        command_ = following
    if words and words[0] not in ("-h", "--help", "--version"):
        command_.make_context(name, words, parent=click.Context(sluiceway)).close()


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create the files that commands read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "channels").mkdir()
    (tmp_path / "exported").mkdir()
    for name in ("FILE", "order.avsc"):
        (tmp_path / name).touch()


def test_the_command_line_accepts_each_command_that_is_named() -> None:
    commands = sorted({(file, " ".join(command.split())) for file, command in named()})
    files = {file for file, _ in commands}
    assert files >= {"errors.py", "problems.py", "alerts.yml", "operating.md", "overview.js"}
    assert len(commands) > 100
    refused = []
    for file, command in commands:
        try:
            parse(command)
        except click.UsageError as error:
            refused.append(f"{file} names `{command}`: {error.format_message()}")
    assert refused == []


@pytest.mark.parametrize(
    "command",
    [
        "sluiceway chanels list",
        "sluiceway channels list --lable a",
        "sluiceway channels reset flights",
        "sluiceway channels resize flights g many",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(command: str) -> None:
    with pytest.raises(click.UsageError):
        parse(command)


def test_commands_in_messages_stand_in_backticks() -> None:
    """Otherwise the test above would not find them."""
    texts = source_texts()
    assert [(file, text) for file, text in texts if _COMMAND.search(_SPAN.sub("", text))] == []


def test_the_advice_for_each_problem_of_a_channel_names_a_command() -> None:
    described = problems.CurrentProblem.__annotations__["code"].__metadata__[0].description
    codes = set(re.findall(r"`(\w+)`", described))
    assert len(codes) > 10
    assert codes == set(problems.ADVICE)
    assert [code for code, text in problems.ADVICE.items() if not spans(text)] == []
