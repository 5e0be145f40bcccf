"""Groups of readers: assignment, resuming, and commits."""

from collections.abc import Callable
from typing import Any

import pytest

from sluiceway import Channel, ChannelReader, Heartbeat, Position
from sluiceway.errors import (
    CommitBeyondRead,
    Conflict,
    Fenced,
    OffsetOutOfRange,
    OptionError,
    StaleGeneration,
)
from topics import Topics, readings

NewChannel = Callable[..., Channel]


def by_id(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(records, key=lambda record: record["id"])


def written(channel: Channel, count: int = 100, first: int = 0, **wishes: Any) -> Channel:
    with channel.writer(batch_records=10, **wishes) as writer:
        writer.write(readings(count, first))
    return channel


@pytest.fixture
def channel(new_channel: NewChannel) -> Channel:
    return new_channel(partitions=4)


def test_members_of_a_group_share_the_partitions(channel: Channel) -> None:
    written(channel)
    with (
        channel.reader(group="delays", index=0, size=2) as first,
        channel.reader(group="delays", index=1, size=2) as second,
    ):
        assert (first.partitions, second.partitions) == ((0, 2), (1, 3))
        records, others = list(first), list(second)
    assert records
    assert others
    assert by_id(records + others) == readings(100)


def test_every_member_of_a_broadcast_group_gets_everything_and_commits_for_itself(
    channel: Channel,
) -> None:
    written(channel)
    with (
        channel.reader(group="maps", index=0, size=2, mode="broadcast") as first,
        channel.reader(group="maps", index=1, size=2, mode="broadcast") as second,
    ):
        assert by_id(list(first)) == by_id(list(second)) == readings(100)
        first.commit()
        assert first.committed() == first.position()
        assert second.committed() == {}
    assert channel.committed("maps", 0) == first_positions(channel)
    assert channel.committed("maps", 1) == {}


def first_positions(channel: Channel) -> dict[int, Position]:
    with channel.reader(until="now") as reader:
        return {p: Position(offset=end) for p, end in reader.end_offsets().items()}


@pytest.mark.sample
def test_a_restarted_member_resumes_at_the_last_commit(
    new_channel: NewChannel, each_format: str
) -> None:
    channel = written(new_channel(partitions=2, format=each_format))
    with channel.reader(group="delays") as reader:
        done = reader.read(37, timeout=None)
        reader.commit()
        # Returned, but not committed.
        reader.read(20, timeout=None)
        assert reader.position() != reader.committed()
    with channel.reader(group="delays", start="latest") as reader:
        assert reader.position() == channel.committed("delays")
        rest = list(reader)
        reader.commit()
    assert by_id(done + rest) == readings(100)
    with channel.reader(group="delays", writers=0) as reader:
        assert list(reader) == []


def test_given_positions_are_committed_and_others_stay(channel: Channel) -> None:
    written(channel)
    with channel.reader(group="delays", until="now") as reader:
        list(reader)
        reader.commit({0: 3, 2: Position(offset=5)})
        assert reader.committed() == {0: Position(offset=3), 2: Position(offset=5)}
    with channel.reader(group="delays", until="now") as reader:
        assert reader.position() == {
            0: Position(offset=3),
            1: Position(offset=0),
            2: Position(offset=5),
            3: Position(offset=0),
        }


@pytest.mark.long
def test_groups_of_one_channel_are_independent(channel: Channel) -> None:
    written(channel)
    with channel.reader(group="delays") as reader:
        list(reader)
        reader.commit()
    with (
        channel.reader(group="delays-2", index=0, size=2) as first,
        channel.reader(group="delays-2", index=1, size=2) as second,
    ):
        assert by_id([*first, *second]) == readings(100)


@pytest.mark.long
def test_a_superseded_reader_is_fenced_when_it_commits(new_channel: NewChannel) -> None:
    # There is no heartbeat in between.
    heartbeat = Heartbeat(interval_ms=60_000, timeout_ms=180_000)
    channel = written(new_channel(partitions=4, heartbeat=heartbeat))
    old = channel.reader(group="delays", until="now")
    old.read(10, timeout=None)
    with channel.reader(group="delays", until="now") as new:
        for use in (old.commit, lambda: old.read(1), old.close):
            with pytest.raises(Fenced):
                use()
        assert by_id(list(new)) == readings(100)
        new.commit()
    assert channel.committed("delays") == first_positions(channel)


def test_a_superseded_reader_is_fenced_while_waiting_for_records(channel: Channel) -> None:
    old = channel.reader(group="delays", until=None)
    with channel.reader(group="delays", until=None):
        with pytest.raises(Fenced, match="has to stop"):
            old.read(1, timeout=60)
        with pytest.raises(Fenced):
            old.close()
    old.close()


def test_a_commit_past_the_returned_records_is_refused(channel: Channel) -> None:
    written(channel)
    with channel.reader(group="delays", until="now") as reader:
        reader.read(10, timeout=None)
        past = {p: Position(offset=place.offset + 1) for p, place in reader.position().items()}
        with pytest.raises(CommitBeyondRead, match="nothing was committed"):
            reader.commit(past)
        with pytest.raises(OptionError, match="partition 7 is not assigned to this reader"):
            reader.commit({7: 0})
        assert reader.committed() == {}


@pytest.mark.long
def test_only_a_reset_moves_a_commit_back(channel: Channel) -> None:
    written(channel)
    with channel.reader(group="delays", until="now") as reader:
        list(reader)
        reader.commit()
        reader.seek({0: 0})
        with pytest.raises(Conflict, match="reset") as raised:
            reader.commit()
        assert raised.value.code == "goes_back"
        with pytest.raises(Conflict) as raised:
            channel.reset("delays", {0: 0}, reason="to see it again")
        assert raised.value.code == "members_open"
    channel.reset("delays", {0: 0}, reason="to see it again")
    assert channel.committed("delays") == first_positions(channel) | {0: Position(offset=0)}
    channel.reset("delays", reason="all of it")
    assert channel.committed("delays") == {}


def test_a_forced_reset_fences_commits_of_running_members(channel: Channel) -> None:
    written(channel)
    with channel.reader(group="delays", until="now") as reader:
        list(reader)
        channel.reset("delays", {0: 1}, reason="now", force=True)
        with pytest.raises(StaleGeneration):
            reader.commit()
    assert channel.committed("delays") == {0: Position(offset=1)}


def test_committed_positions_before_the_first_offset_require_a_reset(
    new_channel: NewChannel, topics: Topics
) -> None:
    channel = written(new_channel(partitions=1))
    with channel.reader(group="delays") as reader:
        reader.read(10, timeout=None)
        reader.commit()
    topics.truncate(channel.status.topic.name, 0, 50)
    with pytest.raises(OffsetOutOfRange, match=r"range is 50 to 100.*channel\.reset"):
        channel.reader(group="delays")
    channel.reset("delays", reason="the records are gone")
    with channel.reader(group="delays") as reader:
        assert list(reader) == readings(50, 50)


def test_a_group_that_is_larger_than_the_channel_grows_it(new_channel: NewChannel) -> None:
    channel = new_channel(partitions=1)
    with (
        channel.reader(group="delays", index=0, size=3) as first,
        channel.reader(group="delays", index=1, size=3) as second,
        channel.reader(group="delays", index=2, size=3) as third,
    ):
        readers = (first, second, third)
        assert [reader.partitions for reader in readers] == [(0,), (1,), (2,)]
        written(channel)
        assert by_id([record for reader in readers for record in reader]) == readings(100)
    assert channel.refresh().partitions == 3


@pytest.mark.long
def test_a_reader_reads_new_partitions_to_the_end(new_channel: NewChannel) -> None:
    channel = written(new_channel(partitions=1))
    with channel.reader(group="delays", writers=2) as reader:
        records = reader.read(100, timeout=None)
        channel.update(partitions=3)
        written(channel, 90, 100)
        records += list(reader)
        assert by_id(records) == readings(190)
        reader.commit()
        assert set(reader.committed()) == {0, 1, 2}


def test_a_pinned_channel_takes_no_larger_group(new_channel: NewChannel) -> None:
    channel = new_channel(partitions=2, pinned=True)
    with pytest.raises(Conflict) as raised:
        channel.reader(group="delays", index=0, size=3)
    assert raised.value.code == "group_larger_than_pinned"


def test_a_live_group_has_one_size(channel: Channel) -> None:
    with channel.reader(group="delays", index=1, size=2, until=None):
        with pytest.raises(Conflict) as raised:
            channel.reader(group="delays", index=1, size=3)
        assert raised.value.code == "group_size"
    with channel.reader(group="delays", index=0, size=4, until=None) as reader:
        assert reader.partitions == (0,)


def test_the_principal_closes_last(channel: Channel) -> None:
    second = channel.reader(group="delays", index=1, size=2, until=None)
    first = channel.reader(group="delays", index=0, size=2, until=None, close_timeout_s=30)
    states: list[tuple[str, str]] = []

    def leave(endpoints: tuple[Any, ...]) -> None:
        # The principal has stopped and waits.
        if any(endpoint.index == 0 and endpoint.state == "stopped" for endpoint in endpoints):
            states.extend(
                (endpoint.place, endpoint.state)
                for endpoint in endpoints
                if endpoint.role == "reader"
            )
            second.close()

    with channel.writer() as writer:
        writer.on_status(leave)
        first.close()
    assert ("delays[0]", "stopped") in states
    closed = {
        endpoint.place: endpoint.state
        for endpoint in channel.endpoints()
        if endpoint.role == "reader"
    }
    assert closed == {"delays[0]": "closed", "delays[1]": "closed"}


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"group": "g", "index": 0}, "give both or neither"),
        ({"group": "g", "index": 2, "size": 2}, "index is 2 and size is 2"),
        ({"group": "g", "index": -1, "size": 2}, "index is -1 and size is 2"),
        ({"group": "g\nh"}, "the group name"),
        ({"index": 0, "size": 1}, "give its name"),
        ({"group": "g", "mode": "both"}, "'shared' or 'broadcast'"),
        ({"group": "g", "partitions": [0]}, "exclude each other"),
        ({"group": "g", "writers": -1}, "writers is -1"),
        ({"group": "g", "close_timeout_s": -1}, "close_timeout_s is -1"),
        ({"group": "g", "timeout_s": None}, "timeout_s is None"),
        ({"on_lost_writer": "shrug"}, "on_lost_writer is 'shrug'"),
    ],
)
def test_an_invalid_place_is_refused(
    channel: Channel, wishes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        channel.reader(**wishes)


def test_a_reader_without_a_group_leaves_no_trace_and_commits_nothing(channel: Channel) -> None:
    with channel.reader(until="now") as reader:
        assert channel.endpoints() == ()
        for use in (reader.commit, reader.committed):
            with pytest.raises(OptionError, match=r"store reader\.position"):
                use()
        with pytest.raises(OptionError, match="give it a group"):
            reader.payload = {}


def test_a_reader_of_a_bare_connection_refuses_until_finished(
    channel: Channel,
) -> None:
    with pytest.raises(OptionError, match=r"'finished' for a reader opened with channel"):
        ChannelReader(channel.connection("read"), until="finished")
