"""ForkGuard: refusals and finalizers in forked children."""

import gc
import os

import pytest

from sluiceway.concurrency import ForkGuard
from sluiceway.errors import EndpointClosed


class Owner:
    """An object with a finalizer."""


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)


def test_a_guard_refuses_use_in_a_forked_child_only(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = ForkGuard()
    guard.check("the reader")
    assert not guard.forked
    in_another_process(monkeypatch)
    assert guard.forked
    with pytest.raises(EndpointClosed, match=rf"the reader was opened by the process {guard.pid}"):
        guard.check("the reader")


def test_guards_of_one_process_have_one_key() -> None:
    entries = {ForkGuard(): "parent"}
    assert ForkGuard() in entries
    assert ForkGuard(pid=os.getpid() + 1) not in entries


@pytest.mark.parametrize("forked", [False, True])
def test_a_finalizer_runs_in_the_process_that_registered_it(
    forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected: list[str] = []
    owner = Owner()
    ForkGuard().finalize(owner, collected.append, "owner")
    if forked:
        in_another_process(monkeypatch)
    del owner
    gc.collect()
    assert collected == ([] if forked else ["owner"])
