"""Usage of a channel: its open endpoints, and the positions of its groups."""

from datetime import UTC, datetime
from typing import Any

import pytest

from endpoints import Site
from sluiceway_gateway.channels import store as channels_store
from sluiceway_gateway.endpoints.tables import endpoints
from sluiceway_gateway.lifecycle.model import SHARED, ChannelUsage
from sluiceway_gateway.lifecycle.store import usage_of_channel
from sluiceway_gateway.status.sample_store import page_with_readers, reader_snapshots


def seen(flights: Site) -> ChannelUsage:
    with flights.rig.database.read() as tx:
        channel = channels_store.find(tx, flights.name)
        assert channel is not None
        return usage_of_channel(tx, channel)


def reach(flights: Site, member: Any, title: str | None = "a query", **places: list[int]) -> None:
    reached = {partition.removeprefix("p"): place for partition, place in places.items()}
    whose = endpoints.update().where(endpoints.c.id == member["id"])
    with flights.rig.database.write() as tx:
        tx.execute(whose.values(reached=reached, title=title))


@pytest.mark.long
def test_only_open_endpoints_are_named(flights: Site) -> None:
    writer, loner = flights.attach("writer"), flights.attach()
    flights.detach(flights.attach("writer"), "error")
    flights.detach(flights.attach())
    flights.member(0, 2)
    flights.detach(flights.member(1, 2), "error")
    flights.member(0, 1, group="taken")
    flights.member(0, 1, group="taken")
    present = seen(flights)
    assert present.writers == (f"writer {writer['id'][:8]}",)
    assert present.ungrouped == (f"reader {loner['id'][:8]}",)
    assert present.live[2:] == ("g[0]", "taken[0]")
    assert [(group.group, group.members, group.live) for group in present.groups] == [
        ("g", {0, 1}, {0}),
        ("taken", {0}, {0}),
    ]
    assert not present.is_finished


@pytest.mark.sample
def test_members_share_positions_or_have_their_own(flights: Site) -> None:
    first, second = flights.member(0, 2), flights.member(1, 2)
    flights.commit(first, 1, (0, 5, 0), (2, 7, 1))
    reach(flights, first, p0=[6, 0], p2=[9, 0])
    reach(flights, second, p1=[3, 0], p2=[8, 0])
    other = flights.member(1, 2, group="all", mode="broadcast")
    flights.commit(other, 1, (3, 4, 0))
    everybody, shared = seen(flights).groups
    assert shared.positions == {SHARED: {0: 5, 2: 7}}
    assert shared.reached == {SHARED: {0: 6, 1: 3, 2: 9}}
    assert (everybody.shared, everybody.positions) == (False, {1: {3: 4}})


@pytest.mark.sample
def test_former_members_of_a_broadcast_group_do_not_count(flights: Site) -> None:
    shared = flights.member(group="g")
    flights.commit(shared, 1, (0, 3, 0))
    flights.detach(shared)
    for index in (2, 1, 0):
        member = flights.member(index, 3, group="g", mode="broadcast")
        flights.commit(member, 1, (0, 5 + index, 0))
        flights.detach(member)
    (group,) = seen(flights).groups
    assert (group.members, group.positions) == ({0, 1, 2}, {0: {0: 5}, 1: {0: 6}, 2: {0: 7}})
    assert flights.resize(2, 2).is_success
    (group,) = seen(flights).groups
    assert (group.members, group.positions) == ({0, 1}, {0: {0: 5}, 1: {0: 6}})
    with flights.rig.database.read() as tx:
        (snapshot,) = reader_snapshots(
            tx, page_with_readers(tx, after="").channels, now=datetime.now(UTC)
        ).values()
    assert {reader.index for reader in snapshot.readers} == {0, 1}
    assert {committed.member for committed in snapshot.committed} == {0, 1}


@pytest.mark.sample
def test_reported_offsets_of_a_committing_member_are_ignored(flights: Site) -> None:
    reach(flights, flights.member(0, 1), title=None, p0=[6, 0])
    (group,) = seen(flights).groups
    assert group.reached == {}


@pytest.mark.sample
def test_a_channel_without_endpoints_is_finished(flights: Site) -> None:
    assert seen(flights).is_finished
