"""The snippets of README and docs run as pasted, page by page, against `sluiceway up`.

A page's Python blocks share one interpreter and its shell blocks one shell each, in the order of
the page. A block that cannot run here follows a comment `<!-- not run: REASON -->`. Nothing is
changed in a block but the gateway's port, since 8900 may be taken on the machine of the tests.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from processes import process

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
#: Spark's JVM, and curl with jq, are more than `make test` has time and programs for.
NEEDS = {"README.md": ["java"], "spark.md": ["java"], "gateway.md": ["curl", "jq", "openssl"]}
#: Lines that a page's snippets must print: that they ran to their end is not all they promise.
PRINTED = {
    "README.md": ["UA 499.5", "True"],
    "client.md": ["1003 records"],
    "coming-from.md": [
        *("0 b'a parcel'", "b'hello'", "billing has read 4 invoices"),
        "billing is back in Kafka",
        "1 corrupt",
    ],
    "gateway.md": [
        "[0,1,0,3]",
        '{"taken":true,"partitions":[0,1],"pending":[]}',
        '{"status":"ok","generation":2}',
        '{"generation":2,"offsets":[[0,2]]}',
        '"closed"',
        "[0,3]",
        "[0,1]",
    ],
    "spark.md": ["|     UA|   48|"],
}
COMMANDS = r"    (?:curl|docker|docker-compose|export|kubectl|make|pip|python3?|sluiceway)\b"


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """A fenced block of a page."""

    language: str
    code: str
    line: int
    reason: str | None


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text()
    return [
        Snippet(
            language=match["language"],
            code=match["code"],
            line=text.count("\n", 0, match.start("code")) + 1,
            reason=match["reason"],
        )
        for match in FENCE.finditer(text)
    ]


def runs(snippet: Snippet) -> bool:
    return snippet.language in ("python", "sh") and snippet.reason is None


def program(page: Path) -> str:
    """A program that runs a page's blocks in order, each traceback with the page's own lines."""
    steps = [
        (snippet.language, snippet.line, snippet.code)
        for snippet in snippets(page)
        if runs(snippet)
    ]
    return f"""
import subprocess
page, names = {page.name!r}, {{"__name__": "__main__"}}
for language, line, code in {steps!r}:
    if language == "python":
        exec(compile("\\n" * (line - 1) + code, page, "exec"), names)
    else:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", code])
        assert done.returncode == 0, f"{{page}}, line {{line}}: exit status {{done.returncode}}"
"""


@pytest.fixture(scope="module")
def gateway_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The port of a `sluiceway up` with nothing in it, as a new user has it."""
    data = tmp_path_factory.mktemp("up") / "data"
    with process("up", "--port", "0", "--data", str(data)) as up:
        yield up.until(r"gateway +http://127\.0\.0\.1:(\d+)")


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name) for page in PAGES if any(map(runs, snippets(page)))],
)
def test_a_pages_snippets_run_as_pasted(page: Path, gateway_port: str, tmp_path: Path) -> None:
    missing = [tool for tool in NEEDS.get(page.name, []) if not shutil.which(tool)]
    assert not missing, f"install {', '.join(missing)}"
    file = tmp_path / "snippets.py"
    # Spark's workers import what a program defines; a file makes it the `__main__` they know.
    file.write_text(re.sub(r"\b8900\b", gateway_port, program(page)))
    bin_directory = Path(sys.executable).parent
    done = subprocess.run(
        [sys.executable, str(file)],
        env=os.environ
        | {
            "PATH": f"{bin_directory}:{os.environ['PATH']}",
            "SLUICEWAY_URL": f"http://127.0.0.1:{gateway_port}",
            "PYSPARK_PYTHON": sys.executable,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in PRINTED.get(page.name, []):
        assert f"{line}\n" in done.stdout, done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_are_fenced_and_state_why_they_are_not_run(page: Path) -> None:
    text = page.read_text()
    assert re.findall(COMMANDS, FENCE.sub("", text)) == []
    assert text.count("```") == 2 * len(snippets(page))
    assert text.count("<!-- not run: ") == len([s for s in snippets(page) if s.reason])
