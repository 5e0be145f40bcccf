import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "prerequisites"


def _program(directory: Path, name: str, script: str) -> Path:
    program = directory / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH with the shell's own tools, this Python as python3, and no Java."""
    for tool in ("sed", "head"):
        executable = next(
            Path(place) / tool
            for place in os.environ["PATH"].split(":")
            if (Path(place) / tool).exists()
        )
        (tmp_path / tool).symlink_to(executable)
    _program(tmp_path, "python3", f'exec "{sys.executable}" "$@"')
    return tmp_path


def _run(path: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT)],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def test_complete_prerequisites_print_nothing(path: Path) -> None:
    _program(path, "java", "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2")
    assert _run(path) == (0, [])


@pytest.mark.sample
@pytest.mark.parametrize(
    "java", [None, "echo 'java version \"1.8.0_402\"' >&2", "echo 'openjdk version \"11.0.1\"' >&2"]
)
def test_missing_or_old_java_is_one_line_with_the_package_to_install(
    path: Path, java: str | None
) -> None:
    if java is not None:
        _program(path, "java", java)
    status, lines = _run(path)
    assert status == 1
    assert len(lines) == 1
    assert lines[0].startswith("Java 17 or newer is needed: install it")


@pytest.mark.parametrize("python", [None, "exit 1"])
def test_missing_or_old_python_is_one_line_with_the_package_to_install(
    path: Path, python: str | None
) -> None:
    (path / "python3").unlink()
    if python is not None:
        _program(path, "python3", python)
    status, lines = _run(path)
    assert status == 1
    assert len(lines) == 1
    assert lines[0].startswith("Python 3.11 or newer is needed: install it")
