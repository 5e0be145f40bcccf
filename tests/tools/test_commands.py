"""The commands of the README and of the checks: the same for everybody, every time."""

from pathlib import Path

from hypothesis import settings

ROOT = Path(__file__).parents[2]


def test_property_tests_draw_the_same_examples_every_time() -> None:
    profile = settings.get_profile("few")
    assert (profile.derandomize, profile.database) == (True, None)


def test_the_checks_call_the_tests_as_the_readme_does() -> None:
    checks = (ROOT / ".ci" / "run").read_text().splitlines()
    assert checks[-1] == "make test"
    assert "make test" in (ROOT / "README.md").read_text()
