"""Groups and offsets by pykafka's Broker: join, sync, heartbeat, leave, commit."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from broker_calls import broker_at, commit, encode, fetch, fetch_committed, produce_values
from faults import lose
from relay import Relay
from sluiceway import Channel, Gateway
from sluiceway.broker import Broker, PartitionOffsetCommitRequest, PartitionOffsetFetchRequest
from sluiceway.broker.exceptions import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    OffsetMetadataTooLarge,
    OffsetOutOfRangeError,
    RebalanceInProgress,
    SocketDisconnectedError,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from sluiceway.errors import OptionError

NewChannel = Callable[..., Channel]
REBALANCE = RebalanceInProgress.ERROR_CODE


class Member:
    """A member of a group, as pykafka's balanced consumer."""

    def __init__(self, broker: Broker, channel: Channel, group: bytes = b"g") -> None:
        self.broker, self.channel, self.group = broker, channel, group
        self.id, self.generation = b"", -1

    def join(self) -> Any:
        reported = self.broker.join_group(
            "connection", self.group, self.id, self.channel.name.encode(), None
        )
        if not reported.error_code:
            self.id, self.generation = reported.member_id, reported.generation_id
        return reported

    def sync(self, *assignment: Any) -> list[int]:
        reported = self.broker.sync_group(
            "connection", self.group, self.generation, self.id, assignment
        ).check()
        ((topic, partitions),) = reported.member_assignment.partition_assignment
        assert topic == self.channel.name.encode()
        return list(partitions)

    def beat(self) -> int:
        return self.broker.heartbeat("c", self.group, self.generation, self.id).error_code

    def commit(self, partition: int, offset: int) -> Any:
        return commit(
            self.broker,
            self.channel,
            self.group,
            offset,
            partition=partition,
            generation=self.generation,
            member=self.id,
        )


@pytest.fixture
def channel(new_channel: NewChannel) -> Channel:
    return new_channel(partitions=4)


def joined(broker: Broker, channel: Channel) -> tuple[Member, list[int]]:
    member = Member(broker, channel)
    assert member.join().error_code == 0
    return member, member.sync()


def test_the_first_member_leads_and_has_all_partitions(broker: Broker, channel: Channel) -> None:
    protocol = SimpleNamespace(protocol_name=b"range", metadata="mine")
    reported = broker.join_group("c", b"g", b"", channel.name.encode(), protocol)
    assert reported.error_code == 0
    assert reported.leader_id == reported.member_id
    # pykafka's own name, which its members call.
    assert [broker._get_unique_req_handler(id_) for id_ in "cd"] == [broker.handler] * 2
    assert (reported.group_protocol, reported.members) == (b"range", {reported.member_id: "mine"})
    response = broker.sync_group("c", b"g", reported.generation_id, reported.member_id, [])
    assert response.error_code == 0
    assert response.member_assignment.partition_assignment == [
        (channel.name.encode(), [0, 1, 2, 3])
    ]
    assert broker.heartbeat("c", b"g", reported.generation_id, reported.member_id).error_code == 0
    assert broker.leave_group("c", b"g", reported.member_id).error_code == 0
    assert channel.endpoints()[0].state == "closed"


def test_members_share_partitions_and_release_them_when_they_rejoin(
    broker: Broker, channel: Channel
) -> None:
    first, partitions = joined(broker, channel)
    assert partitions == [0, 1, 2, 3]
    second = Member(broker, channel)
    reported = second.join()
    assert (reported.leader_id, reported.members) == (first.id, {})
    # No partition is free before the first member rejoins, which its next heartbeat requests.
    assert second.sync() == []
    assert second.beat() == 0
    assert first.beat() == REBALANCE
    assert set(first.join().members) == {first.id, second.id}
    # The gateway ignores the leader's assignment.
    assert first.sync((second.id, "all of it")) == [0, 2]
    assert second.beat() == REBALANCE
    second.join()
    assert second.sync() == [1, 3]
    assert (first.beat(), second.beat()) == (0, 0)
    broker.leave_group("c", b"g", first.id).check()
    assert second.beat() == REBALANCE
    second.join()
    assert second.sync() == [0, 1, 2, 3]


