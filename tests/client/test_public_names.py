"""What `import sluiceway` offers, and promises about it that no single test needs otherwise."""

import importlib
import inspect
import pkgutil

import pytest

import sluiceway
from sluiceway import ChannelReader


def test_the_package_offers_exactly_its_public_names() -> None:
    names = {
        name
        for name, value in vars(sluiceway).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert names == set(sluiceway.__all__) - {"__version__"}


@pytest.mark.parametrize(
    "package",
    [name for _, name, is_package in pkgutil.iter_modules(sluiceway.__path__) if is_package],
)
def test_every_package_says_what_is_public(package: str) -> None:
    module = importlib.import_module(f"sluiceway.{package}")
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_a_reader_of_a_connection_must_be_told_when_to_end() -> None:
    until = inspect.signature(ChannelReader.__init__).parameters["until"]
    assert until.kind is inspect.Parameter.KEYWORD_ONLY
    assert until.default is inspect.Parameter.empty
