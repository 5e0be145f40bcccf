"""Random schedules of a dynamic group's members that join, sync and leave."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpoints import ENDPOINT
from sluiceway_gateway.core.errors import StaleGeneration
from sluiceway_gateway.endpoints.groups.assignment import (
    Member,
    held_partitions,
    require_share,
    share_generation,
    split,
    target_share,
    with_share,
)
from sluiceway_gateway.endpoints.groups.model import Group, GroupConfig, departures, new_group
from sluiceway_gateway.endpoints.model import Endpoint, Place, Role, Share, State

PARTITIONS = 5
NOW = datetime(2030, 1, 1, tzinfo=UTC)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "restart", "take", "take", "take", "late"]),
        st.integers(0, 5),
    )
)


@dataclass
class DynamicGroup:
    """The rows of a dynamic group."""

    group: Group
    members: list[Endpoint]

    def step(self, what: str, which: int) -> None:
        if what == "join":
            self.group, place = self.group.with_member(None)
            self.members.append(self.instance(place))
            self.rebalance(None, self.members[-1])
        elif self.members:
            member = self.members[which % len(self.members)]
            if what == "leave":
                self.members.remove(member)
                self.rebalance(member, replace(member, state=State.CLOSED))
            elif what == "restart":
                self.group, place = self.group.with_member(member.place.index)
                instance = self.instance(place)
                self.members[self.members.index(member)] = instance
                self.rebalance(None, instance)
            else:
                take = self.group.generation - (what == "late")
                self.take(member, max(1, take))

    def instance(self, place: Place) -> Endpoint:
        epoch = self.group.epoch
        return replace(ENDPOINT, id=str(epoch), epoch=epoch, place=place, size=None)

    def rebalance(self, before: Endpoint | None, after: Endpoint) -> None:
        departed = departures([(before, after)])
        assert departed == {after.group_key: [before.id] if before else []}
        self.group = self.group.rebalanced(live=len(self.members), now=NOW)

    def take(self, member: Endpoint, generation: int) -> None:
        after = with_share(
            member,
            self.group,
            self.assignment_members,
            take=generation,
            has=share_generation(member),
        )
        assert (after is member) == (
            generation != self.group.generation or share_generation(member) == generation
        )
        self.members[self.members.index(member)] = after

    @property
    def assignment_members(self) -> list[Member]:
        return [
            Member(endpoint=e.id, index=e.place.index, generation=e.generation, share=e.share)
            for e in self.members
        ]

    def holders(self) -> dict[int, list[str]]:
        holders: dict[int, list[str]] = {partition: [] for partition in range(PARTITIONS)}
        for member in self.members:
            others = [other for other in self.assignment_members if other.endpoint != member.id]
            for partition in held_partitions(member, others, PARTITIONS):
                holders[partition].append(member.id)
        return holders


def empty_group() -> DynamicGroup:
    group = new_group("c" * 32, Role.READER, "d", GroupConfig(dynamic=True))
    return DynamicGroup(group=group, members=[])


@given(steps=STEPS)
def test_a_partition_has_one_holder_until_it_releases_it(steps: list[tuple[str, int]]) -> None:
    one = empty_group()
    before = one.holders()
    for what, which in steps:
        there = {member.id: member for member in one.members}
        one.step(what, which)
        after = one.holders()
        for partition, who in after.items():
            assert len(who) <= 1
            had = before[partition]
            if had and had != who:
                # The former holder left, or took another share.
                (loser,) = had
                now = {member.id: member for member in one.members}.get(loser)
                assert now is None or now is not there[loser]
        before = after


@given(steps=STEPS)
def test_every_partition_has_a_holder_after_all_members_took_their_shares(
    steps: list[tuple[str, int]],
) -> None:
    one = empty_group()
    for what, which in [*steps, ("join", 0)]:
        one.step(what, which)
    for member in list(one.members):
        one.take(member, one.group.generation)
    assert all(len(who) == 1 for who in one.holders().values())
    shares = [member.share for member in one.members]
    assert shares == [Share(index=i, size=len(shares)) for i in range(len(shares))]


def test_partitions_that_another_member_holds_are_pending() -> None:
    share = Share(index=1, size=2)
    slow = Member(endpoint="a", index=1, generation=2, share=Share(index=0, size=1))
    assert split(share, 3, [slow], 4).pending == (1, 3)
    assert split(share, 2, [slow], 4).own == (1, 3)
    other = replace(slow, generation=3, share=Share(index=0, size=2))
    assert split(share, 3, [other], 4) == split(share, 3, [replace(slow, share=None)], 4)


def test_members_are_ranked_by_index() -> None:
    members = [
        Member(endpoint=name, index=index, generation=1, share=None)
        for name, index in (("c", 9), ("a", 2), ("b", 5))
    ]
    assert [target_share(members, name).index for name in "abc"] == [0, 1, 2]


def test_a_member_that_syncs_another_generation_takes_nothing() -> None:
    group = replace(empty_group().group, generation=4)
    member = replace(ENDPOINT, size=None, share=Share(index=0, size=1), generation=3)
    members = [Member(endpoint=member.id, index=7, generation=3, share=member.share)]
    for has in (None, 2, 4):
        assert with_share(member, group, members, take=4, has=has) is member
    assert with_share(member, group, members, take=4, has=3).generation == 4
    released = replace(member, share=None)
    assert with_share(released, group, members, take=4, has=3) is released
    assert with_share(released, group, members, take=4, has=None).share == Share(index=0, size=1)


def test_commits_name_the_generation_of_the_share() -> None:
    member = replace(ENDPOINT, size=None, share=Share(index=0, size=1), generation=3)
    require_share(member, 3)
    with pytest.raises(StaleGeneration, match="has the assignment of generation 3"):
        require_share(member, 4)
    with pytest.raises(StaleGeneration, match="has no assignment"):
        require_share(replace(member, share=None), 3)


def test_no_generation_starts_while_the_live_members_stay() -> None:
    member = replace(ENDPOINT, size=None)
    failed = replace(member, state=State.ERROR)
    for before, after in (
        (member, replace(member, state=State.STOPPED)),
        (failed, replace(failed, state=State.CLOSED)),
        (ENDPOINT, replace(ENDPOINT, state=State.CLOSED)),
    ):
        assert departures([(before, after)]) == {}
    assert departures([(failed, member)]) == {member.group_key: []}


def test_a_closed_member_holds_no_partitions() -> None:
    member = replace(ENDPOINT, size=None, share=Share(index=0, size=1))
    assert held_partitions(member, [], 2) == (0, 1)
    assert held_partitions(replace(member, state=State.CLOSED), [], 2) == ()