@pytest.mark.long
def test_members_share_added_partitions_when_their_heartbeats_let_them_rejoin(
    broker: Broker, channel: Channel
) -> None:
    member, partitions = joined(broker, channel)
    assert partitions == [0, 1, 2, 3]
    channel.update(partitions=6)
    assert member.beat() == REBALANCE
    member.join()
    assert member.sync() == [0, 1, 2, 3, 4, 5]
    assert member.beat() == 0


def test_a_join_that_fails_after_attaching_leaves_no_member(
    gateway_url: str, broker: Broker, channel: Channel
) -> None:
    with (
        closing(Relay(int(gateway_url.rpartition(":")[2]))) as relay,
        broker_at(relay.url, socket_timeout_ms=2_000) as cut_off,
    ):
        relay.drop_at(b"/sync", forward=False)
        with pytest.raises(SocketDisconnectedError):
            Member(cut_off, channel).join()
        assert [endpoint.state for endpoint in channel.endpoints()] == ["closed"]
    _, partitions = joined(broker, channel)
    assert partitions == [0, 1, 2, 3]


@pytest.mark.long
def test_a_member_without_heartbeats_loses_its_partitions(
    broker: Broker, new_channel: NewChannel
) -> None:
    channel = new_channel(partitions=2)
    silent, _ = joined(broker, channel)
    other = Member(broker, channel)
    other.join()
    partitions: list[int] = other.sync()
    lose(channel, silent.id.decode(), meanwhile=other.beat)
    while partitions != [0, 1]:
        if other.beat():
            other.join()
            partitions = other.sync()
    assert silent.commit(0, 0).err in (UnknownMemberId.ERROR_CODE, IllegalGeneration.ERROR_CODE)


def test_a_member_commits_in_its_generation(broker: Broker, channel: Channel) -> None:
    produce_values(broker, channel, encode(channel, 10), 1)
    member, _ = joined(broker, channel)
    assert fetch_committed(broker, channel, b"g", 1).offset == -1
    fetch(broker, channel, partition=1)
    assert member.commit(1, 7).err == 0
    reported = fetch_committed(broker, channel, b"g", 1)
    assert (reported.offset, reported.metadata, reported.err) == (7, b"", 0)
    assert channel.committed("g")[1].offset == 7
    member.generation -= 1
    assert member.commit(1, 8).err == IllegalGeneration.ERROR_CODE
    member.generation += 1
    assert member.commit(1, 8).err == 0


def test_commits_store_metadata_with_the_offset(broker: Broker, channel: Channel) -> None:
    produce_values(broker, channel, encode(channel, 3))
    fetch(broker, channel)
    member, _ = joined(broker, channel)
    topic = channel.name.encode()

    def committed_with(group: bytes, offset: int, metadata: Any) -> Any:
        generation, id_ = (member.generation, member.id) if group == b"g" else (-1, b"")
        requests = [PartitionOffsetCommitRequest(topic, 0, offset, 0, metadata)]
        response = broker.commit_consumer_group_offsets(group, generation, id_, requests)
        return response.topics[topic][0].err

    for group in (b"g", b"alone"):
        for metadata in (b"first", "größer", b""):
            assert committed_with(group, 2, metadata) == 0
            expected = metadata.encode() if isinstance(metadata, str) else metadata
            assert tuple(fetch_committed(broker, channel, group)) == (2, expected, 0)
        assert committed_with(group, 3, b"x" * 4097) == OffsetMetadataTooLarge.ERROR_CODE
        for wrong in (b"\xff", b"a\0b", 5):
            with pytest.raises(OptionError, match="it takes"):
                committed_with(group, 3, wrong)
        assert fetch_committed(broker, channel, group).offset == 2


