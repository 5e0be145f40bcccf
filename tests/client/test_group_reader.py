"""Dynamic groups: assignment, release and commits as members join and leave."""

import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import httpx
import pytest

from faults import at_call, failing_call, lose
from relay import Relay
from sluiceway import Channel, ChannelReader, Gateway, Heartbeat
from sluiceway.api.endpoints import EndpointCalls
from sluiceway.errors import (
    Conflict,
    EndpointClosed,
    Fenced,
    KafkaUnavailable,
    OptionError,
    SluicewayError,
    StaleGeneration,
)
from sluiceway.kafka.consumer import MessageStream
from topics import readings
from waiting import until

NewChannel = Callable[..., Channel]


def by_id(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(records, key=lambda record: record["id"])


def write(channel: Channel, count: int, first: int = 0) -> None:
    with channel.writer(batch_records=10) as writer:
        writer.write(readings(count, first))


def read_until(
    reader: ChannelReader, holds: Callable[[], object], seconds: float = 120
) -> list[dict[str, Any]]:
    """Read one record at a time until a condition is true."""
    deadline_s = time.monotonic() + seconds
    records: list[dict[str, Any]] = []
    while not holds():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        records += reader.read(1, timeout=0.05)
    return records


@pytest.fixture
def channel(new_channel: NewChannel) -> Channel:
    return new_channel(partitions=4)


@pytest.mark.long
@pytest.mark.usefixtures("each_stream")
def test_a_joining_member_gets_partitions_and_nothing_is_read_twice(
    new_channel: NewChannel, each_format: str
) -> None:
    channel = new_channel(partitions=4, format=each_format)
    write(channel, 2000)
    revoked: list[tuple[int, ...]] = []

    def revoke(partitions: tuple[int, ...]) -> None:
        revoked.append(partitions)
        first.commit()

    with channel.reader(group="d", dynamic=True, on_revoke=revoke) as first:
        records = first.read(137, timeout=None)
        assert first.partitions == (0, 1, 2, 3)
        with channel.reader(group="d", dynamic=True) as second:
            assert second.partitions == ()
            records += read_until(first, lambda: len(first.partitions) == 2)
            assert (first.partitions, revoked) == ((0, 2), [(1, 3)])
            records += list(second)
            assert second.partitions == (1, 3)
            second.commit()
        records += list(first)
    assert by_id(records) == readings(2000)
    # Closing releases all its partitions.
    assert revoked[1:] == [first.partitions]
    ends = channel.committed("d")
    with channel.reader(group="d", dynamic=True, writers=0) as again:
        assert list(again) == []
        assert again.position() == ends


def test_partitions_of_a_leaving_member_continue_at_its_commits(channel: Channel) -> None:
    got: list[tuple[int, ...]] = []
    with (
        channel.writer() as writer,
        channel.reader(group="d", dynamic=True, until=None, on_assign=got.append) as first,
    ):
        second = channel.reader(group="d", dynamic=True, until=None)
        read_until(first, lambda: first.partitions == (0, 2))
        read_until(second, lambda: second.partitions == (1, 3))
        assert got == [(0, 1, 2, 3)]
        writer.write(readings(100))
        writer.flush()
        records = second.read(20, timeout=None)
        second.commit()
        second.close()
        records += read_until(first, lambda: first.partitions == (0, 1, 2, 3))
        assert got == [(0, 1, 2, 3), (1, 3)]
        while len(records) < 100:
            records += first.read(100 - len(records), timeout=None)
        assert by_id(records) == readings(100)
        assert set(first.lag().values()) == {0}


def test_a_member_that_could_not_take_its_partitions_has_not_finished(channel: Channel) -> None:
    write(channel, 100)
    with channel.reader(group="d", dynamic=True) as first:
        second = channel.reader(group="d", dynamic=True)
        records = read_until(first, lambda: first.partitions == (0, 2))
        records += first
        second.close()
        until(lambda: first.rebalance_due)
        unavailable = KafkaUnavailable("the brokers elect leaders")
        with failing_call(MessageStream, "offsets", unavailable, arrives=False):
            first.read(1, timeout=None)
        assert not first.finished
        records += first
        assert first.finished
    # Records that it returned before it lost their partitions are returned again.
    assert {record["id"] for record in records} == set(range(100))


def test_a_heartbeat_during_a_rebalance_does_not_end_a_read_without_records(
    channel: Channel,
) -> None:
    with (
        channel.reader(group="d", dynamic=True, until=None),
        channel.reader(group="d", dynamic=True, until=None) as waiting,
    ):
        until(lambda: waiting.rebalance_due)

        def await_heartbeat(*_: object, **__: object) -> None:
            until(lambda: waiting.rebalance_due)

        with at_call(EndpointCalls, "sync", await_heartbeat, arrives=True):
            assert not waiting.read_at_hand([], 1)


def test_a_reader_that_is_closed_when_it_gets_partitions_gets_no_others(
    new_channel: NewChannel,
) -> None:
    assigned: list[tuple[int, ...]] = []

    def leave(partitions: tuple[int, ...]) -> None:
        assigned.append(partitions)
        reader.close()

    reader = new_channel(partitions=2).reader(group="d", dynamic=True, on_assign=leave)
    with pytest.raises(EndpointClosed):
        reader.read(1, timeout=None)
    assert assigned == [(0, 1)]


@pytest.mark.long
def test_a_silent_member_is_replaced(new_channel: NewChannel, gateway_url: str) -> None:
    channel = new_channel(partitions=2)
    with (
        closing(Relay(httpx.URL(gateway_url).port or 0)) as relay,
        Gateway(relay.url, timeout_s=5) as elsewhere,
    ):
        silent = elsewhere.channel(channel.name).reader(group="d", dynamic=True, until=None)
        assert silent.partitions == (0, 1)
        with channel.reader(group="d", dynamic=True, until=None) as reader:
            assert reader.partitions == ()
            assert silent.endpoint_id is not None
            relay.cut()
            lose(channel, silent.endpoint_id)
            read_until(reader, lambda: reader.partitions == (0, 1))
        with suppress(SluicewayError):
            silent.close()


def test_a_member_that_does_not_release_partitions_is_awaited_then_starts_over(
    new_channel: NewChannel,
) -> None:
    # The timeout of heartbeats is also that of rebalances.
    channel = new_channel(partitions=4, heartbeat=Heartbeat(interval_ms=200, timeout_ms=5_000))
    write(channel, 400)
    revoked: list[tuple[int, ...]] = []
    with channel.reader(group="d", dynamic=True, on_revoke=revoked.append) as slow:
        # Before the other joins, because a member that is reading releases at once.
        slow.read(50, timeout=None)
        with channel.reader(group="d", dynamic=True) as other:
            others = read_until(other, lambda: other.partitions == (1, 3))
            with pytest.raises(StaleGeneration, match="not released in time"):
                slow.commit()
            assert slow.committed() == {}
            # Its uncommitted records are read again by the current holders.
            again = list(slow)
            assert revoked == [(0, 1, 2, 3)]
            assert by_id(again + others + list(other)) == readings(400)
            slow.commit()


@pytest.mark.long
def test_members_beyond_the_partition_count_are_idle_and_end(new_channel: NewChannel) -> None:
    channel = new_channel(partitions=1)
    write(channel, 10)
    with (
        channel.reader(group="d", dynamic=True) as first,
        channel.reader(group="d", dynamic=True) as second,
    ):
        assert list(second) == []
        assert second.finished
        assert list(first) == readings(10)
    assert channel.refresh().partitions == 1


@pytest.mark.usefixtures("each_stream")
def test_new_partitions_are_assigned(new_channel: NewChannel) -> None:
    channel = new_channel(partitions=1)
    write(channel, 10)
    with channel.reader(group="d", dynamic=True, writers=2) as reader:
        records = reader.read(10, timeout=None)
        channel.update(partitions=3)
        write(channel, 90, 10)
        records += list(reader)
        assert reader.partitions == (0, 1, 2)
    assert by_id(records) == readings(100)


@pytest.mark.long
def test_reassigned_partitions_lose_nothing_with_start_latest(
    channel: Channel,
) -> None:
    write(channel, 40)
    options: dict[str, Any] = {"group": "d", "dynamic": True, "start": "latest", "until": None}
    with channel.reader(**options) as first, channel.reader(**options) as second:
        # The second member started at this time, and gets its partitions later.
        write(channel, 40, 40)
        read_until(first, lambda: first.partitions == (0, 2))
        records = second.read(1, timeout=30)
        while len(records) < 20:
            records += second.read(20 - len(records), timeout=None)
        assert second.read(1, timeout=0.3) == []
        assert all(record["id"] >= 40 for record in records)


@pytest.mark.long
def test_an_exception_of_a_rebalance_callback_is_raised_and_the_reader_continues(
    channel: Channel,
) -> None:
    write(channel, 100)
    calls: list[tuple[int, ...]] = []

    def revoke(partitions: tuple[int, ...]) -> None:
        calls.append(partitions)
        if len(calls) == 1:
            raise ZeroDivisionError

    with (
        channel.reader(group="d", dynamic=True, on_revoke=revoke) as first,
        channel.reader(group="d", dynamic=True) as second,
    ):
        with pytest.raises(ZeroDivisionError):
            read_until(first, lambda: False)
        read_until(first, lambda: first.partitions == (0, 2))
        assert calls == [(1, 3)]
        assert list(second)


def test_partitions_that_a_member_keeps_after_on_revoke_are_assigned_and_revoked_again(
    channel: Channel,
) -> None:
    calls: list[tuple[str, tuple[int, ...]]] = []

    def revoke(partitions: tuple[int, ...]) -> None:
        calls.append(("revoke", partitions))
        if len(calls) == 2:
            raise ZeroDivisionError

    def assign(partitions: tuple[int, ...]) -> None:
        calls.append(("assign", partitions))

    options: dict[str, Any] = {"group": "d", "dynamic": True, "until": None}
    with channel.reader(**options, on_assign=assign, on_revoke=revoke) as first:
        first.read(1, timeout=0)
        with channel.reader(**options), pytest.raises(ZeroDivisionError):
            read_until(first, lambda: False)
        read_until(first, lambda: len(calls) == 3)
        assert first.partitions == (0, 1, 2, 3)
    assert calls == [
        ("assign", (0, 1, 2, 3)),
        ("revoke", (1, 3)),
        ("assign", (1, 3)),
        ("revoke", (0, 1, 2, 3)),
    ]


@pytest.mark.long
def test_a_read_that_waits_is_one_cycle(channel: Channel) -> None:
    with channel.reader(group="d", dynamic=True, until=None) as reader:
        # Longer than the intervals in which a member looks for rebalances.
        assert reader.read(1, timeout=0.6) == []
        # A second cycle would have begun the averages.
        assert reader.handle.metrics.averages() == {}


@pytest.mark.long
def test_a_group_is_resized_while_it_runs(channel: Channel) -> None:
    write(channel, 100)
    old = [channel.reader(group="g", index=index, size=2) for index in range(2)]
    records = old[0].read(10, timeout=None)
    old[0].commit()
    for reader in old:
        # Uncommitted records, which others will read again.
        reader.read(1, timeout=None)
    channel.resize("g", 3)
    for reader in old:
        with pytest.raises(Fenced):
            reader.commit()
    new = [channel.reader(group="g", index=index, size=3) for index in range(3)]
    assert [reader.partitions for reader in new] == [(0, 3), (1,), (2,)]
    records += [record for reader in new for record in reader]
    assert by_id(records) == readings(100)
    for reader in reversed(new):
        reader.close()
    channel.resize("g", 3)
    with channel.reader(group="d", dynamic=True, until=None), pytest.raises(Conflict) as raised:
        channel.resize("d", 2)
    assert raised.value.code == "group_size"


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"dynamic": True}, "has only the group's name"),
        ({"dynamic": True, "group": "d", "index": 0, "size": 2}, "omit index, size"),
        ({"dynamic": True, "group": "d", "mode": "broadcast"}, "omit index, size"),
        ({"dynamic": True, "group": "d\ne"}, "the group name"),
        ({"dynamic": True, "group": "d", "partitions": [0]}, "exclude each other"),
        ({"dynamic": True, "group": "d", "start": {7: 0}}, "names 7"),
        ({"group": "d", "on_revoke": print}, "need a dynamic group"),
        ({"on_assign": print}, "need a dynamic group"),
    ],
    ids=str,
)
def test_invalid_member_options_are_refused(
    channel: Channel, wishes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        channel.reader(**wishes)
