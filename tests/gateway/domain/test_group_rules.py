from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.endpoints.model import ANONYMOUS, Mode, Place, Role
from sluiceway_gateway.errors import GroupMode, GroupSize
from sluiceway_gateway.groups.model import (
    assigned,
    check_group,
    fitted,
    founded,
    joined,
    member_of_positions,
)

GROUP = founded("c" * 32, Role.READER, "delays", mode=Mode.SHARED, size=4)


@given(size=st.integers(1, 30), partitions=st.integers(1, 40))
def test_every_partition_is_one_members(size: int, partitions: int) -> None:
    places = [Place(role=Role.READER, group="g", index=index) for index in range(size)]
    shares = [assigned(each, mode=Mode.SHARED, size=size, partitions=partitions) for each in places]
    assert sorted(p for share in shares for p in share) == list(range(partitions))
    for place, share in zip(places, shares, strict=True):
        assert all(p % size == place.index for p in share)


@pytest.mark.parametrize(
    ("place", "mode", "size"),
    [
        (Place(role=Role.READER, group="g", index=1), Mode.BROADCAST, 2),
        (Place(role=Role.WRITER, group="g", index=1), Mode.SHARED, 2),
        (Place(role=Role.READER, group=ANONYMOUS, index=5), Mode.SHARED, None),
    ],
)
def test_all_others_have_all(place: Place, mode: Mode, size: int | None) -> None:
    assert list(assigned(place, mode=mode, size=size, partitions=3)) == [0, 1, 2]


def test_a_group_changes_in_a_new_generation_while_nobody_lives() -> None:
    assert fitted(GROUP, mode=Mode.SHARED, size=4, living=3) is GROUP
    grown = fitted(GROUP, mode=Mode.BROADCAST, size=5, living=0)
    assert (grown.size, grown.mode, grown.generation) == (5, Mode.BROADCAST, 2)
    with pytest.raises(GroupSize, match="has the size 4, not 5, and 1 of its members lives"):
        fitted(GROUP, mode=Mode.SHARED, size=5, living=1)
    with pytest.raises(GroupMode, match="is shared, not broadcast, and 2 of its members live"):
        fitted(GROUP, mode=Mode.BROADCAST, size=4, living=2)


def test_every_instance_takes_a_higher_epoch_and_anonymous_ones_a_place_of_their_own() -> None:
    once, place = joined(GROUP, 2)
    assert (once, place.index) == (replace(GROUP, epoch=1), 2)
    assert joined(once, 2)[0].epoch == 2
    alone = founded("c" * 32, Role.WRITER, ANONYMOUS, mode=Mode.SHARED, size=None)
    first, first_place = joined(alone, None)
    _, second_place = joined(first, None)
    assert (first_place.index, second_place.index) == (0, 1)


def test_members_of_a_broadcast_group_have_positions_of_their_own() -> None:
    place = Place(role=Role.READER, group="g", index=1)
    assert member_of_positions(place, Mode.BROADCAST) == 1
    assert member_of_positions(place, Mode.SHARED) == -1


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "9", "x" * 200])
def test_names_of_groups(name: str) -> None:
    assert check_group(name) == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "ä", "a\n", "x" * 201])
def test_names_that_no_group_has(name: str) -> None:
    with pytest.raises(ValueError, match="a group's name"):
        check_group(name)
