"""Unread records, and the end of closing a channel."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway_gateway.channels.change import created
from sluiceway_gateway.channels.model import Channel, Phase, Spec
from sluiceway_gateway.core.errors import Conflict
from sluiceway_gateway.core.kafka.model import Watermarks
from sluiceway_gateway.lifecycle.model import (
    SHARED,
    ChannelUsage,
    GroupUsage,
    Unread,
    closing,
    drained,
    unread,
)
from sluiceway_gateway.schemas.model import SchemaVersion

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=5)
MARKS = {0: Watermarks(begin_offset=5, end_offset=20), 1: Watermarks(begin_offset=0, end_offset=0)}


def channel(phase: Phase = Phase.READY) -> Channel:
    schema = SchemaVersion(id=1, version=1, fingerprint="f1", definition="s", created_at=NOW)
    made = created(Spec(), name="flights", uid="0" * 32, schema=schema, prefix="", now=NOW)
    return replace(made, phase=phase)


def present(**who: Any) -> ChannelUsage:
    nobody: dict[str, Any] = {"writers": (), "ungrouped": (), "groups": ()}
    return ChannelUsage(**(nobody | who))


def group_usage(
    positions: dict[int, dict[int, int]] | None = None, *, shared: bool = True, **places: Any
) -> GroupUsage:
    members, live = (frozenset(places.get(kind, ())) for kind in ("members", "live"))
    return GroupUsage(
        group="g", shared=shared, members=members | live, live=live, positions=positions or {}
    )


def left(usage: GroupUsage, *, idle_members: bool = True) -> list[tuple[int, int, int]]:
    remaining = unread([usage], MARKS, idle_members=idle_members)
    return [(one.member, one.partition, one.messages) for one in remaining]


def told(changed: Channel) -> tuple[str, str, str]:
    condition = changed.condition("Drained")
    assert condition is not None
    return condition.status, condition.reason, condition.message


def test_unread_messages_are_counted_from_the_start_of_the_log() -> None:
    assert left(group_usage({SHARED: {0: 12}})) == [(SHARED, 0, 8)]
    assert left(group_usage({SHARED: {0: 2, 1: 0}})) == [(SHARED, 0, 15)]
    assert left(group_usage({SHARED: {1: 0}})) == [(SHARED, 0, 15)]
    assert left(group_usage({SHARED: {0: 20}})) == []


def test_each_member_of_a_broadcast_group_has_to_read_all() -> None:
    one = group_usage({0: {0: 20}, 2: {0: 19}}, shared=False, live=(1,))
    assert left(one) == [(1, 0, 15), (2, 0, 1)]


def test_ended_members_without_commits_count_on_request() -> None:
    gone = group_usage(members=(0,))
    assert left(gone) == [(SHARED, 0, 15)]
    assert left(gone, idle_members=False) == []
    assert not gone.counts


def test_reached_offsets_count_in_groups_without_commits() -> None:
    reached = {SHARED: {0: 15}}
    assert left(replace(group_usage(members=(0,)), reached=reached)) == [(SHARED, 0, 5)]
    assert left(replace(group_usage({SHARED: {0: 12}}), reached=reached)) == [(SHARED, 0, 8)]
    assert not replace(group_usage(members=(0,)), reached=reached).counts


@given(
    committed=st.dictionaries(st.integers(0, 3), st.integers(0, 9)),
    ends=st.dictionaries(st.integers(0, 3), st.integers(0, 9)),
)
def test_no_messages_are_unread_exactly_when_all_are_committed(
    committed: dict[int, int], ends: dict[int, int]
) -> None:
    marks = {p: Watermarks(begin_offset=0, end_offset=end) for p, end in ends.items()}
    remaining = unread([group_usage({SHARED: committed})], marks, idle_members=False)
    behind = {p: end - committed.get(p, 0) for p, end in ends.items() if end > committed.get(p, 0)}
    assert {entry.partition: entry.messages for entry in remaining} == behind


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("phase", list(Phase))
def test_only_a_ready_channel_is_closed_and_only_once(phase: Phase, force: bool) -> None:
    before = channel(phase)
    if phase not in (Phase.READY, Phase.CLOSING, Phase.CLOSED):
        with pytest.raises(Conflict) as raised:
            closing(before, present(), force=force, now=NOW)
        deleting = phase is Phase.DELETING
        assert raised.value.code == ("channel_deleting" if deleting else "channel_not_ready")
        return
    once = closing(before, present(writers=("a",)), force=force, now=NOW)
    wanted = Phase.CLOSED if force or phase is Phase.CLOSED else Phase.CLOSING
    assert (once.phase, once.generation) == (wanted, before.generation)
    assert closing(once, present(writers=("a",)), force=force, now=NOW) is once


def test_an_unused_channel_is_closed_at_once() -> None:
    closed = closing(channel(), present(groups=(group_usage(members=(0,)),)), force=False, now=NOW)
    assert (closed.phase, told(closed)[:2]) == (Phase.CLOSED, ("True", "Drained"))


def test_a_channel_is_closed_after_writers_and_readers_finished() -> None:
    at_work = present(
        writers=("load[0]",), ungrouped=("reader 1",), groups=(group_usage(live=(0,)),)
    )
    waits = closing(channel(), at_work, force=False, now=NOW)
    assert told(waits)[:2] == ("False", "WritersOpen")
    assert "load[0]" in told(waits)[2]
    assert drained(waits, at_work, MARKS, now=LATER) is waits

    steps = [
        (present(ungrouped=("reader 1",)), MARKS, "ReadersOpen", "reader 1"),
        (present(groups=(group_usage(live=(0,)),)), None, "EndsUnknown", "Kafka"),
        (
            present(groups=(group_usage({SHARED: {0: 8}}),)),
            MARKS,
            "Unread",
            "the group 'g' has not committed 12 messages of partition 0",
        ),
    ]
    for who, marks, reason, words in steps:
        revision = waits.revision
        waits = drained(waits, who, marks, now=LATER)
        assert (waits.phase, waits.revision) == (Phase.CLOSING, revision + 1)
        assert told(waits)[:2] == ("False", reason)
        assert words in told(waits)[2]
    condition = waits.condition("Drained")
    assert condition is not None
    assert condition.last_transition_at == NOW

    closed = drained(waits, present(groups=(group_usage({SHARED: {0: 20}}),)), MARKS, now=LATER)
    assert (closed.phase, told(closed)[:2]) == (Phase.CLOSED, ("True", "Drained"))


def test_the_condition_names_a_forced_close() -> None:
    closed = closing(channel(Phase.CLOSING), present(writers=("a",)), force=True, now=NOW)
    assert told(closed)[:2] == ("True", "Forced")


def test_a_long_list_is_truncated() -> None:
    waits = closing(channel(), present(writers=tuple(map(str, range(99)))), force=False, now=NOW)
    assert "18, 19 and 79 more" in told(waits)[2]
    assert str(Unread(group="g", member=2, partition=0, messages=1200)) == (
        "g[2] has not committed 1,200 messages of partition 0"
    )