@pytest.mark.long
def test_a_commit_of_revoked_partitions_is_refused(broker: Broker, channel: Channel) -> None:
    produce_values(broker, channel, encode(channel, 3), 1)
    fetch(broker, channel, partition=1)
    first, _ = joined(broker, channel)
    Member(broker, channel).join()
    before = first.generation
    first.join()
    # Until it syncs, it has its old partitions, and commits them in the old generation.
    assert first.commit(1, 1).err == REBALANCE
    after, first.generation = first.generation, before
    assert first.commit(1, 1).err == 0
    first.generation = after
    assert first.sync() == [0, 2]
    assert first.commit(1, 2).err == IllegalGeneration.ERROR_CODE
    first.generation = before
    assert first.commit(0, 0).err == IllegalGeneration.ERROR_CODE


@pytest.mark.long
def test_commits_past_fetched_offsets_or_backwards_are_refused(
    broker: Broker, channel: Channel
) -> None:
    produce_values(broker, channel, encode(channel, 10))
    member, _ = joined(broker, channel)
    beyond = OffsetOutOfRangeError.ERROR_CODE
    assert member.commit(0, 1).err == beyond
    size = len(encode(channel, 1)[0])
    last = fetch(broker, channel, max_bytes=4 * size).messages[-1].offset
    reported = member.commit(0, last + 2)
    assert reported.err == beyond
    assert f"which end at {last + 1}" in reported.reason
    assert member.commit(0, last + 1).err == 0
    assert member.commit(0, 1).err == beyond
    assert fetch_committed(broker, channel, b"g").offset == last + 1
    # A fetch from an offset allows commits up to that offset.
    fetch(broker, channel, 10, timeout=0)
    assert member.commit(0, 10).err == 0


def test_valid_partitions_are_committed_beside_refused_ones(
    broker: Broker, channel: Channel
) -> None:
    produce_values(broker, channel, encode(channel, 2))
    fetch(broker, channel)
    member, _ = joined(broker, channel)
    places = [(0, 2), (1, 5), (9, 0)]
    requests = [PartitionOffsetCommitRequest(channel.name, p, at, 0, b"") for p, at in places]
    requests.append(PartitionOffsetCommitRequest("no-such-channel", 0, 0, 0, b""))
    response = broker.commit_consumer_group_offsets(b"g", member.generation, member.id, requests)
    assert {p: reported.err for p, reported in response.topics[channel.name].items()} == {
        0: 0,
        1: OffsetOutOfRangeError.ERROR_CODE,
        9: UnknownTopicOrPartition.ERROR_CODE,
    }
    unknown = UnknownTopicOrPartition.ERROR_CODE
    assert response.topics[b"no-such-channel"][0].err == unknown
    assert fetch_committed(broker, channel, b"g").offset == 2
    nowhere = PartitionOffsetFetchRequest(channel.name, 9)
    reported = broker.fetch_consumer_group_offsets(b"g", [nowhere]).topics[channel.name][9]
    assert (reported.offset, reported.err) == (-1, unknown)


def test_every_call_refuses_an_unknown_member(broker: Broker, channel: Channel) -> None:
    member, _ = joined(broker, channel)
    broker.leave_group("c", b"g", member.id).check()
    unknown = UnknownMemberId.ERROR_CODE
    for id_ in (member.id, b"nobody"):
        member.id = id_
        assert member.join().error_code == unknown
        assert member.beat() == unknown
        with pytest.raises(UnknownMemberId):
            member.sync()
        reported = broker.leave_group("c", b"g", id_)
        assert reported.error_code == unknown
        assert "Join with an empty id" in reported.reason
        assert member.commit(0, 0).err == unknown


def test_a_dismissed_member_is_unknown(broker: Broker, channel: Channel) -> None:
    member, _ = joined(broker, channel)
    channel.dismiss(member.id.decode())
    assert member.commit(0, 0).err == UnknownMemberId.ERROR_CODE
    assert member.beat() == UnknownMemberId.ERROR_CODE


