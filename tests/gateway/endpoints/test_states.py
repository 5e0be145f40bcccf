from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoints import ENDPOINT, NOW
from sluiceway_gateway.core.errors import Fenced, IllegalTransition
from sluiceway_gateway.endpoints.model import (
    OPEN,
    TRANSITIONS,
    Endpoint,
    Health,
    State,
    are_done,
    may_become,
    merged_ends,
    moved,
    next_health,
)

LATER = NOW + timedelta(seconds=1)
STATES = st.sampled_from(State)
ENDS = st.none() | st.dictionaries(st.integers(0, 3), st.integers(0, 9))


def test_tasks_are_done_once_each_has_reported_its_end() -> None:
    assert [are_done(sums, 1) for sums in ({}, {"tasks_done": 0}, {"tasks_done": 1})] == [
        False,
        False,
        True,
    ]


def test_every_state_has_a_row_in_the_table() -> None:
    assert set(TRANSITIONS) == set(State)


def test_closed_is_final_and_every_open_state_may_fail_and_close() -> None:
    assert TRANSITIONS[State.CLOSED] == frozenset()
    for state in OPEN:
        assert {State.ERROR, State.CLOSED} <= TRANSITIONS[state]


def test_an_error_is_followed_only_by_opened_or_started() -> None:
    assert TRANSITIONS[State.ERROR] == {State.OPENED, State.STARTED}


@given(before=STATES, after=STATES)
def test_a_transition_is_applied_once_or_refused(before: State, after: State) -> None:
    endpoint = replace(ENDPOINT, state=before)
    if not may_become(before, after):
        with pytest.raises(IllegalTransition, match=f"is {before} and cannot become {after}"):
            moved(endpoint, after, now=LATER)
        return
    stepped = moved(endpoint, after, cause="why", now=LATER)
    assert stepped.state is after
    assert (stepped is endpoint) == (before is after)
    assert stepped.changed_at == (NOW if before is after else LATER)
    assert moved(stepped, after, cause="another", now=LATER) is stepped


@pytest.mark.parametrize(
    ("endpoint", "lives"),
    [
        (ENDPOINT, True),
        (replace(ENDPOINT, health=Health.SUSPECT), True),
        (replace(ENDPOINT, health=Health.LOST), False),
        (replace(ENDPOINT, superseded=True), False),
        (replace(ENDPOINT, state=State.ERROR), False),
        (replace(ENDPOINT, state=State.CLOSED), False),
    ],
)
def test_an_endpoint_is_alive_until_it_ends_is_lost_or_superseded(
    endpoint: Endpoint, lives: bool
) -> None:
    assert endpoint.lives is lives


def test_superseded_endpoints_and_other_epochs_are_fenced() -> None:
    ENDPOINT.require(epoch=7)
    with pytest.raises(Fenced, match="has the epoch 7, not 6"):
        ENDPOINT.require(epoch=6)
    place = f"was the reader {ENDPOINT.place.index} of the group 'delays'; another instance took"
    with pytest.raises(Fenced, match=f"{place} .* do not attach it again"):
        replace(ENDPOINT, superseded=True).require(epoch=7)


@given(before=ENDS, reported=ENDS)
def test_ends_never_decrease(
    before: dict[int, int] | None, reported: dict[int, int] | None
) -> None:
    merged = merged_ends(before, reported)
    assert (merged is None) == (before is None and reported is None)
    for ends in (before or {}, reported or {}):
        for partition, end in ends.items():
            assert merged is not None
            assert merged[partition] >= end
    assert merged_ends(merged, reported) == merged


@pytest.mark.parametrize(
    ("silent_ms", "health"),
    [
        (0, Health.HEALTHY),
        (2999, Health.HEALTHY),
        (3000, Health.SUSPECT),
        (9999, Health.SUSPECT),
        (10_000, Health.LOST),
    ],
)
def test_silence_makes_an_endpoint_suspect_then_lost(silent_ms: int, health: Health) -> None:
    after = next_health(Health.HEALTHY, silent_ms=silent_ms, interval_ms=1000, timeout_ms=10_000)
    assert after is health


@given(health=st.sampled_from(Health), silent_ms=st.integers(0, 20_000))
def test_silence_never_improves_health(health: Health, silent_ms: int) -> None:
    after = next_health(health, silent_ms=silent_ms, interval_ms=1000, timeout_ms=10_000)
    order = list(Health)
    assert order.index(after) >= order.index(health)
