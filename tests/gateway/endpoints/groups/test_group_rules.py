from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoints import ENDPOINT, NOW
from sluiceway_gateway.core.errors import GroupMode, GroupSize
from sluiceway_gateway.core.names import check_group
from sluiceway_gateway.endpoints.groups.assignment import assigned_partitions
from sluiceway_gateway.endpoints.groups.model import GroupConfig, new_group
from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode, Place, Role

GROUP = new_group("c" * 32, Role.READER, "delays", GroupConfig(size=4))


@given(size=st.integers(1, 30), partitions=st.integers(1, 40))
def test_a_shared_group_assigns_each_partition_to_one_member(size: int, partitions: int) -> None:
    places = [Place(role=Role.READER, group="g", index=index) for index in range(size)]
    assigned = [assigned_partitions(place, Mode.SHARED, size, partitions) for place in places]
    assert sorted(p for own in assigned for p in own) == list(range(partitions))
    for place, own in zip(places, assigned, strict=True):
        assert all(p % size == place.index for p in own)


@pytest.mark.parametrize(
    ("place", "mode", "size"),
    [
        (Place(role=Role.READER, group="g", index=1), Mode.BROADCAST, 2),
        (Place(role=Role.WRITER, group="g", index=1), Mode.SHARED, 2),
        (Place(role=Role.READER, group=ANONYMOUS, index=5), Mode.SHARED, None),
    ],
)
def test_all_other_endpoints_have_all_partitions(
    place: Place, mode: Mode, size: int | None
) -> None:
    assert list(assigned_partitions(place, mode, size, 3)) == [0, 1, 2]


def test_a_group_changes_its_kind_in_a_new_generation_while_no_member_is_alive() -> None:
    assert GROUP.reconfigured(GroupConfig(size=4), live=3, now=NOW) is GROUP
    broadcast = GroupConfig(mode=Mode.BROADCAST, size=5)
    grown = GROUP.reconfigured(broadcast, live=0, now=NOW)
    assert (grown.size, grown.mode, grown.generation) == (5, Mode.BROADCAST, 2)
    with pytest.raises(GroupSize, match="has the size 4, not 5, and 1 of its members is alive"):
        GROUP.reconfigured(GroupConfig(size=5), live=1, now=NOW)
    with pytest.raises(GroupMode, match="is shared, not broadcast, and 2 of its members are alive"):
        GROUP.reconfigured(GroupConfig(mode=Mode.BROADCAST, size=4), live=2, now=NOW)


def test_each_instance_gets_a_higher_epoch_and_anonymous_ones_an_index_of_their_own() -> None:
    once, place = GROUP.with_member(2)
    assert (once, place.index) == (replace(GROUP, epoch=1), 2)
    assert once.with_member(2)[0].epoch == 2
    anonymous = new_group("c" * 32, Role.WRITER, ANONYMOUS, GroupConfig())
    first, first_place = anonymous.with_member(None)
    _, second_place = first.with_member(None)
    assert (first_place.index, second_place.index) == (0, 1)


def test_members_of_a_broadcast_group_have_positions_of_their_own() -> None:
    member = replace(ENDPOINT, mode=Mode.BROADCAST)
    assert member.position_owner == (*member.group_key, member.place.index)
    assert ENDPOINT.position_owner == (*member.group_key, -1)


@pytest.mark.parametrize(
    "name", ["a", "A.b_c-9", "-a", "..", "a b", "a/b%2F", "größe 東京", " ", "x" * 249]
)
def test_valid_names_of_groups(name: str) -> None:
    assert check_group(name) == name


@pytest.mark.parametrize("name", ["", "a\n", "\0", "a\x9f", "\ud800", "x" * 250])
def test_invalid_names_of_groups(name: str) -> None:
    with pytest.raises(ValueError, match="a group's name"):
        check_group(name)
