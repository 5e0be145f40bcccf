"""Commits for a group without joining it: responses that are lost, and other consumers."""

import signal
from collections.abc import Callable, Iterator

import pytest

from faults import at_call, failing_call
from relay import Relay
from sluiceway import Channel
from sluiceway.api.channels import Control
from sluiceway.api.endpoints import EndpointCalls, Position
from sluiceway.api.transport import Transport
from sluiceway.endpoint.committer import OffsetCommitter
from sluiceway.errors import (
    CommitBeyondRead,
    Conflict,
    GatewayError,
    GatewayUnavailable,
    OptionError,
)
from waiting import until


@pytest.fixture
def channel(new_channel: Callable[..., Channel]) -> Channel:
    return new_channel(partitions=2)


@pytest.fixture
def calls(relay: Relay) -> Iterator[EndpointCalls]:
    control = Control(Transport(relay.url, timeout_s=5), grace_s=5)
    yield control.endpoints
    control.close()


def committer_of(channel: Channel, calls: EndpointCalls) -> OffsetCommitter:
    """Return a committer of a consumer that has read 8 messages of partition 0."""
    topic_id = channel.connection("read").topic_id
    committer = OffsetCommitter(channel.name, "g", uid=channel.uid, topic_id=topic_id, calls=calls)
    committer.track_consumed({0: Position(offset=8)})
    return committer


@pytest.mark.long
def test_a_commit_without_an_answer_is_resolved_by_the_next_one(
    channel: Channel, calls: EndpointCalls, relay: Relay
) -> None:
    committer = committer_of(channel, calls)
    committer.fetch()
    relay.closes_at_response = True
    with pytest.raises(GatewayUnavailable):
        committer.commit({0: 3})
    until(lambda: channel.committed("g"))
    relay.closes_at_response = False
    committer.commit({0: 8})
    assert channel.committed("g")[0].offset == 8


def test_a_commit_with_the_error_of_a_fault_is_resolved_by_the_next_one(
    channel: Channel, calls: EndpointCalls
) -> None:
    committer = committer_of(channel, calls)
    fault = GatewayError("after the commit", status=500, code="internal_error")
    with failing_call(EndpointCalls, "commit", fault, arrives=True):
        committer.commit({0: 3})
    committer.commit({0: 8})
    assert channel.committed("g")[0].offset == 8


def test_an_interrupted_commit_is_resolved_by_the_next_one(
    channel: Channel, calls: EndpointCalls
) -> None:
    committer = committer_of(channel, calls)
    with failing_call(EndpointCalls, "commit", KeyboardInterrupt(), arrives=True):
        committer.commit({0: 3})
    committer.commit({0: 8})
    assert channel.committed("g")[0].offset == 8


def test_a_signal_handler_that_interrupts_a_commit_cannot_commit(
    channel: Channel, calls: EndpointCalls
) -> None:
    committer = committer_of(channel, calls)
    refused: list[OptionError] = []

    def handle(*_: object) -> None:
        for work in (lambda: committer.commit({0: 8}), committer.fetch, committer.last_committed):
            with pytest.raises(OptionError, match="Set a flag in the handler") as raised:
                work()
            refused.append(raised.value)

    def send_signal(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with at_call(EndpointCalls, "commit", send_signal):
            committer.commit({0: 3})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 3
    committer.commit({0: 8})
    assert channel.committed("g")[0].offset == 8


def test_a_position_that_another_consumer_has_moved_is_not_overwritten(
    channel: Channel, calls: EndpointCalls
) -> None:
    first, second = committer_of(channel, calls), committer_of(channel, calls)
    first.fetch()
    second.commit({0: 3})
    # The second time as well: a refused commit has stored nothing.
    for offset in (5, 8):
        with pytest.raises(Conflict) as raised:
            first.commit({0: offset})
        assert raised.value.code == "position_moved"
    assert first.fetch()[0].offset == 3
    first.commit({0: 8})
    assert channel.committed("g")[0].offset == 8


def test_positions_past_the_returned_records_and_of_other_partitions_are_refused(
    channel: Channel, calls: EndpointCalls
) -> None:
    committer = committer_of(channel, calls)
    with pytest.raises(CommitBeyondRead, match=r"offset 9 is past .* end at offset 8; nothing"):
        committer.commit({0: 9})
    with pytest.raises(OptionError, match="partition 1 is not assigned"):
        committer.commit({0: 8, 1: 0})
    assert channel.committed("g") == {}