@pytest.mark.long
def test_a_member_rejoins_after_a_reset(broker: Broker, channel: Channel) -> None:
    produce_values(broker, channel, encode(channel, 4))
    fetch(broker, channel)
    member, _ = joined(broker, channel)
    assert member.commit(0, 3).err == 0
    channel.reset("g", {0: 1}, reason="again", force=True)
    assert member.commit(0, 4).err == IllegalGeneration.ERROR_CODE
    assert member.beat() == REBALANCE
    member.join()
    assert member.sync() == [0, 1, 2, 3]
    assert fetch_committed(broker, channel, b"g").offset == 1
    assert member.commit(0, 2).err == 0


def test_an_unknown_generation_is_illegal(broker: Broker, channel: Channel) -> None:
    member, _ = joined(broker, channel)
    member.generation += 5
    assert member.beat() == IllegalGeneration.ERROR_CODE
    with pytest.raises(IllegalGeneration):
        member.sync()


def test_a_group_has_one_channel_and_one_kind_of_members(
    broker: Broker, channel: Channel, new_channel: NewChannel
) -> None:
    member, _ = joined(broker, channel)
    reported = broker.join_group("c", b"g", member.id, new_channel().name)
    assert reported.error_code == InconsistentGroupProtocol.ERROR_CODE
    with channel.reader(group="fixed", until=None):
        reported = broker.join_group("c", b"fixed", b"", channel.name)
        assert reported.error_code == InconsistentGroupProtocol.ERROR_CODE
    reported = broker.join_group("c", b"g", b"", b"no-such-channel")
    assert reported.error_code == UnknownTopicOrPartition.ERROR_CODE


@pytest.mark.long
def test_commits_without_membership_follow_a_recreated_channel(
    broker: Broker, channel: Channel, gateway_url: str
) -> None:
    produce_values(broker, channel, encode(channel, 3))
    fetch(broker, channel)
    assert commit(broker, channel, b"g", 3).err == 0
    channel.delete(force=True)
    with Gateway(gateway_url) as gateway:
        anew = gateway.channel(channel.name, channel.schema)
        fetch(broker, anew)
        produce_values(broker, anew, encode(anew, 2))
        assert len(fetch(broker, anew).messages) == 2
        # The first commit detects the new channel.
        assert commit(broker, anew, b"g", 2).err
        assert commit(broker, anew, b"g", 2).err == 0
        assert fetch_committed(broker, anew, b"g").offset == 2


@pytest.mark.long
def test_commits_without_membership_need_a_group_without_members(
    broker: Broker, channel: Channel
) -> None:
    produce_values(broker, channel, encode(channel, 5))
    fetch(broker, channel)
    assert commit(broker, channel, b"alone", 2).err == 0
    assert commit(broker, channel, b"alone", 3).err == 0
    assert fetch_committed(broker, channel, b"alone").offset == 3
    assert commit(broker, channel, b"alone", 1).err == OffsetOutOfRangeError.ERROR_CODE
    assert commit(broker, channel, b"alone", 6).err == OffsetOutOfRangeError.ERROR_CODE
    member = Member(broker, channel, b"alone")
    member.join()
    reported = commit(broker, channel, b"alone", 4)
    assert reported.err == UnknownMemberId.ERROR_CODE
    assert "only they commit" in reported.reason
    assert commit(broker, channel, b"alone", 4, generation=3).err == UnknownMemberId.ERROR_CODE
    broker.leave_group("c", b"alone", member.id)
    assert commit(broker, channel, b"alone", 4).err == 0


@pytest.mark.long
def test_a_commit_without_membership_does_not_overtake_a_member(
    broker: Broker, channel: Channel
) -> None:
    produce_values(broker, channel, encode(channel, 5))
    fetch(broker, channel)
    assert commit(broker, channel, b"alone", 2).err == 0
    with channel.reader(group="alone", until="now") as reader:
        assert reader.read(1, timeout=None)[0]["id"] == 2
        reader.commit()
    for _ in range(2):
        assert commit(broker, channel, b"alone", 4).err == IllegalGeneration.ERROR_CODE
    # After fetching the committed offset, commits continue from there.
    assert fetch_committed(broker, channel, b"alone").offset == 3
    assert commit(broker, channel, b"alone", 4).err == 0


