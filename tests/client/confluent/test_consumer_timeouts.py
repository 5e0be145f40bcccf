"""Timeouts of sluiceway.confluent.Consumer while the gateway does not answer."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from confluent_facade import Facade, KafkaError, at, error_code_of, poll_messages, poll_until
from relay import Relay
from sluiceway.confluent import Consumer, members
from waiting import until

EARLIEST = {"auto.offset.reset": "earliest"}
SLACK_S = 15
"""What a loaded machine may add to a timeout; without it, calls wait for 30 s and longer."""


@pytest.fixture
def name(site: Facade) -> str:
    return site.channel(filled=10)


def seconds(call: Callable[[], object]) -> float:
    began_s = time.monotonic()
    call()
    return time.monotonic() - began_s


def test_polls_keep_their_timeout_and_join_when_the_gateway_answers(
    site: Facade, name: str, relay: Relay
) -> None:
    with site.consumer(**EARLIEST, **{"bootstrap.servers": relay.url}) as reader:
        with relay.stalled():
            reader.subscribe([name])
            assert seconds(lambda: reader.poll(0)) < SLACK_S
            assert seconds(lambda: reader.poll(0.3)) < 0.3 + SLACK_S
            assert seconds(lambda: reader.consume(10, 0.3)) < 0.3 + SLACK_S
            assert seconds(reader.assignment) < SLACK_S
            assert seconds(lambda: reader.position([at(name)])) < SLACK_S
        assert len(poll_messages(reader, 20)) == 20


def test_assign_gives_up_on_a_silent_gateway(
    site: Facade, name: str, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in confluent-kafka, `assign` has no timeout of its caller's; ours is 10 s.
    monkeypatch.setattr(members, "_ASSIGN_TIMEOUT_S", 0.5)
    with site.consumer(**EARLIEST, **{"bootstrap.servers": relay.url}) as reader:
        with relay.stalled():
            began_s = time.monotonic()
            assert error_code_of(reader.assign, [at(name)]) == KafkaError._TRANSPORT
            assert time.monotonic() - began_s < 0.5 + SLACK_S
        reader.assign([at(name)])
        assert len(poll_messages(reader, 10)) == 10


def test_requests_keep_their_timeout(site: Facade, name: str, relay: Relay) -> None:
    with site.consumer(**{"bootstrap.servers": relay.url}) as reader, relay.stalled():
        calls: list[Callable[[], Any]] = [
            lambda: reader.committed([at(name)], timeout=0.5),
            lambda: reader.committed([at(name), at(f"{name}-other")], timeout=0.5),
            lambda: reader.get_watermark_offsets(at(name), timeout=0.5),
            lambda: reader.offsets_for_times([at(name, 0, 0)], timeout=0.5),
        ]
        for call in calls:
            assert seconds(lambda c=call: check(c)) < 0.5 + SLACK_S  # type: ignore[misc]


def check(call: Callable[[], Any]) -> None:
    assert error_code_of(call) == KafkaError._TRANSPORT


def test_an_outage_is_reported_once_to_error_cb(site: Facade, name: str, relay: Relay) -> None:
    errors: list[KafkaError] = []
    commits: list[Any] = []
    config = {
        "bootstrap.servers": relay.url,
        "error_cb": errors.append,
        "on_commit": lambda *report: commits.append(report),
    }
    with site.consumer(**EARLIEST, **config) as reader:
        for _ in range(2):
            relay.cut()
            # First while joining, later by the heartbeats.
            reader.subscribe([name])
            poll_until(lambda: errors, reader)
            until_s = time.monotonic() + 3
            while time.monotonic() < until_s:
                reader.poll(0.1)
            assert [error.code() for error in errors] == [KafkaError._TRANSPORT]
            assert "does not answer" in errors[0].str()
            relay.restore()
            poll_until(lambda: len(reader.assignment()) == 2, reader)
            # The poll that reports a commit also notices the end of the outage.
            poll_until(lambda: reader.position(reader.assignment())[0].offset > 0, reader)
            commits.clear()
            reader.commit()
            poll_until(lambda: commits, reader)
            errors.clear()


@pytest.mark.usefixtures("quick_end")
def test_close_is_bounded_and_the_gateway_gets_the_rest_later(
    site: Facade, name: str, relay: Relay
) -> None:
    revoked: list[Any] = []
    reports: list[Any] = []
    config = {
        "bootstrap.servers": relay.url,
        "enable.auto.commit": True,
        "auto.commit.interval.ms": 0,
        "on_commit": lambda *report: reports.append(report),
    }
    reader = site.consumer(**EARLIEST, **config)
    reader.subscribe([name], on_revoke=lambda _, parts: revoked.extend(parts))
    poll_messages(reader, 20)
    with relay.stalled():
        assert seconds(reader.close) < 1.0 + SLACK_S
        assert len(revoked) == 2
    channel = site.gateway.channel(name)
    until(lambda: not [endpoint for endpoint in channel.endpoints() if endpoint.lives])
    until(lambda: sum(position.offset for position in channel.committed("g").values()) == 20)
    assert {endpoint.state for endpoint in channel.endpoints()} == {"closed"}


def test_a_consumer_that_is_closed_while_requests_are_refused_leaves_later(
    site: Facade, name: str, relay: Relay, refusing: Any
) -> None:
    reader = site.consumer(**EARLIEST, **{"bootstrap.servers": relay.url})
    reader.subscribe([name])
    poll_messages(reader, 20)
    with refusing(401, "unauthenticated"):
        reader.close()
    channel = site.gateway.channel(name)
    until(lambda: [endpoint.state for endpoint in channel.endpoints()] == ["closed"])


@pytest.mark.usefixtures("quick_end")
def test_closing_a_consumer_that_joins_does_not_wait_for_it(
    site: Facade, name: str, relay: Relay
) -> None:
    reader = site.consumer(**{"bootstrap.servers": relay.url})
    with relay.stalled():
        reader.subscribe([name])
        reader.poll(0.1)
        assert seconds(reader.close) < 1.0 + SLACK_S
    channel = site.gateway.channel(name)
    until(lambda: not [endpoint for endpoint in channel.endpoints() if endpoint.lives])


def test_other_threads_poll_while_a_commit_waits(site: Facade, name: str, relay: Relay) -> None:
    with site.consumer(**EARLIEST, **{"bootstrap.servers": relay.url}) as reader:
        reader.subscribe([name])
        poll_messages(reader, 5)
        read = reader.position(reader.assignment())
        with relay.stalled():
            committing = threading.Thread(
                target=lambda: reader.commit(offsets=read, asynchronous=False)
            )
            committing.start()
            assert len(poll_messages(reader, 15)) == 15
            assert committing.is_alive()
        committing.join(60)
    assert (
        sum(position.offset for position in site.gateway.channel(name).committed("g").values()) == 5
    )


@pytest.mark.long
def test_partitions_that_are_assigned_again_are_read_again(
    consumer: Callable[..., Consumer], name: str
) -> None:
    first, second = consumer(**EARLIEST), consumer(**EARLIEST)
    first.subscribe([name])
    poll_messages(first, 20)
    first.commit(asynchronous=False)
    second.subscribe([name])
    poll_until(lambda: len(second.assignment()) == 1, first, second)
    second.close()
    poll_until(lambda: len(first.assignment()) == 2, first)
    for partition in range(2):
        first.seek(at(name, partition, 0))
    assert len(poll_messages(first, 20)) == 20
