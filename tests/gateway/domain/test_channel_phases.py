from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.channels.model import (
    TRANSITIONS,
    Condition,
    Phase,
    may_become,
    sources,
    topic_name,
    with_condition,
)

PHASES = st.sampled_from(Phase)
EARLY, LATE = datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC)


def test_every_phase_has_its_row_in_the_table() -> None:
    assert set(TRANSITIONS) == set(Phase)


def test_every_phase_leads_to_deleting_and_deleting_leads_nowhere() -> None:
    assert sources(Phase.DELETING) == set(Phase) - {Phase.DELETING}
    assert TRANSITIONS[Phase.DELETING] == frozenset()


def test_no_phase_leads_back_to_provisioning() -> None:
    assert sources(Phase.PROVISIONING) == frozenset()


@given(phase=PHASES, following=PHASES)
def test_sources_and_transitions_agree(phase: Phase, following: Phase) -> None:
    assert (phase in sources(following)) == (following in TRANSITIONS[phase])
    assert may_become(phase, following) == (phase == following or phase in sources(following))


def _condition(status: str, at: datetime, reason: str = "Any", type_: str = "Ready") -> Condition:
    return Condition(
        type=type_,
        status=status,  # type: ignore[arg-type]
        reason=reason,
        message="",
        last_transition_at=at,
    )


@pytest.mark.parametrize(("status", "since"), [("True", EARLY), ("False", LATE)])
def test_a_condition_keeps_its_time_while_its_status_is_unchanged(
    status: str, since: datetime
) -> None:
    other = _condition("True", EARLY, type_="Synced")
    before = (_condition("True", EARLY, "Before"), other)
    after = with_condition(before, _condition(status, LATE, "After"))
    assert after == (_condition(status, since, "After"), other)


def test_a_topic_name_has_the_channels_name_and_uid_prefix() -> None:
    assert topic_name("p.", "flights", "0123456789abcdef" * 2) == "p.flights-01234567"
