"""A gateway that serves gives its threads their turns soon, and looks for garbage among little."""

import gc
import sys

import pytest
from sluiceway_gateway.cli.server import _tuned


def test_turns_are_short_while_it_serves_and_as_before_afterwards() -> None:
    before_s, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    with _tuned():
        assert sys.getswitchinterval() < before_s / 5
        assert gc.get_freeze_count() > frozen
    assert sys.getswitchinterval() == pytest.approx(before_s)
    assert gc.get_freeze_count() == 0
