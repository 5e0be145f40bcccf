"""When a reader is done, judged from what is known of the writers."""

from typing import Any

import pytest

from sluiceway.ending import OnLostWriter, Outcome, outcome
from sluiceway.endpoint import Endpoint
from sluiceway.errors import WriterFailed, WriterLost


def writer(number: int, state: str = "closed", health: str = "healthy", **facts: Any) -> Endpoint:
    return Endpoint(
        id=f"{number:032x}",
        role=facts.pop("role", "writer"),
        group="load",
        index=number,
        size=9,
        state=state,
        health=health,
        **facts,
    )


def judged(
    *present: Endpoint, writers: int = 1, on_lost_writer: OnLostWriter = "raise"
) -> Outcome | None:
    return outcome(present, channel="flights", writers=writers, on_lost_writer=on_lost_writer)


@pytest.mark.parametrize("state", ["opened", "started", "stopped"])
@pytest.mark.parametrize("health", ["healthy", "suspect"])
def test_a_writer_that_is_at_work_holds_up_the_end(state: str, health: str) -> None:
    assert judged(writer(0, ends={0: 5}), writer(1, state, health)) is None


def test_as_many_writers_as_were_asked_for_have_to_come() -> None:
    assert judged() is None
    assert judged(writer(0, role="reader")) is None
    assert judged(writer(0, ends={0: 5}), writers=2) is None
    assert judged(writer(0, ends={0: 5}), writer(1), writers=2) == Outcome(ends={0: 5})


def test_the_last_word_of_all_writers_is_the_end() -> None:
    found = judged(writer(0, ends={0: 5, 1: 9}), writer(1, ends={0: 7}), writer(2))
    assert found == Outcome(ends={0: 7, 1: 9})


@pytest.mark.parametrize(("state", "health"), [("error", "healthy"), ("error", "lost")])
def test_a_writer_that_failed_is_named_when_all_is_read(state: str, health: str) -> None:
    found = judged(writer(0, ends={0: 5}), writer(1, state, health, cause="ValueError: no"))
    assert found is not None
    assert isinstance(found.fault, WriterFailed)
    assert found.fault.endpoints == (f"{1:032x}",)
    assert "load[1] (ValueError: no) failed" in str(found.fault)
    assert found.silent == {f"{1:032x}"}


@pytest.mark.parametrize("state", ["opened", "started", "stopped"])
def test_a_lost_writer_is_named_and_ends_where_it_was_lost(state: str) -> None:
    found = judged(writer(0, ends={0: 5}), writer(1, state, "lost", lost_at={0: 8}))
    assert found is not None
    assert isinstance(found.fault, WriterLost)
    assert (found.ends, found.silent) == ({0: 8}, frozenset())


@pytest.mark.parametrize(("state", "health"), [("error", "healthy"), ("started", "lost")])
def test_what_becomes_of_it_can_be_chosen(state: str, health: str) -> None:
    present = [writer(0, ends={0: 5}), writer(1, state, health, ends={0: 8}, lost_at={0: 11})]
    assert judged(*present, on_lost_writer="wait") is None
    assert judged(*present, on_lost_writer="go_on") == Outcome(ends={0: 8})


def test_a_lost_writer_that_was_closed_is_finished() -> None:
    assert judged(writer(0, "closed", "lost", ends={0: 5})) == Outcome(ends={0: 5})
