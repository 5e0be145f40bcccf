"""The images: copied files, commands, and packages match the project."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from processes import CLIENT, GATEWAY
from sluiceway_gateway.cli.entry import COMMANDS
from waiting import until

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "gateway" / "Dockerfile", ROOT / "deploy" / "spark" / "Dockerfile"]
DOCKERIGNORE = (ROOT / ".dockerignore").read_text().splitlines()


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return each instruction with its arguments, without comments and line breaks."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.split("\n"))]


def arguments_of(path: Path, word: str) -> list[str]:
    return [rest for name, rest in instructions(path) if name == word]


def stage(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of the last stage."""
    all_instructions = instructions(path)
    return all_instructions[
        max(n for n, instruction in enumerate(all_instructions) if instruction[0] == "FROM") :
    ]


def copied_files(path: Path) -> list[str]:
    """Return the files that are copied from the project."""
    lines = [
        arguments.split()
        for arguments in arguments_of(path, "COPY")
        if not arguments.startswith("--from")
    ]
    return [source for line in lines for source in line[:-1]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_copied_files_exist_and_are_not_ignored(path: Path) -> None:
    for source in copied_files(path):
        assert (ROOT / source).exists(), source
        assert f"!{source.split('/')[0]}" in DOCKERIGNORE, source
    assert DOCKERIGNORE[1] == "*", "files that are not listed must be ignored"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_images_are_pinned_by_hash_and_run_as_an_unprivileged_user(path: Path) -> None:
    bases = [arguments.split()[0] for arguments in arguments_of(path, "FROM")]
    assert {base.partition(":")[0] for base in bases} == {"python"}
    assert all(base.partition(":")[2].startswith("3.11-") for base in bases)
    assert arguments_of(path, "USER") == ["10001:10001"]
    assert [instruction[0] for instruction in stage(path)].index("USER") > max(
        n for n, instruction in enumerate(stage(path)) if instruction[0] == "RUN"
    )
    installs = [step for step in arguments_of(path, "RUN") if "pip install" in step]
    for step in installs:
        assert "--require-hashes" in step or ("--no-deps" in step and "/tmp/wheels" in step)  # noqa: S108
    for assignment in arguments_of(path, "ENV"):
        name = assignment.partition("=")[0]
        assert not name.startswith("SLUICEWAY_") or name in GATEWAY | CLIENT


@pytest.mark.long
def test_the_gateways_command_and_healthcheck_match_the_code(gateway_url: str) -> None:
    path = FILES[0]
    assert arguments_of(path, "ENTRYPOINT") == ['["sluiceway"]']
    (command,) = arguments_of(path, "CMD")
    assert json.loads(command) == ["serve"]
    assert "serve" in COMMANDS
    (check,) = arguments_of(path, "HEALTHCHECK")
    program = json.loads(check.partition("CMD ")[2])
    assert program[:2] == ["python", "-c"]
    assert arguments_of(path, "EXPOSE") == ["8900"]

    def healthy(address: str) -> bool:
        code = program[2].replace("http://127.0.0.1:8900", address)
        result = subprocess.run(
            [sys.executable, "-S", "-c", code], capture_output=True, timeout=480, check=False
        )
        return result.returncode == 0

    until(lambda: healthy(gateway_url))
    assert not healthy("http://127.0.0.1:1")


@pytest.mark.long
def test_the_wheel_is_built_from_the_copied_files_only(tmp_path: Path) -> None:
    path = FILES[0]
    for source in copied_files(path):
        if source.startswith("requirements/"):
            continue
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / source, tmp_path / source, ignore=ignored)
        else:
            shutil.copy(ROOT / source, tmp_path / source)
    (line,) = [step for step in arguments_of(path, "RUN") if "pip wheel" in step]
    words = shlex.split(line.replace("/wheels", str(tmp_path / "wheels")))
    subprocess.run(
        [sys.executable, *words[1:]], cwd=tmp_path, check=True, capture_output=True, timeout=480
    )
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "sluiceway_gateway/cli/entry.py" in names
    assert "sluiceway_gateway/api/swagger_ui/swagger-ui-bundle.js" in names
    assert "sluiceway_gateway/migrations/versions/0001_initial.py" in names
    assert "sluiceway_gateway/dev/demo/jobs/write_flights.py" in names


def pins(name: str) -> dict[str, set[str]]:
    """Return the hashes of each `name==version` in a requirements file."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    hashes_by_pin: dict[str, set[str]] = {}
    for block in re.split(r"\n(?=\S)", text.strip()):
        pin = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", block)
        assert pin is not None, block
        hashes_by_pin[f"{pin[1]}=={pin[2]}"] = set(re.findall(r"--hash=(\S+)", block))
    return hashes_by_pin


@pytest.mark.parametrize("name", ["gateway", "spark", "build"])
def test_an_image_has_the_package_versions_of_the_tests(name: str) -> None:
    tested, installed = pins("dev"), pins(name)
    assert [pin for pin in installed if pin not in tested] == [], "run `make lock`"
    assert [pin for pin, hashes in installed.items() if not hashes <= tested[pin]] == []


@pytest.mark.parametrize("extra", ["gateway", "spark"])
def test_an_image_has_all_requirements_of_the_project(extra: str) -> None:
    # From the file, because the metadata of an editable install may be out of date.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [*project["dependencies"], *project["optional-dependencies"][extra]]
    installed = {pin.partition("==")[0].replace("_", "-").lower() for pin in pins(extra)}
    missing = [
        requirement
        for requirement in required
        if Requirement(requirement).name.replace("_", "-").lower() not in installed
    ]
    assert missing == [], "run `make lock`"
