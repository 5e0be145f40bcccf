from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.channels.model import TRANSITIONS, Phase, may_become, sources
from sluiceway_gateway.core.names import topic_name

PHASES = st.sampled_from(Phase)


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


def test_a_topic_name_has_the_channels_name_and_uid_prefix() -> None:
    assert topic_name("p.", "flights", "0123456789abcdef" * 2) == "p.flights-01234567"
