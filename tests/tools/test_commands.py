"""The commands of the README and of the checks: the same for everybody, every time."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[2]


def test_property_tests_draw_the_same_examples_every_time() -> None:
    profile = settings.get_profile("few")
    assert (profile.derandomize, profile.database) == (True, None)


def test_the_checks_call_the_tests_as_the_readme_does() -> None:
    checks = (ROOT / ".ci" / "run").read_text().splitlines()
    assert checks[-1] == "make test"
    assert "make test" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("target", ["chaos", "model"])
def test_a_long_run_starts(target: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed = subprocess.check_output(
        ["make", "-n", "--no-print-directory", target], cwd=ROOT, text=True
    )
    command = f"{printed.splitlines()[-1].removeprefix('@')} --help"
    subprocess.run(["sh", "-c", command], cwd=ROOT, env=environment, check=True)