@pytest.mark.long
def test_a_commit_without_membership_does_not_undo_a_reset(
    broker: Broker, channel: Channel
) -> None:
    produce_values(broker, channel, encode(channel, 5))
    fetch(broker, channel)
    assert commit(broker, channel, b"alone", 4).err == 0
    channel.reset("alone", {0: 1}, reason="again")
    for _ in range(2):
        assert commit(broker, channel, b"alone", 5).err == IllegalGeneration.ERROR_CODE
    assert fetch_committed(broker, channel, b"alone").offset == 1


def test_members_are_listed_as_the_channels_readers(broker: Broker, channel: Channel) -> None:
    member, _ = joined(broker, channel)
    produce_values(broker, channel, encode(channel, 5))
    fetch(broker, channel)
    member.beat()
    (reader,) = [endpoint for endpoint in channel.endpoints() if endpoint.role == "reader"]
    assert (reader.id, reader.group, reader.state) == (member.id.decode(), "g", "started")


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda b: b.join_group("c", 7, b"", "a"), "name of a group"),
        (lambda b: b.join_group("c", b"g", None, "a"), "name of a member"),
        (lambda b: b.sync_group("c", b"g", "1", b"m", []), "generation is '1'"),
        (lambda b: b.heartbeat("c", b"g", None, b"m"), "generation is None"),
        (lambda b: b.commit_consumer_group_offsets(b"g", "1", b"m", []), "generation is '1'"),
    ],
)
def test_invalid_arguments_of_group_calls_raise(
    broker: Broker, ask: Callable[[Broker], object], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        ask(broker)


@pytest.mark.long
def test_threads_of_one_process_commit_without_conflicts(
    gateway_url: str, new_channel: NewChannel
) -> None:
    channel = new_channel(partitions=4)
    with broker_at(gateway_url) as broker, ThreadPoolExecutor(4) as threads:
        for partition in range(4):
            produce_values(broker, channel, encode(channel, 10), partition)
            fetch(broker, channel, partition=partition)

        def work(partition: int) -> set[int]:
            reported = [
                commit(broker, channel, b"t", at, partition=partition) for at in range(1, 11)
            ]
            return {response.err for response in reported}

        assert list(threads.map(work, range(4))) == [{0}] * 4
        assert [fetch_committed(broker, channel, b"t", p).offset for p in range(4)] == [10] * 4


@pytest.mark.long
def test_a_lost_answer_to_a_commit_without_membership_is_resolved_by_the_next(
    gateway_url: str, new_channel: NewChannel, broker: Broker
) -> None:
    channel = new_channel()
    with (
        closing(Relay(int(gateway_url.rpartition(":")[2]))) as relay,
        broker_at(relay.url, offsets_channel_socket_timeout_ms=2_000) as cut_off,
    ):
        produce_values(broker, channel, encode(channel, 10))
        fetch(broker, channel)
        assert commit(cut_off, channel, b"d", 2).err == 0
        relay.closes_at_response = True
        with pytest.raises(SocketDisconnectedError):
            commit(cut_off, channel, b"d", 5)
        relay.closes_at_response = False
        assert commit(cut_off, channel, b"d", 9).err == 0
        assert fetch_committed(broker, channel, b"d").offset == 9


@pytest.mark.parametrize("beats", [True, False], ids=["heartbeat first", "join first"])
def test_a_member_past_its_heartbeat_timeout_rejoins_with_its_id(
    broker: Broker, new_channel: NewChannel, beats: bool
) -> None:
    channel = new_channel(partitions=2)
    produce_values(broker, channel, encode(channel, 5))
    member, partitions = joined(broker, channel)
    assert partitions == [0, 1]
    fetch(broker, channel)
    lose(channel, member.id.decode())
    assert member.commit(0, 5).err == IllegalGeneration.ERROR_CODE
    if beats:
        assert member.beat() == REBALANCE
    id_ = member.id
    assert (member.join().error_code, member.id) == (0, id_)
    assert member.beat() == 0
    assert member.commit(0, 5).err == REBALANCE
    assert member.sync() == [0, 1]
    assert member.commit(0, 5).err == 0
